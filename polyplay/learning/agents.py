"""Learning workers that train several agents in turn, or that train on windows (short pieces) of rollouts.

If a worker trains several agents, each agent learns from its own rollouts and has its own weights.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import torch

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.league import League
from polyplay.buffers.rollout_queue import PolicyLike, RolloutQueue
from polyplay.core import checkpoint, tree
from polyplay.core.checkpoint import CheckpointPart, OpenCheckpoint
from polyplay.core.errors import UserError
from polyplay.core.files import Row, refusal_text
from polyplay.core.tree import Batch, Field, Spec
from polyplay.core.worker import Hyperparameters, WorkerContext, seed_of
from polyplay.learning.learner import COLUMNS, Learner, LearnerSpec, collator_for
from polyplay.learning.loop import REST, Feed, Nothing, Rollout, Rollouts, Source, learn
from polyplay.learning.losses import PPO, Loss
from polyplay.learning.parts import LearnerPart
from polyplay.learning.unreal import UnrealReplay, UnrealWindows, specs_of
from polyplay.nets.device import to_device, to_host
from polyplay.weights.params import AgentParams, AgentSnapshot

# Past agents: earlier weights of an agent, written to a file. An actor loads them when a past agent joins its matches.


class PastAgents:
    """Saves an agent's weights as a past agent every `every` updates. Past agents are opponents in the league."""

    def __init__(self, ctx: WorkerContext, learner: Learner, league: League, every: int):
        self.ctx, self.learner, self.league, self.every = ctx, learner, league, every
        self.agent = learner.spec.agent
        self.due = learner.version + every
        self.written: int | None = None  # version that is written but not posted to the league yet
        self.again = False  # whether the run resumed exactly: existing files then hold the same weights

    def save(self) -> Row:
        """Return the update at which the next past agent is due, and the version of a past agent not yet posted."""
        return {"due": self.due, "written": self.written}

    def load(self, saved: Row) -> None:
        """Restore the state that `save` returned."""
        self.due, self.written, self.again = saved["due"], saved["written"], True

    def look(self) -> None:
        """After an update, write a past agent if one is due, and report it to the league."""
        if self.written is None and self.learner.version >= self.due:
            self.due = self.learner.version + self.every
            self._write(self.learner.version)
        if self.written is not None and self.league.post(self.agent, self.written) is not None:
            self.written = None

    def _write(self, version: int) -> None:
        if self.ctx.directory is None:
            return
        path = checkpoint.self_path(self.ctx.directory, self.agent, version)
        if path.exists() and not self.again:  # of an older session, perhaps in play: write the next version
            self.due = version + 1
            return
        try:
            path.parent.mkdir(exist_ok=True)
            arrays = {k: np.asarray(to_host(v)) for k, v in self.learner.policy.state_dict().items()}
            checkpoint.write_self(path, arrays)
            self.written = version
        except OSError as e:
            self.ctx.log("warning", f"past agent {path.name} was not written: {refusal_text(e)}")


def past_agents(feed: Feed, league: League | None, every: int) -> PastAgents | None:
    """Return the PastAgents of a feed's learner. Return None if `league` is None or `every` is 0."""
    return None if league is None or not every else PastAgents(feed.ctx, feed.learner, league, every)


# Copies between agents: the donor's learner writes weights and optimizer state, and the receiver's learner loads them.


class AgentCopies:
    """Copies weights from one agent (the donor) to another (the receiver) when the league orders it. Copies happen
    between two updates. The donor and the receiver do not wait for each other.
    """

    def __init__(self, learner: Learner, orders: League, snapshot: AgentSnapshot, publish: Callable[[], None]):
        self.learner, self.orders, self.snapshot, self.publish = learner, orders, snapshot, publish
        self.agent = learner.spec.agent
        self.since = 0  # version of this agent's last copy; rows of earlier versions are outdated
        self._tell()

    def _tell(self) -> None:
        hyper = self.learner.spec.hyperparameters.all()
        self.orders.hyper[self.agent] = [hyper[name] for name in self.orders.varied]

    def look(self) -> None:
        """Carry out the league's present order to copy weights, if the order names this agent as donor or receiver."""
        order, learner = self.orders.order(), self.learner
        if order is None:
            return
        if order.donor == self.agent and self.snapshot.number != order.number:
            self.snapshot.write(order.number, learner.update.vector, learner.update.optimizer, learner.version)
        if order.agent == self.agent and self.snapshot.number == order.number:
            self._take(order.number)

    def _take(self, number: int) -> None:
        learner = self.learner
        donor_version = self.snapshot.read(learner.update.vector, learner.update.optimizer)
        for name, value in zip(self.orders.varied, self.orders.values.tolist(), strict=True):
            learner.spec.hyperparameters.set(name, value)
        learner.adjust()
        learner.update.counts.add(0.0)
        self.since = learner.version = learner.update.counts.version
        learner.ctx.counters.set("updates", learner.version - learner.update.counts.begun)
        self._tell()
        self.publish()
        self.orders.copied(number, learner.version, donor_version)

    def save(self) -> Batch:
        """Return the version of the last copy, and the snapshot that a donor has written for this agent, if any."""
        order, since = self.orders.order(), {"since": np.array(self.since)}
        if order is None or order.agent != self.agent or self.snapshot.number != order.number:
            return since
        return {**since, "snapshot": self.snapshot.save()}

    def load(self, saved: Batch) -> None:
        """Restore the state that `save` returned."""
        self.since = int(saved["since"])
        if "snapshot" in saved:
            self.snapshot.load(saved["snapshot"])

    def outdated(self, version: np.ndarray) -> bool:
        """Tell whether any lane of a rollout began with weights older than the last copy. `version` [T+1, B]: versions
        of the weights that acted.
        """
        return bool((version[0] < self.since).any())


APART = 7_919  # difference between two agents' seeds, so that initial weights differ


class JointProgress(LearnerPart):
    """Part of a learner that adds an agent's steps to the joint count of all agents. The run ends when the joint count
    reaches the run's total.
    """

    def __init__(self, params: AgentParams, agent: int):
        self.params, self.agent = params, agent

    def begin(self, found: OpenCheckpoint | None) -> None:
        self.progress(self.learner.learnt)

    def progress(self, steps: float) -> float:
        self.params.learnt[self.agent] = steps
        together: float = self.params.together
        return together


class AgentRollouts(Rollouts):
    """Source of rollouts of several agents. Each agent has a separate part of the queue.

    `league`: holds the past agents, and the orders to copy weights.
    `snapshot_every`: number of updates of an agent from one of its past agents to the next.
    `initial`: hyperparameters of each agent; if empty, those of the spec.
    """

    replayable = False

    def __init__(
        self,
        queue: RolloutQueue,
        n: int,
        league: League | None = None,
        snapshot_every: int = 0,
        initial: Sequence[Mapping[str, float]] = (),
    ):
        super().__init__(queue, n)
        self.league, self.snapshot_every, self.agents, self.initial = league, snapshot_every, queue.consumers, initial

    def open(self, ctx: WorkerContext, learner: Learner, params: AgentParams, replayed: bool = False) -> Feed:
        if not any(isinstance(part, JointProgress) for part in learner.parts):
            raise UserError("AgentRollouts: not for learn; pass them to learn_agents, which learns for every agent")
        return AgentFeed(self, ctx, learner, params)


def learn_agents(ctx: WorkerContext, *, source: Source, spec: LearnerSpec, publish: AgentParams) -> Iterator[None]:
    """Train several agents in turn. Worker i of n trains the agents i, i + n, …, each with its rollouts and weights."""
    edge, agents = cast("RolloutQueue", source.edge), range(ctx.index, publish.agents, ctx.n)
    row = ctx.all_counters.workers - publish.agents  # the last rows of the counters belong to the agents
    own = {agent: replace(ctx, index=0, row=row + agent, seed=ctx.seed + APART * agent) for agent in agents}
    specs = {agent: agent_spec(spec, agent, source, publish) for agent in agents}
    turns = {agent: learn(own[agent], source=source, spec=specs[agent], publish=publish) for agent in agents}

    def write_part(number: int) -> None:
        for each in own.values():
            cast("Callable[[int], None]", each.hooks.write_part)(number)

    while turns:
        turns = {agent: turn for agent, turn in turns.items() if next(turn, turn) is not turn}
        if own[ctx.index].hooks.write_part is not None:
            ctx.hooks.write_part, ctx.hooks.number = write_part, own[ctx.index].hooks.number
        if len(agents) > 1 and not any(edge.waiting(agent).any() for agent in turns):
            time.sleep(min(ctx.patience, REST))
        yield


def agent_spec(spec: LearnerSpec, agent: int, source: Source, params: AgentParams) -> LearnerSpec:
    """Return the LearnerSpec of one agent, with the hyperparameters of this agent."""
    hyper, own = spec.hyperparameters, source.initial[agent] if source.initial else {}
    made = Hyperparameters(hyper.anneal, **{**hyper.configured, **own})
    made.schedules = hyper.schedules
    return replace(spec, parts=(*spec.parts, JointProgress(params, agent)), hyperparameters=made)


class AgentFeed(Feed):
    """Connection of one agent's learner to the queue of rollouts. Only this learner reads the rollouts of the agent."""

    def __init__(self, source: AgentRollouts, ctx: WorkerContext, learner: Learner, params: AgentParams):
        super().__init__(ctx, learner)
        agent = learner.spec.agent
        self.wait = agent < ctx.n and agent + ctx.n >= params.agents  # wait for rollouts: the worker has no other agent
        self.learner.checkpoints.more = None  # a failed run saves nothing: one agent alone makes no checkpoint
        self.unreal = next((part for part in self.learner.parts if isinstance(part, UnrealWindows)), None)
        self.source, self.queue, self.agent = source, source.queue, agent
        self.params, self.among = params.each[agent], params
        self.first_save = checkpoint.update_of(ctx.resume) if ctx.resume is not None else 0  # resumed checkpoint, or 0
        self.number = self.first_save  # number of the last saved checkpoint
        self.rounds = 0
        self.past = past_agents(self, source.league, source.snapshot_every)
        self.copies: AgentCopies | None = None
        self.join = collator_for(self.queue, source.n, self.learner.device)
        self.publish()
        if source.league is not None and params.snapshot is not None:
            self.copies = AgentCopies(self.learner, source.league, params.snapshot, self.publish)
        if source.league is not None and ctx.directory is not None:
            ctx.hooks.write_part, ctx.hooks.number = self.write_part, lambda: self.number + 1
        if (found := actor_checkpoint.between_rounds(ctx)) is not None:
            self.take_up(found)

    @property
    def _name(self) -> str:
        return f"league/agent-{self.agent}"

    def write_part(self, number: int) -> None:
        """Write this agent's part of checkpoint `number`, in a serial run (all workers in one thread, in turn)."""
        self.number = number
        self.learner.checkpoints.save(self._write, number=number)

    def _write(self, part: CheckpointPart) -> None:
        recent = self.unreal.recent if self.unreal else None
        arrays = {"batch": self.join.save(), "recent": recent.save() if recent is not None else {}}
        arrays |= {"copies": self.copies.save()} if self.copies is not None else {}
        part.arrays(self._name, {k: to_host(x) for k, x in tree.leaves(arrays)})
        counts: Row = {"turn": int(self.queue.turns[self.agent]), "rounds": self.rounds}
        counts |= {"past": self.past.save()} if self.past is not None else {}
        part.json(self._name, counts)

    def take_up(self, found: OpenCheckpoint) -> None:
        """Restore the state that `write_part` wrote."""
        arrays, counts = tree.nest(found.arrays(self._name)), found.json(self._name)
        self.join.load(arrays.get("batch", {}))
        if self.unreal and "recent" in arrays:
            self.unreal.recent = UnrealReplay.of(arrays["recent"])
        self.queue.turns[self.agent], self.rounds = counts["turn"], counts["rounds"]
        if self.past is not None and "past" in counts:
            self.past.load(counts["past"])
        if self.copies is not None and "copies" in arrays:
            self.copies.load(arrays["copies"])

    def publish(self) -> None:
        taken = self.queue.ends[self.agent :: self.queue.consumers, 0]
        self.params.publish(self.learner.update.vector, self.learner.version, self.rounds, taken)

    def items(self) -> Iterator[Rollout | None]:
        for batch in self.source.consumer(self.agent, join=self.join, wait=self.wait):
            if batch is None and self.copies is not None:
                self.copies.look()
            yield batch

    def learn(self, item: Rollout) -> Iterator[None]:
        rows, _ = item
        if self.copies is not None and self.copies.outdated(rows["version"]):
            yield from self.learner.count_only(float(np.count_nonzero(~rows["first"][1:])))
        else:
            yield from super().learn(item)

    def late(self) -> bool:
        """Return False: this feed never drops a rollout. Check whether the other agents have ended the run."""
        self.learner.read_control(self.learner.sums())
        return False

    def finish(self, item: Rollout) -> None:
        self.rounds += 1
        self.publish()
        if self.copies is not None:
            self.copies.look()
        if self.past is not None:
            self.past.look()
        self.ctx.counters.depth(self.queue.depth)

    def save(self, dropped: bool = False) -> Iterator[None]:
        """Save this agent's part of the checkpoint that is due. A run that resumes from this checkpoint starts new
        matches. In a serial run, do nothing, because `write_part` saves the agent.
        """
        if self.ctx.serial:
            return
        learner = self.learner
        while (n := self.among.save_number(learner.checkpoints.agreed, self.agent, learner.done)) is None:
            time.sleep(min(self.ctx.patience, REST))
            yield
        if self.first_save + n > self.number:
            self.number = self.first_save + n
            learner.checkpoints.save(number=self.number)


# The worker that trains on windows of rollouts: OpenAI Five's "optimizer" (Berner et al. 2019, figure 2).


TARGETS: Spec = {
    "advantage": Field((), "float32"),
    "target": Field((), "float32"),
    "valid": Field((), "bool"),
    "version": Field((), "int64"),
}
SMALL = ("reward", "events", "first", "terminated", "truncated", "value")  # columns that targets are computed from
LEFT = ("events", "terminated")  # columns that windows lack: they serve only to compute rewards and targets
WINDOW_METRICS = ("reuse", "staleness")


@dataclass(frozen=True)
class Windows(Source):
    """Source of windows (consecutive rows) of rollouts, each with the recurrent state before its first row."""

    queue: RolloutQueue
    capacity: int  # windows in a learner's buffer
    batch: int  # windows in one update
    sample_reuse: float = 1.0  # windows drawn per window received; 0: no limit once the buffer is full
    publish_every: int = 1  # updates between published versions of the weights
    staleness: int = 0  # number of versions by which the published weights lag
    league: League | None = None  # league to which past agents are posted
    snapshot_every: int = 0  # updates between past agents
    n = 1  # slots taken from the queue at once

    @property
    def edge(self) -> RolloutQueue:  # type: ignore[override]
        return self.queue

    @property
    def shape(self) -> tuple[int, int]:
        return self.queue.window, self.batch

    def open(self, ctx: WorkerContext, learner: Learner, params: AgentParams, replayed: bool = False) -> Feed:
        return WindowFeed(self, ctx, learner, params)

    def nbytes(self, policy: PolicyLike) -> float:
        rows = self.queue.nbytes / self.queue.slots / (self.queue.T * self.queue.lanes)
        return rows * self.queue.window * (self.capacity + self.batch)

    def describe(self) -> list[str]:
        reuse = f"reuse {self.sample_reuse:g}" if self.sample_reuse else "reuse free"
        stale = f", {self.staleness} versions behind" if self.staleness else ""
        return [
            f"buffer  {self.capacity:,} windows × {self.queue.window} steps, {reuse}",
            f"batch   {self.batch:,} windows, drawn at random",
            f"version every {self.publish_every} updates{stale}",
        ]


class PublishedWeights(NamedTuple):
    """Copy of the weights as one vector, with the version of the weights."""

    flat: torch.Tensor
    version: int


# A learner's buffer: the newest windows of rollouts, drawn at random.
#
# As in Berner et al. 2019 (Rapid), new windows overwrite the oldest. *Reuse* is windows drawn ÷ windows arrived: at 1,
# a window is drawn once on average. OpenAI Five was trained at about 1; at 2 or 3 training took twice as long.


class WindowBuffer:
    """Buffer of the newest windows, [window, capacity, …], with the recurrent state before each window. Learning begins
    when the buffer is full.
    """

    def __init__(self, rows: Spec, state: Spec, window: int, capacity: int, reuse: float, seed: int):
        self.window, self.capacity, self.reuse = window, capacity, reuse
        self.rows: Batch = tree.zeros(rows, (window, capacity))
        self.state: Batch = tree.zeros(state, (capacity,))
        self.arrived, self.drawn = 0, 0  # numbers of windows that arrived, and that were drawn
        self.random = np.random.default_rng(seed)

    def add(self, rows: Batch, state: Batch) -> None:
        """Add the windows of a rollout [T, lanes, …], with the recurrent states before them [windows, lanes, …]."""
        lanes = next(x for _, x in tree.leaves(rows)).shape[1]
        for first in range(0, len(next(x for _, x in tree.leaves(rows))), self.window):
            at = (self.arrived + np.arange(lanes)) % self.capacity
            part = tree.at(rows, slice(first, first + self.window))
            tree.write(self.rows, (slice(None), at), part)
            tree.write(self.state, at, tree.at(state, first // self.window))
            self.arrived += lanes

    def due(self, batch: int) -> bool:
        """Return whether `batch` windows may be drawn now. The buffer must be full, and the reuse (windows drawn ÷
        windows arrived) must stay within the limit.
        """
        if self.arrived < self.capacity:
            return False
        fresh = self.arrived - self.capacity + batch  # the first batch is due as soon as the buffer is full
        return not self.reuse or self.drawn + batch <= self.reuse * fresh

    def draw(self, batch: int) -> tuple[Batch, Batch]:
        """Draw `batch` different windows at random. Return copies [window, batch, …] and their initial states."""
        at = self.random.choice(self.capacity, batch, replace=False)
        self.drawn += batch
        rows = tree.map(lambda x: np.take(x, at, axis=1), self.rows)
        return rows, tree.map(lambda x: x[at], self.state)

    def save(self) -> tuple[Batch, Row]:
        """Return the arrays and the counts for a checkpoint."""
        counts = {"arrived": self.arrived, "drawn": self.drawn, "random": self.random.bit_generator.state}
        return {"rows": self.rows, "state": self.state}, counts

    def load(self, arrays: Batch, counts: Row) -> None:
        """Restore the state that `save` returned. Raises ValueError if the saved buffer has other shapes."""
        mine = {path: x.shape for path, x in tree.leaves({"rows": self.rows, "state": self.state})}
        saved = {path: x.shape for path, x in tree.leaves(arrays)}
        if mine != saved:
            raise ValueError(f"windows {saved}, not {mine}")
        tree.map(np.copyto, {"rows": self.rows, "state": self.state}, arrays)
        self.arrived, self.drawn = counts["arrived"], counts["drawn"]
        self.random.bit_generator.state = counts["random"]


class WindowFeed(Feed):
    """A learner's connection to the queue. Adds rollouts with their targets to a buffer, and draws batches from it."""

    def __init__(self, source: Windows, ctx: WorkerContext, learner: Learner, params: AgentParams):
        super().__init__(ctx, learner)
        self.source, self.queue, self.params = source, source.queue, params.each[0]
        self.first = ctx.index == 0
        self.alone = self.queue.consumers == 1
        self.past = past_agents(self, source.league, source.snapshot_every) if self.first else None
        kept = {k: v for k, v in self.queue.rows.items() if k in COLUMNS and k not in LEFT}
        columns = specs_of(kept, 3) | TARGETS
        seed = seed_of(ctx.seed, ctx.incarnation % 1000) + ctx.index
        state = specs_of(self.queue.state, 3)
        self.buffer = WindowBuffer(columns, state, self.queue.window, source.capacity, source.sample_reuse, seed)
        self.fresh, self.since = 0.0, 0  # agent steps, and windows, added since the last update
        self.versions: deque[PublishedWeights] = deque(maxlen=source.staleness + 1)
        learner.checkpoints.more = self._write
        if ctx.resume is not None:
            self._load()
        if self.first:
            self._publish()
        if (found := actor_checkpoint.between_rounds(ctx)) is not None:
            self.take_up(found)
        if ctx.directory is not None:
            ctx.hooks.write_part, ctx.hooks.number = self.write_part, lambda: learner.version

    def items(self) -> Iterator[Rollout | Nothing | None]:
        """Yield rollouts, and () when an update is due. Yield None if neither happens for a while."""
        rollouts = self.queue.batches(1).consumer(self.ctx.index, wait=bool(self.source.sample_reuse))
        while True:
            if self.source.sample_reuse and self.buffer.due(self.source.batch):
                yield ()
                continue
            rollout = next(rollouts)
            if rollout is None and not self.source.sample_reuse and self.buffer.due(self.source.batch):
                yield ()
            else:
                if rollout is None:
                    self._release()
                yield rollout

    def _release(self) -> None:
        """Let waiting actors continue with the current weights, because the next update needs more rollouts."""
        own, queue = slice(self.ctx.index, self.queue.producers, self.queue.consumers), self.queue
        if self.ctx.serial or self.params.waits(own):
            self.params.stay(own, queue.ends[own, 0])

    def learn(self, item: Rollout | Nothing) -> Iterator[None]:
        if item:
            self._add(*item)
        else:
            yield from self._update()

    def finish(self, item: Rollout | Nothing) -> None:
        if item:
            self.ctx.counters.depth(self.queue.depth)

    def _add(self, rows: Batch, state: Batch) -> None:
        """Add a rollout [T+1, lanes], its targets, and the recurrent states before its windows to the buffer."""
        with self.ctx.counters.timed("replay"):
            made = self._targets(rows)
            kept = {k: tree.map(lambda x: x[:-1], v) for k, v in rows.items() if k in self.buffer.rows}
            kept |= {k: to_host(v) for k, v in made.items()} | {"reward": to_host(made["reward"])[:-1]}
            self.buffer.add(kept, state)
        self.fresh += float(np.count_nonzero(~rows["first"][1:]))
        self.since += rows["first"].shape[1] * (self.queue.T // self.queue.window)

    def _targets(self, rows: Batch) -> Batch:
        """Return "advantage", "target" and "valid" [T, lanes], computed from the values that were stored while acting.
        Also return the "reward" [T+1, lanes] that this learner assigns (Policy.rewarded).
        """
        learner, policy = self.learner, self.learner.policy
        learner.adjust()  # schedules apply to the first targets too
        small = to_device({k: rows[k] for k in SMALL if k in rows}, learner.device)
        small = policy.rewarded(small)
        seen = {"obs": rows["obs"]} if policy.observes else {}
        policy.observe(small | to_device(seen, learner.device))
        return {**self._loss().prepare(small, policy.reward_scale()), "reward": small["reward"]}

    def _loss(self) -> Loss:
        """Return the loss. If `horizon` is a hyperparameter, set the loss's discount to match it."""
        loss, hyper = self.learner.spec.loss, self.learner.spec.hyperparameters.all()
        if not isinstance(loss, PPO) or "horizon" not in hyper:
            return loss
        return replace(loss, gamma=discount_of(hyper["horizon"], hyper["step_time"]))

    def _update(self) -> Iterator[None]:
        learner, source = self.learner, self.source
        with self.ctx.counters.timed("replay"):
            drawn, state = self.buffer.draw(source.batch)
        item, before = to_device(drawn, learner.device), to_device(state, learner.device)
        learner.adjust()
        versions = drawn["version"][drawn["valid"]]
        lags = learner.update.refresh() - versions
        yield from learner.timed(self._step(item, before, versions))
        self.fresh = 0.0
        self.ctx.counters.tally("reuse", source.batch, self.since)
        self.ctx.counters.tally("staleness", lags.sum() / source.publish_every, lags.size)
        self.since = 0
        if self.first and learner.version % source.publish_every == 0:
            self._publish()
        if self.past is not None:
            self.past.look()

    def _step(self, item: Batch, before: Batch, versions: np.ndarray) -> Generator[None, None, None]:
        scored = self.learner.run(item, before, self.learner.version)
        yield from self.learner.apply_gradient(scored, item, versions, self.fresh)

    def _publish(self) -> None:
        taken, params = np.zeros(self.params.readers, np.int64), self.params
        taken[: self.queue.producers] = self.queue.ends[:, 0]
        self.versions.append(PublishedWeights(self.learner.update.vector.flat.detach().clone(), self.learner.version))
        params.publish(self.versions[0], self.versions[0].version, 0, taken)

    def save(self, dropped: bool = False) -> Iterator[None]:
        """Save the learner with its buffer. A run that resumes from this checkpoint starts new matches. In a serial
        run, do nothing, because `write_part` saves the learner.
        """
        if not self.ctx.serial and self.learner.checkpoints.last != self.learner.version:
            self.learner.checkpoints.save()
        yield from ()

    def write_part(self, number: int) -> None:
        """Write this learner's part of a checkpoint, in a serial run (all workers in one thread, in turn)."""

        def write(part: CheckpointPart) -> None:
            own = {"statistics": to_host(self._statistics), "turn": np.array(self.queue.turns[self.ctx.index])}
            part.arrays(f"{self._name}_turn", own)
            if self.first:
                past = {} if self.past is None else {"past": self.past.save()}
                part.json("league/published", {"versions": [x.version for x in self.versions], **past})
                vectors = np.stack([to_host(x.flat) for x in self.versions])
                part.arrays("league/published", {"vectors": vectors, "learnt": self.params.learnt.copy()})

        self.learner.checkpoints.save(write)

    @property
    def _statistics(self) -> torch.Tensor:
        """View of this learner's running statistics, which differ from other learners' between updates."""
        vector = self.learner.update.vector
        return vector.flat[vector.weights :].detach()

    def take_up(self, found: OpenCheckpoint) -> None:
        """Restore the state that `write_part` wrote."""
        own = found.arrays(f"{self._name}_turn")
        self.queue.turns[self.ctx.index] = own["turn"]
        self._statistics.copy_(torch.from_numpy(own["statistics"]))
        if not self.first:
            return
        counts, arrays = found.json("league/published"), found.arrays("league/published")
        vectors = torch.from_numpy(arrays["vectors"])
        self.versions.clear()
        self.versions.extend(map(PublishedWeights, vectors, counts["versions"]))
        self.params.publish(self.versions[0], self.versions[0].version, 0, arrays["learnt"])
        if self.past is not None and "past" in counts:
            self.past.load(counts["past"])

    def _write(self, part: CheckpointPart) -> None:
        arrays, counts = self.buffer.save()
        part.arrays(self._name, {path: np.ascontiguousarray(x) for path, x in tree.leaves(arrays)})
        part.json(f"{self._name}_counts", counts | {"fresh": self.fresh})

    @property
    def _name(self) -> str:
        return f"learners/{self.ctx.index}/experience"

    def _load(self) -> None:
        found = checkpoint.open_checkpoint(self.ctx.resume)
        if not (found.path / f"{self._name}_counts.json").exists():  # others saved while this learner was lost
            self.ctx.log("warning", f"learner {self.ctx.index}: its experience was not saved, so it starts empty")
            return
        counts = found.json(f"{self._name}_counts")
        try:
            self.buffer.load(tree.nest(found.arrays(self._name)), counts)
            self.fresh = float(counts.get("fresh", 0.0))
        except ValueError as e:
            self.ctx.log("warning", f"experience in the checkpoint does not fit, so it is left out: {e}")


def discount_of(horizon: float, step_time: float) -> float:
    """Return the discount 1 − T/H for a horizon of H seconds and steps of T seconds (Berner et al. 2019, app. C)."""
    return 1.0 - step_time / horizon
