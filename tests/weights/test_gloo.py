"""Replicas on several machines: processes that meet over the network, as those of one machine do in its memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core import checkpoint
from polyplay.core.errors import Closed, Leaving, UserError, WorkerLost
from polyplay.core.worker import RunControl
from polyplay.learning.learner import Learner
from polyplay.weights import gloo, optimizers, update
from polyplay.weights.update import LEAVING, AllReduce, OptimizerSpec
from tests.weights import ends


class Net(nn.Module):
    def __init__(self, weights: int, buffers: bool = True, device: str = "cpu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, weights, device=device))
        if buffers:
            self.register_buffer("seen", torch.zeros(3))
            self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))


def ended(steps: Any) -> Any:
    """What it gives at its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def five_updates(bound: Any, rank: int) -> tuple[list[float], list[list[float]], dict[str, np.ndarray]]:
    """Norms, sums, and what a checkpoint then has."""
    random, norms, totals = torch.Generator().manual_seed(rank), [], []
    for _ in range(5):
        bound.vector.grad.copy_(torch.randn(bound.vector.weights, generator=random))
        for buffer in bound.vector.buffers():
            buffer += torch.rand(buffer.shape, generator=random, dtype=torch.float64)
        norm, total = ended(bound.apply(0.1, np.array([rank + 0.1, 0.3])))
        norms.append(norm)
        totals.append([*total.tolist(), *ended(bound.agree(np.array([rank / 3])))])
    with bound.writers_paused():
        state = optimizers.optimizer_state(bound.optimizer)
        held = {"vector": bound.vector.flat, **state}
        return norms, totals, {k: v.numpy().copy() for k, v in held.items()}


def spread(reduce: AllReduce) -> AllReduce:
    reduce.spread("127.0.0.1")
    return reduce


def _work(errors: Path, pipe: Any, begin: Any, work: Callable[[int], object], rank: int) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    torch.set_num_threads(1)
    begin.wait()
    try:
        pipe.send(work(rank))
    except (Closed, Leaving, WorkerLost) as e:
        pipe.send((type(e).__name__, str(e)))


class Replicas:
    """work(0) … work(n - 1), each in a process of its own, whose errors go to a file."""

    def __init__(self, n: int, work: Callable[[int], object], folder: Path):
        self.errors, self.pipes, self.processes = folder / "errors", [], []
        begin = ends.FORK.Event()
        for rank in range(n):
            here, there = ends.FORK.Pipe(duplex=False)
            self.pipes.append(here)
            given = (self.errors, there, begin, work, rank)
            self.processes.append(ends.FORK.Process(target=_work, args=given, daemon=True))
            self.processes[-1].start()
        begin.set()  # a store that answers holds a lock of the resolver, and a fork would inherit it held

    def found(self, *ranks: int) -> list[Any]:
        """What these gave, once they have ended without a word."""
        found = [self.pipes[rank].recv() if self.pipes[rank].poll(20) else None for rank in ranks]
        for rank in ranks:
            self.processes[rank].join(20)
            assert self.processes[rank].exitcode == 0
        assert self.errors.read_text() == ""
        return found


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("name", "clip", "weights", "buffers", "many"), [
    ("adam", 0.5, 13_001, True, 1),
    ("adam", 0.0, 41, True, 100),  # the first of three has no part
    ("rmsprop_dqn", 0.5, 13_001, False, 1),
    ("rmsprop_tf", 0.5, 5001, True, 6000),
])  # fmt: skip
def test_updates_over_the_network_are_those_in_shared_memory_to_the_bit(
    n, name, clip, weights, buffers, many, tmp_path, monkeypatch
):
    monkeypatch.setattr(gloo, "_MANY", many)
    optim = OptimizerSpec(name, eps=1e-3, clip=clip)

    def work(reduce: AllReduce, rank: int) -> Any:
        return five_updates(reduce.open(ends.me(rank, n), Net(weights, buffers)), rank)

    size = update.param_sizes(Net(weights, buffers))[1]
    apart = spread(AllReduce(optim, n, size, weights))
    over_network = Replicas(n, lambda rank: work(apart, rank), tmp_path).found(*range(n))
    near = AllReduce(optim, n, size, weights)
    ready = [near.open(ends.me(rank, n), Net(weights, buffers)) for rank in range(n)]
    with ThreadPoolExecutor(n) as pool:
        shared = list(pool.map(five_updates, ready, range(n), timeout=30))
    assert len(set(shared[0][0])) == 5
    for (norms, totals, held), (norms_there, totals_there, held_there) in zip(shared, over_network, strict=True):
        assert norms == norms_there
        assert totals == totals_there
        assert held.keys() == held_there.keys()
        assert all(held[k].tobytes() == held_there[k].tobytes() for k in held)


def ready(reduce: AllReduce, rank: int, control: RunControl | None = None) -> Any:
    bound = reduce.open(replace(ends.me(rank, reduce.replicas), control=control or RunControl()), Net(100))
    bound.vector.grad.fill_(1.0)
    return bound


def test_who_meets_one_that_leaves_changes_nothing_and_may_save(tmp_path):
    reduce = spread(AllReduce(OptimizerSpec("adam"), 3, *reversed(update.param_sizes(Net(100)))))

    def work(rank: int) -> Any:
        bound, sums = ready(reduce, rank), np.zeros(6)
        ended(bound.apply(0.1, sums))
        before = bound.vector.flat.clone()
        sums[LEAVING] = rank == 1
        with pytest.raises(Leaving):
            ended(bound.apply(0.1, sums) if rank == 0 else bound.agree(sums))
        assert not bound.whole
        with bound.writers_paused():
            saved = optimizers.optimizer_state(bound.optimizer)["exp_avg"]
            return torch.equal(before, bound.vector.flat), bound.whole, bool(saved.ne(0.0).all())

    assert Replicas(3, work, tmp_path).found(0, 1, 2) == [(True, True, True)] * 3


@pytest.mark.parametrize("halted", [True, False])
def test_who_waits_for_one_that_was_killed_ends_with_the_run_or_says_so(halted, tmp_path, monkeypatch):
    monkeypatch.setattr(gloo, "PARTING", 5.0 if halted else 0.3)
    reduce, control = spread(AllReduce(OptimizerSpec("adam"), 2, *reversed(update.param_sizes(Net(100))))), RunControl()

    def work(rank: int) -> Any:
        bound = ready(reduce, rank, control)
        ended(bound.apply(0.1, np.zeros(6)))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return ended(bound.apply(0.1, np.zeros(6)))

    both = Replicas(2, work, tmp_path)
    both.processes[1].join(20)
    before = time.monotonic()
    if halted:
        time.sleep(0.1)
        control.halt()
    [found] = both.found(0)
    lost = "WorkerLost", "worker learn 0: a replica on another machine is gone"
    assert found == (("Closed", "") if halted else lost)
    assert time.monotonic() - before < 2.0


@pytest.mark.parametrize("met", [True, False])
def test_who_waits_hears_that_the_run_is_halted(met, tmp_path):
    reduce, control = spread(AllReduce(OptimizerSpec("adam"), 2, *reversed(update.param_sizes(Net(100))))), RunControl()

    def work(rank: int) -> Any:
        if rank == 0 or met:
            bound = ready(reduce, rank, control)
            for _ in range(1 + (met and rank == 0)):
                ended(bound.apply(0.1, np.zeros(6)))
        time.sleep(60.0)

    both = Replicas(2, work, tmp_path)
    assert not both.pipes[0].poll(0.3), "it waits for as long as the other computes"
    control.halt()
    before = time.monotonic()
    assert both.found(0) == [("Closed", "")], "and for its end it does not wait"
    assert time.monotonic() - before < 2.0
    both.processes[1].kill()


def test_a_run_that_goes_on_from_a_checkpoint_is_the_one_that_was_not_interrupted(tmp_path):
    def run(folder: Path, updates: int, resume: Path | None = None, learnt: int = 0) -> list[Any]:
        reduce = spread(AllReduce(OptimizerSpec("adam", clip=0.5), 2, *reversed(update.param_sizes(ends.POLICY()))))

        def work(rank: int) -> Any:
            learner = Learner(ends.me(rank, 2, directory=folder, resume=resume), ends.task(reduce))
            for turn in range(learnt, learnt + updates):
                ends.finish(learner.step(ends.some_rows(2 * turn + rank, B=1, version=turn), {}))
            learner.checkpoints.save()
            return learner.version, learner.update.vector.read().tobytes()

        folder.mkdir()
        return Replicas(2, work, folder).found(0, 1)

    run(tmp_path / "first", 3)
    saved = checkpoint.complete(tmp_path / "first", 3, {})
    whole = run(tmp_path / "whole", 5)
    assert run(tmp_path / "second", 2, saved, 3) == whole == [whole[0]] * 2
    assert whole[0][0] == 5


def test_they_compute_on_cpus_and_take_along_where_they_meet():
    reduce = spread(AllReduce(OptimizerSpec("adam"), 2, 100))
    state = reduce.__getstate__()
    assert "_store" not in state
    assert state["meets_at"] == ("127.0.0.1", reduce._store.port)
    with pytest.raises(UserError, match="compute on CPUs; take --device cpu"):
        reduce.open(ends.me(0, 2), Net(100, buffers=False, device="meta"))
