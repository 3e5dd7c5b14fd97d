"""Replay worker: a process that holds a replay buffer (memory of past experience). Imports no torch.

A replay worker stores the rollouts of some actors, prepares batches for the learners, and receives new priorities from
them. If a replay worker is lost, its replacement starts with an empty buffer. Until this buffer has received `start`
agent steps, learners use the other replay workers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import FILLING, READING, RolloutQueue, SharedQueue
from polyplay.core import checkpoint, tree
from polyplay.core.files import refusal_text
from polyplay.core.flows import BACK, Cells, Crossing, End, Flow
from polyplay.core.shared_memory import LINE, Semaphore, shared_array
from polyplay.core.tree import Batch
from polyplay.core.worker import WorkerContext, seed_of

if TYPE_CHECKING:
    from polyplay.buffers.replay_buffer import ReplayBuffer

# A worker's replay buffer: report metrics, save and load.


REPORT = 100  # updates between two reports of a buffer's metrics

METRICS = (
    *("ratio", "ratio_target", "inserted", "sampled", "size", "age", "bytes", "never_sampled", "late"),
    *("priority_p10", "priority_p50", "priority_p90", "priority_max", "priority_new", "beta"),
)

REPLAY_METRICS = tuple(f"replay_{name}" for name in METRICS)


def report_replay(ctx: WorkerContext, buffer: ReplayBuffer) -> None:
    """Add the metrics of a replay buffer to the worker's counters."""
    metrics = buffer.metrics()
    ctx.counters.losses({f"replay_{name}": metrics[name] for name in METRICS if name in metrics})


def replay_folder(ctx: WorkerContext, index: int | None = None) -> str:
    """Return the folder of worker `index`'s replay in a checkpoint. By default, `index` is this worker's."""
    return f"replay/{ctx.role}-{ctx.index if index is None else index}"


def restore_replay(ctx: WorkerContext, buffer: ReplayBuffer, replicas: int = 1) -> bool:
    """Load this worker's replay buffer from the checkpoint of a resumed run. If the checkpoint lacks the replay of one
    of the `replicas` workers, leave the buffer empty and return False. Raises UserError.
    """
    root = checkpoint.open_checkpoint(ctx.resume).path
    path = root / replay_folder(ctx)
    if not path.is_dir():  # replicas that don't wait for each other save no replay
        ctx.log("warning", f"{ctx.role} {ctx.index}: its replay was not saved: it starts empty")
        return False
    if not all((root / replay_folder(ctx, i)).is_dir() for i in range(replicas)):
        ctx.log("warning", f"{ctx.role} {ctx.index}: another worker's replay was not saved: all start empty")
        return False
    buffer.load(path)
    return True


# Queue of batches from replay workers to learners, and of priorities on their way back: slots in shared memory.
#
# A slot holds one drawn batch. A replay worker fills the slot. A learner trains on the batch in place, writes new
# priorities of the items into the slot and gives it back to the replay worker. The number of slots limits batches in
# flight. Every pair of a replay worker and a learner has `depth` slots and two rings (ring buffers) of slot numbers. A
# ring has one writer and one reader, so a killed process leaves no lock. A number enters a ring only when its slot is
# complete; a slot that a dead process held is in no ring, and its mark names the holder.


# columns of a slot's marks: 1 + the incarnation of the replay worker that filled it; whether a learner set priorities
_BY, _SCORED = 1, 2
# cells that learner 0 writes: remaining share of the run, updates, agent steps that `fresh` has returned
_LEFT, _VERSION, _COUNTED = 0, 1, 2
# cells that each replay worker writes: agent steps stored, and those of them in a saved replay
_FRESH, _KEPT = 0, 1


class SampleQueue(SharedQueue):
    """Queue that carries batches from replay workers to learners, and new priorities back. The replay workers take
    rollouts from `queue`. `replay`: options of each worker's replay buffer.
    """

    memory: ClassVar[str] = "replay"
    priority = shared_array(np.float32, lambda q: (q.slots, q.replay.batch))
    _items: Batch
    _learning = shared_array(np.float64, lambda _: (LINE // 8,))
    _remembering = shared_array(np.float64, lambda q: (q.replay_workers, LINE // 8))

    def __init__(self, replay: Replay, queue: RolloutQueue, learners: int = 1, depth: int = 2):
        self.replay, self.replay_workers, self.learners = replay, queue.consumers, learners
        self._stream, pairs = queue, self.replay_workers * learners  # replay worker 0's pairs come first
        trees = {"_items": tree.widen(replay.drawn(), (pairs * depth,))}
        super().__init__(trees, pairs * depth, pairs, learners, (1, self.replay_workers))
        self._learning[_LEFT] = 1.0

    def describe(self) -> list[str]:
        return [f"batch   {self.replay.items}, {self.share} ready from each"]

    def label(self) -> str:
        back = ", and priorities back" if self.replay.sampler is not None else ""
        return f"SampleQueue: {self.slots} batches of {self.replay.batch}{back}"

    def writer_bell(self, i: int) -> Semaphore:
        return self._stream.bell(i // self.learners)

    def crossing(self) -> Crossing:
        """Return the flows that connect replay workers and learners on different machines."""
        from polyplay.buffers.queue_flows import asking, queue_flows

        memories = [End("out", m) for m in range(self.replay_workers)]
        learners = [End("source", c) for c in range(self.learners)]
        flows: list[Flow] = [Cells(learners[0], memories, [self._learning])]  # learner 0 writes for all
        flows += [Cells(end, learners[:1], [self._remembering[end.i]]) for end in memories]
        flows += [*queue_flows(self, self.learners, SampleContent(self)), asking(self, 0)]
        bells = [(self._bells[end.i], end) for end in learners]
        return Crossing(flows, bells + [(self._stream.bell(end.i), end) for end in memories], self.close)

    def item(self, slot: int) -> Batch:
        """Return the batch in a slot, with the fields of `ReplayBuffer.sample`. The arrays are views of the slot."""
        return tree.at(self._items, slot)

    def writer(self, m: int, by: int = 0) -> SampleWriter:
        """Return replay worker `m`'s access to the queue. `by`: incarnation (changes if the worker is replaced)."""
        return SampleWriter(self, m, by)

    def reader(self, c: int) -> SampleReader:
        """Return learner `c`'s access to the queue, from which it takes batches."""
        return SampleReader(self, c)

    # ------------------------------------------------------------------------------------ how far learning is

    left = property(lambda self: float(self._learning[_LEFT]))  # remaining share of the run
    version = property(lambda self: int(self._learning[_VERSION]))  # number of updates

    def learnt(self, left: float, version: int) -> None:
        """Publish learner 0's progress to the replay workers: remaining fraction of the run, and number of updates."""
        self._learning[_LEFT], self._learning[_VERSION] = left, version

    @property
    def news(self) -> bool:
        """Whether replay workers have stored agent steps since the last call of `fresh`."""
        return bool(self._remembering[:, _FRESH].sum() > self._learning[_COUNTED])

    def fresh(self, kept: bool = False) -> float:
        """Return the agent steps stored since the last call. `kept`: count only steps that a checkpoint has saved."""
        total = self._remembering[:, _KEPT if kept else _FRESH].sum()
        new = max(0.0, float(total - self._learning[_COUNTED]))
        self._learning[_COUNTED] += new
        return new


class SampleContent:
    """Access to the slots of a SampleQueue, for flows between machines: batches to learners, and priorities back."""

    def __init__(self, samples: SampleQueue):
        self.samples, self.leaves = samples, [x for _, x in tree.leaves(samples._items)]

    def cells(self, slots: slice) -> list[np.ndarray]:
        return [self.samples.marks[slots]]

    def put(self, slot: int) -> list[np.ndarray]:
        return [*(x[slot] for x in self.leaves), self.samples.marks[slot, _BY : _SCORED + 1]]

    def left(self, slot: int) -> list[np.ndarray]:
        return [self.samples.priority[slot], self.samples.marks[slot, _SCORED : _SCORED + 1]]

    def land(self, part: int, slot: int, arrays: list[np.ndarray]) -> None:
        places = self.left(slot) if part == BACK else self.put(slot)
        for place, x in zip(places, arrays, strict=True):
            place[...] = x


class SampleWriter:
    """A replay worker's access to the queue, which fills slots. If the worker replaces a lost one, it first fills the
    slots that the lost worker was filling.
    """

    def __init__(self, samples: SampleQueue, m: int, by: int):
        self.samples, self.m, self.mark = samples, m, by + 1
        self.bell, self.cells = samples._stream.bell(m), samples._remembering[m]
        self.pairs = slice(m * samples.learners, (m + 1) * samples.learners)
        self.empty = deque(samples.held(self.pairs, FILLING))

    def back(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Take back the slots that learners returned. Yield (ids, priorities) of each slot with new priorities.
        Priorities for items of a lost worker are dropped.
        """
        marks = self.samples.marks
        for ring in self.samples._empty[self.pairs]:
            while (slot := ring.take(self.samples.use, FILLING)) is not None:
                self.bell.wait(0)  # the slot's token
                self.empty.append(slot)
                if marks[slot, _SCORED] and marks[slot, _BY] == self.mark:
                    yield self.samples.item(slot)["id"], self.samples.priority[slot]

    @property
    def away(self) -> int:
        """Number of slots that this worker has filled and not yet taken back."""
        mine = self.samples.marks[:, _BY].reshape(-1, self.samples.share)[self.pairs] == self.mark
        return int(mine.sum()) - sum(bool(self.samples.marks[t, _BY] == self.mark) for t in self.empty)

    def fill(self, draw: Callable[[Batch], Any]) -> None:
        """Call `draw` to write a batch into an empty slot, and hand the slot to its learner."""
        slot = self.empty[0]
        self.samples.marks[slot, _SCORED] = 0
        draw(self.samples.item(slot))
        self.samples.marks[slot, _BY] = self.mark
        self.empty.popleft()
        self.samples._full[slot // self.samples.share].put(slot)

    def inserted(self, steps: float) -> None:
        """Add `steps` to the number of agent steps that this worker has stored."""
        self.cells[_FRESH] += steps

    def answer(self, version: int, failed: bool = False) -> None:
        self.cells[_KEPT] = self.cells[_FRESH]
        self.samples.answer(self.m, version, failed)


class SampleReader:
    """A learner's access to the queue, from which it takes batches. If the learner replaces a lost one, it first
    returns the slots that the lost learner was reading.
    """

    def __init__(self, samples: SampleQueue, c: int):
        self.samples, self.c, self.bell, self.turn = samples, c, samples._bells[c], c
        for slot in samples.held(slice(c, None, samples.learners), READING):
            self.give(slot, None)

    def batches(self) -> Iterator[int | None]:
        """Yield full slots of the replay workers in turn. Yield None if no slot came for a while. Raises Closed."""
        samples = self.samples
        while True:
            samples.check()
            for m in (i % samples.replay_workers for i in range(self.turn, self.turn + samples.replay_workers)):
                ring = samples._full[m * samples.learners + self.c]
                if (slot := ring.take(samples.use, READING)) is not None:
                    self.turn = m + 1
                    self.bell.wait(0)
                    yield slot
                    break
            else:
                if not self.bell.wait(samples.patience):
                    yield None

    def give(self, slot: int, priority: np.ndarray | None) -> None:
        """Return a slot to its replay worker. `priority`: new priorities [B] of the items in the slot, if any."""
        samples = self.samples
        if priority is not None:
            samples.priority[slot] = priority
        samples.marks[slot, _SCORED] = priority is not None
        samples._empty[slot // samples.share].put(slot)

    def gather(self, version: int, patience: float, last: bool = False) -> Iterator[None]:
        """Request all replay workers' parts of checkpoint `version`. Yield until all workers have answered.
        `last`: whether this is the run's last checkpoint.
        """
        self.samples.ask(0, version, last)
        for m in range(self.samples.replay_workers):
            self.samples._stream.bell(m).post()
        while self.samples.late(0, version):
            self.samples.check()
            time.sleep(patience)
            yield


class ReplayShard:
    """Replay buffer of a replay worker. Stores rollouts of some actors, and draws batches as `Replay.ratio` allows."""

    def __init__(self, ctx: WorkerContext, queue: RolloutQueue, samples: SampleQueue, trim: int):
        self.ctx, self.queue, self.samples, self.trim = ctx, queue, samples, trim
        self.buffer = samples.replay.open(seed_of(ctx.seed, ctx.incarnation) + ctx.index, batches=False)
        self.writer = samples.writer(ctx.index, ctx.incarnation)
        self.lane, self.drawn, self.trimmed = 0, 0, 0
        if ctx.incarnation % 1000:
            self.queue.reclaim(ctx.index)
            ctx.log("warning", f"{ctx.role} {ctx.index}: starts empty; the rows of the lost replay are gone")
        elif ctx.resume is not None:
            restore_replay(ctx, self.buffer)
            learnt = actor_checkpoint.rollouts_learnt(ctx, self.queue)
            own = slice(ctx.index, None, self.queue.consumers)
            self.queue.base[own] = learnt[own]
            self.queue.turns[ctx.index] = actor_checkpoint.saved_turn(ctx, self.queue)
        self.rollouts = queue.batches(1).consumer(ctx.index, log=self._set_lane, wait=False)

    def _set_lane(self, slots: list[int]) -> None:
        """Set `lane` to this buffer's number of the first lane of the actor that filled the slot."""
        self.lane = slots[0] // self.queue.share // self.queue.consumers * self.queue.lanes

    def step(self) -> bool:
        """Take new priorities, draw a batch and store a rollout, if possible. Return False if nothing was done."""
        with self.ctx.counters.timed("replay"):
            busy = self.update_priorities()
            if self.writer.empty and self.buffer.due():
                self.writer.fill(lambda slot: self.buffer.sample(self.samples.left, slot))
                busy, self.drawn = True, self.drawn + 1
                if self.drawn % REPORT == 0:
                    report_replay(self.ctx, self.buffer)
            taken = next(self.rollouts) if self.buffer.room else None
            if taken is not None:
                rows, state = taken
                lanes = slice(self.lane, self.lane + self.queue.lanes)
                self.writer.inserted(self.buffer.add(rows, lanes, state, overlap=True))
            return busy or taken is not None

    def update_priorities(self) -> bool:
        """Store new priorities from learners, and return whether any came. Every `trim` updates, trim the buffer."""
        busy = False
        for ids, priority in self.writer.back():
            self.buffer.update_priorities(ids, priority)
            busy = True
        if self.trim and self.samples.version // self.trim > self.trimmed:
            self.trimmed = self.samples.version // self.trim
            self.buffer.trim()
        return busy

    def wait(self) -> None:
        """Wait until there is something to do, but at most `patience` seconds."""
        with self.ctx.counters.timed("wait"):
            self.queue.bell(self.ctx.index).wait(self.queue.patience)

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, version: int) -> Iterator[None]:
        """Wait until this worker's actors have written their parts of the checkpoint, then write the replay."""
        ctx, failed = self.ctx, False
        self.update_priorities()
        lost = yield from actor_checkpoint.wait_for_actors(ctx, self.queue, version, self.samples.last(self.writer.m))
        if ctx.directory is not None:
            try:
                self._write(checkpoint.CheckpointPart(ctx.directory, version), lost)
            except OSError as e:
                failed = True
                ctx.log("warning", f"checkpoint of update {version}: {ctx.role} {ctx.index}: {refusal_text(e)}")
        self.writer.answer(version, failed)

    def _write(self, part: checkpoint.CheckpointPart, lost: list[int]) -> None:
        from polyplay.buffers.replay_buffer import SAMPLED

        counts, away = self.buffer.index.counts, self.writer.away * self.buffer.replay.batch
        counts[SAMPLED] -= away  # batches drawn but not trained on are to be drawn again
        try:
            self.buffer.save(part.folder(replay_folder(self.ctx)))
        finally:
            counts[SAMPLED] += away
        actor_checkpoint.save_queue_end(self.ctx, part, self.queue, lost)


def serve_replay(ctx: WorkerContext, *, source: RolloutQueue, out: SampleQueue, evict_every: int = 0) -> Iterator[None]:
    """Run a replay worker: store the rollouts of some actors of `source`, and fill `out` with batches.
    `evict_every`: number of updates after which a soft replay is trimmed to its capacity. 0: never.
    """
    shard = ReplayShard(ctx, source, out, evict_every)
    while True:
        busy = shard.step()
        version = out.asked(ctx.index)
        if version is not None:
            yield from shard.save(version)
        elif not busy:
            shard.wait()
        yield
