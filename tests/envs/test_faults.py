from __future__ import annotations

import pytest

from polyplay.core.errors import EnvFailure, UserError
from polyplay.envs import build
from polyplay.envs.base_pool import HOUR, STEPS, Faults
from polyplay.envs.board import BROKEN, FAILED, ROUNDED, UNBUILT, SharedRows
from tests.envs import faulty


def board(lanes=4) -> SharedRows:
    return SharedRows(build.describe(faulty.Obedient, {}), lanes, 1)


def test_faults_are_counted_per_event_and_restarts_per_lane():
    b = board()
    faults = Faults(b, limit=3)
    b.note(1, FAILED, "one\ntrace")
    assert faults.of_lane(1)
    assert faults.of_lane(1)
    assert (faults.restarts, faults.reports) == (2, ["one\ntrace"] * 2)
    faults.of_process("gone", [0, 1, 2])
    assert faults.restarts == 5
    assert b.faults.tolist() == [1, 3, 1, 0]
    with pytest.raises(EnvFailure, match=r"failed 4 times in a row, more than --max-restarts 3; the last: again"):
        faults.of_process("again", [3])


def test_notes_of_the_end():
    b = board()
    faults = Faults(b, limit=0)
    b.note(0, UNBUILT, "x: could not be built")
    with pytest.raises(UserError, match="could not be built"):
        faults.of_lane(0)
    b.note(0, BROKEN, "declared this, given that")
    with pytest.raises(EnvFailure, match=r"^declared this"):
        faults.of_lane(0)
    b.note(0, FAILED, "head\ntrace")
    with pytest.raises(EnvFailure, match=r"^an environment failed: head\ntrace"):
        faults.of_lane(0)


def test_the_reader_may_take_what_was_told():
    b = board()
    faults = Faults(b, limit=3)
    faults.of_process("gone", [0])
    faults.reports.pop()
    faults.of_process("gone", [0])
    assert faults.reports == ["gone"]


def test_faults_are_forgotten_after_so_many_steps():
    faults = Faults(board(), limit=2, clock=lambda: 0.0)
    for _ in range(100):  # a rare one ends no run, however long that is
        faults.steps += STEPS // 2 + 1
        faults.of_process("gone", [0])
    with pytest.raises(EnvFailure, match=r"failed 3 times within 5,001 steps, more than --max-restarts 2"):
        faults.of_process("gone", [0])


def test_faults_are_forgotten_after_an_hour():
    now = [0.0]
    faults = Faults(board(), limit=1, clock=lambda: now[0])
    for _ in range(10):
        faults.of_process("gone", [0])
        now[0] += HOUR + 1
    faults.of_process("gone", [0])
    now[0] += HOUR - 1
    with pytest.raises(EnvFailure, match="failed 2 times"):
        faults.of_process("gone", [0])


def test_a_remark_is_no_fault_and_is_made_once():
    b = board()
    faults = Faults(b, limit=0)
    b.note(2, ROUNDED, "almost")
    assert not faults.of_lane(2)
    assert not faults.of_lane(2)
    assert (faults.remarks, faults.restarts, b.faults.tolist()) == (["almost"], 0, [0] * 4)
