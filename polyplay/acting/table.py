"""The worker that acts at a table: several players share its matches, each with a group of its lanes.

An agent's player holds a copy of its weights and writes rollouts for its learner. A past self's weights come from a
file; its rows and those of a bot are not written. Players change between two rollouts, while all matches rest.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from polyplay.acting.actor import Actor
from polyplay.acting.on_device import policy_from_cpu
from polyplay.acting.player import ActingPolicy, LanePlayer, ScriptedPolicy
from polyplay.acting.results import MatchResults
from polyplay.acting.worker import open_pool, report_faults
from polyplay.buffers.actor_checkpoint import between_rounds, load_actor, save_at_table
from polyplay.buffers.rollout_queue import Producer, RolloutQueue
from polyplay.common import checkpoint
from polyplay.common.context import WorkerContext
from polyplay.common.past_selves import read_self, self_path
from polyplay.common.tree import Batch
from polyplay.envs.bots import Bot, SeatedBot, load_bot, seat_bot
from polyplay.envs.pool import Envs
from polyplay.nets.device import enter_device, to_host
from polyplay.nets.factory import build_network
from polyplay.nets.policy import PolicyFactory
from polyplay.weights.agent_params import AgentParams
from polyplay.weights.flat import FlatParams


class SeatedPlayer(Protocol):
    """Of a player: an agent, and of a past self the version of its weights."""

    @property
    def agent(self) -> int: ...
    @property
    def version(self) -> int: ...


class Tables(Protocol):
    """What an actor asks of a league (population.league)."""

    agents: int
    players: int
    bots: tuple[str, ...]  # the last players

    def table(self, actor: int) -> tuple[int, np.ndarray]: ...
    def wait(self, actor: int) -> bool: ...
    def acknowledge(self, actor: int, draw: int) -> None: ...
    def identity(self, player: int) -> SeatedPlayer: ...
    def report(self, actor: int, players: np.ndarray, outcomes: np.ndarray) -> None: ...


def act_at_table(
    ctx: WorkerContext,
    *,
    policy: PolicyFactory,
    out: RolloutQueue,
    params: AgentParams,
    envs: Envs,
    league: Tables | None = None,
    lag: int | None = None,
    nice: int = 0,
) -> Iterator[None]:
    """An actor whose groups of lanes have a player each, whom the league draws; without, agents play in turn. lag:
    rounds that acting may be ahead of the learning of the same agent, whose batches then are one rollout each.
    """
    if nice and multiprocessing.parent_process() is not None:
        os.nice(nice)
    producer = out.producer(ctx.index)
    saved = load_actor(ctx) if between_rounds(ctx) is not None else {}
    with contextlib.closing(open_pool(ctx, envs, saved)) as pool:
        bots = [load_bot(envs.spec, name) for name in (league.bots if league else ())]
        seats = [Seat(ctx, policy, producer, params, lag) for _ in range(envs.groups)]
        players = [seat.player for seat in seats]
        actor = Actor(ctx, pool, seats[0].policy, producer, ctx.index * envs.lanes, players)
        table = ActorTable(ctx, actor, seats, league, bots)
        ctx.write_part = lambda number: save_at_table(ctx, number, actor, producer, table.save())
        if saved:
            producer.load(saved["stream"], saved.get("flight", {}))
            table.load(saved)
            yield  # in this round everybody takes up what it had
        while not table.begin():
            yield
        for slots in actor.rollouts():
            if slots is not None:
                for group in actor.groups:
                    if group.slot is not None:
                        producer.commit(group.slot, ctx.incarnation, to=group.player.agent)
                        ctx.counters.add("rollouts", 1)
                table.between()
            report_faults(ctx, pool)
            yield


class Seat:
    """A place at a table: one player, whoever sits there, and the memory of its weights."""

    def __init__(
        self, ctx: WorkerContext, policy: PolicyFactory, producer: Producer, params: AgentParams, lag: int | None
    ):
        self.ctx, self.producer, self.params, self.lag = ctx, producer, params, lag
        self.net = build_network(policy, ctx.seed, ctx.precision, enter_device(ctx.device))
        self.vector = FlatParams(self.net)
        self.policy = policy_from_cpu(self.net)
        self.player = LanePlayer(self.policy, producer)
        self.seats_of_agent = 1  # players of the same agent at the table

    def sit(self, agent: int) -> None:
        """From the next rollout on a living agent plays here."""
        player = self.player
        player.policy, player.agent, player.out = self.policy, agent, self.producer
        player.pull, player.version = self.pull, -1

    def sit_past_self(self, arrays: Batch, version: int) -> None:
        """From the next rollout on weights of a past self play here, and do not learn from it."""
        checkpoint.load_into(self.net, arrays)
        self._sit_unwritten(self.policy, version)

    def sit_scripted(self, bot: SeatedBot) -> None:
        """From the next rollout on a bot plays here."""
        self._sit_unwritten(ScriptedPolicy(bot), 0)

    def _sit_unwritten(self, policy: ActingPolicy, version: int) -> None:
        player = self.player
        player.policy, player.agent, player.out = policy, -1, None
        player.pull, player.version = lambda k: version, -1

    def save(self) -> Batch:
        """The weights that play here."""
        return {"vector": to_host(self.vector.flat), "version": np.array(self.player.version)}

    def load(self, saved: Batch) -> None:
        """The inverse."""
        self.vector.flat.copy_(torch.from_numpy(np.array(saved["vector"])))
        self.player.version = int(saved["version"])

    def pull(self, k: int) -> int | None:
        """The agent's newest weights; with a lag, only those that have learnt from what it acted here before."""
        player = self.player
        due = 0 if self.lag is None else self.producer.made(player.agent) - self.lag * self.seats_of_agent
        params = self.params.each[player.agent]
        if not params.wait(0, self.ctx.index, self.producer.queue.patience, max(due, 0)):
            return None
        return params.pull(self.vector, player.version)


class ActorTable:
    """Who sits at an actor's table, and what comes of its matches."""

    def __init__(
        self, ctx: WorkerContext, actor: Actor, seats: list[Seat], league: Tables | None, bots: Sequence[Bot] = ()
    ):
        self.ctx, self.actor, self.seats, self.league = ctx, actor, seats, league
        self.bots = [[seat_bot(bot, actor.pool, group.lanes) for bot in bots] for group in actor.groups]  # of each seat
        self.draw, self.numbers = 0, np.zeros(len(seats), np.int32)
        self.held: Batch = {}  # weights of seats, by number, from a checkpoint
        self.results: MatchResults | None = None
        if league is not None:
            self.results = MatchResults(actor.pool, actor.games, actor.width)
            actor.watch = self.results.watch

    def begin(self) -> bool:
        """Seat the first players; False: the league has drawn none yet."""
        if self.draw:
            self._seat_again()
            return True
        if self.league is None:
            agents = self.seats[0].params.agents
            self._sit((self.ctx.index * len(self.seats) + np.arange(len(self.seats))) % agents)
            return True
        draw, players = self.league.table(self.ctx.index)
        if not draw:
            self.league.wait(self.ctx.index)
            return False
        self._sit(players)
        self._acknowledge(draw)
        return True

    def between(self) -> None:
        """Between two rollouts: report what was played, and change players where others were drawn and all rest."""
        if self.league is None or self.results is None:
            return
        matches, outcomes = self.results.take()
        if len(matches):
            self.league.report(self.ctx.index, self.numbers[matches], outcomes)
        draw, players = self.league.table(self.ctx.index)
        if draw == self.draw:
            return
        if not (players == self.numbers).all():
            if not self.actor.pool.resting:
                self.actor.pool.hold(True)
                return
            self._sit(players)
        self.actor.pool.hold(False)
        self._acknowledge(draw)

    def _acknowledge(self, draw: int) -> None:
        assert self.league is not None
        self.draw = draw
        self.league.acknowledge(self.ctx.index, draw)

    def _sit(self, players: np.ndarray) -> None:
        """Whoever stays keeps its weights."""
        changed = np.ones(len(players), bool) if not self.draw else players != self.numbers
        for i in np.flatnonzero(changed):
            self._seat(int(i), int(players[i]))
            group = self.actor.groups[i]
            group.slot, group.state = None, group.player.policy.initial(self.actor.width)
        self.numbers = np.array(players)
        self._count_seats()

    def _count_seats(self) -> None:
        for seat, player in zip(self.seats, self.numbers, strict=True):
            seat.seats_of_agent = int((self.numbers == player).sum())

    def _seat(self, i: int, player: int) -> None:
        seat, bots = self.seats[i], self.bots[i]
        if self.league is None or player < self.league.agents:
            seat.sit(player)
            return
        if (bot := player - self.league.players + len(bots)) >= 0:
            seat.sit_scripted(bots[bot])
            return
        who = self.league.identity(player)
        assert self.ctx.directory is not None
        path = self_path(self.ctx.directory, who.agent, who.version)
        seat.sit_past_self(read_self(path), who.version)

    # ------------------------------------------------------------------------------------------- saving

    def save(self) -> Batch:
        """Who sits here, the matches under way, and the weights that were pulled while others are waited for."""
        held = self.held or {str(i): self.seats[i].save() for i in range(self.actor.pulled)}
        results = {} if self.results is None else self.results.save()
        return {"draw": np.array(self.draw), "numbers": self.numbers, "held": held, "results": results}

    def load(self, saved: Batch) -> None:
        """Take up an actor's part of a checkpoint, if it has its lanes. Players are seated by `begin`, once the league
        says who they are.
        """
        if "pool" not in saved:
            return
        self.actor.load(saved)
        table = saved["table"]
        self.draw, self.numbers, self.held = int(table["draw"]), np.array(table["numbers"]), table.get("held", {})
        if self.results is not None:
            self.results.load(table["results"])

    def _seat_again(self) -> None:
        for i, player in enumerate(self.numbers.tolist()):
            self._seat(i, player)
        for number, held in self.held.items():
            self.seats[int(number)].load(held)
        self.actor.pulled, self.held = len(self.held), {}
        self._count_seats()
