"""Every system's update, compiled ahead of time: whether it is traced, exported and compiled, and what it gains.

    python bench/compiled.py                       # every case of bench/digests.py, compiled
    python bench/compiled.py --trace-only          # traced and exported
    python bench/compiled.py --only dqn "a2c lstm"

Each case is a short serial run. Once most of its batches are of one kind, its update is traced, exported and compiled
as a run does it, and then measured on the batch of that moment: CPU time of loss and gradient, eager and compiled in
turn, the least of many windows. Cases run one after another, each in a process of its own. A row is kept at once;
those that are there already are not made again, but for those that --only names.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, table
from digests import CASES, QUIET, less

import polyplay
from polyplay.core.errors import NotFinite
from polyplay.learning import packages
from polyplay.learning.runners import BatchKind, CompiledRunner

SETTLED, SHARE = 8, 0.5  # updates of a kind, and its share of all, before it is looked at
WINDOWS, SECONDS = 40, 0.02  # of CPU time, of each of both ways
OUT = RESULTS / "compiled"
NAMES = [name for name in CASES if "hosts" not in CASES[name] and "two" not in name and "free" not in name]
COUNTS = {"rho_clipped", "clip_fraction"}  # of ratios beyond a bound: some are at it, but for rounding


def spent() -> float:
    """CPU seconds of this process, and of those that it waited for."""
    return sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def least(calls: list[Callable[[], object]]) -> list[float]:
    """CPU µs of each, in turn: the least of many windows."""
    found = [float("inf")] * len(calls)
    for call in calls:
        call()
    for _ in range(WINDOWS):
        for k, call in enumerate(calls):
            n, begun = 0, time.thread_time()
            while (passed := time.thread_time() - begun) < SECONDS:
                call()
                n += 1
            found[k] = min(found[k], passed / n * 1e6)
    return found


def look(run: CompiledRunner, kind: BatchKind, leaves: list[torch.Tensor], eager: Any, trace: bool) -> Row:
    """Everything about one update. Its batch is that of the moment: eager and compiled ones read it where it lies."""
    row: Row = {"weights": run.vector.weights, "leaves": len(leaves)}
    run.learner.rate = lambda: 0.0  # type: ignore[method-assign]  # its steps lead nowhere
    job = run._job(kind, leaves)
    given, begun = packages.arguments(job.shapes), spent()
    graph = packages.trace(job.make(), given)
    row |= {"nodes": len(graph.graph.nodes), "trace s": spent() - begun}
    begun = spent()
    with torch.no_grad():
        torch.export.export(graph, tuple(given))
    row["export s"] = spent() - begun
    if trace:
        return row
    package, begun, wall = packages.Package(job), spent(), time.monotonic()
    package.begin()
    while not package.done:
        time.sleep(0.05)
    row |= {"compile s": spent() - begun, "wall s": time.monotonic() - wall}
    if (call := package.load()) is None:
        return row | {"why not": package.failure}
    buffers = run.own[1].clone()
    scored = eager()
    wanted, after = run.vector.grad.clone(), run.own[1].clone()
    run.own[1].copy_(buffers)
    made = run._compiled(call, leaves)
    row["MB"] = package.path.stat().st_size / 1e6
    row["gradient"] = far(run.vector.grad, wanted)
    row["buffers"] = far(run.own[1], after) if len(after) else None
    names = (scored.metrics.keys() & made.metrics.keys()) - COUNTS
    row["metrics"] = max(far(torch.as_tensor(made.metrics[k]), scored.metrics[k].float()) for k in names)
    row["µs eager"], row["µs compiled"] = least([eager, lambda: run._compiled(call, leaves)])
    return row | {"ratio": row["µs eager"] / row["µs compiled"]}


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Away by so much of the size."""
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-6))


def measure(name: str, trace: bool) -> Row:
    """Run a case until its update was measured."""
    found: Row = {}
    eager_ones = CompiledRunner._eager

    def note(run: CompiledRunner, eager: Any, kind: BatchKind, leaves: list[torch.Tensor]) -> Any:
        if kind.updates >= SETTLED and kind.updates >= SHARE * run.updates and not found:
            try:
                found.update(look(run, kind, leaves, eager, trace))
            except Exception as e:
                found["why not"] = packages.why_failed(e)
            raise NotFinite("measured")  # ends the run
        return eager_ones(run, eager, kind, leaves)

    def wait(run: CompiledRunner, *given: Any) -> None:
        """Until then it stays eager."""

    CompiledRunner._eager, CompiledRunner._look = note, wait  # type: ignore[method-assign]
    given = {**QUIET, **less(CASES[name], "on"), "serial": True, "compile": "on", "quiet": True}
    with tempfile.TemporaryDirectory() as place:
        try:
            polyplay.train(name.split()[0], run=f"{place}/run", **given)
        except Exception as e:
            if not found:
                found["why not"] = packages.why_failed(e)
    return found or {"why not": "no update came to it"}


def apart(name: str, trace: bool) -> Row:
    """In a process of its own."""
    command = [sys.executable, __file__, "--one", name, *["--trace-only"] * trace]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        return {"why not": (done.stderr.strip() or "killed").splitlines()[-1][:200]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def write(out: Path, rows: dict[str, Row], what: Row) -> None:
    load = f"- load when it ended: {os.getloadavg()[0]:.1f}"
    text = ["# Updates compiled ahead of time", "", *lines_about(what), load, ""]
    text += table([{"system": name, **row} for name, row in rows.items()])
    text += ["", "Columns: `bench/compiled.py`. A compile takes CPU seconds of all its processes; gradient, buffers"]
    text += ["and metrics are away from the eager ones by so much of their size. Where one learner applies its own"]
    text += ["gradient, a compiled update takes the optimizer's step too, an eager one here does not."]
    publish(out, {**what, "rows": rows}, text)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="CASE", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--trace-only", action="store_true", help="compile nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="results, without the ending")
    parser.add_argument("--one", help="a single case, as a line of JSON")
    asked = parser.parse_args()
    if asked.one:
        torch.set_num_threads(1)
        print("\n" + json.dumps(measure(asked.one, asked.trace_only)))
        return
    file, what = asked.out.with_suffix(".json"), about()

    def there() -> dict[str, Row]:
        return json.loads(file.read_text())["rows"] if file.exists() else {}

    for name in asked.only or [name for name in NAMES if name not in there()]:
        row = apart(name, asked.trace_only) | {"commit": what["commit"][:8]}
        rows = there() | {name: row}
        write(asked.out, {name: rows[name] for name in NAMES if name in rows}, what)


if __name__ == "__main__":
    main()
