"""Population based training against random search: a2c `quick` on Breakout, 8 members, the same first draws.

    python bench/population.py --seeds 0 1 --runs runs/population

Trains what is not there yet by the commands that the page prints, one after the other, 40 minutes each on 2 cores;
a run that was stopped goes on. A member's score: the mean return of its last 100 games of training, of rewards that
are neither clipped nor scaled. --arms: which; --collect: train nothing, say what is there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, about, command_line, lines_about, publish, table

from polyplay.core.files import read_lines, read_object
from polyplay.population.store import ancestry, read_lineage

TRAIN = "--over a2c --env ALE/Breakout-v5 --preset quick --population 8 --every 100k --steps 800k"
TRAIN += " --vary learning_rate=log:1e-5:1e-2 entropy_cost=log:1e-4:1e-1 --explore both"
ARMS = {"random search": "none", "PBT": "truncation"}
POINTS, GAMES = 8, 100  # of a curve; of a score


def command_of(seed: int, exploit: str, directory: Path) -> list[str]:
    """What trains an arm."""
    words = [*TRAIN.split(), "--exploit", exploit, "--seed", str(seed)]
    return ["polyplay", "train", "pbt", *words, "--resume", "auto", "--run", str(directory)]


def scores(directory: Path, steps: int) -> list[float]:
    """Of all members that had come so far, after so many agent steps of each."""
    found = []
    for member in sorted((directory / "members").glob("[0-9]*")):
        games = [g for g in read_lines(member / "episodes.jsonl", "steps", "episodic_return") if g["steps"] <= steps]
        reached = max((row["steps"] for row in read_lines(member / "metrics.jsonl", "steps")), default=0)
        if games and reached > 0.97 * steps:
            found.append(statistics.fmean(g["episodic_return"] for g in games[-GAMES:]))
    return found


def minutes(directory: Path, steps: int) -> float | None:
    """Of the population's time, until all members had come so far."""
    rows = [r for r in read_lineage(directory) if r["steps"] >= steps]
    first = {r["member"]: r["wall_seconds"] for r in reversed(rows)}
    population = read_object(directory / "population.json")
    if len(first) == len(population["members"]):
        return round(max(first.values()) / 60, 1)
    ended = all(m["state"] in ("done", "failed") for m in population["members"])
    return round(population["wall_seconds"] / 60, 1) if ended else None


def curve(arm: str, seed: int, directory: Path) -> list[dict[str, Any]]:
    """A row for every eighth of an arm."""
    total, rows = read_object(directory / "population.json")["total"], []
    for k in range(1, POINTS + 1):
        steps = total * k // POINTS
        if found := scores(directory, steps):
            rows.append(
                {
                    "seed": seed,
                    "arm": arm,
                    "agent steps of each": steps,
                    "members": len(found),
                    "best": round(max(found), 2),
                    "median": round(statistics.median(found), 2),
                    "worst": round(min(found), 2),
                    "minutes": minutes(directory, steps),
                }
            )
    return rows


def winner(arm: str, seed: int, directory: Path) -> dict[str, Any]:
    """Its best member: what it was trained with at the beginning and at the end."""
    lines = read_lineage(directory)
    members = {r["member"] for r in lines}
    total = read_object(directory / "population.json")["total"]
    best = max(members, key=lambda i: _last(directory, i, total))
    line = ancestry(lines, best)
    values = {
        f"{name}, {when}": f"{line[at].values[name]:.2g}"
        for at, when in ((0, "first"), (-1, "last"))
        for name in line[0].values
    }
    copies = sum(r["donor"] is not None for r in lines)
    return {"seed": seed, "arm": arm, "winner": best, "its founder": line[0].member, "copies in all": copies, **values}


def _last(directory: Path, member: int, steps: int) -> float:
    games = list(read_lines(directory / f"members/{member:02d}" / "episodes.jsonl", "steps", "episodic_return"))
    return float(np.mean([g["episodic_return"] for g in games[-GAMES:]])) if games else -np.inf


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/population"), help="where arms are trained")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--remark", default="", help="a sentence for the page")
    asked = parser.parse_args()
    before = read_object(RESULTS / "population.json")
    rows: list[dict[str, Any]] = []
    winners: list[dict[str, Any]] = []
    for seed in asked.seeds:
        for arm in asked.arms:
            directory = asked.runs / f"{ARMS[arm]}-{seed}"
            if not asked.collect:
                words = command_of(seed, ARMS[arm], directory)
                subprocess.run([sys.executable, "-m", *words], check=True)
            if (directory / "population.json").exists():
                rows += curve(arm, seed, directory)
                winners.append(winner(arm, seed, directory))
            else:  # trained on another machine: what was published of it
                rows += [row for row in before["rows"] if (row["seed"], row["arm"]) == (seed, arm)]
                winners += [row for row in before["winners"] if (row["seed"], row["arm"]) == (seed, arm)]
    what = about()
    shown = " ".join(command_of(0, "RULE", Path("RUN"))).replace("--seed 0", "--seed SEED")
    text = ["# Population based training against random search on Breakout", "", *lines_about(what), ""]
    text += [f"Trained by `{shown}`, RULE `none` or `truncation`.", ""]
    text += [f"A score is the mean return of a member's last {GAMES} games of training. {asked.remark}".rstrip(), ""]
    text += [*table(rows), ""]
    text += ["The best members:", "", *table(winners)]
    publish(RESULTS / "population", {**what, "rows": rows, "winners": winners}, text)


if __name__ == "__main__":
    main()
