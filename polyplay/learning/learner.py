"""The learner, which makes and counts updates; its description, LearnerSpec; and passes over one batch, as in PPO."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from polyplay.buffers.rollout_queue import Collator, RolloutQueue, RolloutSlots
from polyplay.core import checkpoint, tree, user_modules
from polyplay.core.errors import NotFinite, UserError
from polyplay.core.tree import Batch
from polyplay.core.worker import Holder, Hyperparameters, WorkerContext
from polyplay.learning.checkpoints import LearnerCheckpoints, save_batch
from polyplay.learning.losses import ActorCriticLoss, Hyper, Loss, LossOutput, check_loss, check_output
from polyplay.learning.parts import LearnerPart, open_parts
from polyplay.learning.unreal import DRAWN, KL, UnrealWindows, WithAuxiliary, terms_of
from polyplay.nets.device import enter_device, page_lock, synchronize, to_device, to_floats, to_host
from polyplay.nets.factory import NetworkFactory, build_network
from polyplay.nets.layers import Tape
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.params import FlatParams
from polyplay.weights.update import Sums, Update

T = TypeVar("T")


# A queue's slots, joined along their lanes into one batch on a device.


def collator_for(queue: RolloutQueue | RolloutSlots, n: int, device: torch.device) -> Collator:
    """Return a Collator, which joins `n` rollout slots (shared memory of a rollout) into one batch on the device."""
    if device.type == "cpu":
        return Collator(queue.rows, queue.state, queue.lanes, n)
    return DeviceCollator(queue, n, device)


class DeviceCollator(Collator):
    """Joins rollout slots into a batch on a GPU. Observations are copied directly to the GPU, asynchronously if memory
    is page-locked. The CPU joins all other fields, which are small. The slots must not change until `done` returns.
    """

    def __init__(self, queue: RolloutQueue | RolloutSlots, n: int, device: torch.device):
        super().__init__({k: v for k, v in queue.rows.items() if k != "obs"}, queue.state, queue.lanes, n)
        self.device, self.source = device, tree.map(torch.as_tensor, queue.rows["obs"])
        if isinstance(queue, RolloutQueue):  # a replica's own RolloutSlots are on the device
            page_lock(queue.block, device)
        self.obs: Batch | None = None

    def __call__(self, slots: list[int]) -> tuple[Batch, Batch]:
        """Return the joined rows [T+1, n·lanes, …], with "obs" on the device, and the state [n·lanes, …]."""
        rows, state = super().__call__(slots)
        if self.n == 1:
            return {**rows, "obs": to_device(tree.map(lambda x: x[slots[0]], self.source), self.device)}, state
        return rows, state

    def put(self, i: int, slot: int) -> None:
        """See Collator.put."""
        super().put(i, slot)
        if self.obs is None:
            wide = self.n * self.lanes
            self.obs = tree.map(
                lambda x: torch.empty((x.shape[1], wide, *x.shape[3:]), dtype=x.dtype, device=self.device), self.source
            )
            self.joined = {**self.joined[0], "obs": self.obs}, self.joined[1]
        at = slice(i * self.lanes, (i + 1) * self.lanes)
        tree.map(lambda into, x: into[:, at].copy_(x[slot], non_blocking=True), self.obs, self.source)

    def done(self) -> None:
        synchronize(self.device)


# Several passes over one batch in minibatches, as in PPO: the order of rows, and when to stop.


COLUMNS = ("obs", "action", "mask", "first", "reward", "events", "terminated", "logp", "value", "latent_noise", "task")


@dataclass(frozen=True)
class Epochs:
    """Several passes over one batch, as in PPO.

    `epochs`: number of passes.
    `minibatches`: number of minibatches, of equal size, in each pass. Each minibatch gives one update.
    `target_kl`: limit of the approximate KL divergence from the policy that acted, averaged over replicas. The passes
        end after a minibatch above the limit. If 0, there is no limit.
    """

    epochs: int = 4
    minibatches: int = 4
    target_kl: float = 0.0

    @property
    def updates(self) -> int:
        """Number of updates from one batch, unless target_kl stops the passes early."""
        return self.epochs * self.minibatches


def shuffled_order(places: np.ndarray, passes: Epochs, seed: tuple[int, ...]) -> list[tuple[np.ndarray, slice]]:
    """Divide each epoch into minibatches, as equal as possible. Return a pair for each minibatch: the epoch's shuffled
    places, and the slice of them that forms the minibatch. `places`: indices of transitions, or of whole lanes.
    """
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(places) for _ in range(passes.epochs)]
    sizes = [len(part) for part in np.array_split(places, passes.minibatches)]
    ends = np.cumsum([0, *sizes]).tolist()
    return [(order, slice(*part)) for order in orders for part in pairwise(ends)]


class Minibatches:
    """Divides one rollout into minibatches of single transitions. With a recurrent network, a minibatch has whole lanes
    and their state.

    `rows`: the rollout's rows [T+1, B].
    `targets`: tensors [T, B] that the loss prepared. Minibatches of transitions leave out invalid ones.
    `whole`: whether minibatches are lanes with all T+1 rows, because the loss computes the targets itself.
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
        self.order, self.shuffled = np.empty(0), Batch()  # order and shuffled rows of the present epoch

    @property
    def places(self) -> np.ndarray:
        return np.arange(self.lanes) if self.whole else np.flatnonzero(self.valid)

    def take(self, order: np.ndarray, at: slice = slice(None)) -> tuple[Batch, Batch]:
        """Return the rows of the minibatch `order[at]`, and the recurrent state before these rows. The rows are n
        transitions [1, n], or n whole lanes [T, n]. If `whole` was given, lanes have all rows [T+1, n].
        """
        if self.whole:
            places = order[at]
            if len(places) == self.lanes:  # all lanes: order does not matter
                return self.rows, self.state
            return pick_rows(self.rows, self.state, torch.from_numpy(places).to(self.device), whole=True)
        if order is not self.order:
            index = torch.from_numpy(order).to(self.device)
            self.order, self.shuffled = order, tree.map(lambda x: x[index], self.rows)
        return tree.map(lambda x: x[at].unsqueeze(0), self.shuffled), {}

    def versions(self, order: np.ndarray, at: slice = slice(None)) -> np.ndarray:
        """Return the versions of the weights that acted in the valid rows of a minibatch."""
        if not self.whole:
            return self.version.reshape(-1)[order[at]]
        lanes = slice(None) if len(order[at]) == self.lanes else order[at]
        return self.version[:, lanes][self.valid[:, lanes]]


def pick_rows(rows: Batch, state: Batch, at: Tensor, whole: bool) -> tuple[Batch, Batch]:
    """If `whole`, return the lanes `at` of rows [T, B], and the state of these lanes. Otherwise, return the transitions
    `at` of rows [T·B], as rows [1, n].
    """
    if whole:
        return tree.map(lambda x: x[:, at], rows), tree.map(lambda x: x[at], state)
    return tree.map(lambda x: x[at].unsqueeze(0), rows), {}


def run_epochs(
    learner: Any, batch: Batch, state: Batch, version: np.ndarray, seed: tuple[int, ...]
) -> Generator[None, None, None]:
    """Make all updates from one rollout (see Epochs). The first update also counts the rollout's agent steps.
    `learner`: a Learner, or an object with the same methods.
    """
    policy, loss, passes = learner.policy, learner.spec.loss, learner.spec.passes
    targets = loss.prepare(batch, policy.reward_scale())
    if "target" in targets:
        policy.observe_targets(targets["target"], batch)
    parts = Minibatches(batch, state, targets, version, loss.whole)
    learnt, order = int(parts.valid.sum()), shuffled_order(parts.places, passes, seed)
    watch = passes.target_kl > 0.0
    for k, part in enumerate(order):
        scored, last = learner.score_part(parts, *part), k == len(order) - 1
        kl = yield from learner.apply_gradient(scored, batch, parts.versions(*part), 0 if k else learnt, last, watch)
        if watch and kl > passes.target_kl:
            if not last:
                policy.observe(batch)  # replicas agree on the statistics at their next update
            return


# A runner computes an update's loss, and leaves the gradient in the learner's vector. `Runner` does so in one thread.


class Runner:
    """Computes losses and gradients in one thread, with the network whose weights are in the learner's vector."""

    hyper: Hyper  # present hyperparameters
    begins = 0  # most batches that other threads may start (`begin`) while this one acts
    begun: Any = None  # batches that other threads have started; None: none
    acts = False  # whether this thread acts while other threads start every update
    # with several threads: `settle` waits for started work before inputs of the networks change; `refresh` takes over
    # the new weights after an update
    settle: Callable[[], None] | None = None
    refresh: Callable[[], None] | None = None
    norm: float | None = None  # last gradient's norm, if the runner applied it; the learner resets it
    rate = 0.0  # learning rate of the step that the runner applied

    def __init__(
        self, policy: Policy, target: Policy | None, loss: Loss, vector: FlatParams, seed: tuple[int, int] = (0, 0)
    ):
        self.policy, self.target, self.loss, self.vector = policy, target, loss, vector
        self.seed = seed  # the run's seed, and the learner's index
        self.checked, self.draws = False, type(loss).noise is not Loss.noise
        self.drawn: tuple[int, Batch] = (-1, {})  # random numbers drawn early, for the update of a version

    def __call__(self, batch: Batch, state: Batch, version: int, tape: Tape | None = None) -> LossOutput:
        """Return the loss of a batch, and leave the gradient in the learner's vector. Raises UserError if the loss
        function returns no LossOutput.

        `version`: version of the weights. It also seeds the loss's random numbers (Loss.noise).
        `tape`: activations that were recorded when these weights acted in these rows.
        """
        return self.score(self.with_noise(batch, version) if self.draws else batch, state, tape)

    def score(self, batch: Batch, state: Batch, tape: Tape | None = None) -> LossOutput:
        """Return the loss as `__call__` does, for a batch that already contains its random numbers."""
        policy: Any = self.policy
        if tape is not None:
            policy = SimpleNamespace(unroll=partial(policy.unroll, tape=tape), observe_targets=policy.observe_targets)
        scored = self.loss(policy, self.target, batch, state, self.hyper)
        if not self.checked:
            check_output(self.loss, scored)
            self.checked = True
        self.vector.grad.zero_()
        scored.loss.backward()
        return scored._replace(loss=scored.loss.detach())

    def part(self, parts: Minibatches, order: np.ndarray, at: slice, version: int) -> LossOutput:
        """Return the loss as `__call__` does, for one minibatch of a rollout. See Minibatches.take."""
        return self(*parts.take(order, at), version)

    def noise_of(self, batch: Batch, version: int) -> Batch:
        """Return the random numbers (arrays) for the update of weights `version`."""
        (at, drawn), self.drawn = self.drawn, (-1, {})
        return drawn if at == version else self.loss.noise(self.policy, batch, (*self.seed, version))

    def draw_noise(self, batch: Batch, version: int) -> None:
        """Draw the random numbers for the update of weights `version` in advance. Do nothing for a user's loss, because
        its random numbers may depend on the weights.
        """
        if self.draws and type(self.loss).__module__.startswith("polyplay."):
            self.drawn = version, self.loss.noise(self.policy, batch, (*self.seed, version))

    def with_noise(self, batch: Batch, version: int) -> Batch:
        """Return the batch together with the random numbers that the loss uses in this update."""
        drawn = self.noise_of(batch, version)
        return {**batch, **to_device(drawn, self.vector.flat.device)} if drawn else batch

    def compile(self) -> bool:
        """Prepare this runner to compile updates. Return False if it can't compile them."""
        return False

    def close(self) -> None:
        """End the threads and processes that the runner started."""

    def begin(self, items: list[Batch], version: int) -> None:
        """Start to compute the next updates in other threads. Until these updates are done, the caller must not change
        weights or hyperparameters.

        `items`: batches of the next updates, as NumPy arrays.
        `version`: version of the weights before the first of these updates.
        """


# A learner's spec: network, loss, update, hyperparameters, length.


@contextlib.contextmanager
def own_loss(title: str) -> Iterator[None]:
    """Make error messages about a user's loss begin with the option --loss."""
    try:
        yield
    except UserError as e:
        raise UserError(str(e).replace("LearnerSpec.loss:", f"--loss: {title}:", 1)) from None


@dataclass(frozen=True)
class LearnerSpec(Holder):
    """Describes a learner: network, loss, update, hyperparameters, and length of training. If the network has auxiliary
    heads or a temporal core, their loss terms are added to an actor-critic's loss. If heads learn from past rows, the
    learner gets a memory of recent rows (UnrealWindows).
    """

    policy: PolicyFactory
    loss: Loss
    update: Update
    hyperparameters: Hyperparameters
    total: float  # agent steps at which learning ends
    parts: tuple[LearnerPart, ...] = ()  # more parts: a target network, drops of the learning rate, …
    passes: Epochs | None = None  # several passes over each batch of rollouts

    def __post_init__(self) -> None:
        for name, base, such in (("policy", PolicyFactory, "NetworkFactory"), ("update", Update, "Local")):
            if not isinstance(vars(self)[name], base):
                text = f"{name} is of class {type(vars(self)[name]).__name__}"
                raise UserError(f"LearnerSpec: {text}; use a {base.__module__}.{base.__name__}, such as {such}")
        check_loss(self.loss)
        for part in self.parts:
            if not isinstance(part, LearnerPart):
                allowed = "instances of LearnerPart subclasses, such as TargetNetwork(every=100)"
                raise UserError(f"LearnerSpec.parts: {part!r} given, allowed: {allowed}")
        given, terms = self.hyperparameters, terms_of(self.policy)
        if self.loss.anneals and "remaining" not in given.configured:
            hyper = Hyperparameters(given.anneal, **given.all(), remaining=1.0)
            hyper.schedules = given.schedules
            object.__setattr__(self, "hyperparameters", hyper)
        tasks = [name for name in terms if name not in KL]
        if tasks and (self.passes is not None or self.loss.recalls):
            kind = "passes" if self.passes is not None else "loss with recalls=True"
            raise UserError(f"LearnerSpec: {kind} given with auxiliary tasks {', '.join(tasks)}: remove one of them")
        if terms and isinstance(self.loss, ActorCriticLoss) and type(self.loss).__call__ is ActorCriticLoss.__call__:
            object.__setattr__(self, "loss", WithAuxiliary(self.loss, terms))
        draws = any(name in self.loss.terms for name in DRAWN)
        if draws and not any(isinstance(part, UnrealWindows) for part in self.parts):
            object.__setattr__(self, "parts", (*self.parts, UnrealWindows()))
        if self.update.replicas > 1 and any(part.admit for part in self.parts):
            text = "a part refuses losses, but replicas average gradients"
            raise UserError(f"LearnerSpec.parts: {text}: remove it, or use another update")
        self.update.fit(self.policy)

    def with_loss(self, make: Callable[[Loss], Loss] | str) -> LearnerSpec:
        """Return a copy of this LearnerSpec with the loss that `make` returns for the present loss. `make` is a
        function or its name, module:callable. Raises UserError if `make` fails or a learner cannot call the new loss.
        """
        title = user_modules.title(make)
        if isinstance(self.policy, NetworkFactory) and self.policy.options.get("value") == "popart":
            raise UserError(f"--loss: {title} given, but only the system's own loss knows the units of --value popart")
        allowed = "module:callable, a function of the system's loss that returns a polyplay.extend.Loss"
        call = user_modules.find(make, "--loss", allowed) if isinstance(make, str) else make
        own = self.loss.loss if isinstance(self.loss, WithAuxiliary) else self.loss
        try:
            made = call(own)
        except UserError:
            raise
        except Exception as e:
            why = (str(e).splitlines() or [""])[0]
            why = f"{title}({type(own).__name__}) raised {type(e).__name__}: {why}"
            raise UserError(f"--loss: {why}; allowed: {allowed}") from e
        with own_loss(title):
            return replace(self, loss=made)

    @property
    def agent(self) -> int:
        """Number of the agent that learns, if the run has several agents; otherwise 0."""
        return max((part.agent for part in self.parts), default=0)

    def holds(self) -> Mapping[str, Any]:
        """See Holder.holds."""
        return {"policy": self.policy, "update": self.update}

    def describe(self) -> list[str]:
        """Return the lines about the learner in the diagram of the system."""
        several, parts = self.passes, filter(None, (part.describe() for part in self.parts))
        made = [] if several is None else [f"passes  {several.epochs} of {several.minibatches} minibatches"]
        return [*made, f"loss    {self.loss.title}", f"update  {self.update.title()}", *parts]


# fewest rows and fewest weights of an update that always reports metrics. With fewer of either, reading metrics takes
# as long as the loss, so only a tenth of updates report; the same holds with several updates per rollout
FEW, SMALL = 64, 100_000
REPORTED = 0.25  # seconds after which lags are counted again
GOLDEN = 0.6180339887498949  # golden ratio: spreads that tenth evenly over a learner's updates


class Learner:
    """Trains a network: takes batches, makes updates, and counts agent steps, updates and policy lags."""

    def __init__(self, ctx: WorkerContext, spec: LearnerSpec):
        self.ctx, self.spec, self.checkpoints = ctx, spec, LearnerCheckpoints(self, ctx, spec)
        self.device = enter_device(ctx.device)
        self.policy = build_network(spec.policy, ctx.seed, ctx.precision, self.device)
        self.update = spec.update.open(ctx, self.policy)
        self.version, self.learnt, self.done = 0, 0.0, False
        self.lags, self.told = list[np.ndarray](), 0.0  # lags not yet counted, and the time of the last count
        self.parts = open_parts(self)
        target = next((part.net for part in self.parts if part.net is not None), None)
        self.run = Runner(self.policy, target, spec.loss, self.update.vector, (ctx.seed, ctx.index))
        for tuned in self.policy.tuned:
            tuned.apply_hyperparameters(spec.hyperparameters.all())  # initial weights are saved with these values
        saved = self.checkpoints.load_or_begin()
        self.update.begin(self.version, self.learnt, saved)
        while not self.update.counts.ready:
            ctx.turn()
            time.sleep(0.01)
        self.version, self.learnt = self.update.counts.version, self.update.counts.learnt
        goes_on = ctx.resume is not None and self.parts and not ctx.incarnation % 1000
        found = checkpoint.open_checkpoint(ctx.resume) if goes_on else None
        for part in self.parts:
            part.begin(found)
        self.adjust()
        ctx.hooks.rescue = self.checkpoints.rescue

    def adjust(self) -> None:
        """Prepare the learner for an update and all its passes. First, each part of the learner updates its settings.
        Then the network and the runner get the present hyperparameters, with the annealed learning rate.
        """
        self._measure()
        if self.ctx.index == self.spec.agent == 0:
            self.ctx.control.run.set("remaining", self.remaining)
        for part in self.parts:
            if part.adjust:
                part.adjust()
        hyper = self.spec.hyperparameters.all()
        if self.spec.hyperparameters.falls:
            hyper["learning_rate"] *= self.remaining
        self.run.hyper = hyper
        for tuned in self.policy.tuned:
            tuned.apply_hyperparameters(hyper)

    def _measure(self) -> None:
        """Measure the progress, in agent steps, that decides when this learner ends."""
        self.progress = self.learnt  # agent steps learned from
        for part in self.parts:
            if part.progress:
                self.progress = part.progress(self.progress)

    @property
    def remaining(self) -> float:
        """Fraction of the run that is left, from 1 to 0."""
        return max(0.0, 1.0 - self.progress / self.spec.total)

    def step(self, rows: Batch, state: Batch, tape: Tape | None = None) -> Iterator[None]:
        """Make one update from a rollout, or all updates of `spec.passes`.

        `rows`: the rollout's rows [T+1, B], as NumPy arrays; observations may be tensors on the device.
        `state`: the recurrent state before the rows.
        `tape`: activations to reuse, recorded while the present weights acted.
        """
        batch, state = to_device(rows, self.device), to_device(state, self.device)
        self.adjust()
        if self.spec.passes is not None:
            yield from self.timed(run_epochs(self, batch, state, rows["version"], (*self.run.seed, self.version)))
        else:
            yield from self.timed(self._step(rows, batch, state, tape))

    def _step(self, rows: Batch, batch: Batch, state: Batch, tape: Tape | None) -> Generator[None, None, float]:
        for part in self.parts:
            if part.inputs:
                batch |= part.inputs(rows, batch, state)
        scored = self.run(batch, state, self.version, tape)
        valid = ~rows["first"][1:]
        versions, learnt = rows["version"][:-1][valid], float(np.count_nonzero(valid))
        return (yield from self.apply_gradient(scored, batch, versions, learnt, observe=True))

    def timed(self, update: Generator[None, None, T]) -> Generator[None, None, T]:
        """Run an update, and count its time as learning. Waits for other workers do not count."""
        before, waited = time.perf_counter(), self.update.waited
        result = yield from update
        after, waited = time.perf_counter(), self.update.waited - waited
        if after > self.told + REPORTED:
            self.told = after
            self.count_lags()
        self.ctx.counters.add("wait", waited)
        self.ctx.counters.add("learn", after - before - waited)
        return result

    def count_lags(self) -> None:
        """Report the lags (ages of the weights that acted) that were measured since the last call."""
        if self.lags:
            self.ctx.counters.lag(np.concatenate(self.lags))
            self.lags.clear()

    def close(self) -> None:
        """Report the last lags, and close the runner."""
        self.count_lags()
        self.run.close()

    def step_on_sample(
        self, item: Batch, fresh: float = 0.0, observe: bool = False
    ) -> Generator[None, None, Tensor | None]:
        """Make one update from a replay's sample. Return new priorities of the sample's items, or None if the loss has
        none.

        `fresh`: agent steps taken since the last update. Each step counts once, however often the replay draws it.
        `observe`: whether to update the running statistics with the sample first. Use False if acting updates them.
        """
        self.update.refresh()  # the gradient is computed with the newest weights, even if older ones acted
        if observe:
            self.observe({"obs": item["obs"]})
        if self.run.begun:  # `begin` took this sample
            return (yield from self.timed(self._step_on(item, item["version"].ravel(), fresh)))
        self.adjust()
        batch = to_device(item, self.device)
        return (yield from self.timed(self._step_on(batch, item["version"].ravel(), fresh)))

    def _step_on(self, batch: Batch, versions: np.ndarray, fresh: float) -> Generator[None, None, Tensor | None]:
        scored = self.run(batch, batch.get("state", {}), self.version)
        yield from self.apply_gradient(scored, batch, versions, fresh)
        if self.run.refresh:
            self.run.refresh()
        return scored.priority

    @property
    def begins(self) -> int:
        """Number of next updates that other threads may start in advance. It is 1 if a part of the learner may change
        the inputs of the second update.
        """
        changing = (part for part in self.parts if part.adjust or part.rate or part.updated)
        return min([self.run.begins, *(part.unchanged() if part.unchanged else 1 for part in changing)])

    def begin(self, items: list[Batch]) -> None:
        """Let other threads start to compute the next updates from the samples `items`, while this thread acts."""
        self.adjust()
        self.run.begin(items, self.version)

    def rate(self) -> float:
        """Return the learning rate of the next update."""
        rate: float = self.run.hyper["learning_rate"]
        for part in self.parts:
            if part.rate:
                rate = part.rate(rate)
        return rate

    def score_part(self, parts: Minibatches, order: np.ndarray, at: slice) -> LossOutput:
        """Return the loss of a minibatch under the present weights, and leave the gradient in the learner's vector."""
        return self.run.part(parts, order, at, self.version)

    def observe(self, rows: Batch) -> None:
        """Update the running statistics of the network and of the target network with new rows [T+1, B]."""
        if self.policy.observes:
            if self.run.settle:
                self.run.settle()
            self.policy.observe(to_device(rows, self.device))
            for part in self.parts:
                if part.observed:
                    part.observed()

    def apply_gradient(
        self,
        scored: LossOutput,
        rows: Batch,
        versions: np.ndarray,
        learnt: float,
        observe: bool = False,
        watch: bool = False,
    ) -> Generator[None, None, float]:
        """Make and count one update from the gradient in the learner's vector. If `watch`, return the approximate KL
        divergence from the policy that acted, averaged over replicas. Otherwise, return 0.

        `rows`: the batch, which is saved to a file if the loss or the gradient is not finite.
        `versions`: version of the weights that acted, for each row.
        `learnt`: number of agent steps to count.
        `observe`: whether to update running statistics with the rows.
        """
        if not all(part.admit(scored) for part in self.parts if part.admit):
            self.update.counts.refuse()
            yield from self.count_only(learnt)
            return 0.0
        if observe:
            self.policy.observe(rows)
        kl = float(scored.metrics["approx_kl"]) if watch else 0.0
        norm, self.run.norm = self.run.norm, None
        rate = self.rate() if norm is None else self.run.rate
        # between minibatches, a learner that waits for no other learner does not read the run's orders
        total = None if norm is not None and self.spec.passes and not (learnt or observe) else self.sums(learnt, kl)
        if norm is None:
            norm, total = yield from self.update.apply(rate, cast("Sums", total))
        if self.policy.settles:
            self.policy.settle()
        loss = float(scored.loss)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NotFinite(save_batch(self, rows, loss, norm, scored.metrics))
        self._count(versions, scored.metrics, loss, norm, rate, total)
        return kl if total is None else float(total[3] / total[4])

    def count_only(self, steps: float) -> Generator[None, None, float]:
        """Count agent steps of all replicas without an update. Return the mean number of steps of a replica."""
        total = yield from self.update.agree(self.sums(steps))
        self.update.counts.add(total[0], updates=0)
        self.learnt = self.update.counts.learnt
        self.read_control(total)
        return float(total[0] / total[4])

    def sums(self, learnt: float = 0.0, kl: float = 0.0, leaving: float = 0.0) -> Sums:
        """Return numbers to sum over all replicas. `leaving`: 1 if this replica ends, so that the others stop too."""
        first, control = self.ctx.index == 0, self.ctx.control
        # of synchronous replicas, only the first reports that the run finishes
        finishing = (first or self.spec.update.asynchronous) * control.finishing
        return np.array([learnt, first * control.saves, finishing, kl, 1.0, leaving], np.float64)

    def read_control(self, sums: Sums) -> None:
        """Decide from the sums of all replicas whether to save a checkpoint, or to end the run."""
        self.ctx.counters.set("learnt", self.learnt)
        self._measure()
        self.checkpoints.agreed = int(sums[1])
        self.done = bool(sums[2]) or self.progress >= min(self.spec.total, self.ctx.control.until)

    def _count(
        self,
        versions: np.ndarray,
        metrics: Mapping[str, Tensor],
        loss: float,
        norm: float,
        rate: float,
        sums: Sums | None,
    ) -> None:
        counts, counters, met = self.update.counts, self.ctx.counters, self.update.applied_to
        lags = (counts.version if met is None else met) - versions
        counts.add(0.0 if sums is None else sums[0])
        self.version, self.learnt = counts.version, counts.learnt
        self.lags.append(lags)
        counters.set("updates", self.version - counts.begun)
        large = self.update.vector.weights >= SMALL and self.spec.passes is None and lags.size >= FEW
        if large or (self.version - 1) * GOLDEN % 1.0 < 0.1:
            scheduled = {s.name: self.run.hyper[s.name] for s in self.spec.hyperparameters.schedules}
            counters.losses({**to_floats(metrics), **scheduled, "grad_norm": norm, "learning_rate": rate})
        for part in self.parts:
            if part.updated:
                part.updated(loss, norm, lags)
        if sums is not None:
            self.read_control(sums)
