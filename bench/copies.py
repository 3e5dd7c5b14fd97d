"""Plain copies between processes through shared memory: what an exchange of vectors is held against. No torch here."""

from __future__ import annotations

import multiprocessing
import time

import numpy as np

from polyplay.core.shared_memory import Semaphores, SharedBlock

WARM = 10  # copies that don't count, and that do at least


def _copier(i: int, role: str, block: SharedBlock, size: int, bells: Semaphores, cells: SharedBlock) -> None:
    """role: into, out, or read. cells int64 [pairs, 8]: transfers of a pair; the last row's first: end."""
    slots = block.array((bells.n // 2, 2, size), np.float32)[i]
    told, own = cells.array((bells.n // 2 + 1, 8), np.int64), np.ones(size, np.float32)
    free, full, turn = bells[2 * i], bells[2 * i + 1], 0
    while not told[-1, 0]:
        if role == "read" or (free if role == "into" else full).wait(0.1):
            np.copyto(*((slots[turn], own) if role == "into" else (own, slots[turn])))
            turn = 1 - turn
            if role == "into":
                full.post()
            else:
                told[i, 0] += 1
                free.post()


def copies(role: str, pairs: int, size: int, seconds: float) -> float:
    """Copies of float32 [size] a second: "out" through shared memory from process to process, "read" out of it.

    Raises RuntimeError: a process failed.
    """
    block, bells, cells = SharedBlock(8 * pairs * size), Semaphores(2 * pairs), SharedBlock(64 * (pairs + 1))
    block.array(2 * pairs * size, np.float32)[:] = 1.0
    told = cells.array((pairs + 1, 8), np.int64)
    for i in range(pairs):
        bells[2 * i].post(2)
    roles = ("into", "out") if role == "out" else ("read",)
    context = multiprocessing.get_context("spawn")
    given = [(i, which, block, size, bells, cells) for i in range(pairs) for which in roles]
    processes = [context.Process(target=_copier, args=one) for one in given]
    for p in processes:
        p.start()
    try:
        while (told[:pairs, 0] < WARM).any():
            time.sleep(0.05)
            if any(p.exitcode is not None for p in processes):
                raise RuntimeError(f"copies: exit statuses {[p.exitcode for p in processes]}")
        before, count = time.monotonic(), told[:pairs, 0].sum()
        time.sleep(seconds)
        while told[:pairs, 0].sum() < count + WARM:
            time.sleep(0.05)
        return float(told[:pairs, 0].sum() - count) / (time.monotonic() - before)
    finally:
        told[-1, 0] = 1
        for p in processes:
            p.join(5)
            p.kill()
