"""Time to score: who plays Pong to a mean full-game return of 18 soonest, from the start of its process.

    python bench/score_race.py --peers PEERS                                       # all, in turn, 10 minutes each
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import GAMES, GOAL, QUIET, RESULTS, ROOT, Row, about, command_line, lines_about, publish, table, thin
from compare import inventory, neutral
from contests import PEERS, Contender, missing, words
from measure import ProcessWatch, end

from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core.files import write_json
from polyplay.systems import ordinary

# Who runs in score_race.py, with which settings: the table, and nothing that measures


@dataclass(frozen=True)
class Racer:
    name: str
    program: str  # a system of Polyplay's, or a key of contests.PEERS
    fixed: str  # its flags, as in contests.py
    source: str  # where they are published, and what was chosen here

    @property
    def ours(self) -> bool:
        return self.program not in PEERS


SF = "epochs=4 rollout=128 batch_size=256 anneal=10000000"
ATARI = "num_workers=1 env_agents=8 serial_mode=True async_rl=False normalize_input=True normalize_returns=True"
RACERS = (
    Racer("ppo", "ppo", "preset=quick precision=auto", "`quick`"),
    Racer("accel", "accel", "preset=quick precision=auto", "`quick`, which is PPO"),
    Racer("appo", "appo", "preset=quick precision=auto", "`quick`"),
    Racer("impala", "impala", "preset=quick precision=auto", "`quick`"),
    Racer("a2c", "a2c", "preset=quick precision=auto", "`quick`"),
    Racer(
        "sb3 PPO",
        "sb3",
        "algo=ppo network=nature n_envs=8 anneal=10000000 threads=2",
        "rl-zoo3's ppo.yml, `atari`; its CnnPolicy, a process per environment",
    ),
    Racer(
        "sb3 A2C",
        "sb3",
        "algo=a2c network=nature n_envs=16 threads=2",
        "rl-zoo3's a2c.yml, `atari`; its CnnPolicy, a process per environment",
    ),
    Racer(
        "cleanrl-like PPO",
        "cleanrl-like",
        "algo=ppo network=nature n_envs=8 anneal=10000000 threads=2 env_threads=2",
        "CleanRL's ppo_atari_envpool.py",
    ),
    Racer(
        "sample-factory, envpool",
        "sample-factory",
        f"{SF} num_workers=2 env_agents=16",
        "its presets for Atari with EnvPool (asynchronous); 2 workers of 16 environments instead of 4 of 64",
    ),
    Racer(
        "sample-factory, atari",
        "sample-factory",
        f"{SF} {ATARI}",
        "its presets for Atari (synchronous, 8 environments, inputs and returns normalized); EnvPool steps them",
    ),
    Racer(
        "rlpyt A2C",
        "rlpyt",
        "algo=a2c network=own lanes=32 unroll=5 decorrelation=1000 workers=2 threads=2",
        "its atari_ff_a2c.py, `0`: its network and frames; 2 sampling processes",
    ),
    Racer(
        "rlpyt PPO",
        "rlpyt",
        "algo=ppo network=own lanes=32 unroll=64 anneal=50000000 decorrelation=1000 workers=2 threads=2",
        "its atari_ff_ppo.py, `0`: its network and frames; 2 sampling processes",
    ),
    Racer(
        "monobeast",
        "monobeast",
        "network=own num_actors=8 total_steps=30000000 learning_rate=0.0004 epsilon=0.01 entropy_cost=0.01 "
        "batch_size=4 unroll_length=80 num_buffers=60 num_learner_threads=1",
        "its README's command for Pong, its network; 8 actors instead of 45, 1 learner thread instead of 4",
    ),
)


# The page and the picture of score_race.py. A racer that did not arrive gives a bound, and the page says so


OURS = {r.name for r in RACERS if r.ours}
WITHIN, LEAST = 15.0, 2.0  # minutes for the best of ours; how much later the best peer


def outcome(row: Row) -> str:
    """A run in words."""
    mean = "no 100 games" if row["best"] is None else f"best mean {row['best']:.1f}"
    if row["reached_s"] is not None:
        return f"18 after {row['reached_s']:.0f} s, {row['reached_frames'] / 1e6:.2f} M frames"
    if row.get("failed"):
        return f"FAILED: {row['failed']}; {mean}"
    last = "no game ended" if row["last"] is None else f"{row['last']:.1f} at the end"
    return f"not reached in {row['ended_s']:.0f} s: {mean}, {last}, {row['frames'] / 1e6:.2f} M frames"


def arrival(rows: list[Row], who: str) -> tuple[float, bool] | None:
    """(median seconds of its seeds, whether that was reached): not reached, the least that it can be. None: no run."""
    mine = [r for r in rows if r["who"] == who and not r.get("failed")]
    if not mine:
        return None
    times = [r["reached_s"] if r["reached_s"] is not None else math.inf for r in mine]
    middle = statistics.median_high(times)
    return (
        (middle, True) if math.isfinite(middle) else (min(r["ended_s"] for r in mine if r["reached_s"] is None), False)
    )


def first(rows: list[Row], ours: bool) -> tuple[str, float, bool] | None:
    """The soonest of ours, or of the peers: name, seconds, whether reached. Of peers that all were not, the one whose
    mean was best.
    """
    found = {w: arrival(rows, w) for w in dict.fromkeys(r["who"] for r in rows) if (w in OURS) == ours}
    there = [(not a[1], a[0] if a[1] else -_best(rows, w), w) for w, a in found.items() if a]
    if not there:
        return None
    name = min(there)[2]
    seconds, reached = found[name] or (math.inf, False)
    return name, seconds, reached


def _best(rows: list[Row], who: str) -> float:
    means = [r["best"] if r["best"] is not None else r["last"] for r in rows if r["who"] == who]
    return max((m for m in means if m is not None), default=-math.inf)


def judged(rows: list[Row]) -> list[str]:
    """The two targets."""
    ours, peer = first(rows, ours=True), first(rows, ours=False)
    text = []
    if ours:
        name, seconds, reached = ours
        said = f"{seconds / 60:.2f} minutes" if reached else f"not reached in {seconds / 60:.1f} minutes"
        met = "met" if reached and seconds <= 60 * WITHIN else "NOT met"
        text.append(f"- the best of ours, {name}: **{said}**, target ≤ {WITHIN:g}: {met}")
    if ours and peer and ours[2]:
        name, seconds, reached = peer
        ratio = seconds / ours[1]
        if reached:
            met = "met" if ratio >= LEAST else "NOT met"
            text.append(
                f"- the best peer, {name}: {seconds / 60:.2f} minutes, **{ratio:.2f}** times ours, target ≥ 2: {met}"
            )
        else:
            bound = f"no peer reached 18; best mean {_best(rows, name):.1f}, by {name}"
            met = "met" if ratio >= LEAST else "open: a longer cap would tell"
            text.append(f"- {bound}. A bound, not a time: **≥ {ratio:.2f}** times ours, target ≥ 2: {met}")
    return text


def page(kept: Row) -> list[str]:
    """Markdown."""
    rows = kept["rows"]
    text = ["# Time to score: Pong to a mean full-game return of 18", "", "![learning curves](race.png)", ""]
    text += [*lines_about(kept), *(f"- {who}: {what}" for who, what in kept["peers"].items()), "", *judged(rows), ""]
    text += ["From the start of the process until the mean of the last 100 games finished in training, unclipped and"]
    text += [
        "whole, was 18 or more. Each racer ran alone. Ours ran with `quick`, which was made for this game; the peers"
    ]
    text += ["with the hyper-parameters that they publish for Atari games or for Pong.", ""]
    text += table([cells(r) for r in rows])
    text += ["", f"CPU: cores, of all processes of the racer; BUSY: others used more than {QUIET} core.", ""]
    named = dict.fromkeys(r["who"] for r in rows)
    return [*text, "Settings:", "", *(_setting(kept["racers"][w], w) for w in named)]


def _setting(racer: Row, name: str) -> str:
    return f"- {name}: {racer['source']}: `{racer['program']}: {racer['flags']}`"


def cells(r: Row) -> Row:
    others = r["others_cores"]
    done = r["reached_s"] is not None
    return {
        "who": r["who"],
        "seed": r["seed"],
        "minutes until 18": f"{r['reached_s'] / 60:.2f}" if done else f"not in {r['ended_s'] / 60:.1f}",
        "best mean of 100": "fewer than 100 games" if r["best"] is None else f"{r['best']:.1f}",
        "mean at the end": None if r["last"] is None else f"{r['last']:.1f}",
        "games": r["games"],
        "M frames": r["frames"] / 1e6,
        "frames/s": r["frames"] / r["ended_s"],
        "CPU, cores": r["own_cores"],
        "peak PSS MB": r["pss_mb"],
        "processes": r["processes"],
        "others' cores": f"{others:.2f}{' BUSY' if others > QUIET else ''}",
        "commit": f"`{r['commit'][:7]}`" if r.get("commit") else None,
        "note": r.get("failed"),
    }


def picture(rows: list[Row], out: Path) -> None:
    """Mean return against time and against frames: ours in thick lines, a color per racer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(r["who"] for r in rows))
    for r in rows:
        index = names.index(r["who"])
        style: Any = {"color": COLORS[index % len(COLORS)], "linestyle": ("-", "--", ":")[index // len(COLORS) % 3]}
        style |= {"linewidth": 2.2 if r["who"] in OURS else 1.2}
        again = any(q is not r and q["who"] == r["who"] for q in rows[: rows.index(r)])
        mean = [p["mean"] for p in r["curve"]]
        for axes, what, unit in zip(panels, ("seconds", "frames"), (60.0, 1e6), strict=True):
            axes.plot([p[what] / unit for p in r["curve"]], mean, label=None if again else r["who"], **style)
    for axes, label in zip(panels, ("minutes since the start of the process", "million frames"), strict=True):
        axes.axhline(18.0, color=INK, linestyle="--", linewidth=0.8, zorder=0)
        axes.set_xlabel(label, color=INK)
        axes.set_xlim(left=0.0)
        axes.grid(color=FAINT, linewidth=0.8)
        axes.tick_params(colors=INK, length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("mean return of the last 100 full games", color=INK)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, labelcolor=INK)
    figure.savefig(out)


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
    print(f"  {who.name:<26} seed {seed}  {outcome(row)}", flush=True)
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
            publish(out, kept, page(kept))
            picture(kept["rows"], out.with_suffix(".png"))


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
        publish(asked.out, kept, page(kept))
        picture(kept["rows"], asked.out.with_suffix(".png"))
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
