"""The compiled rules against plain twins and OpenSpiel."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, KInARow, game
from polyplay.games.records import CELLS

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
    for _ in range(120):
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


def test_a_long_game_counts_its_moves():
    game = KInARow("large", 26, 26, 26, gravity=False)
    record = game.new()
    for action in range(300):
        assert board_rules.play(game.numbers, record, action) == records.GOES_ON
        assert records.ply(record) == action + 1


class PlainOthello:
    def __init__(self, n: int):
        self.n, m = n, n // 2
        self.discs, self.own = {(m - 1, m - 1): 2, (m - 1, m): 1, (m, m - 1): 1, (m, m): 2}, 1

    def turned(self, cell: tuple[int, int], own: int) -> set[tuple[int, int]]:
        found = set[tuple[int, int]]()
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                line, (r, c) = [], (cell[0] + down, cell[1] + right)
                while self.discs.get((r, c)) == 3 - own:
                    line.append((r, c))
                    r, c = r + down, c + right
                if self.discs.get((r, c)) == own:
                    found.update(line)
        return found

    def moves(self, own: int) -> list[int]:
        cells = [divmod(i, self.n) for i in range(self.n**2)]
        return [i for i, cell in enumerate(cells) if cell not in self.discs and self.turned(cell, own)]

    def legal(self) -> list[int]:
        return self.moves(self.own) or [self.n**2]

    def play(self, action: int) -> int:
        own = self.own
        if action < self.n**2:
            cell = divmod(action, self.n)
            self.discs.update(dict.fromkeys({cell, *self.turned(cell, own)}, own))
        self.own = 3 - own
        if self.moves(1) or self.moves(2):
            return records.GOES_ON
        lead = sum(1 if disc == own else -1 for disc in self.discs.values())
        return records.WON if lead > 0 else records.LOST if lead < 0 else records.DRAWN


@pytest.mark.parametrize(("size", "games"), [(4, 40), (6, 12), (8, 6)])
def test_random_games_of_othello_agree_with_a_plain_twin_move_by_move(size: int, games: int):
    board, rng, ends, passes = game(f"othello+size={size}"), np.random.default_rng(size), set(), 0
    for _ in range(games):
        record, plain, status = board.new(), PlainOthello(size), records.GOES_ON
        while status == records.GOES_ON:
            moves = legal_of(board, record)
            assert moves == plain.legal()
            passes += moves == [size * size]
            planes = np.empty(board.planes, np.float32)
            board_rules.write_planes(board.numbers, record, planes)
            again = board.records(planes[None])[0]
            assert legal_of(board, again) == moves
            action = int(rng.choice(moves))
            status = board_rules.play(board.numbers, record, action)
            assert status == plain.play(action)
            cells = record[CELLS:].reshape(size, size)
            assert {(r, c): int(cells[r, c]) for r, c in np.argwhere(cells).tolist()} == plain.discs
        ends.add(status)
        assert records.ply(record) <= board.longest
    assert len(ends) >= 2
    assert passes > 0
