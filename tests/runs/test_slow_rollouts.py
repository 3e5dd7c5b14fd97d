"""A stop does not wait for a rollout: weights are saved as of the last update while environments are in a step."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint, worker
from polyplay.core.worker import RunControl, WorkerContext
from polyplay.learning.learner import Learner
from polyplay.runs.options import RunOptions
from tests.reports import rows

SLOW = """
import os, time
import gymnasium
class Env(gymnasium.Wrapper):
    def step(self, action):
        if os.path.exists(FLAG):
            time.sleep(0.25)
        return super().step(action)
def make():
    return Env(gymnasium.make("CartPole-v1"))
"""
KW: dict[str, Any] = {"network": "mlp", "hidden": (8,), "trace": True, "tensorboard": False, "seed": 3, "lanes": 2}
KW |= {"unroll": 400, "report_every": 0.1, "steps": 100_000_000}
AT = 3  # the update after which a step takes a quarter of a second, and a rollout more than a minute
LONG = pytest.mark.long
IDS = ["a2c serial", "a2c replicas", "impala", "learners", "a3c", "ppo", "dqn", "impala serial", "ppo in turns"]
IDS += ["r2d2", "apex"]


@pytest.fixture
def slows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request) -> Callable[[Callable[[], None]], str]:
    """slows(then): an environment that is slow after update AT; `then` is called at that moment."""
    name = f"slows_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(SLOW.replace("FLAG", repr(str(tmp_path / "slow"))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    real = Learner._count

    def make(then: Callable[[], None]) -> str:
        def count(self: Learner, *args: Any) -> None:
            real(self, *args)
            if self.version == AT and not (tmp_path / "slow").exists():
                (tmp_path / "slow").touch()
                then()

        monkeypatch.setattr(Learner, "_count", count)
        return f"{name}:make"

    return make


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("system", "kw"),
    [
        ("a2c", {"replicas": 1, "serial": True}),
        ("a2c", {"replicas": 2, "on": "thread"}),
        ("impala", {"actors": 2, "batch": 2, "on": "thread"}),
        pytest.param("impala", {"actors": 2, "learners": 2, "batch": 4, "on": "thread"}, marks=LONG),
        pytest.param("a3c", {"replicas": 2, "on": "thread"}, marks=LONG),
        pytest.param("ppo", {"replicas": 1, "on": "thread"}, marks=LONG),
        pytest.param("dqn", {"replicas": 1, "start": 400, "capacity": 2000, "serial": True}, marks=LONG),
        pytest.param("impala", {"actors": 1, "batch": 2, "serial": True}, marks=LONG),
        pytest.param("ppo", {"replicas": 2, "serial": True}, marks=LONG),
        pytest.param("r2d2", {"actors": 2, "start": 100, "capacity": 2000, "on": "thread"}, marks=LONG),
        pytest.param("apex", {"actors": 2, "memories": 1, "start": 100, "on": "thread"}, marks=LONG),
    ],
    ids=IDS,
)
def test_a_signal_in_a_slow_rollout_saves_the_last_update_at_once(system, kw, slows, tmp_path, capfd):
    run, sent = tmp_path / "run", list[float]()

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    known = {**vars(systems.load(system).Config()), **vars(RunOptions())}
    env, more = slows(send), {k: v for k, v in {**KW, **kw}.items() if k in known}
    result = polyplay.train(system, env=env, run=str(run), **more)
    assert time.monotonic() - sent[0] < 30.0, "a rollout takes 100 s"
    assert (result.exit_code, result.reason) == (143, "stopped by SIGTERM")
    said = capfd.readouterr()
    text = " ".join((said.out + said.err).split())
    assert text.count("a slow rollout is dropped: lanes begin anew") == 1
    found = checkpoint.everything(run)[-1]
    last = rows(run / "updates.jsonl")[-1]["update"]
    assert checkpoint.update_of(found) >= AT
    assert checkpoint.update_of(found) == last or system == "a3c"
    assert checkpoint.resume_flaw(found) is None
    assert result.summary["checkpoint"] == found.name
    (tmp_path / "slow").unlink()
    steps = checkpoint.manifest(found)["counters"]["steps"]
    again = polyplay.resume(run, steps=steps + 2000)
    assert again.exit_code == 0
    if system in ("a3c", "apex"):  # several write lines, or there are as many updates as there is time for
        return
    made = [row["update"] for row in rows(run / "updates.jsonl")]
    assert made == list(range(1, made[-1] + 1))
    assert made[-1] > last


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "how", [{"serial": True}, pytest.param({"on": "thread"}, marks=LONG)], ids=["serial", "threads"]
)
def test_the_time_limit_holds_within_a_rollout(how, slows, tmp_path):
    run = tmp_path / "run"
    options = SimpleNamespace(begun=0.0)
    env = slows(lambda: setattr(options, "begun", time.monotonic()))
    more = {**KW, **how, "replicas": 1, "minutes": 0.1}
    result = polyplay.train("a2c", env=env, run=str(run), **more)
    assert (result.exit_code, result.reason) == (0, "0.1 minutes are over")
    assert result.summary["wall_seconds"] < 30.0
    assert checkpoint.update_of(checkpoint.everything(run)[-1]) >= AT
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 0


def test_what_ends_soon_is_waited_for(monkeypatch):
    control = RunControl()
    ctx = WorkerContext("act", 0, 1, 0, 0, None, control)  # type: ignore[arg-type]
    assert not ctx.late(1e9)
    control.finish()
    assert ctx.late(worker.ENDING + 0.1)
    assert not ctx.late(worker.ENDING - 0.9)
    ctx.ending_since -= worker.ENDING
    assert ctx.late()
    other = RunControl()
    other.over = lambda: True
    assert WorkerContext("act", 0, 1, 0, 0, None, other).late(5.0)  # type: ignore[arg-type]
