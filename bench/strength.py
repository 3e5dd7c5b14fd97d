"""Strength of a player of a board game; nothing is written into the run.

    python bench/strength.py runs/connect_four --out bench/results/connect_four
    python bench/strength.py runs/othello6 --every 6 --out bench/results/othello6
    python bench/strength.py runs/go9 --out bench/results/go9_versus

A network alone, and in a search of 100 and 800 simulations: how often does its move keep the value of the decisive
positions (positions.py), where the game has some? With 400 simulations: 100 games against tree search by 1,000 random
roll-outs, from 50 openings of 2 random plies, each with both colours. --perfect: in connect four so many games against
perfect play too, from positions after 8 random plies that perfect play does not lose. A game is held if the run gets
what its first position is worth.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import Row, about, command_line, lines_about, publish, table
from positions import decisive_positions, file_of, moves_kept

from polyplay.acting.play import MatchStarts, load_player, match
from polyplay.cli.evaluate import score_line
from polyplay.core import checkpoint
from polyplay.evaluation.evaluate import EvaluateOptions, play_and_score
from polyplay.evaluation.matches import BoardPlayer, PlayerOptions, openings, player_of
from polyplay.games.board_pool import board_of
from polyplay.games.boards import Game
from polyplay.games.mcts import Opponent, opponent, solver
from polyplay.runs.load import crew_of, load_run

VERSUS = EvaluateOptions(protocol="versus", against="mcts:1000", simulations=400, device="cpu")
PLIES = 8  # before a game against perfect play


def player(run: Path, path: Path, simulations: int) -> BoardPlayer:
    """The policy of a checkpoint in a search of so many simulations."""
    page, settings, run_options, _ = load_run(run)
    wired = page.build(settings, crew_of(replace(run_options, device="cpu")))
    return player_of(wired, load_player(wired, path, "cpu", simulations), {}, PlayerOptions(simulations))


def values_kept(run: Path, path: Path, simulations: int, positions: int = 1000) -> list[float]:
    """1 for each decisive position whose value its move keeps, otherwise 0."""
    one = player(run, path, simulations)
    found = moves_kept(one.moves, decisive_positions(one.board).first(positions))
    print(f"{path.name}, {simulations} simulations: {100 * np.mean(found):.1f} % of moves keep the value", flush=True)
    return found


def measured(run: Path, path: Path, options: EvaluateOptions) -> Row:
    """A match, its first line printed."""
    page, settings, run_options, _ = load_run(run)
    wired = page.build(settings, crew_of(replace(run_options, device="cpu")))
    found = play_and_score(wired, wired.envs, path, options)
    shown = f"{options.protocol}, {options.simulations} simulations"
    print(path.name, score_line({**found, "label": shown}), flush=True)
    return found


class Judge:
    """A player of connect four whose moves are judged: of those in positions that are not lost, how many keep the
    value.
    """

    def __init__(self, player: Opponent):
        self.player, self.moves, self.kept = player, 0, 0

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        chosen = self.player(records, random, at)
        for lane, move in zip(at.tolist(), chosen.tolist(), strict=True):
            scores = solver().scores(records[lane])
            best = np.sign(max(scores.values()))
            self.moves += int(best >= 0)
            self.kept += int(best >= 0 and np.sign(scores[move]) == best)
        return chosen


def unlost(board: Game, games: int, plies: int, seed: int) -> tuple[MatchStarts, np.ndarray]:
    """Positions that perfect play does not lose for the player, drawn ones with both colours; their values int8 [n]."""
    found = list[tuple[np.ndarray, bool, int]]()
    for record in openings(board, plies, seed):
        value = int(np.sign(max(solver().scores(record).values())))
        found += [(record, begins, worth) for begins, worth in ((True, value), (False, -value)) if worth >= 0]
        if len(found) >= games:
            break
    records, begins, values = zip(*found[:games], strict=True)
    return MatchStarts(np.stack(records), np.array(begins)), np.array(values, np.int8)


def against_perfect(one: BoardPlayer, games: int, seed: int = 0) -> Row:
    """Moves that keep the value, and games held."""
    judge, (starts, values) = Judge(one.moves), unlost(one.board, games, PLIES, seed)
    points = match(one.board, judge, opponent("perfect", one.board), starts, seed)
    held = int((points >= (1 + values) / 2).sum())
    kept = {"moves that keep the value against perfect": f"{judge.kept} of {judge.moves}"}
    return {**kept, "games held": f"{held} of {games}"}


def row_of(run: Path, path: Path, last: bool, perfect: int) -> Row:
    """A checkpoint's strength; the last one is measured with more simulations, and in matches."""
    counters, begun = checkpoint.manifest(path)["counters"], time.perf_counter()
    row: Row = {"moves played": int(counters["steps"]), "games": int(counters["episodes"])}
    row["minutes"] = round(counters["wall_seconds"] / 60, 1)
    for simulations in () if file_of(load_board(run)) is None else (0, 100, 800) if last else (0, 100):
        row[f"{simulations} simulations"] = f"{100 * np.mean(values_kept(run, path, simulations)):.1f} %"
    if last:
        found = measured(run, path, VERSUS)
        row["against mcts:1000"] = f"{found['points']:g} of {found['episodes']}"
    if last and perfect:
        row |= against_perfect(player(run, path, 400), perfect)
    return {**row, "seconds": round(time.perf_counter() - begun)}


def load_board(run: Path) -> Game:
    page, settings, run_options, _ = load_run(run)
    return board_of(page.build(settings, crew_of(replace(run_options, device="cpu"))).envs)


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
    if file_of(board) is not None:
        kept = decisive_positions(board).at_random
        text += [f"A random legal move keeps the value of {100 * kept:.1f} %.", ""]
    text += table(shown)
    publish(asked.out, {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
