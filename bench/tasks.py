"""Several games in one run: how fast they are beside each by itself, and what one network learns of them.

    python bench/tasks.py speed                       # 57 games with 57 lanes, ten minutes; each game alone, in turn
    python bench/tasks.py speed --games 6 --minutes 2
    python bench/tasks.py learn --frames 4m           # six games: one network, and one for each

speed: agent steps per second of impala with the small network beside the harmonic mean of runs with the same lanes of
one game: eight games by themselves and all of them take turns. At the end a longer run of `--preset multitask`, for its
steps and its memory.

learn: `impala --preset six`, with PopArt and with clipped rewards, and the same settings on each game by itself, all 18
actions, with as many frames of each game. A later call goes on: runs are kept in --place, and a row of the results that
has as many frames is not repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

from common import RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, table, verdict

from polyplay import systems
from polyplay.core.files import read_lines
from polyplay.envs.atari import atari57, baseline_scores, normalize, rom
from polyplay.envs.pool import task_words

SIX = task_words(systems.load("impala").presets["six"]().env)
LEAST, SHARE = 0.9, 0.8  # of the games' own speed, and of the six networks' score
WARM = 3.0  # seconds after the first steps that don't count
BLOCK = 8  # games by themselves, after which all are run again


def train(*words: str) -> None:
    """A run in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, "-m", "polyplay", "train", "impala", *words, "--no-tensorboard", "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def rate(run: Path) -> Row:
    """Agent steps per second from WARM after the first steps to the last report but one, and the peak of memory."""
    every = list(read_lines(run / "metrics.jsonl"))
    begin = next(row["wall_seconds"] for row in every if row["steps"])
    rows = [row for row in every[:-1] if row["wall_seconds"] >= begin + WARM]
    seconds = rows[-1]["wall_seconds"] - rows[0]["wall_seconds"]
    found: Row = {"steps/s": (rows[-1]["steps"] - rows[0]["steps"]) / seconds, "seconds": seconds}
    found["MB"] = max(row["memory_mb"] for row in every)
    return found | {"task_steps": every[-1].get("task_steps"), "episodes": every[-1]["episodes"]}


def speed() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--games", type=int, default=57)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=18.0, help="of each run in turn")
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks_speed")
    asked = parser.parse_args()
    games, what, rows = atari57()[: asked.games], about(), list[Row]()
    lanes = ["--lanes", str(len(games)), "--batch", str(len(games)), "--report-every", "1"]
    turn, minutes = ["--network", "nature", "--compile", "off"], asked.seconds / 60
    with tempfile.TemporaryDirectory() as place:

        def run(words: list[str], minutes: float) -> Row:
            at = Path(place) / str(len(list(Path(place).iterdir())))
            train(*words, *lanes, "--minutes", str(minutes), "--run", str(at))
            return rate(at)

        # 57 games open for 5 s more than one
        joined, blocks = ["--env", ",".join(games)], list[Row]()
        for i in range(0, len(games), BLOCK):
            for game in games[i : i + BLOCK]:
                alone = ["--env", game, "--env-kwargs", "full_actions=true"]
                rows.append({"game": game, **run([*alone, *turn], minutes)})
            own = harmonic_mean([row["steps/s"] for row in rows[i:]])
            blocks.append({"alone": own, "joined": run([*joined, *turn], 1.5 * minutes)["steps/s"]})
            print(blocks[-1], flush=True)
        found = {"joined": run(joined, asked.minutes), "blocks": blocks, "rows": rows}
    publish(asked.out, {**what, **found}, speed_page(what, **found))


def speed_page(what: Row, joined: Row, blocks: list[Row], rows: list[Row]) -> list[str]:
    steps, shares = joined["task_steps"], [block["joined"] / block["alone"] for block in blocks]
    low, high = min(steps.values()), max(steps.values())
    both = harmonic_mean([block["joined"] for block in blocks]), harmonic_mean([row["steps/s"] for row in rows])
    said = f"{len(rows)} games alone, in turn with {len(blocks)} runs of {len(steps)} games joined"
    return [
        f"# {len(steps)} games in one run",
        "",
        *lines_about(what),
        "",
        verdict(
            f"steps/s, joined / harmonic mean of the games alone, median over {len(blocks)}", median(shares), LEAST
        ),
        f"- {said}: {both[1]:,.0f} and {both[0]:,.0f} agent steps/s; shares {min(shares):.2f} to"
        f" {max(shares):.2f}; float32, `--network nature --compile off`",
        f"- a longer run by `--preset multitask`: {joined['steps/s']:,.0f} agent steps/s for {joined['seconds']:.0f} s",
        f"- its memory {joined['MB']:,.0f} MB (peak PSS of all processes); a game alone, with the small network,"
        f" {max(row['MB'] for row in rows):,.0f} MB",
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
    each, what = int(float(asked.frames.removesuffix("m")) * 1e6), about()
    file = asked.out.with_suffix(".json")
    earlier = json.loads(file.read_text()) if file.exists() else {}
    rows: list[Row] = earlier.get("rows", []) if earlier.get("frames") == each else []
    games = [name for name, _ in SIX]
    alone = ["--lanes", "12", "--value", "plain", "--reward", "clip", "--env-kwargs", "full_actions=true"]
    arms: dict[str, list[str]] = {
        "one network, PopArt, unclipped": ["--frames", str(6 * each), "--value", "popart", "--reward", "none"],
        **{game: ["--env", game, *alone, "--frames", str(each)] for game in games},
        "one network, clipped": ["--frames", str(6 * each), "--value", "plain", "--reward", "clip"],
    }
    finished = [row["who"] for row in rows]
    for name, words in arms.items():
        if name in finished:
            continue
        run = run_of(asked.place, name)
        train("--preset", "six", *words, "--run", str(run), "--resume", "auto")
        done = subprocess.run(
            [sys.executable, "-m", "polyplay", "evaluate", str(run), "--episodes", "20"], cwd=ROOT, capture_output=True
        )
        if done.returncode:
            raise SystemExit(done.stderr.decode())
        rows.append({"who": name, "scores": scores_of(run)})
        publish(asked.out, {**what, "frames": each, "rows": rows}, learn_page(what, rows, each))
    draw = [str(run) for name in arms if (run := run_of(asked.place, name)).exists()]
    if draw:
        plot = [sys.executable, "-m", "polyplay", "plot", *draw, "--out", f"{asked.out}.png"]
        subprocess.run(plot, cwd=ROOT, check=True)


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
        who: normalize({rom(game): score[0] for game, score in found.items()}, ends)
        for who, found in {**joint, "own": own}.items()
    }
    for game, _ in SIX:
        low, high = ends[rom(game)]
        cells = {who: _cell(found.get(game)) for who, found in {**joint, "a network of its own": own}.items()}
        shown.append({"game": game.removeprefix("ALE/"), "random": low, "human": high, **cells})
    text = [f"# Six games, {frames:,} frames of each", "", *lines_about(what), ""]
    if len(own) == len(SIX):
        middle = {who: sorted(found.values()) for who, found in normal.items()}
        medians = {who: (x[2] + x[3]) / 2 for who, x in middle.items()}
        text += [f"- median human-normalized: {', '.join(f'{who} {x:.1f} %' for who, x in medians.items())}"]
        text += [verdict(f"{who}, median / of the six networks", medians[who] / medians["own"], SHARE) for who in joint]
    return [*text, "", "![Curves](tasks_six.png)", "", *table(shown)]


def _cell(score: Any) -> str:
    return "–" if score is None else f"{score[0]:,.1f} ({score[1]:,.1f} … {score[2]:,.1f})"


if __name__ == "__main__":
    sys.exit(commands({"speed": speed, "learn": learn}))
