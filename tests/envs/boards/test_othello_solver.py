"""The solver of Othello against brute force over a plain twin, passes among the moves, and known values."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.common.errors import UserError
from polyplay.envs.boards import kernels, othello_kernels, othello_solver_kernels
from polyplay.envs.boards.game import Othello, game
from polyplay.envs.boards.kernels import CELLS, WORTH
from polyplay.envs.boards.othello_solver import OthelloSolver
from polyplay.envs.boards.records import OWN
from tests.envs.boards.test_kernels import legal_of
from tests.envs.boards.test_othello import PlainOthello


@cache
def solver(size: int) -> OthelloSolver:
    return OthelloSolver(board_of(size))


def board_of(size: int) -> Othello:
    board = game(f"othello+size={size}")
    assert isinstance(board, Othello)
    return board


def left(record: np.ndarray) -> int:
    return int(np.count_nonzero(record[CELLS:] == 0))


def late(size: int, most: int, n: int, seed: int) -> list[np.ndarray]:
    """One position of each of n random games, before its end, with so many empty cells at most; forced passes too."""
    board, rng, found = board_of(size), np.random.default_rng(seed), list[np.ndarray]()
    while len(found) < n:
        record, status, seen = board.new(), kernels.GOES_ON, list[np.ndarray]()
        while status == kernels.GOES_ON:
            seen += [record.copy()] if left(record) <= most else []
            status = kernels.play(board.numbers, record, int(rng.choice(legal_of(board, record))))
        found += [seen[rng.integers(len(seen))]] if seen else []
    return found


def made_of(record: np.ndarray, size: int) -> PlainOthello:
    plain, cells = PlainOthello(size), record[CELLS:].reshape(size, size)
    plain.discs, plain.own = {(r, c): int(cells[r, c]) for r, c in np.argwhere(cells).tolist()}, int(record[0]) + 1
    return plain


def brute_force(plain: PlainOthello, passes: list[int]) -> dict[int, int]:
    """The outcome of every legal move by minimax alone; passes counts those in the tree."""
    found = {}
    for action in plain.legal():
        after = PlainOthello(plain.n)
        after.discs, after.own = dict(plain.discs), plain.own
        passes[0] += action == plain.n**2
        status = after.play(action)
        over = status != kernels.GOES_ON
        found[action] = int(WORTH[status]) if over else -max(brute_force(after, passes).values())
    return found


def check_by_brute_force(size: int, most: int, n: int) -> None:
    values, passes, forced, decisive = set[int](), [0], 0, 0
    for record in late(size, most, n, seed=most):
        expected = brute_force(made_of(record, size), passes)
        best = max(expected.values())
        assert solver(size).outcomes(record) == expected
        assert solver(size).outcome(record) == best
        assert solver(size).best(record) == [action for action, value in expected.items() if value == best]
        values.add(best)
        forced += [*expected] == [size * size]
        decisive += len(set(expected.values())) > 1
    assert values == {-1, 0, 1}
    assert passes[0] > forced > 0, "passes deeper in the tree too"
    assert decisive > n // 20


@pytest.mark.parametrize(("size", "most", "n"), [(4, 6, 40), (6, 5, 100)])
def test_outcomes_and_best_moves_are_those_of_brute_force(size: int, most: int, n: int):
    check_by_brute_force(size, most, n)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "most", "n"), [(4, 7, 500), (6, 7, 1000)])
def test_outcomes_and_best_moves_are_those_of_brute_force_in_many_positions(size: int, most: int, n: int):
    check_by_brute_force(size, most, n)


@pytest.mark.parametrize("size", [4, 6])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_bitboards_have_the_moves_and_the_turned_discs_of_the_rules(size: int, data: st.DataObject):
    board, record = board_of(size), board_of(size).new()
    cells = data.draw(st.lists(st.integers(0, 2), min_size=size * size, max_size=size * size))
    record[CELLS:], record[0] = cells, data.draw(st.integers(0, 1))
    othello_kernels.note_passes(board.numbers, record[None])
    own, other = othello_solver_kernels.discs_of(record)
    moves = othello_solver_kernels.legal_cells(solver(size).board, own, other)
    found = [cell for cell in range(size * size) if moves >> cell & 1]
    assert (found or [size * size]) == legal_of(board, record)
    for cell in found:
        after = record.copy()
        kernels.play(board.numbers, after, cell)
        turned = othello_solver_kernels.turned_by(solver(size).board, own, other, 1 << cell)
        new = np.flatnonzero((after[CELLS:] != record[CELLS:]) & (record[CELLS:] != 0))
        assert [i for i in range(size * size) if turned >> i & 1] == new.tolist()


def test_the_second_player_wins_on_4x4():
    assert solver(4).outcome(board_of(4).new()) == -1
    assert solver(4).best(board_of(4).new()) == [1, 4, 11, 14], "all lose alike"


def test_who_has_to_pass_has_one_move():
    """All cells but two are the first player's; only the second can turn a disc: f1 turns e1."""
    board, record = board_of(6), board_of(6).new()
    record[CELLS:] = 1
    record[CELLS + 30 :] = [2, 2, 2, 2, 1, 0]
    othello_kernels.note_passes(board.numbers, record[None])
    assert record[OWN] == 1
    assert solver(6).outcomes(record) == {36: 1}
    assert (solver(6).outcome(record), solver(6).best(record)) == (1, [36])
    record[0], record[OWN] = 1, 0
    assert solver(6).outcomes(record) == {35: -1}, "and after the only other move it loses, 6 to 30"


def test_images_have_the_same_outcomes():
    board = board_of(6)
    for record in late(6, 10, 12, seed=2):
        outcomes = solver(6).outcomes(record)
        for cells, actions in board.symmetries:
            image = record.copy()
            image[CELLS:][cells] = record[CELLS:]
            assert solver(6).outcomes(image) == {int(actions[a]): value for a, value in sorted(outcomes.items())}


def test_best_moves_of_both_reach_the_outcome_and_no_other_move_does_better():
    board, rng, seen = board_of(6), np.random.default_rng(3), set[int]()
    for start in [record for record in late(6, 13, 60, seed=3) if left(record) >= 8]:
        record, status, expected = start.copy(), kernels.GOES_ON, solver(6).outcome(start)
        while status == kernels.GOES_ON:
            mover = kernels.mover(record)
            assert solver(6).outcome(record) == (expected if mover == kernels.mover(start) else -expected)
            status = kernels.play(board.numbers, record, int(rng.choice(solver(6).best(record))))
        assert int(WORTH[status]) == (expected if mover == kernels.mover(start) else -expected)
        seen.add(expected)
    assert seen >= {-1, 1}


@pytest.mark.parametrize("size", [8, 10])
def test_larger_boards_have_no_solver(size: int):
    with pytest.raises(UserError) as raised:
        OthelloSolver(board_of(size))
    assert str(raised.value) == f"game:othello+size={size}: no solver for it, a side of {size} cells is more than 6"
