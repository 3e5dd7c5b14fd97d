"""The worker that acts at a table: several players share its matches, each with a group of its lanes.

An agent's player holds a copy of its weights and writes rollouts for its learner. A past self's weights come from a
file, and its rows are not written.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence

import numpy as np

from polyplay.acting.actor import Actor
from polyplay.acting.on_device import policy_from_cpu
from polyplay.acting.player import Player
from polyplay.acting.worker import report_faults
from polyplay.buffers.rollout_queue import Producer, RolloutQueue
from polyplay.common.context import WorkerContext
from polyplay.envs.pool import Envs
from polyplay.nets.device import enter_device
from polyplay.nets.factory import build_network
from polyplay.nets.policy import PolicyFactory
from polyplay.weights.agent_params import AgentParams
from polyplay.weights.flat import FlatParams


def act_at_table(
    ctx: WorkerContext,
    *,
    policy: PolicyFactory,
    out: RolloutQueue,
    params: AgentParams,
    envs: Envs,
    lag: int | None = None,
    nice: int = 0,
) -> Iterator[None]:
    """An actor whose groups of lanes have a player each. lag: rounds that acting may be ahead of the learning of the
    same agent, whose batches then are one rollout each.
    """
    if nice and multiprocessing.parent_process() is not None:
        os.nice(nice)
    producer = out.producer(ctx.index)
    with contextlib.closing(envs.open(ctx.env_seed, lane=ctx.index * envs.lanes)) as pool:
        seats = [Seat(ctx, policy, producer, params, lag) for _ in range(envs.groups)]
        players = [seat.player for seat in seats]
        actor = Actor(ctx, pool, players[0].policy, producer, ctx.index * envs.lanes, players)
        sit(seats, fixed_players(ctx.index, envs.groups, params.agents))
        for slots in actor.rollouts():
            for group in actor.groups if slots else []:
                if group.slot is not None:
                    producer.commit(group.slot, ctx.incarnation, to=group.player.agent)
                    ctx.counters.add("rollouts", 1)
            report_faults(ctx, pool)
            yield


def fixed_players(actor: int, seats: int, agents: int) -> np.ndarray:
    """int32 [seats]: agents in turn, over the tables of all actors."""
    return ((actor * seats + np.arange(seats)) % agents).astype(np.int32)


class Seat:
    """A place at a table: one player, whoever sits there, and the memory of its weights."""

    def __init__(
        self, ctx: WorkerContext, policy: PolicyFactory, producer: Producer, params: AgentParams, lag: int | None
    ):
        self.ctx, self.producer, self.params, self.lag = ctx, producer, params, lag
        net = build_network(policy, ctx.seed, ctx.precision, enter_device(ctx.device))
        self.vector = FlatParams(net)
        self.player = Player(policy_from_cpu(net), producer)
        self.alike = 1  # players of the same agent at the table

    def sit(self, agent: int) -> None:
        """From the next rollout on a living agent sits here."""
        self.player.agent, self.player.out, self.player.pull, self.player.version = agent, self.producer, self.pull, -1

    def pull(self, k: int) -> int | None:
        """The agent's newest weights; with a lag, only those that have learnt from what it acted here before."""
        player = self.player
        due = 0 if self.lag is None else self.producer.made(player.agent) - self.lag * self.alike
        params = self.params.each[player.agent]
        if not params.wait(0, self.ctx.index, self.producer.queue.patience, max(due, 0)):
            return None
        return params.pull(self.vector, player.version)


def sit(seats: Sequence[Seat], agents: np.ndarray) -> None:
    """Whose players sit where, by their numbers."""
    for seat, agent in zip(seats, agents.tolist(), strict=True):
        seat.sit(agent)
        seat.alike = int((agents == agent).sum())
