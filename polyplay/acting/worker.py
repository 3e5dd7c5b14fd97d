"""Workers that act: actors with one player, predictors that share lanes, and actors with a player for each group."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from polyplay.acting.actor import (
    Actor,
    EpisodeCounter,
    Exploration,
    LanePlayer,
    MatchEnds,
    Pull,
    ScriptedPolicy,
    player_from_cpu,
    report_faults,
)
from polyplay.acting.predictor import LaneTable, Predictor
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.league import League
from polyplay.buffers.rollout_queue import Producer, RolloutQueue, TrainingQueue
from polyplay.core import checkpoint, platform
from polyplay.core.tree import Batch
from polyplay.core.worker import WorkerContext
from polyplay.envs.lane import Bot, load_bot, seat_bot
from polyplay.envs.pool import Envs, Pool
from polyplay.nets.device import enter_device, to_host
from polyplay.nets.factory import build_network
from polyplay.nets.policy import Player, PolicyFactory
from polyplay.weights.parameter_server import ParameterServer
from polyplay.weights.params import AgentParams, FlatParams, Params, WeightCache
from polyplay.weights.update import Hogwild


def act(
    ctx: WorkerContext,
    *,
    policy: PolicyFactory,
    out: RolloutQueue,
    params: Params | ParameterServer,
    envs: Envs,
    lag: int = -1,
    explore: Exploration | None = None,
    nice: int = 0,
    keep: int = 1,
) -> Iterator[None]:
    """Act in the worker's environments with a copy of the weights, and write rollouts into a queue.

    `lag`: number of rollouts by which acting may be ahead of learning. -1: acting never waits for learning.
    `nice`: number to add to the niceness of the process. A positive number lowers its priority.
    `keep`: number of rollouts for which pulled weights are used.
    """
    if nice and multiprocessing.parent_process() is not None:
        platform.be_nicer(nice)
    net = build_network(policy, ctx.seed, ctx.precision, enter_device(ctx.device))
    held = WeightCache(FlatParams(net), keep)
    saved = actor_checkpoint.load_actor(ctx, out.consumers)
    with contextlib.closing(open_pool(ctx, envs, saved)) as pool:
        producer = out.producer(ctx.index)
        producer.give(saved.get("flight", {}), actor_checkpoint.slots_read(ctx, out))
        actor = Actor(
            ctx,
            pool,
            [LanePlayer(player_from_cpu(net, ctx.device, ctx.control.compile), producer)],
            ctx.index * envs.lanes,
        )
        actor.explore, actor.held = explore, held
        if "pool" in saved:
            actor.load(saved)

        def pull(k: int) -> int | None:
            """Pull weights of round k - `lag` or later, and return their version, or None if none are published yet."""
            if held.age:
                return held.version
            if not params.wait(0 if lag < 0 else max(k - lag, 0), ctx.index, out.patience):
                return None
            held.version = params.pull(held.vector, held.version)
            return held.version

        for slots in actor.rollouts(pull):
            if slots:
                held.tick()
            for slot in slots or []:
                producer.commit(slot, ctx.incarnation)
                ctx.counters.add("rollouts", 1)
            yield
            while actor_checkpoint.answer_save(ctx, actor, producer) and ctx.serial:
                yield
            yield from actor_checkpoint.rest_at_end(ctx, producer)


def predict(
    ctx: WorkerContext, *, agents: LaneTable, policy: PolicyFactory, out: TrainingQueue, params: Hogwild
) -> Iterator[None]:
    """Act as one of several predictors, which share the lanes of `agents` and the weights in shared memory."""
    while not params.counts.ready:
        time.sleep(min(ctx.patience, 0.005))
        yield
    net = build_network(policy, ctx.seed, ctx.precision, enter_device(ctx.device))
    params.reader(net)
    player = player_from_cpu(net, ctx.device, ctx.control.compile)
    agents.open(ctx, player)
    for chunks in Predictor(ctx, agents, player, lambda: params.counts.version).chunks():
        for slot, length in chunks:
            out.commit(slot, length)
            ctx.counters.add("rollouts", 1)
        ctx.counters.depth(agents.queued)
        report_faults(ctx, agents.pool, counts=ctx.index == 0)
        yield


def open_pool(ctx: WorkerContext, envs: Envs, saved: Batch) -> Pool:
    """Open the worker's environments. If `saved` has their state, use the seeds of the run that is resumed."""
    if "pool" in saved:
        ctx.incarnation = int(saved["incarnation"])
    return envs.share(progress=ctx.control.run).open(ctx.env_seed, lane=ctx.index * envs.lanes)


class MatchResults:
    """Collects the results of matches. A team's outcome is the sum of its players' team rewards or, if the environment
    has no team rewards, of their returns. A match whose environment was restarted has no result.
    """

    def __init__(self, pool: Pool, games: EpisodeCounter, width: int):
        """`games`: counter of the same lanes, whose `count` is called before `watch`. `width`: lanes per player."""
        seating, spec = pool.seating, pool.spec
        assert seating is not None
        self.seating, self.games, self.width = seating, games, width
        self.team, self.gained = np.array(spec.sides), np.zeros(pool.lanes)  # gained: sum of each lane's team rewards
        self.scores = np.zeros((seating.matches, self.team.max() + 1))
        self.first = np.arange(0, spec.seats, spec.seats // seating.blocks)  # first seat of each block
        self.ends, self.players = MatchEnds(seating.own), self._players(np.arange(seating.matches))
        self.found: list[tuple[np.ndarray, np.ndarray]] = []

    def _players(self, matches: np.ndarray) -> np.ndarray:
        return self.seating.lanes[matches][:, self.first] // self.width

    def watch(self, lanes: slice, step: Batch) -> None:
        """Update the results by one new row of each of these lanes."""
        whole, broken = self.ends.watch(lanes, step)
        if len(whole):
            self.found.append((self.players[whole], self.scores[whole]))
        for matches in (whole, broken):
            if len(matches):
                self.ends.forget(matches)
                self.scores[matches] = 0.0
        if "team_reward" in step:
            self.gained[lanes] = np.where(step["first"], 0.0, self.gained[lanes] + step["team_reward"])
        scores = self.gained if "team_reward" in step else self.games.ret
        ended = np.arange(lanes.start, lanes.stop)[step["over"]]
        if len(ended):
            matches = self.seating.match[ended]
            np.add.at(self.scores, (matches, self.team[self.seating.seat[ended]]), scores[ended])
            self.players[matches] = self._players(matches)

    def save(self) -> Batch:
        """Return the state of the unfinished matches. Call `take` first, because finished matches are not saved."""
        return {"gained": self.gained, "scores": self.scores, "players": self.players, "ends": self.ends.save()}

    def load(self, saved: Batch) -> None:
        """Restore what `save` returned."""
        self.gained[:], self.scores[:], self.players[:] = (saved[name] for name in ("gained", "scores", "players"))
        self.ends.load(saved["ends"])

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the matches that ended since the last call, as two arrays: the group of lanes that played each block
        of seats (see League), int [n, blocks], and the outcome of each team, float [n, teams].
        """
        found, self.found = self.found, []
        if not found:
            return np.zeros((0, len(self.first)), np.int64), np.zeros((0, self.scores.shape[1]))
        return np.concatenate([x for x, _ in found]), np.concatenate([x for _, x in found])


# A training agent's player holds a copy of the agent's weights and writes rollouts for the agent's learner. A past
# agent's weights come from a file. Rows of past agents and bots are not written. Players change between rollouts while
# matches rest.


def act_at_table(
    ctx: WorkerContext,
    *,
    policy: PolicyFactory,
    out: RolloutQueue,
    params: AgentParams,
    envs: Envs,
    league: League | None = None,
    lag: int = -1,
) -> Iterator[None]:
    """Act with a separate player for each group of lanes. These players are called a table. A league chooses the
    players. Without a league, the agents take the groups in turn.
    `lag`: number of rounds (one rollout of every group) by which acting may be ahead of an agent's learning. -1: no
        limit. With any other value, each batch of an agent must be one rollout.
    """
    producer = out.producer(ctx.index)
    saved = actor_checkpoint.load_actor(ctx) if actor_checkpoint.between_rounds(ctx) is not None else {}
    with contextlib.closing(open_pool(ctx, envs, saved)) as pool:
        bots = [load_bot(envs.spec, name) for name in (league.bots if league else ())]
        seats = [Seat(ctx, policy, producer, params, lag) for _ in range(envs.groups)]
        actor = Actor(ctx, pool, seats, ctx.index * envs.lanes)
        table = ActorSeating(ctx, actor, seats, league, bots)
        ctx.hooks.write_part = lambda number: actor_checkpoint.save_at_table(ctx, number, actor, producer, table.save())
        if saved:
            producer.load(saved["stream"], saved.get("flight", {}))
            table.load(saved)
            yield  # in this turn, all workers restore their state
        while not table.begin():
            yield
        for slots in actor.rollouts():
            if slots is not None:
                for group in actor.groups:
                    if group.slot is not None:
                        producer.commit(group.slot, ctx.incarnation, to=group.player.agent)
                        ctx.counters.add("rollouts", 1)
                table.between()
            yield


class Seat(LanePlayer):
    """Player of one group of lanes in `act_at_table`, with memory for its weights."""

    def __init__(self, ctx: WorkerContext, policy: PolicyFactory, producer: Producer, params: AgentParams, lag: int):
        self.ctx, self.producer, self.params, self.lag = ctx, producer, params, lag
        self.net = build_network(policy, ctx.seed, ctx.precision, enter_device(ctx.device))
        self.vector, self.network = FlatParams(self.net), player_from_cpu(self.net, ctx.device, ctx.control.compile)
        super().__init__(self.network, producer)
        self.seats_of_agent = 1  # number of seats at the table with the same player

    def sit(self, policy: Player, pull: Pull, agent: int = -1) -> None:
        """Replace the player. `agent`: number of the agent that trains on the rows. -1: rows are not stored."""
        self.policy, self.agent, self.pull, self.version = policy, agent, pull, -1
        self.out = self.producer if agent >= 0 else None

    def save(self) -> Batch:
        """Return the player's weights and their version."""
        return {"vector": to_host(self.vector.flat), "version": np.array(self.version)}

    def load(self, saved: Batch) -> None:
        """Restore what `save` returned."""
        self.vector.flat.copy_(torch.from_numpy(np.array(saved["vector"])))
        self.version = int(saved["version"])

    def newest(self, k: int) -> int | None:
        """Pull the agent's newest weights, and return their version. With `lag` ≥ 0, return None while the learner is
        more than `lag` rounds behind this actor.
        """
        due = 0 if self.lag < 0 else self.producer.made(self.agent) - self.lag * self.seats_of_agent
        params = self.params.each[self.agent]
        if not params.wait(0, self.ctx.index, self.producer.queue.patience, max(due, 0)):
            return None
        return params.pull(self.vector, self.version)


class ActorSeating:
    """Assigns players to an actor's groups of lanes, and collects the results of their matches."""

    def __init__(
        self, ctx: WorkerContext, actor: Actor, seats: list[Seat], league: League | None, bots: Sequence[Bot] = ()
    ):
        self.ctx, self.actor, self.seats, self.league = ctx, actor, seats, league
        self.bots = [[seat_bot(bot, actor.pool, group.lanes) for bot in bots] for group in actor.groups]  # per seat
        self.draw, self.numbers = 0, np.zeros(len(seats), np.int32)
        self.held: Batch = {}  # weights from a checkpoint, by seat number
        self.results: MatchResults | None = None
        if league is not None:
            self.results = MatchResults(actor.pool, actor.games, actor.width)
            actor.watch = self.results.watch

    def begin(self) -> bool:
        """Assign the first players. Return False if the league has not drawn players yet."""
        if self.draw:  # restored from a checkpoint
            for i, player in enumerate(self.numbers.tolist()):
                self._seat(i, player)
            for number, held in self.held.items():
                self.seats[int(number)].load(held)
            self.actor.pulled, self.held = len(self.held), {}
            self._count_seats()
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
        """Report the results of finished matches. Assign newly drawn players once all current matches have ended."""
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
                self.actor.pool.pause_matches(True)
                return
            self._sit(players)
        self.actor.pool.pause_matches(False)
        self._acknowledge(draw)

    def _acknowledge(self, draw: int) -> None:
        assert self.league is not None
        self.draw = draw
        self.league.acknowledge(self.ctx.index, draw)

    def _sit(self, players: np.ndarray) -> None:
        """Assign these players. A player who stays with the same group of lanes keeps the same weights."""
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
            seat.sit(seat.network, seat.newest, player)
        elif (bot := player - self.league.players + len(bots)) >= 0:
            seat.sit(ScriptedPolicy(bots[bot]), lambda k: 0)
        else:
            who = self.league.identity(player)
            assert self.ctx.directory is not None
            checkpoint.load_into(
                seat.net, checkpoint.read_self(checkpoint.self_path(self.ctx.directory, who.agent, who.version))
            )
            seat.sit(seat.network, lambda k: who.version)

    # ------------------------------------------------------------------------------------------- saving

    def save(self) -> Batch:
        """Return the players, the unfinished matches, and the weights that were already pulled for the next rollout."""
        held = self.held or {str(i): self.seats[i].save() for i in range(self.actor.pulled)}
        results = {} if self.results is None else self.results.save()
        return {"draw": np.array(self.draw), "numbers": self.numbers, "held": held, "results": results}

    def load(self, saved: Batch) -> None:
        """Restore an actor's part of a checkpoint if it has the environments. `begin` assigns the players later."""
        if "pool" not in saved:
            return
        self.actor.load(saved)
        table = saved["table"]
        self.draw, self.numbers, self.held = int(table["draw"]), np.array(table["numbers"]), table.get("held", {})
        if self.results is not None:
            self.results.load(table["results"])
