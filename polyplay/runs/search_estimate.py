"""Self-play by a search in a plan: how it searches, and what it would take on this machine. The beginning of such a run
shows nothing for hours.

Imports no torch by itself.
"""

from __future__ import annotations

import time
from typing import Any

from polyplay.common.machine import cores
from polyplay.workers.sizing import threads_of

SHARE = 0.55  # moves of a game of cells of its board: 200 on 19×19
POSITIONS = 8  # evaluated at once
ROUNDS = 2
SLOW = 0.1  # seconds of an evaluation


def search_role(crew: Any) -> Any:
    """The role that plays with itself; None: there is none."""
    return next((r for r in crew.roles if "board" in r.settings and r.best is None), None)


def searching(role: Any) -> str:
    """How a move is found, and when a game is given up."""
    options, board, resign = role.settings["options"], role.settings["board"], role.settings["resign"]
    game = f", {options.simulations * game_length(board):,} of a game of {game_length(board)} moves" * board.placed
    quits = "below a value that a tenth of the games teaches, which are played on" if resign.v is None else ""
    quits = "never" if resign.played_on == 1.0 else quits or f"below a value of {resign.v:g}"
    return f"{options.simulations:,} evaluations of a move at most{game}; resigns {quits}"


def game_length(board: Any) -> int:
    """Moves of a game in which they fill the board."""
    return max(1, round(SHARE * board.cells))


def evaluator_text(crew: Any, role: Any) -> str:
    """What computes the network in self-play, or, where that is left open, what will be measured when players start."""
    from polyplay.acting.search.evaluators import ways

    found = ways(role.settings["backend"], crew.precision, crew.where.devices[0].partition(":")[0])
    names = [f"{backend} in {precision}" for backend, precision in found]
    if len(names) == 1:
        return names[0]
    return f"the fastest of {', '.join(names)}, measured when it starts"


def moves_per_second(crew: Any, role: Any) -> tuple[float, float]:
    """(moves of all players, evaluations of one) in a second, as far as the network allows, which torch measures."""
    import numpy as np

    from polyplay.acting.search.evaluators import NetworkEvaluator

    options, board = role.settings["options"], role.settings["board"]
    n = min(POSITIONS, role.envs.lanes * options.leaves)
    for positions in dict.fromkeys((1, n)):
        planes, seconds = np.zeros((positions, *board.planes), np.float32), float("inf")
        threads = threads_of(role, crew)
        evaluator = NetworkEvaluator(role.policy, positions, "torch", crew.precision, crew.where.devices[0], threads)
        evaluator.take(0)
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            evaluator.evaluate(planes)
            seconds = min(seconds, time.perf_counter() - begun)
            if seconds > SLOW:
                break
        if seconds > SLOW:  # all cores are busy with one position: several at once take as many times as long
            break
    rate, full = positions / seconds, options.full if options.cheap else 1.0
    mean = full * options.simulations + (1.0 - full) * options.cheap
    return min(role.n, cores()) * rate / mean, rate


def estimate_lines(role: Any, moves: float, evaluations: float, left: float) -> list[tuple[str, str]]:
    """Lines of a plan. left: agent steps that are to go. Lengths of games are guessed where moves fill a board."""
    options, board = role.settings["options"], role.settings["board"]
    left /= options.full if options.cheap else 1.0  # moves of other searches are no agent steps
    measured = f"{evaluations:,.1f} evaluations/s of one player, by the network alone"
    if not board.placed:
        return [("measured", measured)]
    length = game_length(board)
    games, days = 3600 * moves / length, left / moves / 86_400
    how_long = f"{days / 365.25:,.0f} years" if days > 3_650 else f"{days:,.1f} days"
    return [
        ("measured", f"{measured}; {games:,.2f} games/hour"),
        ("eta", f"{how_long} for {left / length:,.0f} games of self-play on this machine"),
    ]
