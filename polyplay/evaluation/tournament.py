"""A tournament: every two players meet, each half of the time on each side. Payoffs, and Elo ratings of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from polyplay.common import machine
from polyplay.common.bounds import Seed, Simulations, SomeGames, Whole
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.evaluation.elo import rate
from polyplay.workers import process

Told = Callable[[str], None]  # is given a line after the matches of two players


@dataclass(frozen=True)
class TournamentOptions:
    """Every two players meet, half of the matches on each side: with both colours, or as both teams. Prints who beats
    whom, and Elo ratings. For board games, and environments with two teams of seats.
    """

    matches: SomeGames = 40
    """matches of every two players, an even number"""
    anchor: str | None = None
    """whose Elo is 0: one of the players, or an opponent that joins them (none: the first)"""
    simulations: Simulations | None = None
    """board games: simulations of the runs' searches for each move; 0: the networks alone (none: each run's own
    number)"""
    opening_plies: Whole | None = None
    """board games: random moves before a match (none: 2)"""
    env: str | None = None
    """environment to play on, with the observations and actions of the runs' own: held-out maps, say (none: the runs'
    own). Not for board games"""
    seed: Seed = 0
    """seed of environments, openings and players"""
    greedy: bool = False
    """runs without a search take the most probable action instead of a sampled one"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where networks compute (auto: on CUDA if there is a GPU)"""
    picture: str | None = None
    """file of a picture of payoffs and ratings: .png, .svg or .pdf (none: no picture). Needs polyplay[plots]"""
    json: bool = False
    """print one JSON object"""
    trust: bool = False
    """open runs that were made by another user or machine and import a module for their environment or network"""


def play_tournament(names: Sequence[str], options: TournamentOptions, told: Told = lambda line: None) -> Row:
    """Ratings, and the points per match of every two players. Raises UserError."""
    from polyplay.evaluation.gtp_player import programs_running
    from polyplay.evaluation.matches import find_entrants, open_matches

    if options.matches % 2:
        raise UserError(
            f"--matches {options.matches} given, but half of them are played on each side: give an even number"
        )
    process.tune(1)
    entrants = find_entrants(names, options)
    names, n = [entrant.name for entrant in entrants], len(entrants)
    anchor = options.anchor or names[0]
    matches = open_matches(entrants, options)
    points = np.zeros((n, n))
    with programs_running(matches.players) as programs:
        for i, j in combinations(range(n), 2):
            before = [len(program.faults) for program in programs]
            points[i, j] = matches.play(i, j)
            points[j, i] = options.matches - points[i, j]
            told(f"{names[i]} {points[i, j]:g} : {points[j, i]:g} {names[j]}")
            for program, n_before in zip(programs, before, strict=True):
                for fault in program.faults[n_before:]:
                    told(fault)
    ratings = rate(names, points, anchor)
    players = [
        {**vars(rating), "points": float(scored), **about}
        for rating, scored, about in zip(ratings, points.sum(1), matches.about, strict=True)
    ]
    payoff = [[None if i == j else float(points[i, j] / options.matches) for j in range(n)] for i in range(n)]
    stamp = machine.stamp()
    return {
        **{"game": matches.game, "anchor": anchor, "matches": options.matches},
        **{name: getattr(options, name) for name in ("simulations", "seed", "greedy")},
        **{"opening_plies": matches.opening_plies, "players": players, "payoff": payoff},
        **({"programs": [program.about for program in programs]} if programs else {}),
        **{name: stamp[name] for name in ("versions", "commit", "machine", "started")},
    }
