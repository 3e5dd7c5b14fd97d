from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.runs import directory
from polyplay.runs.session import Callbacks

TOY: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 8, "serial": True, "tensorboard": False}
TOY |= {"report_every": 0.1, "quiet": True, "eval_every": 400, "eval_episodes": 1}


class Recorder:
    """Counts what it is called with."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda run, what: self.rows.setdefault(name, []).append(what)


def test_every_line_checkpoint_and_the_end_is_passed_on(tmp_path: Path):
    recorder, reports = Recorder(), []

    def count(run: Any, row: dict[str, Any]) -> None:
        assert run.directory == tmp_path / "run"
        reports.append(row)

    run = polyplay.train("a2c", **TOY, steps=1600, run=tmp_path / "run", callbacks=[recorder, count])
    written = {
        method: [json.loads(line) for line in (run.directory / f"{name}.jsonl").read_text().splitlines()]
        for name, method in (("metrics", "on_report"), ("episodes", "on_episode"), ("evaluations", "on_evaluation"))
    }
    assert {method: recorder.rows.get(method, []) for method in written} == written
    assert reports == written["on_report"]
    assert recorder.rows["on_checkpoint"][-1] == checkpoint.everything(run.directory)[-1]
    assert recorder.rows["on_end"] == [run.summary]


class Stopper:
    def on_report(self, run: Any, row: dict[str, Any]) -> None:
        if row["updates"]:
            run.stop("enough")


def enough(run: Any, row: dict[str, Any]) -> bool:
    return not row["updates"]


def enough_numpy(run: Any, row: dict[str, Any]) -> Any:
    return np.mean([row["updates"]]) < 1


@pytest.mark.parametrize(
    ("answer", "stops"),
    [
        *((answer, True) for answer in (False, np.False_, np.array(False), torch.tensor(False))),
        *((answer, False) for answer in (True, None, 0, 0.0, "", [], np.True_, torch.tensor(True), np.zeros(2, bool))),
        *((answer, False) for answer in (np.float64(0.0), torch.tensor(0))),
    ],
)
def test_whatever_is_false_stops_and_nothing_else(answer: Any, stops: bool):
    ends: list[str] = []
    found = Callbacks([lambda run, row: answer], Path("run"), ends.append)
    found.line("metrics", {})
    found.call()
    assert ends == ["stopped by callback <lambda>"] * stops


@pytest.mark.parametrize(
    ("callback", "name"), [(Stopper(), "Stopper: enough"), (enough, "enough"), (enough_numpy, "enough_numpy")]
)
def test_a_callback_ends_the_run_with_a_checkpoint(tmp_path: Path, callback: Any, name: str):
    run = polyplay.train("a2c", **TOY, steps=100_000_000, run=tmp_path / "run", callbacks=[callback])
    assert (run.exit_code, run.reason) == (0, f"stopped by callback {name}")
    assert checkpoint.everything(run.directory)
    more = polyplay.resume(run.directory, steps=int(run.summary["steps"]) + 200, callbacks=[Recorder()])
    assert more.reason == "done"


def test_a_callback_that_raises_leaves_a_run_that_can_go_on(tmp_path: Path):
    def broken(run: Any, row: dict[str, Any]) -> None:
        if row["updates"]:
            raise RuntimeError("my mistake")

    with pytest.raises(RuntimeError, match="my mistake") as caught:
        polyplay.train("a2c", **TOY, steps=100_000_000, run=tmp_path / "run", callbacks=[broken])
    assert "broken" in [entry.name for entry in caught.traceback]
    assert caught.value.__notes__ == [f"`polyplay resume {tmp_path / 'run'}` goes on from the last checkpoint"]
    assert checkpoint.everything(tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["exit_code"], summary["reason"]) == (1, "my mistake")


def test_one_that_raises_on_the_last_report_fails_the_run(tmp_path: Path):
    def broken(run: Any, row: dict[str, Any]) -> None:
        if row["steps"] >= 1600:
            raise RuntimeError("my mistake")

    with pytest.raises(RuntimeError, match="my mistake") as caught:
        polyplay.train("a2c", **TOY | {"report_every": 1e6}, steps=1600, run=tmp_path / "run", callbacks=[broken])
    assert caught.value.__notes__ == [f"`polyplay resume {tmp_path / 'run'}` goes on from the last checkpoint"]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["exit_code"], summary["reason"]) == (1, "my mistake")
    assert [row["state"] for row in directory.list_runs([tmp_path / "run"])] == ["failed"]


def test_mistakes_are_one_line_and_nothing_is_made(tmp_path: Path):
    with pytest.raises(
        UserError, match="callbacks: int given, allowed: a function, or an object with one of on_report"
    ):
        polyplay.train("a2c", **TOY, run=tmp_path / "run", callbacks=[3])
    with pytest.raises(UserError, match="callbacks: enough given, allowed: a list"):
        polyplay.train("a2c", **TOY, run=tmp_path / "run", callbacks=enough)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


class Later:
    async def on_report(self, run: Any, row: dict[str, Any]) -> bool:
        return False


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (Stopper, r"the class Stopper given, allowed: an object of it, Stopper\(\)"),
        (lambda row: False, r"<lambda> is called with \(run, row\).*too many positional arguments"),
        (lambda run, row, more: False, r"missing a required argument: 'more'"),
        (Later(), "Later is async"),
    ],
)
def test_what_could_not_be_called_is_refused_before_anything_starts(callback: Any, says: str, tmp_path: Path):
    with pytest.raises(UserError, match=says):
        polyplay.train("a2c", **TOY, steps=1600, run=tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()
    polyplay.train("a2c", **TOY, steps=1600, callbacks=[print, lambda *both, more=1: None], dry_run=True)
