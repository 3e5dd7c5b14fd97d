"""A stop does not wait for a rollout, also where those that act are on other machines."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.runs.options import RunOptions
from tests.runs.test_session import KW, SLOW
from tests.workers.hosts.runs import updates

AT = 3  # updates after which a step takes a quarter of a second, and a rollout more than a minute
FEW = {"start": 400, "capacity": 2000}


class Stop:
    """A callback that makes the environments slow, and then sends SIGTERM."""

    def __init__(self, flag: Path):
        self.flag, self.sent = flag, 0.0

    def on_report(self, run: Any, row: dict[str, Any]) -> None:
        if row["updates"] >= AT and not self.sent:
            if not self.flag.exists():
                self.flag.touch()
            else:  # half a second later: they are in their steps
                self.sent = time.monotonic()
                os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("system", "kw"),
    [
        ("a2c", {"replicas": 2, "hosts": "pretend:1"}),
        ("a2c", {"replicas": 3, "lanes": 3, "hosts": "pretend:2"}),
        ("ppo", {"replicas": 2, "hosts": "pretend:1"}),
        ("accel", {"replicas": 2, "lanes": 4, "hosts": "pretend:1"}),
        ("dqn", {**FEW, "replicas": 2, "hosts": "pretend:1"}),
        ("impala", {"actors": 2, "batch": 2, "hosts": "pretend:2"}),
        ("impala", {"actors": 2, "learners": 2, "batch": 4, "hosts": "pretend:2"}),
        ("impala", {"actors": 2, "batch": 2, "hosts": "pretend:2", "place": "learn=others", "trace": False}),
        ("r2d2", {**FEW, "actors": 2, "hosts": "pretend:1"}),
        ("apex", {**FEW, "actors": 2, "memories": 1, "hosts": "pretend:2", "place": "serve_replay=others"}),
        ("gorila", {**FEW, "learners": 2, "hosts": "pretend:1"}),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(str(v) for v in x.values()),
)
def test_a_signal_in_a_slow_rollout_saves_the_last_update_at_once(system, kw, tmp_path, monkeypatch, request):
    name, run, flag = f"slows_{abs(hash(request.node.name))}", tmp_path / "run", tmp_path / "slow"
    (tmp_path / f"{name}.py").write_text(SLOW.replace("FLAG", repr(str(flag))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = {**vars(systems.load(system).Config()), **vars(RunOptions())}
    given = {k: v for k, v in {**KW, **kw, "report_every": 0.5}.items() if k in known}
    stop = Stop(flag)
    result = polyplay.train(system, env=f"{name}:make", run=str(run), callbacks=[stop], **given)
    assert time.monotonic() - stop.sent < 30.0, "a rollout takes 100 s"
    assert (result.exit_code, result.reason) == (143, "stopped by SIGTERM")
    found = checkpoint.everything(run)[-1]
    assert checkpoint.update_of(found) >= AT
    assert result.summary["checkpoint"] == found.name
    assert checkpoint.resume_flaw(found) is None
    apart = system in ("gorila", "apex")  # several make updates, or as many as there is time for
    traced = given["trace"] and not apart
    assert not traced or checkpoint.update_of(found) == updates(run)[-1]["update"]
    flag.unlink()
    steps = checkpoint.manifest(found)["counters"]["steps"]
    again = polyplay.resume(run, steps=steps + 2000, hosts="none")
    assert again.exit_code == 0
    made = [row["update"] for row in updates(run)] if traced else [1]
    assert made == list(range(1, made[-1] + 1))
