"""One update: spec, batch, passes, learner.

What a learner is to do, one update of it, what it counts and saves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from polyplay.buffers.rollout_queue import Collator, RolloutQueue, RolloutSlots
from polyplay.core import checkpoint, tree
from polyplay.core.errors import NotFinite, UserError
from polyplay.core.tree import Batch
from polyplay.core.worker import Holder, Hyperparameters, WorkerContext
from polyplay.learning.checkpoints import LearnerCheckpoints, save_batch
from polyplay.learning.parts import LearnerPart, check_parts, open_parts
from polyplay.learning.returns import Loss, LossOutput
from polyplay.learning.threaded_gradient import ThreadedGradient, parts_of
from polyplay.learning.unreal import UnrealWindows
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.device import enter_device, page_lock, synchronize, to_device, to_floats, to_host
from polyplay.nets.factory import build_network
from polyplay.nets.layers import Tape
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.params import AgentParams
from polyplay.weights.update import Sums, Update, check_leaving

# Slots side by side as one batch on a device.


def collator_for(queue: RolloutQueue | RolloutSlots, n: int, device: torch.device) -> Collator:
    """What puts `n` slots side by side on the device."""
    if device.type == "cpu":
        return Collator(queue.rows, queue.state, queue.lanes, n)
    return DeviceCollator(queue, n, device)


class DeviceCollator(Collator):
    """Observations go from each slot straight into its columns of a batch on the device, beside this thread where
    memory is page-locked; everything else is small, and joined on the CPU. A slot is read until `done`.
    """

    def __init__(self, queue: RolloutQueue | RolloutSlots, n: int, device: torch.device):
        super().__init__({k: v for k, v in queue.rows.items() if k != "obs"}, queue.state, queue.lanes, n)
        self.device, self.source = device, tree.map(torch.as_tensor, queue.rows["obs"])
        if isinstance(queue, RolloutQueue):  # a replica's are on the device
            page_lock(queue.block, device)
        self.obs: Batch | None = None

    def __call__(self, slots: list[int]) -> tuple[Batch, Batch]:
        """rows [T+1, n·lanes, …], of which "obs" is tensors of the device, and state [n·lanes, …]."""
        rows, state = super().__call__(slots)
        if self.n == 1:
            return {**rows, "obs": to_device(tree.map(lambda x: x[slots[0]], self.source), self.device)}, state
        return rows, state

    def put(self, i: int, slot: int) -> None:
        """See Collator."""
        super().put(i, slot)
        if self.obs is None:
            wide = self.n * self.lanes
            self.obs = tree.map(
                lambda x: torch.empty((x.shape[1], wide, *x.shape[3:]), dtype=x.dtype, device=self.device), self.source
            )
        at = slice(i * self.lanes, (i + 1) * self.lanes)
        tree.map(lambda into, x: into[:, at].copy_(x[slot], non_blocking=True), self.obs, self.source)

    @property
    def joined(self) -> tuple[Batch, Batch]:
        """See Collator."""
        rows, state = super().joined
        return {**rows, "obs": self.obs}, state

    def done(self) -> None:
        synchronize(self.device)


# Several passes over one batch in minibatches, as PPO makes them: which rows when, and when to stop.


COLUMNS = ("obs", "action", "mask", "first", "reward", "events", "terminated", "logp", "value", "latent_noise")


@dataclass(frozen=True)
class Epochs:
    """`epochs` passes in `minibatches` equal parts each. target_kl: no further minibatch once one's approximate KL
    divergence from the policy that acted, mean over replicas, is above it; 0 is off.
    """

    epochs: int = 4
    minibatches: int = 4
    target_kl: float = 0.0

    @property
    def updates(self) -> int:
        """From one batch, if nothing stops them."""
        return self.epochs * self.minibatches


def shuffled_order(places: np.ndarray, passes: Epochs, seed: tuple[int, ...]) -> list[np.ndarray]:
    """The places (transitions, or whole lanes) of each minibatch: every epoch has its own random order, in parts as
    equal as may be.
    """
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(places) for _ in range(passes.epochs)]
    return [part for order in orders for part in np.array_split(order, passes.minibatches)]


class Minibatches:
    """Rows of one rollout, to be had in parts: single transitions, or with a core whole lanes, with the state before.

    rows [T+1, B]; targets [T, B], what the loss prepared. Only valid transitions are given, except in whole lanes.
    whole: lanes with all their rows, the last one too, for a loss that makes its targets itself.
    """

    def __init__(self, rows: Batch, state: Batch, targets: Batch, version: np.ndarray, whole: bool = False):
        self.whole = bool(state) or whole
        self.lanes, self.state = rows["first"].shape[1], state
        self.rows = {k: v for k, v in rows.items() if k in COLUMNS}
        if not whole:
            self.rows = {k: tree.map(lambda x: x[:-1], v) for k, v in self.rows.items()} | dict(targets)
        if not self.whole:
            self.rows = {k: tree.map(lambda x: x.flatten(0, 1), v) for k, v in self.rows.items()}
        self.version = version[:-1]
        self.device, self.valid = targets["valid"].device, to_host(targets["valid"])

    @property
    def places(self) -> np.ndarray:
        return np.arange(self.lanes) if self.whole else np.flatnonzero(self.valid)

    def take(self, at: np.ndarray) -> tuple[Batch, Batch, np.ndarray]:
        """Rows [1, n], or [T, n] of n lanes ([T+1, n]: see above); the state before them; the versions that acted on
        what is valid.
        """
        pick = torch.from_numpy(at).to(self.device)
        if self.whole and len(at) == self.lanes:  # all of them: in which order is all the same
            return self.rows, self.state, self.version[self.valid]
        if self.whole:
            rows = {k: tree.map(lambda x: x[:, pick], v) for k, v in self.rows.items()}
            return rows, tree.map(lambda x: x[pick], self.state), self.version[:, at][self.valid[:, at]]
        rows = {k: tree.map(lambda x: x[pick].unsqueeze(0), v) for k, v in self.rows.items()}
        return rows, {}, self.version.reshape(-1)[at]


def run_epochs(
    learner: Any, passes: Epochs, batch: Batch, state: Batch, version: np.ndarray, seed: tuple[int, ...]
) -> Iterator[None]:
    """All updates of a Learner, or of what stands in for one, from one rollout. Its agent steps count once, with the
    first pass; every update's lag is its own.
    """
    policy, loss = learner.policy, cast("Any", learner.spec.loss)
    parts = Minibatches(batch, state, loss.prepare(batch, policy.reward_scale()), version, loss.whole)
    learnt, order = int(parts.valid.sum()), shuffled_order(parts.places, passes, seed)
    for k, at in enumerate(order):
        rows, before, versions = parts.take(at)
        scored, last = learner.score(rows, before), k == len(order) - 1
        seen, watch = batch if last else None, passes.target_kl > 0.0
        kl = yield from learner.apply_gradient(scored, batch, versions, 0 if k else learnt, seen, watch)
        if watch and kl > passes.target_kl:
            if not last:
                policy.observe(batch)  # replicas agree on it at their next update
            return


# What a learner is to do: network, loss, update, hyperparameters, how long.


@dataclass(frozen=True)
class LearnerSpec(Holder):
    """What a learner is to do, besides wiring: network, loss, update, hyperparameters, how long, how the rate falls."""

    policy: PolicyFactory
    loss: Loss
    update: Update
    hyperparameters: Hyperparameters
    total: float  # agent steps; learning ends there
    anneal: str = "linear"  # "linear" to 0 over `total`, or "constant"
    parts: tuple[LearnerPart, ...] = ()  # what else it has: a target network, drops of the rate, …
    agent: int = 0
    population: AgentParams | None = None  # weights of all agents of the run, which learn from `total` steps together
    stored_bootstrap: bool = False  # the last row's value was stored while acting: one row less to unroll
    fresh_values: bool = False  # the weights that learn are those that acted (A3C): values are those of the unroll
    report: int = 1  # metrics of every so many updates: with few rows they cost more than the loss
    outputs: Callable[..., Batch] | None = None  # of two networks, for a loss of what is drawn from a replay
    initial: Sequence[Mapping[str, float]] = ()  # hyperparameters of each agent where they differ; empty: nowhere

    def __post_init__(self) -> None:
        if not isinstance(self.policy, PolicyFactory):
            wanted = "a PolicyFactory of polyplay.nets.policy, such as NetworkFactory"
            raise UserError(f"LearnerSpec: policy is of class {type(self.policy).__name__}, it must be {wanted}")
        check_parts(self.parts)
        if self.update.replicas > 1 and any(part.refuses for part in self.parts):
            text = "a part that refuses losses given, but replicas average gradients"
            raise UserError(f"LearnerSpec.parts: {text}: leave it out, or use another update")

    def holds(self) -> Mapping[str, Any]:
        """See Holder."""
        return {"policy": self.policy, "update": self.update}

    def describe(self) -> list[str]:
        """A line each for the diagram."""
        rows = [f"loss    {getattr(self.loss, 'title', type(self.loss).__name__)}", f"update  {self.update.title()}"]
        rows += filter(None, (part.describe() for part in self.parts))
        return rows


def unroll_before_last(policy: Policy, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch:
    """As policy.unroll(batch, state), but of rows 0..T-1: row T has the value that was stored while acting, and 0 for
    its log-probability and entropy, which no loss uses. tape: of acting in these rows with the same weights.
    """
    rows = tree.map(lambda x: x[:-1], batch)
    out = policy.unroll(rows, state) if tape is None else cast("ActorCritic", policy).unroll(rows, state, tape)
    last = {"value": batch["value"][-1:], "logp": torch.zeros_like(batch["value"][-1:])}
    last["entropy"] = last["logp"]
    return {k: torch.cat([v, last[k]]) if k in last else v for k, v in out.items()}


class Learner:
    """One replica of the learner: takes batches, makes updates, counts."""

    def __init__(self, ctx: WorkerContext, spec: LearnerSpec):
        self.ctx, self.spec, self.checkpoints = ctx, spec, LearnerCheckpoints(self, ctx, spec)
        self.device = enter_device(ctx.device)
        self.policy = build_network(spec.policy, ctx.seed, ctx.precision, self.device)
        self.update = spec.update.open(ctx, self.policy)
        self.vector = self.update.vector
        self.parts = open_parts(self)
        self.target_net = next((part.net for part in self.parts if part.net is not None), None)
        self.apply_hyperparameters()
        self.version, self.learnt, self.done, self.now = 0, 0.0, False, 1.0
        self.priority: Tensor | None = None  # of the rows of the last update, where its loss has them
        self.threads: ThreadedGradient | Literal[False] | None = None  # None: not decided yet
        self.auxiliary = UnrealWindows(self.policy, self.device)
        saved = self.checkpoints.load_or_begin()
        self.update.begin(self.version, self.learnt, saved)
        if spec.population is not None:
            spec.population.learnt[spec.agent] = self.learnt
            self.checkpoints.more = None  # one agent alone makes no checkpoint
        while not self.update.counts.ready:
            ctx.turn()
            time.sleep(0.01)
        self.version, self.learnt = self.update.counts.version, self.update.counts.learnt
        goes_on = ctx.resume is not None and self.parts and not ctx.incarnation % 1000
        found = checkpoint.open_checkpoint(ctx.resume) if goes_on else None
        for part in self.parts:
            part.begin(found)
        self.apply_hyperparameters()
        ctx.hooks.rescue = self.checkpoints.rescue

    def apply_hyperparameters(self) -> None:
        """Have the network take over the hyperparameters that are parts of it, as they are now."""
        self.policy.apply_hyperparameters(self.spec.hyperparameters.all())

    def adjust(self) -> None:
        """Take over what changes as the run goes on: before an update, the same for all its passes."""
        self.now = self.remaining()
        for part in self.parts:
            part.adjust()
        self.apply_hyperparameters()

    def remaining(self) -> float:
        """The part of the run that is left."""
        return max(0.0, 1.0 - self.progress / self.spec.total)

    @property
    def progress(self) -> float:
        """Agent steps learnt from, by all agents of the run."""
        among = self.spec.population
        return self.learnt if among is None else among.together

    def rate(self, left: float | None = None) -> float:
        rate: float = self.spec.hyperparameters.learning_rate
        for part in self.parts:
            rate = part.rate(rate)
        left = self.remaining() if left is None else left
        return rate * (left if self.spec.anneal == "linear" else 1.0)

    def step(self, rows: Batch, state: Batch, tape: Tape | None = None, passes: Epochs | None = None) -> Iterator[None]:
        """One update from rows [T+1, B] and the state before them, NumPy arrays (obs may be the device's tensors); with
        `passes` several. tape: of acting with the present weights, where nothing is to be computed twice.
        """
        batch, state = to_device(rows, self.device), to_device(state, self.device)
        self.adjust()
        if passes is not None:
            seed = self.ctx.seed, self.ctx.index, self.version
            yield from run_epochs(self, passes, batch, state, rows["version"], seed)
            return

        with self.ctx.counters.timed("learn"):
            batch |= self.auxiliary.draw(rows, batch, state, (self.ctx.seed, self.ctx.index, self.version))
            acted = self.spec.stored_bootstrap
            out = unroll_before_last(self.policy, batch, state, tape) if acted else self.policy.unroll(batch, state)
            if self.spec.fresh_values:
                batch["value"] = out["value"].detach()
            scored = self.spec.loss(out, batch, self.spec.hyperparameters)
        valid = ~rows["first"][1:]
        versions, learnt = rows["version"][:-1][valid], float(np.count_nonzero(valid))
        yield from self.apply_gradient(scored, batch, versions, learnt, batch)

    def score(self, rows: Batch, state: Batch) -> LossOutput:
        """The loss of rows [T+1, B] by the present weights; for `run_epochs`."""
        with self.ctx.counters.timed("learn"):
            return self.spec.loss(self.policy.unroll(rows, state), rows, self.spec.hyperparameters)

    def step_on_sample(self, item: Batch, fresh: float = 0.0, observe: bool = False) -> Iterator[None]:
        """One update from a sample of a replay; its `priority` is then how surprising each was. fresh: agent steps
        acted since the last update, which are counted as learnt: how often they are drawn is the replay's ratio.
        observe: running statistics learn from it first, where they didn't from what was acted.
        """
        self.update.refresh()  # also where it acted with others: a gradient is of the newest weights
        batch = to_device(item, self.device)
        if observe:
            self.observe({"obs": batch["obs"]})
        self.adjust()
        with self.ctx.counters.timed("learn"):
            scored = self._score_sample(batch)
        self.priority = scored.priority
        yield from self.apply_gradient(scored, batch, item["version"].ravel(), fresh, None)
        if self.threads:
            self.threads.refresh()

    def divide(self, rows: int) -> ThreadedGradient | None:
        """The threads that divide samples of so many transitions, if several do; decided once."""
        if self.threads is None:
            n = parts_of(self, rows)
            self.threads = ThreadedGradient(self, n) if n > 1 else False
        return self.threads or None

    def begin(self, item: Batch) -> None:
        """Begin with the sample that step_on_sample gets next, where several threads divide it."""
        if self.threads:
            self.threads.begin(to_device(item, self.device), self.version)

    def _score_sample(self, batch: Batch) -> LossOutput:
        """The loss of a sample; by several threads, it comes with its gradient."""
        if threads := self.divide(len(batch["action"])):
            return threads.score(batch, self.version)
        assert self.spec.outputs is not None
        out = self.spec.outputs(self.policy, self.target_net, batch, batch.get("state"), key=self.version)
        return self.spec.loss(out, batch, self.spec.hyperparameters)

    def observe(self, rows: Batch) -> None:
        """Running statistics learn from what is acted [T+1, B], before it is drawn; the target network has the same."""
        if not self.policy.observes:
            return
        if self.threads:
            self.threads.settle()
        self.policy.observe(to_device(rows, self.device))
        for part in self.parts:
            part.observed()

    def priorities(self) -> np.ndarray | None:
        """How surprising each item of the last update was, where its loss has that."""
        return None if self.priority is None else to_host(self.priority)

    def apply_gradient(
        self,
        scored: LossOutput,
        rows: Batch,
        versions: np.ndarray,
        learnt: float,
        observe: Batch | None,
        watch: bool = False,
    ) -> Generator[None, None, float]:
        """One update along the gradient of a loss, and its count. versions: of the weights that acted, a row each;
        learnt: agent steps to count; observe: rows to learn running statistics from; rows: saved if it is not finite.
        watch: gives the approximate KL divergence from the policy that acted, a mean over replicas; else 0.
        """
        if not all(part.admit(scored) for part in self.parts):
            self.update.counts.refuse()
            yield from self.count_only(learnt)
            return 0.0
        with self.ctx.counters.timed("learn"):
            if scored.loss.requires_grad:  # else its gradient is there already
                self.vector.zero_grad()
                scored.loss.backward()
            if observe is not None:
                self.policy.observe(observe)
            rate = self.rate(self.now)
        kl = float(scored.metrics["approx_kl"]) if watch else 0.0
        before, waited = time.perf_counter(), self.update.waited
        norm, total = yield from self.update.apply(rate, self._sums(learnt, kl))
        check_leaving(total)
        waited = self.update.waited - waited
        self.ctx.counters.add("wait", waited)
        self.ctx.counters.add("learn", time.perf_counter() - before - waited)
        loss = float(scored.loss.detach())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NotFinite(save_batch(self, rows, loss, norm))
        self._count(versions, scored.metrics, loss, norm, rate, total)
        return float(total[3] / total[4])

    def count_only(self, steps: float) -> Generator[None, None, float]:
        """No update: only count agent steps, with what replicas have to agree on. Gives the mean of their steps."""
        total = yield from self.update.agree(self._sums(steps, 0.0))
        check_leaving(total)
        self.update.counts.add(total[0], updates=0)
        self.learnt = self.update.counts.learnt
        self._set_learnt()
        self._read_control(total)
        return float(total[0] / total[4])

    def leave(self) -> Generator[None, None, None]:
        """No update any more: have the other replicas drop theirs. Raises Leaving, as it does in each of them."""
        self.ctx.log("caution", "a slow rollout is dropped: lanes begin anew when the run is resumed")
        check_leaving((yield from self.update.agree(self._sums(0.0, 0.0, leaving=1.0))))

    def _sums(self, learnt: float, kl: float, leaving: float = 0.0) -> Sums:
        first, control = self.ctx.index == 0, self.ctx.control
        # where all are equal, one counts for all
        finishing = (first or self.spec.update.asynchronous) * control.finishing
        return np.array([learnt, first * control.saves, finishing, kl, 1.0, leaving], np.float64)

    def _read_control(self, sums: Sums) -> None:
        self.checkpoints.agreed = int(sums[1])
        self.done = bool(sums[2]) or self.progress >= min(self.spec.total, self.ctx.control.until)

    def _set_learnt(self) -> None:
        self.ctx.counters.set("learnt", self.learnt)
        if self.spec.population is not None:
            self.spec.population.learnt[self.spec.agent] = self.learnt

    def read_control(self) -> None:
        """Look whether to save or to end, while nothing comes to learn from."""
        self._read_control(self._sums(0.0, 0.0))

    def _count(
        self, versions: np.ndarray, metrics: Mapping[str, Tensor], loss: float, norm: float, rate: float, sums: Sums
    ) -> None:
        lags = self.update.met() - versions
        self.update.counts.add(sums[0])
        self.version, self.learnt = self.update.counts.version, self.update.counts.learnt
        counters = self.ctx.counters
        counters.lag(lags)
        counters.set("updates", self.version - self.update.counts.begun)
        self._set_learnt()
        if self.version % self.spec.report == 0:
            own = self.spec.hyperparameters.scheduled | {"grad_norm": norm, "learning_rate": rate}
            counters.losses(to_floats(metrics) | own)
        for part in self.parts:
            part.updated(loss, norm, lags)
        self._read_control(sums)
