"""Play round-robin tournaments (each pair of players meets), and compute payoffs and Elo ratings.

Each pair of players plays half of its matches on each side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np

from polyplay.core import machine
from polyplay.core.errors import Range, Seed, Simulations, UserError, Whole
from polyplay.core.files import Row
from polyplay.evaluation.agent import RunAgent, find_agents, is_run
from polyplay.evaluation.evaluate import MATCH
from polyplay.workers import process

# Elo ratings: a Bradley-Terry fit on Elo's scale, base 10, with intervals. Pure functions.


SCALE = 400 / math.log(10)  # Elo points per unit of log odds: a lead of 400 points means odds of 10 to 1
STEPS = 100  # most steps of Newton's method, which takes about ten
LARGEST = 2.0  # largest change of a rating in one step, in log odds
WIDTH = NormalDist().inv_cdf(0.975)  # half an interval's width, in standard errors


def rate(names: Sequence[str], points: np.ndarray, anchor: str, prior: float = 1.0) -> list[Row]:
    """Compute Elo ratings from the points of matches. Return a dict for each player, in the order of `names`: the
    rating `elo`, the interval of the rating from `low` to `high`, and the number of `games`. The rating of the player
    `anchor` is 0. Every player must be connected to the anchor by games.

    points: [n, n], where points[i, j] are the points of player i against player j (wins + draws / 2).
    prior: drawn games added for each pair that met. With prior 0, a player that won or lost all games has no finite
    rating.

    The ratings maximize the likelihood of the points, where P(i beats j) = 1 / (1 + 10^((elo_j - elo_i) / 400)). The 95
    % intervals come from the curvature of the likelihood.
    """
    games, errors = points + points.T, np.zeros(len(names))
    free = [i for i, name in enumerate(names) if name != anchor]
    strengths, information = _fit(points + prior / 2 * (games > 0), free)
    errors[free] = np.sqrt(np.diag(np.linalg.inv(information)))
    elo, spread = SCALE * strengths, WIDTH * SCALE * errors
    return [
        {"name": name, "elo": float(e), "low": float(e - s), "high": float(e + s), "games": float(n)}
        for name, e, s, n in zip(names, elo, spread, games.sum(1), strict=True)
    ]


def _fit(scored: np.ndarray, free: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return maximum-likelihood log odds (0 for players not in `free`), and the information matrix of these players."""
    strengths, games = np.zeros(len(scored)), scored + scored.T
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(strengths[None] - strengths[:, None]))
        gradient = (scored - games * chance).sum(1)
        weight = games * chance * (1 - chance)
        information = (np.diag(weight.sum(1)) - weight)[np.ix_(free, free)]
        step = np.linalg.solve(information, gradient[free])
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
        strengths[free] += step * min(1.0, LARGEST / np.abs(step).max())
    return strengths, information


Report = Callable[[str], None]  # called with a line of text after the matches of a pair


@dataclass(frozen=True)
class TournamentOptions:
    """Plays a round-robin tournament, half of the matches on each side: with both colors, or as both teams. Prints the
    points of each pair, and Elo ratings. For board games, and environments with two teams of seats.
    """

    matches: Annotated[int, Range(2, MATCH)] = 40  # matches per pair of players, an even number
    anchor: str | None = None  # player whose Elo is 0, or an opponent that joins the players (none: the first player)
    simulations: Simulations | None = None
    # board games: simulations of the runs' searches for each move; 0: the networks alone (none: each run's own)
    opening_plies: Whole | None = None  # board games: random moves before a match (none: 2)
    env: str | None = None
    # environment to play instead of the runs' own, with the same observations and actions, such as held-out maps
    seed: Seed = 0  # seed of environments, openings and players
    greedy: bool = False  # runs without a search take the most probable action instead of a sampled one
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where networks compute (auto: on CUDA if there is a GPU)
    json: bool = False  # print one JSON object
    trust: bool = False
    # open runs that were made by another user or machine and import a module for their environment or network


Entrant = tuple[str, RunAgent | None]  # name, and agent of a run; None: the opponent of that name


def find_entrants(names: Sequence[str], options: TournamentOptions) -> list[Entrant]:
    """Return the players called `names`, and the player of the option `anchor`. Raises UserError if there are fewer
    than two players, a player is named twice, the anchor is unknown, or no player is a run.
    """
    given = [*names, *([options.anchor] if options.anchor and options.anchor not in names else [])]
    found = list[Entrant]()
    for name in given:
        agents = find_agents(name, options.trust) if is_run(name) else []
        found += [(agent.name, agent) for agent in agents] or [(name, None)]
    everyone = [name for name, _ in found]
    if len(everyone) < 2:
        raise UserError("tournament takes at least two players: polyplay tournament RUN RUN …, or RUN random")
    if twice := sorted({name for name in everyone if everyone.count(name) > 1}):
        raise UserError(f"tournament: {', '.join(twice)} given twice: name each player once")
    if options.anchor not in (None, *everyone):
        raise UserError(f"--anchor {options.anchor} given, allowed: one of {', '.join(everyone)}")
    if not any(agent for _, agent in found):
        text = f"tournament: {', '.join(everyone)} given, but the game comes from a run"
        raise UserError(f"{text}: give the directory of one")
    return found


def play_tournament(names: Sequence[str], options: TournamentOptions, report: Report = lambda line: None) -> Row:
    """Play a tournament. Return the ratings, and the points per match of each pair of players. Raises UserError."""
    from polyplay.evaluation.gtp import programs_running
    from polyplay.evaluation.matches import open_matches

    if options.matches % 2:
        why = "half of them are played on each side: give an even number"
        raise UserError(f"--matches {options.matches} given, but {why}")
    process.tune(1)
    entrants = find_entrants(names, options)
    names, n = [name for name, _ in entrants], len(entrants)
    anchor = options.anchor or names[0]
    matches = open_matches(entrants, options)
    points, faults = np.zeros((n, n)), list[str]()
    with programs_running(matches.players) as programs:
        for i, j in combinations(range(n), 2):
            points[i, j] = matches.play(i, j)
            points[j, i] = options.matches - points[i, j]
            report(f"{names[i]} {points[i, j]:g} : {points[j, i]:g} {names[j]}")
            new = [fault for program in programs for fault in program.faults if fault not in faults]
            faults += new
            for fault in new:
                report(fault)
    ratings = rate(names, points, anchor)
    players = [
        {**rating, "points": float(scored), **about}
        for rating, scored, about in zip(ratings, points.sum(1), matches.about, strict=True)
    ]
    payoff = [[None if i == j else float(points[i, j] / options.matches) for j in range(n)] for i in range(n)]
    stamp = machine.stamp()
    return {
        **{"game": matches.game, "anchor": anchor, "matches": options.matches},
        **{name: vars(options)[name] for name in ("simulations", "seed", "greedy")},
        **{"opening_plies": matches.opening_plies, "players": players, "payoff": payoff},
        **({"programs": [program.about for program in programs]} if programs else {}),
        **{name: stamp[name] for name in ("versions", "commit", "machine", "started")},
    }
