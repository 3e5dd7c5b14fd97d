"""The log of deliveries, and what is message of one that no run wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polyplay.buffers import delivery_log
from polyplay.buffers.delivery_log import DeliveredRollout
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, RunControl, WorkerContext

HEAD = {"from": 0, "threads": 1, "length": 100.0}


def read(tmp_path, *lines, end: str = "\n", each: int = 1):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / "deliveries-0.jsonl").write_text(text + end)
    return delivery_log.read_log(tmp_path, 0, actors=2, n=2, each=each)


def test_it_lists_actors_and_versions(tmp_path):
    more = {**HEAD, "from": 1}
    found = read(tmp_path, HEAD, [1, [0, 0], [1, 0]], more, [2, [1, 0], [0, 1, 1000]], "[3,[0,1],[1", end="")
    assert found.batches == [
        [DeliveredRollout(0, 0), DeliveredRollout(1, 0)],
        [DeliveredRollout(1, 0), DeliveredRollout(0, 1, 1000)],
    ]
    assert found.threads == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEAD, [2, [0, 0], [1, 0]]], "line 2: update 2, expected update 1"),
        ([HEAD, [1, [0, 0]]], "line 2: 1 rollouts, expected 2 per batch"),
        ([HEAD, [1, [0, 0], [2, 0]]], "line 2: actor 2, but the run has 2 actors"),
        ([HEAD, [1, [0, 0], [1, 1]]], "line 2: a rollout of later version 1 in update 1"),
        ([HEAD, [1, [0, 0], [1]]], "line 2: .*no run wrote this"),
        ([HEAD, "[1, what"], "line 2: .*no run wrote this"),
        ([{"from": 0}], "line 1: 'threads'"),
        ([{**HEAD, "from": 5}, [6, [0, 0], [1, 0]]], "does not start with|update 6, expected"),
        ([HEAD, {**HEAD, "threads": 4}], "compute threads changed from 1 to 4"),
        ([HEAD, {**HEAD, "length": 200.0}], "the run's length, .* changed from 100 to 200"),
    ],
)
def test_a_log_that_no_run_wrote_is_refused_in_one_line(lines, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, *lines)
    assert "\n" not in str(caught.value)


def test_with_several_updates_from_a_batch_a_line_has_the_last_of_them(tmp_path):
    lines = [HEAD, [4, [0, 0], [1, 0]], {**HEAD, "from": 4}, [8, [1, 4], [0, 0]], [12, [1, 4], [0, 8]]]
    found = read(tmp_path, *lines, each=4)
    assert [[r.version for r in batch] for batch in found.batches] == [[0, 0], [4, 0], [4, 8]]


def test_what_is_written_can_be_read(tmp_path):
    queue = RolloutQueue({"version": Field((), "int64")}, {}, 1, 1, slots=4, producers=2)
    queue.rows["version"][:] = np.array([0, 3, 0, 0]).reshape(4, 1, 1)
    queue.by[3] = 1000
    ctx = WorkerContext("learn", 0, 1, 0, 1, Counters(1, ()), RunControl(), directory=tmp_path)
    log = delivery_log.log_writer(ctx, queue, 0, 2, 50.0, each=3)
    log([0, 2])
    log([3, 1])
    found = delivery_log.read_log(tmp_path, 0, actors=2, n=2, each=3)
    assert found.batches == [
        [DeliveredRollout(0, 0), DeliveredRollout(1, 0)],
        [DeliveredRollout(1, 0, 1000), DeliveredRollout(0, 3)],
    ]
    assert found.threads == 2
    with pytest.raises(UserError, match="update 3, expected update 1"):
        delivery_log.read_log(tmp_path, 0, actors=2, n=2)


def test_there_must_be_one(tmp_path):
    with pytest.raises(UserError, match=r"has no deliveries-0\.jsonl: only runs of asynchronous systems"):
        delivery_log.read_log(tmp_path, 0, 2, 2)
