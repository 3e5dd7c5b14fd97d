"""What FTW's parts are worth: runs without one of them, at the same agent steps, on held-out maps.

    python bench/ftw_ablations.py runs/ftw runs/no_slow runs/no_auxiliary --steps 6.7e6 --matches 200

Of each run the newest checkpoint with at most so many agent steps, all agents together, as if they were one, against
random play and the bots. These meet each other and the first run's best agent: all are on one Elo scale, where random
play has 0.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table
from ftw import OPPONENTS, against, elo_of, joined, meet

from polyplay.core import checkpoint
from polyplay.evaluation.agent import find_agents
from polyplay.evaluation.tournament import TournamentOptions, play_tournament


def newest(run: Path, steps: float) -> Path:
    """Its newest checkpoint with at most so many agent steps."""
    return [path for path in checkpoint.everything(run) if checkpoint.manifest(path)["counters"]["steps"] <= steps][-1]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--steps", type=float, default=6.7e6, help="at most so many agent steps")
    parser.add_argument("--matches", type=int, default=200, help="of a run against each opponent, about")
    asked = parser.parse_args()
    what, rows, points = about(), list[Row](), list[list[float]]()
    title = f"{find_agents(str(asked.runs[0]))[0].wired.envs.title}+maps=held_out"
    found: dict[str, Any] = play_tournament(
        [f"{asked.runs[0]}:best", *OPPONENTS], TournamentOptions(matches=asked.matches, anchor="random", env=title)
    )
    for run in asked.runs:
        path = newest(run, asked.steps)
        agents = find_agents(str(path))
        envs, share = replace(agents[0].wired.envs, name=title, options={}), asked.matches // len(agents)
        met = {other: joined([meet(envs, agent, other, share) for agent in agents]) for other in OPPONENTS}
        points.append([float(played.points.mean()) for played in met.values()])
        counters = checkpoint.manifest(path)["counters"]
        row: Row = {"run": run.name, "agent steps": f"{counters['steps']:,}", "Elo": ""}
        row |= {other: f"{played.points.mean():.1%}" for other, played in met.items()}
        rows.append(row | {k: v for k, v in against("random", met["random"]).items() if k not in ("against", "points")})
    rated = elo_of(found, np.array(points), asked.matches)
    for row, elo in zip(rows, rated, strict=True):
        row["Elo"] = f"{elo['elo']:.0f} [{elo['low']:.0f}, {elo['high']:.0f}]"
    text = [
        "# What FTW's parts are worth",
        "",
        *lines_about(what),
        "",
        f"On `{title}`. Opponents, and the first run at its end:",
        "",
    ]
    text += [*table([{k: p[k] for k in ("name", "elo", "low", "high")} for p in found["players"]]), ""]
    text += ["Runs; points in matches with each opponent; what happened is of matches with random play:", ""]
    publish(RESULTS / "ftw_ablations", {**what, "rows": rows, "opponents": found}, [*text, *table(rows), ""])


if __name__ == "__main__":
    main()
