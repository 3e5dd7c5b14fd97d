"""The solver against plain twins, whole games, mirror images, and known values."""

from __future__ import annotations

import argparse
import itertools
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "bench"))
import openings

from polyplay.common.errors import UserError
from polyplay.envs.boards import kernels, solver_kernels
from polyplay.envs.boards import solver as solver_module
from polyplay.envs.boards.game import GAMES, Game, game
from polyplay.envs.boards.othello_solver import OthelloSolver
from polyplay.envs.boards.solver import RowSolver, slow_before, solver_of, unsolved

FOUR = GAMES["connect_four"]
Columns = tuple[str, ...]  # stones of each column from the bottom up, "x" or "o"


class Twin:
    """Values by plain negamax with alpha and beta over tuples of strings, in plies."""

    def __init__(self, of: Game):
        self.game = of
        self.bounds: dict[Columns, tuple[int, int]] = {}

    def wins(self, columns: Columns, column: int) -> bool:
        """Whether the top stone of that column lies in a line."""
        row, own = len(columns[column]) - 1, columns[column][-1]
        for right, up in ((1, 0), (0, 1), (1, 1), (1, -1)):
            line = ""
            for i in range(1 - self.game.k, self.game.k):
                c, r = column + i * right, row + i * up
                line += columns[c][r] if 0 <= c < self.game.columns and 0 <= r < len(columns[c]) else "."
            if own * self.game.k in line:
                return True
        return False

    def moves(self, columns: Columns) -> dict[int, tuple[Columns, bool]]:
        """What follows each legal move, and whether it wins."""
        own, found = "xo"[sum(map(len, columns)) % 2], {}
        for column, stones in enumerate(columns):
            if len(stones) < self.game.rows:
                after = (*columns[:column], stones + own, *columns[column + 1 :])
                found[column] = after, self.wins(after, column)
        return found

    def score(self, columns: Columns, low: int = -99, high: int = 99) -> int:
        left = self.game.longest - sum(map(len, columns))
        if left == 0:
            return 0
        least, most = self.bounds.get(columns, (-99, 99))
        if least >= high or least == most:
            return least
        if most <= low:
            return most
        moves = self.moves(columns)
        best = left if any(won for _, won in moves.values()) else -99
        for after, _ in sorted(moves.values(), key=lambda m: -len(m[0][self.game.columns // 2])):
            if best < high and best < left:
                best = max(best, -self.score(after, -high, -max(low, best)))
        self.bounds[columns] = (best if best > low else least, best if best < high else most)
        return best

    def scores(self, columns: Columns) -> dict[int, int]:
        left = self.game.longest - sum(map(len, columns))
        return {c: left if won else -self.score(after) for c, (after, won) in self.moves(columns).items()}


@cache
def solver(name: str) -> RowSolver:
    return RowSolver(game(name), 1 << 18)


def record_of(of: Game, actions: list[int]) -> np.ndarray:
    record = of.new()
    for action in actions:
        assert kernels.play(of.numbers, record, action) == kernels.GOES_ON
    return record


def random_actions(of: Game, plies: int, rng: np.random.Generator) -> list[int]:
    """A game that goes on after so many random plies."""
    while True:
        record, actions, status = of.new(), [], kernels.GOES_ON
        while status == kernels.GOES_ON and len(actions) < plies:
            column = int(rng.integers(of.columns))
            if record[kernels.CELLS + column] == 0:
                actions.append(column)
                status = kernels.play(of.numbers, record, column)
        if status == kernels.GOES_ON:
            return actions


def columns_of(of: Game, actions: list[int]) -> Columns:
    columns = [""] * of.columns
    for i, action in enumerate(actions):
        columns[action] += "xo"[i % 2]
    return tuple(columns)


def signs(values: dict[int, int]) -> dict[int, int]:
    return {action: int(np.sign(value)) for action, value in values.items()}


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("connect:4x4x4", [0, 0, 0, 0]),
        ("connect:4x5x4", [-1, 0, 0, 0, -1]),
        ("three_in_a_row", [-1, 1, 1, 1, -1]),
        ("connect:3x3x3", [0, 0, 0]),
        ("connect:4x4x3", [1, 1, 1, 1]),
        ("connect:2x2x2", [1, 1]),
    ],
)
def test_outcomes_of_the_first_moves(name, outcomes):
    assert list(solver(name).outcomes(game(name).new()).values()) == outcomes


SMALL = [
    ("three_in_a_row", range(8)),
    ("connect:4x4x4", range(6, 16)),
    ("connect:4x5x4", range(10, 20)),
    ("connect:5x3x3", range(8)),
    ("connect:3x6x2", range(2)),
]


def check_against_brute_force(of: Game, plies: list[int]) -> set[int]:
    """All values of random positions; the scores that were seen."""
    rng, twin, seen = np.random.default_rng(0), Twin(of), set()
    for n in plies:
        actions = random_actions(of, n, rng)
        record, expected = record_of(of, actions), twin.scores(columns_of(of, actions))
        assert solver(of.name).scores(record) == expected
        assert solver(of.name).outcomes(record) == signs(expected)
        assert solver(of.name).score(record) == max(expected.values())
        assert solver(of.name).outcome(record) == np.sign(max(expected.values()))
        seen |= set(expected.values())
    return seen


@pytest.mark.parametrize(("name", "plies"), SMALL, ids=[name for name, _ in SMALL])
def test_small_boards_agree_with_brute_force_in_every_move(name, plies):
    seen = check_against_brute_force(game(name), [*plies] * 8)
    assert min(seen) < 0 < max(seen)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["connect:4x4x4", "connect:4x5x4"])
def test_whole_small_boards_agree_with_brute_force(name):
    check_against_brute_force(game(name), [0, 1, 2, 3, 4, 5] * 4)


def test_connect_four_agrees_with_the_twin_on_late_positions():
    rng, twin = np.random.default_rng(1), Twin(FOUR)
    for plies in [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41] * 4:
        actions = random_actions(FOUR, plies, rng)
        assert solver("connect_four").scores(record_of(FOUR, actions)) == twin.scores(columns_of(FOUR, actions))


@pytest.mark.long
def test_connect_four_agrees_with_the_twin_on_a_thousand_positions():
    rng, twin = np.random.default_rng(2), Twin(FOUR)
    for i in range(1000):
        actions = random_actions(FOUR, 26 + i % 16, rng)
        assert solver("connect_four").scores(record_of(FOUR, actions)) == twin.scores(columns_of(FOUR, actions))
        twin.bounds.clear()


@pytest.mark.parametrize("name", ["connect_four", "connect:4x5x4", "connect:5x5x4"])
def test_mirror_images_have_the_same_scores(name):
    of, rng = game(name), np.random.default_rng(3)
    for _ in range(15):
        actions = random_actions(of, of.longest - 22 if name == "connect_four" else 5, rng)
        image = record_of(of, [of.columns - 1 - a for a in actions])
        scores = solver(name).scores(record_of(of, actions))
        fresh = RowSolver(of, 1 << 18)  # not from the table
        assert fresh.scores(image) == {of.columns - 1 - a: score for a, score in scores.items()}


@pytest.mark.parametrize(("name", "plies"), [("connect_four", 20), ("connect:5x5x4", 6), ("connect:4x5x4", 6)])
def test_best_moves_reach_the_score_in_so_many_plies(name, plies):
    of, rng, ends = game(name), np.random.default_rng(4), set()
    for _ in range(12):
        record = record_of(of, random_actions(of, plies, rng))
        score, left, mover = solver(name).score(record), of.longest - plies, kernels.mover(record)
        status, made = kernels.GOES_ON, 0
        while status == kernels.GOES_ON:
            scores = solver(name).scores(record)
            best = [action for action, value in scores.items() if value == max(scores.values())]
            winner = kernels.mover(record)
            status, made = kernels.play(of.numbers, record, int(rng.choice(best))), made + 1
        assert made == (left + 1 - abs(score) if score else left)
        assert status == (kernels.WON if score else kernels.DRAWN)
        assert not score or (winner == mover) == (score > 0)
        ends.add(np.sign(score))
    assert len(ends) > 1


def test_the_table_is_filled_over_and_over_without_a_wrong_value():
    rng, small = np.random.default_rng(5), RowSolver(FOUR, 1 << 6)
    for plies in (20, 21, 22, 23, 24) * 3:
        record = record_of(FOUR, random_actions(FOUR, plies, rng))
        assert small.scores(record) == solver("connect_four").scores(record)


def test_keys_are_those_of_a_position_and_its_image_alone():
    rng, board = np.random.default_rng(6), solver_kernels.board_of(FOUR.numbers)
    seen: dict[int, frozenset[Columns]] = {}
    for i in range(2000):
        columns = columns_of(FOUR, actions := random_actions(FOUR, i % 12, rng))
        own, mask, left = solver_kernels.bitboards(FOUR.numbers, record_of(FOUR, actions))
        assert left == FOUR.longest - len(actions)
        both = frozenset([columns, columns[::-1]])
        assert seen.setdefault(solver_kernels.key_of(board, own, mask), both) == both
    assert len(seen) == len(set(seen.values())) > 1000


def test_best_moves_of_connect_four():
    rng = np.random.default_rng(7)
    for plies in (14, 21, 30):
        record = record_of(FOUR, random_actions(FOUR, plies, rng))
        scores = solver("connect_four").scores(record)
        assert solver("connect_four").best(record) == [a for a, s in scores.items() if s == max(scores.values())]


def test_openings_are_those_of_the_search_and_a_stopped_run_goes_on(tmp_path):
    of = RowSolver(game("connect:4x5x4"), 1 << 18)
    positions = openings.levels(of, 4)
    for stones, level in enumerate(positions):
        plays = [columns_of(of.game, [*play]) for play in itertools.product(range(5), repeat=stones)]
        assert len(level) == len({frozenset([columns, columns[::-1]]) for columns in plays})
    asked = argparse.Namespace(plies=4, seconds=0.0, progress=tmp_path / "progress.jsonl")
    with pytest.raises(SystemExit, match=f"1 of {len(positions[-1])} positions; call again"):
        openings.searched(of, positions[-1], asked)
    asked.seconds = 1e9
    last = openings.searched(of, positions[-1], asked)
    assert len(asked.progress.read_text().splitlines()) == len(positions[-1])
    for level, outcomes in zip(positions[::-1], openings.all_outcomes(of, positions, last), strict=True):
        for key, (own, mask) in level.items():
            left = of.game.longest - bin(mask).count("1")
            assert outcomes[key] == solver_kernels.value_of(of.board, own, mask, left, 1, of.table)


def test_openings_answer_for_the_search(tmp_path, monkeypatch):
    board = solver_kernels.board_of(FOUR.numbers)
    after = [solver_kernels.bitboards(FOUR.numbers, record_of(FOUR, [c]))[:2] for c in range(4)]
    keys = [solver_kernels.key_of(board, *bits) for bits in after]
    np.savez_compressed(tmp_path / "some.npz", keys=np.array(keys), outcomes=np.array([1, 1, 0, -1], np.int8))
    monkeypatch.setattr(solver_module, "OPENINGS", tmp_path / "some.npz")
    assert RowSolver(FOUR, 1 << 10).outcomes(FOUR.new()) == {0: -1, 1: -1, 2: 0, 3: 1, 4: 0, 5: -1, 6: -1}
    assert RowSolver(FOUR, 1 << 10).best(FOUR.new()) == [3]
    assert RowSolver(game("connect:4x5x4"), 1 << 10).openings == {}
    assert slow_before(FOUR) == 0


def test_perfect_play_of_large_boards_begins_late_without_openings(tmp_path, monkeypatch):
    monkeypatch.setattr(solver_module, "OPENINGS", tmp_path / "none.npz")
    names = ("connect_four", "three_in_a_row", "connect:5x6x4", "connect:6x6x4")
    assert [slow_before(game(name)) for name in names] == [8, 0, 0, 2]


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (GAMES["tic_tac_toe"], "game:tic_tac_toe: no solver for it, its stones do not fall"),
        (game("connect:6x7x5"), "5 in a row are more than 4"),
        (game("connect:7x7x4"), "(rows + 1) x columns is 56, more than 50"),
    ],
)
def test_games_without_a_solver(of, says):
    with pytest.raises(UserError) as raised:
        RowSolver(of)
    assert says in str(raised.value)


def test_othello_has_a_solver_of_its_own_on_small_boards_late_in_the_game():
    names = ("othello+size=4", "othello+size=6", "othello", "go+size=5")
    why = ["", "", "a side of 8 cells is more than 6", "it is neither k in a row nor Othello"]
    assert [unsolved(game(name)) for name in names] == why
    assert isinstance(solver_of(game("othello+size=6")), OthelloSolver)
    assert isinstance(solver_of(FOUR), RowSolver)
    assert [slow_before(game(name)) for name in names[:2]] == [0, 14], "18 empty cells, if nobody passed"


def test_a_table_of_another_size_is_refused():
    with pytest.raises(ValueError, match="not a power of two"):
        RowSolver(FOUR, 1000)
