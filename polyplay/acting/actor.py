"""The acting loop for lanes in step.

The acting loop, written once: receive rows, choose actions, write rows, send.

Everything that paces acting against learning is here: a group of lanes that has finished its rollout is parked, unsent;
when all are parked their slots are given away and new ones taken, weights are pulled once (waiting for the round that
the lag allows), actions of the parked rows are chosen again if the weights are new, and all groups are sent on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from polyplay.acting.rows import EpisodeCounter, Exploration, act_rows, write_row
from polyplay.buffers.rollout_queue import Producer, RolloutSlots
from polyplay.core import tree
from polyplay.core.numbers import LaneUniforms
from polyplay.core.tree import Batch, Index
from polyplay.core.worker import WorkerContext
from polyplay.envs.lane import SeatedBot
from polyplay.envs.pool import Pool
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.device import to_device, to_host
from polyplay.nets.layers import Tape, join_tapes
from polyplay.nets.policy import Player
from polyplay.weights.params import WeightCache

Pull = Callable[[int], int | None]  # of a round: bring its weights; their version, None: they are not there yet


@dataclass
class LanePlayer:
    """One may act in several groups of an actor's lanes."""

    policy: Player
    out: Producer | RolloutSlots | None  # None: its rows are not written
    agent: int = 0  # what its rows say; -1: no agent that learns
    pull: Pull = lambda k: None
    version: int = -1  # of the weights that act; -1: none yet
    fresh: bool = False  # these are not those that acted in the row that a rollout begins with


class ScriptedPolicy(Player):
    """A bot as a player."""

    def __init__(self, bot: SeatedBot):
        self.bot = bot

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """As Policy.act."""
        seen, mask = (tree.map(lambda x: x.numpy(), step[k]) if k in step else None for k in ("obs", "mask"))
        return {"action": tree.map(lambda x: torch.from_numpy(np.asarray(x)), self.bot(seen, mask))}, state


@dataclass
class LaneGroup:
    """A fixed group of lanes on its way through a rollout."""

    lanes: slice
    noise: LaneUniforms
    state: Batch  # before the row that comes next
    player: LanePlayer  # who acts in it
    slot: int | None = None  # None: its rows are not written
    at: int = -1  # rows of the rollout so far; -1: the first has not begun
    parked: bool = False
    step: Batch = field(default_factory=dict)  # the parked row as it arrived,
    outputs: Batch = field(default_factory=dict)  # the policy's outputs there,
    after: Batch = field(default_factory=dict)  # and its state behind it


class Actor:
    """Acts in every lane of a pool. Its state between two rollouts can be saved where the pool's can.

    One player acts in all groups of lanes, or each has its own (a table, see worker).
    """

    def __init__(self, ctx: WorkerContext, pool: Pool, players: Sequence[LanePlayer], first_lane: int):
        """players: of the groups, in order, or one for all; rows go to one place, with the same noise."""
        assert players[0].out is not None
        self.ctx, self.pool, self.players, self.out = ctx, pool, players, players[0].out
        self.first_lane, self.numbers = first_lane, first_lane + np.arange(pool.lanes)
        self.games = EpisodeCounter(pool.lanes)
        self.acts = np.zeros(pool.lanes, np.int64)
        self.width = pool.lanes // pool.groups
        self.groups = list[LaneGroup]()
        for i in range(pool.groups):
            lanes = slice(i * self.width, (i + 1) * self.width)
            player = self.players[i % len(self.players)]
            noise = LaneUniforms(ctx.noise_seed, self.numbers[lanes], players[0].policy.noise)
            self.groups.append(LaneGroup(lanes, noise, player.policy.initial(self.width), player))
        self.restored, self.begun = False, time.monotonic()  # begun: when the rollout was
        self.watch: Callable[[slice, Batch], None] | None = None  # told of all rows that come
        self.device: torch.device | None = None  # that observations go to as they come, once
        self.explore: Exploration | None = None  # how often to play at random, where the policy does not decide it
        self.held: WeightCache | None = None  # which weights act, where that is not the pull's matter alone
        self.pulled = 0  # players that have the weights of the next rollout, while others wait for theirs
        self.bootstrap = True  # whether the last row's outputs are wanted; without, it is acted in once, in the next

    def move_rows(self, device: torch.device) -> None:
        """Have observations on a GPU from now on, in the slots too: both acting and learning read them there."""
        if device.type != "cpu":
            self.device, self.out.rows["obs"] = device, to_device(self.out.rows["obs"], device)

    def rollouts(self, pull: Pull | None = None) -> Iterator[list[int] | None]:
        """Yield the slots of each finished rollout, one per group whose rows are written, before they are given away;
        None: nothing yet.

        pull(k) brings the weights for round k, a rollout of every group, and returns their version; None: they are not
        published yet. Players of a table bring their own.
        """
        if pull is not None:
            self.players[0].pull = pull
        if pull is not None or not self.restored:  # at a table that is taken up again, some may have theirs already
            yield from self._pull(0)
        k = self.out.committed // len(self.groups)  # rounds done: a replaced actor goes on where it was lost
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
                        written[len(slots)].slot = slot
                        slots.append(slot)
            yield from self._pull(k)
            again, k, self.restored, self.begun = self.restored, k + 1, False, time.monotonic()
            for group in self.groups:  # row 0 is the parked row
                if again or group.player.fresh or not self.bootstrap:
                    self.acts[group.lanes] -= self.bootstrap  # the same noise as the first time
                    group.outputs, group.after = self._act(group, group.step)
                if group.slot is not None:
                    self.out.rows["agent"][group.slot] = group.player.agent
                step, group.step, group.at, group.parked = group.step, {}, 0, False
                self._answer(group, step, group.outputs, group.after)
            yield from self._gather()
            yield slots

    def _pull(self, k: int) -> Generator[None, None, None]:
        """The weights of all players for round k; they stay for a rollout."""
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
        """Receive, act, write and send until every group is parked on its last row."""
        waiting = sum(not g.parked for g in self.groups)
        while waiting:
            try:
                with self.ctx.counters.timed("env"):
                    lanes, step = self.pool.recv(self.ctx.patience)
            except TimeoutError:
                yield None
                continue
            assert isinstance(lanes, slice)  # pools that serve whoever is ready are a Predictor's
            group = self.groups[lanes.start // self.width]
            self.games.count(self.ctx, lanes, step, self.first_lane, group.player.agent)
            if self.watch is not None:
                self.watch(lanes, step)
            skips = not self.bootstrap and (group.at < 0 or group.at == self.out.T)
            if self.device is not None:
                step = {**step, "obs": to_device(step["obs"], self.device)}
            self._answer(group, step, *({}, {}) if skips else self._act(group, step))
            waiting -= group.parked
            self.ctx.turn()
            if self.ctx.control.finishing and self.late():
                yield None

    def late(self) -> bool:
        """Whether the run ends in the middle of a rollout that is not waited for."""
        if self.between:
            return False
        rows = 1 + min(group.at for group in self.groups if not group.parked)
        return self.ctx.late((time.monotonic() - self.begun) / max(rows, 1) * (self.out.T + 1 - rows))

    def _act(self, group: LaneGroup, step: Batch) -> tuple[Batch, Batch]:
        with self.ctx.counters.timed("infer"):
            lanes, acts = group.lanes, self.acts[group.lanes]
            noise = group.noise.row(int(acts[0]))
            epsilon = None if self.explore is None else self.explore.at(acts, self.numbers[lanes])
            acts += 1
            outputs, after = act_rows(group.player.policy, step, group.state, noise, epsilon)
        self.ctx.counters.served(self.width)
        return outputs, after

    def _answer(self, group: LaneGroup, step: Batch, outputs: Batch, after: Batch) -> None:
        """Write the group's next row, and the state before it where a rollout or a window begins there. Then send the
        actions, or park on the last row.
        """
        at, out = group.at, self.out
        if group.slot is not None:
            if at == 0 or (out.window and at % out.window == 0 and at < out.T):
                where: Index = (group.slot, at // out.window) if out.window else group.slot
                tree.write(out.state, where, tree.map(lambda x: x.numpy(), group.state))
            write_row(out.rows, (group.slot, at), step, outputs, group.player.version)
        if at < 0 or at == out.T:
            group.step, group.outputs, group.after, group.parked = step, outputs, after, True
            return
        group.state, group.at = after, at + 1
        with self.ctx.counters.timed("env"):
            self.pool.send(group.lanes, tree.map(lambda x: x.numpy(), outputs["action"]))

    # ------------------------------------------------------------------------------------------- saving

    @property
    def between(self) -> bool:
        """Between two rollouts: every lane waits for its action."""
        return all(g.parked for g in self.groups)

    def save(self) -> Batch | None:
        """Everything between two rollouts as arrays, or None where the pool cannot save itself."""
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
        self.pool.load(saved["pool"])
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
    """A policy that records its activations, for a learner with the same weights (nets.layers.Tape)."""

    def __init__(self, policy: ActorCritic, groups: int, T: int):
        self.policy, self.noise, self.groups, self.T = policy, policy.noise, groups, T
        self.tapes: list[Tape] = []

    def initial(self, lanes: int) -> Batch:
        return self.policy.initial(lanes)

    def cache_weights(self) -> None:
        self.policy.cache_weights()

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See ActorCritic.act. What goes on a tape stays on the policy's device."""
        self.tapes.append([])
        return self.policy.act(step, state, self.tapes[-1])

    def take(self) -> Tape:
        """Of the rollout that was just finished: rows 0..T-1 of all groups, side by side."""
        tape = join_tapes(self.tapes[-self.groups * (self.T + 1) : -self.groups])
        self.tapes = self.tapes[-self.groups :]  # the parked rows' are the next rollout's first if the weights stay
        return tape
