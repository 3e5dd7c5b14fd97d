"""Strength of a connect four player: decisive positions that the solver knows, and a match against tree search.

    python bench/strength.py RUN --out bench/results/connect_four

A network alone, and in a search of 100 and 800 simulations: how often does its move keep the value of the decisive
positions of envs/boards/positions? With 400 simulations: 100 games against tree search by 1,000 random roll-outs, from
50 openings of 2 random plies, each with both colours.
"""

from __future__ import annotations

import time
from pathlib import Path

from common import about, command_line, lines_about, publish, table

from polyplay.acting import play
from polyplay.common import checkpoint
from polyplay.envs.boards.game import GAMES
from polyplay.envs.boards.opponents import opponent
from polyplay.envs.boards.positions import decisive_positions
from polyplay.evaluation.strength import match, share_kept
from polyplay.runs.directory import read_config
from polyplay.systems import load
from polyplay.workers.crew import Crew

BOARD = GAMES["connect_four"]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", type=int, default=0, help="checkpoints of a curve; 0: the last one alone")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    page, config = load("alphago_zero"), read_config(asked.run)["config"]
    there = checkpoint.everything(asked.run)
    chosen = there[:: max(1, len(there) // asked.every)] if asked.every else []
    rows = []
    for path in dict.fromkeys([*chosen, there[-1]]):
        last = path == there[-1]
        counters, begun = checkpoint.manifest(path)["counters"], time.perf_counter()
        row = {"moves played": int(counters["steps"]), "minutes": round(counters["wall_seconds"] / 60, 1)}
        for simulations in (0, 100, 800) if last else (0, 100):
            player = play.load_player(
                page.build(page.Config(**config | {"simulations": max(simulations, 1)}), Crew(0)), path
            )
            player.simulate(simulations)
            kept = share_kept(lambda records, player=player: player.choose(records)[0], decisive_positions())
            row[f"{simulations} simulations"] = f"{100 * kept:.1f} %"
        if last:
            player.simulate(400)
            other = opponent("mcts:1000", BOARD)
            found = match(BOARD, lambda records, player=player: player.choose(records)[0], other, pairs=50)
            row["against mcts:1000"] = f"{found['points']:g} of {found['games']}"
        row["seconds"] = round(time.perf_counter() - begun)
        rows.append(row)
        print(row, flush=True)
    what = about()
    heads = dict.fromkeys(key for row in rows for key in row)
    shown = [{key: row.get(key, "") for key in heads} for row in rows]
    settings = ", ".join(f"{k} {config[k]}" for k in ("blocks", "filters", "simulations", "ratio", "learning_rate"))
    random = f"A random legal move keeps the value of {100 * decisive_positions().at_random:.1f} %."
    text = [
        "# Connect four: strength of a run",
        "",
        *lines_about(what),
        f"- run: {settings}",
        "",
        random,
        "",
        *table(shown),
    ]
    publish(asked.out, {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
