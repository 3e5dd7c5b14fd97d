"""Go by its definition and against OpenSpiel; kept positions; what a network sees; moves that are found in a record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.envs.pool import Envs
from polyplay.evaluation.gtp import moves_between
from polyplay.games import board_rules, records
from polyplay.games import go as go_rules
from polyplay.games.board_pool import board_of
from polyplay.games.boards import KO, STONES, Go, game
from polyplay.games.records import CELLS
from tests.games.test_board_rules import legal_of

POSITIONS = Path(__file__).with_name("go_positions.txt")
RULES = [f"+ko={ko}{suicide}" for ko in KO for suicide in ("", "+suicide")]


def go(size: int, more: str = "") -> Go:
    made = game(f"go+size={size}{more}")
    assert isinstance(made, Go)
    return made


def choose(rng: np.random.Generator, moves: list[int]) -> int:
    """A legal move, seldom the pass."""
    return int(rng.choice(moves if rng.random() < 0.05 or len(moves) == 1 else moves[:-1]))


def shown(board: Go, record: np.ndarray) -> np.ndarray:
    out = np.empty(board.planes, np.float32)
    board_rules.write_planes(board.numbers, record, out)
    return out


@pytest.mark.parametrize("rules", RULES)
def test_a_move_is_legal_unless_it_repeats_what_it_may_not_or_is_suicide(rules: str):
    """By what each move leads to, which OpenSpiel agrees with, and all positions so far."""
    board, rng, refused = go(4, rules), np.random.default_rng(3), 0
    stones = slice(CELLS, CELLS + board.cells)
    for _ in range(30):
        record, status, past = board.new(), records.GOES_ON, list[tuple[bytes, int]]()
        while status == records.GOES_ON:
            now, own, wanted = record[stones].copy(), records.mover(record), [board.cells]
            past.append((now.tobytes(), own))
            for cell in np.flatnonzero(now == 0):
                after = record.copy()
                board_rules.play(board.numbers, after, int(cell))
                then = after[stones].tobytes()
                breathes = after[CELLS + cell] != 0 or (board.suicide and then != past[-1][0])
                boards = [cells for cells, _ in past]
                repeats = {
                    "positional": then in boards,
                    "situational": (then, 1 - own) in past,
                    "simple": then in boards[-2:-1],
                }
                wanted += [int(cell)] if breathes and not repeats[KO[board.ko]] else []
                refused += repeats[KO[board.ko]]
            assert legal_of(board, record) == sorted(wanted)
            status = board_rules.play(board.numbers, record, choose(rng, sorted(wanted)))
    assert refused > 3


def agree_with_open_spiel(size: int, games: int) -> tuple[int, int]:
    """Moves that were compared, and games in which a legal move would have repeated a position: that ends them there,
    and the comparison here.
    """
    pyspiel = pytest.importorskip("pyspiel")
    board, rng, moves, repeated = go(size), np.random.default_rng(size), 0, 0
    theirs = pyspiel.load_game("go", {"board_size": size, "komi": 7.5})
    for _ in range(games):
        record, state, status = board.new(), theirs.new_initial_state(), records.GOES_ON
        while status == records.GOES_ON and (legal := legal_of(board, record)) == state.legal_actions():
            action, mover, moves = choose(rng, legal), records.mover(record), moves + 1
            status = board_rules.play(board.numbers, record, action)
            state.apply_action(action)
            assert state.is_terminal() == (status != records.GOES_ON)
        if status != records.GOES_ON:
            assert state.returns()[mover] == records.WORTH[status]
            continue
        repeated += 1
        children = [state.child(action) for action in {*state.legal_actions()} - {*legal}]
        assert all(child.is_terminal() and child.returns() == [0, 0] for child in children)
    return moves, repeated


def positions() -> list[tuple[str, int, list[str]]]:
    """Name, the first player's area less the second's, and rows, of the kept positions."""
    found = []
    for block in POSITIONS.read_text().strip().split("\n\n"):
        head, *rows = block.splitlines()
        name, _, points = head.rpartition(": ")
        found.append((name, int(points), [row.replace(" ", "") for row in rows]))
    return found


@pytest.mark.parametrize(("name", "points", "rows"), positions(), ids=lambda x: x if isinstance(x, str) else "")
def test_the_score_of_a_kept_position(name: str, points: int, rows: list[str]):
    board = go(len(rows))
    record = board.new()
    record[CELLS : CELLS + board.cells] = [STONES.index(stone) for stone in "".join(rows)]
    assert go_rules.area(board.numbers, record) == points


@pytest.mark.parametrize("size", [3, 9])
def test_records_of_planes_go_on_as_the_game_does(size: int):
    board, rng, differ, n = go(size), np.random.default_rng(3), 0, 0
    for _ in range(6):
        record, status = board.new(), records.GOES_ON
        while status == records.GOES_ON:
            seen = shown(board, record)
            again = board.records(seen[None])[0]
            assert np.array_equal(shown(board, again), seen)
            assert set(legal_of(board, record)) <= set(legal_of(board, again)), "it may know of fewer positions"
            differ, n = differ + (legal_of(board, record) != legal_of(board, again)), n + 1
            action = choose(rng, legal_of(board, record))
            status = board_rules.play(board.numbers, record, action)
            if records.ply(again) < board.longest - 1 and records.ply(record) < board.longest:
                assert board_rules.play(board.numbers, again, action) == status
    assert differ < n / 4 if size == 3 else differ < n / 50


def test_moves_have_names_without_an_i():
    board = go(9)
    assert [board.move_name(action) for action in (0, 8, 80, 81)] == ["A9", "J9", "J1", "pass"]
    assert board.title == "go, 9×9, komi 7.5"
    assert go(19).planes == (17, 19, 19)


@pytest.mark.parametrize(
    ("komi", "points"),
    [("7.5", 7.5), ("7", 7), ("7.0", 7), ("7.", 7), (".5", 0.5), ("0", 0), ("-0.5", -0.5), ("-7", -7), ("0.0", 0)],
)
def test_komi_is_any_whole_or_half_number(komi: str, points: float):
    assert board_of(Envs(f"game:go+size=9+komi={komi}", 1)).title == f"go, 9×9, komi {points:g}"


@pytest.mark.parametrize(
    ("env", "given", "name"),
    [
        ("game:go+size=9", {"komi": 7.5}, "komi given, but .*: --env game:go+size=9+komi=7.5"),
        ("game:go", {"size": 9, "komi": 7}, "size, komi given, but .*: --env game:go+size=9+komi=7"),
        ("game:othello", {"size": 6}, "size given, but .*: --env game:othello+size=6"),
    ],
)
def test_rules_are_part_of_the_name(env: str, given: dict[str, object], name: str):
    with pytest.raises(UserError, match=f"--env-kwargs: {name}".replace("+", r"\+") + "$"):
        board_of(Envs(env, 1, options=given))
    assert board_of(Envs(env, 1, options={"opponent": "random"})).name == env.removeprefix("game:")


MANY = {5: 5000, 6: 1500, 7: 1500, 8: 500, 9: 1000, 11: 200, 13: 200, 15: 50, 17: 25, 19: 100}


@pytest.mark.parametrize(
    "sizes", [{5: 30, 9: 4, 19: 1}, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "10,000"]
)
def test_random_games_agree_with_open_spiel_move_by_move(sizes: dict[int, int]):
    found = {size: agree_with_open_spiel(size, games) for size, games in sizes.items()}
    assert all(moves > size * size * sizes[size] for size, (moves, _) in found.items())
    assert sum(repeated for _, repeated in found.values()) < sum(sizes.values()) / 5


def random_game(board: Go, seed: int) -> tuple[list[int], list[np.ndarray]]:
    """Moves until the end, or at most 120, and the position before each and after the last."""
    rng, moves, past, status = np.random.default_rng(seed), list[int](), [board.new()], records.GOES_ON
    while status == records.GOES_ON and len(moves) < 120:
        record = past[-1].copy()
        moves.append(choose(rng, legal_of(board, record)))
        status = board_rules.play(board.numbers, record, moves[-1])
        past.append(record)
    return moves, past


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 5, 7, 9]), st.sampled_from(RULES), st.data())
def test_moves_between_are_those_that_were_made(seed: int, size: int, rules: str, data: st.DataObject):
    board = go(size, rules)
    moves, past = random_game(board, seed)
    last = data.draw(st.integers(0, len(moves)))
    first = data.draw(st.integers(0, last))
    assert moves_between(board, past[0], past[-1]) == moves
    assert moves_between(board, past[first], past[last]) == moves[first:last]
    if first < last:
        assert moves_between(board, past[last], past[first]) is None


def test_a_suicide_that_empties_the_board_is_no_second_pass():
    """A game that is over has no hash of its last position, which is 0, as that of the empty board."""
    board = go(3, "+ko=situational+suicide")
    moves, past = random_game(board, 331)
    assert moves[-3:] == [9, 4, 7]
    assert not past[-2][records.CELLS : records.CELLS + 9].any()
    assert moves_between(board, past[0], past[-1]) == moves


def test_a_game_that_went_another_way_is_another_game():
    board = go(5)
    moves, past = random_game(board, 1)
    other = past[3].copy()
    board_rules.play(board.numbers, other, next(a for a in legal_of(board, other) if a != moves[3]))
    assert moves_between(board, other, past[-1]) is None
    assert moves_between(board, other, past[4]) is None
    assert moves_between(board, past[4], past[4]) == []
    stones = past[-1].copy()
    stones[records.CELLS :] = 0
    assert moves_between(board, board.new(), stones) is None, "a position that no moves lead to"
