"""A long run of a system, and the memory of each of its processes over time: does anything grow?

    python bench/soak.py impala --minutes 30
    python bench/soak.py impala --minutes 30 --faults kill=act:60 -- --env ALE/Pong-v5 --preset quick

Words after `--` are options of `polyplay train`; without `--env` the game is toy:catch, sizes as in chaos.py. Resident
memory of every process, and the sum of all in which shared pages count once (PSS), every few seconds. After a warm-up
lines are fitted; what a replay still fills is growth too: let it be full by then. What is written: OUT.json, OUT.md,
OUT.png.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from chaos import SYSTEMS
from common import HERE, RESULTS, Row, about, command_line, lines_about, publish, table
from lives import last_line

from polyplay.cli.plot import COLOURS, FAINT, INK

MB = 2**20
FEW = 5  # samples that a line takes
FLAT = 0.02  # growth after the warm-up, of what there was, that counts as none: what allocators keep
SLACK = 60.0  # seconds to come up and to end, besides


def main() -> int:
    asked = arguments()
    place = Path(tempfile.mkdtemp(prefix="polyplay-soak-"))
    try:
        samples, status, counters = watched(asked, asked.run or place / "run")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report = {**about(), "system": asked.system, "status": status, "counters": counters, "warm": asked.warm}
    report |= {"processes": fits(samples, asked.warm), "samples": samples}
    out = asked.out or RESULTS / f"soak_{asked.system}"
    publish(out, report, text(report))
    draw(report, out.with_suffix(".png"))
    return 0 if status == 0 and total(report)["flat"] else 1


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("system")
    parser.add_argument("--minutes", type=float, default=30.0, help="of training")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--warm", type=float, default=0.2, help="the part of all samples before the fit")
    parser.add_argument("--faults", default=None, help="see tests/faults.py")
    parser.add_argument("--run", type=Path, default=None, help="directory of the run (default: none is left)")
    parser.add_argument("--out", type=Path, default=None, help="without suffix (default: bench/results/soak_SYSTEM)")
    own, more = sys.argv[1:], list[str]()
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    asked = parser.parse_args(own)
    asked.words = more
    return asked


def watched(asked: argparse.Namespace, run: Path) -> tuple[list[Row], int, Row]:
    """Samples of a run, its exit status, and its last report."""
    toy = "--env toy:catch --network mlp --steps 1000M " + SYSTEMS.get(asked.system, "")
    words = asked.words if any(w.startswith("--env") for w in asked.words) else [*toy.split(), *asked.words]
    words = ["train", asked.system, *words, "--minutes", str(asked.minutes), "--run", str(run)]
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    samples, begun = list[Row](), time.monotonic()
    command = [sys.executable, "-m", *(["tests.faults", asked.faults] if asked.faults else ["polyplay"]), *words]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})
    while child.poll() is None:
        if last_line(run / "metrics.jsonl").get("updates", 0) > 0:
            samples.append({"seconds": round(time.monotonic() - begun, 2), **sample(child.pid)})
        if time.monotonic() - begun > 60 * asked.minutes + SLACK:
            child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(asked.every)
    return samples, child.returncode, last_line(run / "metrics.jsonl")


def sample(pid: int) -> Row:
    """{"pss": MB of all, "rss": {"NAME PID": MB}} now."""
    rss, pss = dict[str, float](), 0.0
    with contextlib.suppress(psutil.Error):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                info = process.memory_full_info()
                name = "main" if process.pid == pid else process.name()
                rss[f"{name} {process.pid}"] = round(info.rss / MB, 2)
                pss += info.pss / MB
    return {"pss": round(pss, 2), "rss": rss}


def slope(seconds: Sequence[float], mb: Sequence[float]) -> tuple[float, float]:
    """Of the straight line through some samples: MB an hour, and MB at its beginning."""
    x = np.asarray(seconds, np.float64)
    per, at = np.polyfit(x - x[0], np.asarray(mb, np.float64), 1)
    return float(per) * 3600.0, float(at)


def fits(samples: list[Row], warm: float) -> list[Row]:
    """A line per process, and one of all together, after the warm-up; of those that were there for long enough."""
    after = samples[int(warm * len(samples)) :]
    names = list(dict.fromkeys(name for s in after for name in s["rss"]))
    series = {"all (PSS)": [(s["seconds"], s["pss"]) for s in after]}
    series |= {name: [(s["seconds"], s["rss"][name]) for s in after if name in s["rss"]] for name in names}
    return [_fit(name, found) for name, found in series.items() if len(found) >= FEW]


def _fit(name: str, found: list[tuple[float, float]]) -> Row:
    seconds, mb = zip(*found, strict=True)
    per_hour, begin = slope(seconds, mb)
    growth = per_hour * (seconds[-1] - seconds[0]) / 3600.0
    row: Row = {"process": name, "samples": len(found), "MB": round(begin, 1), "MB/hour": round(per_hour, 2)}
    return row | {"growth %": round(100 * growth / begin, 2), "most MB": max(mb), "flat": growth <= FLAT * begin}


def total(report: Row) -> Row:
    return next((row for row in report["processes"] if row["process"] == "all (PSS)"), {"flat": False})


def text(report: Row) -> list[str]:
    samples = report["samples"]
    hours = (samples[-1]["seconds"] - samples[0]["seconds"]) / 3600 if samples else 0.0
    lines = [f"# {report['system']}: memory over {60 * hours:.1f} minutes", "", *lines_about(report), ""]
    counters = report["counters"]
    lines.append(f"- {counters.get('updates', 0):,} updates, {counters.get('steps', 0):,} agent steps")
    lines.append(
        f"- fitted after the first {100 * report['warm']:.0f} % of {len(samples)} samples; RSS counts shared pages"
    )
    lines.append(f"- flat: growth of at most {100 * FLAT:g} % after that")
    return [*lines, "", *table(report["processes"])]


def draw(report: Row, out: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    samples = report["samples"]
    names = list(dict.fromkeys(name for s in samples for name in s["rss"]))
    axes.plot(
        [s["seconds"] / 60 for s in samples], [s["pss"] for s in samples], color=INK, linewidth=2, label="all (PSS)"
    )
    roles = list(dict.fromkeys(n.rpartition(" ")[0] for n in names))
    for name in names:
        role = name.rpartition(" ")[0]
        points = [(s["seconds"] / 60, s["rss"][name]) for s in samples if name in s["rss"]]
        colour = COLOURS[roles.index(role) % len(COLOURS)]
        label = role if name == next(n for n in names if n.rpartition(" ")[0] == role) else None
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.2, label=label)
    axes.set_title(f"{report['system']}: resident memory of each process", loc="left", color=INK, fontsize=11)
    axes.set_xlabel("minutes", color=INK)
    axes.set_ylabel("MB", color=INK)
    axes.set_ylim(bottom=0)
    axes.grid(color=FAINT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, labelcolor=INK, loc="center right")
    figure.savefig(out)


if __name__ == "__main__":
    sys.exit(main())
