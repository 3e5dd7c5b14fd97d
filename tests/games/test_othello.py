"""Othello against a plain twin and OpenSpiel, passes among the moves."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.games import board_rules, records
from polyplay.games.boards import Othello, game
from polyplay.games.records import CELLS
from tests.games.test_board_rules import legal_of


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


@pytest.mark.parametrize(("size", "games"), [(4, 60), (6, 20), (8, 6)])
def test_random_games_agree_with_a_plain_twin_move_by_move(size: int, games: int):
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


@pytest.mark.parametrize("games", [50, pytest.param(2000, marks=pytest.mark.long)])
def test_random_games_agree_with_open_spiel_move_by_move(games: int):
    pyspiel = pytest.importorskip("pyspiel")
    board, rng, theirs = game("othello"), np.random.default_rng(0), pyspiel.load_game("othello")
    for _ in range(games):
        record, state, status = board.new(), theirs.new_initial_state(), records.GOES_ON
        while status == records.GOES_ON:
            assert legal_of(board, record) == state.legal_actions()
            action, mover = int(rng.choice(state.legal_actions())), records.mover(record)
            status = board_rules.play(board.numbers, record, action)
            state.apply_action(action)
            assert state.is_terminal() == (status != records.GOES_ON)
        assert state.returns()[mover] == records.WORTH[status]


@pytest.mark.parametrize("size", [5, 2, 28])
def test_a_board_of_another_size_is_one_line(size: int):
    with pytest.raises(UserError, match=f"size={size} given; allowed: even numbers from 4 to 26"):
        game(f"othello+size={size}")


def test_its_symmetries_commute_with_play():
    board, rng = game("othello+size=6"), np.random.default_rng(1)
    assert isinstance(board, Othello)
    kept = 0
    for cells, actions in board.symmetries:
        start, image = board.new(), board.new()
        image[CELLS:][cells] = start[CELLS:]
        status = records.GOES_ON
        while status == records.GOES_ON:
            moves = legal_of(board, start)
            assert sorted(actions[moves]) == legal_of(board, image)
            action = int(rng.choice(moves))
            status = board_rules.play(board.numbers, start, action)
            assert board_rules.play(board.numbers, image, int(actions[action])) == status
            kept += 1
    assert kept > 100
