"""One update: spec, batch, passes, learner.

What a learner is to do, one update of it, what it counts and saves.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from polyplay.buffers.rollout_queue import Collator, RolloutQueue, RolloutSlots
from polyplay.core import checkpoint, tree
from polyplay.core.errors import NotFinite
from polyplay.core.files import JsonLines, LogWrites, refusal_text
from polyplay.core.tree import Batch
from polyplay.core.worker import Hyperparameters, RunControl, SchedulePoint, WorkerContext
from polyplay.learning.returns import Loss, LossOutput
from polyplay.learning.threaded_gradient import ThreadedGradient, parts_of
from polyplay.learning.unreal import UnrealWindows
from polyplay.nets.device import enter_device, page_lock, synchronize, to_device, to_floats, to_host
from polyplay.nets.factory import build_network
from polyplay.nets.layers import Tape
from polyplay.nets.policy import Policy, PolicyFactory, TapedPolicy
from polyplay.weights import optimizers
from polyplay.weights.params import AgentParams, FlatParams
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
    policy = learner.policy
    loss, returns = cast("Any", learner.spec.loss), getattr(policy, "returns", None)
    parts = Minibatches(batch, state, loss.prepare(batch, returns.scale() if returns else 1.0), version, loss.whole)
    learnt, order = int(parts.valid.sum()), shuffled_order(parts.places, passes, seed)
    for k, at in enumerate(order):
        rows, before, versions = parts.take(at)
        scored, last = learner.score(rows, before), k == len(order) - 1
        seen, watch = batch if last else None, passes.target_kl > 0.0
        kl = yield from learner.apply_gradient(scored, batch, versions, 0 if k else learnt, seen, watch)
        if watch and kl > passes.target_kl:
            if not last and hasattr(policy, "observe"):
                policy.observe(batch)  # replicas agree on it at their next update
            return


# What a learner is to do: network, loss, update, hyperparameters, how long.


@dataclass(frozen=True)
class LearnerSpec:
    """What a learner is to do, besides wiring: network, loss, update, hyperparameters, how long, how the rate falls."""

    policy: PolicyFactory
    loss: Loss
    update: Update
    hyperparameters: Hyperparameters
    total: float  # agent steps; learning ends there
    anneal: str = "linear"  # "linear" to 0 over `total`, or "constant"
    drops: tuple[int, ...] = ()  # updates from which on the rate is a tenth of what it was
    agent: int = 0
    population: AgentParams | None = None  # weights of all agents of the run, which learn from `total` steps together
    stored_bootstrap: bool = False  # the last row's value was stored while acting: one row less to unroll
    fresh_values: bool = False  # the weights that learn are those that acted (A3C): values are those of the unroll
    report: int = 1  # metrics of every so many updates: with few rows they cost more than the loss
    outputs: Callable[..., Batch] | None = None  # of two networks, for a loss of what is drawn from a replay
    target: int = 0  # updates after which the target network is the network again; 0: there is none
    initial: Sequence[Mapping[str, float]] = ()  # hyperparameters of each agent where they differ; empty: nowhere

    def describe(self) -> list[str]:
        """A line each for the diagram."""
        rows = [f"loss    {getattr(self.loss, 'title', type(self.loss).__name__)}", f"update  {self.update.title()}"]
        outliers = getattr(self.update, "outliers", 0.0)
        if outliers:
            rows.append(f"drops   losses beyond mean + {outliers:g} deviations")
        if self.target:
            rows.append(f"target  copied every {self.target:,} updates")
        return rows


# The marks by which a learner tells the main process which parts of checkpoints it has written: its counter `saved`.
#
# A mark is 1 + the number of the checkpoint, plus a little for each time that it was saved before; 0.5 for the initial
# weights; negative where the parts could not be written. The main process says which mark it took last.


TAKE_TIMEOUT = 10.0  # seconds that the main process has to take the parts of a save


class SaveMarks:
    """The marks of one learner."""

    def __init__(self, ctx: WorkerContext):
        self.ctx = ctx

    def tell(self, number: int | None, failed: bool = False) -> None:
        """Say that the parts of checkpoint `number` are written; None: those of the initial weights."""
        last = abs(self.ctx.counters.get("saved"))
        mark = 0.5 if number is None else number + 1.0
        if number is not None and math.floor(last) == number + 1:
            mark = last + 1 / RunControl.REPEATS
        self.ctx.counters.set("saved", -mark if failed else mark)

    def wait(self, number: int) -> None:
        """Wait until the main process has taken the parts of an earlier save of `number`: both have one directory.
        Where all workers take turns, the main process takes none while this one writes, and the later save counts.
        """
        last, until = abs(self.ctx.counters.get("saved")), time.monotonic() + TAKE_TIMEOUT
        if self.ctx.serial or not last or max(math.floor(last) - 1, 0) != number:
            return
        while self.ctx.control.taken < last and time.monotonic() < until:
            self.ctx.turn()
            time.sleep(0.005)


def unroll_before_last(policy: Policy, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch:
    """As policy.unroll(batch, state), but of rows 0..T-1: row T has the value that was stored while acting, and 0 for
    its log-probability and entropy, which no loss uses. tape: of acting in these rows with the same weights.
    """
    rows = tree.map(lambda x: x[:-1], batch)
    out = policy.unroll(rows, state) if tape is None else cast("TapedPolicy", policy).unroll(rows, state, tape=tape)
    last = {"value": batch["value"][-1:], "logp": torch.zeros_like(batch["value"][-1:])}
    last["entropy"] = last["logp"]
    return {k: torch.cat([v, last[k]]) if k in last else v for k, v in out.items()}


WritePart = Callable[[checkpoint.CheckpointPart], None]  # what else belongs into a worker's part of a checkpoint


class Learner:
    """One replica of the learner: takes batches, counts, saves itself."""

    def __init__(self, ctx: WorkerContext, spec: LearnerSpec):
        self.ctx, self.spec, self.folder = ctx, spec, f"agents/{spec.agent}"  # folder: in a checkpoint
        self.device = enter_device(ctx.device)
        self.policy = build_network(spec.policy, ctx.seed, ctx.precision, self.device)
        self.vector = spec.update.vector(ctx, self.policy)
        self.update = spec.update.bind(ctx, self.vector)
        self.target_net: Policy | None = None
        self.target_params: FlatParams | None = None
        if spec.target:
            self.target_net = build_network(spec.policy, ctx.seed, ctx.precision, self.device)
            self.target_params = FlatParams(self.target_net)
        self.apply_hyperparameters()
        self.version, self.learnt, self.done, self.saving, self.now = 0, 0.0, False, False, 1.0
        self.priority: Tensor | None = None  # of the rows of the last update, where its loss has them
        self.parts: ThreadedGradient | Literal[False] | None = None  # None: not decided yet
        self.freeze_until = self._freeze_until()  # agent steps learnt from before which the rate is 0 (nets.surgery)
        self.auxiliary = UnrealWindows(self.policy, self.device)
        self.saver = ctx.index == 0 or not spec.update.asynchronous
        self.saved, self.marks = -1, SaveMarks(ctx)  # saved: the update that was saved last
        self.scheduled = dict[str, SchedulePoint]()  # by hyperparameter, the point that holds
        self.extra_parts: WritePart | None = lambda part: None  # None: nothing is saved where a run failed
        self.saves = self.agreed = ctx.control.saves  # the last save made, and the last that all replicas know of
        self._trace: JsonLines | None = None
        self._writes = LogWrites(lambda text: ctx.log("warning", text))
        if ctx.resume is not None and self.update.fresh:
            self._load()
        elif self.update.fresh and not ctx.incarnation % 1000:  # from the moment that a run begins, it can go on
            self._attempt(0, None)
        self.update.begin(self.version, self.learnt)
        if spec.population is not None:
            spec.population.learnt[spec.agent] = self.learnt
            self.extra_parts = None  # one agent alone makes no checkpoint
        while not self.update.ready:
            ctx.turn()
            time.sleep(0.01)
        self.version, self.learnt = self.update.version, self.update.learnt
        if self.target_params is not None:
            self._set_target(self._saved_target())
        self.target_copies = self._copies_due()
        if ctx.trace and ctx.index == 0 and ctx.directory is not None:
            whose = f"-{spec.agent}" if spec.agent else ""
            self._trace = JsonLines(ctx.directory / f"updates{whose}.jsonl")
        self.apply_hyperparameters()
        ctx.rescue = self.rescue

    def _freeze_until(self) -> float:
        """As the checkpoint has it that the run goes on from; where that was removed since, as the newest has it."""
        path = self.ctx.resume
        if path is None:
            return 0.0
        if not path.exists():
            path = checkpoint.everything(cast("Path", self.ctx.directory))[-1]
        saved = checkpoint.OpenCheckpoint(path).json(f"{self.folder}/learner")
        return float(saved.get("freeze_until", 0.0))

    def apply_hyperparameters(self) -> None:
        """Have the network take over the hyperparameters that are parts of it, as they are now."""
        if (apply := getattr(self.policy, "apply_hyperparameters", None)) is not None:
            apply(self.spec.hyperparameters.all())

    def adjust(self) -> None:
        """Take over what changes as the run goes on: before an update, the same for all its passes."""
        self.now = self.remaining()
        hyper, total, before = self.spec.hyperparameters, self.spec.total, self.scheduled
        if "remaining" in hyper.all():
            hyper.set("remaining", self.now)
        self.scheduled = hyper.keep_to_schedules(self.progress, total)
        for name, point in self.scheduled.items():
            if before.get(name) != point and self.ctx.index == 0:
                self.ctx.log("note", f"from {point.steps(total):,.0f} agent steps on: {name} {point.value:g}")
        self.apply_hyperparameters()

    def remaining(self) -> float:
        """The part of the run that is left."""
        return max(0.0, 1.0 - self.progress / self.spec.total)

    @property
    def progress(self) -> float:
        """Agent steps learnt from, by all agents of the run."""
        among = self.spec.population
        return self.learnt if among is None else among.together

    @property
    def over(self) -> bool:
        """Whether the run, or this part of it, is at its end."""
        return self.progress >= min(self.spec.total, self.ctx.control.until)

    def rate(self, left: float | None = None) -> float:
        if self.progress < self.freeze_until:
            return 0.0
        left = self.remaining() if left is None else left
        dropped = 0.1 ** sum(self.version >= drop for drop in self.spec.drops)
        return self.spec.hyperparameters.learning_rate * dropped * (left if self.spec.anneal == "linear" else 1.0)

    def _copies_due(self) -> int:
        """Copies to the target network so far; where weights are shared, others' updates count too."""
        return self.version // self.spec.target if self.spec.target else 0

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
        self.update.newest()  # also where it acted with others: a gradient is of the newest weights
        batch = to_device(item, self.device)
        if observe:
            self.observe({"obs": batch["obs"]})
        self.adjust()
        with self.ctx.counters.timed("learn"):
            scored = self._score_sample(batch)
        self.priority = scored.priority
        yield from self.apply_gradient(scored, batch, item["version"].ravel(), fresh, None)
        if self.parts:
            self.parts.refresh()
        if self._copies_due() > self.target_copies:
            self.target_copies = self._copies_due()
            self._set_target()

    def divide(self, rows: int) -> ThreadedGradient | None:
        """The threads that divide samples of so many transitions, if several do; decided once."""
        if self.parts is None:
            n = parts_of(self, rows)
            self.parts = ThreadedGradient(self, n) if n > 1 else False
        return self.parts or None

    def begin(self, item: Batch) -> None:
        """Begin with the sample that step_on_sample gets next, where several threads divide it."""
        if self.parts:
            self.parts.begin(to_device(item, self.device), self.version)

    def _score_sample(self, batch: Batch) -> LossOutput:
        """The loss of a sample; by several threads, it comes with its gradient."""
        if parts := self.divide(len(batch["action"])):
            return parts.score(batch, self.version)
        assert self.spec.outputs is not None
        out = self.spec.outputs(self.policy, self.target_net, batch, batch.get("state"), key=self.version)
        return self.spec.loss(out, batch, self.spec.hyperparameters)

    def observe(self, rows: Batch) -> None:
        """Running statistics learn from what is acted [T+1, B], before it is drawn; the target network has the same."""
        if getattr(self.policy, "inputs", None) is None or not hasattr(self.policy, "observe"):
            return
        if self.parts:
            self.parts.settle()
        self.policy.observe(to_device(rows, self.device))
        if self.target_params is not None:
            self.target_params.flat[self.target_params.weights :].copy_(self.vector.flat[self.vector.weights :])

    def priorities(self) -> np.ndarray | None:
        """How surprising each item of the last update was, where its loss has that."""
        return None if self.priority is None else to_host(self.priority)

    def _set_target(self, saved: dict[str, np.ndarray] | None = None) -> None:
        """The target network becomes the saved one, or the network as it is now; these weights will stay."""
        assert self.target_net is not None
        assert self.target_params is not None
        if saved is not None:
            checkpoint.load_into(self.target_net, saved)
        else:
            self.update.newest()
            self.target_params.flat.copy_(self.vector.flat)
        if (hold := getattr(self.target_net, "freeze_noise", None)) is not None:
            hold()

    def _saved_target(self) -> dict[str, np.ndarray] | None:
        """Where a run goes on; not for who takes a lost one's place: the network is not as it was made then."""
        if self.ctx.resume is None or self.ctx.incarnation % 1000:
            return None
        return checkpoint.open_checkpoint(self.ctx.resume).arrays(f"{self.folder}/target")

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
        if self.update.gate is not None and not self.update.gate(float(scored.loss.detach())):
            yield from self.count_only(learnt)
            return 0.0
        with self.ctx.counters.timed("learn"):
            if scored.loss.requires_grad:  # else its gradient is there already
                self.vector.zero_grad()
                scored.loss.backward()
            if observe is not None and hasattr(self.policy, "observe"):
                self.policy.observe(observe)
            rate = self.rate(self.now)
        kl = float(scored.metrics["approx_kl"]) if watch else 0.0
        before, waited = time.perf_counter(), self.update.waited
        norm, total = yield from self.update(rate, self._sums(learnt, kl))
        check_leaving(total)
        waited = self.update.waited - waited
        self.ctx.counters.add("wait", waited)
        self.ctx.counters.add("learn", time.perf_counter() - before - waited)
        loss = float(scored.loss.detach())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NotFinite(self._save_batch(rows, loss, norm))
        self._count(versions, scored.metrics, loss, norm, rate, total)
        return float(total[3] / total[4])

    def count_only(self, steps: float) -> Generator[None, None, float]:
        """No update: only count agent steps, with what replicas have to agree on. Gives the mean of their steps."""
        total = yield from self.update.agree(self._sums(steps, 0.0))
        check_leaving(total)
        self.update.add(total[0], updates=0)
        self.learnt = self.update.learnt
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
        self.agreed = int(sums[1])
        self.saving = self.agreed > self.saves
        self.done = bool(sums[2]) or self.over

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
        lags = self.update.add(sums[0]) - versions
        self.version, self.learnt = self.update.version, self.update.learnt
        counters = self.ctx.counters
        counters.lag(lags)
        counters.set("updates", self.version - self.update.begun)
        self._set_learnt()
        if self.version % self.spec.report == 0:
            own = self.spec.hyperparameters.scheduled | {"grad_norm": norm, "learning_rate": rate}
            counters.losses(to_floats(metrics) | own)
        show = self.ctx.control.show
        if show is not None and show.asked and self.ctx.index == self.spec.agent == 0:
            show.answer(self.vector, self.version)
        if (trace := self._trace) is not None:
            worst, mean = (int(lags.max()), float(lags.mean())) if lags.size else (0, 0.0)
            row = {"update": self.version, "loss": loss, "grad_norm": norm, "lag_mean": mean, "lag_max": worst}
            self._writes.attempt("updates.jsonl", lambda: trace.write(row))
        self._read_control(sums)

    def _save_batch(self, rows: Batch, loss: float, norm: float) -> str:
        where = "nowhere (no run directory)"
        if self.ctx.directory is not None:
            whose = f"agent-{self.spec.agent}-" if self.spec.agent else ""
            path = self.ctx.directory / f"not-finite-{whose}{self.version}-{self.ctx.index}.safetensors"
            try:
                checkpoint.write_arrays(path, {k: to_host(v) for k, v in tree.leaves(rows)})
                where = str(path)
            except OSError as e:
                where = f"nowhere ({refusal_text(e)})"
        return (
            f"update {self.version}: loss {loss}, gradient norm {norm}; the batch was saved to {where}. "
            "A NaN in it from the environment is the usual cause; else lower --learning-rate or --max-grad-norm"
        )

    # ------------------------------------------------------------------------------------------------ saving

    def writers_paused(self) -> AbstractContextManager[None]:
        """While in it, nobody changes the weights that this replica saves, where others do otherwise (server)."""
        return self.update.writers_paused() if self.saver else contextlib.nullcontext()

    def save(self, more: WritePart | None = None, at: int | None = None, number: int | None = None) -> None:
        """Write this replica's part of a checkpoint, and `more` into it; the main process completes it when all parts
        are there. at: the update whose checkpoint it is, where others write theirs under that number too. number: of a
        checkpoint of several agents, each at an update of its own.
        """
        self.marks.wait(number if number is not None else at if at is not None else self.update.newest())
        with self.writers_paused():
            version = self.update.newest()
            self.version, self.learnt = version if at is None else at, self.update.learnt
            self.saves, self.saved, self.saving = self.agreed, self.version, False
            number = self.version if number is None else number
            with self.ctx.counters.timed("wait"):
                self._attempt(number, number, more)

    def rescue(self) -> None:
        """Save the last update where the run has failed, if the weights are whole; whoever acts begins anew then."""
        version = self.update.newest()
        if self.extra_parts is None or not self.update.whole or version in (self.saved, self.update.begun):
            return
        with self.writers_paused():
            part = checkpoint.CheckpointPart(cast("Path", self.ctx.directory), version)
            self.version, self.learnt = version, self.update.learnt
            self._write(part)
            self.extra_parts(part)
            self.saved = version
            self.marks.tell(version)

    def _attempt(self, number: int, mark: int | None, more: WritePart | None = None) -> None:
        """Write the parts of checkpoint `number`, and tell by a mark whether they are there."""
        ctx = self.ctx
        if ctx.directory is None or not self.saver:
            return
        try:
            part = checkpoint.CheckpointPart(ctx.directory, number)
            if ctx.index == 0:
                self._write(part)
            for write in (self.extra_parts, more):
                if write is not None:
                    write(part)
            self.marks.tell(mark)
        except OSError as e:
            self.marks.tell(mark, failed=True)
            ctx.log("unsaved", f"checkpoint of update {number}: {refusal_text(e)}")

    def _write(self, part: checkpoint.CheckpointPart) -> None:
        if not self.vector.finite():
            raise NotFinite(
                f"update {self.version}: weights are not finite, and not saved; a smaller --learning-rate helps"
            )
        arrays = {"policy": self.policy.state_dict(), "optimizer": optimizers.optimizer_state(self.update.optimizer)}
        arrays |= {} if self.target_net is None else {"target": self.target_net.state_dict()}
        for name, state in arrays.items():
            part.arrays(f"{self.folder}/{name}", {k: np.asarray(to_host(v)) for k, v in state.items()})
        counts = {"version": self.version, "learnt": self.learnt, **self.update.state()}
        counts |= {"freeze_until": self.freeze_until} if self.freeze_until else {}
        hyper = self.spec.hyperparameters
        values = {"hyperparameters": hyper.all(), "configured": hyper.configured, "scheduled": [*hyper.scheduled]}
        part.json(f"{self.folder}/learner", {**counts, **values})

    def _load(self) -> None:
        found = checkpoint.open_checkpoint(self.ctx.resume)
        checkpoint.load_into(self.policy, found.arrays(f"{self.folder}/policy"))
        statistics = found.arrays(f"{self.folder}/optimizer")  # none before the first update
        if statistics:
            optimizers.load_state(self.update.optimizer, {k: torch.as_tensor(v) for k, v in statistics.items()})
        saved = found.json(f"{self.folder}/learner")
        self.version, self.learnt = int(saved["version"]), float(saved["learnt"])
        self.update.load_state(saved)
        values = {k: v for k, v in saved["hyperparameters"].items() if k not in saved.get("scheduled", ())}
        self.spec.hyperparameters.restore(values, saved.get("configured"))
