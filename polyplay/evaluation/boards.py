"""The protocol of board games, `versus`: how a run's player is measured, and what a record says of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polyplay.acting.match import MatchStarts, Watch
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.statistics import mean_interval
from polyplay.envs.atari import protocols
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game
from polyplay.evaluation.gtp_player import programs_running
from polyplay.evaluation.players import BoardPlayer, PlayerOptions, opponent_of, play_match, player_of
from polyplay.evaluation.progress import GamesWatch, on_screen
from polyplay.systems import System

if TYPE_CHECKING:  # they import torch, or this file
    from polyplay.acting.play import Watch as GamesEnded
    from polyplay.evaluation.evaluate import EvaluateOptions
    from polyplay.nets import Policy

PLIES = 2  # random moves of an opening
TRIES = 10_000  # random games until one goes on
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
    with on_screen(mine, asked) if watch else nullcontext(mine.step) as step:
        returns, about = _play(player, asked, options, how, _watching(step))
    if not returns:
        raise UserError(f"{mine.ended}: no game was over by then, so there is no score")
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


def _play(
    player: BoardPlayer, asked: int, options: EvaluateOptions, how: PlayerOptions, watch: Watch
) -> tuple[list[float], Row]:
    """The points of every game that was over, and what a record says of the match."""
    board, name = player.board, str(options.against)
    plies = PLIES if options.opening_plies is None else options.opening_plies
    other = opponent_of(name, board, replace(how, seed=how.seed + 1, epsilon=0.0))
    with programs_running([other.moves]) as programs:
        points = play_match(player, other, both_colors(board, asked, plies, how.seed), how.seed, watch)
    more = {f"against_{key}": value for key, value in other.about.items()}
    more |= {"programs": [program.about for program in programs]} if programs else {}
    returns = points[~np.isnan(points)].tolist()
    about = {"against": name, "opening_plies": plies, "points": sum(returns)}
    return returns, {**about, **{what: returns.count(p) for what, p in OUTCOMES.items()}, **more}


def openings(board: Game, plies: int, seed: int) -> Iterator[np.ndarray]:
    """Without end: records after so many random legal moves each; games that end so early are drawn again."""
    rng, room, tries = np.random.default_rng(seed), np.zeros(board.actions, np.int16), 0
    while True:
        record, result = board.new(), kernels.GOES_ON
        for _ in range(plies):
            moves = room[: kernels.legal(board.numbers, record, room)]
            result = kernels.play(board.numbers, record, int(rng.choice(moves)))
            if result != kernels.GOES_ON:
                break
        tries += 1
        if result == kernels.GOES_ON:
            tries = 0
            yield record
        elif tries == TRIES:
            raise UserError(
                f"--opening-plies {plies}: every random game of game:{board.name} is over by then: lower it"
            )


def both_colors(board: Game, games: int, plies: int, seed: int) -> MatchStarts:
    """Each opening twice: in the second half of the games the other moves next."""
    records = np.stack([*islice(openings(board, plies, seed), games // 2)])
    return MatchStarts(np.concatenate([records, records]), np.arange(2 * len(records)) < len(records))
