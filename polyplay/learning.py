"""The learning loop, written once: what a learner is to do, one update of it, what it counts and saves."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyplay import checkpoint, optim, snapshot, trail, tree
from polyplay.errors import NotFinite
from polyplay.losses import Loss, Scored
from polyplay.nets.precision import use
from polyplay.params import Params
from polyplay.passes import Passes, several
from polyplay.queues import Gather
from polyplay.shared import Knobs
from polyplay.stream import UNWRITTEN, Batches
from polyplay.tree import Batch
from polyplay.updates import Sums, Update
from polyplay.worker import Me


@dataclass(frozen=True)
class Task:
    """What a learner is to do, besides wiring: network, loss, update, knobs, how long, how the rate falls."""

    policy: Callable[[], Any]
    loss: Loss
    update: Update
    knobs: Knobs
    total: float  # agent steps; learning ends there
    anneal: str = "linear"  # "linear" to 0 over `total`, or "constant"
    passes: Passes | None = None  # several over each batch (PPO); their loss has a `prepare`
    agent: int = 0
    acted: bool = False  # the last row's value is what was said while acting: one row less to unroll (see `unrolled`)
    same: bool = False  # the weights that learn are those that acted (A3C): values are those of the unroll
    report: int = 1  # metrics of every so many updates: with few rows they cost more than the loss


_building = threading.Lock()


def build(policy: Callable[[], Any], seed: int, precision: str = "float32") -> Any:
    """The network with the initial weights of `seed`; torch's generator is global, so threads take turns."""
    with _building:
        torch.manual_seed(seed)
        return use(policy(), precision)


def unrolled(policy: Any, batch: Batch, state: Batch, tape: Any = None) -> Batch:
    """As policy.unroll(batch, state), but of rows 0..T-1: row T has the value that was stored while acting, and 0 for
    its log-probability and entropy, which no loss uses. tape: of acting in these rows with the same weights.
    """
    kept = {} if tape is None else {"tape": tape}
    out = policy.unroll({k: tree.map(lambda x: x[:-1], v) for k, v in batch.items()}, state, **kept)
    last = {"value": batch["value"][-1:], "logp": torch.zeros_like(batch["value"][-1:])}
    last["entropy"] = last["logp"]
    return {k: torch.cat([v, last[k]]) if k in last else v for k, v in out.items()}


class Learner:
    """One replica of the learner: takes batches, keeps counts, saves itself."""

    def __init__(self, me: Me, task: Task):
        self.me, self.task = me, task
        self.policy = build(task.policy, me.seed, me.precision)
        self.vector = task.update.vector(me, self.policy)
        self.update = task.update.bind(me, self.vector)
        self.counts = self.update.counts
        self.version, self.learnt, self.done, self.saving, self.now = 0, 0.0, False, False, 1.0
        self.saver = me.index == 0 or not task.update.apart
        self.saved = -1  # the update that was saved last
        self.saves = self.agreed = me.control.saves  # the last save made, and the last that all replicas know of
        self._trace = None
        if me.resume is not None and self.counts.fresh:
            self._load()
        self.counts.begin(self.version, self.learnt)
        while not self.counts.ready:
            me.turn()
            time.sleep(0.01)
        self.version, self.learnt = self.counts.version, self.counts.learnt
        if me.trace and me.index == 0 and me.directory is not None:
            self._trace = open(me.directory / "updates.jsonl", "a", buffering=1)  # noqa: SIM115 - lives as long as we

    def left(self) -> float:
        """The part of the run that is left."""
        return max(0.0, 1.0 - self.learnt / self.task.total)

    def rate(self, left: float | None = None) -> float:
        left = self.left() if left is None else left
        return self.task.knobs.learning_rate * (left if self.task.anneal == "linear" else 1.0)

    def step(self, rows: Batch, state: Batch, tape: Any = None) -> Iterator[None]:
        """One update from rows [T+1, B] and the state before them, NumPy arrays; with `passes` several. tape: of
        acting with the present weights, where nothing is to be computed twice (nets.recall).
        """
        batch, state = tree.map(torch.from_numpy, rows), tree.map(torch.from_numpy, state)
        self.now = self.left()  # the same for all passes
        if "left" in self.task.knobs.all():
            self.task.knobs.set("left", self.now)
        if self.task.passes is not None:
            yield from several(self, batch, state, rows["version"])
            return

        def score() -> Scored:
            acted = self.task.acted
            out = unrolled(self.policy, batch, state, tape) if acted else self.policy.unroll(batch, state)
            if self.task.same:
                batch["value"] = out["value"].detach()
            return self.task.loss(out, batch, self.task.knobs)

        valid = ~rows["first"][1:]
        yield from self.descend(score, batch, rows["version"][:-1][valid], float(np.count_nonzero(valid)), batch)

    def descend(
        self,
        score: Callable[[], Scored],
        rows: Batch,
        versions: np.ndarray,
        learnt: float,
        observe: Batch | None,
    ) -> Generator[None, None, float]:
        """One update along the gradient of `score()`, and its count. versions: of the weights that acted, a row each;
        learnt: agent steps to count; observe: rows to learn running statistics from; rows: kept if it is not finite.
        Gives the approximate KL divergence from the policy that acted, a mean over replicas, where passes end by it.
        """
        before = time.perf_counter()
        scored = score()
        self.vector.zero_grad()
        scored.loss.backward()
        if observe is not None and hasattr(self.policy, "observe"):
            self.policy.observe(observe)
        rate = self.rate(self.now)
        self.me.meter.add("learn", time.perf_counter() - before)
        chief = self.me.index == 0
        control = self.me.control
        watched = self.task.passes is not None and self.task.passes.target_kl > 0.0
        kl = float(scored.metrics["approx_kl"]) if watched else 0.0
        sums = [learnt, chief * control.saves, chief * control.finishing, kl, 1.0]
        before, waited = time.perf_counter(), self.update.waited
        norm, total = yield from self.update(rate, np.array(sums, np.float64))
        waited = self.update.waited - waited
        self.me.meter.add("wait", waited)
        self.me.meter.add("learn", time.perf_counter() - before - waited)
        loss = float(scored.loss.detach())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NotFinite(self._keep(rows, loss, norm))
        self._count(versions, scored.metrics, loss, norm, rate, total)
        return float(total[3] / total[4])

    def _count(self, versions: Any, metrics: Any, loss: float, norm: float, rate: float, sums: Sums) -> None:
        lags = self.counts.add(sums[0]) - versions
        self.version, self.learnt = self.counts.version, self.counts.learnt
        meter = self.me.meter
        meter.lag(lags)
        meter.set("updates", self.version - self.counts.begun)
        meter.set("learnt", self.learnt)
        if self.version % self.task.report == 0:
            meter.losses({k: float(v) for k, v in metrics.items()} | {"grad_norm": norm, "learning_rate": rate})
        show = self.me.control.show
        if show is not None and show.asked and self.me.index == 0:
            show.answer(self.vector, self.version)
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
            checkpoint.write_arrays(path, {k: v.numpy() for k, v in tree.leaves(rows)})
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
        self.version, self.learnt = self.counts.newest(), self.counts.learnt
        self.saves, self.saved = self.agreed, self.version
        if me.directory is None or not self.saver:
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
    held = optim.state(optimizer)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: kept} if kept else {}})
    for name, tensor in held.items():  # perhaps in shared memory: there they stay
        optim.state(optimizer)[name] = tensor.copy_(optim.state(optimizer)[name])


class _FromStream:
    """The learner's end of a Stream, whose actors hold copies of its weights."""

    def __init__(self, me: Me, learner: Learner, source: Batches, params: Params, round_slots: int):
        self.me, self.learner, self.source, self.params = me, learner, source, params
        self.stream, self.round_slots, self.chief = source.stream, round_slots, me.index == 0
        self.alone = self.stream.consumers == 1
        passes = learner.task.passes
        self.each = 1 if passes is None else passes.updates  # from one batch
        self.taken = snapshot.taken(me, self.stream, learner.version // self.each, source.n)
        self.slots = sum(self.taken)
        if self.chief:
            self.stream.base[:] = self.taken
            params.publish(learner.vector, learner.version, self.slots // round_slots)

    def batches(self) -> Iterator[Any]:
        me, task, stream = self.me, self.learner.task, self.stream
        length = task.total if task.anneal == "linear" else 0.0
        log = trail.writer(me, stream, self.learner.version, torch.get_num_threads(), length, self.each)
        return self.source.consumer(me.index, sum(self.taken[me.index :: stream.consumers]), log)

    def learnt(self, rows: Batch) -> None:
        assert UNWRITTEN not in rows["version"]
        self.slots += self.source.n * self.stream.consumers
        if self.chief:
            self.params.publish(self.learner.vector, self.learner.version, self.slots // self.round_slots)
            self.me.meter.add("depth_sum", self.stream.depth)
            self.me.meter.add("depth_count", 1)

    def save(self) -> Iterator[None]:
        """The learner with what its actors hold and what is in flight. Nothing to do where that was done."""
        if self.learner.saved == self.learner.version:
            return
        lost = yield from snapshot.gather(self.me, self.stream, self.learner.version)
        self.learner.save(lambda part: snapshot.flow(self.me, part, self.stream, lost))


class _FromQueue:
    """A trainer's end of a training queue: those who act use the weights themselves, and hold nothing worth keeping."""

    alone = True

    def __init__(self, me: Me, learner: Learner, source: Gather):
        self.me, self.learner, self.source = me, learner, source

    def batches(self) -> Iterator[Any]:
        return self.source.consumer()

    def learnt(self, rows: Batch) -> None:
        self.me.meter.served(int(np.count_nonzero(~rows["first"][1:])))
        self.me.meter.add("depth_sum", self.source.stream.depth)
        self.me.meter.add("depth_count", 1)

    def save(self) -> Iterator[None]:
        if self.learner.saved != self.learner.version:
            self.learner.save()
        yield


def learn(
    me: Me, *, source: Batches | Gather, task: Task, params: Params | None = None, round_slots: int = 1
) -> Iterator[None]:
    """Take batches, update, and for a Stream publish. `round_slots`: slots that all its actors fill in one round."""
    learner = Learner(me, task)
    feed: Any
    if isinstance(source, Gather):
        feed = _FromQueue(me, learner, source)
    else:
        assert params is not None
        feed = _FromStream(me, learner, source, params, round_slots)
    yield  # actors begin with these weights, also where all take turns
    before = time.perf_counter()
    for batch in feed.batches():
        me.meter.add("wait", time.perf_counter() - before)
        me.meter.stamp()
        if batch is not None:
            yield from learner.step(*batch)
            feed.learnt(batch[0])
        ends = learner.done or (batch is None and me.control.finishing and feed.alone)
        if ends or learner.saving:
            yield from feed.save()
        if ends or me.leaving:
            return
        yield
        before = time.perf_counter()
