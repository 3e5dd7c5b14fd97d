"""How fast a run could be if only its parts took time: CPU time of each, measured with the library's own functions.

    python bench/parts.py RUN --infer 3.2 --train 40

RUN is a run's directory: game, network, loss and optimiser are its own. Per agent step: one step of one environment
(frames prepared, without the process around it); acting for n lanes at once, divided by n; learning from m rows
(unroll, loss, backward, norm of the gradient, optimiser), divided by m. The limit is cores / their sum: no queue, no
copy between processes, no bootstrap value, perfect overlap. An n that is no whole number and an m that is no multiple
of 5 lie between two that are measured. CPU seconds, once on one core while the others rest, and once on all at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, Row, command_line, table

from polyplay import optim, tree
from polyplay.crew import cores
from polyplay.envs import Envs
from polyplay.learning import build
from polyplay.params import Vector
from polyplay.run import new_crew, read
from polyplay.stream import row_spec

CHUNK = 5  # rows of an unroll
BLOCK = 0.02  # CPU seconds measured at once


def cost(turn: Callable[[], object], seconds: float) -> float:
    """CPU microseconds of one turn, all threads of this process: the median of many blocks of turns."""
    for _ in range(5):
        turn()
    before = time.process_time()
    turn()
    times = max(1, round(BLOCK / max(time.process_time() - before, 1e-6)))
    found: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found) < 5:
        before = time.process_time()
        for _ in range(times):
            turn()
        found.append((time.process_time() - before) / times * 1e6)
    return statistics.median(found)


def between(at: float, step: int, measured: Callable[[int], float]) -> float:
    """`measured` at a number that need not be a multiple of `step`: a straight line between its neighbours."""
    low = max(step, int(at // step) * step)
    here = measured(low)
    return here if at <= low else here + (at - low) / step * (measured(low + step) - here)


class Parts:
    """The parts of a run's system, in this process, with one compute thread."""

    def __init__(self, run: Path):
        torch.set_num_threads(1)
        page, settings, options, _ = read(run)
        crew = new_crew(options)
        self.system = page.build(settings, crew)
        self.task: Any = next(r.kw["task"] for r in crew.roles if "task" in r.kw)
        self.policy = build(self.system.policy, 0, options.precision)
        self.vector = Vector(self.policy)
        o = self.task.update.optim
        self.optimizer = optim.make(o.name, [self.vector.parameter], 1e-6, o.eps, o.alpha, o.momentum)

    def env(self, seconds: float) -> float:
        """µs of a step of one lane, random actions."""
        envs = self.system.envs
        pool = Envs(envs.name, 1, workers=1, options=envs.options, inline=True).open(0)
        actions = np.random.default_rng(0).integers(envs.spec.action.n, size=(4096, 1))
        turns = iter(range(1 << 40))

        def step() -> None:
            lanes, _ = pool.recv()
            pool.send(lanes, actions[next(turns) % 4096])

        try:
            return cost(step, seconds)
        finally:
            pool.recv()
            pool.close()

    def infer(self, n: int, seconds: float) -> float:
        """µs of an acting forward pass for n lanes."""
        row = tree.map(torch.from_numpy, self._rows((n,)))
        row["noise"] = torch.rand(n, self.policy.noise)
        state = self.policy.initial(n)

        def act() -> None:
            with torch.no_grad():
                self.policy.act(row, state)

        return cost(act, seconds)

    def train(self, m: int, seconds: float) -> float:
        """µs of an update from m rows, in unrolls of 5 rows (fewer are one unroll)."""
        T, B = (CHUNK, m // CHUNK) if m % CHUNK == 0 else (m, 1)
        batch = tree.map(torch.from_numpy, self._rows((T, B)))
        state = self.policy.initial(B)

        def update() -> None:
            out = self.policy.unroll(batch, state)
            scored = self.task.loss(out, batch, self.task.knobs)
            self.vector.zero_grad()
            scored.loss.backward()
            torch.linalg.vector_norm(self.vector.grad)
            self.optimizer.step()

        return cost(update, seconds)

    def _rows(self, shape: tuple[int, ...]) -> Any:
        spec = self.system.envs.spec
        rows = tree.zeros(row_spec(spec.obs, self.policy.spec(), spec.mask), shape)
        rows["obs"][...] = np.random.default_rng(0).integers(0, 256, rows["obs"].shape)
        return rows


def alone(run: Path, n: float, m: float, seconds: float) -> Row:
    """Per agent step, CPU µs in this process."""
    parts = Parts(run)
    env = parts.env(seconds)
    infer = between(n, 1, lambda k: parts.infer(k, seconds)) / n
    train = between(m, CHUNK, lambda k: parts.train(k, seconds)) / m
    return {"env": env, "infer": infer, "train": train}


def together(run: Path, n: float, m: float, seconds: float, copies: int) -> Row:
    """The mean of several processes that measure at the same time. Raises CalledProcessError."""
    words = [sys.executable, str(Path(__file__).resolve()), str(run), "--json", "--seconds", str(seconds)]
    words += ["--infer", str(n), "--train", str(m)]
    children = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(copies)]
    try:
        texts = [child.communicate()[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    for child in children:
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, words)
    found = [json.loads(text.splitlines()[-1]) for text in texts]
    return {k: statistics.fmean(f[k] for f in found) for k in found[0]}


def limits(run: Path, n: float, m: float, seconds: float = 1.5) -> Row:
    """Parts and limits of a run, in agent steps/s: {"infer_batch", "train_rows", "one": …, "all": …}."""
    answer: Row = {"infer_batch": n, "train_rows": m, "cores": cores()}
    for name, copies in (("one", 1), ("all", cores())):
        us = together(run, n, m, seconds, copies)
        answer[name] = {**us, "limit": cores() * 1e6 / sum(us.values())}
    return answer


def shown(found: Sequence[tuple[str, Row]]) -> list[str]:
    """A table: CPU µs per agent step, and the limit."""
    rows = [
        {
            "system": who,
            "acting batch": f["infer_batch"],
            "rows learnt from": f["train_rows"],
            "cores busy": {"one": "1", "all": str(f["cores"])}[name],
            **{f"{part}, µs": f[name][part] for part in ("env", "infer", "train")},
            "limit, steps/s": f[name]["limit"],
        }
        for who, f in found
        for name in ("one", "all")
    ]
    return table(rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--infer", type=float, default=1.0, metavar="N", help="lanes acted for at once")
    parser.add_argument("--train", type=float, default=5.0, metavar="M", help="rows learnt from at once")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each part")
    parser.add_argument("--json", action="store_true", help="this process alone, as a line of JSON")
    asked = parser.parse_args()
    if asked.json:
        print(json.dumps(alone(asked.run, asked.infer, asked.train, asked.seconds)))
    else:
        print("\n".join(shown([(asked.run.name, limits(asked.run, asked.infer, asked.train, asked.seconds))])))


if __name__ == "__main__":
    main()
