"""Lines, summaries, TensorBoard and W&B of a run, and which games have a line."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import threading
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.learning import losses
from polyplay.runs import reporter as report
from polyplay.runs.directory import rewind, write_config
from polyplay.runs.options import RunOptions
from polyplay.runs.reporter import Reporter
from tests.reports import KEYS, Clock, rows


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(directory: Path, clock: Clock, **more: Any) -> Reporter:
    options = RunOptions(tensorboard=more.pop("tensorboard", False))
    return Reporter(directory, options, clock=clock, **more)


def numbers(frames: int = 4, **more: Any) -> dict[str, Any]:
    """Of a crew (CrewMetrics.read)."""
    return {"frames": frames, "steps": frames // 4, "updates": frames // 8, "restarts": 0, **more}


def game(reporter: Reporter, mean: float, length: int, frames: int, steps: int, lane: Any) -> None:
    at = {"frames": frames, "steps": steps}
    reporter.episode({**at, "episodic_return": mean, "episodic_length": length, "lane": lane})


def metrics(directory: Path) -> list[dict[str, Any]]:
    return list(read_lines(directory / "metrics.jsonl"))


def test_a_report_has_the_crews_numbers_those_of_games_and_the_losses(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    clock.now += 2
    row = reporter.report(numbers(queue_depth=math.nan), {"policy_loss": 0.5})
    means = (f"episodic_{name}" for name in ("return_mean", "return_mean_best", "length_mean"))
    games = {"episodes": 0, **dict.fromkeys(means)}
    assert row == {"wall_seconds": 2.0, **numbers(queue_depth=None), **games, "policy_loss": 0.5}
    assert metrics(tmp_path) == [row]


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


def test_evaluations_and_decisions_are_lines_of_their_own(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    assert not (tmp_path / "evaluations.jsonl").exists()
    evaluated = {"steps": 40, "frames": 160, "episodic_return_mean": 3.5, "episodic_length_mean": 9.0, "best": True}
    decided = {"from": {"act": 1}, "to": {"act": 2}, "before": 9.0, "after": 8.0, "kept": False, "why": "", "late": []}
    clock.now += 2
    rows = {"evaluations": reporter.evaluation(evaluated), "decisions": reporter.decision(decided, 40, 2)}
    assert rows["evaluations"] == {"wall_seconds": 2.0, **evaluated}
    assert rows["decisions"] == {"wall_seconds": 2.0, "steps": 40, "updates": 2, **decided}
    reporter.close("done", 0)
    assert all(list(read_lines(tmp_path / f"{name}.jsonl")) == [row] for name, row in rows.items())
    assert metrics(tmp_path) == []


def test_returns_are_over_the_last_100_full_games(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    for i in range(99):
        game(reporter, float(i), 10, 4 * i, i, lane=i % 3)
    assert (reporter.return_mean, reporter.return_best, reporter.reached(0.0)) == (49.0, None, False)
    game(reporter, 99.0, 20, 400, 100, lane="0")
    assert (reporter.return_mean, reporter.return_best) == (49.5, 49.5)
    assert reporter.reached(49.5)
    assert not reporter.reached(49.6)
    game(reporter, -100.0, 20, 404, 101, lane=0)
    row = reporter.report(numbers())
    assert (row["episodes"], row["episodic_return_mean"], row["episodic_length_mean"]) == (101, 48.5, 10.2)
    assert reporter.return_best == row["episodic_return_mean_best"] == 49.5
    assert reporter.close("done", 0)["episodic_return_mean_best"] == 49.5
    (tmp_path / "episodes.jsonl").unlink()
    assert make(tmp_path, clock).return_best == 49.5  # of a resumed run whose games were not kept


@pytest.mark.parametrize(
    ("start", "games", "mean"), [(None, 4, 153.75), ({"frames": 200, "steps": 50, "updates": 25}, 2, 150.0)]
)
def test_a_resumed_run_goes_on_without_the_games_after_its_checkpoint(start, games, mean, tmp_path, clock):
    first = make(tmp_path, clock)
    for frames in (100, 200, 300):
        clock.now += 10
        game(first, float(frames), 5, frames, frames // 4, lane=0)
        first.report(numbers(frames))
    clock.now += 3
    game(first, 15.0, 5, 300, 75, lane=0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"wall_sec')
    later = Clock()
    again = make(tmp_path, later, start=start)
    assert (again.episodes, again.return_mean, again.wall_seconds) == (games, mean, 33.0)
    later.now += 10
    row = again.report(numbers(360))
    assert (row["wall_seconds"], row["episodes"]) == (43.0, games)
    assert [r["wall_seconds"] for r in metrics(tmp_path)] == [10.0, 20.0, 30.0, 43.0]


def test_summary_is_written_once_at_the_end_and_goes_when_the_run_goes_on(tmp_path: Path, clock: Clock):
    reporter = make(tmp_path, clock)
    game(reporter, 3.0, 5, 4, 1, lane=0)
    clock.now += 7
    reporter.report(numbers())
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


def test_tensorboard_reads_what_was_written(tmp_path: Path, clock: Clock):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reporter = make(tmp_path, clock, tensorboard=True)
    for i in range(3):
        clock.now += 1
        game(reporter, i * 2.0, 10 + i, 400 * i, 100 * i, lane=0)
        losses = {"policy_loss": 0.5 * i, "value_loss": math.nan, "learning_rate": 1e-3}
        reporter.report(numbers(400 * i, sps=9.0), losses)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    games = ["charts/episodic_return", "charts/episodic_length", "charts/episodic_return_mean"]
    games += ["charts/episodic_length_mean", "charts/episodes"]
    others = ["charts/SPS", "charts/frames", "charts/learning_rate", "losses/policy_loss", "run/restarts"]
    assert set(events.Tags()["scalars"]) == {*games, *others}  # no value_loss
    assert [(e.step, e.value) for e in events.Scalars("charts/episodic_return")] == [(0, 0.0), (100, 2.0), (200, 4.0)]
    assert [e.value for e in events.Scalars("losses/policy_loss")] == [0.0, 0.5, 1.0]


ROW = {k: float(i + 1) for i, k in enumerate([*KEYS, *losses.COMMON, "grad_norm", "learning_rate"])}
LEARNT = {k: ROW[k] for k in (*losses.COMMON, "grad_norm", "learning_rate")}


@pytest.mark.parametrize(
    ("style", "names"),
    [
        (
            "polyplay",
            {"sps": "charts/SPS", "entropy": "losses/entropy", "lag_mean": "run/lag_mean", "time_env": "time/env"},
        ),
        (
            "cleanrl",
            {"sps": "charts/SPS", "learning_rate": "charts/learning_rate", "policy_loss": "losses/policy_loss"}
            | {"approx_kl": "losses/approx_kl", "episodic_return_mean": "polyplay/episodic_return_mean"},
        ),
        (
            "sb3",
            {"episodic_return_mean": "rollout/ep_rew_mean", "episodic_length_mean": "rollout/ep_len_mean"}
            | {"sps": "time/fps", "steps": "time/total_timesteps", "wall_seconds": "time/time_elapsed"}
            | {"value_loss": "train/value_loss", "updates": "train/n_updates", "fps": "polyplay/fps"},
        ),
    ],
)
def test_names_are_those_that_a_styles_users_know(style: str, names: dict[str, str]):
    named = report.of_report(style, ROW, LEARNT)
    assert {k: named[name] for k, name in names.items()} == {k: ROW[k] for k in names}
    if style != "polyplay":  # nothing that is measured is left out
        assert {abs(v) for v in named.values() if v is not None} == set(ROW.values())
    if style == "sb3":
        assert named["train/entropy_loss"] == -ROW["entropy"]


@pytest.mark.parametrize(
    ("style", "games", "evaluations"),
    [
        (style, ["charts/episodic_return", "charts/episodic_length"], ["eval/episodic_return_mean"])
        for style in ("polyplay", "cleanrl")
    ]
    + [("sb3", [], ["eval/mean_reward"])],
)
def test_games_and_evaluations_have_names_of_their_own(style: str, games: list[str], evaluations: list[str]):
    assert list(report.of_episode(style, {"episodic_return": 3.0, "episodic_length": 9})) == games
    row = {"episodic_return_mean": 3.0, "episodic_length_mean": 9.0, "frames": 4}
    assert list(report.of_evaluation(style, row))[:1] == evaluations


WORKERS, LANES = 2, 4


def play(reporter: Reporter, games: int, first: int = 0) -> None:
    """Lanes that all end together, in two workers. Game i returns i, at step i."""
    for i in range(first, first + games):
        game(reporter, float(i), 10, i, i, i % (WORKERS * LANES))


def make_logged(directory: Path, log_episodes: bool = True, **more: Any) -> Reporter:
    return Reporter(directory, RunOptions(tensorboard=False, log_episodes=log_episodes), **more)


def written(directory: Path) -> list[dict[str, Any]]:
    return rows(directory / "episodes.jsonl")


def test_none_is_written_where_none_is_asked_for(tmp_path):
    reporter = make_logged(tmp_path, False)
    play(reporter, 300)
    reporter.close("done", 0)
    assert (reporter.episodes, reporter.return_mean, written(tmp_path)) == (300, 249.5, [])
    start = {"frames": 300, "steps": 300, "updates": 3, "episodes": 300}
    assert make_logged(tmp_path, False, start=start).episodes == 300


def test_a_resumed_run_cuts_where_the_checkpoint_was(tmp_path):
    """The checkpoint says how many games each worker had ended."""
    at, first = 1_003, make_logged(tmp_path)
    play(first, at + 700)
    games = {f"{w * LANES}+{LANES}": sum(i % 8 // LANES == w for i in range(at)) for w in range(WORKERS)}
    counters = {"frames": at, "steps": at, "updates": 1, "games": games}
    rewind(tmp_path, counters, lambda text: None)
    assert [line["episodic_return"] for line in written(tmp_path)] == list(range(at))
    again = make_logged(tmp_path, start=counters)
    assert again.episodes == at
    before = (tmp_path / "episodes.jsonl").read_bytes()
    rewind(tmp_path, counters, lambda text: None)
    assert (tmp_path / "episodes.jsonl").read_bytes() == before
    play(again, 500, first=at)
    again.close("done", 0)
    assert len(written(tmp_path)) == again.episodes == at + 500


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the package, without a key."""
    fake = MagicMock(**{"login.return_value": False})
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


@pytest.fixture
def run(tmp_path: Path) -> Path:
    told = {"config": {"lanes": 3}, "options": {"seed": 7}, "sources": {}, "environment": {"game": "catch"}}
    (tmp_path / "a2c-7").mkdir()
    write_config(tmp_path / "a2c-7", {"system": "a2c", **told})
    return tmp_path / "a2c-7"


def test_wandb_gets_a_runs_configuration_metrics_and_summary_and_a_resumed_one_goes_on_there(run: Path, wandb: Any):
    warned: list[str] = []
    for key in (False, True):
        wandb.login.return_value = key
        reporter = Reporter(
            run, RunOptions(tensorboard=False, metrics_style="cleanrl", wandb="mine"), warn=warned.append
        )
        game(reporter, 3.0, 9, 40, 10, lane=0)
        reporter.report(numbers(80), {"policy_loss": 0.5})
        summary = reporter.close("done", 0, checkpoint="000000000002")
        assert not reporter.tracker.thread.is_alive()  # type: ignore[union-attr]
        wandb.init.return_value.summary.update.assert_called_with(summary)
    begun, again = (call.kwargs for call in wandb.init.call_args_list)
    assert {**begun, "mode": "online"} == again
    assert (begun["project"], begun["name"], begun["dir"], begun["resume"]) == ("mine", "a2c-7", str(run), "allow")
    assert (begun["config"]["config"], begun["config"]["environment"]) == ({"lanes": 3}, {"game": "catch"})
    assert begun["mode"] == "offline"  # there is no key
    wandb.Settings.assert_called_with(console="off", silent=True)
    wandb.login.assert_called_with(prompt=False)
    wandb.init.return_value.define_metric.assert_called_with("*", step_metric="global_step")
    ended, row, *_ = (call.args[0] for call in wandb.init.return_value.log.call_args_list)
    assert ended == {"global_step": 10, "charts/episodic_return": 3.0, "charts/episodic_length": 9}
    assert (row["global_step"], row["losses/policy_loss"], row["polyplay/frames"]) == (20, 0.5, 80)
    wandb.init.return_value.finish.assert_called_with(exit_code=0)
    assert warned == []


@pytest.mark.parametrize("breaks", ["", ".define_metric", ".log", ".summary.update", ".finish"])
def test_whatever_fails_is_one_warning(run: Path, wandb: Any, breaks: str):
    name = f"init.return_value{breaks}.side_effect" if breaks else "init.side_effect"
    wandb.configure_mock(**{name: SystemExit("no network")})
    warned: list[str] = []
    tracker = report.WandbLogger("mine", run, warned.append)
    for step in range(5):
        tracker.write(step, {"a": 1.0})
    tracker.close({"exit_code": 1})
    tracker.write(9, {"a": 1.0})
    (line,) = warned
    assert line.startswith("W&B: SystemExit: no network; the run continues without it")


def test_a_service_that_hangs_holds_up_nothing_but_the_end_and_that_briefly(run: Path, wandb: Any, monkeypatch):
    monkeypatch.setattr(report, "LAST", 0.05)
    monkeypatch.setattr(report, "BACKLOG", 10)
    free, warned = threading.Event(), list[str]()
    wandb.init.side_effect = lambda **_: free.wait(30)
    tracker = report.WandbLogger("mine", run, warned.append)
    for step in range(100):
        tracker.write(step, {"a": 1.0})
    tracker.close({"exit_code": 0})
    assert tracker.thread.is_alive()
    free.set()
    assert warned == ["W&B: it does not respond; the run continues without it; its directory has all metrics"]


def test_without_the_package_it_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch):
    report.check_wandb(None)
    for found in (None, types.SimpleNamespace(origin=None)):  # not there; a directory of that name
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        with pytest.raises(UserError, match=r"--wandb: needs the package wandb; `pip install .*\[wandb\]'`"):
            report.check_wandb("mine")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: types.SimpleNamespace(origin="wandb/__init__.py"))
    report.check_wandb("mine")
