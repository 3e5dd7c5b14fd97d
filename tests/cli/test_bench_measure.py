"""A run watched from outside: the rate of a window, its end, and once in earnest, very shortly."""

from __future__ import annotations

import json
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from polyplay.cli import bench, bench_measure, main
from polyplay.cli.bench_measure import started_at, watched_rate
from polyplay.core.errors import UserError, WorkerLost


def mark(wall: float, steps: int, own: float, busy: float, **more: Any) -> Any:
    return {"wall_seconds": wall, "steps": steps, **more}, (100.0 + wall, own, busy)


MARKS = [
    mark(1.0, 0, 1.0, 5.0),
    mark(2.0, 100, 2.0, 6.5, time_env=1.0, predict_batch=9.0),
    mark(3.0, 1100, 3.5, 8.25, time_env=0.5, time_wait=0.5, predict_batch=None),
    mark(4.0, 2100, 5.0, 10.0, time_env=0.25, time_wait=0.75, predict_batch=3.0),
    mark(9.0, 2100, 5.0, 10.0),
]


def test_the_rate_of_a_window():
    assert started_at(MARKS) == 2.0
    assert watched_rate(MARKS, 5.0, 60.0) is None
    assert watched_rate([], 0.0, 1.0) is None
    found = watched_rate(MARKS, 2.0, 2.0)
    assert found is not None
    assert (found["sps"], found["window_s"], found["own_cores"], found["others_cores"]) == (1000.0, 2.0, 1.5, 0.25)
    assert found["core_ms_per_step"] == 1.5
    one = bench_measure.summed(found)
    assert one["time"] == {"env": 0.375, "infer": 0.0, "learn": 0.0, "replay": 0.0, "wait": 0.625}
    assert (one["predict_batch"], one["lag_mean"]) == (3.0, None)
    assert "lines" not in one


def test_a_window_is_of_whole_turns_of_acting_and_learning():
    # 2 s of acting at 1,000 steps/s, then 4 updates in 2 s, for ever: 500 steps/s, whatever a window of 5 s would say
    steps = {t: 2000 * (t // 4) + 1000 * min(t % 4, 2) for t in range(1, 16)}
    marks = [mark(t, n, t, t, updates=4 * (t // 4) + 2 * max(t % 4 - 2, 0)) for t, n in steps.items()]
    loose, whole = watched_rate(marks, 1.0, 5.0), watched_rate(marks, 1.0, 5.0, turn=4)
    assert loose is not None
    assert whole is not None
    assert loose["sps"] != 500.0
    assert (whole["sps"], whole["window_s"]) == (500.0, 8.0)
    assert [whole["lines"][i]["wall_seconds"] for i in (0, -1)] == [4, 12]


def test_a_run_without_reports_says_why(tmp_path: Path):
    ours, theirs = multiprocessing.Pipe()
    (tmp_path / "output").write_text("a\nb\n")
    lost = bench_measure._complaint("a2c", ours, -9, tmp_path / "output")
    assert isinstance(lost, WorkerLost)
    assert str(lost) == "a2c: its run gave no reports (exit status -9):\na\nb"
    theirs.send(UserError("--lanes 3 does not divide"))
    mistake = bench_measure._complaint("a2c", ours, 0, tmp_path / "output")
    assert isinstance(mistake, UserError)
    assert str(mistake) == "--lanes 3 does not divide"


def test_a_run_ends_with_who_watches_it():
    left = threading.Event()
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    bench_measure.lifeline(theirs, lambda status: left.set()).join(10)
    assert left.is_set()


@pytest.mark.long
def test_a_real_bench_of_a_toy(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A run in processes of its own; no figure is looked at, but that all of them are there."""
    file = tmp_path / "b.json"
    words = ["a3c", "--env", "toy:catch", "--seconds", "0.25", "--precision", "float32", "--json", str(file)]
    assert main.main(["bench", *words]) == 0
    (row,) = json.loads(file.read_text())["systems"]
    assert row["sps"] > 0
    assert sum(row["shares"].values()) == pytest.approx(1.0, abs=1e-3)  # a run's reports are rounded
    assert row["bottleneck"] in bench.NAMES.values()
    assert row["run"]["processes"] > 2
    assert "a3c" in capsys.readouterr().out


def test_a_run_that_cannot_begin():
    given = {**bench.keywords("a2c", "toy:catch", "mlp", "float32", 2), "lanes": 3}
    with pytest.raises(UserError, match="--lanes 3 does not divide"):
        bench_measure.watched("a2c", given, 0.2)
