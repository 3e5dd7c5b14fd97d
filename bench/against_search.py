"""PPO learns connect four against tree search by random roll-outs, which is part of its environment.

    python bench/against_search.py RUN

Trains into RUN if it is not there, by the command that the page prints. The curve: the mean return of all games that
ended in each twentieth of the run (1 for a win, -1 for a loss, 0 is even). Then 1,000 games as in training, and 400
from 200 openings of 2 random plies, each with both colours, which training did not have.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from common import RESULTS, about, command_line, lines_about, publish, table

import polyplay
from polyplay.core.files import read_lines

OPPONENT, PARTS = "mcts:50", 20
TRAIN = "--env game:connect_four --lanes 64 --minibatches 4 --epochs 4 --gamma 0.997 --lam 0.95 --entropy-cost 0.01"
TRAIN += f" --env-kwargs opponent={OPPONENT} --steps 3000000 --no-tensorboard"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    asked = parser.parse_args()
    if not asked.run.exists():
        command = [sys.executable, "-m", "polyplay", "train", "ppo", *TRAIN.split(), "--run", str(asked.run)]
        subprocess.run(command, check=True)
    games = list(read_lines(asked.run / "episodes.jsonl", "steps", "episodic_return"))
    steps, returns = (np.array([game[key] for game in games]) for key in ("steps", "episodic_return"))
    part = np.minimum((steps * PARTS / steps.max()).astype(int), PARTS - 1)
    rows = [
        {
            "agent steps": int(steps[part == i].max()),
            "minutes": round(max(g["wall_seconds"] for g, p in zip(games, part, strict=True) if p == i) / 60, 1),
            "games": int((part == i).sum()),
            "mean return": round(float(returns[part == i].mean()), 3),
        }
        for i in range(PARTS)
    ]
    usual = polyplay.evaluate(asked.run, episodes=1_000, trust=True)
    other = polyplay.evaluate(asked.run, protocol="versus", against=OPPONENT, episodes=400, trust=True)
    after = {"as in training": usual["episodic_return_mean"], "from openings": 2 * other["episodic_return_mean"] - 1}
    what = about()
    text = [f"# PPO against tree search by 50 random roll-outs (`{OPPONENT}`)", "", *lines_about(what), ""]
    text += [f"Trained by `polyplay train ppo {TRAIN}`.", "", *table(rows), ""]
    text += ["After training:", "", *table([{k: round(v, 3) for k, v in after.items()}])]
    publish(RESULTS / "against_search", {**what, "rows": rows, "after": after}, text)


if __name__ == "__main__":
    main()
