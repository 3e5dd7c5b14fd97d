"""What systems keep of their speed when something else keeps one core busy: each as it starts, beside a peer.

    python bench/disturbed.py --peers PEERS                            # every system, 0 and 1 busy cores: 20 minutes
    python bench/disturbed.py dqn sb3-dqn --peers PEERS --rounds 2     # a few
    python bench/disturbed.py dqn sb3-dqn --peers PEERS --duel         # undisturbed, in turn, dqn in both precisions

Pong, no option of speed given. Only what would keep a run from learning within seconds is: a short
--learning-starts, a replay that fits, and for r2d2 and apex a batch that ends within the window. A foreign core is a
process that computes for ever, bound to one core, at the same priority; runs with and without it follow one another.
Rates are agent steps learnt from per second, after the first updates and a warm-up. PEERS: see bench/peers/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from common import RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, said, spread, table, verdict
from contests import Contender, missing, words
from measure import measure

from docs.browser import Browser
from polyplay.core.files import read_lines, write_json
from polyplay.systems import ordinary

REPLAY = "learning_starts=1000 capacity=100000"
PLAYED = f"{REPLAY} epsilon=0.05 epsilon_decay_steps=1"  # as the peer plays
OPTIONS = {
    "dqn": PLAYED,
    "rainbow": REPLAY,
    "accel_dqn": PLAYED,
    "apex": f"{REPLAY} batch=64",
    "r2d2": "learning_starts=1000 capacity=100000 batch=4",
    "gorila": PLAYED,
    "apex_dpg": "learning_starts=1000 capacity=100000",
}
ELSEWHERE = {"apex_dpg": "Pendulum-v1"}  # its actions are real numbers
PEERS = {"sb3-dqn": "n_envs=1 vec=dummy", "sb3": "algo=ppo n_envs=8"}  # DQN and PPO; two compute threads, torch's own
LEAST, FASTER = 0.4, {"float32": 1.6, "auto": 2.0}  # of the undisturbed rate; times the peer's


@contextlib.contextmanager
def busy_cores(n: int) -> Iterator[None]:
    """So many cores, from the first, each with a process that does nothing but compute."""
    cores = sorted(os.sched_getaffinity(0))[:n]
    others = [multiprocessing.get_context("spawn").Process(target=_spin, args=(c,), daemon=True) for c in cores]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def contender(name: str, precision: str) -> Contender:
    if name in PEERS:
        return Contender(name, name, PEERS[name])
    return Contender(name, name, f"{OPTIONS.get(name, '')} precision={precision}".strip())


def one(who: Contender, busy: int, asked: argparse.Namespace, seed: int) -> Row:
    """A window; a run that does not come that far is a row without a rate."""
    row: Row = {"who": who.name, "options": who.fixed, "busy": busy}
    with tempfile.TemporaryDirectory() as place, busy_cores(busy):
        line, log = words(who, "", Path(place), seed, asked.peers, 0.25)
        if who.name in ELSEWHERE:
            line[line.index("ALE/Pong-v5")] = ELSEWHERE[who.name]
        try:
            row |= measure(line, log, asked.warm, asked.window, ROOT, True)
            del row["lines"]
        except RuntimeError as e:
            row["failed"] = str(e).splitlines()[0]
            print(f"disturbed: {e}", file=sys.stderr)
    told = f"{row['sps']:8.1f} steps/s, {row['own_cores']:.2f} cores" if "sps" in row else "FAILED"
    print(f"  {who.name:<12} {who.fixed[-18:]:<18} {busy} busy  {told}", flush=True)
    return row


def rows_of(asked: argparse.Namespace, save: list[Row]) -> None:
    """Every system without and with busy cores, then again; --duel: only without, each of ours in both precisions."""
    precisions = ("auto", "float32") if asked.duel else (asked.precision,)
    who = [contender(name, p) for name in asked.systems for p in precisions[: 1 if name in PEERS else None]]
    for seed in range(asked.rounds):
        for c in who:
            save.extend(one(c, busy, asked, seed) for busy in ((0,) if asked.duel else asked.busy))
            keep_rows(asked, save)


def keep_rows(asked: argparse.Namespace, rows: list[Row]) -> None:
    """What there is so far."""
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(asked.out.with_suffix(".json"), {**asked.about, "rows": rows})


def median(rows: list[Row], who: str, options: str, busy: int) -> float | None:
    found = [r["sps"] for r in rows if (r["who"], r["options"], r["busy"]) == (who, options, busy) and "sps" in r]
    return statistics.median(found) if found else None


def summary(rows: list[Row]) -> list[Row]:
    """A line for each who: rates, and what is kept."""
    lines = []
    for who, options in dict.fromkeys((r["who"], r["options"]) for r in rows):
        line: Row = {"who": who, "options": options}
        quiet = median(rows, who, options, 0)
        for busy in sorted({r["busy"] for r in rows}):
            rate = median(rows, who, options, busy)
            line[f"{busy} busy, steps/s"] = rate
            if busy and rate and quiet:
                line["kept"] = rate / quiet
        lines.append(line)
    return lines


def verdicts(lines: list[Row], rows: list[Row]) -> list[str]:
    answer = [verdict(f"{r['who']} keeps", r["kept"], least=LEAST) for r in lines if "kept" in r]
    peer = spread(r["sps"] for r in rows if r["who"] == "sb3-dqn" and not r["busy"] and "sps" in r)
    for r in lines:
        if r["who"] == "dqn" and peer["n"] and r.get("0 busy, steps/s"):
            precision = r["options"].rsplit("=", 1)[1]
            name = f"dqn, {precision}, × sb3-dqn ({said(peer, 0)} steps/s)"
            answer.append(verdict(name, r["0 busy, steps/s"] / peer["median"], least=FASTER[precision]))
    return answer


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("systems", nargs="*", help="systems, and peers (default: all)")
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="directory of the peers' environments")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="foreign busy cores")
    parser.add_argument("--precision", choices=("auto", "float32"), default="auto")
    parser.add_argument("--duel", action="store_true", help="undisturbed only, ours in both precisions, in turn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm", type=float, default=3.0, help="seconds after the first steps that do not count")
    parser.add_argument("--window", type=float, default=8.0, help="seconds that do")
    parser.add_argument("--out", type=Path, default=None, help="without suffix")
    asked = parser.parse_args()
    there = [*ordinary(), *PEERS]
    if unknown := [s for s in asked.systems if s not in there]:
        parser.error(f"SYSTEM: {' '.join(unknown)} given, allowed: {', '.join(there)}")
    asked.systems = asked.systems or there
    for name in [s for s in asked.systems if s in PEERS]:
        if why := missing(contender(name, "auto"), asked.peers, there):
            print(f"disturbed: {name} is left out: {why}", file=sys.stderr)
            asked.systems.remove(name)
    asked.out = asked.out or RESULTS / "disturbed" / ("duel" if asked.duel else asked.precision)
    asked.about = about()
    return asked


def main() -> None:
    asked, rows = arguments(), list[Row]()
    try:
        rows_of(asked, rows)
    finally:
        lines = summary(rows)
        text = ["# Speed beside a foreign busy core", "", *lines_about(asked.about), f"- precision: {asked.precision}"]
        publish(asked.out, {**asked.about, "rows": rows}, [*text, "", *table(lines), "", *verdicts(lines, rows)])


# What an open live page costs a run: agent steps/s without and with it, A B A B …


sys.path.insert(0, str(Path(__file__).parents[1]))

POLYPLAY = [sys.executable, "-m", "polyplay"]
WATCHED_OPTIONS = ["--env", "toy:catch", "--preset", "quick", "--network", "mlp", "--inputs", "raw", "--no-tensorboard"]
WARM = 10.0  # seconds of a run that do not count
PORT = 8798


def rate(run: Path, seconds: float, watched: bool) -> float:
    """Agent steps/s from the first report after WARM to the last one."""
    minutes = str((WARM + seconds) / 60)
    call = [
        *POLYPLAY,
        "train",
        "impala",
        *WATCHED_OPTIONS,
        "--report-every",
        "1",
        "--minutes",
        minutes,
        "--run",
        str(run),
    ]
    training = subprocess.Popen(call, stdout=subprocess.DEVNULL)
    while not (run / "config.json").exists() and training.poll() is None:
        time.sleep(0.1)
    if watched:
        watch(run, training)
    if training.wait() != 0:
        raise SystemExit(f"the run in {run} failed")
    rows = [r for r in read_lines(run / "metrics.jsonl", "steps", "wall_seconds") if r["wall_seconds"] >= WARM]
    return (rows[-1]["steps"] - rows[0]["steps"]) / (rows[-1]["wall_seconds"] - rows[0]["wall_seconds"])


def watch(run: Path, training: subprocess.Popen[bytes]) -> None:
    """Have the page open until the run has ended."""
    call = [*POLYPLAY, "watch", str(run), "--port", str(PORT)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        browser = Browser()
        try:
            browser.open(page.stdout.readline().split()[-1])
            training.wait()
        finally:
            browser.close()
            page.send_signal(signal.SIGINT)


def run_watched() -> None:
    """What an open live page costs a run: agent steps/s without and with it, A B A B …

        python bench/disturbed.py watched [--seconds 30] [--pairs 4]

    Each run is a new impala on toy:catch; B has `polyplay watch` and chromium with its page open. The first reports are
    left out. Needs chromium, chromedriver and polyplay[watch]; nothing else may run on the machine.
    """
    parser = argparse.ArgumentParser(description=run_watched.__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--pairs", type=int, default=4)
    options = parser.parse_args()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(2 * options.pairs):
            watched = i % 2 == 1
            rates[watched].append(rate(Path(folder) / str(i), options.seconds, watched))
            print(f"{'with' if watched else 'without'} the page {rates[watched][-1]:,.0f} steps/s", flush=True)
    report(rates)


def report(rates: dict[bool, list[float]]) -> None:
    """Write bench/results/watched.*."""
    pairs = list(zip(rates[False], rates[True], strict=True))
    rows = [
        {"without the page, steps/s": round(a), "with it": round(b), "ratio": round(b / a, 3)}
        for a, b in [*pairs, (mean(rates[False]), mean(rates[True]))]
    ]
    what = about()
    text = ["# An open live page", "", *lines_about(what), "", "In turn; the last row has the means.", "", *table(rows)]
    publish(RESULTS / "watched", {**what, "rows": rows}, text)


if __name__ == "__main__":
    sys.exit(commands({"": main, "watched": run_watched}))
