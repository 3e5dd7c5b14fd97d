"""How often something can be done in a second, and what every program of bench/replays.py is told and answers."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

KINDS = ("tree", "priorities", "atari")  # a sum tree alone, observations of one float, of 4×84×84
WINDOWS = 5
STEP = 64  # rows that each of LANES lanes adds at once
LANES = 8


def command_line(text: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--size", type=int, default=1_000_000, help="transitions that it holds, filled first")
    parser.add_argument("--batch", type=int, default=512, help="of each insertion, sample and update")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each operation")
    return parser.parse_args()


def rate(work: Callable[[], object], items: int, seconds: float) -> float:
    """Items a second: the median of some windows."""
    work()
    found = []
    for _ in range(WINDOWS):
        begin, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - begin) < seconds / WINDOWS:
            work()
            count += 1
        found.append(count * items / spent)
    return statistics.median(found)


def turns(batch: int, size: int, n: int = 200, seed: int = 0) -> Callable[[], np.ndarray]:
    """Random places of a batch, others each time."""
    kept = np.random.default_rng(seed).integers(0, size, (n, batch))
    number = [0]

    def turn() -> np.ndarray:
        number[0] = (number[0] + 1) % n
        return kept[number[0]]

    return turn


def pictures(rows: int, seed: int = 0) -> np.ndarray:
    """uint8 [rows, 4, 84, 84]: a sliding stack of random frames."""
    frames = np.random.default_rng(seed).integers(0, 256, (rows + 3, 84, 84), np.uint8)
    return np.stack([frames[j : j + rows] for j in range(4)], 1)


def answer(**numbers: float | str) -> None:
    """The last line of a program's output."""
    print(json.dumps(numbers), flush=True)
