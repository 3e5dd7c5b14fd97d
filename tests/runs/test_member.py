"""Sessions of a member, and what a population that goes on makes of its members."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyplay import systems
from polyplay.core import checkpoint, processes
from polyplay.core.errors import WorkerLost
from polyplay.population.store import DONE, FAILED, TRAINING, WAITING, founder
from polyplay.population.trainer import DRAWS
from polyplay.runs import population
from polyplay.runs.options import resolve
from polyplay.runs.population import MemberRunner
from polyplay.runs.session import Session
from tests.population.fake_members import begun, evolution_of

KW: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 4, "unroll": 5, "replicas": 1, "serial": True}
KW |= {"tensorboard": False, "quiet": True, "steps": 400}


@pytest.fixture
def runner(tmp_path: Path) -> MemberRunner:
    (tmp_path / "run/members").mkdir(parents=True)
    settings, options, sources = resolve(systems.load("a2c"), **KW)
    return MemberRunner(tmp_path / "run", "a2c", settings, replace(options, run=None), sources, "games")


def session(runner: MemberRunner, until: int = 400, why: str = "", said: list[str] | None = None) -> Any:
    m = founder(0, {"learning_rate": 1e-3})
    return runner(m, until, lambda: why, lambda kind, text: (said if said is not None else []).append(text))


def test_a_member_trains_to_its_turn_and_to_its_end(runner):
    first = session(runner, 200)
    assert (first.ended, first.why) == ("ready", "")
    assert first.steps >= 200
    assert len(first.games) == 10
    assert session(runner, 200) == replace(first, seconds=pytest.approx(0, abs=5)), "killed before it was written down"
    last = session(runner, 400)
    assert (last.ended, last.why) == ("done", "done")


def test_it_begins_where_its_directory_was_made_and_nothing_else(runner):
    (runner.directory / "members/00/checkpoints").mkdir(parents=True)
    (runner.directory / "members/00/.lock").touch()
    assert session(runner, 100).ended == "ready"


def test_who_is_stopped_before_it_learns_is_not_done(runner, monkeypatch):
    monkeypatch.setattr(Session, "_learning", lambda self: False)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.0)
    found = session(runner, why="stopped with its population")
    assert (found.ended, found.why) == ("stopped", "stopped with its population before anything was learnt")


def test_who_is_dropped_in_the_midst_is_not_done(runner, monkeypatch):
    """A second signal to a population in one thread comes out of its member's session."""

    def tick(self: Session) -> None:
        raise processes.Stopped(15)

    monkeypatch.setattr(Session, "_tick", tick)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.0)
    with pytest.raises(processes.Stopped):
        session(runner)
    monkeypatch.undo()
    assert session(runner).ended == "done"


def test_a_checkpoint_that_cannot_be_saved_ends_the_population(runner, monkeypatch):
    """Going on would lose what every session learns."""

    def refused(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    assert session(runner, 200).ended == "ready"
    monkeypatch.setattr(checkpoint, "complete", refused)
    with pytest.raises(
        WorkerLost,
        match=r"^member 00: not saved: checkpoint of update \d+: No space left on device; the disk is full: free .*$",
    ):
        session(runner)
    monkeypatch.undo()
    assert session(runner).ended == "done"


def test_counters_are_those_of_the_newest_checkpoint_that_can_be_read(runner):
    session(runner, 200)
    before = population._newest_counters(runner.directory / "members/00")
    damaged = runner.directory / "members/00/checkpoints/000000000999-steps-9999"
    damaged.mkdir()
    assert population._newest_counters(runner.directory / "members/00") == before
    assert before["steps"] >= 200


def test_a_warning_may_be_printed_while_a_session_prints(runner, capfd, monkeypatch):
    """In one thread both go to the same standard output."""

    def tick(self: Session, real: Any = Session._tick) -> None:
        print("polyplay: warning a lane is late")
        real(self)

    monkeypatch.setattr(Session, "_tick", tick)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.02)
    said: list[str] = []

    def say(kind: str, text: str) -> None:
        said.append(text)
        print(f"polyplay: warning {text}", file=sys.stdout)

    runner(founder(0, {"learning_rate": 1e-3}), 100, str, say)
    assert said.count("member 00: a lane is late") == 1
    assert "polyplay: warning member 00: a lane is late" in capfd.readouterr().out


def extended(tmp_path: Path, members: list[dict[str, Any]], changes: dict[str, Any], **more: Any) -> list[Any]:
    """State and tries of members after the population was resumed."""
    store = begun(tmp_path / "run", evolution_of())
    found = store.read()
    for m, changed in zip(found["members"], members, strict=True):
        m |= changed
    store.write(found)
    population._extend(store, evolution_of(**more), changes)
    return [(m["state"], m["falls"]) for m in store.read()["members"]]


def test_who_goes_on_when_a_population_does(tmp_path):
    lost = {"state": FAILED, "lost": True, "falls": 0}
    tired = {"state": FAILED, "falls": DRAWS}
    assert extended(tmp_path, [lost, tired, {"state": TRAINING, "falls": 2}], {}) == [
        (WAITING, 0),
        (FAILED, 0),
        (WAITING, 0),
    ]
    failed = {"state": FAILED, "falls": 3}  # draws a donor by it, as if nothing had been interrupted
    assert extended(tmp_path, [failed, {"state": DONE}, {}], {}) == [(FAILED, 3), (DONE, 0), (WAITING, 0)]


def test_who_is_done_goes_on_where_there_is_more_to_do(tmp_path):
    done = [{"state": DONE}] * 3
    assert {state for state, _ in extended(tmp_path, done, {"quiet": True})} == {DONE}
    assert {state for state, _ in extended(tmp_path, done, {"until_return": 9.0})} == {WAITING}
    # killed after config.json had the new end, and resumed without saying it again
    assert {state for state, _ in extended(tmp_path, done, {}, total=500)} == {WAITING}
