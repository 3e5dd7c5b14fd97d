"""Overhead of the acting loop per acting step, and the bandwidth of its frame copy.

`polyplay.acting.actor.Actor.rollouts` runs in this process on a pool that answers prepared rows at once and a
policy that answers prepared tensors. Subtracted, measured in turn with it: the same pool and policy called
alone and the same frames copied into the same slots. What is left is the loop's own: rows, noise, counting,
slots, commits. The weights are new for every rollout, as in a2c, so every rollout says its first actions
again (T + 1 acts and frame copies for T steps). `cross-check` is the same with frames of one byte, where
next to nothing has to be subtracted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table, verdict

from polyplay.acting.actor import Actor, LanePlayer
from polyplay.buffers.rollout_queue import RolloutQueue, row_spec
from polyplay.core.tree import Batch, Field
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.nets.policy import Player

# A pool and a policy that cost next to nothing, for measuring what is around them


ROWS = 32  # prepared rows, used in turn,
SOURCES = 4  # with this many different frame arrays
GAME = 900  # steps of a game: how often lanes end one


class Pool:
    """All lanes at once, prepared."""

    groups, fixed, restarts = 1, True, 0

    def __init__(self, lanes: int, shape: tuple[int, ...]):
        self.lanes, self.at = lanes, slice(0, lanes)
        rng = np.random.default_rng(0)
        frames = [rng.integers(0, 256, (lanes, *shape), np.uint8) for _ in range(SOURCES)]
        ends = rng.random((ROWS, lanes)) < 1.0 / GAME
        none, zero = np.zeros(lanes, bool), np.zeros(lanes, np.float32)
        self.rows = [
            {"obs": frames[i % SOURCES], "reward": zero, "terminated": ends[i], "truncated": none,
             "first": ends[i - 1], "over": ends[i]}
            for i in range(ROWS)
        ]  # fmt: skip
        self.turn = 0

    def recv(self, timeout: float | None = None) -> tuple[slice, Batch]:
        self.turn += 1
        return self.at, self.rows[self.turn % ROWS]

    def send(self, lanes: slice, action: np.ndarray) -> None:
        pass


class Constant(Player):
    """The same answer always."""

    noise = 1

    def __init__(self, lanes: int):
        action, logp, value = torch.zeros(lanes, dtype=torch.int64), torch.zeros(lanes), torch.zeros(lanes)
        self.answer = {"action": action, "logp": logp, "value": value}

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        return self.answer, state


FRAMES = (4, 84, 84)
TARGET_US, TARGET_GBS = 120.0, 8.0
SPEC = {"action": Field((), "int64"), "logp": Field((), "float32"), "value": Field((), "float32")}


def loop(pool: Pool, policy: Player, T: int, shape: tuple[int, ...]) -> tuple[Iterator[None], RolloutQueue]:
    """The real loop, a rollout per `next`, and its stream."""
    queue = RolloutQueue(row_spec(Field(shape, "uint8"), SPEC), {}, T, pool.lanes, slots=2)
    ctx = WorkerContext("act", 0, 1, 0, 0, Counters(1), RunControl())
    producer, batches = queue.producer(0), queue.batches(1).consumer(0)
    versions = iter(range(1 << 40))
    actor = Actor(ctx, pool, [LanePlayer(policy, producer)], 0)

    def rollouts() -> Iterator[None]:
        for slots in actor.rollouts(lambda k: next(versions)):
            for slot in slots or ():
                producer.commit(slot)
            next(batches)
            yield

    return rollouts(), queue


def bare(pool: Pool, policy: Player, T: int, queue: RolloutQueue) -> Iterator[None]:
    """What is subtracted: pool, policy and frame copy of a rollout per `next`."""
    frames, state = queue.rows["obs"], policy.initial(pool.lanes)
    row: Batch = pool.rows[0]
    for k in range(1 << 40):
        slot = frames[k % queue.slots]
        for t in range(T + 1):
            if t:
                row = pool.recv()[1]
            answer, _ = policy.act(row, state)
            slot[t, :] = row["obs"]
            if t < T:
                pool.send(pool.at, answer["action"].numpy())
        yield


def seconds(turn: Callable[[], object], times: int) -> float:
    before = time.perf_counter()
    for _ in range(times):
        turn()
    return time.perf_counter() - before


def overhead(lanes: int, T: int, shape: tuple[int, ...], asked: argparse.Namespace) -> list[float]:
    """Microseconds per acting step, one per repeat: loop − bare, measured one after the other."""
    pool, policy = Pool(lanes, shape), Constant(lanes)
    real, queue = loop(pool, policy, T, shape)
    without = bare(pool, policy, T, queue)
    times = max(1, asked.steps // T)
    found = []
    for repeat in range(asked.repeats + 1):
        a, b = seconds(real.__next__, times), seconds(without.__next__, times)
        if repeat:  # the first is the warm-up
            found.append((a - b) / (times * T) * 1e6)
    return found


def bandwidth(lanes: int, T: int, asked: argparse.Namespace) -> list[float]:
    """GB/s of copying [lanes, 4, 84, 84] into rows of slots as the loop does; each byte counts once."""
    pool = Pool(lanes, FRAMES)
    queue = RolloutQueue(row_spec(Field(FRAMES, "uint8"), SPEC), {}, T, lanes, slots=2)
    rows = [queue.rows["obs"][slot] for slot in range(queue.slots)]
    sources = [r["obs"] for r in pool.rows[:SOURCES]]
    turns = iter(range(1 << 40))

    def copy() -> None:
        k = next(turns)
        rows[k // (T + 1) % len(rows)][k % (T + 1), slice(None)] = sources[k % SOURCES]

    taken = [seconds(copy, asked.steps) for _ in range(asked.repeats + 1)][1:]
    return [asked.steps * sources[0].nbytes / s / 1e9 for s in taken]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--lanes", type=int, nargs="+", default=[8, 32, 64, 128])
    parser.add_argument("--unroll", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--steps", type=int, default=500, help="acting steps in a repeat")
    parser.add_argument("--repeats", type=int, default=25, help="after one for warm-up")
    parser.add_argument("--out", type=Path, default=RESULTS / "acting")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for T in asked.unroll:
        for lanes in asked.lanes:
            us, check = (spread(overhead(lanes, T, shape, asked)) for shape in (FRAMES, (1,)))
            gbs = spread(bandwidth(lanes, T, asked))
            rows.append({"unroll": T, "lanes": lanes, "us": us, "check": check, "gbs": gbs})
    report(rows, asked.out)


def report(rows: list[Row], out: Path) -> None:
    """bench/results/acting.json and acting.md"""
    shown = [
        {"unroll": r["unroll"], "lanes": r["lanes"], "overhead, µs per acting step": said(r["us"], 1),
         "cross-check, µs": said(r["check"], 1), "frame copy, GB/s": said(r["gbs"], 1)} for r in rows
    ]  # fmt: skip
    aimed = [r for r in rows if r["lanes"] >= 32] or rows
    slow, thin = max(r["us"]["median"] for r in aimed), min(r["gbs"]["median"] for r in aimed)
    where = about()
    text = ["# The acting loop's own time", "", *lines_about(where), ""]
    text += [verdict("most overhead at 32 lanes or more, µs per acting step", slow, most=TARGET_US)]
    text += [verdict("least bandwidth of the frame copy there, GB/s", thin, least=TARGET_GBS)]
    text += ["", "Median (least to greatest, number) of the repeats:", "", *table(shown)]
    publish(out, {**where, "rows": rows}, text)


if __name__ == "__main__":
    main()
