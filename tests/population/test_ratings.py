"""Elo by hand; TrueSkill against the package trueskill; versions against references; the references' own table."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.files import write_json
from polyplay.population import ratings
from polyplay.population.ratings import (
    RATINGS,
    REFERENCES,
    elo_change,
    next_reference,
    rate_against,
    rate_lines,
    read_rated,
    read_references,
    reference_settings,
    reference_skills,
    trueskill,
    win_probability,
)


def test_trueskill_is_that_of_the_package(monkeypatch):
    """Random matches of two, as the package `trueskill` rates them with an exact error function: with other numbers,
    and a skill that changes by τ before each match.
    """
    for match in json.loads((Path(__file__).parent / "trueskill_matches.json").read_text()):
        rules = match["rules"]
        players = [(mu, math.hypot(sigma, rules["tau"])) for mu, sigma in match["players"]]
        monkeypatch.setattr(ratings, "BETA", rules["beta"])
        margin = rules["beta"] * NORMAL.inv_cdf((rules["draw"] + 1) / 2) * math.sqrt(2)
        monkeypatch.setattr(ratings, "MARGIN", margin)
        found = trueskill(*players, match["points"])
        assert np.array(found) == pytest.approx(np.array(match["then"]), abs=1e-6)


def test_elo_by_hand():
    assert win_probability(1400, 1000) == pytest.approx(10 / 11)
    assert win_probability(1000, 1400) == pytest.approx(1 / 11)
    assert (elo_change(1000, 1000, 1), elo_change(1000, 1000, 0.5)) == (8, 0)
    assert elo_change(1400, 1000, 0) == pytest.approx(-160 / 11)


NORMAL = NormalDist()

POINTS = st.sampled_from([0.0, 0.5, 1.0])

SIGMA, BETA = 25 / 3, 25 / 6


def integrated(skill: tuple[float, float], reference: float, points: list[float]) -> tuple[float, float]:
    """The plain twin: mean and deviation of a skill given each result in turn, by the rectangle rule."""
    mu, sigma = skill
    noise = math.sqrt(2) * BETA
    margin = NORMAL.inv_cdf(1.02 / 2) * noise
    for scored in points:
        x = np.linspace(mu - 9 * sigma, mu + 9 * sigma, 4001)
        above = np.array([NORMAL.cdf((s - reference - margin) / noise) for s in x])
        below = np.array([NORMAL.cdf((reference - s - margin) / noise) for s in x])
        weight = np.exp(-(((x - mu) / sigma) ** 2) / 2) * {1.0: above, 0.0: below, 0.5: 1 - above - below}[scored]
        mu = float((x * weight).sum() / weight.sum())
        sigma = math.sqrt(float(((x - mu) ** 2 * weight).sum() / weight.sum()))
    return mu, sigma


@settings(deadline=None, max_examples=15)
@given(st.floats(-30, 30), st.floats(-20, 20), st.lists(POINTS, max_size=4))
def test_a_rating_is_the_posterior(mu, apart, points):
    found = rate_against((mu, SIGMA), mu + apart, points)
    assert found == pytest.approx(integrated((mu, SIGMA), mu + apart, points), abs=1e-4)


def line(version: int, reference: tuple[str, float], points: list[float], **more: object) -> dict:
    about = {"version": version, "steps": 10 * version, "wall_seconds": 0.5 * version, "mu": 0.0, "sigma": 0.0}
    return {**about, "reference": reference[0], "reference_mu": reference[1], "points": points, **more}


def test_a_version_begins_at_the_mu_of_the_one_before():
    low, high = ("random", 0.0), ("best", 12.0)
    lines = [line(0, low, [1.0, 0.0]), line(0, high, [0.5]), line(40, high, [1.0, 1.0]), line(80, low, [0.0])]
    rated = rate_lines(lines)
    skills, mu = [], 0.0
    for matches in ([(0.0, 1.0), (0.0, 0.0), (12.0, 0.5)], [(12.0, 1.0), (12.0, 1.0)], [(0.0, 0.0)]):
        skill = mu, SIGMA
        for reference, points in matches:
            skill = integrated(skill, reference, [points])
        skills.append(skill)
        mu = skill[0]
    assert np.array([version.skill for version in rated]) == pytest.approx(np.array(skills), abs=1e-4)
    assert [(version.version, version.steps, version.wall_seconds) for version in rated] == [
        (0, 0, 0.0),
        (40, 400, 20.0),
        (80, 800, 40.0),
    ]
    assert rated[0].points == {"random": [1.0, 0.0], "best": [0.5]}
    assert [version.matches for version in rated] == [3, 2, 1]


def test_damaged_and_torn_lines_are_left_out(tmp_path):
    good = [line(0, ("random", 0.0), [1.0]), line(4, ("random", 0.0), [0.0, 1.0])]
    damaged = [{"version": 1}, {**good[0], "mu": None}, {**good[0], "points": []}, 7]
    text = "".join(json.dumps(row) + "\n" for row in [good[0], *damaged, good[1]])
    (tmp_path / RATINGS).write_text(text + json.dumps(good[1])[:-9])
    assert read_rated(tmp_path) == rate_lines(good)
    assert read_rated(tmp_path / "none") == []


FIVE = {"random": 0.0, "a": 4.0, "b": 9.0, "c": 25.0, "d": 60.0}


@pytest.mark.parametrize(
    ("mu", "played", "wanted"),
    [
        (0.0, {}, "random"),
        (0.0, {"random": [1.0]}, "a"),
        (0.0, {"random": [1.0], "a": [0.0]}, "b"),
        (0.0, {"random": [1.0] * 3, "a": [1.0], "b": [0.5] * 2}, "a"),
        (30.0, {"c": [1.0] * 9}, "b"),  # only c is near: the nearest two
        (90.0, {}, "d"),
        (90.0, {"d": [1.0]}, "c"),
        (99.0, {"c": [1.0], "d": [1.0]}, "d"),
    ],
)
def test_who_is_near_and_was_played_least_comes_next(mu, played, wanted):
    assert next_reference(mu, played, FIVE) == wanted


NAMES = ("random", "a", "b")
PAIRS = {pair: [0.0] * (4 - k) + [1.0] * k for k, pair in enumerate(itertools.combinations(NAMES, 2))}


def test_the_first_match_of_every_two_comes_before_the_second_of_any():
    skills = dict.fromkeys(NAMES, (25.0, 25 / 3))
    for match in range(4):
        for (one, other), points in PAIRS.items():
            skills[one], skills[other] = trueskill(skills[one], skills[other], points[match])
    random = skills["random"][0]
    assert reference_skills(NAMES, PAIRS) == {name: (mu - random, sigma) for name, (mu, sigma) in skills.items()}


def test_references_of_a_file_that_is_of_others_or_damaged_are_not_known(tmp_path):
    assert read_references(tmp_path) == {}
    settings, skills = reference_settings("toy:skirmish", NAMES), {"random": 0.0, "a": 1.5, "b": 2.5}
    made = {**settings, "references": [{"name": name, "mu": mu, "sigma": 2.0} for name, mu in skills.items()]}
    write_json(tmp_path / REFERENCES, made)
    assert settings["trueskill"] == {"mu": 25, "sigma": 25 / 3, "beta": 25 / 6, "draw": 0.02}
    assert read_references(tmp_path) == read_references(tmp_path, settings) == skills
    for other in (("toy:skirmish+health=2", NAMES), ("toy:skirmish", NAMES[::-1])):
        assert read_references(tmp_path, reference_settings(*other)) == {}
    for damaged in ("", "[]", json.dumps(made)[:-7], '{"references": [{"name": "a"}]}', json.dumps(settings)):
        (tmp_path / REFERENCES).write_text(damaged)
        assert read_references(tmp_path, None) == {}
