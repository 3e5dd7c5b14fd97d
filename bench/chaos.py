"""A scripted run of faults: its workers are killed at random until there were N; a run that this ends is resumed, every
time, and looked at: see lives.wrong.

    python bench/chaos.py impala --faults kill=act:3,kill=learn:20 --events 100
    python bench/chaos.py r2d2 --faults kill=act:3,kill=learn:20 -- --actors 3
    python bench/chaos.py impala --replay          # then do all of it again in one thread: every loss to the bit
    python bench/chaos.py impala --faults kill=act:1,kill=host:60 --events 1000 -- --hosts local:8 --host-wait 1

Words after `--` are options of `polyplay train`. The game is toy:catch, the network one that looks at every board
(witness.py). What is written: OUT.json with every life and fault, OUT.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from common import HERE, RESULTS, Row, about, command_line, commands, lines_about, publish, table

from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from tests.faults import percentiles

# One life of a run that is harmed on purpose: from its start or resumption to its end, and what must hold after


LOOK = 0.2  # seconds between two looks at a run
GONE = 10.0  # seconds that its processes may take to be gone
SHM = Path("/dev/shm")
TOGETHER = ("gorila",)  # what their learners write is a count of all: after a dropped gradient the same


@dataclass
class Life:
    """What was seen of a life from outside."""

    base: Row  # counters of the checkpoint it began with
    number: int = 0  # lives before it
    status: int = 0
    asked: str = ""  # why it was asked to end; "": it was not
    seconds: float = 0.0
    first: float | None = None  # seconds until it reported more updates than it began with
    said: str = ""
    family: dict[int, psutil.Process] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)  # names in shared memory before it


def live(faults: str, words: Sequence[str], run: Path, log: Path, ends: Callable[[], str]) -> Life:
    """Start the command with such faults (tests/faults.py), watch it to its end; `ends` says why it is to be ended, "":
    not yet.
    """
    life = Life(newest(run) or {"steps": 0, "updates": 0, "frames": 0}, shared=set(os.listdir(SHM)))
    life.number, begun = started(run), time.monotonic()
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    with open(log, "w+") as said:
        command = [sys.executable, "-m", "tests.faults", faults, *words]
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path})
        while child.poll() is None:
            _look(life, child, run, time.monotonic() - begun)
            if not life.asked and (why := ends()):
                life.asked = why
                child.send_signal(signal.SIGTERM)
            time.sleep(LOOK)
        life.status, life.seconds = child.returncode, time.monotonic() - begun
        said.seek(0)
        life.said = said.read()
    return life


def _look(life: Life, child: subprocess.Popen, run: Path, seconds: float) -> None:
    with contextlib.suppress(psutil.Error):
        life.family |= {p.pid: p for p in psutil.Process(child.pid).children(recursive=True)}
    begun = started(run) > life.number  # what came after the checkpoint is cut off by then
    if life.first is None and begun and last_line(run / "metrics.jsonl").get("updates", 0) > life.base["updates"]:
        life.first = seconds


def started(run: Path) -> int:
    """Lives that have begun."""
    return sum("rules" in line for line in read_lines(run / "chaos.jsonl"))


def last_line(path: Path) -> Row:
    """The last whole line, read from the end."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = [x for x in file.read().splitlines(keepends=True)[1:] if x.endswith(b"\n")]
    return json.loads(lines[-1]) if lines else {}


def newest(run: Path) -> Row | None:
    """Counters of the newest whole checkpoint; None: there is none."""
    with contextlib.suppress(UserError):
        return checkpoint.manifest(checkpoint.newest(run, lambda text: None))["counters"]
    return None


def faults(run: Path) -> list[Row]:
    """A row per fault: its life, what, role, index, and the seconds until it was over (None: it never was)."""
    rows: list[Row] = []
    begun, life = {}, -1  # type: dict[int, Row], int
    for line in read_lines(run / "chaos.jsonl"):
        if "rules" in line:
            begun, life = {}, life + 1
        elif line["what"] == "ended":
            continue
        elif line["what"] == "back":
            begun[line["event"]]["seconds"] = line["seconds"]
        else:
            begun[line["event"]] = {"life": life, "seconds": None, **line}
            rows.append(begun[line["event"]])
    return rows


# ------------------------------------------------------------------------------------------------ what must hold


def what_is_wrong(run: Path, life: Life) -> list[str]:
    """Everything that should not be so after a life; empty: nothing."""
    found = [*_ended(run, life), *_left(life), *_counted(run, life)]
    found += [f"{p.name}: it learnt from what is not finite" for p in run.glob("not-finite*")]
    return found


def _ended(run: Path, life: Life) -> list[str]:
    by = last_line(run / "chaos.jsonl").get("ended_by")
    if life.asked and life.status == 143:
        return []
    if life.status == 1 and "s for a machine; `polyplay resume` continues" in life.said:
        return []  # all machines were lost
    if life.status != 1 or by is None:
        return [f"it ended with status {life.status}, and not by a fault: {life.said[-800:]}"]
    loud = f"worker {by['role']} {by['index']} was killed by SIGKILL" in life.said
    return [] if loud else [f"it did not say that {by['role']} {by['index']} was killed"]


def _left(life: Life) -> list[str]:
    """Processes and names in shared memory that are still there."""
    until = time.monotonic() + GONE
    while (left := [p for p in life.family.values() if _lives(p)]) and time.monotonic() < until:
        time.sleep(0.05)
    found = [f"process {p.pid} is left behind" for p in left]
    new = {name for name in set(os.listdir(SHM)) - life.shared if not _held(name)}
    return found + [f"{name} is left in shared memory" for name in sorted(new)]


def _held(name: str) -> bool:
    """Whether a living process has it mapped; others on this machine may have made it meanwhile. By its inode, since
    who makes a semaphore maps it under another name.
    """
    try:
        inode = f" {(SHM / name).stat().st_ino} "
    except OSError:
        return True  # it is gone by now
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if any(inode in line and f"{SHM}/" in line for line in maps.read_text().splitlines()):
                return True
    return not (SHM / name).exists()


def _lives(p: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    return False


def _counted(run: Path, life: Life) -> list[str]:
    """Counters never go back behind the checkpoint that a life began with, and never back at all in a file."""
    found, now = [], newest(run)
    if now is None:
        return ["there is no whole checkpoint to go on from"]
    for key in ("steps", "updates"):
        rows = [row[key] for row in read_lines(run / "metrics.jsonl")]
        if rows != sorted(rows):
            found.append(f"metrics.jsonl: {key} go back")
        if now[key] < life.base[key]:
            found.append(f"the newest checkpoint has {now[key]} {key}, the one before had {life.base[key]}")
    updates = list(read_lines(run / "updates.jsonl"))
    least = 0 if json.loads((run / "config.json").read_text())["system"] in TOGETHER else 1
    if any(b["update"] < a["update"] + least for a, b in pairwise(updates)):
        found.append("updates.jsonl: an update is there twice")
    if any(row["loss"] is None or not math.isfinite(row["loss"]) for row in updates):
        found.append("updates.jsonl: a loss is not finite")
    return found


TOY = "--env toy:catch --network witness:Witness --tensorboard false --trace --keep 2 --steps 1000M"
SYSTEMS = {  # small enough that memory is full soon and updates are many
    "impala": "--lanes 4 --batch 8 --unroll 5",
    "appo": "--lanes 4 --batch 8 --unroll 5",
    "apex": "--actors 4 --replay-workers 2 --lanes 2 --unroll 5 --batch 16 --capacity 10k "
    "--learning-starts 500 --target-update 50",
    "gorila": "--learners 3 --shards 2 --lanes 2 --unroll 2 --batch 16 --capacity 5k "
    "--learning-starts 200 --target-update 100",
    "r2d2": "--lanes 4 --unroll 10 --sequence 10 --burn-in 5 --core-size 32 --batch 16 --capacity 20k "
    "--learning-starts 1k",
}
FLAT = 1.1  # memory in the last third of a run over that in its first


def main() -> int:
    asked = arguments()
    place = Path(tempfile.mkdtemp(prefix="polyplay-chaos-"))
    try:
        report = scripted(asked, place)
    finally:
        if not asked.keep:
            shutil.rmtree(place, ignore_errors=True)
    out = asked.out or RESULTS / f"chaos_{asked.system}"
    publish(out, report, text(report))
    return 1 if report["wrong"] else 0


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("system")
    parser.add_argument("--faults", default="kill=act:3,kill=learn:20", help="see tests/faults.py")
    parser.add_argument("--events", type=int, default=100, help="faults")
    parser.add_argument("--minutes", type=float, default=30.0, help="end after so long in any case")
    parser.add_argument("--checkpoint-every", type=float, default=2.0, help="seconds")
    parser.add_argument("--replay", action="store_true", help="at the end `polyplay check RUN` (impala, appo)")
    parser.add_argument("--keep", action="store_true", help="leave the run's directory")
    parser.add_argument("--out", type=Path, default=None, help="without suffix (default: bench/results/chaos_SYSTEM)")
    own, dashes, more = sys.argv[1:], "--", []
    if dashes in own:
        own, more = own[: own.index(dashes)], own[own.index(dashes) + 1 :]
    asked = parser.parse_args(own)
    asked.words = more
    return asked


def scripted(asked: argparse.Namespace, place: Path) -> Row:
    """All lives of the run, and what was wrong with any."""
    run, begun = place / "run", time.monotonic()
    often = ["--checkpoint-every", str(asked.checkpoint_every), "--report-every", "1"]
    words = ["train", asked.system, *TOY.split(), *SYSTEMS.get(asked.system, "").split(), *asked.words, *often]
    words += ["--run", str(run)]
    seen: list[Row] = []
    wrong: list[str] = []

    def ends() -> str:
        if len(faults(run)) >= asked.events:
            return "enough"
        return "no time left" if time.monotonic() - begun > 60 * asked.minutes else ""

    while not wrong and (not seen or not seen[-1]["asked"]):
        life = live(asked.faults, words, run, place / f"said-{len(seen)}", ends)
        wrong = [f"life {len(seen)}: {text}" for text in what_is_wrong(run, life)]
        seen.append(told(run, life))
        print(f"life {len(seen) - 1}: {seen[-1]}", flush=True)
        words = ["resume", str(run)]
    if asked.replay and not wrong:
        wrong += replayed(run, place)
    return summed(asked, run, seen, wrong)


def told(run: Path, life: Life) -> Row:
    counters: Any = newest(run) or life.base
    return {
        "status": life.status,
        "asked": life.asked,
        "seconds": round(life.seconds, 1),
        "first_update": None if life.first is None else round(life.first, 1),
        "faults": len(faults(run)),
        "updates": counters["updates"],
        "steps": counters["steps"],
        "processes": len(life.family),
    }


def replayed(run: Path, place: Path) -> list[str]:
    with open(place / "said-replay", "w+") as said:
        command = [sys.executable, "-m", "polyplay", "check", str(run)]
        status = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, cwd=HERE).returncode
        said.seek(0)
        text = said.read()
    print(text)
    return [] if status == 0 else [f"the replay differs: {text[-800:]}"]


def summed(asked: argparse.Namespace, run: Path, seen: list[Row], wrong: list[str]) -> Row:
    found = faults(run)
    memory = [row["memory_mb"] for row in read_lines(run / "metrics.jsonl") if row["memory_mb"]]
    third = max(1, len(memory) // 3)
    first, last = (median(part) if part else 0.0 for part in (memory[:third], memory[-third:]))
    if len(memory) >= 9 and last > FLAT * first:
        wrong = [*wrong, f"memory grew from {first:.0f} to {last:.0f} MB"]
    restarts = [row["first_update"] for row in seen[1:] if row["first_update"] is not None]
    return {
        **about(),
        "system": asked.system,
        "rules": asked.faults,
        "faults": found,
        "roles": roles(found),
        "lives": seen,
        "machines_lost": sum(row["event"] == "lost" for row in read_lines(run / "hosts.jsonl")),
        "resumed": percentiles(restarts),
        "memory_mb": {"first_third": first, "last_third": last, "reports": len(memory)},
        "replayed": asked.replay,
        "wrong": wrong,
    }


def roles(found: list[Row]) -> list[Row]:
    """A row per role and kind of fault."""
    rows = []
    for role, what in sorted({(f["role"], f["what"]) for f in found}):
        mine = [f for f in found if (f["role"], f["what"]) == (role, what)]
        seconds = percentiles(f["seconds"] for f in mine if f["seconds"] is not None)
        row: Row = {
            "role": role,
            "fault": what,
            "times": len(mine),
            "over": sum(f["seconds"] is not None for f in mine),
        }
        row |= {f"{k} s": v for k, v in (seconds or dict.fromkeys(("median", "p95", "max"))).items()}
        rows.append(row)
    return rows


def text(report: Row) -> list[str]:
    memory, resumed = report["memory_mb"], report["resumed"]
    lines = [f"# {report['system']}: {len(report['faults'])} faults", "", *lines_about(report), ""]
    lines += [*table(report["roles"]), ""]
    last = report["lives"][-1]
    lines.append(f"- {len(report['lives'])} lives, {last['updates']:,} updates, {last['steps']:,} agent steps")
    if report["machines_lost"]:
        lines.append(f"- {report['machines_lost']} machines were lost, with all that worked there")
    if resumed:
        lines.append(f"- from `polyplay resume` to the first report of a new update: median {resumed['median']:.1f} s")
    lines.append(f"- memory: {memory['first_third']:.0f} MB in the first third, {memory['last_third']:.0f} in the last")
    if report["replayed"]:
        lines.append(
            "- done again in one thread: " + ("differs" if report["wrong"] else "every loss the same, to the bit")
        )
    lines += [f"- **wrong**: {w}" for w in report["wrong"]] or ["- nothing was wrong"]
    return lines


# A long run of a system, and the memory of each of its processes over time: does anything grow?


MB = 2**20
FEW = 5  # samples that a line takes
SOAK_FLAT = 0.02  # growth after the warm-up, of what there was, that counts as none: what allocators keep
SLACK = 60.0  # seconds to come up and to end, besides


def run_soak() -> int:
    """A long run of a system, and the memory of each of its processes over time: does anything grow?

        python bench/chaos.py soak impala --minutes 30
        python bench/chaos.py soak impala --minutes 30 --faults kill=act:60 -- --env ALE/Pong-v5 --preset quick

    Words after `--` are options of `polyplay train`; without `--env` the game is toy:catch, sizes as in chaos.py.
    Resident memory of every process, and the sum of all in which shared pages count once (PSS), every few seconds.
    After a warm-up lines are fitted; what a replay still fills is growth too: let it be full by then. What is written:
    OUT.json, OUT.md, OUT.png.
    """
    asked = soak_arguments()
    place = Path(tempfile.mkdtemp(prefix="polyplay-soak-"))
    try:
        samples, status, counters = watched(asked, asked.run or place / "run")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report = {**about(), "system": asked.system, "status": status, "counters": counters, "warm": asked.warm}
    report |= {"processes": fits(samples, asked.warm), "samples": samples}
    out = asked.out or RESULTS / f"soak_{asked.system}"
    publish(out, report, soak_text(report))
    draw(report, out.with_suffix(".png"))
    return 0 if status == 0 and total(report)["flat"] else 1


def soak_arguments() -> argparse.Namespace:
    parser = command_line(run_soak.__doc__)
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
    return row | {"growth %": round(100 * growth / begin, 2), "most MB": max(mb), "flat": growth <= SOAK_FLAT * begin}


def total(report: Row) -> Row:
    return next((row for row in report["processes"] if row["process"] == "all (PSS)"), {"flat": False})


def soak_text(report: Row) -> list[str]:
    samples = report["samples"]
    hours = (samples[-1]["seconds"] - samples[0]["seconds"]) / 3600 if samples else 0.0
    lines = [f"# {report['system']}: memory over {60 * hours:.1f} minutes", "", *lines_about(report), ""]
    counters = report["counters"]
    lines.append(f"- {counters.get('updates', 0):,} updates, {counters.get('steps', 0):,} agent steps")
    lines.append(
        f"- fitted after the first {100 * report['warm']:.0f} % of {len(samples)} samples; RSS counts shared pages"
    )
    lines.append(f"- flat: growth of at most {100 * SOAK_FLAT:g} % after that")
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
        color = COLORS[roles.index(role) % len(COLORS)]
        label = role if name == next(n for n in names if n.rpartition(" ")[0] == role) else None
        axes.plot(*zip(*points, strict=True), color=color, linewidth=1.2, label=label)
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
    sys.exit(commands({"": main, "soak": run_soak}))
