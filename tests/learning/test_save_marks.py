"""Saves of one update: each has a mark of its own, and waits until the parts of the one before were taken."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import Closed
from polyplay.core.worker import RunControl
from polyplay.learning import learner as save_marks
from polyplay.learning.learner import SaveMarks
from polyplay.runs.session import CheckpointCompleter


def learner(serial: bool = False) -> Any:
    """The context of one, with a counter `saved`."""
    values = {"saved": 0.0}
    counters = SimpleNamespace(get=values.__getitem__, set=values.__setitem__)
    control = RunControl()
    return SimpleNamespace(counters=counters, control=control, serial=serial, turn=control.check)


def test_marks_grow_and_tell_repeated_saves_apart():
    ctx = learner()
    marks, told = SaveMarks(ctx), list[float]()
    for number, failed in ((None, False), (0, False), (0, False), (0, True), (4, False), (4, False)):
        marks.tell(number, failed)
        told.append(ctx.counters.get("saved"))
    assert [abs(m) for m in told] == sorted({abs(m) for m in told})
    assert [int(abs(m)) for m in told] == [0, 1, 1, 1, 5, 5]
    assert [m < 0 for m in told] == [False, False, False, True, False, False]


@pytest.mark.parametrize(("first", "then"), [(None, 0), (0, 0), (6, 6)])
def test_a_save_of_the_same_update_waits_until_the_one_before_was_taken(first, then):
    ctx = learner()
    marks = SaveMarks(ctx)
    marks.tell(first)
    waiting = threading.Thread(target=marks.wait, args=(then,), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    ctx.control.take(abs(ctx.counters.get("saved")))
    waiting.join(30.0)
    assert not waiting.is_alive()


def test_nothing_else_waits_and_not_for_ever(monkeypatch):
    ctx, began = learner(), time.monotonic()
    marks = SaveMarks(ctx)
    marks.wait(0)
    marks.tell(3)
    marks.wait(4)
    SaveMarks(learner(serial=True)).wait(0)
    monkeypatch.setattr(save_marks, "TAKE_TIMEOUT", 0.05)
    marks.wait(3)
    assert time.monotonic() - began < 5.0
    ctx.control.halt()
    monkeypatch.setattr(save_marks, "TAKE_TIMEOUT", 60.0)
    with pytest.raises(Closed):
        marks.wait(3)


@pytest.mark.long
@pytest.mark.parametrize("how", [{"serial": True}, {"on": "thread"}], ids=["serial", "threads"])
def test_a_replay_that_fills_is_saved_again_and_again(how, tmp_path):
    """All these checkpoints are of update 0; the last one has every step."""
    more: dict[str, Any] = {"network": "mlp", "hidden": (8,), "tensorboard": False, "quiet": True, "lanes": 4, **how}
    more |= {"replicas": 1, "start": 100_000, "capacity": 200_000, "steps": 4000, "checkpoint_every": 0.05}
    run = polyplay.train("dqn", env="toy:catch", run=tmp_path / "run", **more)
    (found,) = checkpoint.everything(run.directory)
    assert checkpoint.update_of(found) == 0
    assert checkpoint.flaw(found) is None
    assert run.exit_code == 0
    assert checkpoint.manifest(found)["counters"]["steps"] == run.summary["steps"] >= 4000
    assert not checkpoint.partials(run.directory)


def test_the_main_process_makes_a_checkpoint_of_each(tmp_path):
    control, marks = RunControl(), np.zeros(1)
    role = SimpleNamespace(name="replica", n=1, envs=object(), best=None, served=())
    crew = SimpleNamespace(control=control, roles=[role], savers=lambda: [0])
    counters = SimpleNamespace(column=lambda name: marks)
    metrics: Any = SimpleNamespace(crew=crew, counters=counters, steps=0, frames_per_step=1, before={"steps": 0})
    reporter: Any = SimpleNamespace(episodes=0, return_mean=None, wall_seconds=1.0)
    said: list[str] = []
    completer = CheckpointCompleter(tmp_path, metrics, reporter, 2, said.append)
    ctx: Any = SimpleNamespace(counters=SimpleNamespace(get=lambda name: marks[0], set=lambda _, m: marks.fill(m)))
    names = list[str]()
    for steps, number in ((0, None), (10, 0), (20, 0), (30, 0), (40, 1), (40, 1)):
        metrics.steps = steps
        checkpoint.CheckpointPart(tmp_path, number or 0).arrays(checkpoint.policy_name(0), {})
        SaveMarks(ctx).tell(number)
        assert control.taken < marks[0]
        completer.complete()
        assert control.taken == marks[0]
        (newest,) = checkpoint.everything(tmp_path)
        names.append(newest.name.lstrip("0"))
    assert names == ["-steps-0", "-steps-10", "-steps-20", "-steps-30", "1-steps-40", "1-steps-40"]
    assert (said, completer.failure) == ([], "")
