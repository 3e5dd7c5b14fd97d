"""The compiled rules against a plain twin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, KInARow

SIZES = [*GAMES.values(), KInARow("wide", 4, 9, 4, gravity=True), KInARow("cells", 5, 4, 3, gravity=False)]


class Plain:
    """A position as a dict of stones; lines are looked for everywhere."""

    def __init__(self, game: Game):
        self.game, self.stones, self.moves = game, dict[tuple[int, int], int](), 0

    def legal(self) -> list[int]:
        g = self.game
        if g.gravity:
            return [c for c in range(g.columns) if (0, c) not in self.stones]
        return [r * g.columns + c for r in range(g.rows) for c in range(g.columns) if (r, c) not in self.stones]

    def play(self, action: int) -> int:
        g, own = self.game, self.moves % 2 + 1
        if g.gravity:
            cell = max(r for r in range(g.rows) if (r, action) not in self.stones), action
        else:
            cell = divmod(action, g.columns)
        self.stones[cell] = own
        self.moves += 1
        for (r, c), (down, right) in itertools.product(self.stones, [(0, 1), (1, 0), (1, 1), (1, -1)]):
            if all(self.stones.get((r + i * down, c + i * right)) == own for i in range(g.k)):
                return records.WON
        return records.DRAWN if len(self.stones) == g.rows * g.columns else records.GOES_ON

    def cells(self) -> np.ndarray:
        board = np.zeros((self.game.rows, self.game.columns), np.int8)
        for cell, own in self.stones.items():
            board[cell] = own
        return board


def legal_of(game: Game, record: np.ndarray) -> list[int]:
    out = np.empty(game.actions, np.int16)
    return out[: board_rules.legal(game.numbers, record, out)].tolist()


@pytest.mark.parametrize("game", SIZES, ids=lambda g: g.name)
def test_random_games_agree_with_a_plain_twin_move_by_move(game: Game):
    rng, ends = np.random.default_rng(0), set()
    for _ in range(400):
        record, plain, status = game.new(), Plain(game), records.GOES_ON
        while status == records.GOES_ON:
            assert legal_of(game, record) == plain.legal()
            assert (records.mover(record), records.ply(record)) == (plain.moves % 2, plain.moves)
            action = rng.choice(plain.legal())
            status = board_rules.play(game.numbers, record, action)
            assert status == plain.play(action)
            assert np.array_equal(record[records.CELLS :].reshape(game.rows, game.columns), plain.cells())
        ends.add(status)
    assert records.WON in ends


def test_planes_are_the_movers_view():
    game = GAMES["connect_four"]
    record, out = game.new(), np.empty(game.planes, np.float32)
    for action in (3, 3, 0):
        board_rules.play(game.numbers, record, action)
    board_rules.write_planes(game.numbers, record, out)
    assert out[2].max() == 0.0  # the second player moves
    assert list(zip(*np.nonzero(out[0]), strict=True)) == [(4, 3)]
    assert list(zip(*np.nonzero(out[1]), strict=True)) == [(5, 0), (5, 3)]
    board_rules.play(game.numbers, record, 6)
    board_rules.write_planes(game.numbers, record, out)
    assert out[2].min() == 1.0
    assert list(zip(*np.nonzero(out[0]), strict=True)) == [(5, 0), (5, 3)]


def test_a_long_game_counts_its_moves():
    game = KInARow("large", 26, 26, 26, gravity=False)
    record = game.new()
    for action in range(300):
        assert board_rules.play(game.numbers, record, action) == records.GOES_ON
        assert records.ply(record) == action + 1
