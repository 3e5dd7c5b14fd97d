"""The files of a population: lines, decisions and claims agree, whoever was killed; a member's line and its rank."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.population.store import (
    DONE,
    FAILED,
    LINEAGE,
    WAITING,
    Segment,
    Store,
    ancestry,
    best_member,
    line_of,
    rank_members,
    read_lineage,
    wall_seconds,
)
from tests.population.fake_members import begun, plan_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return begun(tmp_path / "run", plan_of())


def decide(store: Store, i: int = 0, why: str = "no member is better") -> None:
    with store.locked():
        population = store.read()
        m = population["members"][i]
        store.commit(population, line_of(population, m, m["values"], why))


def numbers(store: Store) -> list[int]:
    return [row["decision"] for row in read_lineage(store.directory)]


def test_it_may_be_begun_again_where_it_was_killed_before_it_was_a_run(store):
    (store.directory / LINEAGE).write_text((store.directory / LINEAGE).read_text() + '{"torn')
    begun(store.directory, plan_of(size=2))
    assert (numbers(store), len(store.read()["members"])) == ([0, 1], 2)


@pytest.mark.parametrize(
    "left", ['{"decision": 3, "member": 1', '{"decision": 3}\n', '{"decision": 3}\n{"decision": 4}\n{"d']
)
def test_the_next_decision_has_the_number_of_one_that_was_not_made(left, store):
    with (store.directory / LINEAGE).open("a") as file:
        file.write(left)
    decide(store, 2, "made")
    assert (numbers(store), read_lineage(store.directory)[-1]["why"]) == ([0, 1, 2, 3], "made")


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2, "members": []}', '{"schema": 1}'])
def test_a_damaged_file_is_told_in_one_line(text, store):
    (store.directory / "population.json").write_text(text)
    with pytest.raises(UserError, match=r"^RUN: /.*population\.json [^\n]*$"):
        store.read()


@pytest.mark.parametrize("jump", [-7200.0, 1e9], ids=["back", "another epoch"])
def test_a_clock_that_is_set_changes_no_duration(jump, monkeypatch):
    population = {"clock": {"before": 100.0, "since": time.monotonic()}}
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert wall_seconds(population) == pytest.approx(100, abs=30)
    for since in (time.monotonic() + 1e6, real()):  # of another start of the machine, and of an earlier version
        assert wall_seconds({"clock": {"before": 100.0, "since": since}}) == 100.0


def hold(directory: Path, i: int, ready: Any) -> None:
    store = Store(directory)
    with store.claimed(i) as mine, store.locked():
        ready.send(mine)
        time.sleep(600)


def test_a_member_is_one_trainers_alone_and_free_when_that_is_killed(store):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(store.directory, 1, theirs))
    process.start()
    try:
        assert ours.recv() is True
        with store.claimed(1) as mine:
            assert not mine
        with store.claimed(0) as first, store.claimed(0) as second:  # trainers may be threads
            assert (first, second) == (True, False)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        with store.claimed(1) as mine:
            assert mine
        with store.locked():
            assert json.loads((store.directory / "population.json").read_text()) == store.read()
    finally:
        process.kill()
        process.join()


Step = tuple[int, int, Any]  # a member, its agent step, its values


@dataclass
class Member:
    values: dict[str, Any]
    steps: int = 0
    decided: int = 0  # its steps then
    past: list[Step] = field(default_factory=list)  # every step that its weights were ever trained for


class Population:
    """The twin: every member carries all its past, and a copy takes the donor's."""

    def __init__(self, members: int, rng: np.random.Generator):
        self.rng, self.rows = rng, list[dict[str, Any]]()
        self.members = [Member(self.draw()) for _ in range(members)]
        for i, member in enumerate(self.members):
            self.write(i, {}, member.values, None, None)

    def draw(self) -> dict[str, Any]:
        return {"rate": int(self.rng.integers(4)), "cost": int(self.rng.integers(2))}

    def write(self, i: int, old: dict[str, Any], new: dict[str, Any], donor: int | None, at: int | None) -> None:
        row = {"decision": len(self.rows), "member": i, "donor": donor, "steps": self.members[i].steps}
        self.rows.append(row | {"donor_steps": at, "old": old, "new": new})

    def train(self, i: int, steps: int) -> None:
        member = self.members[i]
        member.past += [(i, member.steps + k, member.values) for k in range(steps)]
        member.steps += steps

    def decide(self, i: int) -> None:
        """Copy another's weights of now, or of a checkpoint since its last decision; or go on, as before or not."""
        member, donor = self.members[i], int(self.rng.integers(len(self.members)))
        old = member.values
        if donor != i and self.rng.random() < 0.6:
            other = self.members[donor]
            at = int(self.rng.integers(other.decided, other.steps + 1))
            member.past = list(other.past[: len(other.past) - (other.steps - at)])
            member.values = self.draw() if self.rng.random() < 0.7 else dict(other.values)
            self.write(i, old, member.values, donor, at)
        else:
            member.values = self.draw() if self.rng.random() < 0.3 else old
            self.write(i, old, member.values, None, None)
        member.decided = member.steps

    def run(self, decisions: int) -> None:
        for _ in range(decisions):
            i = int(self.rng.integers(len(self.members)))
            self.train(i, int(self.rng.integers(1, 6)))
            self.decide(i)
        for i in range(len(self.members)):
            self.train(i, int(self.rng.integers(0, 4)))


def steps_of(line: list[Segment]) -> list[Step]:
    return [(s.member, step, s.values) for s in line for step in range(s.begin, s.end)]


POPULATIONS = (st.integers(1, 6), st.integers(0, 60), st.integers(0, 2**32))


@given(*POPULATIONS)
@settings(deadline=None)
def test_a_line_is_what_its_weights_were_trained_for(members, decisions, seed):
    twin = Population(members, np.random.default_rng(seed))
    twin.run(decisions)
    for i, member in enumerate(twin.members):
        assert steps_of(ancestry(twin.rows, i, member.steps)) == member.past


def row(member: int, steps: int = 0, donor: int | None = None, at: int | None = None, **more: Any) -> dict[str, Any]:
    about = {"decision": 9, "member": member, "steps": steps, "donor": donor, "donor_steps": at}
    return {**about, "old": {}, "new": {"rate": 0.5}, **more}


def test_rows_of_a_file_and_a_member_that_has_none(tmp_path):
    assert read_lineage(tmp_path) == []
    good, bad = [row(0), row(1, 110, 0, 100)], [row(1, 110, 0), row(0, new=None), {"member": 1}]
    lines = [json.dumps(x) for x in [*good, *bad]] + ["{torn", json.dumps(row(0))]
    (tmp_path / LINEAGE).write_text("\n".join(lines))  # the last has no end yet
    assert read_lineage(tmp_path) == good
    assert ancestry([], 3) == ancestry(good, 3) == []


def members(*found: tuple[str, float | None]) -> list[dict]:
    return [{"member": i, "state": state, "score": score} for i, (state, score) in enumerate(found)]


def test_best_first_then_those_without_a_score_then_those_that_failed():
    found = members((WAITING, None), (FAILED, 9.0), (DONE, -3.0), (WAITING, 2.0), (WAITING, 0.0), (DONE, 2.0))
    assert [m["member"] for m in rank_members(found)] == [3, 5, 4, 2, 0, 1]
    assert best_member(found) == found[3]
    assert best_member(found[:2]) is best_member([]) is None
