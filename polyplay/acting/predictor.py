"""Acting loop for lanes (parallel environments) that step at different speeds.

The rows (steps) of a lane are written into a slot, which is memory in a TrainingQueue. The filled part of a slot is a
chunk. A chunk ends after T transitions, at the end of an episode, or when the lane is closed. Each chunk therefore
comes from one episode. In GA3C, several predictor threads share a `LaneTable`. In A3C, each worker has a separate one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch

from polyplay.acting.actor import DRAWN, EpisodeCounter, act_rows, write_row
from polyplay.buffers.rollout_queue import TrainingQueue
from polyplay.core import tree
from polyplay.core.numbers import uniform
from polyplay.core.tree import Batch, Tree
from polyplay.core.worker import Adjustable, Edge, WorkerContext
from polyplay.envs.pool import Envs, Lanes, Pool
from polyplay.nets.policy import Player

Chunk = tuple[int, int]  # a slot, and the number of transitions in it


class LaneTable(Edge):
    """A pool of environments, with the state of each of its lanes (parallel environments). All threads that act in the
    pool share this table. From `recv` to `send`, a lane and its data belong to the thread that called `recv`.
    """

    def __init__(self, envs: Envs, out: TrainingQueue, first_lane: int = 0):
        self.envs, self.out, self.first_lane = envs, out, first_lane
        self._pool: Pool | None = None
        self.taken = 0
        self._opening = threading.Lock()
        self._can_recv = threading.Condition()  # for pools that step environments in send(): one thread at a time

    def open(self, ctx: WorkerContext, policy: Player) -> LaneTable:
        """Open the pool of environments, unless another thread has already opened it."""
        with self._opening:
            if self._pool is None:
                n = self.envs.lanes
                self.slot, self.at = np.full(n, -1), np.zeros(n, np.int64)  # at: index of the next row in the slot
                self.acts, self.games = np.zeros(n, np.int64), EpisodeCounter(n)
                self.noise = np.zeros((n, DRAWN, policy.noise), np.float32)  # noise of acts, from act `drawn`
                self.drawn = np.full(n, -DRAWN)
                self.state: Batch = policy.initial(n)
                self.numbers = np.arange(n)
                self._pool = self.envs.share(progress=ctx.control.run).open(ctx.env_seed, lane=self.first_lane)
                self._waits = self._pool.fixed or self._pool.threaded
        return self

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    @property
    def pool(self) -> Pool:
        assert self._pool is not None
        return self._pool

    def label(self) -> str:
        envs = self.envs
        return f"{envs.title} × {envs.active or envs.lanes}, at most {envs.at_once or envs.lanes} served at once"

    def dial(self, name: str) -> Adjustable:
        """Return an object that changes the number of active lanes during the run."""
        first = self.envs.active or self.envs.lanes

        def ask(n: int) -> None:
            if self._pool is not None:
                self._pool.scale(n)

        return Adjustable(name, 1, self.envs.lanes, lambda: self._pool.present if self._pool else first, ask)

    def recv(self, timeout: float) -> tuple[Lanes, Batch]:
        """See Pool.recv."""
        if self._waits:
            return self.pool.recv(timeout)
        with self._can_recv:
            if not self._can_recv.wait_for(lambda: self.pool.ready, timeout):
                raise TimeoutError
            return self.pool.recv(timeout)

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool.send."""
        if self._waits:
            return self.pool.send(lanes, action)
        with self._can_recv:
            self.pool.send(lanes, action)
            self._can_recv.notify()

    def leaves(self, numbers: np.ndarray) -> np.ndarray:
        return numbers >= self.pool.wanted

    @property
    def queued(self) -> int:
        """Number of lanes that wait for actions."""
        return self.taken + self.pool.ready

    def close(self) -> None:
        with self._opening:
            if self._pool is not None:
                self._pool.close()


class Predictor:
    """One thread that chooses actions for the lanes of a LaneTable."""

    def __init__(self, ctx: WorkerContext, table: LaneTable, policy: Player, version: Callable[[], int]):
        self.ctx, self.table, self.policy, self.version = ctx, table, policy, version
        self.out = table.out
        self.together = False  # whether all lanes' chunks end together

    def chunks(self, renew: Callable[[], int] | None = None) -> Iterator[list[Chunk]]:
        """Act, and yield the chunks that have just finished, as pairs of a slot and a number of transitions. Yield []
        while no lane is ready or the queue is full. No further row is written until the caller continues.

        `renew`: function that loads new weights between two chunks and returns their version, as in A3C. All lanes must
            then belong to one match, because their chunks end together. The last row of such a chunk has no outputs, so
            the learner must compute its value (A2C(values="unrolled")). Without `renew`, weights may change at any row.
        """
        table = self.table
        self.together = renew is not None
        version = self.version() if renew is None else renew()
        while not self.ctx.leaving:
            try:
                with self.ctx.counters.timed("env"):
                    lanes, step = table.recv(self.out.patience)
            except TimeoutError:
                yield []
                continue
            numbers = table.numbers[lanes]
            table.taken = len(numbers)
            self.ctx.counters.add("steps", table.games.count(self.ctx, numbers, step, table.first_lane)[0])
            version, state = version if renew else self.version(), tree.at(table.state, (torch.from_numpy(numbers),))
            leaves = table.leaves(numbers)
            go = ~(step["terminated"] | step["truncated"] | leaves)
            last = renew is not None and bool(self._ends(numbers, go).any())
            nothing = tree.zeros(self.policy.spec(), (len(numbers),)) if last else {}
            outputs, after = (nothing, {}) if last else self._act(numbers, step, state)
            done = self._write(numbers, step, outputs, version, go)
            if done:
                yield done
            if last and renew is not None:
                version = renew()
                if go.any():
                    outputs, after = self._act(numbers, step, state)
            start = go & (table.slot[numbers] < 0)
            if start.any():
                yield from self._slots(numbers[start])
                self._begin(numbers[start], version, *(_rows_of(start, x) for x in (step, outputs, state)))
            self._answer(lanes, numbers, leaves, outputs, after)

    def _ends(self, numbers: np.ndarray, go: np.ndarray) -> np.ndarray:
        has = self.table.slot[numbers] >= 0
        ends = has & (~go | (self.table.at[numbers] == self.out.T))
        return has if self.together and ends.any() else ends

    def _act(self, numbers: np.ndarray, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        with self.ctx.counters.timed("infer"):
            outputs, after = act_rows(self.policy, step, state, self._noise(numbers))
            self.table.acts[numbers] += 1
        self.ctx.counters.served(len(numbers))
        return outputs, after

    def _noise(self, numbers: np.ndarray) -> np.ndarray:
        table = self.table
        at = table.acts[numbers] - table.drawn[numbers]
        if (used := at >= DRAWN).any():
            lanes, at[used] = numbers[used], 0
            table.drawn[lanes] = first = table.acts[lanes]
            keys = (lanes + table.first_lane)[:, None], first[:, None] + np.arange(DRAWN)
            table.noise[lanes] = uniform(self.ctx.noise_seed, *keys, table.noise.shape[-1])
        return table.noise[numbers, at]

    def _write(self, numbers: np.ndarray, step: Batch, outputs: Batch, version: int, go: np.ndarray) -> list[Chunk]:
        """Write rows into the slots of these lanes, and return the chunks that end with these rows.
        `go`: whether each lane continues its episode after its row.
        """
        table = self.table
        slot, at = table.slot[numbers], table.at[numbers]
        has = slot >= 0
        if has.any():
            write_row(self.out.rows, (slot[has], at[has]), _rows_of(has, step), _rows_of(has, outputs), version)
        ends = self._ends(numbers, go)
        table.at[numbers] += 1
        if not ends.any():
            return []
        table.slot[numbers[ends]] = -1
        return [self._finish(int(s), int(t)) for s, t in zip(slot[ends], at[ends], strict=True)]

    def _finish(self, slot: int, last: int) -> Chunk:
        """Mark all rows of a slot after row `last` as padding, and return the slot's chunk."""
        rows = self.out.rows
        if last < self.out.T:
            tree.map(lambda x: x[slot].__setitem__(slice(last + 1, None), x[slot, last]), rows)
            rows["terminated"][slot, last + 1 :], rows["truncated"][slot, last + 1 :] = False, False
            rows["first"][slot, last + 1 :] = True
        return slot, last - int(np.count_nonzero(rows["first"][slot, 1 : last + 1]))

    def _slots(self, numbers: np.ndarray) -> Iterator[list[Chunk]]:
        """Take an empty slot for each of these lanes. Yield [] while the queue is full."""
        with self.ctx.counters.timed("wait"):
            for i in numbers.tolist():
                while (slot := self.out.slot()) is None:
                    yield []
                self.table.slot[i] = slot

    def _begin(self, numbers: np.ndarray, version: int, step: Batch, outputs: Batch, state: Batch) -> None:
        slot = self.table.slot[numbers]
        write_row(self.out.rows, (slot, 0), step, outputs, version)
        tree.map(lambda into, x: into.__setitem__(slot, x.numpy()), self.out.state, state)
        self.table.at[numbers] = 1

    def _answer(self, lanes: Lanes, numbers: np.ndarray, leaves: np.ndarray, outputs: Batch, after: Batch) -> None:
        table = self.table
        tree.write(table.state, (torch.from_numpy(numbers),), after)
        with self.ctx.counters.timed("env"):
            action = outputs["action"]
            if leaves.any():
                table.pool.part(numbers[leaves])
                stay = ~leaves
                lanes, action = numbers[stay], tree.map(lambda x: x[stay], action)
            if not leaves.all():
                table.send(lanes, action)


def _rows_of(which: np.ndarray, rows: Batch) -> Batch:
    pick = np.flatnonzero(which)
    return rows if which.all() else tree.map(lambda x: x[pick], rows)
