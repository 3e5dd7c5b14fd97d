"""The acting loop, written once: receive rows, choose actions, write rows, send.

Everything that paces acting against learning is here: a group of lanes that has finished its rollout is parked, unsent;
when all are parked their slots are given away and new ones taken, weights are pulled once (waiting for the round that
`lag` asks for), actions of the parked rows are said again if the weights are new, and all groups are sent on.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import torch

from polyplay.acting.exploration import Exploration
from polyplay.acting.on_device import row_to_device
from polyplay.acting.rows import POLICY_INPUTS, EpisodeCounter, as_tensors, write_row
from polyplay.buffers.rollout_queue import Producer
from polyplay.common import tree
from polyplay.common.context import WorkerContext
from polyplay.common.rng import LaneUniforms, uniform
from polyplay.common.tree import Batch
from polyplay.envs.pool import Pool
from polyplay.nets.activation_reuse import join_tapes
from polyplay.nets.device import to_host
from polyplay.weights.flat import FlatParams
from polyplay.weights.params import Params


class LaneGroup:
    """A fixed group of lanes on its way through a rollout; `at` counts rows per lane, all equal in fixed pools."""

    def __init__(self, start: int, width: int, state: Batch):
        self.start, self.width = start, width
        self.at = np.zeros(width, np.int64)
        self.parked = np.zeros(width, bool)
        self.slot: int | None = None
        self.rows: Batch = {}
        self.state = state  # before the rows that come next
        self.step: Batch = {}  # the parked rows as they arrived,
        self.out: Batch = {}  # what the policy said there,
        self.after: Batch = {}  # and its state behind them
        self.tapes: list[Any] = []  # of the rollout's rows but the last, where they are kept
        self.tape: Any = None  # of the parked rows


class Actor:
    """Acts in every lane of a pool. Its state between two rollouts can be saved where the pool's can."""

    def __init__(self, ctx: WorkerContext, pool: Pool, policy: Any, out: Producer, first_lane: int):
        self.ctx, self.pool, self.policy, self.out = ctx, pool, policy, out
        self.first_lane, self.numbers = first_lane, first_lane + np.arange(pool.lanes)
        self.noises: dict[int, LaneUniforms] = {}  # by a group's first lane
        self.games = EpisodeCounter(pool.lanes)
        self.acts = np.zeros(pool.lanes, np.int64)
        self.width = pool.lanes // pool.groups
        self.groups = [LaneGroup(g * self.width, self.width, policy.initial(self.width)) for g in range(pool.groups)]
        self.restored = False
        self.keeps = False  # tapes of every rollout, see `tape`
        self.explore: Exploration | None = None  # how often to play at random, where the policy leaves that to others

    def rollouts(
        self,
        params: Params | None = None,
        vector: FlatParams | None = None,
        lag: int | None = None,
        version: Any = None,
    ) -> Iterator[list[int] | None]:
        """Yield the slots of each finished rollout, one per group, before they are given away; None: nothing yet.

        With `params`, rollout k waits for the weights of round k - lag: 0 is on-policy, 1 overlaps acting with
        learning, None runs free. Without, the weights are the caller's own and `version()` is theirs.
        """
        while params is not None and not params.wait(0, self.ctx.index, self.out.queue.patience):
            yield None
        held = params.pull(vector) if params is not None and vector is not None else version()
        self._hold()
        k = self.out.committed // len(self.groups)  # rounds done: a replaced actor goes on where it was lost
        if not self.restored:
            yield from self._gather(held)
        while True:
            slots = yield from self._slots()
            if params is not None and vector is not None:
                before = time.perf_counter()
                while lag is not None and not params.wait(k - lag, self.ctx.index, self.out.queue.patience):
                    yield None
                newest = params.pull(vector, held)
                self.ctx.counters.add("wait", time.perf_counter() - before)
            else:
                newest = version()
            if newest != held:
                self._hold()
            for group, slot in zip(self.groups, slots, strict=True):
                self._start(group, slot, again=newest != held or self.restored, held=newest)
            held, k, self.restored = newest, k + 1, False
            yield from self._gather(held)
            yield [g.slot for g in self.groups if g.slot is not None]
            for group in self.groups:
                group.slot = None

    def _hold(self) -> None:
        """The weights are new, and stay for a rollout."""
        if hasattr(self.policy, "hold"):
            before = time.perf_counter()
            self.policy.hold()
            self.ctx.counters.add("infer", time.perf_counter() - before)

    def _gather(self, held: int) -> Iterator[None]:
        """Receive, act, write and send until every lane is parked on its last row."""
        waiting = sum(g.width - int(g.parked.sum()) for g in self.groups)
        while waiting:
            before = time.perf_counter()
            try:
                lanes, step = self.pool.recv(self.out.queue.patience)
            except TimeoutError:
                self.ctx.counters.add("env", time.perf_counter() - before)
                yield None
                continue
            self.ctx.counters.add("env", time.perf_counter() - before)
            self.games.count(self.ctx, lanes, step, self.first_lane)
            group, where = self._locate(lanes)
            waiting -= self._advance(group, where, lanes, step, held)
            self.ctx.turn()

    def _locate(self, lanes: Any) -> tuple[LaneGroup, Any]:
        if isinstance(lanes, slice):
            return self.groups[(lanes.start or 0) // self.width], slice(None)
        return self.groups[0], lanes

    def _advance(self, group: LaneGroup, where: Any, lanes: Any, step: Batch, held: int) -> int:
        """Act on rows that arrived; how many lanes were parked by it."""
        fixed = isinstance(where, slice)
        state = group.state if fixed else tree.map(lambda x: x[where], group.state)
        group.tape = [] if self.keeps else None
        out, after = self._act(lanes, step, state, group.tape)
        done = group.slot is None or (group.at[0] == self.out.T if fixed else group.at[where] == self.out.T)
        if group.slot is not None:
            row = int(group.at[0]) if fixed else group.at[where]
            write_row(group.rows, (row, where), step, out, held)
        if fixed:
            if done:
                group.step, group.out, group.after = step, out, after
                group.parked[:] = True
                return group.width
            group.tapes.append(group.tape)
            return self._send(group, where, lanes, out, after)
        park = np.broadcast_to(done, lanes.shape)
        go = ~park
        if go.any():
            pick = torch.from_numpy(np.flatnonzero(go))
            chosen = tree.map(lambda x: x[pick], out)
            self._send(group, where[go], lanes[go], chosen, tree.map(lambda x: x[pick], after))
        if park.any():
            self._park(group, where, park, step, out, after)
        return int(park.sum())

    def _send(self, group: LaneGroup, where: Any, lanes: Any, out: Batch, after: Batch) -> int:
        if isinstance(where, slice):
            group.state = after
        else:
            tree.map(lambda x, y: x.__setitem__(torch.from_numpy(where), y), group.state, after)
        group.at[where] += 1
        before = time.perf_counter()
        self.pool.send(lanes, tree.map(lambda x: x.numpy(), out["action"]))
        self.ctx.counters.add("env", time.perf_counter() - before)
        return 0

    def _park(
        self, group: LaneGroup, where: np.ndarray, park: np.ndarray, step: Batch, out: Batch, after: Batch
    ) -> None:
        """Keep some lanes' last rows until the others have theirs (pools that answer whoever is ready)."""
        if not group.step:
            group.step = tree.map(lambda x: np.zeros((group.width, *x.shape[1:]), x.dtype), step)
            group.out = tree.map(lambda x: torch.zeros((group.width, *x.shape[1:]), dtype=x.dtype), out)
            group.after = tree.map(torch.clone, group.state)
        lanes = where[park]
        tree.map(lambda into, x: into.__setitem__(lanes, x[park]), group.step, step)
        pick, chosen = torch.from_numpy(lanes), torch.from_numpy(np.flatnonzero(park))
        tree.map(lambda into, x: into.__setitem__(pick, x[chosen]), group.out, out)
        tree.map(lambda into, x: into.__setitem__(pick, x[chosen]), group.after, after)
        group.parked[lanes] = True

    def _slots(self) -> Generator[None, None, list[int]]:
        """An empty slot for each group."""
        before = time.perf_counter()
        slots: list[int] = []
        while len(slots) < len(self.groups):
            slot = self.out.slot()
            if slot is None:
                yield None
            else:
                slots.append(slot)
        self.ctx.counters.add("wait", time.perf_counter() - before)
        return slots

    def _start(self, group: LaneGroup, slot: int, again: bool, held: int) -> None:
        """Row 0 of the slot is the parked row, said again if the weights are new; send the group on."""
        lanes = slice(group.start, group.start + group.width)
        group.slot, group.rows = slot, self.out.row(slot)
        if again:
            self.acts[lanes] -= 1  # the same noise as when it was said first
            group.tape = [] if self.keeps else None
            group.out, group.after = self._act(lanes, group.step, group.state, group.tape)
        group.tapes = [group.tape]
        tree.map(lambda x, y: x.__setitem__(slice(None), y.numpy()), self.out.state(slot), group.state)
        write_row(group.rows, (0, slice(None)), group.step, group.out, held)
        group.at[:], group.parked[:] = 0, False
        fixed = self.pool.fixed
        self._send(group, slice(None), lanes if fixed else np.arange(group.width), group.out, group.after)
        if not fixed:
            group.state = tree.map(torch.clone, group.state)
        group.step = {}

    def tape(self) -> Any:
        """Of the rollout that was just yielded, rows 0..T-1 of all groups side by side; None where none is kept."""
        if not self.keeps:
            return None
        return join_tapes([tape for row in zip(*(g.tapes for g in self.groups), strict=True) for tape in row])

    def _act(self, lanes: Any, step: Batch, state: Batch, tape: Any = None) -> tuple[Batch, Batch]:
        before = time.perf_counter()
        heard = {k: step[k] for k in POLICY_INPUTS if k in step}
        heard["noise"] = self._noise(lanes)
        if self.explore is not None:
            heard["epsilon"] = self.explore.at(self.acts[lanes], self.numbers[lanes])
        self.acts[lanes] += 1
        with torch.no_grad():
            answer = self.policy.act(as_tensors(heard), state, *([] if tape is None else [tape]))
        self.ctx.counters.add("infer", time.perf_counter() - before)
        self.ctx.counters.served(len(heard["first"]))
        return answer

    def _noise(self, lanes: Any) -> np.ndarray:
        if not isinstance(lanes, slice):
            return uniform(self.ctx.noise_seed, self.numbers[lanes], self.acts[lanes], self.policy.noise)
        start = lanes.start or 0
        source = self.noises.get(start)
        if source is None:
            source = self.noises[start] = LaneUniforms(self.ctx.noise_seed, self.numbers[lanes], self.policy.noise)
        return source.row(int(self.acts[start]))

    # ------------------------------------------------------------------------------------------- saving

    @property
    def between(self) -> bool:
        """Between two rollouts: every lane waits for its answer."""
        return all(g.parked.all() for g in self.groups)

    def save(self) -> Batch | None:
        """Everything between two rollouts as arrays, or None where the pool cannot save itself."""
        pool = self.pool.state()
        if pool is None:
            return None
        games = dict(vars(self.games))
        groups = {
            str(i): {"step": tree.map(to_host, g.step), "state": tree.map(lambda x: x.numpy(), g.state)}
            for i, g in enumerate(self.groups)
        }
        return {
            "pool": pool,
            "games": games,
            "acts": self.acts,
            "groups": groups,
            "incarnation": np.array(self.ctx.incarnation),
        }

    def load(self, saved: Batch) -> None:
        self.pool.load(saved["pool"])
        for k, v in saved["games"].items():
            getattr(self.games, k)[:] = v
        self.acts[:] = saved["acts"]
        for i, group in enumerate(self.groups):
            kept = saved["groups"][str(i)]
            group.step = row_to_device(self.pool, tree.map(np.array, kept["step"]))
            group.state = tree.map(lambda x: torch.from_numpy(np.array(x)), kept.get("state", {}))
            group.parked[:] = True
        self.restored = True
