"""A run that fails saves first what is whole, and its last line says how to go on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.cli import main
from polyplay.core import checkpoint, processes
from polyplay.core.errors import EnvFailure, NotFinite, WorkerLost
from polyplay.learning.learner import Learner
from polyplay.workers.crew import Crew
from tests.reports import rows

BREAKS = """
import os
import gymnasium
class Env(gymnasium.Wrapper):
    def step(self, action):
        if os.path.exists(FLAG):
            raise ZeroDivisionError("a fault of its own")
        return super().step(action)
def make():
    return Env(gymnasium.make("CartPole-v1"))
"""
KW: dict[str, Any] = {"network": "mlp", "trace": True, "steps": 100_000_000, "tensorboard": False, "seed": 3}
KW |= {"report_every": 0.1}


@pytest.fixture
def breaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request) -> str:
    """An environment that breaks once the run has made 30 updates."""
    name = f"breaking_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(BREAKS.replace("FLAG", repr(str(tmp_path / "broken"))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    real = Learner._count

    def count(self: Learner, *args: Any) -> None:
        real(self, *args)
        if self.version == 30:
            (tmp_path / "broken").touch()

    monkeypatch.setattr(Learner, "_count", count)
    return f"{name}:make"


@pytest.mark.parametrize(
    ("system", "kw"),
    [
        ("a2c", {"lanes": 4, "replicas": 1, "serial": True}),
        ("a2c", {"lanes": 4, "replicas": 2, "on": "thread"}),
        ("impala", {"lanes": 4, "actors": 2, "batch": 8, "unroll": 5, "on": "thread"}),
        pytest.param("dqn", {"lanes": 4, "start": 40, "capacity": 1000, "serial": True}, marks=pytest.mark.long),
    ],
    ids=["a2c serial", "a2c replicas", "impala", "dqn"],
)
def test_what_is_whole_is_saved_before_a_run_fails(system: str, kw: dict, breaking: str, tmp_path: Path, capfd):
    run = tmp_path / "run"
    with pytest.raises(EnvFailure) as failed:
        polyplay.train(system, env=breaking, run=str(run), **KW, **kw)
    assert failed.value.__notes__ == [f"`polyplay resume {run}` goes on from the last checkpoint"]
    (found,) = checkpoint.everything(run)
    last = rows(run / "updates.jsonl")[-1]["update"]
    assert checkpoint.update_of(found) == last >= 30
    assert checkpoint.resume_flaw(found) is None
    assert json.loads((run / "summary.json").read_text())["checkpoint"] == found.name
    (tmp_path / "broken").unlink()
    steps = checkpoint.manifest(found)["counters"]["steps"]
    assert polyplay.resume(run, steps=steps + 400).exit_code == 0
    assert [row["update"] for row in rows(run / "updates.jsonl")][:last] == list(range(1, last + 1))
    assert len(rows(run / "updates.jsonl")) > last


def test_the_last_line_says_how_to_go_on(breaking: str, tmp_path: Path, capfd: pytest.CaptureFixture):
    run, words = tmp_path / "a run", "--network mlp --lanes 4 --replicas 1 --serial --steps 10M --no-tensorboard"
    assert main.main(["train", "a2c", "--env", breaking, "--run", str(run), *words.split()]) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("failed · ")  # why is said once
    assert err.count("polyplay: failed: ") == 1
    assert "ZeroDivisionError: a fault of its own" in err
    assert err.splitlines()[-1] == f"`polyplay resume '{run}'` goes on from the last checkpoint"


def test_a_learner_that_raises_leaves_its_last_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, run = Learner.step, tmp_path / "run"

    def step(self: Learner, *args: Any):
        if self.version == 20:
            raise RuntimeError("of its own")
        yield from real(self, *args)

    monkeypatch.setattr(Learner, "step", step)
    with pytest.raises(WorkerLost, match="of its own"):
        polyplay.train("a2c", env="toy:catch", lanes=4, replicas=1, serial=True, run=str(run), **KW)
    assert [checkpoint.update_of(p) for p in checkpoint.everything(run)] == [20]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("left", ["again", ".partial-000000000000", ".partial-best-000000000009"])
def test_a_rescue_is_not_waited_for_without_need(left: str, tmp_path: Path, monkeypatch, capfd):
    """A learner that does not end: another signal ends the wait, and what others left makes none."""
    run, begun = tmp_path / "run", [0.0]

    def step(self: Learner, *args: Any):
        if self.version == 20:
            raise RuntimeError("of its own")
        yield from real(self, *args)

    def rescue(self: Crew, saved: float, busy: Any) -> list[int]:
        version = checkpoint.partial(run, 20)
        (version if left == "again" else checkpoint.checkpoints_dir(run) / left).mkdir(parents=True)
        begun[0] = time.monotonic()
        while busy():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.02)
        begun[0] = time.monotonic() - begun[0]
        return []

    real = Learner.step
    monkeypatch.setattr(Learner, "step", step)
    monkeypatch.setattr(Crew, "rescue", rescue)
    monkeypatch.setattr(processes, "AGAIN", 0.3)
    outside = signal.getsignal(signal.SIGTERM)
    with pytest.raises(WorkerLost, match="of its own"):
        polyplay.train("a2c", env="toy:catch", lanes=4, replicas=1, serial=True, run=str(run), **KW)
    assert signal.getsignal(signal.SIGTERM) is outside
    said = "".join(capfd.readouterr())
    assert said.count("SIGTERM again: ending without saving") == (left == "again")
    assert begun[0] >= 0.3 if left == "again" else begun[0] < 0.3
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 1


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, run = Learner._count, tmp_path / "run"

    def count(self: Learner, *args: Any) -> None:
        real(self, *args)
        if self.version == 20:
            self.vector.flat[0] = float("nan")
            self.done = True

    monkeypatch.setattr(Learner, "_count", count)
    with pytest.raises(NotFinite, match="update 20: weights are not finite"):
        polyplay.train("a2c", env="toy:catch", lanes=4, replicas=1, serial=True, run=str(run), **KW)
    assert [p.name for p in checkpoint.everything(run)] == ["000000000000-steps-0"]
