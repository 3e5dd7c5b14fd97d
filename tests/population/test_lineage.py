"""A line walked back through its donors is what a simulated population really trained, step by step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.files import JsonLines
from polyplay.population.store import LINEAGE, LeagueLineage, Segment, ancestry, read_lineage

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


@given(*POPULATIONS)
@settings(deadline=None)
def test_the_shape_of_a_line(members, decisions, seed):
    twin = Population(members, np.random.default_rng(seed))
    twin.run(decisions)
    for i, member in enumerate(twin.members):
        line = ancestry(twin.rows, i, member.steps)
        assert (line[-1].member, line[-1].end) == (i, member.steps)
        assert all(s.begin < s.end for s in line[:-1]), "only the last may be empty"


@given(*POPULATIONS)
@settings(deadline=None, max_examples=30)
def test_a_line_as_it_was_earlier(members, decisions, seed):
    """At every moment of the run the rows up to then say what is said later for the member's steps of then."""
    twin = Population(members, np.random.default_rng(seed))
    for _ in range(decisions):
        i = int(twin.rng.integers(members))
        twin.train(i, 2)
        past, steps = list(twin.members[i].past), twin.members[i].steps
        rows = list(twin.rows)
        twin.decide(i)
        assert steps_of(ancestry(rows, i, steps)) == past
        assert steps_of(ancestry(twin.rows, i, steps - 1)) == past[:-1]


def founder(member: int, **values: Any) -> dict[str, Any]:
    return {"decision": member, "member": member, "donor": None, "steps": 0, "donor_steps": None} | {
        "old": {},
        "new": values,
    }


def decision(member: int, steps: int, donor: int | None, at: int | None, old: Any, new: Any) -> dict[str, Any]:
    ours = {"decision": 9, "member": member, "steps": steps, "donor": donor, "donor_steps": at}
    return ours | {"old": old, "new": new}


BY_HAND = [
    founder(0, rate=1.0),
    founder(1, rate=2.0),
    decision(0, 100, None, None, {"rate": 1.0}, {"rate": 1.0}),
    decision(1, 110, 0, 100, {"rate": 2.0}, {"rate": 0.8}),
    decision(0, 200, None, None, {"rate": 1.0}, {"rate": 1.0}),
    decision(1, 210, None, None, {"rate": 0.8}, {"rate": 0.8}),
    decision(0, 300, 1, 210, {"rate": 1.0}, {"rate": 0.96}),
]


def test_a_line_by_hand():
    first, second, third = Segment(0, 0, 100, {"rate": 1.0}), Segment(1, 110, 210, {"rate": 0.8}), {"rate": 0.96}
    assert ancestry(BY_HAND, 0, 350) == [first, second, Segment(0, 300, 350, third)]
    assert ancestry(BY_HAND, 0) == [first, second, Segment(0, 300, 300, third)], "as far as the rows know"
    assert ancestry(BY_HAND, 0, 299) == [Segment(0, 0, 299, {"rate": 1.0})]
    assert ancestry(BY_HAND, 1, 110) == [first, Segment(1, 110, 110, {"rate": 0.8})]
    assert ancestry(BY_HAND, 1) == [first, second]
    assert ancestry([*BY_HAND[:5], BY_HAND[6]], 1) == [first, second], "its steps are known from its copy"


def test_a_copy_that_changes_no_value_is_a_segment():
    rows = [founder(0, rate=1.0), founder(1, rate=2.0), decision(1, 10, 0, 20, {"rate": 2.0}, {"rate": 1.0})]
    assert ancestry(rows, 1, 15) == [Segment(0, 0, 20, {"rate": 1.0}), Segment(1, 10, 15, {"rate": 1.0})]


def test_a_population_that_varies_nothing_has_lines_too():
    rows = [founder(0), founder(1), decision(1, 10, 0, 20, {}, {})]
    assert ancestry(rows, 1, 15) == [Segment(0, 0, 20, {}), Segment(1, 10, 15, {})]


@pytest.mark.parametrize("rows", [[], [founder(0, rate=1.0)]])
def test_a_member_without_rows_has_no_line(rows):
    assert ancestry(rows, 3) == []


def test_rows_of_a_file(tmp_path):
    assert read_lineage(tmp_path) == []
    bad = [{**BY_HAND[3], "donor_steps": None}, {**BY_HAND[2], "new": None}, {"member": 1}]
    lines = [json.dumps(row) for row in [*BY_HAND, *bad]] + ["{torn", json.dumps(BY_HAND[0])]
    (tmp_path / LINEAGE).write_text("\n".join(lines))  # the last has no end yet
    assert read_lineage(tmp_path) == BY_HAND


# ------------------------------------------------------------------------------------------------ of a league


def copies(*numbers: int) -> list[dict[str, Any]]:
    """As CopyHistory has made them."""
    about = {"agent": 0, "donor": 1, "version": 31, "donor_version": 29, "donor_elo": 1100.5, "matches": 40}
    values = {"old": {"rate": 1.0}, "values": {"rate": 0.8}, "before": {"elo": 900.25, "mu": 25.0, "sigma": 8.0}}
    return [{"copy": number, **about, **values, "at": "2026-01-01T00:00:00+0000"} for number in numbers]


def written(directory: Path) -> list[int]:
    """The numbers of the copies of its lines, all of them whole."""
    return [json.loads(line)["copy"] for line in (directory / LINEAGE).read_bytes().splitlines()]


def test_a_league_has_a_line_for_each_copy_and_no_file_without_one(tmp_path):
    lineage = LeagueLineage(tmp_path)
    lineage.write([])
    assert not (tmp_path / LINEAGE).exists()
    for n in (1, 1, 3):
        lineage.write(copies(*range(1, n + 1)))
    assert written(tmp_path) == [1, 2, 3]
    assert json.loads((tmp_path / LINEAGE).read_text().splitlines()[0]) == {
        **{"copy": 1, "agent": 0, "donor": 1, "version": 31, "donor_version": 29},
        **{"elo": 900.25, "donor_elo": 1100.5, "matches": 40, "at": "2026-01-01T00:00:00+0000"},
        **{"old": {"rate": 1.0}, "new": {"rate": 0.8}},
    }


@pytest.mark.parametrize(
    ("was", "torn", "now"),
    [
        ([1, 2], "", [1, 2]),
        ([1, 2], "", [1, 2, 3]),
        ([1, 2], '{"copy": 3, "ag', [1, 2, 3]),
        ([1, 2, 3], '{"copy": 4, "ag', [1, 2]),
        ([1, 2, 3, 4], "", [1, 3, 5]),
        ([1, 2], "", []),
        ([1], "\xff\n[]\n", [1, 2]),
    ],
)
def test_who_writes_next_leaves_no_line_out_and_has_none_of_a_copy_that_was_undone(was, torn, now, tmp_path):
    LeagueLineage(tmp_path).write(copies(*was))
    with open(tmp_path / LINEAGE, "a", encoding="latin-1") as file:
        file.write(torn)
    lineage = LeagueLineage(tmp_path)
    lineage.write(copies(*now))
    assert written(tmp_path) == now
    lineage.write(copies(*now, 9))
    assert written(tmp_path) == [*now, 9]


def test_a_line_that_found_no_room_is_written_later(tmp_path, monkeypatch):
    lineage = LeagueLineage(tmp_path)
    lineage.write(copies(1))
    with monkeypatch.context() as m:
        m.setattr(JsonLines, "write", no_room)
        with pytest.raises(OSError, match="No space"):
            lineage.write(copies(1, 2))
    lineage.write(copies(1, 2, 3))
    assert written(tmp_path) == [1, 2, 3]


def no_room(*args: Any) -> None:
    raise OSError(28, "No space left")


def test_copies_of_a_former_version_have_lines_without_what_it_did_not_say(tmp_path):
    (copy,) = copies(1)
    LeagueLineage(tmp_path).write([{k: copy[k] for k in copy if k not in ("donor_elo", "matches", "old", "at")}])
    row = json.loads((tmp_path / LINEAGE).read_text())
    assert (row["elo"], row["donor_elo"], row["matches"], row["old"], row["at"]) == (900.25, None, None, {}, None)
