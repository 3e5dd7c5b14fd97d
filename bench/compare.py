"""Training speed and memory on Pong, Nature CNN: polyplay a2c, Stable-Baselines3's A2C and polyplay impala.

Every round runs each of them once, in turn; ratios are taken within a round. Rates are agent steps per second
over a window after a warm-up; memory is the peak, from the start on, of the sum of PSS over all processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, said, spread, table, verdict
from measure import measure, versions

SB3 = [f"n_envs={n} threads={t}" for n, t in ((16, 2), (8, 2), (32, 2), (64, 2), (16, 1))]
A2C = ["lanes=32", "lanes=16", "lanes=64", "lanes=32 groups=2", "lanes=32 replicas=1"]
IMPALA = ["lanes=16 batch=32", "lanes=32 batch=32", "lanes=32 batch=64", "lanes=16 batch=16"]
FIXED = {"a2c": "network=nature unroll=5", "impala": "network=nature actors=2", "sb3": "n_steps=5"}
TARGETS = {"a2c / sb3": 1.6, "impala / a2c": 1.0}
SB3_PACKAGES = ["stable-baselines3", "torch", "gymnasium", "ale-py", "opencv-python-headless", "numpy"]
MEMORY_MB = 1500.0
COLUMNS = {
    "agent steps/s": "sps",
    "window s": "window_s",
    "own cores": "own_cores",
    "core-ms/step": "core_ms_per_step",
    "peak PSS MB": "pss_mb",
    "processes": "processes",
}
QUIET = 0.1  # cores that others may take before a row is marked


def flags(setting: str) -> list[str]:
    """'n_envs=16 threads=2' → --n-envs 16 --threads 2"""
    pairs = [word.split("=", 1) for word in setting.split()]
    return [word for k, v in pairs for word in (f"--{k.replace('_', '-')}", v)]


def one(who: str, setting: str, window: float, asked: argparse.Namespace, number: int) -> Row:
    """A window of `who`; a program that does not come that far is a row without a rate."""
    with tempfile.TemporaryDirectory() as place:
        own = [*flags(FIXED[who]), *flags(setting), "--seed", str(number)]
        if who == "sb3":
            log = Path(place) / "log.jsonl"
            budget = ["--warm", str(asked.warm), "--seconds", str(window + 3), "--log", str(log)]
            words = [asked.sb3_python, str(ROOT / "bench/peers/sb3_a2c.py"), *own, *budget]
        else:
            log = Path(place) / "run/metrics.jsonl"
            seconds = asked.warm + window + asked.report_every + 2.0
            budget = ["--minutes", f"{seconds / 60.0:.4f}", "--report-every", str(asked.report_every)]
            words = [sys.executable, "-m", "polyplay", "train", who, "--env", "ALE/Pong-v5", *own, *budget]
            words += ["--run", str(log.parent)]
        row: Row = {"who": who, "setting": setting}
        try:
            row |= measure(words, log, asked.warm, window, ROOT)
            del row["lines"]
        except RuntimeError as e:
            print(f"compare: {e}", file=sys.stderr)
            row["failed"] = str(e).splitlines()[0]
    note = "  (machine not quiet)" if row.get("others_cores", 0.0) > QUIET else ""
    print(f"{who:<7} {setting:<22} {row.get('sps', 0.0):7.0f} steps/s{note}", flush=True)
    return row


def probe(who: str, settings: list[str], asked: argparse.Namespace) -> tuple[str, list[Row]]:
    """The fastest of several settings by one short window each."""
    rows = [one(who, s, asked.probe_window, asked, 1000 + i) for i, s in enumerate(settings)]
    return str(max(rows, key=lambda r: r.get("sps", 0.0))["setting"]), rows


def ratios(rows: list[Row], a: str, b: str) -> list[float]:
    """sps of `a` over that of `b`, round by round, where both ran."""
    of = {(r["who"], r["round"]): r["sps"] for r in rows if r.get("sps")}
    return [of[a, k] / of[b, k] for w, k in of if w == a and (b, k) in of]


def shown(rows: list[Row]) -> list[str]:
    """Rows as a table."""

    def cells(r: Row) -> Row:
        others = r.get("others_cores", 0.0)
        return {
            **({"round": r["round"]} if "round" in r else {}),
            "who": r["who"],
            "setting": f"{r['setting']} {FIXED[r['who']]}",
            **{head: r.get(key) for head, key in COLUMNS.items()},
            "others' cores": f"{others:.2f}{' BUSY' if others > QUIET else ''}",
        }

    return table([cells(r) for r in rows])


def report(rows: list[Row], probed: list[Row], asked: argparse.Namespace) -> None:
    """bench/results/speed.json and speed.md"""
    whos = list(dict.fromkeys(r["who"] for r in rows))
    rates = {w: spread(r["sps"] for r in rows if r["who"] == w and "sps" in r) for w in whos}
    memory = {w: max(r.get("pss_mb", 0.0) for r in rows if r["who"] == w) for w in whos}
    pairs = {name: ratios(rows, *name.split(" / ")) for name in TARGETS}
    where = about() | {"sb3_versions": asked.sb3_versions}
    text = ["# Training speed and memory: Pong, Nature CNN", "", *lines_about(where)]
    text += [f"- the peer's versions: {asked.sb3_versions}", ""]
    text += ["Agent steps/s, median (least to greatest) of the rounds:", ""]
    text += [f"- {w}: {said(rates[w], 0)}, peak {memory[w]:.0f} MB" for w in whos] + [""]
    for name, least in TARGETS.items():
        s = spread(pairs[name])
        text.append(verdict(f"{name}, round by round {said(s)}; median", s["median"], least=least))
    text.append(verdict("a2c's peak memory, MB", memory.get("a2c"), most=MEMORY_MB))
    busy = sum(r.get("others_cores", 0.0) > QUIET for r in rows)
    text += ["", f"Others took more than {QUIET} core (marked BUSY) in {busy} of {len(rows)} rows.", ""]
    text += ["## Rounds", "", *shown(rows)]
    if probed:
        text += ["", f"## Settings tried first, {asked.probe_window:g} s each", "", *shown(probed)]
    found = {"rates": rates, "ratios": pairs, "peak_pss_mb": memory, "rows": rows, "probe": probed}
    publish(asked.out, {**where, **found}, text)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sb3-python", required=True, help="see bench/peers/README.md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=8.0, help="seconds that do not count")
    parser.add_argument("--window", type=float, default=25.0, help="seconds that do")
    parser.add_argument("--report-every", type=float, default=5.0, help="of polyplay (its default is 5)")
    parser.add_argument("--probe", action="store_true", help="try all settings, keep each one's fastest")
    parser.add_argument("--probe-window", type=float, default=10.0)
    parser.add_argument("--a2c", nargs="+", default=A2C, help="settings; without --probe the first counts")
    parser.add_argument("--sb3", nargs="+", default=SB3)
    parser.add_argument("--impala", nargs="+", default=IMPALA)
    parser.add_argument("--out", type=Path, default=RESULTS / "speed")
    asked = parser.parse_args()
    try:
        asked.sb3_versions = versions(asked.sb3_python, SB3_PACKAGES)
    except (OSError, subprocess.CalledProcessError) as e:
        parser.error(f"--sb3-python: {asked.sb3_python} does not work ({e}); see bench/peers/README.md")
    chosen = {who: getattr(asked, who)[0] for who in ("a2c", "sb3", "impala")}
    probed: list[Row] = []
    for who in chosen if asked.probe else ():
        chosen[who], tried = probe(who, getattr(asked, who), asked)
        probed += tried
    rows: list[Row] = []
    for number in range(asked.rounds):
        for who, setting in chosen.items():
            rows.append({"round": number + 1, **one(who, setting, asked.window, asked, number)})
    report(rows, probed, asked)


if __name__ == "__main__":
    main()
