"""Decisive positions: the committed ones, and what a solver says of them; a champion plays as its results say."""

from __future__ import annotations

import sys
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, game
from polyplay.games.mcts import Opponent, opponent
from tests.games.test_board_rules import legal_of

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import strength  # noqa: E402
from strength import (  # noqa: E402
    FOUR,
    OTHELLO,
    Decisive,
    decisive_positions,
    drawn,
    file_of,
    keeping_moves,
    moves_kept,
    positions_of,
    wins_at_once,
)


def stones(record: np.ndarray) -> int:
    return int(np.count_nonzero(record[records.CELLS :]))


def legal_moves(of: Game, records: np.ndarray) -> np.ndarray:
    """bool [n, actions]."""
    found = np.zeros((len(records), of.actions), bool)
    for row, record in zip(found, records, strict=True):
        row[legal_of(of, record)] = True
    return found


@pytest.mark.parametrize(("of", "there"), [(FOUR, range(8, 25)), (OTHELLO, range(24, 32))])
def test_there_are_1000_decisive_positions(of: Game, there: range):
    positions = decisive_positions(of)
    legal = legal_moves(of, positions.records)
    assert positions.records.shape == (1000, of.record)
    assert {stones(record) for record in positions.records} == set(there)
    assert not (positions.keeping & ~legal).any()
    assert positions.keeping.any(1).all(), "some move keeps the value"
    assert (positions.keeping != legal).any(1).all(), "some move gives it away"
    assert len({record.tobytes() for record in positions.records}) == 1000
    assert not any(wins_at_once(of, record) for record in positions.records)
    assert set(positions.outcomes.tolist()) == {0, 1}, "what is lost cannot be given away"


def plain(of: Game) -> object:
    """The outcome of a position, for its mover, by plain recursion."""

    @cache
    def outcome(key: bytes) -> int:
        best, record = -1, np.frombuffer(key, np.int8)
        for action in legal_of(of, record):
            after = record.copy()
            result = board_rules.play(of.numbers, after, action)
            value = -outcome(after.tobytes()) if result == records.GOES_ON else int(records.WORTH[result])
            best = max(best, value)
        return best

    return outcome


def test_plain_recursion_says_the_same_of_late_ones_of_othello():
    positions, outcome = decisive_positions(OTHELLO), plain(OTHELLO)
    late = [i for i, record in enumerate(positions.records) if OTHELLO.cells - stones(record) == 5][:2]
    assert len(late) == 2
    for i in late:
        record, kept = positions.records[i], np.zeros(OTHELLO.actions, bool)
        for action in legal_of(OTHELLO, record):
            after = record.copy()
            result = board_rules.play(OTHELLO.numbers, after, action)
            value = -outcome(after.tobytes()) if result == records.GOES_ON else int(records.WORTH[result])
            kept[action] = value == positions.outcomes[i]
        assert np.array_equal(kept, positions.keeping[i])


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.long)])
def test_the_solver_says_the_same_of_connect_four(step: int):
    pytest.importorskip("bitbully")
    positions = decisive_positions(FOUR)
    for i in range(0, 1000, step):
        expected = positions.outcomes[i], np.flatnonzero(positions.keeping[i]).tolist()
        assert keeping_moves(positions.records[i]) == expected


def test_the_committed_ones_are_the_first_that_the_seed_draws():
    pytest.importorskip("bitbully")
    positions = decisive_positions(FOUR)
    for i, (play, outcome, names) in enumerate(islice(drawn(0), 6)):
        assert (play, outcome) == (positions.plays[i], positions.outcomes[i])
        assert names == "".join(FOUR.move_name(a) for a in np.flatnonzero(positions.keeping[i]))


def test_positions_are_of_the_rules_whatever_the_name():
    assert file_of(game("connect:6x7x4")) == file_of(FOUR)
    assert file_of(game("othello")) is None
    with pytest.raises(ValueError, match="game:othello has no decisive positions"):
        decisive_positions(game("othello"))


def test_rows_are_played():
    found = positions_of(FOUR, [("ddca", 1, "d"), ("", 0, "abcdefg")])
    assert stones(found.records[0]) == 4
    assert found.records[0, records.CELLS + 5 * 7 :].tolist() == [2, 0, 1, 1, 0, 0, 0]
    assert found.keeping.tolist() == [[False, False, False, True, False, False, False], [True] * 7]
    assert found.at_random == pytest.approx((1 / 7 + 1) / 2)
    found = positions_of(OTHELLO, [("c5 c6 b5", 1, "b6 c6")])
    assert found.keeping.nonzero()[1].tolist() == [1, 2]
    assert records.ply(found.records[0]) == 3


def first_legal(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.array([legal_of(GAMES["tic_tac_toe"], record)[0] for record in records[at]], np.int64)


def test_the_share_of_moves_that_keep_the_value():
    board = GAMES["tic_tac_toe"]
    records = np.stack([*islice(strength.openings(board, 2, 2), 210)])
    keeping = np.zeros((210, board.actions), bool)
    keeping[np.arange(210), first_legal(records, np.zeros(0), np.arange(210))] = True
    keeping[150:] = False
    positions = Decisive(board, [""] * 210, records, np.zeros(210, np.int8), keeping)
    assert moves_kept(first_legal, positions) == [1.0] * 150 + [0.0] * 60


def test_the_committed_champion_is_as_strong_as_the_docs_say():
    [path] = (BENCH / "champions/connect_four/checkpoints").iterdir()
    kept = strength.values_kept(BENCH / "champions/connect_four", path, 0)
    assert np.mean(kept) == pytest.approx(0.780, abs=0.01)
    assert set(kept) == {0.0, 1.0}


def held(player: Opponent) -> tuple[strength.Judge, np.ndarray, np.ndarray]:
    judge, (starts, values) = strength.Judge(player), strength.unlost(FOUR, 3, 12, seed=2)
    return judge, strength.match(FOUR, judge, opponent("perfect", FOUR), starts), values


def test_perfect_play_keeps_every_value_and_a_random_player_does_not():
    pytest.importorskip("bitbully")
    judge, points, values = held(opponent("perfect", FOUR))
    assert judge.kept == judge.moves > 9
    assert points.tolist() == ((1 + values) / 2).tolist()
    judge, points, values = held(opponent("random", FOUR))
    assert judge.kept < 0.9 * judge.moves
    assert points.sum() < ((1 + values) / 2).sum()
    assert (points <= (1 + values) / 2).all(), "perfect play gives nothing away"


@pytest.mark.long
def test_go5_opens_in_the_centre_and_takes_the_whole_board():
    policy = strength.policy_of(BENCH / "champions/go5")
    policy.simulate(400)
    board = policy.board
    assert board.move_name(int(policy.choose(board.new()[None])[0][0])) == "C3"
    assert strength.games_taken(policy, 20) == {"random": 20, "mcts:1000": 20, "itself": 20}
