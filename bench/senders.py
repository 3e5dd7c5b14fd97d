"""Play that was recorded once, as rows that actors send: for bench/fleet.py."""

from __future__ import annotations

import bisect
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from polyplay import systems
from polyplay.acting.actor import EpsilonLadder
from polyplay.acting.worker import act
from polyplay.buffers.replay_worker import SampleQueue
from polyplay.buffers.rollout_queue import RolloutBatches, RolloutQueue, row_spec
from polyplay.core import tree
from polyplay.core.shared_memory import SharedObject
from polyplay.core.tree import Batch, Field, Spec
from polyplay.core.worker import Hyperparameters, WorkerContext
from polyplay.envs import Envs
from polyplay.nets import factory
from polyplay.nets.factory import build_network
from polyplay.systems import _wiring
from polyplay.weights.params import FlatParams, Params, param_sizes
from polyplay.workers.crew import Crew

# Play that was recorded once, as rows that actors send: for bench/fleet.py


PLANES = 4  # of a stack


class Recording(SharedObject):
    """Rows of some lanes as `act` wrote them, in shared memory. Of stacks each plane once: the stack of the row whose
    newest plane is number i is planes[i - 3 : i + 1].
    """

    LOCAL = ("newest", "lanes", "rows", "stacks")
    arrays: dict[str, Any]

    def __init__(self, planes: np.ndarray, newest: np.ndarray, rows: dict[str, np.ndarray]):
        """planes uint8 [P, H, W]; newest int64 [lanes, N]; rows: all other leaves by path, [lanes, N, …]."""
        given = {"planes": planes, "newest": newest, **rows}
        self.names = list(given)
        super().__init__(arrays={name: (array.shape, array.dtype) for name, array in given.items()})
        for name, array in given.items():
            self.arrays[name][...] = array

    def _attach(self) -> None:
        super()._attach()
        self.newest = self.arrays["newest"]
        self.lanes, self.rows = self.newest.shape
        planes = self.arrays["planes"]
        shape, steps = (len(planes) - PLANES + 1, PLANES, *planes.shape[1:]), (planes.strides[0], *planes.strides)
        self.stacks = np.lib.stride_tricks.as_strided(planes, shape, steps, writeable=False)

    def copy(self, lane: int, at: int, into: Batch) -> None:
        """Rows from `at` on into a slot's rows [T+1, 1, …], all but their version."""
        leaves = dict(tree.leaves(into))
        n = len(leaves["obs"])
        newest = self.newest[lane, at : at + n]
        edges = [0, *(np.flatnonzero(np.diff(newest) != 1) + 1).tolist(), n]
        for a, b in pairwise(edges):
            begin = int(newest[a]) - PLANES + 1
            leaves["obs"][a:b, 0] = self.stacks[begin : begin + b - a]
        for name in self.names[2:]:
            leaves[name][:, 0] = self.arrays[name][lane, at : at + n]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **self.arrays)

    @staticmethod
    def load(path: Path) -> Recording:
        with np.load(path, allow_pickle=False) as found:
            rest = {k: found[k] for k in found.files if k not in ("planes", "newest")}
            return Recording(found["planes"], found["newest"], rest)


def planes_of(obs: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each plane of stacks [N, 4, H, W] once, and the number of each row's newest one [N]."""
    kept, newest, n = list[np.ndarray](), np.empty(len(obs), np.int64), 0
    for t, stack in enumerate(obs):
        goes_on = t > 0 and not first[t] and np.array_equal(stack[:-1], obs[t - 1, 1:])
        kept.append(stack[-1:] if goes_on else stack)
        n += len(kept[-1])
        newest[t] = n - 1
    return np.concatenate(kept), newest


def record(rows: int, lanes: int = 8, env: str = "ALE/Pong-v5", T: int = 25) -> Recording:
    """So many rows of each lane, played by an untrained network on Ape-X's ladder of ε."""
    crew = Crew(serial=True)
    envs = Envs(
        env, lanes, workers=1, options=_wiring.atari_options(systems.load("apex").Config(env=env)), **crew.env_defaults
    )
    policy = factory.NetworkFactory("a3c", envs.spec, {"dueling": True}, "values")
    net = build_network(policy, 0)
    params = Params(param_sizes(net)[1])
    params.publish(FlatParams(net), 0, 0)
    queue = RolloutQueue(spec_of(envs.spec.obs), net.state_spec(), T, lanes, 2)
    kept: list[Batch] = []

    def keep(ctx: WorkerContext, *, source: RolloutQueue) -> Iterator[None]:
        for taken in source.batches(1).consumer(0):
            if taken is not None:
                kept.append(tree.map(lambda x: x[:-1].copy(), taken[0]))
            yield

    crew.add(act, envs=envs, policy=policy, params=params, out=queue, explore=EpsilonLadder(lanes))
    crew.add(keep, learner=True, source=queue)
    crew.start()
    try:
        while T * len(kept) < rows:
            crew.poll(0.2)
    finally:
        crew.stop()
    whole = {path: np.concatenate(leaf) for path, *leaf in _columns(kept)}
    found = [planes_of(whole["obs"][:rows, i], whole["first"][:rows, i]) for i in range(lanes)]
    before = np.cumsum([0, *(len(p) for p, _ in found)])
    newest = np.stack([at + begin for (_, at), begin in zip(found, before, strict=False)])
    rest = {k: v[:rows].swapaxes(0, 1) for k, v in whole.items() if k not in ("obs", "version")}
    return Recording(np.concatenate([p for p, _ in found]), newest, rest)


def _columns(parts: list[Batch]) -> list[tuple[Any, ...]]:
    """(path, leaf of each part, …) of every leaf."""
    flat = [dict(tree.leaves(part)) for part in parts]
    return [(path, *(f[path] for f in flat)) for path in flat[0]]


def spec_of(obs: Spec) -> Spec:
    """The rows that Ape-X's actors write of such observations."""
    number = Field((), "float32")
    return row_spec(obs, {"action": Field((), "int64"), "value": number, "chosen": number})


# What bench/fleet.py is made of: simulated actors that send recorded play, a clock on what comes, and a learner


LOST, SENT, BLOCKED, LATE = range(4)  # what a simulated actor counts: rollouts
SLACK = 0.5  # seconds by which somebody may be behind and catch up; what is beyond is given up
BINS, FIRST, PER_DECADE = 240, 1e-3, 40  # of ages: from a millisecond, 40 bins for each factor of ten


# ------------------------------------------------------------------------------------------------------- what is seen


class Seen(SharedObject):
    """What senders, memories and the learner noticed, in shared memory. Each worker writes where it is named."""

    rollouts: np.ndarray
    made: np.ndarray
    ages: np.ndarray
    lags: np.ndarray

    def __init__(self, actors: int, slots: int, memories: int):
        super().__init__(
            rollouts=((actors, 8), np.int64),  # by LOST, SENT, …: whoever plays that actor
            made=(slots, np.float64),  # when the last row of what is in a slot was made: likewise
            ages=((memories, BINS), np.int64),  # of last rows, when they could be drawn: that memory
            lags=(8, np.float64),  # rows learnt from, sum and greatest of their lags: the learner
        )


def bin_of(age: float) -> int:
    return int(np.clip(PER_DECADE * np.log10(max(age, FIRST) / FIRST), 0, BINS - 1))


def quantile(counts: np.ndarray, q: float) -> float | None:
    """Seconds, the upper edge of the bin in which the quantile lies; None of nothing."""
    total = int(counts.sum())
    if not total:
        return None
    at = int(np.searchsorted(np.cumsum(counts), q * total))
    return float(FIRST * 10 ** ((min(at, BINS - 1) + 1) / PER_DECADE))


class Timed(RolloutQueue):
    """A queue of which is told how old rollouts are when the memory has done with them."""

    def __init__(self, queue: RolloutQueue, seen: Seen):
        self.__setstate__(queue.__getstate__())
        self.seen = seen

    def batches(self, n: int, in_turn: bool = False) -> RolloutBatches:
        return TimedBatches(self, n, in_turn)


class TimedBatches(RolloutBatches):
    """The memory's end of a Timed queue."""

    queue: Timed

    def consumer(self, c: int, log: Callable[[list[int]], None], **more: Any) -> Iterator[Any]:  # type: ignore[override]
        held: list[int] = []

        def both(slots: list[int]) -> None:
            held[:] = slots
            log(slots)

        for taken in super().consumer(c, log=both, **more):
            made = [float(self.queue.seen.made[s]) for s in held] if taken is not None else []
            yield taken
            now = time.monotonic()  # whoever asks for the next one has added this one
            for at in made:
                self.queue.seen.ages[c, bin_of(now - at)] += 1


# -------------------------------------------------------------------------------------------- who acts, who learns


class History:
    """Versions of the learner's weights by when they came."""

    def __init__(self, most: int = 4000):
        self.times, self.versions = deque[float]([-np.inf], most), deque[int]([0], most)

    def note(self, now: float, version: int) -> None:
        if version != self.versions[-1]:
            self.times.append(now)
            self.versions.append(version)

    def at(self, when: float) -> int:
        return self.versions[max(0, bisect.bisect_right(self.times, when) - 1)]


class Simulated:
    """An actor of one lane, which sends a recorded lane's rows, T at a time."""

    def __init__(self, p: int, producer: Any, recording: Recording, seen: Seen, draws: np.random.Generator):
        self.producer, self.recording, self.seen, self.draws = producer, recording, seen, draws
        self.p, self.counts = p, seen.rollouts[p]
        self.lane, self.at = p % recording.lanes, int(draws.integers(recording.rows - producer.T))
        self.cut = True  # the next row begins an episode: something is missing before it
        self.made = self.due = 0.0  # when the rollout at hand is whole, and when it is to be handed over
        self.wake = 0.0  # when there is something to do: then, or when to look for a slot again
        self.held = 0  # version of the weights that act
        self.waits = False

    def begin(self, now: float, period: float) -> None:
        self.made = now + period * float(self.draws.random())
        self.due = self.wake = self.made

    def turn(self, now: float, pace: Hyperparameters, history: History, incarnation: int) -> None:
        """The rollout at hand is due: hand it over, unless it gets lost or there is no slot, and begin the next."""
        period = self.producer.T * pace.actors / pace.rate
        if self.draws.random() < pace.loss and not self.waits:
            self.counts[LOST] += 1
            self.cut = True
        else:
            slot = self.producer.slot()
            if slot is None:
                self.counts[BLOCKED] += not self.waits
                self.waits, self.wake = True, now + 0.01
                return
            self._fill(slot)
            self.producer.commit(slot, incarnation)
            self.counts[SENT] += 1
        self.waits = False
        behind = max(0.0, now - self.due - SLACK)
        self.counts[LATE] += behind > 0
        self.held = history.at(self.made - pace.delay)  # these weights have traveled, too
        self.made += period + behind
        self.due = max(self.due, self.made + max(0.0, pace.delay + pace.jitter * (2 * self.draws.random() - 1)))
        self.wake = self.due
        self.at += self.producer.T
        if self.at + self.producer.T >= self.recording.rows:
            self.at, self.cut = 0, True

    def _fill(self, slot: int) -> None:
        rows = tree.at(self.producer.rows, slot)
        self.recording.copy(self.lane, self.at, rows)
        rows["version"][:] = self.held
        if self.cut:
            rows["first"][0] = True
        self.cut = False
        self.seen.made[slot] = self.made


def send(
    ctx: WorkerContext,
    *,
    queue: RolloutQueue,
    samples: SampleQueue,
    recording: Recording,
    seen: Seen,
    pace: Hyperparameters,
) -> Iterator[None]:
    """Every n-th actor, each at its own time. A worker that takes a lost one's place has the same actors, anew."""
    queue.patience = 0.0  # of this process's own description of it: nobody waits here for a single actor's slot
    draws, history, now = np.random.default_rng([ctx.seed, ctx.index, ctx.incarnation]), History(), time.monotonic()
    mine = range(ctx.index, queue.producers, ctx.n)
    actors = [Simulated(p, queue.producer(p), recording, seen, draws) for p in mine]
    for actor in actors:
        actor.begin(now, queue.T * pace.actors / pace.rate)
    heap = [(a.wake, a.p, a) for a in actors]
    heapq.heapify(heap)
    while True:
        now = time.monotonic()
        history.note(now, samples.version)
        if heap[0][0] > now:
            time.sleep(min(heap[0][0] - now, 0.05))
            yield
            continue
        actor = heap[0][2]
        actor.turn(now, pace, history, ctx.incarnation)
        heapq.heapreplace(heap, (actor.wake, actor.p, actor))
        yield


def learn(
    ctx: WorkerContext, *, samples: SampleQueue, seen: Seen, pace: Hyperparameters, copies: bool
) -> Iterator[None]:
    """Takes a batch when it is due, copies it as a transfer to a device would read it, and judges it at random."""
    taker, draws, version, B = samples.reader(0), np.random.default_rng(ctx.seed), 0, samples.replay.batch
    priorities = draws.lognormal(-2.0, 1.0, (64, B)).astype(np.float32)
    into = tree.zeros(samples.replay.drawn())
    due, lags = time.monotonic(), seen.lags
    for slot in taker.batches():
        if slot is not None:
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due + B / pace.learn, time.monotonic() - SLACK)
            item = samples.item(slot)
            if copies:
                tree.map(np.copyto, into, item)
            lag = version - item["version"]
            lags[:2] += lag.size, lag.sum()
            lags[2] = max(lags[2], lag.max())
            taker.give(slot, priorities[version % len(priorities)])
            version += 1
            samples.learnt(1.0, version)
            ctx.counters.add("updates", 1)
        yield
