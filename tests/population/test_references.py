"""The references' own table: random play is 0, matches are taken in rounds, and files of other matches do not count."""

from __future__ import annotations

import itertools
import json

import pytest

from polyplay.core.files import write_json
from polyplay.population.ratings import (
    MATCHES,
    REFERENCES,
    RULES,
    ReferenceTable,
    TrueSkill,
    rate_references,
    read_references,
)


def test_the_first_match_of_every_two_comes_before_the_second_of_any():
    pairs = {("random", "a"): [0.0, 1.0, 0.0], ("random", "b"): [0.0, 0.5], ("a", "b"): [0.0, 0.0, 1.0]}
    skills = dict.fromkeys(("random", "a", "b"), (25.0, 25 / 3))
    order = [("random", "a", 0.0), ("random", "b", 0.0), ("a", "b", 0.0)]
    order += [("random", "a", 1.0), ("random", "b", 0.5), ("a", "b", 0.0)]
    order += [("random", "a", 0.0), ("a", "b", 1.0)]
    for one, other, points in order:
        (skills[one],), (skills[other],) = TrueSkill().rate([skills[one]], [skills[other]], points)
    found = rate_references(("random", "a", "b"), pairs)
    assert found["random"][0] == 0
    for name, (mu, sigma) in skills.items():
        assert found[name] == pytest.approx((mu - skills["random"][0], sigma))


def whole() -> ReferenceTable:
    table = ReferenceTable("toy:skirmish", ("random", "a", "b"))
    for k, pair in enumerate(itertools.combinations(table.names, 2)):
        table.pairs[pair] = [0.0] * (MATCHES - k) + [1.0] * k
    return table


def test_the_file_makes_the_same_table(tmp_path):
    table, again = whole(), ReferenceTable("toy:skirmish", ("random", "a", "b"))
    assert [pair for _, pair in again.missing()] == [*table.pairs]
    write_json(tmp_path / REFERENCES, table.save())
    again.load(tmp_path)
    assert again == table
    assert again.missing() == []
    assert read_references(tmp_path) == {name: mu for name, (mu, _) in table.skills().items()}
    assert 0 < read_references(tmp_path)["a"] < read_references(tmp_path)["b"]
    saved = json.loads((tmp_path / REFERENCES).read_text())
    assert saved["trueskill"] == {"mu": 25, "sigma": 25 / 3, "beta": 25 / 6, "tau": 0, "draw": 0.02}


def test_those_who_have_not_met_play_on(tmp_path):
    table, again = whole(), ReferenceTable("toy:skirmish", ("random", "a", "b"))
    del table.pairs["a", "b"]
    write_json(tmp_path / REFERENCES, table.save())
    assert read_references(tmp_path) == {}
    again.load(tmp_path)
    assert again.missing() == [(2, ("a", "b"))]


@pytest.mark.parametrize(
    "other",
    [
        ReferenceTable("toy:skirmish+health=2", ("random", "a", "b")),
        ReferenceTable("toy:skirmish", ("random", "b", "a")),
        ReferenceTable("toy:skirmish", ("random", "a", "b"), TrueSkill(draw=0.1)),
    ],
)
def test_matches_of_others_do_not_count(other, tmp_path):
    write_json(tmp_path / REFERENCES, whole().save())
    other.load(tmp_path)
    assert other.pairs == {}


@pytest.mark.parametrize("damage", ["", "[]", '{"played": [{"pair": ["a"]}]}', "cut", "points"])
def test_a_damaged_file_is_made_anew(damage, tmp_path):
    text = json.dumps(whole().save())
    made = {"cut": text[:-7], "points": text.replace("0.0, 0.0, 0.0", "0.0, 3.0")}
    (tmp_path / REFERENCES).write_text(made.get(damage, damage))
    table = ReferenceTable("toy:skirmish", ("random", "a", "b"), RULES)
    table.load(tmp_path)
    assert table.pairs == {}
