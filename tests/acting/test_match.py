"""A match: every game to its end, in batches of whatever size, and none that is not needed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from polyplay.acting.play import GIVES_UP, MatchStarts, draw_openings, match
from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.boards import GAMES
from tests.games.test_board_rules import legal_of
from tests.search.test_policy import GO, OLD, after

BOARD = GAMES["tic_tac_toe"]


def first_legal(records, random, at):
    return np.array([legal_of(BOARD, record)[0] for record in records[at]])


def mixed(records, random, at):
    """Some move, the same for the same position."""
    moves = [legal_of(BOARD, record) for record in records[at]]
    keys = [int(record @ np.arange(len(record))) for record in records[at]]
    return np.array([m[key % len(m)] for m, key in zip(moves, keys, strict=True)])


def random_starts(n: int) -> MatchStarts:
    """Each opening of three plies twice, once with either colour."""
    rng = np.random.default_rng(3)
    openings, _ = draw_openings(
        BOARD, n, 3, lambda records: np.array([rng.choice(legal_of(BOARD, r)) for r in records])
    )
    return MatchStarts(np.repeat(openings, 2, 0), np.arange(2 * n) % 2 == 0)


def one_by_one(starts: MatchStarts) -> list[float]:
    """The plain twin: one game after the other."""
    points = []
    for record, own in zip(starts.records.copy(), starts.begins.tolist(), strict=True):
        result = kernels.GOES_ON
        while result == kernels.GOES_ON:
            who = first_legal if own else mixed
            result = board_rules.play(BOARD.numbers, record, int(who(record[None], None, np.arange(1))[0]))
            own = not own
        points.append(0.5 if result == kernels.DRAWN else float(not own))
    return points


@pytest.mark.parametrize("at_once", [1, 7, None])
def test_a_match_in_batches_equals_games_one_by_one(at_once):
    starts = random_starts(30)
    expected = one_by_one(starts)
    assert set(expected) == {0.0, 0.5, 1.0}
    assert match(BOARD, first_legal, mixed, starts, at_once=at_once).tolist() == expected


def test_no_more_games_go_on_than_may_and_a_match_ends_when_watch_says_so():
    over, sizes = [], []

    def watch(ended, moves):
        over.extend(ended)
        sizes.append(moves)
        return len(over) < 10

    points = match(BOARD, first_legal, mixed, random_starts(30), watch=watch, at_once=4)
    assert 10 <= (~np.isnan(points)).sum() == len(over) < 14
    assert set(sizes) == {4}, "those that ended made room"


def test_openings_are_positions_that_go_on():
    starts = random_starts(50)
    assert set((starts.records[:, kernels.CELLS :] != 0).sum(1).tolist()) == {3}
    at = np.arange(5)
    deep, moves = draw_openings(BOARD, 5, 9, lambda records: first_legal(records, None, at))
    assert (deep[:, kernels.CELLS :] != 0).sum(1).tolist() == [6] * 5, "the seventh move ends the game"
    assert moves.tolist() == [[0, 1, 2, 3, 4, 5, -1, -1, -1]] * 5


def test_who_gives_up_loses_and_everybody_hears_of_every_end():
    starts, heard = random_starts(30), []

    def gives_up_later(records, random, at):
        plies = np.array([kernels.ply(record) for record in records[at]])
        return np.where(plies >= 5, GIVES_UP, first_legal(records, random, at))

    def over(records, at):
        heard.extend((i, kernels.ply(records[i])) for i in at.tolist())

    points = match(BOARD, gives_up_later, mixed, starts, over=over)
    given_up = [i for i, ply in heard if ply in (5, 6)]
    assert sorted(i for i, _ in heard) == list(range(60))
    assert len(given_up) > 30
    assert all(points[i] == 0 for i, ply in heard if ply == 6), "its last move was made on four or five stones"
    reverse = match(BOARD, mixed, gives_up_later, MatchStarts(starts.records, ~starts.begins))
    assert reverse.tolist() == (1 - points).tolist()


@pytest.mark.parametrize("move", [0, -2, 9, 2**15])
def test_an_illegal_move_is_an_error_that_names_it(move):
    def wrong(records, random, at):
        return np.where(at == 1, move, first_legal(records, random, at))

    record = BOARD.new()
    board_rules.play(BOARD.numbers, record, 0)
    starts = MatchStarts(np.stack([record] * 3), np.ones(3, bool))
    said = f"game:tic_tac_toe: the %s made the illegal move {move} in game 1: x../.../..., o to move"
    with pytest.raises(ValueError, match=f"^{re.escape(said % 'player')}$"):
        match(BOARD, wrong, first_legal, starts)
    with pytest.raises(ValueError, match=f"^{re.escape(said % 'other player')}$"):
        match(BOARD, first_legal, wrong, MatchStarts(starts.records, ~starts.begins))


@pytest.mark.parametrize(("moves", "repeats"), OLD)
def test_a_repetition_is_illegal_however_old(moves, repeats):
    starts = MatchStarts(after(GO, moves)[None], np.ones(1, bool))
    with pytest.raises(ValueError, match=f"the player made the illegal move {repeats} in game 0: "):
        match(GO, lambda records, random, at: np.array([repeats]), first_legal, starts)
