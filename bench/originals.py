"""A3C and GA3C against the originals: NVlabs/GA3C and ikostrikov/pytorch-a3c on this machine, Pong, in turn.

    python bench/originals.py --ga3c GA3C --a3c pytorch-a3c --peers-python peersvenv/bin/python
    python bench/originals.py … --short          # one round of short windows, to see that all works
    python bench/originals.py … --resume         # go on after an interruption; rounds that are there are kept

How the peers are made to run: bench/peers/README.md. Each round runs ours, then theirs, of each system; ratios are
taken within a round. Rates are agent steps per second after a warm-up that does not count, from counters where the work
is done: predictions served (GA3C), the shared step counter of the workers (A3C), `steps` of metrics.jsonl (ours). Then
our run's parts are measured (parts.py), for its share of the limit they set. Every window is kept at once in OUT.json.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import parts
from common import (
    QUIET,
    RESULTS,
    ROOT,
    Row,
    about,
    command_line,
    kept,
    lines_about,
    publish,
    said,
    spread,
    table,
    verdict,
)
from contests import flags
from measure import measure, versions

from polyplay.core.files import write_json

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
    "  OpenCV in a fraction of the time that its own code takes (frames=own): in the peer's favour.",
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
    return {"parts": parts.limits(run, n, m, asked.parts_seconds)}


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
    text += [f"- the peers' versions: {asked.versions}; {asked.commits}", f"- cores: {parts.cores()}", ""]
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
    text += [*parts.shown([(f"{r['system']}, round {r['round']}", r["parts"]) for r in rows if "parts" in r])]
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


if __name__ == "__main__":
    main()
