"""Polyplay's replay for bench/replays.py: what bench/peers/replay_*.py measure of others, and a memcpy beside it.

    python bench/replay_ours.py atari --size 1000000

memcpy: stacks of 28,224 bytes copied from where a sample's lie to where it puts them, in the same order: what a
sample of pictures would cost if it were nothing else. In turn with the samples, window by window.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.buffers.replay_kernels import _memcpy
from polyplay.buffers.rollout_queue import row_spec
from polyplay.buffers.sum_tree import SumTree
from polyplay.core.compiled import CounterRng, compiled
from polyplay.core.tree import Field

sys.path.append(str(Path(__file__).resolve().parent / "peers"))
from replay_clock import LANES, WINDOWS, answer, command_line, rate, turns

EPISODE = 16  # additions: of 512 rows from 8 lanes, episodes of 1,024
POLICY = {"action": Field((), "int64")}


def tree(size: int, n: int, seconds: float) -> None:
    made, turn, rng, draws = SumTree(size), turns(n, size), np.random.default_rng(0), CounterRng(0)
    made.load(rng.random(size))
    values, place = rng.random(n), [0]

    def insert() -> None:
        made.put(np.arange(place[0], place[0] + n), values)
        place[0] = (place[0] + n) % (size - n)

    def sample() -> None:
        made.draw(draws.key, draws.take(n), n, False)

    found = {"insert": rate(insert, n, seconds), "sample": rate(sample, n, seconds)}
    answer(**found, update=rate(lambda: made.put(turn(), values), n, seconds))


def going_round(rows: int, seed: int) -> np.ndarray:
    """uint8 [rows, 4, 84, 84]: stacks of random frames, the last of which goes on with the first."""
    frames = np.random.default_rng(seed).integers(0, 256, (rows, 84, 84), np.uint8)
    return np.stack([np.roll(frames, 3 - j, 0) for j in range(4)], 1)


def filled(kind: str, size: int, n: int) -> tuple[ReplayBuffer, Callable[[], None]]:
    """A full memory, and what adds the same n rows once more; an episode begins every EPISODE times."""
    T = max(1, n // LANES)
    obs = Field((4, 84, 84), "uint8") if kind == "atari" else Field((1,), "float32")
    stack = 4 if kind == "atari" else 0
    replay = Replay(row_spec(obs, POLICY), LANES, size, n, stack=stack, sampler=Proportional(0.6, 0.4))
    rows = {k: np.zeros((T, LANES), f.dtype) for k, f in replay.spec.items() if k != "obs"}
    seen = [going_round(T, lane) if stack else np.zeros((T, 1), np.float32) for lane in range(LANES)]
    rows["obs"] = np.stack(seen, 1)
    begin = {**rows, "first": (np.arange(T) == 0)[:, None].repeat(LANES, 1)}
    memory, number = replay.open(0), [0]

    def add() -> None:
        memory.add(rows if number[0] % EPISODE else begin, slice(None))
        number[0] += 1

    while (memory.index.lane[0] < memory.index.R).any():
        add()
    rng, live = np.random.default_rng(0), np.arange(memory.index.slots)
    memory.update_priorities(memory.index.ids(live), rng.random(len(live)))
    return memory, add


@compiled
def _copies(memory: Any, index: Any, out: Any) -> None:
    n, of, to = memory.shape[1], memory.ctypes.data, out.ctypes.data
    for i in range(index.size):
        _memcpy(np.uintp(to + 4 * i * n), np.uintp(of + index[i] * n), 4 * n)


def beside_memcpy(memory: ReplayBuffer, n: int, seconds: float) -> dict[str, float]:
    """Samples and copies of the same stacks, in turn."""
    planes: np.ndarray = memory.columns.arrays["obs"]
    flat, outs = planes.reshape(len(planes), -1), [np.ones((2 * n, 28_224), np.uint8) for _ in range(2)]
    orders = []
    for _ in range(50):
        slots = memory.sampler.pick(n, None)[0]
        both = np.stack([slots, memory.batches.windows(slots)[0]])  # type: ignore[union-attr]
        orders.append(np.clip(both.reshape(-1) - 3, 0, len(planes) - 5))
    number = [0]

    def copy() -> None:
        number[0] += 1
        _copies(flat, orders[number[0] % 50], outs[number[0] % 2])

    found: dict[str, list[float]] = {"sample": [], "memcpy": []}
    for _ in range(WINDOWS):
        found["sample"].append(rate(memory.sample, n, seconds / WINDOWS))
        found["memcpy"].append(rate(copy, n, seconds / WINDOWS))
    shares = [a / b for a, b in zip(found["sample"], found["memcpy"], strict=True)]
    return {k: statistics.median(v) for k, v in found.items()} | {"of_memcpy": statistics.median(shares)}


def main() -> None:
    asked = command_line(__doc__)
    n, seconds = asked.batch, asked.seconds
    if asked.kind == "tree":
        return tree(asked.size, n, seconds)
    memory, add = filled(asked.kind, asked.size, n)
    atari = asked.kind == "atari"
    found = beside_memcpy(memory, n, seconds) if atari else {"sample": rate(memory.sample, n, seconds)}
    ids, number, priority = [memory.sample()["id"] for _ in range(200)], [0], np.random.default_rng(0).random(n)

    def update() -> None:
        number[0] += 1
        memory.update_priorities(ids[number[0] % 200], priority)

    found["update"] = rate(update, n, seconds)
    found["insert"] = rate(add, n, seconds)
    answer(**found, bytes=memory.nbytes / memory.index.size, size=memory.index.size)


if __name__ == "__main__":
    main()
