"""The rater: what it plays is rated once, whoever is killed, and references are the same in every run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import polyplay
from polyplay.core import checkpoint, files
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Envs
from polyplay.nets import NetworkFactory
from polyplay.population import ratings
from polyplay.population.judge import BATCH, METRIC, rater
from polyplay.population.ratings import RATINGS, REFERENCES, rate_lines
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.systems import league
from polyplay.weights.params import FlatParams, Params
from tests.faults import injected

GAMES = Envs("toy:skirmish+health=2", 4)
POLICY = NetworkFactory("mlp", GAMES.spec, {"hidden": (4,)})
BOTS, EVERY, MATCHES = ("opposite", "focus"), 10, 2 * BATCH + 4


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyplay.population.judge.MATCHES", 8)
        patch.setattr(ratings, "MATCHES", 8)
        yield


class Run:
    """A learner that publishes weights of zeros, which choose at random, and its rater."""

    def __init__(self, directory: Path, seed: int = 3, **more: Any):
        directory.mkdir(exist_ok=True)
        self.directory, self.heard = directory, list[tuple[str, str]]()
        self.params, self.counters = Params.of(POLICY), Counters(1, (METRIC,))
        net = POLICY()
        self.vector = FlatParams(net)
        torch.nn.init.zeros_(self.vector.flat)
        self.ctx = WorkerContext("rater", 0, 1, 0, seed, self.counters, RunControl(), directory, patience=0.0)
        self.ctx.say = lambda kind, text: self.heard.append((kind, text))
        self.asked = {"references": BOTS, "every": EVERY, "matches": MATCHES, **more}
        self.employ()

    def employ(self) -> None:
        self.turns: Iterator[None] = rater(self.ctx, games=GAMES, policy=POLICY, params=self.params, **self.asked)

    def publish(self, version: int) -> None:
        self.params.publish(self.vector, version, version)
        self.ctx.counters.set("steps", 100.0 * version)

    def work(self, turns: int = 5000, until: int = 10**6) -> None:
        """Until so many lines are there, or so many turns were taken."""
        for _ in range(turns):
            next(self.turns)
            if len(self.lines) >= until:
                return

    @property
    def lines(self) -> list[dict]:
        return list(read_lines(self.directory / RATINGS))


def after_two(directory: Path) -> Run:
    """Versions 0 and 12 were rated."""
    run = Run(directory)
    for n, version in ((3, 0), (6, 12)):
        run.publish(version)
        run.work(until=n)
        run.work(2)
    return run


@pytest.fixture(scope="module")
def whole(few: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return after_two(tmp_path_factory.mktemp("runs") / "whole")


def told(run: Run) -> list[dict]:
    """Lines without the clock."""
    return [{k: v for k, v in line.items() if k != "wall_seconds"} for line in run.lines]


def test_versions_are_rated_once_every_so_many_updates(tmp_path):
    whole = after_two(tmp_path / "run")
    assert [(line["version"], len(line["points"])) for line in whole.lines] == [
        *[(0, 16), (0, 16), (0, 4)],
        *[(12, 16), (12, 16), (12, 4)],
    ]
    rated = rate_lines(whole.lines)
    assert [(version.matches, version.steps) for version in rated] == [(MATCHES, 0), (MATCHES, 1200)]
    assert [(line["mu"], line["sigma"]) for line in whole.lines[2::3]] == [version.skill for version in rated]
    for mu, sigma in (version.skill for version in rated):
        assert abs(mu) < 3.5 * sigma < 8, "it plays at random, which is 0"
    total, n = whole.counters.metrics.sum(0)[0]
    assert (total, n) == (pytest.approx(sum(version.skill[0] for version in rated)), 2)
    whole.publish(21)
    whole.work(50)
    assert len(whole.lines) == 6, "9 updates later"
    whole.publish(22)
    whole.work(until=7)
    assert whole.lines[6]["version"] == 22
    assert whole.lines[6]["steps"] == 2200


def test_a_rater_that_is_lost_anywhere_plays_the_same_again(whole, tmp_path):
    """At each turn of its own: while references meet, in a batch, after a line, which is torn."""
    run = Run(tmp_path / "lost")
    for version in (0, 12):
        run.publish(version)
        for turns in (7, 25, 40, 90, 130, 600):
            run.work(turns)
            run.turns.close()
            with open(run.directory / RATINGS, "ab") as file:
                file.write(b'{"version": 0, "mu"')
            run.employ()
            next(run.turns)
    assert told(run) == told(whole)
    assert (run.directory / REFERENCES).read_bytes() == (whole.directory / REFERENCES).read_bytes()


def test_a_rater_that_is_replaced_knows_the_steps_of_a_checkpoint_that_was_removed(tmp_path):
    run = Run(tmp_path / "run")
    run.ctx.resume = tmp_path / checkpoint.directory_name(40, {"steps": 900})
    run.ctx.incarnation = 1001
    run.publish(41)
    run.employ()
    run.work(until=1)
    assert run.lines[0]["steps"] == 900 + 4100


def test_references_are_the_same_in_a_run_of_another_seed(whole, tmp_path):
    other = Run(tmp_path / "other", seed=8)
    other.publish(0)
    other.work(until=1)
    assert (other.directory / REFERENCES).read_bytes() == (whole.directory / REFERENCES).read_bytes()
    assert other.lines[0]["points"] != whole.lines[0]["points"]
    found = ratings.read_references(whole.directory)
    assert found["random"] == 0
    assert found["focus"] > 0


def test_a_version_that_was_left_half_rated_is_left_where_newer_weights_are_there(tmp_path):
    run = Run(tmp_path / "run")
    run.publish(4)
    run.work(until=1)
    run.turns.close()
    run.publish(5)
    run.employ()
    run.work(60)
    assert [line["version"] for line in run.lines] == [4]
    run.publish(14)
    run.work(until=2)
    assert [line["version"] for line in run.lines] == [4, 14]


def test_while_the_disk_is_full_nothing_is_lost_and_it_is_said_once(whole, tmp_path, monkeypatch):
    run = Run(tmp_path / "full")
    run.publish(0)
    run.work(until=1)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(files.os, "write", full)
        run.work(100)
        assert len(run.lines) == 1
    run.work(until=3)
    assert told(run) == told(whole)[:3]
    assert run.heard == [
        (
            "warning",
            f"{RATINGS}: No space left on device; the disk is full: free some space; "
            "versions are rated once it can be written again",
        )
    ]


@pytest.mark.parametrize(
    ("games", "more", "words"),
    [
        (GAMES, {"references": ("focus", "level9")}, "references: level9 given; allowed: random, opposite, focus"),
        (Envs("toy:catch", 1), {"references": ()}, "ratings need two teams of the same kind"),
        (GAMES, {"matches": 7}, "7 given, half on each side; allowed: even numbers from 2 on"),
    ],
)
def test_what_cannot_be_rated_is_said(games, more, words, tmp_path):
    run = Run(tmp_path / "run")
    with pytest.raises(UserError, match=words):
        next(rater(run.ctx, games=games, policy=POLICY, params=run.params, **{**run.asked, **more}))
    assert not (run.directory / RATINGS).exists()


# ------------------------------------------------------------------------------------------------------ in a run


@pytest.fixture
def rated_league(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of league, with a rater."""
    wire = league.wire_tables

    def wire_with_rater(c, crew, envs, spec, *rest, **more):
        wired = wire(c, crew, envs, spec, *rest, **more)
        params = next(role.params for role in crew.roles if role.learner)
        held = {"games": envs, "policy": spec.policy, "params": params}
        crew.add(rater, on_loss="replace", **held, references=tuple(envs.spec.bots), every=5, matches=4)
        return replace(wired, metrics=(*wired.metrics, METRIC))

    monkeypatch.setattr(league, "wire_tables", wire_with_rater)


SMALL: dict[str, Any] = {"env": "toy:skirmish+health=1", "agents": 1, "network": "mlp", "lanes": 8, "batch": 4}
SMALL |= {"opponents": "past:0.2", "unroll": 4, "tensorboard": False}


@pytest.mark.usefixtures("rated_league")
def test_a_run_reports_it_and_resumes_with_what_the_checkpoint_knows(tmp_path):
    run = polyplay.train("league", run=str(tmp_path / "run"), steps=1000, serial=True, report_every=0.5, **SMALL)
    lines = list(read_lines(run.directory / RATINGS))
    assert len(lines) >= 2
    assert [line["version"] for line in lines] == sorted({line["version"] for line in lines})
    reports = [row[METRIC] for row in read_lines(run.directory / "metrics.jsonl") if METRIC in row]
    assert reports
    late = {**lines[-1], "version": run.summary["updates"] + 1}
    with open(run.directory / RATINGS, "a") as file:
        file.write(json.dumps(late) + "\n")
    polyplay.resume(run.directory, steps=1500)
    after = list(read_lines(run.directory / RATINGS))
    assert after[: len(lines)] == lines
    assert late not in after
    assert len(after) > len(lines)
    assert after[-1]["steps"] > lines[-1]["steps"]


@pytest.mark.usefixtures("rated_league")
def test_the_figure_shows_it():
    figure = diagram("league", league.Config(**{k: v for k, v in SMALL.items() if k != "tensorboard"}), RunOptions())
    assert "┌─ rater × 1 ─" in figure
    assert "games   toy:skirmish+health=1 against opposite, focus" in figure
    assert "rates   every 5 updates, by 4 matches" in figure
    assert "learn ──► Params" in figure
    assert "act + rater" in figure


@pytest.mark.long
@pytest.mark.usefixtures("rated_league")
def test_raters_are_killed_and_replaced_in_a_run(tmp_path):
    given = {**SMALL, "on": "process", "checkpoint_every": 1.0}
    with injected("kill=rater:1.5"):
        run = polyplay.train("league", run=str(tmp_path / "run"), steps=10**7, minutes=0.25, **given)
    lines, rated = list(read_lines(run.directory / RATINGS)), rate_lines(read_lines(run.directory / RATINGS))
    assert "rater" in (run.directory / "chaos.jsonl").read_text()
    assert all(version.matches <= 4 for version in rated)
    assert [v.version for v in rated] == sorted({line["version"] for line in lines})
    assert run.summary["exit_code"] == 0
