"""Time to score: who plays Pong to a mean full-game return of 18 soonest, from the start of its process.

    python bench/score_race.py --peers PEERS                                       # racers.py, in turn, 10 minutes each
    python bench/score_race.py --peers PEERS --only ppo "sb3 PPO" --seeds 1 2 3
    python bench/score_race.py --peers PEERS --resume                              # go on; runs that are there stay
    python bench/score_race.py --draw                                              # page and picture anew

Every racer runs alone until the mean of the last 100 games that it finished while training is 18 or more, or until
--cap seconds have passed. Returns are unclipped, games whole. The clock is this program's, from the moment that it
starts the racer: a game counts when its line has come. Results: bench/results/race.{json,md,png}.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import race_report
from common import RESULTS, ROOT, Row, about, command_line, publish
from compare import inventory, neutral
from contests import Contender, missing, words
from measure import end
from racers import RACERS, Racer
from runs import GAMES, GOAL, thin

from polyplay.cli.bench_measure import ProcessWatch
from polyplay.core.files import write_json
from polyplay.systems import ordinary

POLL = 1.0  # seconds between two looks at a racer's lines
SHORT = 10  # games of --short


class Tail:
    """What has been added to a file of JSON lines, which may not be there yet."""

    def __init__(self, path: Path):
        self.path, self.at = path, 0

    def rows(self) -> list[Row]:
        """Whole lines since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self.at += len(text)
        return [json.loads(line) for line in text.splitlines()]


class Curve:
    """Mean return of the last 100 games over time, and when it first was 18."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=GAMES)
        self.games, self.points = 0, list[Row]()
        self.best: float | None = None  # of 100 games
        self.reached: Row | None = None

    def add(self, seconds: float, frames: float, returns: list[float]) -> None:
        """Games that are known of since `seconds`; nothing after the goal counts."""
        if self.reached:
            return
        for value in returns:
            self.last.append(value)
            self.games += 1
            mean = statistics.fmean(self.last)
            if len(self.last) == GAMES:
                self.best = mean if self.best is None else max(self.best, mean)
                if mean >= GOAL:
                    self.reached = {"seconds": seconds, "frames": frames}
                    break
        if returns:
            mean = statistics.fmean(self.last)
            self.points.append({"seconds": seconds, "frames": frames, "games": self.games, "mean": mean})

    def row(self) -> Row:
        """As it is kept."""
        return {
            "reached_s": self.reached["seconds"] if self.reached else None,
            "reached_frames": self.reached["frames"] if self.reached else None,
            "best": self.best,
            "last": self.points[-1]["mean"] if self.points else None,
            "games": self.games,
            "curve": [{k: round(v, 3) for k, v in p.items()} for p in thin(self.points)],
        }


def follow(
    child: subprocess.Popen, log: Path, games: Path | None, begun: float, asked: argparse.Namespace
) -> tuple[Curve, Row]:
    """A racer until the goal, the cap or its own end. `games`: ours, whose finished games have a file of their own."""
    curve, watch, frames = Curve(), ProcessWatch(child.pid), 0.0
    lines, ended = Tail(log), Tail(games) if games else None
    first = last = watch.cpu()
    enough = SHORT if asked.short else math.inf
    while child.poll() is None and not curve.reached and time.monotonic() - begun < asked.cap and curve.games < enough:
        time.sleep(POLL)
        watch.sample_memory()
        rows, now = lines.rows(), round(time.monotonic() - begun, 2)
        last = watch.cpu() if child.poll() is None else last
        frames = rows[-1].get("frames", 4 * rows[-1]["steps"]) if rows else frames
        if ended is None:
            found = [value for row in rows for value in row.get("returns", ())]
        else:
            found = [row["episodic_return"] for row in ended.rows()]
        curve.add(now, frames, found)
    wall, own, busy = (b - a for a, b in zip(first, last, strict=True))
    said: Row = {"ended_s": time.monotonic() - begun, "frames": frames, "own_cores": own / max(wall, 1e-9)}
    said |= {"others_cores": max(0.0, busy - own) / max(wall, 1e-9), "pss_mb": watch.peak_mb}
    return curve, said | {"processes": watch.processes}


def one(who: Racer, seed: int, asked: argparse.Namespace) -> Row:
    """A race of one; a program that ends by itself before the cap is a row that says so."""
    row: Row = {"who": who.name, "seed": seed, "cap_s": asked.cap}
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile("w+") as spoken:
        runner = Contender(who.name, who.program, who.fixed)
        line, log = words(runner, "", Path(place), seed, asked.peers, 1.0, minutes=asked.cap / 60 + 5)
        games = log.with_name("episodes.jsonl") if who.ours else None
        begun = time.monotonic()
        child = subprocess.Popen(line, stdout=spoken, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)
        try:
            curve, said = follow(child, log, games, begun, asked)
            status = child.poll()
        finally:
            end(child)
        row |= {**curve.row(), **said}
        if status is not None and not curve.reached:
            spoken.seek(0)
            told = neutral(spoken.read()[-1500:], asked)
            print(f"score_race: {who.name} ended by itself: {told}", file=sys.stderr)
            row["failed"] = f"ended by itself with status {status}"
    print(f"  {who.name:<26} seed {seed}  {race_report.outcome(row)}", flush=True)
    return row


def hold(asked: argparse.Namespace) -> None:
    """All racers, one seed after the other; what is there is kept after each."""
    who = racers(asked)
    out, where = asked.out, about()
    where["command"] = neutral(where["command"], asked)
    kept: Row = {**where, "peers": inventory([Contender(w.name, w.program, w.fixed) for w in who], asked)}
    kept |= {"goal": GOAL, "last_games": GAMES, "rows": earlier(out) if asked.resume else []}
    kept["racers"] = {w.name: {"program": w.program, "flags": w.fixed, "source": w.source} for w in RACERS}
    there = {(r["who"], r["seed"]) for r in kept["rows"] if not r.get("failed")}
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for seed in asked.seeds:
            for w in who:
                if (w.name, seed) not in there:
                    kept["rows"].append({**one(w, seed, asked), "commit": where["commit"]})
                    write_json(out.with_suffix(".json"), kept)
    finally:
        if kept["rows"]:
            publish(out, kept, race_report.page(kept))
            race_report.picture(kept["rows"], out.with_suffix(".png"))


def racers(asked: argparse.Namespace) -> list[Racer]:
    """Who can run; a line for each that cannot."""
    systems, answer = ordinary(), []
    for w in RACERS:
        why = missing(Contender(w.name, w.program, w.fixed), asked.peers, systems)
        if asked.only and w.name not in asked.only:
            continue
        if why:
            print(f"score_race: {w.name} is left out: {why}", file=sys.stderr)
        else:
            answer.append(w)
    return answer


def earlier(out: Path) -> list[Row]:
    """Runs that are there, without those that failed."""
    file = out.with_suffix(".json")
    return [r for r in json.loads(file.read_text())["rows"] if not r.get("failed")] if file.exists() else []


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--peers", type=Path, help="directory of the peers' environments, see bench/peers/README.md")
    parser.add_argument("--cap", type=float, default=600.0, help="seconds a racer may take")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these racers")
    parser.add_argument("--short", action="store_true", help=f"until {SHORT} games have ended, to see it work")
    parser.add_argument("--resume", action="store_true", help="keep the runs of race.json")
    parser.add_argument("--draw", action="store_true", help="page and picture of what is there, nothing is run")
    parser.add_argument("--out", type=Path, default=RESULTS / "race", help="results, without suffix")
    asked = parser.parse_args()
    unknown = [n for n in asked.only if n not in {w.name for w in RACERS}]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} given, allowed: {', '.join(w.name for w in RACERS)}")
    if not asked.draw and (asked.peers is None or not asked.peers.is_dir()):
        parser.error(f"--peers: {asked.peers} is no directory; see bench/peers/README.md")
    return asked


def main() -> None:
    asked = arguments()
    if asked.draw:
        kept: Any = json.loads(asked.out.with_suffix(".json").read_text())
        publish(asked.out, kept, race_report.page(kept))
        race_report.picture(kept["rows"], asked.out.with_suffix(".png"))
        return
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)
    try:
        hold(asked)
    except KeyboardInterrupt:
        print("score_race: interrupted; --resume goes on from here", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
