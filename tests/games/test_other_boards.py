"""Rules against those of OpenSpiel's games, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.games import board_rules, records
from polyplay.games.boards import Game, game

SAME = [
    ("connect_four", "connect_four"),
    ("tic_tac_toe", "tic_tac_toe"),
    ("three_in_a_row", "connect_four(rows=4,columns=5,x_in_row=3)"),
    ("connect:4x4x4", "connect_four(rows=4,columns=4,x_in_row=4)"),
]


def same_game(of: Game, state: object, rng: np.random.Generator) -> int:
    """A random game, in which every position has the same legal moves, stones, mover and end; its result."""
    record, legal, status = of.new(), np.empty(of.actions, np.int16), records.GOES_ON
    while status == records.GOES_ON:
        moves = legal[: board_rules.legal(of.numbers, record, legal)]
        assert moves.tolist() == state.legal_actions()
        assert records.mover(record) == state.current_player()
        action = int(rng.choice(moves))
        status = board_rules.play(of.numbers, record, action)
        state.apply_action(action)
        assert of.draw(record).replace(" ", "").splitlines()[: of.rows] == str(state).split()[: of.rows]
        assert state.is_terminal() == (status != records.GOES_ON)
    winner = 1 - records.mover(record)
    sign = 1 if status == records.WON else 0
    assert state.returns() == ([sign, -sign] if winner == 0 else [-sign, sign])
    return status


@pytest.mark.long
@pytest.mark.parametrize(("ours", "theirs"), SAME, ids=[ours for ours, _ in SAME])
def test_our_games_are_open_spiels_move_by_move(ours, theirs):
    spiel = pytest.importorskip("pyspiel")
    of, rng, other = game(ours), np.random.default_rng(0), spiel.load_game(theirs)
    ends = [same_game(of, other.new_initial_state(), rng) for _ in range(10_000)]
    assert set(ends) == {records.WON, records.DRAWN}
