"""A round robin of runs and of opponents by name at a board game, and Elo ratings of what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np

from polyplay.common import machine
from polyplay.common.bounds import Seed, Simulations, SomeGames, Whole
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.evaluation.elo import rate
from polyplay.workers import process

if TYPE_CHECKING:  # it loads Numba
    from polyplay.evaluation.players import Player

Told = Callable[[str], None]  # is given a line after each match


@dataclass(frozen=True)
class ArenaOptions:
    """Every two players play a match from random openings, each opening with both colours. Rates them by Elo."""

    anchor: str | None = None
    """whose Elo is 0: one of the players, or an opponent that joins them: random, mcts:N, perfect (none: the first)"""
    games: SomeGames = 40
    """games of every two players, an even number"""
    simulations: Simulations | None = None
    """simulations of the runs' searches for each move; 0: the networks alone (none: each run's own number)"""
    opening_plies: Whole = 2
    """random moves before a game"""
    seed: Seed = 0
    """seed of openings and players"""
    greedy: bool = False
    """runs without a search take the most probable action instead of a sampled one"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where networks compute (auto: on CUDA if there is a GPU)"""
    json: bool = False
    """print one JSON object"""
    trust: bool = False
    """open runs that were made by another user or machine and import a module for their environment or network"""


def play_arena(names: Sequence[str], options: ArenaOptions, told: Told = lambda line: None) -> Row:
    """Ratings, and the points of every two players. Raises UserError."""
    anchor = options.anchor or (names[0] if names else "")
    names = [*names, *([anchor] if anchor and anchor not in names else [])]
    if len(names) < 2:
        raise UserError("arena takes two players at least: polyplay arena RUN RUN …, or RUN --anchor mcts:100")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"arena: {', '.join(twice)} given twice: name each player once")
    if options.games % 2:
        raise UserError(f"--games {options.games} given, but both colours play every opening: give an even number")
    players = _load(names, options)
    points = np.zeros((len(names), len(names)))
    for i, j in combinations(range(len(names)), 2):
        points[i, j] = _points(players[i], players[j], options)
        points[j, i] = options.games - points[i, j]
        told(f"{names[i]} {points[i, j]:g} : {points[j, i]:g} {names[j]}")
    ratings = [
        {**vars(rating), "points": float(scored), **player.about}
        for rating, scored, player in zip(rate(names, points, anchor), points.sum(1), players, strict=True)
    ]
    stamp = machine.stamp()
    return {
        **{"game": f"game:{players[0].board.name}", "anchor": anchor, "games": options.games},
        **{name: getattr(options, name) for name in ("simulations", "opening_plies", "seed", "greedy")},
        **{"players": ratings, "points": points.tolist()},
        **{name: stamp[name] for name in ("versions", "commit", "machine", "started")},
    }


def _load(names: Sequence[str], options: ArenaOptions) -> list[Player]:
    """Raises UserError: no run, which would say what is played, or runs of several games."""
    from polyplay.evaluation.players import PlayerOptions, is_run, load_run_player, opponent_of
    from polyplay.nets import device

    process.tune(1)
    runs = [name for name in names if is_run(name)]
    if not runs:
        raise UserError(
            f"arena: {', '.join(names)} given, and none is the directory of a run, which says what is played"
        )
    where = device.choose_devices(options.device)[0]
    how = [
        PlayerOptions(options.simulations, options.seed + i, options.greedy, 0.0, where, options.trust)
        for i in range(len(names))
    ]
    first = load_run_player(runs[0], how[names.index(runs[0])])
    return [
        first if name == runs[0] else opponent_of(name, first.board, how[i], options.opening_plies, "arena: ")
        for i, name in enumerate(names)
    ]


def _points(player: Player, other: Player, options: ArenaOptions) -> float:
    """Of the first of both."""
    from polyplay.acting.match import match
    from polyplay.evaluation.strength import both_colors

    starts = both_colors(player.board, options.games, options.opening_plies, options.seed)
    return float(match(player.board, player.moves, other.moves, starts, options.seed).sum())
