"""Counts of a peer's self-play, of all its processes together, as lines that bench/self_play.py reads: `steps` are
simulations; besides, `evaluations` of the network, `moves` and ended `games`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from ctypes import c_double
from typing import Any

from logs import Log

COUNTS = ("steps", "evaluations", "moves", "games")


def command_line(text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", help="file for lines of counters")
    parser.add_argument("--simulations", type=int, default=100, help="for each move")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--filters", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--path", help="a checkout of the peer, where it is no package")
    return parser


class Count:
    """Of one process."""

    def __init__(self, cells: Any):
        self.cells = cells

    def add(self, **counts: float) -> None:
        for name, value in counts.items():
            self.cells[COUNTS.index(name)] += value


def run(play: Callable[[argparse.Namespace, int, Count], None], asked: argparse.Namespace) -> None:
    """play(asked, i, count) in so many processes, one core each, until this one is ended."""
    context = multiprocessing.get_context("spawn")
    cells = [context.RawArray(c_double, len(COUNTS)) for _ in range(asked.processes)]
    workers = [context.Process(target=_work, args=(play, asked, i, c), daemon=True) for i, c in enumerate(cells)]
    for worker in workers:
        worker.start()
    log = Log(asked.log)
    while all(worker.is_alive() for worker in workers):
        time.sleep(0.5)
        log.write(**{name: sum(c[i] for c in cells) for i, name in enumerate(COUNTS)})
    raise SystemExit("a process has ended")


def _work(play: Callable, asked: argparse.Namespace, i: int, cells: Any) -> None:
    if asked.processes > 1:
        there = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {there[i % len(there)]})
    play(asked, i, Count(cells))
