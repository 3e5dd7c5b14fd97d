"""The sweep of bench/signals.py in short: a few moments of a run's start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import signals as sweep


@pytest.mark.parametrize(
    "case",
    [
        ("a2c", "SIGINT", "group", "twice", 6),
        pytest.param(("impala", "SIGTERM", "group", "once", 20), marks=pytest.mark.long),
        pytest.param(("apex", "SIGINT", "main", "once", 40), marks=pytest.mark.long),
        pytest.param(("impala", "SIGINT", "group", "twice", 60), marks=pytest.mark.long),
        pytest.param(("ga3c", "SIGTERM", "main", "twice", 81), marks=pytest.mark.long),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_a_signal_leaves_one_line_its_status_and_nothing_else(case):
    row = sweep.harm(case)
    assert row["wrong"] == [], row
    assert row["last"] or row["phase"] == "interpreter"


def test_what_is_wrong_is_seen(tmp_path):
    row = {"signal": "SIGTERM", "phase": "run", "number": 1, "updates": 3, "status": 0}
    row |= {"processes": {1: "x"}, "shared": [], "files": []}
    assert sweep.judge(row, "Traceback", tmp_path)["wrong"] == ["status", "traceback", "leftover", "checkpoint"]


def test_random_cases_are_the_same_in_every_call_and_a_part_of_them_kills(tmp_path):
    asked = type("Asked", (), {"part": "0/1", "out": tmp_path / "out", "systems": ["a2c", "five"], "random": 60})
    cases = list(sweep.drawn(asked))
    assert cases == list(sweep.drawn(asked))
    assert len(cases) == 60
    assert 5 < sum(case[1] == "SIGKILL" for case in cases) < 35
    assert {case[0] for case in cases} == {"a2c", "five"}


def test_what_is_wrong_after_a_kill_is_seen(tmp_path):
    row = {"status": 0, "number": 1, "processes": {1: "x"}}
    gone = [tmp_path / "checkpoints" / "000000000001-steps-8"]
    assert sweep.judge_kill(row, "Traceback", tmp_path, gone)["wrong"] == [
        "status",
        "traceback",
        "leftover",
        "checkpoint",
    ]
