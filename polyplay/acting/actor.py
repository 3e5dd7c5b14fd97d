"""The acting loop, written once: receive rows, choose actions, write rows, send.

Everything that paces acting against learning is here: a group of lanes that has finished its rollout is parked, unsent;
when all are parked their slots are given away and new ones taken, weights are pulled once (waiting for the round that
the lag allows), actions of the parked rows are chosen again if the weights are new, and all groups are sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch

from polyplay.acting.exploration import Exploration
from polyplay.acting.on_device import row_to_device
from polyplay.acting.rows import POLICY_INPUTS, EpisodeCounter, as_tensors, write_row
from polyplay.buffers.rollout_queue import Producer
from polyplay.buffers.rollout_slots import RolloutSlots
from polyplay.common import tree
from polyplay.common.context import WorkerContext
from polyplay.common.rng import LaneUniforms
from polyplay.common.tree import Batch
from polyplay.envs.pool import Pool
from polyplay.nets.activation_reuse import Tape, join_tapes
from polyplay.nets.device import to_host
from polyplay.nets.policy import Policy, TapedPolicy
from polyplay.weights.params import HeldWeights


@dataclass
class LaneGroup:
    """A fixed group of lanes on its way through a rollout."""

    lanes: slice
    noise: LaneUniforms
    state: Batch  # before the row that comes next
    slot: int | None = None  # None: the first rollout has not begun
    at: int = 0  # rows in the slot
    parked: bool = False
    step: Batch = field(default_factory=dict)  # the parked row as it arrived,
    outputs: Batch = field(default_factory=dict)  # the policy's outputs there,
    after: Batch = field(default_factory=dict)  # and its state behind it


class Actor:
    """Acts in every lane of a pool. Its state between two rollouts can be saved where the pool's can."""

    def __init__(self, ctx: WorkerContext, pool: Pool, policy: Policy, out: Producer | RolloutSlots, first_lane: int):
        self.ctx, self.pool, self.policy, self.out = ctx, pool, policy, out
        self.first_lane, self.numbers = first_lane, first_lane + np.arange(pool.lanes)
        self.games = EpisodeCounter(pool.lanes)
        self.acts = np.zeros(pool.lanes, np.int64)
        self.width = pool.lanes // pool.groups
        self.groups = list[LaneGroup]()
        for i in range(pool.groups):
            lanes = slice(i * self.width, (i + 1) * self.width)
            noise = LaneUniforms(ctx.noise_seed, self.numbers[lanes], policy.noise)
            self.groups.append(LaneGroup(lanes, noise, policy.initial(self.width)))
        self.version = -1  # of the weights that act; -1: none yet
        self.restored = False
        self.explore: Exploration | None = None  # how often to play at random, where the policy does not decide it
        self.held: HeldWeights | None = None  # which weights act, where that is not the pull's matter alone
        self.bootstrap = True  # whether the last row's outputs are wanted; without, it is acted in once, in the next

    def rollouts(self, pull: Callable[[int], int | None]) -> Iterator[list[int] | None]:
        """Yield the slots of each finished rollout, one per group, before they are given away; None: nothing yet.

        pull(k) brings the weights for round k, a rollout of every group, and returns their version; None: they are not
        published yet.
        """
        yield from self._pull(pull, 0)
        k = self.out.committed // len(self.groups)  # rounds done: a replaced actor goes on where it was lost
        if not self.restored:
            yield from self._gather()
        while True:
            slots: list[int] = []
            with self.ctx.counters.timed("wait"):
                while len(slots) < len(self.groups):
                    if (slot := self.out.slot()) is None:
                        yield None
                    else:
                        slots.append(slot)
            again = (yield from self._pull(pull, k)) or self.restored
            k, self.restored = k + 1, False
            for group, slot in zip(self.groups, slots, strict=True):  # row 0 is the parked row
                if again or not self.bootstrap:
                    self.acts[group.lanes] -= self.bootstrap  # the same noise as the first time
                    group.outputs, group.after = self._act(group, group.step)
                tree.write(self.out.state, slot, tree.map(lambda x: x.numpy(), group.state))
                write_row(self.out.rows, (slot, 0), group.step, group.outputs, self.version)
                group.slot, group.at, group.parked, group.step = slot, 0, False, {}
                self._send(group, group.outputs, group.after)
            yield from self._gather()
            yield slots

    def _pull(self, pull: Callable[[int], int | None], k: int) -> Generator[None, None, bool]:
        """Whether the weights for round k are new; they stay for a rollout."""
        with self.ctx.counters.timed("wait"):
            while (version := pull(k)) is None:
                yield None
        if version == self.version:
            return False
        self.version = version
        if hasattr(self.policy, "hold"):
            with self.ctx.counters.timed("infer"):
                self.policy.hold()
        return True

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
            self.games.count(self.ctx, lanes, step, self.first_lane)
            assert isinstance(lanes, slice)  # pools that serve whoever is ready are a Predictor's
            group = self.groups[lanes.start // self.width]
            last = group.slot is None or group.at == self.out.T
            outputs, after = ({}, {}) if last and not self.bootstrap else self._act(group, step)
            if group.slot is not None:
                write_row(self.out.rows, (group.slot, group.at), step, outputs, self.version)
            if last:
                group.step, group.outputs, group.after, group.parked = step, outputs, after, True
                waiting -= 1
            else:
                self._send(group, outputs, after)
            self.ctx.turn()

    def _act(self, group: LaneGroup, step: Batch) -> tuple[Batch, Batch]:
        with self.ctx.counters.timed("infer"), torch.no_grad():
            inputs = {k: step[k] for k in POLICY_INPUTS if k in step}
            inputs["noise"] = group.noise.row(int(self.acts[group.lanes.start]))
            if self.explore is not None:
                inputs["epsilon"] = self.explore.at(self.acts[group.lanes], self.numbers[group.lanes])
            self.acts[group.lanes] += 1
            outputs, after = self.policy.act(as_tensors(inputs), group.state)
        self.ctx.counters.served(self.width)
        return outputs, after

    def _send(self, group: LaneGroup, outputs: Batch, after: Batch) -> None:
        group.state = after
        group.at += 1
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
            group.step = row_to_device(self.pool, tree.map(np.array, found["step"]))
            group.state = tree.map(lambda x: torch.from_numpy(np.array(x)), found.get("state", {}))
            group.parked = True
        self.restored = True


class TapeRecorder:
    """A policy that records its activations, for a learner with the same weights (nets.activation_reuse)."""

    def __init__(self, policy: Policy, groups: int, T: int):
        self.policy, self.groups, self.T = policy, groups, T
        self.tapes: list[Tape] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.policy, name)

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act."""
        self.tapes.append([])
        return cast("TapedPolicy", self.policy).act(step, state, self.tapes[-1])

    def take(self) -> Tape:
        """Of the rollout that was just finished: rows 0..T-1 of all groups, side by side."""
        tape = join_tapes(self.tapes[-self.groups * (self.T + 1) : -self.groups])
        self.tapes = self.tapes[-self.groups :]  # the parked rows' are the next rollout's first if the weights stay
        return tape
