"""Rules and solver against those of others, where they are installed: OpenSpiel's games, BitBully's solver."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES, Game, game
from polyplay.envs.boards.positions import random_play
from polyplay.envs.boards.solver import RowSolver

SAME = [
    ("connect_four", "connect_four"),
    ("tic_tac_toe", "tic_tac_toe"),
    ("three_in_a_row", "connect_four(rows=4,columns=5,x_in_row=3)"),
    ("connect:4x4x4", "connect_four(rows=4,columns=4,x_in_row=4)"),
]


def same_game(of: Game, state: object, rng: np.random.Generator) -> int:
    """A random game, in which every position has the same legal moves, stones, mover and end; its result."""
    record, legal, status = of.new(), np.empty(of.actions, np.int16), kernels.GOES_ON
    while status == kernels.GOES_ON:
        moves = legal[: kernels.legal(of.numbers, record, legal)]
        assert moves.tolist() == state.legal_actions()
        assert kernels.mover(record) == state.current_player()
        action = int(rng.choice(moves))
        status = kernels.play(of.numbers, record, action)
        state.apply_action(action)
        assert of.draw(record).replace(" ", "").splitlines()[: of.rows] == str(state).split()[: of.rows]
        assert state.is_terminal() == (status != kernels.GOES_ON)
    winner = 1 - kernels.mover(record)
    sign = 1 if status == kernels.WON else 0
    assert state.returns() == ([sign, -sign] if winner == 0 else [-sign, sign])
    return status


@pytest.mark.long
@pytest.mark.parametrize(("ours", "theirs"), SAME, ids=[ours for ours, _ in SAME])
def test_our_games_are_open_spiels_move_by_move(ours, theirs):
    spiel = pytest.importorskip("pyspiel")
    of, rng, other = game(ours), np.random.default_rng(0), spiel.load_game(theirs)
    ends = [same_game(of, other.new_initial_state(), rng) for _ in range(10_000)]
    assert set(ends) == {kernels.WON, kernels.DRAWN}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_solver_agrees_with_another_in_every_move():
    bitbully = pytest.importorskip("bitbully")
    of, rng = GAMES["connect_four"], np.random.default_rng(0)
    solver, other, seen = RowSolver(of), bitbully.BitBully(opening_book=None), 0
    while seen < 1000:
        if found := random_play(of, 14 + seen % 27, rng):
            moves = "".join(str(ord(name) - ord("a")) for name in found[0])
            scores = other.score_all_moves(bitbully.Board(moves))
            halves = {a: (abs(score) + 1) // 2 * np.sign(score) for a, score in solver.scores(found[1]).items()}
            assert scores == halves, moves
            seen += 1
