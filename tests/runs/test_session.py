"""The main process of a run: signals, callbacks, rescue, a lost disk."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.core import checkpoint, processes
from polyplay.core.errors import EnvFailure, NotFinite, UserError, WorkerLost
from polyplay.core.worker import RunControl
from polyplay.learning.learner import Learner
from polyplay.runs import directory
from polyplay.runs.directory import DirectoryLock, read_config
from polyplay.runs.options import RunOptions
from polyplay.runs.session import Callbacks, Session, check_callbacks
from polyplay.workers.crew import Crew
from tests.reports import rows

ENDLESS = "train a2c --env toy:catch --network mlp --lanes 4 --serial --steps 100M --report-every 0.1 --run"
CATCH: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 4, "serial": True, "tensorboard": False}


def told(capfd: pytest.CaptureFixture) -> str:
    """All that was printed since the last time."""
    return "".join(capfd.readouterr())


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def signalled(number: int = signal.SIGTERM) -> None:
    """Send a signal, and take a few instructions more: it is handled here."""
    os.kill(os.getpid(), number)
    assert signal.getsignal(number)


@pytest.mark.timeout(60)
def test_a_signal_while_a_line_is_written_stops_the_run(tmp_path, monkeypatch, capfd):
    """The handler runs in the thread that holds the console's lock."""
    real, sent = sys.stdout.flush, []

    def flush() -> None:
        if signal.getsignal(signal.SIGTERM) is not handler and not sent:
            sent.append(signalled())
        real()

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys.stdout, "flush", flush)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 143
    assert len(sent) == 1
    says = "SIGTERM: saving a checkpoint; a second signal, at least 1 s later, ends without saving"
    assert says in told(capfd)
    assert len(checkpoint.everything(tmp_path / "run")) == 1


@pytest.mark.timeout(60)
def test_a_signal_while_a_run_that_failed_is_closed_changes_nothing(tmp_path, monkeypatch, capfd):
    """A worker was lost, and whoever watches the run asks it to end just then."""
    real, outside = Crew.stop, list[int]()  # outside: who would have ended the process

    def stop(self: Crew) -> None:
        signalled()
        real(self)

    def lost(self: Crew, timeout: float) -> bool:
        raise WorkerLost("worker learn 0 was killed by SIGKILL; the run cannot continue without it")

    monkeypatch.setattr(Crew, "stop", stop)
    monkeypatch.setattr(Crew, "poll", lost)
    handler = signal.signal(signal.SIGTERM, lambda number, frame: outside.append(number))
    try:
        assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    summary = summary_of(tmp_path / "run")
    assert (outside, summary["exit_code"]) == ([], 1)
    assert summary["reason"].startswith("worker learn 0 was killed by SIGKILL")
    assert "saving a checkpoint" not in told(capfd)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("gap", "owner", "name", "value", "code", "says", "count"),
    [
        (0.0, processes, "AGAIN", 0.5, 143, "at once: updates since the last checkpoint are lost", 3),
        (0.0, Session, "patience", 0.5, 1, "not saved: learners did not end within 0 s", 2),
        (60.0, Session, "_learning", lambda self: False, 143, "before any learner started", 1),
    ],
    ids=["another one a second later", "together", "before any learner has begun"],
)
def test_signals_that_come_together_are_one(gap, owner, name, value, code, says, count, tmp_path, monkeypatch, capfd):
    """To a run whose learners never end; once more so many seconds after the first was told."""

    def tick(self: Session, real: Any = Session._tick) -> None:
        real(self)
        if not self.signalled or (self.warned_at and time.monotonic() - self.warned_at >= gap):
            signalled()

    monkeypatch.setattr(Session, "_tick", tick)
    monkeypatch.setattr(RunControl, "finish", lambda self: None)
    monkeypatch.setattr(owner, name, value)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == code
    said = told(capfd)
    assert (said.count("SIGTERM"), said.count("SIGTERM again: ending without saving")) == (count, name == "AGAIN")
    assert "stopped by SIGTERM" in said
    assert says in said


@pytest.mark.timeout(60)
def test_a_last_save_that_fails_is_said_last_and_in_the_status(tmp_path, monkeypatch, capfd):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def tick(self: Session, real: Any = Session._tick) -> None:
        real(self)
        if self.metrics.updates and not self.signalled:
            signalled()

    monkeypatch.setattr(checkpoint, "complete", full)
    monkeypatch.setattr(Session, "_tick", tick)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 1
    last = capfd.readouterr().out.strip().splitlines()[-1]
    assert re.match(r"stopped by SIGTERM; not saved: checkpoint of update \d+: No space left on device", last)
    assert summary_of(tmp_path / "run")["exit_code"] == 1


@pytest.mark.timeout(60)
def test_a_signal_while_workers_start_ends_the_run_with_a_summary(tmp_path, monkeypatch, capfd):
    def start(self: Crew, role: Any, index: int) -> None:
        signalled(signal.SIGHUP)
        self._check_start()
        raise AssertionError("it went on")

    monkeypatch.setattr(Crew, "_start", start)
    assert main.main([*ENDLESS.split(), str(tmp_path / "run")]) == 129
    said = told(capfd)
    assert "stopped by SIGHUP while it was starting" in said
    assert "Traceback" not in said
    assert summary_of(tmp_path / "run")["exit_code"] == 129


TOY: dict[str, Any] = {**CATCH, "lanes": 8, "report_every": 0.1, "quiet": True}


class Recorder(polyplay.Callback):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}
        for name in ("on_report", "on_episode", "on_checkpoint", "on_evaluation", "on_end"):
            setattr(self, name, partial(self.record, name))

    def record(self, name: str, run: Any, what: Any, more: int = 1) -> None:
        self.rows.setdefault(name, []).append(what)


def test_every_line_checkpoint_and_the_end_is_passed_on(tmp_path: Path):
    recorder, reports = Recorder(), []

    def count(run: Any, row: dict[str, Any]) -> None:
        assert run.directory == tmp_path / "run"
        reports.append(row)

    more: dict[str, Any] = {"eval_every": 400, "eval_episodes": 1, "steps": 1600, "run": tmp_path / "run"}
    run = polyplay.train("a2c", **TOY, **more, callbacks=[recorder, count])
    named = {"metrics": "on_report", "episodes": "on_episode", "evaluations": "on_evaluation"}
    written = {method: rows(run.directory / f"{name}.jsonl") for name, method in named.items()}
    last = checkpoint.everything(run.directory)[-1]
    assert recorder.rows == {**written, "on_checkpoint": recorder.rows["on_checkpoint"], "on_end": [run.summary]}
    assert (reports, recorder.rows["on_checkpoint"][-1]) == (written["on_report"], last)


class Stopper(polyplay.Callback):
    def on_report(self, run: Any, row: dict[str, Any]) -> None:
        if row["updates"]:
            run.stop("enough")


def enough(run: Any, row: dict[str, Any]) -> Any:
    return np.bool_(not row["updates"])


OTHERS = [True, None, 0, 0.0, "", [], np.True_, torch.tensor(True), np.zeros(2, bool), np.float64(0.0), torch.tensor(0)]


@pytest.mark.parametrize("answer", [False, np.False_, np.array(False), torch.tensor(False), *OTHERS])
def test_nothing_but_false_stops(answer: Any):
    ends: list[str] = []
    found = Callbacks(check_callbacks([lambda run, row: answer]), Path("run"), ends.append)
    found.add("metrics", {})
    found.call()
    assert bool(ends) == (not any(answer is other for other in OTHERS))


@pytest.mark.parametrize(("callback", "name"), [(Stopper(), "Stopper: enough"), (enough, "enough")])
def test_a_callback_ends_the_run_with_a_checkpoint(tmp_path: Path, callback: Any, name: str):
    run = polyplay.train("a2c", **TOY, steps=100_000_000, run=tmp_path / "run", callbacks=[callback])
    assert (run.exit_code, run.reason) == (0, f"stopped by callback {name}")
    more = polyplay.resume(run.directory, steps=int(run.summary["steps"]) + 200, callbacks=[Recorder()])
    assert more.reason == "done"


@pytest.mark.parametrize("last", [False, True], ids=["in the midst", "on the last report"])
def test_a_callback_that_raises_leaves_a_run_that_can_go_on(last: bool, tmp_path: Path):
    def broken(run: Any, row: dict[str, Any]) -> None:
        if row["steps"] >= 1600 if last else row["updates"]:
            raise RuntimeError("my mistake")

    more = {"steps": 1600, "report_every": 1e6} if last else {"steps": 100_000_000}
    with pytest.raises(RuntimeError, match="my mistake") as caught:
        polyplay.train("a2c", **TOY | more, run=tmp_path / "run", callbacks=[broken])
    assert "broken" in [entry.name for entry in caught.traceback]
    assert caught.value.__notes__ == [f"`polyplay resume {tmp_path / 'run'}` continues from the last checkpoint"]
    assert checkpoint.everything(tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert (summary["exit_code"], summary["reason"]) == (1, "my mistake")
    assert [row["state"] for row in directory.list_runs([tmp_path / "run"])] == ["failed"]


class Unrelated:
    def on_report(self, run: Any, row: dict[str, Any]) -> bool:
        return False


class Later(polyplay.Callback):
    async def on_report(self, run: Any, row: dict[str, Any]) -> bool:
        return False


@pytest.mark.parametrize(
    ("callbacks", "says"),
    [
        ([3], "callbacks: int given, allowed: a function, or an object whose class inherits polyplay.Callback"),
        ([Unrelated()], r"Unrelated given, .*inherits polyplay.Callback \(on_report, on_episode, .*on_end\)"),
        (enough, "callbacks: enough given, allowed: a list"),
        (
            [Stopper],
            "the class Stopper given, allowed: a function, or an object whose class inherits polyplay.Callback",
        ),
        ([lambda row: False], r"<lambda> must take the arguments \(run, row\).*too many positional"),
        ([print, lambda run, row, more: False], r"missing a required argument: 'more'"),
        ([Later()], "Later is async"),
    ],
)
def test_what_could_not_be_called_is_refused_before_anything_starts(callbacks: Any, says: str, tmp_path: Path):
    with pytest.raises(UserError, match=says):
        polyplay.train("a2c", **TOY, steps=1600, run=tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


FAULTY = """
import os, time
import gymnasium
class Env(gymnasium.Wrapper):
    def step(self, action):
        if os.path.exists(FLAG):
            FAULT
        return super().step(action)
def make():
    return Env(gymnasium.make("CartPole-v1"))
"""
BREAKS = 'raise ZeroDivisionError("a fault of its own")'
BROKEN_KW: dict[str, Any] = {"network": "mlp", "trace": True, "steps": 100_000_000, "tensorboard": False, "seed": 3}
BROKEN_KW |= {"report_every": 0.1}
Faulty = Callable[..., str]


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request) -> Faulty:
    """faulty(update, fault, then): an environment with a fault after that update, while tmp_path/fault is there; `then`
    is called at that moment.
    """
    name, real = f"faulty_{abs(hash(request.node.name))}", Learner._count
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def make(update: int, fault: str = BREAKS, then: Callable[[], None] = lambda: None) -> str:
        def count(self: Learner, *args: Any) -> None:
            real(self, *args)
            if self.version == update and not (tmp_path / "fault").exists():
                (tmp_path / "fault").touch()
                then()

        code = FAULTY.replace("FLAG", repr(str(tmp_path / "fault"))).replace("FAULT", fault)
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.setattr(Learner, "_count", count)
        return f"{name}:make"

    return make


@pytest.mark.parametrize(
    ("system", "kw"),
    [
        ("a2c", {"lanes": 4, "replicas": 1, "serial": True}),
        ("a2c", {"lanes": 4, "replicas": 2, "on": "thread"}),
        ("impala", {"lanes": 4, "actors": 2, "batch": 8, "unroll": 5, "on": "thread"}),
        pytest.param(
            "dqn", {"lanes": 4, "learning_starts": 40, "capacity": 1000, "serial": True}, marks=pytest.mark.long
        ),
    ],
    ids=["a2c serial", "a2c replicas", "impala", "dqn"],
)
def test_what_is_whole_is_saved_before_a_run_fails(system: str, kw: dict, faulty: Faulty, tmp_path: Path):
    run = tmp_path / "run"
    with pytest.raises(EnvFailure) as failed:
        polyplay.train(system, env=faulty(30), run=str(run), **BROKEN_KW, **kw)
    assert failed.value.__notes__ == [f"`polyplay resume {run}` continues from the last checkpoint"]
    (found,) = checkpoint.everything(run)
    last = rows(run / "updates.jsonl")[-1]["update"]
    assert checkpoint.update_of(found) == last >= 30
    assert checkpoint.resume_flaw(found) is None
    assert summary_of(run)["checkpoint"] == found.name
    (tmp_path / "fault").unlink()
    steps = checkpoint.manifest(found)["counters"]["steps"]
    assert polyplay.resume(run, steps=steps + 400).exit_code == 0
    assert [row["update"] for row in rows(run / "updates.jsonl")][:last] == list(range(1, last + 1))
    assert len(rows(run / "updates.jsonl")) > last


@pytest.mark.timeout(60)
@pytest.mark.parametrize("left", ["again", ".partial-000000000000", ".partial-best-000000000009"])
def test_a_rescue_is_not_waited_for_without_need(left: str, tmp_path: Path, monkeypatch, capfd):
    """A learner that does not end: another signal ends the wait, and what others left makes none."""
    run, waited = tmp_path / "run", list[float]()

    def rescue(self: Crew, saved: float, busy: Any) -> list[int]:
        version = checkpoint.partial(run, 20)
        (version if left == "again" else checkpoint.checkpoints_dir(run) / left).mkdir(parents=True)
        begun = time.monotonic()
        while busy():
            signalled()
            time.sleep(0.02)
        waited.append(time.monotonic() - begun)
        return []

    monkeypatch.setattr(Learner, "step", raising_at_20(Learner.step))
    monkeypatch.setattr(Crew, "rescue", rescue)
    monkeypatch.setattr(processes, "AGAIN", 0.3)
    outside = signal.getsignal(signal.SIGTERM)
    with pytest.raises(WorkerLost, match="of its own"):
        polyplay.train("a2c", env="toy:catch", lanes=4, replicas=1, serial=True, run=str(run), **BROKEN_KW)
    assert signal.getsignal(signal.SIGTERM) is outside
    assert told(capfd).count("SIGTERM again: ending without saving") == (left == "again")
    assert waited[0] >= 0.3 if left == "again" else waited[0] < 0.3
    assert summary_of(run)["exit_code"] == 1


def raising_at_20(step: Any) -> Any:
    """A learner's `step` that raises once there were 20 updates."""

    def raising(self: Learner, *args: Any) -> Any:
        if self.version == 20:
            raise RuntimeError("of its own")
        yield from step(self, *args)

    return raising


@pytest.mark.parametrize(
    ("finite", "error", "says", "saved"),
    [(True, WorkerLost, "of its own", 20), (False, NotFinite, "update 20: weights are not finite", 0)],
)
def test_a_learner_that_raises_leaves_its_last_update_if_that_is_finite(
    finite, error, says, saved, tmp_path, monkeypatch
):
    def count(self: Learner, *args: Any, real: Any = Learner._count) -> None:
        real(self, *args)
        if self.version == 20:
            self.update.vector.flat[0] = float("nan")
            self.done = True

    run = tmp_path / "run"
    if finite:
        monkeypatch.setattr(Learner, "step", raising_at_20(Learner.step))
    else:
        monkeypatch.setattr(Learner, "_count", count)
    with pytest.raises(error, match=says):
        polyplay.train("a2c", env="toy:catch", lanes=4, replicas=1, serial=True, run=str(run), **BROKEN_KW)
    assert [checkpoint.update_of(p) for p in checkpoint.everything(run)] == [saved]


KW: dict[str, Any] = {"network": "mlp", "hidden": (8,), "trace": True, "tensorboard": False, "seed": 3, "lanes": 2}
KW |= {"unroll": 400, "report_every": 0.1, "steps": 100_000_000}
AT = 3  # the update after which a step takes a quarter of a second, and a rollout more than a minute
LONG = pytest.mark.long


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("system", "kw"),
    [
        ("a2c", {"replicas": 1, "serial": True}),
        pytest.param("impala", {"actors": 2, "batch": 2, "on": "thread"}, marks=LONG),
        pytest.param("impala", {"actors": 2, "learners": 2, "batch": 4, "on": "thread"}, marks=LONG),
        pytest.param("a3c", {"replicas": 2, "on": "thread"}, marks=LONG),
        pytest.param("dqn", {"replicas": 1, "learning_starts": 400, "capacity": 2000, "serial": True}, marks=LONG),
        pytest.param("apex", {"actors": 2, "replay_workers": 1, "learning_starts": 100, "on": "thread"}, marks=LONG),
    ],
)
def test_a_signal_in_a_slow_rollout_saves_the_last_update_at_once(system, kw, faulty, tmp_path, capfd):
    run, sent = tmp_path / "run", list[float]()

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    later = threading.Timer(1.5, send)  # the next rollout is under way then
    known = {**vars(systems.load(system).Config()), **vars(RunOptions())}
    env, more = faulty(AT, "time.sleep(0.25)", later.start), {k: v for k, v in {**KW, **kw}.items() if k in known}
    result = polyplay.train(system, env=env, run=str(run), **more)
    assert time.monotonic() - sent[0] < 30.0, "a rollout takes 100 s"
    assert (result.exit_code, result.reason) == (143, "stopped by SIGTERM")
    said = capfd.readouterr()
    text = " ".join((said.out + said.err).split())
    if system not in ("a3c", "apex"):  # an episode's end ends a rollout; no lanes are saved
        assert text.count("lanes restart when the run is resumed") == 1
    found = checkpoint.everything(run)[-1]
    last = rows(run / "updates.jsonl")[-1]["update"]
    assert checkpoint.update_of(found) >= AT
    assert checkpoint.update_of(found) == last or system == "a3c"
    assert checkpoint.resume_flaw(found) is None
    assert result.summary["checkpoint"] == found.name
    (tmp_path / "fault").unlink()
    steps = checkpoint.manifest(found)["counters"]["steps"]
    assert polyplay.resume(run, steps=steps + 900).exit_code == 0
    if system in ("a3c", "apex"):  # several write lines, or there are as many updates as there is time for
        return
    made = [row["update"] for row in rows(run / "updates.jsonl")]
    assert made == list(range(1, made[-1] + 1))
    assert made[-1] > last


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "how", [{"serial": True}, pytest.param({"on": "thread"}, marks=LONG)], ids=["serial", "threads"]
)
def test_the_time_limit_holds_within_a_rollout(how, faulty, tmp_path):
    run = tmp_path / "run"
    more = {**KW, **how, "replicas": 1, "minutes": 0.04, "unroll": 100}
    result = polyplay.train("a2c", env=faulty(AT, "time.sleep(0.25)"), run=str(run), **more)
    assert (result.exit_code, result.reason) == (0, "0.04 minutes are over")
    assert result.summary["wall_seconds"] < 30.0
    assert checkpoint.update_of(checkpoint.everything(run)[-1]) >= AT


DISK_KW: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 4, "serial": True, "trace": True, "seed": 3}
DISK_KW |= {"report_every": 0.02, "checkpoint_every": 0.05, "eval_every": 100, "eval_episodes": 1}
SYSTEMS = {"a2c": {}, "impala": {"actors": 1, "batch": 4, "unroll": 5}}


class Disk:
    """Under a run's directory: writes fail while it is full."""

    def __init__(self, run: Path, monkeypatch: pytest.MonkeyPatch):
        self.run, self.full, self.refused = run, False, set[str]()
        self.write, self.fsync = os.write, os.fsync
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _refuse(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self.full and path.startswith(str(self.run)):
            self.refused.add(Path(path).name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, fd: int, data: bytes) -> int:
        if self.full and len(data) > 1 and str(self.run) in os.readlink(f"/proc/self/fd/{fd}"):
            self.write(fd, data[: len(data) // 2])  # as the last bytes of a disk are taken
            self._refuse(fd)
        return self.write(fd, data)

    def _fsync(self, fd: int) -> None:
        self._refuse(fd)
        self.fsync(fd)


@pytest.fixture
def at_ticks(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], None]]:
    """What happens at a run's tick of that number; from the first on the run takes as many as it gets."""
    events: dict[int, Callable[[], None]] = {}
    real, ticks = Session._tick, [0]

    def tick(self: Session) -> None:
        ticks[0] += 1
        events.get(ticks[0], lambda: None)()
        real(self)
        if ticks[0] == max(events) + 4:
            self._finish("enough")

    monkeypatch.setattr(Session, "_tick", tick)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.03)
    return events


def endless(run: Path, system: str = "impala", **more: Any) -> Any:
    return polyplay.train(system, run=str(run), steps=100_000_000, **{**DISK_KW, **SYSTEMS[system], **more})


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_full_disk_costs_what_does_not_fit_and_is_told_once(system: str, tmp_path, monkeypatch, at_ticks, capfd):
    run = tmp_path / "run"
    disk = Disk(run, monkeypatch)
    sizes: list[int] = []

    def room() -> None:
        disk.full = False
        sizes.append((run / "metrics.jsonl").stat().st_size)

    at_ticks |= {8: lambda: setattr(disk, "full", True), 20: room, 30: lambda: None}
    result = endless(run, system)
    assert (result.exit_code, result.reason) == (0, "enough")
    said = told(capfd)
    logs = ["metrics.jsonl", "episodes.jsonl", "updates.jsonl", "evaluations.jsonl", "tensorboard/"]
    logs += ["deliveries-0.jsonl"] if system == "impala" else []
    full = "No space left on device; the disk is full: free some space; the"
    assert [said.count(f"{name}: {full} run continues") for name in logs] == [1] * len(logs)
    assert f"{full} previous checkpoint remains" in said
    assert (run / "metrics.jsonl").stat().st_size > sizes[0]  # written again
    for path in run.glob("*.jsonl"):
        assert all(json.loads(line) for line in path.read_bytes().splitlines())
    last = rows(run / "updates.jsonl")[-1]["update"]
    assert len(rows(run / "updates.jsonl")) < last == result.summary["updates"]
    assert checkpoint.flaw(checkpoint.everything(run)[-1]) is None
    assert polyplay.resume(run, steps=result.summary["steps"] + 200).exit_code == 0


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("deleted", "{run} was deleted or moved: it is written again"),
        ("moved", "{run} was deleted or moved: it is written again"),
        ("copied back", "{run} was deleted or moved: it is written again"),
        ("unlocked", "{run}/.lock was deleted: it is locked again"),
    ],
)
def test_a_directory_that_is_deleted_or_moved_is_whole_in_the_end(how: str, says: str, tmp_path, at_ticks, capfd):
    run, there, config = tmp_path / "runs" / "run", tmp_path / "elsewhere" / "run", list[Any]()

    def change() -> None:
        config.append(read_config(run))
        if how == "deleted":
            shutil.rmtree(run)
        elif how in ("moved", "copied back"):
            run.parent.rename(there.parent)
            if how == "copied back":
                shutil.copytree(there, run)
        else:
            (run / ".lock").unlink()

    at_ticks |= {6: change, 12: lambda: None}
    result = endless(run)
    (warning,) = re.findall("warning .*", told(capfd))
    assert warning.startswith(f"warning {says.format(run=run)}")
    assert (result.exit_code, result.reason) == (0, "enough")
    assert (read_config(run), summary_of(run)["reason"]) == (config[0], "enough")
    assert [row["update"] for row in rows(run / "updates.jsonl")] == list(range(1, result.summary["updates"] + 1))
    assert len(rows(run / "episodes.jsonl")) == result.summary["episodes"]
    assert rows(run / "metrics.jsonl")[0]["updates"] < rows(run / "metrics.jsonl")[-1]["updates"]
    assert list((run / "tensorboard").iterdir())
    assert (run / "deliveries-0.jsonl").read_text().startswith('{"from":0,')
    assert checkpoint.flaw(checkpoint.everything(run)[-1]) is None
    assert polyplay.resume(run, steps=result.summary["steps"] + 200).exit_code == 0


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("deleted", "another command has written to"),
        ("lock deleted", "another command has written to"),
        ("locked", "is being written by process"),
    ],
)
def test_another_run_in_its_place_ends_a_run_that_leaves_it_alone(how: str, says: str, tmp_path, at_ticks):
    """No checkpoint is written there."""
    run, locks = tmp_path / "run", list[DirectoryLock]()

    def replace() -> None:
        if how == "lock deleted":
            (run / ".lock").unlink()
        else:
            shutil.rmtree(run)
            run.mkdir()
        if how == "locked":
            locks.append(DirectoryLock(run))
        (run / "config.json").write_text('{"another": 1}')

    at_ticks[6] = replace
    with pytest.raises(UserError, match=says):
        endless(run, eval_every=None)
    for lock in locks:
        lock.close()
    assert not (run / "summary.json").exists()
    assert (run / "config.json").read_text() == '{"another": 1}'
