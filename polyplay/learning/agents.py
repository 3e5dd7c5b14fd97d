"""The worker that learns for several agents, one of them at a turn, each from its own rollouts to its own weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from polyplay.buffers.actor_checkpoint import between_rounds
from polyplay.buffers.agent_batches import AgentBatches
from polyplay.common import checkpoint, tree
from polyplay.common.checkpoint import CheckpointPart, OpenCheckpoint
from polyplay.common.context import WorkerContext
from polyplay.common.control import Hyperparameters
from polyplay.common.files import Row
from polyplay.learning.agent_copies import AgentCopies, CopyOrders
from polyplay.learning.collate import collator_for
from polyplay.learning.learner import Learner
from polyplay.learning.past_selves import PastSelves, Posts
from polyplay.learning.recent_rows import RecentRows
from polyplay.learning.sources import Rollout
from polyplay.learning.spec import LearnerSpec
from polyplay.learning.worker import learn_from
from polyplay.nets.device import to_host
from polyplay.weights.agent_params import AgentParams
from polyplay.weights.params import Params

APART = 7_919  # between the seeds of agents: no two begin with the same weights


class LearnersLeague(Posts, CopyOrders, Protocol):
    """What learners ask of a league."""


REST = 0.001  # seconds between two looks, where several agents wait for rollouts


def learn_agents(
    ctx: WorkerContext,
    *,
    source: AgentBatches,
    spec: LearnerSpec,
    params: AgentParams,
    league: LearnersLeague | None = None,
    selves: int = 0,
) -> Iterator[None]:
    """Learn for every ctx.n-th agent, each in its turn. spec: of all; each gets hyperparameters of its own. selves:
    updates of an agent from one past self to the next.
    """
    own = range(ctx.index, params.agents, ctx.n)
    source = replace(source, wait=len(own) == 1)
    feeds = {agent: _feed_of(ctx, agent, source, spec, params, league, selves) for agent in own}
    turns = {agent: learn_from(feed, feed.ctx, feed.learner) for agent, feed in feeds.items()}

    def write_part(number: int) -> None:
        for feed in feeds.values():
            feed.write_part(number)

    if league is not None and ctx.directory is not None:
        ctx.write_part, ctx.number = write_part, lambda: feeds[ctx.index].number + 1
    while turns:
        for agent, turn in list(turns.items()):
            if next(turn, turns) is turns:
                del turns[agent]
        if not source.wait and not any(source.ready(agent) for agent in turns):
            time.sleep(min(ctx.patience, REST))
        yield


def _feed_of(
    ctx: WorkerContext,
    agent: int,
    source: AgentBatches,
    spec: LearnerSpec,
    params: AgentParams,
    league: LearnersLeague | None,
    selves: int,
) -> AgentSource:
    """The end of the queue at which an agent learns, with its learner."""
    context = agent_context(ctx, agent)
    learner = Learner(context, agent_spec(spec, agent, params))
    past = None if league is None or not selves else PastSelves(context, learner, league, selves)
    feed = AgentSource(source, context, learner, params.each[agent], past)
    if league is not None and params.snapshot is not None:
        feed.copies = AgentCopies(learner, league, params.snapshot, feed.publish)
    if (found := between_rounds(ctx)) is not None:
        feed.take_up(found)
    return feed


def agent_context(ctx: WorkerContext, agent: int) -> WorkerContext:
    """The context of a learner that is alone with its agent."""
    return replace(ctx, index=0, n=1, row=ctx.served[agent], seed=ctx.seed + APART * agent)


def agent_spec(spec: LearnerSpec, agent: int, params: AgentParams) -> LearnerSpec:
    """The spec of one agent, which begins with hyperparameters of its own."""
    own = spec.initial[agent] if spec.initial else {}
    hyperparameters = Hyperparameters(**{**spec.hyperparameters.configured, **own})
    hyperparameters.schedules = spec.hyperparameters.schedules
    return replace(spec, agent=agent, among=params, hyperparameters=hyperparameters)


class AgentSource:
    """The end of a queue at which one agent learns."""

    alone = True

    def __init__(
        self, source: AgentBatches, ctx: WorkerContext, learner: Learner, params: Params, past: PastSelves | None = None
    ):
        assert learner.spec.among is not None
        self.ctx, self.learner, self.source, self.params = ctx, learner, source, params
        self.queue, self.agent, self.among = source.queue, learner.spec.agent, learner.spec.among
        self.first = checkpoint.update_of(ctx.resume) if ctx.resume is not None else 0  # the save that it goes on from
        self.number = self.first  # of the last save
        self.rounds = 0
        self.past = past
        self.copies: AgentCopies | None = None
        self.join = collator_for(self.queue, source.n, learner.device)
        self.publish()

    @property
    def _name(self) -> str:
        return f"league/agent-{self.agent}"

    def write_part(self, number: int) -> None:
        """Its part of a checkpoint between two rounds of turns."""
        self.number = number
        self.learner.save(self._write, number=number)

    def _write(self, part: CheckpointPart) -> None:
        recent = self.learner.auxiliary.recent
        arrays = {"batch": self.join.save(), "recent": recent.save() if recent is not None else {}}
        arrays |= {"copies": self.copies.save()} if self.copies is not None else {}
        part.arrays(self._name, {k: to_host(x) for k, x in tree.leaves(arrays)})
        counts: Row = {"turn": int(self.queue.turns[self.agent]), "rounds": self.rounds}
        counts |= {"past": self.past.save()} if self.past is not None else {}
        part.json(self._name, counts)

    def take_up(self, found: OpenCheckpoint) -> None:
        """Go on from such a part."""
        arrays, counts = tree.nest(found.arrays(self._name)), found.json(self._name)
        self.join.load(arrays.get("batch", {}))
        if "recent" in arrays:
            self.learner.auxiliary.recent = RecentRows.of(arrays["recent"])
        self.queue.turns[self.agent], self.rounds = counts["turn"], counts["rounds"]
        if self.past is not None and "past" in counts:
            self.past.load(counts["past"])
        if self.copies is not None and "copies" in arrays:
            self.copies.load(arrays["copies"])

    def publish(self) -> None:
        taken = self.queue.ends[self.agent :: self.queue.consumers, 0]
        self.params.publish(self.learner.vector, self.learner.version, self.rounds, taken)

    def batches(self) -> Iterator[Rollout | None]:
        for batch in self.source.consumer(self.agent, self.join):
            if batch is None and self.copies is not None:
                self.copies.look()
            yield batch

    def step(self, batch: Rollout) -> Iterator[None]:
        rows, state = batch
        if self.copies is not None and self.copies.outdated(rows["version"]):
            yield from self.learner.rest(float(np.count_nonzero(~rows["first"][1:])))
        else:
            yield from self.learner.step(rows, state)
        self.rounds += 1
        self.publish()
        if self.copies is not None:
            self.copies.look()
        if self.past is not None:
            self.past.look()
        self.ctx.counters.depth(self.queue.depth)

    def save(self) -> Iterator[None]:
        """Its part of the checkpoint that is due. Actors begin new matches in a run that goes on from it, but for one
        that is made between two rounds of turns.
        """
        if self.ctx.serial:
            return
        learner = self.learner
        while (n := self.among.save_number(learner.agreed, self.agent, learner.done)) is None:
            time.sleep(min(self.ctx.patience, REST))
            yield
        if self.first + n > self.number:
            self.number = self.first + n
            learner.save(number=self.number)
