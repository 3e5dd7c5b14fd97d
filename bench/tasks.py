"""Several games in one run: how fast they are beside each by itself, and what one network learns of them.

    python bench/tasks.py speed                       # 57 games with 57 lanes, ten minutes; each game alone, in turn
    python bench/tasks.py speed --games 6 --minutes 2
    python bench/tasks.py learn --frames 4m           # six games: one network, and one for each

speed: agent steps per second of `impala --preset multitask`, between two reports, beside the harmonic mean of runs that
have the same lanes of one game. A run of a game is as long as --seconds says. Memory is the peak of all processes.

learn: `impala --preset six`, with PopArt and with clipped rewards, and the same settings on each game by itself, all 18
actions, with as many frames of each game. Runs are kept in --place, so that a later call goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

from common import RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, table, verdict

from polyplay import systems
from polyplay.core.files import read_lines
from polyplay.envs.atari import atari57, baseline_scores, normalise, rom
from polyplay.envs.pool import task_words

SIX = task_words(systems.load("impala").presets["six"]().env)
LEAST, SHARE = 0.9, 0.8  # of the games' own speed, and of the six networks' score
WARM = 10.0  # seconds of a run that don't count


def train(*words: str) -> None:
    """A run in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, "-m", "polyplay", "train", "impala", *words, "--no-tensorboard", "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def rate(run: Path) -> Row:
    """Agent steps per second after WARM, of each task too, and the peak of memory."""
    rows = [row for row in read_lines(run / "metrics.jsonl") if row["wall_seconds"] >= WARM]
    first, last = rows[0], rows[-1]
    seconds = last["wall_seconds"] - first["wall_seconds"]
    found: Row = {"steps/s": (last["steps"] - first["steps"]) / seconds, "MB": max(row["memory_mb"] for row in rows)}
    return found | {"task_steps": last.get("task_steps"), "episodes": last["episodes"], "seconds": seconds}


def speed() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--games", type=int, default=57)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each game by itself")
    parser.add_argument("--network", default="impala")
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks_speed")
    asked = parser.parse_args()
    games, what, rows = atari57()[: asked.games], about(), list[Row]()
    lanes = ["--lanes", str(len(games)), "--batch", str(len(games)), "--network", asked.network, "--report-every", "5"]
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "joined"
        train("--env", ",".join(games), *lanes, "--minutes", str(asked.minutes), "--run", str(run))
        joined = rate(run)
        for game in games:
            run = Path(place) / game.removeprefix("ALE/")
            full = ["--env-kwargs", "full_actions=true", "--minutes", str(asked.seconds / 60)]
            train("--env", game, *lanes, *full, "--run", str(run))
            rows.append({"game": game, **rate(run)})
            publish(asked.out, {**what, "joined": joined, "rows": rows}, speed_page(what, joined, rows))


def speed_page(what: Row, joined: Row, rows: list[Row]) -> list[str]:
    alone = harmonic_mean([row["steps/s"] for row in rows])
    steps = joined["task_steps"]
    low, high = min(steps.values()), max(steps.values())
    return [
        f"# {len(steps)} games in one run",
        "",
        *lines_about(what),
        "",
        verdict(
            f"steps/s, {len(steps)} games joined / harmonic mean of {len(rows)} alone", joined["steps/s"] / alone, LEAST
        ),
        f"- joined {joined['steps/s']:,.0f} agent steps/s for {joined['seconds']:.0f} s, alone {alone:,.0f}; float32",
        f"- memory {joined['MB']:,.0f} MB (peak PSS of all processes), alone {max(row['MB'] for row in rows):,.0f} MB",
        f"- agent steps of a game: from {low:,} to {high:,}; each lane made as many turns, and first rows are no steps",
        f"- games that ended: {joined['episodes']:,}",
        "",
        *table([{"game": row["game"], "steps/s": round(row["steps/s"]), "MB": round(row["MB"])} for row in rows]),
    ]


def learn() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--frames", default="4m", help="of each game")
    parser.add_argument("--place", type=Path, default=ROOT / "build" / "six")
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks_six")
    asked = parser.parse_args()
    each, what, rows = int(float(asked.frames.removesuffix("m")) * 1e6), about(), list[Row]()
    games = [name for name, _ in SIX]
    alone = ["--lanes", "12", "--value", "plain", "--reward", "clip", "--env-kwargs", "full_actions=true"]
    arms: dict[str, list[str]] = {
        "one network, PopArt, unclipped": ["--frames", str(6 * each), "--value", "popart", "--reward", "none"],
        "one network, clipped": ["--frames", str(6 * each), "--value", "plain", "--reward", "clip"],
    }
    arms |= {game: ["--env", game, *alone, "--frames", str(each)] for game in games}
    for name, words in arms.items():
        run = run_of(asked.place, name)
        if not (run / "summary.json").exists():
            train("--preset", "six", *words, "--run", str(run))
        done = subprocess.run(
            [sys.executable, "-m", "polyplay", "evaluate", str(run), "--episodes", "20"], cwd=ROOT, capture_output=True
        )
        if done.returncode:
            raise SystemExit(done.stderr.decode())
        rows.append({"who": name, "scores": scores_of(run)})
        publish(asked.out, {**what, "frames": each, "rows": rows}, learn_page(what, rows, each))
    draw = [str(run_of(asked.place, name)) for name in arms]
    subprocess.run([sys.executable, "-m", "polyplay", "plot", *draw, "--out", f"{asked.out}.png"], cwd=ROOT, check=True)


def run_of(place: Path, name: str) -> Path:
    return place / name.replace(" ", "-").replace(",", "").replace("ALE/", "")


def scores_of(run: Path) -> dict[str, Any]:
    """{game: (mean, low, high)} of its evaluations."""
    found = [json.loads(file.read_text()) for file in sorted(run.glob("evaluation-*.json"))]
    return {row.get("task") or row["env"]: (row["episodic_return_mean"], *row["interval"]) for row in found}


def learn_page(what: Row, rows: list[Row], frames: int) -> list[str]:
    own = {game: score for row in rows for game, score in row["scores"].items() if row["who"] == game}
    joint = {row["who"]: row["scores"] for row in rows if row["who"] not in row["scores"]}
    ends, shown = baseline_scores("noop57"), []
    normal = {
        who: normalise({rom(game): score[0] for game, score in found.items()}, ends)
        for who, found in {**joint, "own": own}.items()
    }
    for game, _ in SIX:
        low, high = ends[rom(game)]
        cells = {who: _cell(found.get(game)) for who, found in {**joint, "a network of its own": own}.items()}
        shown.append({"game": game.removeprefix("ALE/"), "random": low, "human": high, **cells})
    text = [f"# Six games, {frames:,} frames of each", "", *lines_about(what), ""]
    if len(own) == len(SIX):
        middle = {who: sorted(found.values()) for who, found in normal.items()}
        median = {who: (x[2] + x[3]) / 2 for who, x in middle.items()}
        text += [f"- median human-normalized: {', '.join(f'{who} {x:.1f} %' for who, x in median.items())}"]
        text += [verdict(f"{who}, median / of the six networks", median[who] / median["own"], SHARE) for who in joint]
    return [*text, "", "![Curves](tasks_six.png)", "", *table(shown)]


def _cell(score: Any) -> str:
    return "–" if score is None else f"{score[0]:,.1f} ({score[1]:,.1f} … {score[2]:,.1f})"


if __name__ == "__main__":
    sys.exit(commands({"speed": speed, "learn": learn}))
