"""W&B as it is called: by a module that only records calls. The service itself is never reached."""

from __future__ import annotations

import importlib.util
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from polyplay.core.errors import UserError
from polyplay.runs import reporter as wandb_reports
from polyplay.runs.directory import write_config
from polyplay.runs.reporter import Reporter, Snapshot


class FakeWandb:
    """Stands for the module wandb and for the run it gives."""

    def __init__(self, key: bool = False, breaks: str = "", slow: threading.Event | None = None):
        self.key, self.breaks, self.slow = key, breaks, slow
        self.calls: list[tuple[str, Any]] = []
        self.summary = types.SimpleNamespace(update=lambda summary: self._record("summary", summary))

    def _record(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        if self.slow is not None:
            self.slow.wait(30)
        if name == self.breaks:
            raise SystemExit("no network")

    def login(self, prompt: bool) -> bool:
        assert not prompt
        return self.key

    def Settings(self, **kw: Any) -> dict[str, Any]:
        return kw

    def init(self, **kw: Any) -> FakeWandb:
        self._record("init", kw)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self._record("define", (name, step_metric))

    def log(self, row: dict[str, Any]) -> None:
        self._record("log", row)

    def finish(self, exit_code: int) -> None:
        self._record("finish", exit_code)

    def recorded(self, name: str) -> list[Any]:
        return [what for kind, what in self.calls if kind == name]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    directory = tmp_path / "a2c-7"
    directory.mkdir()
    told = {"config": {"lanes": 3}, "options": {"seed": 7}, "sources": {}, "environment": {"game": "catch"}}
    write_config(directory, {"system": "a2c", **told})
    return directory


def test_a_run_is_told_with_its_configuration_metrics_and_summary(run: Path):
    wandb, warned = FakeWandb(), []
    tracker = wandb_reports.WandbLogger("mine", run, warned.append, wandb)
    reporter = Reporter(run, tensorboard=False, style="cleanrl", tracker=tracker)
    reporter.episode(3.0, 9, 40, 10, lane=0)
    reporter.report(Snapshot(80, 20, 2, losses={"policy_loss": 0.5, "value_loss": float("nan")}))
    reporter.close("done", 0, checkpoint="000000000002")
    [begun] = wandb.recorded("init")
    assert (begun["project"], begun["name"], begun["dir"]) == ("mine", "a2c-7", str(run))
    assert begun["config"]["config"] == {"lanes": 3}
    assert begun["config"]["environment"] == {"game": "catch"}
    assert (begun["mode"], begun["resume"]) == ("offline", "allow")  # there is no key
    assert begun["settings"]["console"] == "off"
    assert wandb.recorded("define") == [("*", "global_step")]
    game, row = wandb.recorded("log")
    assert game == {"global_step": 10, "charts/episodic_return": 3.0, "charts/episodic_length": 9}
    assert (row["global_step"], row["losses/policy_loss"], row["polyplay/frames"]) == (20, 0.5, 80)
    assert "losses/value_loss" not in row
    [summary] = wandb.recorded("summary")
    assert (summary["reason"], summary["episodes"]) == ("done", 1)
    assert wandb.calls[-1] == ("finish", 0)
    assert not tracker.thread.is_alive()
    assert warned == []


def test_a_resumed_run_is_the_same_one_there(run: Path):
    inits = []
    for _ in range(2):
        wandb = FakeWandb(key=True)
        wandb_reports.WandbLogger("mine", run, print, wandb).close({"exit_code": 0})
        inits += wandb.recorded("init")
    assert inits[0]["id"] == inits[1]["id"]
    assert inits[0]["mode"] == "online"


@pytest.mark.parametrize("breaks", ["init", "define", "log", "summary", "finish"])
def test_whatever_fails_is_one_warning(run: Path, breaks: str):
    warned: list[str] = []
    tracker = wandb_reports.WandbLogger("mine", run, warned.append, FakeWandb(breaks=breaks))
    for step in range(5):
        tracker.write(step, {"a": 1.0})
    tracker.close({"exit_code": 1})
    tracker.write(9, {"a": 1.0})
    assert len(warned) == 1
    assert warned[0].startswith("W&B: SystemExit: no network; the run continues without it")


def test_a_service_that_hangs_holds_up_nothing_but_the_end_and_that_briefly(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wandb_reports, "LAST", 0.05)
    monkeypatch.setattr(wandb_reports, "BACKLOG", 10)
    free, warned = threading.Event(), []
    tracker = wandb_reports.WandbLogger("mine", run, warned.append, FakeWandb(slow=free))
    for step in range(100):
        tracker.write(step, {"a": 1.0})
    tracker.close({"exit_code": 0})
    assert tracker.thread.is_alive()
    free.set()
    assert warned == ["W&B: it does not respond; the run continues without it; its directory has all metrics"]


def test_without_the_package_it_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch):
    wandb_reports.check_wandb(None)
    for found in (None, types.SimpleNamespace(origin=None)):  # not there; a directory of that name
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        with pytest.raises(UserError, match=r"--wandb: needs the package wandb; `pip install 'polyplay\[wandb\]'`"):
            wandb_reports.check_wandb("mine")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: types.SimpleNamespace(origin="wandb/__init__.py"))
    wandb_reports.check_wandb("mine")
