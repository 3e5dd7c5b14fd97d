from __future__ import annotations

import subprocess
import sys

from polyplay.runs import crew_metrics


def test_memory_counts_the_processes_below():
    alone = crew_metrics.memory_mb()
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(60_000_000); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    both = crew_metrics.memory_mb()
    child.communicate(b"\n")
    assert alone > 1
    assert 55 < both - alone < 90


def test_memory_is_looked_at_so_seldom_that_it_costs_nothing():
    now, looks = [0.0], iter((10.0, 20.0, 30.0))

    def look() -> float:
        now[0] += 0.25
        return next(looks)

    memory = crew_metrics.Throttled(look, share=0.01, clock=lambda: now[0])
    assert memory() == 10.0  # at 0.25 s: for the next 25 s that is what it says
    now[0] = 25.0
    assert (memory(), now[0]) == (10.0, 25.0)
    now[0] = 25.5
    assert (memory(), memory(), now[0]) == (20.0, 20.0, 25.75)
