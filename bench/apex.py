"""What actors and memories in workers of their own cost a learner: updates a second with its actors, and without them.

    python bench/apex.py                      # 2, 4 and 8 actors, about 10 min
    python bench/apex.py --actors 2 --window 10

One run per number of actors: when the memory is full enough, windows take turns, with the actors at work and with them
stopped (SIGSTOP): then the same learner is fed from the same memory, and nobody else works. A share is of two windows
one after the other; the target is that learning is at least 85 % as fast. As published, actors run
freely.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from typing import Any

import psutil
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table, verdict

from polyplay import systems
from polyplay.systems.apex import Config
from polyplay.workers.crew import Crew
from polyplay.workers.role import Role

LEAST = 0.85
PATIENCE = 600.0  # seconds for the first updates


def crew_of(actors: int, asked: argparse.Namespace) -> Crew:
    page = systems.load("apex")
    more: Any = {"actors": actors, "lanes": asked.lanes, "memories": asked.memories}
    kept: Any = {"capacity": 50_000, "start": asked.start, "network": asked.network, "batch": asked.batch}
    crew = Crew(steps=10**12, say=lambda kind, text: print(f"apex: {text}", flush=True))
    page.build(Config(env=asked.env, atari="baselines", prefetch=4, unroll=25, optimizer="adam", **more, **kept), crew)
    return crew


def processes(role: Role) -> list[psutil.Process]:
    """A role's workers and all below them."""
    workers = [psutil.Process(w.runs.pid) for w in role.workers.values()]
    return [p for w in workers for p in (w, *w.children(recursive=True))]


def rate(crew: Crew, role: Role, seconds: float) -> tuple[float, float]:
    """Updates and agent steps a second."""
    assert crew.counters is not None
    updates, steps, row = crew.counters.column("updates"), crew.counters.column("steps"), crew.rows(role)[0]
    before, begun, acted = time.monotonic(), updates[row], steps.sum()
    while time.monotonic() < before + seconds:
        crew.poll(0.1)
    passed = time.monotonic() - before
    return float(updates[row] - begun) / passed, float(steps.sum() - acted) / passed


def measured(actors: int, asked: argparse.Namespace) -> list[Row]:
    crew, rows = crew_of(actors, asked), []
    act, learn = (next(r for r in crew.roles if r.name == name) for name in ("act", "learn"))
    crew.start()
    try:
        until = time.monotonic() + PATIENCE
        while crew.counters.column("updates").max() < 20:  # type: ignore[union-attr]
            if time.monotonic() > until:
                raise SystemExit(f"apex: no 20 updates within {PATIENCE:.0f} s")
            crew.poll(0.1)
        for number in range(asked.rounds):
            together, steps = rate(crew, learn, asked.window)
            stopped = processes(act)
            for p in stopped:
                os.kill(p.pid, signal.SIGSTOP)
            rate(crew, learn, 1.0)  # what was in flight
            alone, _ = rate(crew, learn, asked.window)
            for p in stopped:
                os.kill(p.pid, signal.SIGCONT)
            row: Row = {"actors": actors, "round": number + 1, "updates/s": together, "agent steps/s": steps}
            rows.append(row | {"updates/s fed from memory": alone, "share": together / alone if alone else 0.0})
            print(f"apex: {actors} actors, round {number + 1}: {together:.2f} of {alone:.2f} updates/s", flush=True)
    finally:
        crew.stop()
    return rows


def main() -> None:
    parser = command_line(__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--memories", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--start", type=int, default=5_000)
    parser.add_argument("--network", default="nature")
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--window", type=float, default=20.0)
    parser.add_argument("--out", type=type(RESULTS), default=RESULTS / "apex")
    asked = parser.parse_args()
    rows = [row for actors in asked.actors for row in measured(actors, asked)]
    text = ["# Ape-X: what its actors cost its learner", "", *lines_about(about()), "", *table(rows), ""]
    for actors in asked.actors:
        shares = [r["share"] for r in rows if r["actors"] == actors]
        text.append(verdict(f"{actors} actors, share {said(spread(shares))}", statistics.median(shares), least=LEAST))
    publish(asked.out, {**about(), "rows": rows}, text)


if __name__ == "__main__":
    main()
