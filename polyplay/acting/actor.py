"""Actor, which steps parallel environments (lanes) and stores rollouts, and functions that all acting loops use.

A row is the data of one step of one lane. The actor receives rows from the environments, chooses actions, writes the
rows into rollouts, and sends the actions to the environments.

The lanes are divided into groups. All lanes of a group step together. A group that has finished its rollout waits (is
parked). When all groups are parked, the actor hands over their rollouts, pulls new weights, and begins new rollouts.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from polyplay.buffers.rollout_queue import Producer, RolloutSlots
from polyplay.core import tree
from polyplay.core.compiled import compiled
from polyplay.core.errors import UserError
from polyplay.core.numbers import uniform
from polyplay.core.tree import Batch, Index, Spec
from polyplay.core.worker import WorkerContext
from polyplay.envs.lane import SeatedBot
from polyplay.envs.pool import Pool
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.device import StaticCall, fetch_outputs, join_bytes, signature_of, split_bytes, to_device, to_host
from polyplay.nets.layers import Tape, join_tapes
from polyplay.nets.numpy_player import ArrayPlayer, fast_player
from polyplay.nets.policy import Player, Policy
from polyplay.weights.params import WeightCache


class Exploration(ABC):
    """Base class of exploration. It gives the probability ε of a random action, or the size of the noise that is added
    to continuous actions. An exploration has no state, so checkpoints do not contain it.
    """

    lanes: int = 1  # number of lanes of all workers together

    @abstractmethod
    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Return ε, or the standard deviation of the noise, for each lane (parallel environment), float32 [B].

        `acts`: number of actions that each lane has taken so far, int64 [B].
        `lanes`: index of each lane among the lanes of all workers, int64 [B].
        """

    @abstractmethod
    def label(self) -> str:
        """Return a one-line description of this exploration for a diagram of the system."""


@dataclass(frozen=True)
class LinearEpsilon(Exploration):
    """Linear decay of ε from `start` to `end`. The decay begins after `after` agent steps and takes `over` agent steps.

    Mnih et al. 2015 lower ε from 1 to 0.1 over 1M agent steps, after 50k steps.

    `lanes` is the number of parallel environments (lanes) of all workers together. The number of agent steps is
    estimated as the number of actions of one lane times `lanes`, so all lanes must act equally often.
    """

    start: float = 1.0
    end: float = 0.1
    over: int = 1_000_000
    after: int = 50_000
    lanes: int = 1

    def label(self) -> str:
        return f"ε       LinearEpsilon to {np.float32(self.end):.3g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        # one step too many per game, because a lane also acts in the last row of a game
        done = (np.asarray(acts, np.float64) * self.lanes - self.after) / max(self.over, 1)
        return (self.start + (self.end - self.start) * np.minimum(np.maximum(done, 0.0), 1.0)).astype(np.float32)


@dataclass(frozen=True)
class RunSchedule(LinearEpsilon):
    """LinearEpsilon for actors that step at different speeds, as in Gorila. ε depends on the number of agent steps that
    learners have trained on since the run's first start. `weights` counts these steps.
    """

    weights: Any = None  # SharedWeights

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return super().at(np.full(np.shape(acts), self.weights.counts.learnt / self.lanes), lanes)


@dataclass(frozen=True)
class EpsilonLadder(Exploration):
    """A constant ε for each lane (parallel environment), as in Ape-X (Horgan et al. 2018, §4.1) and R2D2. Lane i of N
    has ε = base^(1 + α·i/(N − 1)). By default, ε falls from 0.4 for the first lane to 6.6e-4 for the last lane.
    """

    lanes: int
    base: float = 0.4
    alpha: float = 7.0

    def label(self) -> str:
        return f"ε       {type(self).__name__} to {self.base ** (1.0 + self.alpha * (self.lanes > 1)):.3g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        rung = np.asarray(lanes, np.float64) / max(self.lanes - 1, 1)
        return (self.base ** (1.0 + self.alpha * rung)).astype(np.float32)


@dataclass(frozen=True)
class GaussianNoise(Exploration):
    """Normal noise of constant size, which is added to all actions. Its standard deviation is `deviation` times half of
    the distance between an action's lower and upper bound. Ape-X DPG uses 0.3.
    """

    deviation: float = 0.3

    def label(self) -> str:
        return f"noise   normal, deviation {self.deviation:g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return np.full(np.shape(lanes), self.deviation, np.float32)


PURE = LinearEpsilon, EpsilonLadder, GaussianNoise  # `at` depends only on its arguments: computed for many acts ahead


# Players whose weights are on a device, called with numbers on the CPU.


def player_from_cpu(player: Player, device: torch.device | str, compile: str = "off") -> Player:  # noqa: A002
    """Return a player that takes inputs and returns outputs on the CPU, while its weights stay on `device`. Unless
    `compile` is "off", small networks on a CPU are computed by NumPy, and networks on a GPU run as CUDA graphs.
    """
    device = torch.device(device)
    if device.type != "cpu":
        return (PlayerOnDevice if compile == "off" else CapturedPlayer)(player, device)
    fast = None if compile == "off" else fast_player(player)
    return player if fast is None else fast


class PlayerOnDevice(Player):
    """Player whose weights are on a device. It copies its inputs to the device, and its outputs back to the CPU."""

    def __init__(self, player: Player, device: torch.device):
        self.player, self.device, self.noise = player, device, player.noise

    def spec(self) -> Spec:
        return self.player.spec()

    def state_spec(self) -> Spec:
        return self.player.state_spec()

    def initial(self, lanes: int) -> Batch:
        return tree.map(lambda x: x.cpu(), self.player.initial(lanes))

    def reward_scale(self) -> float | torch.Tensor:
        return self.player.reward_scale()

    def cache_weights(self) -> None:
        self.player.cache_weights()

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act."""
        out, after = self.player.act(to_device(step, self.device), to_device(state, self.device))
        both = fetch_outputs({"out": out, "after": after} if after else {"out": out})
        return both["out"], both.get("after", {})


OFTEN, MOST = 4, 4  # OFTEN: call with rows of the same shapes at which a graph is made; MOST: most graphs


class CapturedPlayer(PlayerOnDevice):
    """PlayerOnDevice that runs its network as a CUDA graph. Each batch size that occurs often has a separate graph. If
    a network cannot be captured as a graph, it runs without one.
    """

    def __init__(self, player: Player, device: torch.device):
        super().__init__(player, device)
        self.calls = dict[Any, tuple[StaticCall, Batch]]()  # by rows' shapes and types: graph, example outputs
        self.came = Counter[Any]()

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act."""
        kind, leaves = signature_of({"step": step, "state": state})
        if kind not in self.calls:
            self.came[kind] += 1
            if self.came[kind] != OFTEN or len(self.calls) == MOST or not self._capture(kind, leaves):
                return super().act(step, state)
        call, like = self.calls[kind]
        both = split_bytes(call(leaves)[0].cpu(), like)
        return both["out"], both.get("after", {})

    def _capture(self, kind: Any, leaves: list[torch.Tensor]) -> bool:
        like = Batch()

        def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            whole = tree.nest(dict(zip(kind[0], given, strict=True)))
            like["out"], after = self.player.act(whole["step"], whole.get("state", {}))
            like.update({"after": after} if after else {})
            return (join_bytes(like),)

        try:
            if isinstance(self.player, Policy):
                self.calls[kind] = StaticCall(function, leaves, device=self.device), like
        except RuntimeError as e:
            warnings.warn(f"acting stays eager: {(str(e).splitlines() or [''])[0]}", stacklevel=2)
        return kind in self.calls


# No transition leads to a row with `first`: the lane's player has left, or has not come yet. A match is over once all
# its lanes have such rows in one turn, after some lanes had other rows. Then the match restarts or pauses.


class MatchEnds:
    """Detects the ends of matches between several players. `lanes`: the lanes of each match, int [matches, seats]."""

    def __init__(self, lanes: np.ndarray):
        self.lanes, self.match = lanes, np.empty(lanes.size, np.int64)
        self.match[lanes] = np.arange(len(lanes))[:, None]
        self.came, self.ended, self._first = np.zeros((3, lanes.size), bool)  # per lane, in the lane's present match
        self._turn = np.zeros(lanes.size, np.int64)

    def watch(self, which: slice | np.ndarray, step: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Process new rows of some lanes. Return two int arrays [n]: the matches that all players have finished, and
        the matches that ended because their environment was restarted. Before you pass further rows of these matches,
        call `forget`.
        """
        first, none = step["first"], np.zeros(0, np.int64)
        self._turn[which] += 1
        self._first[which] = first
        self.came[which] |= ~first
        self.ended[which] |= step["over"]
        if not first.any():
            return none, none
        matches = np.unique(self.match[which][first])
        lanes = self.lanes[matches]
        here = (self._turn[lanes] == self._turn[lanes[:, :1]]).all(1)  # whether all rows of the turn came
        over = here & self._first[lanes].all(1) & self.came[lanes].any(1)
        whole = (self.came[lanes] == self.ended[lanes]).all(1)
        return matches[over & whole], matches[over & ~whole]

    def save(self) -> Batch:
        """Return the state of all unfinished matches, for a checkpoint."""
        return {"came": self.came, "ended": self.ended, "first": self._first, "turn": self._turn}

    def load(self, saved: Batch) -> None:
        """Restore what `save` returned."""
        for name, array in self.save().items():
            array[:] = saved[name]

    def forget(self, matches: np.ndarray) -> None:
        """Clear the state of matches that are over."""
        self.came[self.lanes[matches]] = self.ended[self.lanes[matches]] = False


POLICY_INPUTS = ("obs", "mask", "reward", "first", "events", "task")  # columns of a row that a policy sees


def act_rows(
    player: Player, step: Batch, state: Batch, noise: np.ndarray | None = None, epsilon: np.ndarray | None = None
) -> tuple[Batch, Batch]:
    """Choose actions for one row (step) of each of B lanes (parallel environments). Return the player's outputs as
    arrays [B], and the player's state after the rows.

    `state`: the player's state before the rows, such as a recurrent state.
    `noise`: uniform random numbers in (0, 1), float32 [B, player.noise]. None: take the most probable actions.
    `epsilon`: result of `Exploration.at`, float32 [B]. None: do not explore beyond the player's own sampling.
    """
    inputs = {key: step[key] for key in POLICY_INPUTS if key in step}
    if noise is not None:
        inputs["noise"] = noise
    if epsilon is not None:
        inputs["epsilon"] = epsilon
    if isinstance(player, ArrayPlayer):
        return player.act(inputs, state)
    with torch.no_grad():
        out, after = player.act(tree.map(torch.as_tensor, inputs), state)
    return tree.map(_to_array, out), after


def _to_array(x: torch.Tensor) -> np.ndarray:
    return x.numpy()


class EpisodeCounter:
    """Sums the unclipped rewards and counts the steps of each lane's game. A game may have several episodes."""

    def __init__(self, lanes: int):
        self.ret, self.length = np.zeros(lanes), np.zeros(lanes)
        self.ended, self.over = np.ones(lanes, bool), np.ones(lanes, bool)

    def count(self, ctx: WorkerContext, lanes: np.ndarray, step: Batch, lane: int, agent: int = 0) -> tuple[int, int]:
        """Count one row of each of these lanes, and report the games that ended. Return the number of agent steps in
        these rows, and the number of games that ended.
        `lane`: index of the pool's first lane among the lanes of all workers.
        `agent`: number of the agent that plays these lanes. -1: nothing is reported, and both returned numbers are 0.
        """
        row = [step[key] for key in ("reward", "first", "over", "terminated", "truncated")]
        begun, games = _count(self.ret, self.length, self.ended, self.over, lanes, *row)
        if agent < 0:
            return 0, 0
        if "task" in step:
            ctx.counters.task_steps(step["task"][~step["first"]])
        for i in lanes[step["over"]].tolist() if games else ():
            ctx.counters.episode(self.ret[i], self.length[i], lane + i, agent)
        return len(lanes) - begun, games


@compiled
def _count(
    ret: np.ndarray, length: np.ndarray, ended: np.ndarray, was_over: np.ndarray, lanes: np.ndarray, *row: np.ndarray
) -> tuple[int, int]:
    reward, first, over, terminated, truncated = row
    begun = games = 0
    for b, i in enumerate(lanes):
        # a first row starts a new game if the last game was over, or if the lane was restarted in mid-episode
        if first[b] and (was_over[i] or not ended[i]):
            ret[i] = length[i] = 0.0
        ret[i] += reward[b]
        length[i] += not first[b]
        ended[i], was_over[i] = terminated[b] or truncated[b], over[b]
        begun, games = begun + first[b], games + over[b]
    return begun, games


def report_faults(ctx: WorkerContext, pool: Pool, counts: bool = True) -> None:
    """Log new failures and remarks of the environments. With `counts`, also report how often the pool has restarted
    environments. If several workers share the pool, only one of them may report restarts.
    """
    ctx.counters.set("restarts", pool.restarts if counts else 0)
    with contextlib.suppress(IndexError):  # another thread took the last one
        while pool.faults:
            ctx.log("warning", pool.faults.pop(0))
        while pool.remarks:
            ctx.log("remark", pool.remarks.pop(0))


# columns of a pool's rows
WRITTEN = ("obs", "mask", "reward", "terminated", "truncated", "first", "events", "task", "team_reward")


def write_row(rows: Batch, at: Index, step: Batch, out: Batch, version: int) -> None:
    for key in WRITTEN:
        if key in step:
            tree.write(rows[key], at, step[key])
    for key, value in out.items():
        tree.write(rows[key], at, value)
    rows["version"][at] = version


Pull = Callable[[int], int | None]  # pulls a round's weights; returns their version, or None: not published yet


@dataclass
class LanePlayer:
    """Player of some groups of lanes. It has the queue for its rows, and a function that pulls its weights."""

    policy: Player
    out: Producer | RolloutSlots | None  # where the player's rows are written; None: nowhere
    agent: int = 0  # number written into the player's rows; -1: the player does not train
    pull: Pull = lambda k: None
    version: int = -1  # version of the weights that act; -1: none yet
    fresh: bool = False  # whether older weights acted in the row that begins the rollout


class ScriptedPolicy(ArrayPlayer):
    """Player that takes its actions from a bot (a scripted opponent)."""

    def __init__(self, bot: SeatedBot):
        self.bot = bot

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act."""
        return {"action": tree.map(np.asarray, self.bot(step["obs"], step.get("mask")))}, state


DRAWN = 256  # number of acts whose noise is drawn at once
REPORTED = 0.25  # most seconds between two reports of an actor to the run's counters


@dataclass
class LaneGroup:
    """A fixed group of lanes (parallel environments) that step together, and the group's progress in its rollout."""

    lanes: slice
    indices: np.ndarray  # numbers of the lanes in the pool
    numbers: np.ndarray  # numbers of the lanes among all workers' lanes
    acts: np.ndarray  # how often each lane has acted
    state: Batch  # policy's state before the next row
    player: LanePlayer  # player that acts in the group
    noise: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))  # drawn ahead, [DRAWN, B, noise]
    epsilon: np.ndarray | None = None  # [DRAWN, B], for the same acts; None: computed per act, or not used
    drawn: int = 0  # number of the first act in `noise` and `epsilon`
    slot: int | None = None  # slot for the rows; None: rows are not written
    rows: Batch = field(default_factory=dict)  # the slot's rows [T+1, B, …]
    at: int = -1  # index of the next row in the rollout; -1: no rollout has begun
    parked: bool = False
    step: Batch = field(default_factory=dict)  # the row in which the group is parked, as it arrived
    outputs: Batch = field(default_factory=dict)  # the policy's outputs in the last row
    after: Batch = field(default_factory=dict)  # the policy's state after the last row


class Actor:
    """Acts in all lanes (parallel environments) of a pool. Either one player acts in all groups of lanes, or each group
    has a separate player (see `act_at_table`).
    """

    def __init__(self, ctx: WorkerContext, pool: Pool, players: Sequence[LanePlayer], first_lane: int):
        """`players`: one player for all groups of lanes, or one player for each group."""
        assert players[0].out is not None
        self.ctx, self.pool, self.players, self.out = ctx, pool, players, players[0].out
        self.first_lane, indices = first_lane, np.arange(pool.lanes)
        self.games = EpisodeCounter(pool.lanes)
        self.acts = np.zeros(pool.lanes, np.int64)
        self.width, self.noise = pool.lanes // pool.groups, players[0].policy.noise
        self.groups = list[LaneGroup]()
        for i in range(pool.groups):
            lanes = slice(i * self.width, (i + 1) * self.width)
            player = self.players[i % len(self.players)]
            state = player.policy.initial(self.width)
            own = indices[lanes]
            self.groups.append(LaneGroup(lanes, own, first_lane + own, self.acts[lanes], state, player))
        self.rows = dict[int, Batch]()  # rows of each slot
        self.restored, self.begun = False, time.monotonic()  # begun: time when the rollout began
        # since the last report: seconds in pool and players, agent steps, calls of players; and the time of that report
        self.env, self.infer, self.steps, self.calls, self.reported = 0.0, 0.0, 0, 0, 0.0
        self.watch: Callable[[slice, Batch], None] | None = None  # called with lanes and rows that come
        self.device: torch.device | None = None  # to which observations are moved on arrival
        self.explore: Exploration | None = None  # exploration that the policy does not do itself
        self.held: WeightCache | None = None  # copy of the weights, and its age in rollouts
        self.pulled = 0  # number of players that have the next rollout's weights, while others still wait
        self.bootstrap = True  # whether a last row needs outputs; else the next rollout acts in this row

    def move_rows(self, device: torch.device) -> None:
        """Keep the observations on a GPU, where both the actor and the learner read them. On a CPU, do nothing."""
        if device.type != "cpu":
            self.device, self.out.rows["obs"] = device, to_device(self.out.rows["obs"], device)

    def rollouts(self, pull: Pull | None = None) -> Iterator[list[int] | None]:
        """Yield the slots of finished rollouts, which the caller must commit. A slot is the memory of one rollout.
        Yield None while waiting. Players that do not train have no slots.

        `pull`: function that pulls the weights for a given round of rollouts and returns their version, or None if they
            are not published yet. Without `pull`, the method `pull` of each player is called.
        """
        if pull is not None:
            self.players[0].pull = pull
        if pull is not None or not self.restored:  # at a resumed table, some players may have their weights already
            yield from self._pull(0)
        k = self.out.committed // len(self.groups)  # finished rounds: a replacement continues where the actor was lost
        if not self.restored:
            self.begun = time.monotonic()
            yield from self._gather()
        while True:
            slots: list[int] = []
            with self.ctx.counters.timed("wait"):
                written = [group for group in self.groups if group.player.out is not None]
                while len(slots) < len(written):
                    if (slot := self.out.slot()) is None:
                        yield None
                    else:
                        group = written[len(slots)]
                        if slot not in self.rows:
                            self.rows[slot] = tree.at(self.out.rows, slot)
                        group.slot, group.rows = slot, self.rows[slot]
                        slots.append(slot)
            yield from self._pull(k)
            again, k, self.restored, self.begun = self.restored, k + 1, False, time.monotonic()
            for group in self.groups:  # row 0 is the parked row
                acts = again or group.player.fresh or not self.bootstrap
                if acts:
                    group.acts -= self.bootstrap  # repeat the act with the same noise
                if group.slot is not None:
                    self.out.rows["agent"][group.slot] = group.player.agent
                step, group.step, group.at, group.parked = group.step, {}, 0, False
                self._serve(group, step, acts)
            yield from self._gather()
            yield slots

    def _pull(self, k: int) -> Generator[None, None, None]:
        for player in self.players[self.pulled :]:
            with self.ctx.counters.timed("wait"):
                while (version := player.pull(k)) is None:
                    yield None
            self.pulled += 1
            player.fresh = version != player.version
            if not player.fresh:
                continue
            player.version = version
            with self.ctx.counters.timed("infer"):
                player.policy.cache_weights()
        self.pulled = 0

    def _gather(self) -> Iterator[None]:
        """Act until every group of lanes has finished its rollout. Yield None while waiting."""
        waiting = sum(not g.parked for g in self.groups)
        try:
            while waiting:
                lanes, step = self._receive()
                if self.pool.faults or self.pool.remarks:
                    report_faults(self.ctx, self.pool)
                if lanes is None:
                    self._report()
                    yield None
                    continue
                group = self.groups[lanes.start // self.width]
                steps, games = self.games.count(self.ctx, group.indices, step, self.first_lane, group.player.agent)
                self.steps += steps
                if games or time.perf_counter() - self.reported > REPORTED:
                    self._report()
                if self.watch is not None:
                    self.watch(lanes, step)
                parks = group.at < 0 or group.at == self.out.T
                if parks and not self.bootstrap:
                    group.outputs = {}
                if self.device is not None:
                    step = {**step, "obs": to_device(step["obs"], self.device)}
                self._serve(group, step, self.bootstrap or not parks)
                waiting -= group.parked
                self.ctx.turn()
                if self.ctx.control.finishing and self.late():
                    self._report()
                    yield None
        finally:
            self._report()

    def _receive(self) -> tuple[slice | None, Batch]:
        began = time.perf_counter()
        try:
            lanes, step = self.pool.recv(self.ctx.patience)
        except TimeoutError:
            return None, {}
        finally:
            self.env += time.perf_counter() - began
        assert isinstance(lanes, slice)  # pools that give any ready lanes are for Predictors
        return lanes, step

    def _report(self) -> None:
        """Add the counts since the last report to the run's counters."""
        counters = self.ctx.counters
        counters.add("env", self.env)
        counters.add("infer", self.infer)
        counters.add("steps", self.steps)
        counters.served(self.width, self.calls)
        self.env, self.infer, self.steps, self.calls, self.reported = 0.0, 0.0, 0, 0, time.perf_counter()

    def late(self) -> bool:
        """Tell whether the current rollout would not be finished before the run ends."""
        if self.between:
            return False
        rows = 1 + min(group.at for group in self.groups if not group.parked)
        return self.ctx.late((time.monotonic() - self.begun) / max(rows, 1) * (self.out.T + 1 - rows))

    def _serve(self, group: LaneGroup, step: Batch, acts: bool = True) -> None:
        """Choose actions for a row of a group, write the row, and send the actions. After the last row of a rollout,
        park the group instead of sending actions. With acts=False, use the actions that were chosen before.
        """
        at, out = group.at, self.out
        if acts:
            self._act(group, step)
        if group.slot is not None:
            if group.state and (at == 0 or (out.window and at % out.window == 0 and at < out.T)):
                where: Index = (group.slot, at // out.window) if out.window else group.slot
                tree.write(out.state, where, tree.map(lambda x: x.numpy(), group.state))
            write_row(group.rows, at, step, group.outputs, group.player.version)
        if at < 0 or at == out.T:
            group.step, group.parked = step, True
            return
        group.state, group.at = group.after, at + 1
        began = time.perf_counter()
        self.pool.send(group.lanes, group.outputs["action"])
        self.env += time.perf_counter() - began

    def _act(self, group: LaneGroup, step: Batch) -> None:
        began = time.perf_counter()
        now = int(group.acts[0])
        if not 0 <= now - group.drawn < len(group.noise):
            self._draw(group, now)
        noise, epsilon = group.noise[now - group.drawn], None
        if group.epsilon is not None:
            epsilon = group.epsilon[now - group.drawn]
        elif self.explore is not None:
            epsilon = self.explore.at(group.acts, group.numbers)
        group.acts += 1
        group.outputs, group.after = act_rows(group.player.policy, step, group.state, noise, epsilon)
        self.infer += time.perf_counter() - began
        self.calls += 1

    def _draw(self, group: LaneGroup, now: int) -> None:
        steps, group.drawn = now + np.arange(DRAWN)[:, None], now
        group.noise = uniform(self.ctx.noise_seed, group.numbers, steps, self.noise)
        if self.explore is not None and type(self.explore) in PURE:
            acts, lanes = np.broadcast_arrays(steps, group.numbers)
            group.epsilon = self.explore.at(acts.ravel(), lanes.ravel()).reshape(acts.shape)

    # ------------------------------------------------------------------------------------------- saving

    @property
    def between(self) -> bool:
        """Whether the actor is between two rollouts: all groups of lanes have finished the last one."""
        return all(g.parked for g in self.groups)

    def save(self) -> Batch | None:
        """Return the actor's state as arrays, or None if the environments cannot be saved. Call it between rollouts."""
        pool = self.pool.state()
        if pool is None:
            return None
        groups = {
            str(i): {"step": tree.map(to_host, g.step), "state": tree.map(lambda x: x.numpy(), g.state)}
            for i, g in enumerate(self.groups)
        }
        own = {"acts": self.acts, "groups": groups, "incarnation": np.array(self.ctx.incarnation)}
        if self.held is not None and (held := self.held.save()):
            own["held"] = held
        return {"pool": pool, "games": dict(vars(self.games)), **own}

    def load(self, saved: Batch) -> None:
        """Restore what `save` returned. Raises UserError if an earlier version of Polyplay saved the state."""
        try:
            self.pool.load(saved["pool"])
        except KeyError as e:
            raise UserError(f"RUN: an earlier version saved its lanes, without {e}: resume with that version") from None
        for k, v in saved["games"].items():
            getattr(self.games, k)[:] = v
        self.acts[:] = saved["acts"]
        if self.held is not None and "held" in saved:
            self.held.load(saved["held"])
        for i, group in enumerate(self.groups):
            found = saved["groups"][str(i)]
            group.step = tree.map(np.array, found["step"])
            if self.device is not None:
                group.step["obs"] = to_device(group.step["obs"], self.device)
            group.state = tree.map(lambda x: torch.from_numpy(np.array(x)), found.get("state", {}))
            group.parked = True
        self.restored = True


class TapeRecorder(Player):
    """Policy that records its activations while acting. A learner with the same weights need not compute them again."""

    def __init__(self, policy: ActorCritic, groups: int, T: int):
        self.policy, self.noise, self.groups, self.T = policy, policy.noise, groups, T
        self.tapes: list[Tape] = []

    def initial(self, lanes: int) -> Batch:
        return self.policy.initial(lanes)

    def cache_weights(self) -> None:
        self.policy.cache_weights()

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See ActorCritic.act. The recorded activations stay on the policy's device."""
        self.tapes.append([])
        return self.policy.act(step, state, self.tapes[-1])

    def take(self) -> Tape:
        """Return the activations in rows 0 to T-1 of the last rollout, for all groups of lanes."""
        tape = join_tapes(self.tapes[-self.groups * (self.T + 1) : -self.groups])
        self.tapes = self.tapes[-self.groups :]  # of the parked rows, with which the next rollout begins
        return tape
