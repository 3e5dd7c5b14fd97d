"""The learning loop, written once, and how a gradient reaches the weights: Local, AllReduce.

An `Update` is a description made while wiring; in its worker `bind` makes it act on that worker's vector. Applying it
is a generator, so that a graph that runs in one thread can let others take their turn while a replica waits.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from polyplay import checkpoint, optim, snapshot, trail, tree
from polyplay.errors import Closed, NotFinite
from polyplay.losses import Loss
from polyplay.params import Params, Vector
from polyplay.shared import Block, Knobs, Layout, Semaphores
from polyplay.stream import UNWRITTEN, Batches, Stream
from polyplay.tree import Batch
from polyplay.worker import Me

Sums = np.ndarray  # float64 [3]: valid rows learnt, save number, finish; summed over replicas
Apply = Generator[None, None, "tuple[float, Sums]"]


@dataclass(frozen=True)
class Optim:
    """An optimiser by name (optim.make); `clip` bounds the global norm of the (averaged) gradient, 0 is off."""

    name: str = "adam"
    eps: float = 1e-8
    alpha: float = 0.99
    momentum: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        optim.check(self.name)

    def make(self, vector: Vector) -> torch.optim.Optimizer:
        return optim.make(self.name, [vector.parameter], lr=0.0, eps=self.eps, alpha=self.alpha, momentum=self.momentum)


class Bound(Protocol):
    optimizer: torch.optim.Optimizer
    waited: float  # seconds spent waiting for others, so far

    def __call__(self, learning_rate: float, sums: Sums) -> Apply: ...


class Update(Protocol):
    def bind(self, me: Me, vector: Vector) -> Bound: ...


def _step(vector: Vector, optimizer: torch.optim.Optimizer, clip: float, learning_rate: float) -> float:
    """Clip by global norm and step; the norm before clipping. A gradient that isn't finite changes nothing."""
    norm = float(torch.linalg.vector_norm(vector.grad))
    if math.isfinite(norm):
        if clip and norm > clip:
            vector.grad.mul_(clip / (norm + 1e-6))
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    return norm


@dataclass(frozen=True)
class Local:
    """This worker's gradient, applied by this worker."""

    optim: Optim

    def bind(self, me: Me, vector: Vector) -> Bound:
        return _Local(self, vector)


class _Local:
    def __init__(self, what: Local, vector: Vector):
        self.clip, self.vector, self.optimizer = what.optim.clip, vector, what.optim.make(vector)
        self.waited = 0.0

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        return _step(self.vector, self.optimizer, self.clip, learning_rate), sums
        yield  # a generator, like its siblings


class AllReduce:
    """Replicas of one machine stay equal: gradients and floating buffers are averaged in shared memory, in fixed order.

    `size`: of the whole vector (params.sizes).
    """

    def __init__(self, optim: Optim, replicas: int, size: int):
        self.optim, self.replicas = optim, replicas
        layout = Layout()
        self._fields = (
            layout.add((2, replicas, size), np.float32),
            layout.add((2, replicas, 8), np.float64),
            layout.add((replicas + 1, 8), np.int64),
        )
        self._block: Block = layout.block()
        self._bells = Semaphores(replicas)

    def bind(self, me: Me, vector: Vector) -> Bound:
        return _AllReduce(self, me.index, vector)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        gradients, sums, arrived = (self._block.array(*f) for f in self._fields)
        return gradients, sums, arrived[:, 0]

    def close(self) -> None:
        self.arrays()[2][self.replicas] = 1
        for i in range(self.replicas):
            self._bells[i].post()


class _AllReduce:
    def __init__(self, what: AllReduce, rank: int, vector: Vector):
        self.vector, self.optimizer, self.clip = vector, what.optim.make(vector), what.optim.clip
        self.rank, self.n, self.bells = rank, what.replicas, what._bells
        self.gradients, self.sums, self.arrived = what.arrays()
        self.turn, self.waited = 0, 0.0

    def __call__(self, learning_rate: float, sums: Sums) -> Apply:
        # Two buffers in turn: whoever writes turn k + 2 has seen everyone arrive at k + 1, so all have read turn k.
        self.turn += 1
        mine = self.turn % 2
        weights, gradient = self.vector.weights, self.vector.grad.numpy()
        self.gradients[mine, self.rank, :weights] = gradient
        self.gradients[mine, self.rank, weights:] = self.vector.read()[weights:]
        self.sums[mine, self.rank, : len(sums)] = sums
        self.arrived[self.rank] = self.turn
        for other in range(self.n):
            if other != self.rank:
                self.bells[other].post()
        before = time.perf_counter()
        while self.arrived[: self.n].min() < self.turn:
            if self.arrived[self.n]:
                raise Closed
            if not self.bells[self.rank].wait(0.0):
                yield
                self.bells[self.rank].wait(0.02)
        self.waited += time.perf_counter() - before
        parts = self.gradients[mine]
        _mean(parts[:, :weights], gradient)
        _mean(parts[:, weights:], self.vector.read()[weights:])
        total = self.sums[mine, :, : len(sums)].sum(0)
        return _step(self.vector, self.optimizer, self.clip, learning_rate), total


def _mean(parts: np.ndarray, out: np.ndarray) -> None:
    """Mean of [replicas, size] over the replicas, added in their order."""
    np.add(parts[0], parts[min(1, len(parts) - 1)], out=out)
    for part in parts[2:]:
        out += part
    out *= 1.0 / len(parts) if len(parts) > 1 else 0.5  # one alone was added to itself


@dataclass(frozen=True)
class Task:
    """What a learner is to do, besides wiring: network, loss, update, knobs, how long, how the rate falls."""

    policy: Callable[[], Any]
    loss: Loss
    update: Update
    knobs: Knobs
    total: float  # agent steps; learning ends there
    anneal: str = "linear"  # "linear" to 0 over `total`, or "constant"
    agent: int = 0


_building = threading.Lock()


def build(policy: Callable[[], Any], seed: int) -> Any:
    """The network with the initial weights of `seed`; torch's generator is global, so threads take turns."""
    with _building:
        torch.manual_seed(seed)
        return policy()


class Learner:
    """One replica of the learner: takes batches, keeps counts, saves itself."""

    def __init__(self, me: Me, task: Task):
        self.me, self.task = me, task
        self.policy = build(task.policy, me.seed)
        self.vector = Vector(self.policy)
        self.update = task.update.bind(me, self.vector)
        self.version, self.learnt, self.done, self.saving = 0, 0.0, False, False
        self.saved = -1  # the update that was saved last
        self.saves = self.agreed = me.control.saves  # the last save made, and the last that all replicas know of
        self._trace = None
        if me.resume is not None:
            self._load()
        if me.trace and me.index == 0 and me.directory is not None:
            self._trace = open(me.directory / "updates.jsonl", "a", buffering=1)  # noqa: SIM115 - lives as long as we

    def rate(self) -> float:
        left = max(0.0, 1.0 - self.learnt / self.task.total) if self.task.anneal == "linear" else 1.0
        return self.task.knobs.learning_rate * left

    def step(self, rows: Batch, state: Batch) -> Iterator[None]:
        """One update from rows [T+1, B] and the state before them, NumPy arrays."""
        before = time.perf_counter()
        batch, state = tree.map(torch.from_numpy, rows), tree.map(torch.from_numpy, state)
        valid = ~rows["first"][1:]
        out = self.policy.unroll(batch, state)
        scored = self.task.loss(out, batch, self.task.knobs)
        self.vector.zero_grad()
        scored.loss.backward()
        if hasattr(self.policy, "observe"):
            self.policy.observe(batch)
        rate = self.rate()
        self.me.meter.add("learn", time.perf_counter() - before)
        chief = self.me.index == 0
        control = self.me.control
        sums = np.array([np.count_nonzero(valid), chief * control.saves, chief * control.finishing], np.float64)
        before, waited = time.perf_counter(), self.update.waited
        norm, sums = yield from self.update(rate, sums)
        waited = self.update.waited - waited
        self.me.meter.add("wait", waited)
        self.me.meter.add("learn", time.perf_counter() - before - waited)
        loss = float(scored.loss.detach())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NotFinite(self._keep(rows, loss, norm))
        self._count(rows, valid, scored.metrics, loss, norm, rate, sums)

    def _count(self, rows: Batch, valid: Any, metrics: Any, loss: float, norm: float, rate: float, sums: Sums) -> None:
        lags = self.version - rows["version"][:-1][valid]
        self.version += 1
        self.learnt += sums[0]
        meter = self.me.meter
        meter.lag(lags)
        meter.add("updates", 1)
        meter.set("learnt", self.learnt)
        meter.losses({k: float(v) for k, v in metrics.items()} | {"grad_norm": norm, "learning_rate": rate})
        if self._trace is not None:
            worst, mean = (int(lags.max()), float(lags.mean())) if lags.size else (0, 0.0)
            row = {
                "update": self.version,
                "loss": loss,
                "grad_norm": norm,
                "lag_mean": mean,
                "lag_max": worst,
            }
            self._trace.write(json.dumps(row) + "\n")
        self.agreed = int(sums[1])
        self.saving = self.agreed > self.saves
        self.done = bool(sums[2]) or self.learnt >= self.task.total

    def _keep(self, rows: Batch, loss: float, norm: float) -> str:
        where = "nowhere (no run directory)"
        if self.me.directory is not None:
            path = self.me.directory / f"not-finite-{self.version}-{self.me.index}.safetensors"
            checkpoint.write_arrays(path, dict(tree.leaves(rows)))
            where = str(path)
        return (
            f"update {self.version}: loss {loss}, gradient norm {norm}; the batch was saved to {where}. "
            "A NaN in it from the environment is the usual cause; else a smaller --learning-rate or --clip is the cure"
        )

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, more: Callable[[checkpoint.Part], None] = lambda part: None) -> None:
        """Write this replica's part of a checkpoint, and `more` into it; the main process completes it when all parts
        are there.
        """
        me = self.me
        self.saves, self.saved = self.agreed, self.version
        if me.directory is None:
            return
        before = time.perf_counter()
        try:
            part = checkpoint.Part(me.directory, self.version)
            if me.index == 0:
                agent = f"agents/{self.task.agent}"
                named = {k: v.numpy() for k, v in self.policy.state_dict().items()}
                part.arrays(f"{agent}/policy", named)
                part.arrays(f"{agent}/optimizer", _optimizer_state(self.update.optimizer))
                part.json(
                    f"{agent}/learner",
                    {"version": self.version, "learnt": self.learnt, "knobs": self.task.knobs.all()},
                )
            more(part)
            me.meter.set("saved", self.version + 1)
        except OSError as e:
            me.meter.set("saved", -(self.version + 1))
            me.say("unsaved", f"checkpoint of update {self.version}: {e.strerror or e}")
        me.meter.add("wait", time.perf_counter() - before)

    def _load(self) -> None:
        found = checkpoint.open_checkpoint(self.me.resume)
        agent = f"agents/{self.task.agent}"
        checkpoint.fit(self.policy, found.arrays(f"{agent}/policy"))
        _load_optimizer(self.update.optimizer, found.arrays(f"{agent}/optimizer"))
        kept = found.json(f"{agent}/learner")
        self.version, self.learnt = int(kept["version"]), float(kept["learnt"])
        for name in kept["knobs"].keys() & self.task.knobs.all().keys():
            self.task.knobs.set(name, kept["knobs"][name])


def _optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    state = optimizer.state_dict()["state"].get(0, {})
    return {k: np.array(v.numpy() if torch.is_tensor(v) else v) for k, v in state.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, arrays: dict[str, np.ndarray]) -> None:
    kept = {k: torch.from_numpy(np.array(v)) for k, v in arrays.items()}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: kept} if kept else {}})


def learn(me: Me, *, source: Batches, task: Task, params: Params, round_slots: int) -> Iterator[None]:
    """Take batches from a stream, update, publish. `round_slots`: slots that all actors together fill in one round."""
    learner = Learner(me, task)
    chief, stream = me.index == 0, source.stream
    slots = learner.version * source.n * stream.consumers
    taken = snapshot.taken(me, stream, learner.version, source.n)
    if chief:
        stream.base[:] = taken
        params.publish(learner.vector, learner.version, slots // round_slots)
        yield  # actors begin with these weights, also where all take turns
    before, turn = time.perf_counter(), sum(taken[me.index :: stream.consumers])
    length = task.total if task.anneal == "linear" else 0.0
    log = trail.writer(me, stream, learner.version, torch.get_num_threads(), length)
    for batch in source.consumer(me.index, turn, log):
        me.meter.add("wait", time.perf_counter() - before)
        me.meter.stamp()
        if batch is None:
            if me.control.finishing and stream.consumers == 1:
                yield from _save(learner, stream)
                return
            yield
        else:
            rows, state = batch
            assert UNWRITTEN not in rows["version"]
            yield from learner.step(rows, state)
            slots += source.n * stream.consumers
            if chief:
                params.publish(learner.vector, learner.version, slots // round_slots)
                me.meter.add("depth_sum", stream.depth)
                me.meter.add("depth_count", 1)
            if learner.saving or learner.done:
                yield from _save(learner, stream)
            if learner.done:
                return
            yield
        before = time.perf_counter()


def _save(learner: Learner, stream: Stream) -> Iterator[None]:
    """Save the learner with what its actors hold and what is in flight. Nothing to do where that was done."""
    if learner.saved == learner.version:
        return
    me = learner.me
    lost = yield from snapshot.gather(me, stream, learner.version)
    learner.save(lambda part: snapshot.flow(me, part, stream, lost))
