"""How strong a player of a board game is: positions whose best moves are known, and matches from seeded openings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyplay.common.files import Row
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.opponents import Opponent
from polyplay.envs.boards.positions import Decisive

Choose = Callable[[np.ndarray], np.ndarray]  # records int8 [n, record] → moves int64 [n]


def share_kept(choose: Choose, positions: Decisive, at_once: int = 100) -> float:
    """Share of positions in which the player's move keeps the game-theoretic value."""
    parts = [positions.records[i : i + at_once] for i in range(0, len(positions.records), at_once)]
    return positions.share_kept(np.concatenate([choose(part) for part in parts]))


def openings(board: Game, n: int, plies: int, seed: int) -> np.ndarray:
    """int8 [n, record]: after so many random legal moves each; games that end so early are drawn again."""
    rng, room, found = np.random.default_rng(seed), np.zeros(board.actions, np.int16), list[np.ndarray]()
    while len(found) < n:
        record, result = board.new(), kernels.GOES_ON
        for _ in range(plies):
            moves = room[: kernels.legal(board.numbers, record, room)]
            result = kernels.play(board.numbers, record, int(rng.choice(moves)))
            if result != kernels.GOES_ON:
                break
        if result == kernels.GOES_ON:
            found.append(record)
    return np.stack(found)


def match(board: Game, choose: Choose, opponent: Opponent, pairs: int, plies: int = 2, seed: int = 0) -> Row:
    """Games from `pairs` openings, each with both colours: wins, draws, losses, and points, of which a draw is half."""
    starts = openings(board, pairs, plies, seed)
    records = np.concatenate([starts, starts])
    second = np.arange(2 * pairs) >= pairs  # there the player has the colour that does not move next
    random = np.random.default_rng(seed).integers(2**63, size=len(records), dtype=np.uint64)
    score, on = np.full(len(records), np.nan), np.ones(len(records), bool)
    mine = ~second
    while on.any():
        for turn in (mine & on, ~mine & on):
            at = np.flatnonzero(turn)
            if not len(at):
                continue
            own = bool(mine[at[0]])
            moves = choose(records[at]) if own else opponent(records, random, at)
            for game, move in zip(at.tolist(), moves.tolist(), strict=True):
                result = kernels.play(board.numbers, records[game], int(move))
                if result != kernels.GOES_ON:
                    score[game] = 0.5 if result == kernels.DRAWN else float(own)
                    on[game] = False
        mine = ~mine
    wins, draws = int((score == 1).sum()), int((score == 0.5).sum())
    return {
        "games": len(score),
        "wins": wins,
        "draws": draws,
        "losses": len(score) - wins - draws,
        "points": float(score.sum()),
    }
