"""The protocols of board games, `solver` and `versus`: how a run's player is measured, and what a record says of it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polyplay.acting.match import Watch, match
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.statistics import mean_interval
from polyplay.envs.atari import protocols
from polyplay.envs.boards.positions import MEASURES, decisive_positions, measure_of
from polyplay.envs.boards.solver import slow_before, solver_of, unsolved
from polyplay.evaluation.gtp_player import programs_running
from polyplay.evaluation.players import BoardPlayer, PlayerOptions, opponent_of, play_match, player_of
from polyplay.evaluation.progress import GamesWatch, on_screen
from polyplay.evaluation.strength import Judge, both_colors, moves_kept, unlost
from polyplay.systems import System

if TYPE_CHECKING:  # they import torch, or this file
    from polyplay.acting.play import Watch as GamesEnded
    from polyplay.evaluation.evaluate import EvaluateOptions
    from polyplay.nets import Policy

PLIES, SLOW = 2, 8  # random moves of an opening; before a match with perfect play, which takes long at first
OUTCOMES = {"wins": 1.0, "draws": 0.5, "losses": 0.0}


def play_board_protocol(
    wired: System, policy: Policy, found: Path, options: EvaluateOptions, device: str, watch: GamesWatch | None = None
) -> Row:
    """What a repetition has to know of it, as evaluate.play_and_score. Raises UserError: nothing was over."""
    how = PlayerOptions(
        options.simulations, options.seed, options.greedy, options.epsilon or 0.0, device, options.trust
    )
    player, mine = player_of(wired, policy, {}, how, found.parents[1].name), watch or GamesWatch()
    asked = options.episodes or protocols.protocol(options.protocol).episodes
    mine.max_steps, begun = options.max_steps, time.monotonic()
    what = "positions" if options.protocol == "solver" else "games"
    with on_screen(mine, asked, what=what) if watch else nullcontext(mine.step) as step:
        measured = _solver if options.protocol == "solver" else _versus
        returns, about = measured(player, asked, options, how, _watching(step))
    if not returns:
        raise UserError(f"{mine.ended}: no {what[:-1]} was over by then, so there is no score")
    return {
        **{"protocol": options.protocol, "seed": options.seed, "lanes": asked, "epsilon": how.epsilon},
        **{"actions": "greedy" if options.greedy else "sampled", **about},
        **{"episodes": len(returns), "episodic_return_mean": float(np.mean(returns))},
        **{"episodic_return_std": float(np.std(returns)), "seconds": round(time.monotonic() - begun, 3)},
        **{"returns": returns, "interval": mean_interval(returns)},
        **({"ended": mine.ended, "asked": asked} if len(returns) < asked else {}),
    }


def _watching(step: GamesEnded) -> Watch:
    from polyplay.acting.play import PlayedGame

    return lambda ended, moves: step([PlayedGame(ret, 0, number) for number, ret in ended.items()], moves)


def _solver(
    player: BoardPlayer, asked: int, options: EvaluateOptions, how: PlayerOptions, watch: Watch
) -> tuple[list[float], Row]:
    board = player.board
    if reason := unsolved(board):
        raise UserError(f"--protocol solver: game:{board.name} has no solver, {reason}; allowed here: run, versus")
    if measure_of(board) is None:
        games, use = " and ".join(f"game:{m.game.name}" for m in MEASURES), "use --protocol versus --against perfect"
        raise UserError(f"--protocol solver is for {games}, this run plays game:{board.name}: {use}")
    positions = decisive_positions(board)
    if asked > len(positions.records):
        raise UserError(f"--episodes {asked} given, but --protocol solver has {len(positions.records):,} positions")
    return moves_kept(player.moves, positions.first(asked), watch), {"random_move": positions.first(asked).at_random}


def _versus(
    player: BoardPlayer, asked: int, options: EvaluateOptions, how: PlayerOptions, watch: Watch
) -> tuple[list[float], Row]:
    board, name, plies = player.board, str(options.against), options.opening_plies
    perfect, more = name == "perfect", Row()
    if plies is None:
        plies = max(min(SLOW, board.longest // 4), slow_before(board)) if perfect else PLIES
    other = opponent_of(name, board, replace(how, seed=how.seed + 1, epsilon=0.0), plies)
    if perfect:
        judge, (starts, values) = (
            Judge(player.moves, solver_of(board)),
            unlost(solver_of(board), asked, plies, how.seed),
        )
        points = match(board, judge, other.moves, starts, how.seed, watch)
        held = int((points >= (1 + values) / 2).sum())
        more = {"moves": judge.moves, "moves_kept": judge.kept, "games_held": held}
    else:
        with programs_running([other.moves]) as programs:
            points = play_match(player, other, both_colors(board, asked, plies, how.seed), how.seed, watch)
        more = {f"against_{key}": value for key, value in other.about.items()}
        more |= {"programs": [program.about for program in programs]} if programs else {}
    returns = points[~np.isnan(points)].tolist()
    about = {"against": name, "opening_plies": plies, "points": sum(returns)}
    return returns, {**about, **{what: returns.count(p) for what, p in OUTCOMES.items()}, **more}
