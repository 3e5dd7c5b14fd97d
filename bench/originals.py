"""A3C and GA3C against the originals: NVlabs/GA3C and ikostrikov/pytorch-a3c on this machine, Pong, in turn.

    python bench/originals.py --ga3c GA3C --a3c pytorch-a3c --peers-python peersvenv/bin/python
    python bench/originals.py … --short          # one round of short windows, to see that all works
    python bench/originals.py … --resume         # go on after an interruption; rounds that are there are kept

How the peers are made to run: bench/peers/README.md. Each round runs ours, then theirs, of each system; ratios are
taken within a round. Rates are agent steps per second after a warm-up that does not count, from counters where the work
is done: predictions served (GA3C), the shared step counter of the workers (A3C), `steps` of metrics.jsonl (ours). Then
our run's parts are measured (measure.py), for its share of the limit they set. Every window is kept at once in
OUT.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import (
    QUIET,
    RESULTS,
    ROOT,
    Row,
    about,
    command_line,
    commands,
    kept,
    lines_about,
    publish,
    said,
    spread,
    table,
    thin,
    verdict,
)
from contests import flags
from measure import limits, measure, versions
from measure import shown as shown_limits

from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core.files import read_lines, write_json
from polyplay.core.machine import cores

OURS = {
    "a3c": "network=a3c workers=2 unroll=5",
    "ga3c": "network=ga3c agents=16 predictors=1 trainers=1 unroll=5 schedule=off min_batch=80 precision=auto",
}
THEIRS = {
    "a3c": "num_processes=2 num_steps=5 env_name=PongDeterministic-v4",
    "ga3c": "agents=16 predictors=1 trainers=1 frames=cv2",
}
GAUGES = ("pps", "tps", "predict_batch", "train_batch")
LEAST = {"a3c": 1.5, "ga3c": 3.5}
SHARE = 0.85  # of the limit
PACKAGES = ["torch", "gymnasium", "ale-py", "opencv-python-headless", "numpy", "pillow"]
NOTES = [
    "- GA3C: the repository's server, agents, predictors, trainers, queues; its TensorFlow 1 network in PyTorch (same",
    "  SAME-padded layers, loss, RMSProp), gym and scipy.misc as stand-ins. With frames=cv2 a frame is prepared by",
    "  OpenCV in a fraction of the time that its own code takes (frames=own): in the peer's favor.",
    "- pytorch-a3c: the repository's processes, shared model, shared Adam and loop; in place of its LSTM on 42×42 the",
    "  A3C paper's small network on 4×84×84, as ours; its tester, a process of its own, does not play.",
    "- Both see RGB frames of gymnasium's Atari environment, skip 4, gray and resized by OpenCV; ours prepare frames",
    "  as the systems' own Atari presets say, unless the setting names another.",
]


def ours(system: str, setting: str, run: Path, number: int, asked: argparse.Namespace) -> list[str]:
    """Our command line; it is ended when it has been seen long enough."""
    words = [sys.executable, "-m", "polyplay", "train", system, "--env", "ALE/Pong-v5", *flags(setting)]
    words += ["--seed", str(number), "--report-every", str(asked.report_every), "--run", str(run)]
    return [*words, "--minutes", f"{(asked.warm + asked.window) / 60 + 5:.2f}"]


def theirs(system: str, setting: str, log: Path, number: int, asked: argparse.Namespace) -> list[str]:
    """Their command line, with one compute thread per process."""
    script = ROOT / "bench/peers" / f"{system}.py"
    place = str(getattr(asked, system).resolve())
    single = ["env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"]
    return [
        *single,
        asked.peers_python,
        str(script),
        "--path",
        place,
        "--log",
        str(log),
        *flags(setting),
        "--seed",
        str(number),
    ]


def one(who: str, system: str, number: int, asked: argparse.Namespace) -> Row:
    """A window of "ours" or "theirs"; what does not come that far is a row without a rate."""
    setting = getattr(asked, f"{who}_{system}")
    row: Row = {"round": number + 1, "system": system, "who": who, "setting": setting}
    print(f"originals: round {number + 1}, {system}, {who}: {setting} …", flush=True)
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        log = run / "metrics.jsonl" if who == "ours" else Path(place) / "log.jsonl"
        words = (ours if who == "ours" else theirs)(system, setting, run if who == "ours" else log, number, asked)
        try:
            row |= measure(words, log, asked.warm, asked.window, ROOT, stop=True)
            row |= batches(row.pop("lines"))
            if who == "ours":
                row |= limit(system, run, row, asked)
        except (RuntimeError, subprocess.CalledProcessError) as e:
            print(f"originals: {e}", file=sys.stderr)
            row["failed"] = str(e).splitlines()[0]
    print(f"originals: {said_of(row)}", flush=True)
    return row


def said_of(row: Row) -> str:
    """A row as a line of progress."""
    if "sps" not in row:
        return f"{row['system']} {row['who']}: FAILED, {row.get('failed')}"
    noise = "  (machine not quiet)" if row["others_cores"] > QUIET else ""
    share = f", {100 * row['sps'] / row['parts']['all']['limit']:.0f} % of its limit" if "parts" in row else ""
    return f"{row['system']} {row['who']}: {row['sps']:.0f} steps/s{share}{noise}"


def batches(lines: list[Row]) -> Row:
    """What the window's lines tell: rows learnt from per second and per update, predictions per call.

    A peer's lines count; ours give rates and means since the line before (gauges.py).
    """
    first, last = lines[0], lines[-1]
    passed = {k: last[k] - first[k] for k in ("wall_seconds", "steps", "rows", "updates", "calls") if k in first}
    if last.get("predict_batch"):
        spans = [b["wall_seconds"] - a["wall_seconds"] for a, b in pairwise(lines)]
        told = [{k: r.get(k) or 0.0 for k in GAUGES} for r in lines[1:]]
        passed["calls"] = sum(t * r["pps"] / r["predict_batch"] for t, r in zip(spans, told, strict=True) if r["pps"])
        passed["rows"] = sum(t * r["tps"] * r["train_batch"] for t, r in zip(spans, told, strict=True))
    rows = passed.get("rows", passed["steps"])
    answer: Row = {"rows_per_s": rows / passed["wall_seconds"]}
    if passed.get("updates"):
        answer["train_batch"] = rows / passed["updates"]
    if passed.get("calls"):
        answer["infer_batch"] = passed["steps"] / passed["calls"]
    return answer


def limit(system: str, run: Path, row: Row, asked: argparse.Namespace) -> Row:
    """Our run's parts: A3C acts for 1 and learns from 5, GA3C does as it was seen to. Raises CalledProcessError."""
    seen = row.get("infer_batch") or asked.infer_batch, row.get("train_batch") or 5.0
    n, m = (1.0, 5.0) if system == "a3c" else seen
    print(f"originals: parts of {system} at batches of {n:.1f} and {m:.1f} …", flush=True)
    return {"parts": limits(run, n, m, asked.parts_seconds)}


# ---------------------------------------------------------------------------------------------- report


def pairs(rows: list[Row], system: str) -> list[float]:
    """ours / theirs of each round where both ran."""
    of = {(r["who"], r["round"]): r["sps"] for r in rows if r["system"] == system and r.get("sps")}
    return [of["ours", k] / of["theirs", k] for w, k in of if w == "ours" and ("theirs", k) in of]


def shares(rows: list[Row], system: str, busy: str) -> list[float]:
    found = [r for r in rows if r["system"] == system and r.get("sps") and "parts" in r]
    return [r["sps"] / r["parts"][busy]["limit"] for r in found]


def cpu_share(row: Row) -> float | None:
    """How much of our CPU time the parts explain; others on the machine hardly touch it."""
    if "parts" not in row:
        return None
    return sum(row["parts"]["all"][k] for k in ("env", "infer", "train")) / 1000.0 / row["core_ms_per_step"]


def shown(rows: list[Row]) -> list[str]:
    """Rows as a table."""

    def cells(r: Row) -> Row:
        others = r.get("others_cores", 0.0)
        total = r.get("own_cores", 0.0) + others
        return {
            "round": r["round"],
            "system": r["system"],
            "who": r["who"],
            "agent steps/s": r.get("sps"),
            "rows learnt/s": r.get("rows_per_s"),
            "window s": r.get("window_s"),
            "own cores": r.get("own_cores"),
            "core-ms/step": r.get("core_ms_per_step"),
            "acting batch": r.get("infer_batch"),
            "rows per update": r.get("train_batch"),
            "limit": r["parts"]["all"]["limit"] if "parts" in r else None,
            "parts / own CPU": cpu_share(r),
            "peak PSS MB": r.get("pss_mb"),
            "processes": r.get("processes"),
            "others' cores": f"{others:.2f} ({100 * others / total if total else 0:.0f} %)"
            + (" BUSY" if others > QUIET else ""),
        }

    return table([cells(r) for r in rows])


def judged(rows: list[Row], system: str) -> list[str]:
    """The targets of one system."""
    ratio = spread(pairs(rows, system))
    name = f"{system}, ours / theirs, round by round {said(ratio)}; median"
    text = [verdict(name, ratio["median"], least=LEAST[system])]
    for busy, words in (("all", "all cores busy"), ("one", "one core busy, the others at rest")):
        share = spread(shares(rows, system, busy))
        name = f"{system}, ours as a share of the limit of its parts ({words}) {said(share)}; median"
        text.append(verdict(name, share["median"], least=SHARE))
    return text


def summary(rows: list[Row], where: Row, asked: argparse.Namespace) -> list[str]:
    """The page."""
    text = ["# A3C and GA3C against the originals: Pong", "", *lines_about(where)]
    text += [f"- the peers' versions: {asked.versions}; {asked.commits}", f"- cores: {cores()}", ""]
    for system in asked.only:
        text += [f"- {system}, ours: `{getattr(asked, f'ours_{system}')}`"]
        text += [f"- {system}, theirs: `{getattr(asked, f'theirs_{system}')}`"]
    text += ["", "Agent steps/s, median (least to greatest) of the rounds:", ""]
    for system in asked.only:
        for who in ("ours", "theirs"):
            rates = spread(r["sps"] for r in rows if (r["system"], r["who"]) == (system, who) and r.get("sps"))
            text.append(f"- {system}, {who}: {said(rates, 0)}")
    text += ["", *(line for system in asked.only for line in judged(rows, system))]
    busy = sum(r.get("others_cores", 0.0) > QUIET for r in rows)
    text += ["", f"Others took more than {QUIET} core (marked BUSY) in {busy} of {len(rows)} rows.", ""]
    text += ["## Rounds", "", *shown(rows), "", "## Our parts, CPU µs per agent step", ""]
    text += [*shown_limits([(f"{r['system']}, round {r['round']}", r["parts"]) for r in rows if "parts" in r])]
    return [*text, "", "## What was compared", "", *NOTES]


# ------------------------------------------------------------------------------------------------ main


def commit(place: Path) -> str:
    words = ["git", "-C", str(place), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(words, capture_output=True, text=True)
    return found.stdout.strip() or "unknown commit"


def plainly(where: Row, asked: argparse.Namespace) -> Row:
    """Without the places of this machine in the command."""
    names = {str(asked.ga3c): "GA3C", str(asked.a3c): "pytorch-a3c", asked.peers_python: "peersvenv/bin/python"}
    names[str(asked.out)] = f"bench/results/{asked.out.name}"
    for place, name in names.items():
        where["command"] = where["command"].replace(f" {place}", f" {name}")
    return where


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ga3c", type=Path, help="checkout of NVlabs/GA3C")
    parser.add_argument("--a3c", type=Path, help="checkout of ikostrikov/pytorch-a3c")
    parser.add_argument("--peers-python", required=True, help="see bench/peers/README.md")
    parser.add_argument("--only", nargs="+", choices=list(LEAST), default=list(LEAST))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=25.0, help="seconds that do not count: GA3C's queue fills first")
    parser.add_argument("--window", type=float, default=60.0, help="seconds that do")
    parser.add_argument("--report-every", type=float, default=2.0, help="of polyplay")
    parser.add_argument("--parts-seconds", type=float, default=1.5, help="for each part")
    parser.add_argument("--infer-batch", type=float, default=4.0, help="of GA3C, where metrics.jsonl doesn't say")
    parser.add_argument("--short", action="store_true", help="1 round, windows of 8 s after 8 s")
    parser.add_argument("--resume", action="store_true", help="keep the rows of OUT.json")
    for system in LEAST:
        parser.add_argument(f"--ours-{system}", default=OURS[system], help="setting: flags of polyplay train")
        parser.add_argument(f"--theirs-{system}", default=THEIRS[system], help="setting: flags of the peer")
    parser.add_argument("--out", type=Path, default=RESULTS / "originals")
    asked = parser.parse_args()
    if asked.short:
        asked.rounds, asked.warm, asked.window, asked.parts_seconds = 1, 8.0, 8.0, 0.3
    for system in asked.only:
        place = getattr(asked, system)
        if place is None or not place.is_dir():
            parser.error(f"--{system}: {place} is no checkout; see bench/peers/README.md")
    try:
        asked.versions = versions(asked.peers_python, PACKAGES)
    except (OSError, subprocess.CalledProcessError) as e:
        parser.error(f"--peers-python: {asked.peers_python} does not work ({e}); see bench/peers/README.md")
    asked.commits = ", ".join(f"{s} at {commit(getattr(asked, s))}" for s in asked.only)
    return asked


def main() -> None:
    asked = arguments()
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)  # measure() ends what it started
    where = plainly(about(), asked)
    names = ["warm", "window", *(f"{who}_{s}" for who in ("ours", "theirs") for s in asked.only)]
    fixed = {"commit": where["commit"], **{k: getattr(asked, k) for k in names}}
    rows = kept(asked, fixed)
    there = {(r["round"], r["system"], r["who"]) for r in rows}
    todo = [(k, s, w) for k in range(asked.rounds) for s in asked.only for w in ("ours", "theirs")]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for number, system, who in todo:
            if (number + 1, system, who) not in there:
                rows.append(one(who, system, number, asked))
                write_json(asked.out.with_suffix(".json"), {**where, "settings": fixed, "rows": rows})
    except KeyboardInterrupt:
        print("originals: interrupted; --resume goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        if rows:
            publish(asked.out, {**where, "settings": fixed, "rows": rows}, summary(rows, where, asked))


# The GA3C talk's first plot on this machine: agent steps/s of A3C and of GA3C for small and large networks, Pon


NETWORKS = {"ga3c": "small", **{f"ga3c_large{s}": f"large, stride {s}" for s in (4, 3, 2, 1)}}
TALK = {"ga3c": 4, "ga3c_large4": 11, "ga3c_large3": 12, "ga3c_large2": 20, "ga3c_large1": 45}  # GA3C / A3C
SETTINGS = {"a3c": ["workers=2 unroll=5"], "ga3c": ["agents=16 predictors=1 trainers=1 unroll=5 schedule=off"]}


def pps_one(system: str, network: str, setting: str, number: int, asked: argparse.Namespace) -> Row:
    """A window; what does not come that far is a row without a rate."""
    row: Row = {"round": number + 1, "system": system, "network": network, "setting": setting}
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        words = ours(system, f"network={network} {setting}", run, number, asked)
        try:
            row |= measure(words, run / "metrics.jsonl", asked.warm, asked.window, ROOT, stop=True)
            del row["lines"]
        except RuntimeError as e:
            print(f"pps: {e}", file=sys.stderr)
            row["failed"] = str(e).splitlines()[0]
    noise = "  (machine not quiet)" if row.get("others_cores", 0.0) > QUIET else ""
    print(f"pps: round {number + 1}, {system:<5} {network:<12} {row.get('sps', 0.0):7.1f} steps/s{noise}", flush=True)
    return row


def best(rows: list[Row], system: str, network: str) -> dict[int, float]:
    """Of each round, the fastest setting's rate."""
    found: dict[int, float] = {}
    for r in rows:
        if (r["system"], r["network"]) == (system, network) and r.get("sps"):
            found[r["round"]] = max(found.get(r["round"], 0.0), r["sps"])
    return found


def results(rows: list[Row]) -> list[Row]:
    """One row per network that was measured."""
    answer = []
    for network, name in NETWORKS.items():
        a3c, ga3c = best(rows, "a3c", network), best(rows, "ga3c", network)
        if a3c or ga3c:
            ratios = spread(ga3c[k] / a3c[k] for k in a3c if k in ga3c)
            rates = {"a3c": spread(a3c.values()), "ga3c": spread(ga3c.values())}
            answer.append({"network": network, "name": name, **rates, "ratio": ratios, "talk": TALK[network]})
    return answer


def draw(found: list[Row], out: Path) -> Path:
    """Left both rates over the size of the network, right their ratio here and in the talk."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for system, color in (("a3c", COLORS[1]), ("ga3c", COLORS[0])):
        _line(left, [f[system] for f in found], color, system.upper(), ".0f")
    _line(right, [f["ratio"] for f in found], COLORS[2], "this machine", ".2f")
    talk = [spread([f["talk"]]) for f in found]
    _line(right, talk, COLORS[6], "the talk: 16 cores and a GPU", ".0f")
    _dress(left, found, "agent steps per second", "A3C and GA3C by size of the network, Pong")
    _dress(right, found, "GA3C / A3C", "")
    figure.savefig(out)
    return out


def _line(axes: Any, some: list[Row], color: str, label: str, form: str) -> None:
    """Medians, with bars from the least to the greatest."""
    at = [i for i, s in enumerate(some) if s["n"]]
    kept = [some[i] for i in at]
    middle = [s["median"] for s in kept]
    reach = [[s["median"] - s["min"] for s in kept], [s["max"] - s["median"] for s in kept]]
    axes.errorbar(at, middle, yerr=reach, color=color, label=label, marker="o", markersize=4, linewidth=1.6, capsize=2)
    for x, y in zip(at, middle, strict=True):
        axes.annotate(f"{y:{form}}", (x, y), (0, 6), textcoords="offset points", ha="center", color=color, fontsize=8)


def _dress(axes: Any, found: list[Row], up: str, title: str) -> None:
    axes.set_xticks(range(len(found)), [f["name"].replace(", ", "\n") for f in found])
    axes.set_xlim(-0.5, len(found) - 0.5)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylabel(up, color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0, which="both")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.legend(frameon=False, labelcolor=INK)


def pps_summary(rows: list[Row], where: Row, asked: argparse.Namespace) -> list[str]:
    """The page."""
    found = results(rows)
    draw(found, asked.out.with_suffix(".png"))
    text = ["# A3C and GA3C by size of the network: Pong", "", *lines_about(where)]
    text += [f"- {s}: `{x}`" for s in asked.only for x in getattr(asked, s)]
    text += ["", f"![steps per second]({asked.out.name}.png)", ""]
    text += [f"Agent steps/s: median (least to greatest) of the rounds, {asked.window:g} s each. The talk's ratios are"]
    text += ["those of 16 cores and a GPU, where GA3C's model is on the GPU and A3C's are on the cores.", ""]
    main = [
        {
            "network": f"{f['network']} ({f['name']})",
            "A3C": said(f["a3c"], 0),
            "GA3C": said(f["ga3c"], 0),
            "GA3C / A3C": said(f["ratio"]),
            "talk": f"{f['talk']}×",
        }
        for f in found
    ]
    each = [
        {
            **{k: r[k] for k in ("round", "system", "network", "setting")},
            "agent steps/s": r.get("sps"),
            "window s": r.get("window_s"),
            "own cores": r.get("own_cores"),
            "others' cores": r.get("others_cores"),
            "peak PSS MB": r.get("pss_mb"),
        }
        for r in rows
    ]
    return [*text, *table(main), "", "## Rounds", "", *table(each)]


def run_pps() -> None:
    """The GA3C talk's first plot on this machine: agent steps/s of A3C and of GA3C for small and large networks, Pong.

        python bench/originals.py pps
        python bench/originals.py pps --resume                      # go on after an interruption
        python bench/originals.py pps --only a3c --networks ga3c    # a part of it

    Each round runs every network under A3C, then under GA3C; where a system is given several settings, each gets a
    window and its fastest counts. Ratios are taken within a round. Steps are those of metrics.jsonl: actions of
    finished predictions, counted by the workers, after a warm-up that does not count.
    """
    parser = command_line(run_pps.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=float, default=12.0, help="seconds that do not count")
    parser.add_argument("--window", type=float, default=25.0, help="seconds that do")
    parser.add_argument("--report-every", type=float, default=2.0, help="of polyplay")
    parser.add_argument("--resume", action="store_true", help="keep the rows of OUT.json")
    for system, settings in SETTINGS.items():
        parser.add_argument(f"--{system}", nargs="+", default=settings, help="settings: flags of polyplay train")
    parser.add_argument("--out", type=Path, default=RESULTS / "pps")
    asked = parser.parse_args()
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)  # measure() ends what it started
    where = about()
    fixed = {"commit": where["commit"], **{k: getattr(asked, k) for k in ("warm", "window", *SETTINGS)}}
    rows = kept(asked, fixed)
    there = {(r["round"], r["system"], r["network"], r["setting"]) for r in rows}
    turns = [(k, s, n) for k in range(asked.rounds) for n in asked.networks for s in asked.only]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for k, system, network in turns:
            for setting in getattr(asked, system):
                if (k + 1, system, network, setting) not in there:
                    rows.append(pps_one(system, network, setting, k, asked))
                    write_json(asked.out.with_suffix(".json"), {**where, "settings": fixed, "rows": rows})
    except KeyboardInterrupt:
        print("pps: interrupted; --resume goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        if any(r.get("sps") for r in rows):
            publish(asked.out, {**where, "settings": fixed, "rows": rows}, pps_summary(rows, where, asked))


# The talk's plot of convergence against the minimum training batch, on this machine, from runs of GA3C


KEPT = RESULTS / "talk"
RUNS = {f"min-batch-{n}-s{k}": ["--min-batch", str(n), "--seed", str(k)] for n in (0, 20, 40) for k in (0, 1)}
CARTPOLE = (
    "--env CartPole-v1 --network mlp --gamma 0.98 --reward scale --reduction mean --optimizer adam --optimizer-eps 1e-5"
)
CARTPOLE += (
    " --learning-rate 1e-3 --max-grad-norm 0.5 --entropy-cost 0 --agents 8 --predictors 1 --trainers 1 --schedule off"
)
EACH = ["--report-every", "1", *shlex.split(CARTPOLE)]


def run(name: str, asked: argparse.Namespace) -> None:
    words = [*RUNS[name], *EACH, "--minutes", f"{asked.minutes:g}", "--no-tensorboard"]
    print(f"$ polyplay train ga3c {shlex.join(words)}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        at = Path(place) / "run"
        started = about()
        subprocess.run(
            [sys.executable, "-m", "polyplay", "train", "ga3c", *words, "--run", str(at)], cwd=ROOT, check=True
        )
        kept = KEPT / f"batches-{name}"
        kept.mkdir(parents=True, exist_ok=True)
        rows = thin(list(read_lines(at / "metrics.jsonl")))
        (kept / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        write_json(kept / "about.json", {**started, "words": words})


def figure(rows: int, columns: int) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(5 * columns, 2.1 * rows), dpi=140, layout="constrained", facecolor="white")


def talk_batches() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = [n for n in RUNS if (KEPT / f"batches-{n}").exists()]
    picture = figure(2, 2)
    panels = picture.subplots(1, 2, sharey=True)
    colors, found = dict(zip((0, 20, 40), COLORS, strict=False)), []
    for name in names:
        n, seed = (int(word.strip("s")) for word in name.split("-")[2:])
        rows = list(read_lines(KEPT / f"batches-{name}" / "metrics.jsonl"))
        judged = [r for r in rows if r.get("episodic_return_mean") is not None]
        y = [r["episodic_return_mean"] for r in judged]
        label = f"at least {n}" if n else "one chunk"
        for panel, key, scale in zip(panels, ("steps", "wall_seconds"), (1e3, 1.0), strict=True):
            panel.plot([r[key] / scale for r in judged], y, color=colors[n], label="" if seed else label)
        last = rows[-1]
        found.append(
            {
                "transitions an update": label,
                "seed": seed,
                "seconds": last["wall_seconds"],
                "agent steps": last["steps"],
                "updates": last["updates"],
                "lag": last["lag_mean"],
                "mean of 100 games": last["episodic_return_mean"],
            }
        )
    for panel, label in zip(panels, ("thousand agent steps", "seconds"), strict=True):
        panel.set_xlabel(label, color=INK)
        panel.grid(color=FAINT)
    panels[0].set_ylabel("CartPole, mean of 100 games", color=INK)
    panels[0].legend(frameon=False)
    FigureCanvasAgg(picture).print_png(str(RESULTS / "talk_batches.png"))
    page(names, table(found))


def page(names: list[str], rows: list[str]) -> None:
    title = "Convergence against the minimum training batch"
    texts = [f"# {title}", "", f"![{title}](talk_batches.png)", "", *rows, ""]
    for name in names:
        told = json.loads((KEPT / f"batches-{name}" / "about.json").read_text())
        texts += [f"## {name}", "", f"`polyplay train ga3c {shlex.join(told['words'])}`", "", *lines_about(told), ""]
    (RESULTS / "talk_batches.md").write_text("\n".join(texts), encoding="utf-8")
    print("\n".join(texts))


def run_talk() -> None:
    """The talk's plot of convergence against the minimum training batch, on this machine, from runs of GA3C.

        python bench/originals.py talk
        python bench/originals.py talk --draw    # only draw and tabulate what is there

    Reports of every run are kept in results/talk/.
    """
    parser = command_line(run_talk.__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="+", default=None, help="names of runs")
    parser.add_argument("--draw", action="store_true")
    asked = parser.parse_args()
    for name in [] if asked.draw else asked.only or RUNS:
        run(name, asked)
    talk_batches()


if __name__ == "__main__":
    sys.exit(commands({"": main, "pps": run_pps, "talk": run_talk}))
