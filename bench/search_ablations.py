"""What each change to AlphaGo Zero is worth in connect four at equal core-minutes: runs of preset `quick`, one a core.

    python bench/search_ablations.py --core-minutes 20 --seeds 1 2 --runs runs/search_ablations

A run has a core of its own. Its core-minutes are the CPU time of all its processes, so other programs on the machine
cost it nothing but caches. After 70 % of them it is stopped and goes on with `polyplay resume RUN --steps N`, where N
is what it will have played at the end: its learning rate, until then constant, falls in a line to 0. Runs that are
there already are not trained, and what was measured of them (strength.json) is not measured again.

Strength is the share of decisive positions in which the move keeps the value (bench/strength.py): of the network alone
and of 100 simulations of the run's own search. Intervals are Wilson's, of one run's positions; the spread of runs is
what differs between the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import psutil
from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, table, wilson
from strength import values_kept

from polyplay.core import checkpoint
from polyplay.core.files import read_lines

QUICK = "--preset quick --players 1"
PUCT = "--root puct --simulations 64"
VARIANTS = {
    "puct": ("no gate; 64 simulations; boards are turned in learning", PUCT),
    "gate": (
        "a gate: 100 games every 250 updates",
        f"{PUCT} --gate 0.55 --gate-games 100 --gate-every 250 --champion-games 0",
    ),
    "alphazero": (
        "AlphaZero's exploration, boards not turned",
        f"{PUCT} --exploration alphazero --symmetries none",
    ),
    "no symmetries": ("boards not turned", f"{PUCT} --symmetries none"),
    "gumbel": ("Gumbel, 16 simulations", "--root gumbel --simulations 16"),
    "gumbel, noise": ("the same with noise in whole games", "--root gumbel --simulations 16 --warm 42"),
    "caps": ("a quarter of the searches has 128 simulations, others 20", "--root puct --simulations 128 --cheap 20"),
}
CONSTANT = 0.7  # share of the core-minutes after which the learning rate falls
COST, STRENGTH = "core_minutes.jsonl", "strength.json"


class Cost:
    """CPU time of a process and all that it started, those that ended included."""

    def __init__(self, pid: int):
        self.root, self.seen = psutil.Process(pid), dict[int, float]()

    def minutes(self) -> float:
        try:
            there = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            there = []
        for process in there:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self.seen[process.pid] = times.user + times.system
        return sum(self.seen.values()) / 60


def phase(words: list[str], run: Path, core: int, spent: float, limit: float) -> float:
    """Train until the run ends, or has cost `limit` core-minutes; those spent at its end. Notes each checkpoint's."""
    text = f"taskset -c {core} polyplay {' '.join(words)}"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (run.parent / f"{run.name}.log").open("a") as log:
        log.write(f"$ {text}\n")
        log.flush()
        to = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        child = subprocess.Popen(text.split(), cwd=ROOT, env=environment, start_new_session=True, **to)
        cost, total, told = Cost(child.pid), spent, False
        while child.poll() is None:
            time.sleep(1.0)
            total = spent + cost.minutes()
            note(run, total)
            if total >= limit and not told:
                child.send_signal(signal.SIGINT)
                told = True
    note(run, total)
    if child.returncode not in (0, 130):
        sys.exit(f"{run}: {text} ended with {child.returncode}, see its log")
    return total


def note(run: Path, minutes: float) -> None:
    """A line for each checkpoint that is new."""
    there = checkpoint.everything(run)
    known = {row["checkpoint"] for row in read_lines(run / COST)} if (run / COST).exists() else set()
    with (run / COST).open("a") if run.exists() else open(os.devnull, "a") as file:
        for path in there:
            if path.name not in known:
                file.write(json.dumps({"checkpoint": path.name, "core_minutes": round(minutes, 2)}) + "\n")


def train(run: Path, variant: str, seed: int, core: int, asked: argparse.Namespace) -> None:
    options = f"{QUICK} {VARIANTS[variant][1]} --evaluator {asked.evaluator} --precision {asked.precision} --quiet"
    limits = f"--steps 100M --checkpoint-every {asked.every} --keep 100"
    words = f"train alphago_zero {options} --seed {seed} {limits} --run {run}"
    spent = phase(words.split(), run, core, 0.0, CONSTANT * asked.core_minutes)
    steps = checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]["steps"]
    total = round(steps / CONSTANT)
    phase(f"resume {run} --steps {total}".split(), run, core, spent, 2 * asked.core_minutes)


def train_all(asked: argparse.Namespace) -> None:
    """The runs that are not there yet, one on each core."""
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)

    def one(variant: str, seed: int) -> None:
        core = cores.get()
        try:
            train(run_of(asked, variant, seed), variant, seed, core, asked)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        wanted = [(v, s) for s in asked.seeds for v in asked.variants if not run_of(asked, v, s).exists()]
        for done in [pool.submit(one, *pair) for pair in wanted]:
            done.result()


def run_of(asked: argparse.Namespace, variant: str, seed: int) -> Path:
    return (asked.runs / f"{variant.replace(',', '').replace(' ', '_')}-{seed}").resolve()


def near(costs: list[Row], minutes: Iterable[float]) -> list[Row]:
    """Of each number of core-minutes the checkpoint that is nearest; the last one among them."""
    chosen = [min(costs, key=lambda row: abs(row["core_minutes"] - m)) for m in minutes]
    return list({row["checkpoint"]: row for row in [*chosen, costs[-1]]}.values())


def rows_of(run: Path, variant: str, seed: int, asked: argparse.Namespace) -> list[Row]:
    if (run / STRENGTH).exists():
        return [{**row, "run": variant} for row in json.loads((run / STRENGTH).read_text())]
    rows = []
    for cost in near(list(read_lines(run / COST)), asked.at):
        path = checkpoint.checkpoints_dir(run) / cost["checkpoint"]
        counters = checkpoint.manifest(path)["counters"]
        row: Row = {"run": variant, "seed": seed, "core-minutes": cost["core_minutes"]}
        row |= {"moves learnt": int(counters["steps"]), "games": int(counters["episodes"])}
        for simulations, name in ((0, "network alone"), (100, "100 simulations")):
            found = values_kept(run, path, simulations)
            share = sum(found) / len(found)
            low, high = wilson(share, len(found))
            row[name] = f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        rows.append(row)
    (run / STRENGTH).write_text(json.dumps(rows, indent=1))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--core-minutes", type=float, default=20.0)
    parser.add_argument("--at", type=float, nargs="+", default=[5.0, 10.0, 15.0], help="measured there, and at the end")
    parser.add_argument("--every", type=float, default=150.0, help="seconds between checkpoints")
    parser.add_argument("--evaluator", default="openvino")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "search_ablations")
    parser.add_argument("--train-only", action="store_true")
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    train_all(asked)
    if asked.train_only:
        return
    pairs = [(v, s) for v in asked.variants for s in asked.seeds if run_of(asked, v, s).exists()]
    rows = [row for v, s in pairs for row in rows_of(run_of(asked, v, s), v, s, asked)]
    what = about()
    text = ["# What each change is worth in connect four", "", *lines_about(what)]
    text += [f"- each run: `polyplay train alphago_zero {QUICK} --evaluator {asked.evaluator} --precision "]
    text[-1] += f"{asked.precision}` with the options below, on one core; intervals: 95 %, Wilson's"
    options = [{"run": v, "what": VARIANTS[v][0], "options": f"`{VARIANTS[v][1]}`"} for v in asked.variants]
    text += ["", *table(options), "", *table(rows)]
    publish(RESULTS / "search_ablations", {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
