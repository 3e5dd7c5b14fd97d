from __future__ import annotations

import pytest

from polyplay.common.errors import EnvFailure, UserError
from polyplay.envs.pools import build
from polyplay.envs.pools.board import BROKEN, HOPELESS, RESTARTED, UNBUILT, SharedRows
from polyplay.envs.pools.faults import Faults
from tests.envs import faulty


def board(lanes=4) -> SharedRows:
    return SharedRows(build.describe(faulty.Obedient, {}), lanes, 1)


def test_faults_are_counted_per_event_and_restarts_per_lane():
    b = board()
    faults = Faults(b, limit=3)
    b.faults[1] = 2  # it was rebuilt twice
    b.note(1, RESTARTED, "one\ntrace")
    faults.of_lane(1)
    assert (faults.count, faults.restarts, faults.reports) == (2, 2, ["one\ntrace"])
    faults.of_process("gone", [0, 1, 2])
    assert (faults.count, faults.restarts) == (3, 5)
    assert b.faults.tolist() == [1, 3, 1, 0]
    with pytest.raises(EnvFailure, match=r"failed 4 times, more than max_restarts=3; the last: again"):
        faults.of_process("again", [3])


def test_notes_of_the_end():
    b = board()
    faults = Faults(b, limit=10)
    b.note(0, UNBUILT, "x: could not be built")
    with pytest.raises(UserError, match="could not be built"):
        faults.of_lane(0)
    b.note(0, BROKEN, "declared this, given that")
    with pytest.raises(EnvFailure, match=r"^declared this"):
        faults.of_lane(0)
    b.faults[0] = 11
    b.note(0, HOPELESS, "head\ntrace")
    with pytest.raises(EnvFailure, match=r"failed 11 times.*head\ntrace"):
        faults.of_lane(0)


def test_the_reader_may_take_what_was_told():
    b = board()
    faults = Faults(b, limit=3)
    faults.of_process("gone", [0])
    faults.reports.pop()
    faults.of_process("gone", [0])
    assert (faults.count, faults.reports) == (2, ["gone"])
