"""Strength of a player of a board game, by the protocols `solver` and `versus` of `polyplay evaluate`; nothing is
written into the run.

    python bench/strength.py runs/connect_four --out bench/results/connect_four
    python bench/strength.py runs/othello6 --every 6 --out bench/results/othello6
    python bench/strength.py runs/go9 --out bench/results/go9_versus

A network alone, and in a search of 100 and 800 simulations: how often does its move keep the value of the decisive
positions of envs/boards/positions, where the game has some? With 400 simulations: 100 games against tree search by
1,000 random roll-outs, from 50 openings of 2 random plies, each with both colours. --perfect: so many games against
perfect play too.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from common import Row, about, command_line, lines_about, publish, table

from polyplay.cli.evaluate import score_line
from polyplay.common import checkpoint
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.pool import board_of
from polyplay.envs.boards.positions import decisive_positions, measure_of
from polyplay.evaluation.evaluate import EvaluateOptions, play_and_score
from polyplay.runs.load import crew_of, load_run

SOLVER = EvaluateOptions(protocol="solver", device="cpu")
VERSUS = EvaluateOptions(protocol="versus", against="mcts:1000", simulations=400, device="cpu")


def load_board(run: Path) -> Game:
    page, settings, run_options, _ = load_run(run)
    return board_of(page.build(settings, crew_of(replace(run_options, device="cpu"))).envs)


def measured(run: Path, path: Path, options: EvaluateOptions) -> Row:
    """An evaluation, its first line printed."""
    page, settings, run_options, _ = load_run(run)
    wired = page.build(settings, crew_of(replace(run_options, device="cpu")))
    found = play_and_score(wired, wired.envs, path, options)
    shown = f"{options.protocol}, {options.simulations} simulations"
    print(path.name, score_line({**found, "label": shown}), flush=True)
    return found


def row_of(run: Path, path: Path, last: bool, perfect: int) -> Row:
    """A checkpoint's strength; the last one is measured with more simulations, and in matches."""
    counters, begun = checkpoint.manifest(path)["counters"], time.perf_counter()
    row: Row = {"moves played": int(counters["steps"]), "games": int(counters["episodes"])}
    row["minutes"] = round(counters["wall_seconds"] / 60, 1)
    board = load_board(run)
    for simulations in () if measure_of(board) is None else (0, 100, 800) if last else (0, 100):
        kept = measured(run, path, replace(SOLVER, simulations=simulations))["episodic_return_mean"]
        row[f"{simulations} simulations"] = f"{100 * kept:.1f} %"
    if last:
        found = measured(run, path, VERSUS)
        row["against mcts:1000"] = f"{found['points']:g} of {found['episodes']}"
    if last and perfect:
        found = measured(run, path, replace(VERSUS, against="perfect", episodes=perfect))
        row["moves that keep the value against perfect"] = f"{found['moves_kept']} of {found['moves']}"
        row["games held"] = f"{found['games_held']} of {found['episodes']}"
    return {**row, "seconds": round(time.perf_counter() - begun)}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", type=int, default=0, help="checkpoints of a curve; 0: the last one alone")
    parser.add_argument("--perfect", type=int, default=0, help="games against perfect play, an even number")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    config, there = load_run(asked.run)[3]["config"], checkpoint.everything(asked.run)
    chosen = there[:: max(1, len(there) // asked.every)] if asked.every else []
    last = there[-1]
    rows = [row_of(asked.run, path, path == last, asked.perfect) for path in dict.fromkeys([*chosen, last])]
    what = about()
    heads = dict.fromkeys(key for row in rows for key in row)
    shown = [{key: row.get(key, "") for key in heads} for row in rows]
    settings = ", ".join(f"{k} {config[k]}" for k in ("blocks", "filters", "simulations", "ratio", "learning_rate"))
    board, lines = load_board(asked.run), [*lines_about(what), f"- run: {settings}"]
    text = [f"# {board.title}: strength of a run", "", *lines, ""]
    if measure_of(board) is not None:
        kept = decisive_positions(board).at_random
        text += [f"A random legal move keeps the value of {100 * kept:.1f} %.", ""]
    text += table(shown)
    publish(asked.out, {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
