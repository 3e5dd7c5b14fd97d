"""Does each system still learn with its fast path on? The same learning curves with every shortcut on and off.

    python bench/curves.py
    python bench/curves.py --resume                            # go on; runs that are there stay
    python bench/curves.py --systems a2c --seeds 0 --out runs/try

Every system learns Catch, drawn as a picture (bench/samples.py), with A3C's convolutions. Returns are those of
episodes.jsonl against agent steps. A system's runs with a switch on and off differ in nothing but the switches.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import HERE, RESULTS, ROOT, Row, about, command_line, lines_about, publish, table

from polyplay import systems
from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core.files import read_lines, write_json
from polyplay.runs.options import RunOptions

# Whether two small groups of numbers differ: bootstrap intervals and permutation tests. Pure


ALL = 5  # up to this many numbers every resample is looked at, beyond it DRAWS random ones
DRAWS = 20_000


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean (Efron 1979): quantiles of the means of resamples with
    replacement, all nⁿ of them where n ≤ ALL.
    """
    given = np.asarray(values, float)
    n = len(given)
    if n <= ALL:
        picks = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        picks = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    low, high = np.quantile(given[picks].mean(1), [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return max(a[0], b[0]) <= min(a[1], b[1])


def _gaps(on: Sequence[float], off: Sequence[float]) -> np.ndarray:
    """Differences of means of every way to part the numbers into groups of these sizes, theirs first."""
    values, n = np.array([*on, *off], float), len(on)
    parts = np.array(list(itertools.combinations(range(len(values)), n)))
    mine = values[parts].sum(1)
    return mine / n - (values.sum() - mine) / (len(values) - n)


def chance(on: Sequence[float], off: Sequence[float]) -> float:
    """Two-sided exact permutation test: the share of all ways to part the numbers with means at least as far apart."""
    gaps = np.abs(_gaps(on, off))
    return float(np.mean(gaps >= gaps[0] - 1e-12))


def pooled(pairs: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """(mean over the pairs of mean(on) − mean(off), its two-sided p); numbers are parted at random within each pair."""
    rng, all_gaps = np.random.default_rng(0), [_gaps(on, off) for on, off in pairs]
    seen = float(np.mean([g[0] for g in all_gaps]))
    drawn = np.mean([rng.choice(g, DRAWS) for g in all_gaps], axis=0)
    return seen, float((1 + np.sum(np.abs(drawn) >= abs(seen) - 1e-12)) / (1 + DRAWS))


# A shortcut's option: what is said in the fast runs, and in those with everything off. It counts for every system that
# has the option.
SWITCHES: dict[str, tuple[str, str]] = {
    "precision": ("--precision bfloat16", "--precision float32"),
    "groups": ("--groups 2", "--groups 1"),
    "reuse": ("--reuse", "--no-reuse"),
}
HOW = ("on", "off")
EVERY = "--env samples:Catch --network a3c --no-tensorboard --report-every 2 --checkpoint-every 1000"
# What each system learns Catch with, and in how many agent steps. A system that is not named here has OTHER.
OTHER = ("--preset quick", 60_000)
LEARN: dict[str, tuple[str, int]] = {
    "a2c": ("--preset quick --inputs raw --unroll 10 --learning-rate 2.5e-3 --anneal constant", 40_000),
    "accel": ("--preset quick --algo a2c --inputs raw --unroll 10 --learning-rate 2.5e-3 --anneal constant", 40_000),
    "a3c": ("--preset quick --inputs raw --unroll 18 --learning-rate 1.5e-3 --anneal constant", 50_000),
    # in one thread: where bfloat16 is slower, trainers fall behind and learn from rows of ten updates ago, not of one
    "ga3c": ("--preset quick --inputs raw --learning-rate 2e-3 --anneal constant --serial", 50_000),
    "impala": ("--preset quick --inputs raw --learning-rate 2e-3 --anneal constant", 50_000),
    "ppo": ("--preset quick --inputs raw --learning-rate 2e-3 --anneal constant", 40_000),
}
BINS = 20  # of a curve; the last two are the end
LEARNT = 0.3  # mean return at the end that counts as having learnt: random play has −0.7, perfect play 1
PATIENCE = 600.0  # seconds a run may take
PONG = ("system", "seed", "minutes until 18", "frames until 18", "evaluation")


def words(system: str, seed: int, how: str, steps: int = 0) -> list[str]:
    """Options of a run of `system`; `how` is on or off. `steps` 0: those of LEARN."""
    own, budget = LEARN.get(system, OTHER)
    fields = {f.name for page in (systems.load(system).Config, RunOptions) for f in dataclasses.fields(page)}
    switched = [w for k, v in SWITCHES.items() if k in fields for w in v[HOW.index(how)].split()]
    return [*shlex.split(EVERY), *shlex.split(own), "--steps", str(steps or budget), "--seed", str(seed), *switched]


def curve(games: list[Row], steps: int) -> list[float]:
    """Mean return of the games that ended in each of BINS equal parts of the agent steps [BINS]; where none ended,
    between its neighbors. ValueError: no game ended.
    """
    at = np.minimum((np.array([g["steps"] for g in games]) * BINS / steps).astype(int), BINS - 1)
    returns, bins = np.array([g["episodic_return"] for g in games]), np.arange(BINS)
    there = np.unique(at)
    return np.interp(bins, there, [returns[at == i].mean() for i in there]).round(4).tolist()


def one(system: str, seed: int, how: str, given: list[str], place: Path, commit: str | None = None) -> Row:
    """A run, as a row; what fails is a row without a curve."""
    row: Row = {"system": system, "seed": seed, "shortcuts": how, "words": shlex.join(given), "commit": commit}
    run = place / f"{system}-{how}-s{seed}"
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "polyplay", "train", system, *given, "--run", str(run)]
    before = time.monotonic()
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return row | {"failed": f"longer than {PATIENCE:g} s"}
    row["seconds"] = round(time.monotonic() - before, 1)
    if done.returncode:
        return row | {"failed": (done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]}
    summary = json.loads((run / "summary.json").read_text())
    found = curve(list(read_lines(run / "episodes.jsonl")), summary["steps"])
    end = float(np.mean(found[-2:]))
    return row | {"steps": summary["steps"], "area": float(np.mean(found)), "end": end, "curve": found}


def results(rows: list[Row]) -> list[Row]:
    """A row per system: means of the seeds, intervals, whether they overlap."""
    answer = []
    for system in dict.fromkeys(r["system"] for r in rows):
        mine = {how: [r for r in rows if (r["system"], r["shortcuts"]) == (system, how)] for how in HOW}
        seeds = min(map(len, mine.values()))
        if not seeds:
            continue
        row: Row = {"system": system, "seeds": seeds}
        both = []
        for what in ("area", "end"):
            on, off = ([r[what] for r in mine[how]] for how in HOW)
            row |= {f"{what}, on": told(on), f"{what}, off": told(off), f"p, {what}": chance(on, off)}
            both.append(overlap(interval(on), interval(off)))
        row["verdict"] = "one seed: none" if seeds < 2 else "within spread" if all(both) else "NOT within spread"
        row["learnt, on"], row["learnt, off"] = (
            f"{sum(r['end'] >= LEARNT for r in mine[how])} of {len(mine[how])}" for how in HOW
        )
        answer.append(row)
    return answer


def told(values: list[float]) -> str:
    low, high = interval(values)
    return f"{np.mean(values):.2f} [{low:.2f}, {high:.2f}]"


def pong() -> list[Row]:
    """The runs of results/pong/, each with the precision it was computed in."""
    found = []
    for kept in sorted((RESULTS / "pong").glob("*/result.json")):
        result = json.loads(kept.read_text())
        precision = json.loads((kept.parent / "config.json").read_text())["options"].get("precision") or "float32"
        found.append({"precision": precision, **{k: result[k] for k in PONG}})
    return found


def draw(rows: list[Row], out: Path) -> None:
    """A panel per system: a thin line per seed, a thick one for their mean, on and off in two colors."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(r["system"] for r in rows))
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(3.4 * columns + 0.6, 2.9 * lines), dpi=140, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    for panel, name in zip(panels.flat, names, strict=False):
        for how, color in zip(HOW, COLORS, strict=False):
            mine = [r for r in rows if (r["system"], r["shortcuts"]) == (name, how)]
            for r in mine:
                panel.plot(thousands(r), r["curve"], color=color, linewidth=0.7, alpha=0.55)
            if mine:
                mean = np.mean([r["curve"] for r in mine], axis=0)
                panel.plot(thousands(mine[0]), mean, color=color, linewidth=2.0, label=f"shortcuts {how}")
        panel.set_title(name, loc="left", color=INK)
        panel.set_ylim(-1.05, 1.05)
        panel.set_xlim(left=0.0)
        panel.grid(color=FAINT, linewidth=0.8)
        panel.tick_params(colors=INK, length=0)
        panel.set_xlabel("thousand agent steps", color=INK)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    for line in panels:
        line[0].set_ylabel("mean return", color=INK)
    panels.flat[0].legend(frameon=False, loc="lower right", fontsize=8)
    figure.savefig(out)


def thousands(row: Row) -> np.ndarray:
    """Middles of a curve's bins."""
    return (np.arange(BINS) + 0.5) * row["steps"] / BINS / 1000.0


def summary(rows: list[Row], failed: list[Row], where: Row) -> list[str]:
    switches = ", ".join(f"`{on}` / `{off}`" for on, off in SWITCHES.values())
    names = list(dict.fromkeys(r["system"] for r in rows))
    text = ["# Learning curves with the shortcuts on and off", "", *lines_about(where)]
    for commit in dict.fromkeys(r.get("commit") for r in rows if r.get("commit") != where["commit"]):
        of = sum(r.get("commit") == commit for r in rows)
        text.append(f"- {of} of {len(rows)} runs are of commit {commit}")
    text += [f"- switches, on / off, where a system has them: {switches}", "", "![learning curves](curves.png)", ""]
    text += [
        "Catch as a picture of 42×42 bytes, A3C's network. *area*: mean return over the whole run (area under the",
        f"curve over its length); *end*: over the last {200 // BINS} % of the agent steps. In brackets the 95 %",
        "percentile bootstrap interval of the seeds' mean, from all resamples; with three seeds that is the least and",
        "the greatest seed. *within spread*: the intervals of on and off overlap, in area and end both: a coarse test,",
        "which finds only differences larger than the spread of seeds. *p*: the chance of a difference of means at",
        "least as large if on and off are the same, over all ways to part the runs; three and three never give less",
        "than 0.1.",
        f"*learnt*: seeds with a return of at least {LEARNT:g} at the end (random play: −0.7, perfect play: 1).",
        "",
        *table(results(rows)),
        "",
    ]
    for what in ("area", "end"):
        split = [[[r[what] for r in rows if (r["system"], r["shortcuts"]) == (n, h)] for h in HOW] for n in names]
        split = [pair for pair in split if all(pair)]
        if split:
            gap, p = pooled(split)
            text.append(
                f"- all systems together, {what}: on − off = {gap:+.3f}, p = {p:.2f} (runs parted within systems)"
            )
    text += [f"- FAILED: {r['system']}, seed {r['seed']}, {r['shortcuts']}: {r['failed']}" for r in failed]
    text += ["", "## On Pong", "", "Runs of `bench/pong.py` that are kept; auto is bfloat16 on that machine.", ""]
    text += [*table(pong()), "", "## Commands", "", "Run in `bench/`; seeds differ in `--seed` alone.", "", "```"]
    for name in names:
        text += [
            f"polyplay train {name} {r['words']}" for r in rows if r["system"] == name and r["seed"] == rows[0]["seed"]
        ]
    return [*text, "```"]


def report(asked: argparse.Namespace, where: Row, rows: list[Row]) -> None:
    order = {name: i for i, name in enumerate(systems.names())}
    rows = sorted(rows, key=lambda r: (order.get(r["system"], 99), r["seed"], r["shortcuts"]))
    good = [r for r in rows if "curve" in r]
    if good:
        publish(asked.out, {**where, "rows": rows}, summary(good, [r for r in rows if "failed" in r], where))
        draw(good, asked.out.with_suffix(".png"))


def earlier(asked: argparse.Namespace) -> tuple[Row, list[Row]]:
    """What is there for --resume and --draw: of when, and its rows."""
    file = asked.out.with_suffix(".json")
    if not (asked.resume or asked.draw) or not file.exists():
        return {}, []
    old: Row = json.loads(file.read_text())
    rows = [r for r in old.pop("rows") if "curve" in r]
    return old, rows


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--systems", nargs="+", default=systems.ordinary())
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="agent steps of every run (0: the system's own)")
    parser.add_argument("--resume", action="store_true", help="keep runs that are there, if of the same options")
    parser.add_argument("--draw", action="store_true", help="only page and picture of the runs that are there")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "curves")
    parser.add_argument("--out", type=Path, default=RESULTS / "curves")
    asked = parser.parse_args()
    where, (old, rows) = about(), earlier(asked)
    turns = [(s, k, how) for k in asked.seeds for s in asked.systems for how in HOW]  # interrupted, all have as many
    if asked.draw:
        return report(asked, {**where, **old}, rows)
    try:
        for system, seed, how in turns:
            given = words(system, seed, how, asked.steps)
            same = [r for r in rows if (r["system"], r["seed"], r["shortcuts"]) == (system, seed, how)]
            if any(r["words"] == shlex.join(given) for r in same):
                continue
            rows = [r for r in rows if r not in same] + [one(system, seed, how, given, asked.runs, where["commit"])]
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(asked.out.with_suffix(".json"), {**where, "rows": rows})
            print(said(rows[-1]), flush=True)
    except KeyboardInterrupt:
        print("curves: interrupted; --resume goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        report(asked, where, rows)


def said(row: Row) -> str:
    end = row.get("failed") or f"area {row['area']:+.2f}, end {row['end']:+.2f}, {row['seconds']:.0f} s"
    return f"curves: {row['system']:<7} seed {row['seed']}, {row['shortcuts']:<3} {end}"


if __name__ == "__main__":
    main()
