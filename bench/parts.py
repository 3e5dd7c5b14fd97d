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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, Row, command_line, table
from crowd import interpolate

from polyplay.cli import bench as speed
from polyplay.core.machine import cores
from polyplay.runs.load import crew_of, load_run
from polyplay.workers.sizing import CostProfile

CHUNK = 5  # rows of an unroll


def parts_of(run: Path) -> CostProfile:
    """Those of a run's system."""
    page, settings, options, _ = load_run(run)
    crew = crew_of(options)
    system = page.build(settings, crew)
    spec: Any = next(r.spec for r in crew.roles if r.spec)
    return CostProfile(system.envs, spec, options.precision, speed.reuses(crew))


def learn(parts: CostProfile, m: int, seconds: float) -> float:
    """µs of an update from m rows, in unrolls of 5 rows (fewer are one unroll)."""
    return parts.learn(*((CHUNK, m // CHUNK) if m % CHUNK == 0 else (m, 1)), seconds)


def alone(run: Path, n: float, m: float, seconds: float) -> Row:
    """Per agent step, CPU µs in this process."""
    parts = parts_of(run)
    env = parts.env(seconds)
    infer = interpolate(n, 1, lambda k: parts.infer(k, seconds)) / n
    train = interpolate(m, CHUNK, lambda k: learn(parts, k, seconds)) / m
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
