"""The log of deliveries, and what is said of one that no run wrote."""

from __future__ import annotations

import json

import pytest

from polyplay import trail
from polyplay.errors import UserError
from polyplay.trail import Rollout

HEAD = {"from": 0, "threads": 1, "length": 100.0}


def read(tmp_path, *lines, end: str = "\n"):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / "deliveries-0.jsonl").write_text(text + end)
    return trail.read(tmp_path, 0, actors=2, n=2)


def test_it_says_who_made_what_with_which_weights(tmp_path):
    more = {**HEAD, "from": 1}
    found = read(tmp_path, HEAD, [1, [0, 0], [1, 0]], more, [2, [1, 0], [0, 1, 1000]], "[3,[0,1],[1", end="")
    assert found.batches == [[Rollout(0, 0), Rollout(1, 0)], [Rollout(1, 0), Rollout(0, 1, 1000)]]
    assert found.threads == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([HEAD, [2, [0, 0], [1, 0]]], "line 2: update 2 where update 1 was due"),
        ([HEAD, [1, [0, 0]]], "line 2: 1 rollouts, a batch has 2"),
        ([HEAD, [1, [0, 0], [2, 0]]], "line 2: actor 2, there are 2"),
        ([HEAD, [1, [0, 0], [1, 1]]], "line 2: a rollout of version 1 in update 1"),
        ([HEAD, [1, [0, 0], [1]]], "line 2: .*it is not what a run wrote"),
        ([HEAD, "[1, what"], "line 2: .*it is not what a run wrote"),
        ([{"from": 0}], "line 1: 'threads'"),
        ([{**HEAD, "from": 5}, [6, [0, 0], [1, 0]]], "does not begin with|update 6 where"),
        ([HEAD, {**HEAD, "threads": 4}], "compute threads changed from 1 to 4"),
        ([HEAD, {**HEAD, "length": 200.0}], "the run's length, .* changed from 100 to 200"),
    ],
)
def test_one_that_no_run_wrote_is_one_clear_line(lines, said, tmp_path):
    with pytest.raises(UserError, match=said) as caught:
        read(tmp_path, *lines)
    assert "\n" not in str(caught.value)


def test_there_must_be_one(tmp_path):
    with pytest.raises(UserError, match=r"has no deliveries-0\.jsonl: only runs of asynchronous systems"):
        trail.read(tmp_path, 0, 2, 2)
