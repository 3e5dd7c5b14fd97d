from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyplay.core.files import read_lines
from polyplay.runs import reporter as report
from polyplay.runs.reporter import Reporter, Snapshot
from tests.reports import KEYS


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(directory: Path, clock: Clock, **more: Any) -> Reporter:
    return Reporter(directory, **{"tensorboard": False, "clock": clock, **more})


def snapshot(frames: int = 4, **more: Any) -> Snapshot:
    return Snapshot(frames, frames // 4, frames // 8, **{"memory_mb": 1.0, **more})


def metrics(directory: Path) -> list[dict[str, Any]]:
    return list(read_lines(directory / "metrics.jsonl"))


def test_the_keys_of_a_report_are_exactly_these_and_then_the_losses(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    clock.now += 2
    row = reporter.report(snapshot(losses={"policy_loss": 0.5, "grad_norm": 3.0}))
    assert list(row) == [*KEYS, "policy_loss", "grad_norm"]
    assert metrics(tmp_path) == [row]
    empty = ("episodic_return_mean", "episodic_length_mean", "lag_mean", "lag_max", "time_env", "queue_depth")
    assert [row[k] for k in empty] == [None] * 6
    assert (row["wall_seconds"], row["episodes"], row["restarts"]) == (2.0, 0, 0)


def test_a_game_is_written_down_once_however_often_it_is_told(tmp_path: Path, clock: Clock):
    first, second = ({"name": f"self_play-0-{i}", "moves": ["a1"]} for i in (0, 1))
    reporter = make(tmp_path, clock)
    reporter.game(first, 40, 2)
    reporter.game(first, 50, 2)
    reporter.close("done", 0)
    with (tmp_path / "games.jsonl").open("a") as file:
        file.write('{"name": "torn')
    resumed = make(tmp_path, clock)
    resumed.game(first, 40, 2)
    resumed.game(second, 60, 3)
    rows = list(read_lines(tmp_path / "games.jsonl"))
    assert [(row["name"], row["steps"]) for row in rows] == [("self_play-0-0", 40), ("self_play-0-1", 60)]


def test_decisions_of_a_scheduler_are_lines_of_their_own(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    clock.now += 3
    decided = {"from": {"act": 1}, "to": {"act": 2}, "before": 9.0, "after": 8.0, "kept": False, "why": "", "late": []}
    row = reporter.decision(decided, 40, 2)
    assert row == {"wall_seconds": 3.0, "steps": 40, "updates": 2, **decided}
    reporter.close("done", 0)
    assert list(read_lines(tmp_path / "decisions.jsonl")) == [row]
    assert metrics(tmp_path) == []


def test_evaluations_during_training_are_lines_of_their_own(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    assert not (tmp_path / "evaluations.jsonl").exists()
    evaluated = {"steps": 40, "frames": 160, "episodic_return_mean": 3.5, "episodic_length_mean": 9.0, "best": True}
    clock.now += 2
    row = reporter.evaluation(evaluated)
    assert row == {"wall_seconds": 2.0, **evaluated}
    assert list(read_lines(tmp_path / "evaluations.jsonl")) == [row]
    reporter.close("done", 0)


def test_speeds_and_lags_are_since_the_last_report(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    clock.now += 2
    first = reporter.report(snapshot(8000, lag_sum=10, lag_count=5, lag_max=3))
    clock.now += 4
    second = reporter.report(snapshot(40_000, lag_sum=10, lag_count=15, lag_max=0))
    assert (first["fps"], first["sps"], first["lag_mean"], first["lag_max"]) == (4000, 1000, 2.0, 3)
    assert (second["fps"], second["sps"], second["lag_mean"], second["lag_max"]) == (8000, 2000, 0.0, 0)
    assert (second["frames"], second["steps"], second["updates"]) == (40_000, 10_000, 5000)
    assert reporter.report(snapshot(40_000, lag_sum=10, lag_count=15))["fps"] is None


def test_times_are_fractions_per_role_and_over_all_workers(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    actor = {"env": 2.0, "infer": 4.0, "wait": 2.0}
    learner = {"learn": 3.0, "wait": 1.0}
    row = reporter.report(snapshot(time={"actor": actor, "learner": learner}, workers={"actor": 2}))
    assert [row[f"time_{k}"] for k in report.KINDS] == [0.1667, 0.3333, 0.25, 0.0, 0.25]
    fractions = {"env": 0.25, "infer": 0.5, "learn": 0.0, "replay": 0.0, "wait": 0.25}
    assert reporter.roles["actor"] == {"workers": 2, **fractions}
    assert reporter.roles["learner"]["learn"] == 0.75
    row = reporter.report(snapshot(time={"actor": {**actor, "env": 3.0}, "learner": learner}))
    assert [row[f"time_{k}"] for k in report.KINDS] == [1.0, 0.0, 0.0, 0.0, 0.0]
    row = reporter.report(snapshot(time={"actor": {"infer": 1.0}, "learner": {**learner, "wait": 2.0}}))
    assert row["time_wait"] == 1.0  # a total that fell has begun anew


def test_returns_are_over_the_last_100_full_games(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    for i in range(99):
        reporter.episode(float(i), 10, 4 * i, i, lane=i % 3)
    assert (reporter.return_mean, reporter.return_best, reporter.reached(0.0)) == (49.0, None, False)
    reporter.episode(99.0, 20, 400, 100, lane="0")
    assert (reporter.return_mean, reporter.return_best) == (49.5, 49.5)
    assert reporter.reached(49.5)
    assert not reporter.reached(49.6)
    reporter.episode(-100.0, 20, 404, 101, lane=0)
    row = reporter.report(snapshot())
    assert (row["episodes"], row["episodic_return_mean"], row["episodic_length_mean"]) == (101, 48.5, 10.2)
    assert reporter.return_best == 49.5


def test_episodes_lines(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    clock.now += 1.5
    reporter.episode(-21.0, 1000, 4000, 1000, lane=7)
    assert list(read_lines(tmp_path / "episodes.jsonl")) == [
        {
            "wall_seconds": 1.5,
            "frames": 4000,
            "steps": 1000,
            "episodic_return": -21.0,
            "episodic_length": 1000,
            "lane": 7,
        }
    ]


def test_nan_and_infinity_are_null_in_plain_json(tmp_path: Path, clock: Clock):
    row = make(tmp_path, clock).report(snapshot(losses={"a": math.nan, "b": math.inf, "frames": 9.0}))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert (row["a"], row["b"], row["frames"]) == (None, None, 4)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == row


def test_a_resumed_run_goes_on(tmp_path: Path, clock: Clock):
    first = make(tmp_path, clock)
    clock.now += 10
    for i in range(150):
        first.episode(float(i), 5, i, i, lane=0)
    first.report(snapshot(400, lag_sum=9, lag_count=9))
    clock.now += 1
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"wall_sec')
    later = Clock()
    again = make(tmp_path, later)
    later.now += 5
    row = again.report(snapshot(800, lag_sum=6, lag_count=3))
    assert [r["wall_seconds"] for r in metrics(tmp_path)] == [10.0, 15.0]
    assert (row["fps"], row["episodes"], row["lag_mean"]) == (80.0, 150, 2.0)
    assert (again.return_mean, again.return_best) == (99.5, 99.5)


def test_games_after_the_checkpoint_resumed_from_are_played_again(tmp_path: Path, clock: Clock):
    first = make(tmp_path, clock)
    for frames in (100, 200, 300):
        clock.now += 10
        first.episode(float(frames), 5, frames, frames // 4, lane=0)
        first.report(snapshot(frames))
    clock.now += 3
    first.episode(5.0, 5, 310, 77, lane=0)
    later = Clock()
    again = make(tmp_path, later, start={"frames": 200, "steps": 50, "updates": 25})
    assert (again.episodes, again.return_mean, again.wall_seconds) == (2, 150.0, 33.0)
    later.now += 10
    row = again.report(snapshot(260))
    assert (row["fps"], row["wall_seconds"], row["episodes"]) == (6.0, 43.0, 2)


def test_a_kill_in_the_middle_of_writing_leaves_whole_lines(tmp_path: Path):
    code = (
        "import sys, os; from pathlib import Path; from polyplay.runs.reporter import Reporter, Snapshot\n"
        "r = Reporter(Path(sys.argv[1]), tensorboard=False)\n"
        "r.report(Snapshot(4, 1, 0, memory_mb=1))\n"
        "os.write(r.files['metrics'].file.fd, b'{\"wall_seconds\": 3, \"fra'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=150)
    assert done.returncode == -9
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 2
    Reporter(tmp_path, tensorboard=False).report(snapshot(8))
    assert [r["frames"] for r in metrics(tmp_path)] == [4, 8]


def test_summary_is_written_once_at_the_end_and_goes_when_the_run_goes_on(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    reporter.episode(3.0, 5, 4, 1, lane=0)
    clock.now += 7
    reporter.report(snapshot())
    summary = reporter.close("the frames were reached", 0, checkpoint="12")
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert stored == summary
    expect = {"reason": "the frames were reached", "exit_code": 0, "frames": 4, "steps": 1, "episodes": 1}
    assert expect.items() <= stored.items()
    assert {"wall_seconds": 7.0, "episodic_return_mean": 3.0, "checkpoint": "12"}.items() <= stored.items()
    assert reporter.close("again", 1)["reason"] == "again"
    assert json.loads((tmp_path / "summary.json").read_text()) == stored
    make(tmp_path, clock)
    assert not (tmp_path / "summary.json").exists()


def test_a_full_disk_costs_reports_not_the_run(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    warnings: list[str] = []
    reporter = make(tmp_path, clock, warn=warnings.append, tensorboard=True)
    reporter.report(snapshot(4))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    reporter.report(snapshot(8))
    reporter.report(snapshot(12))
    reporter.episode(1.0, 1, 1, 1, lane=0)
    monkeypatch.undo()
    assert [text.split(":")[0] for text in warnings] == ["metrics.jsonl", "tensorboard/", "episodes.jsonl"]
    assert "No space left on device" in warnings[0]
    reporter.report(snapshot(16))
    assert [r["frames"] for r in metrics(tmp_path)] == [4, 16]
    assert reporter.episodes == 1


def test_tensorboard_reads_what_was_written(tmp_path: Path, clock: Clock):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reporter = make(tmp_path, clock, tensorboard=True)
    for i in range(3):
        clock.now += 1
        reporter.episode(i * 2.0, 10 + i, 400 * i, 100 * i, lane=0)
        losses = {"policy_loss": 0.5 * i, "value_loss": math.nan, "learning_rate": 1e-3}
        reporter.report(snapshot(400 * i, losses=losses))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/policy_loss"} <= tags
    assert {"charts/learning_rate", "charts/frames"} <= tags
    assert "losses/value_loss" not in tags
    assert [(e.step, e.value) for e in events.Scalars("charts/episodic_return")] == [
        (0, 0.0),
        (100, 2.0),
        (200, 4.0),
    ]
    assert [e.value for e in events.Scalars("losses/policy_loss")] == [0.0, 0.5, 1.0]
    time = EventAccumulator(str(tmp_path / "tensorboard"))
    reporter.report(snapshot(1600, time={"actor": {"env": 1.0, "wait": 3.0}}))
    time.Reload()
    assert [e.value for e in time.Scalars("time/wait")] == [0.75]


def test_reports_need_no_torch():
    names = ("runs.reports.reporter", "runs.reports.terminal", "runs.options")
    code = f"import sys, {', '.join('polyplay.' + n for n in names)}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=150).returncode == 0
