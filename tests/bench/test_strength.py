"""Decisive positions: the committed ones, and what a solver says of them; a champion plays as its results say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from polyplay.games import records
from polyplay.games.boards import Game
from tests.games.test_board_rules import legal_of

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import strength  # noqa: E402
from strength import (  # noqa: E402
    FOUR,
    OTHELLO,
    decisive_positions,
    keeping_moves,
    wins_at_once,
)


@pytest.mark.parametrize(("of", "there"), [(FOUR, range(8, 25)), (OTHELLO, range(24, 32))])
def test_there_are_1000_decisive_positions(of: Game, there: range):
    positions = decisive_positions(of)
    legal = np.zeros((1000, of.actions), bool)
    for row, record in zip(legal, positions.records, strict=True):
        row[legal_of(of, record)] = True
    assert positions.records.shape == (1000, of.record)
    assert set(np.count_nonzero(positions.records[:, records.CELLS :], axis=1).tolist()) == set(there)
    assert not (positions.keeping & ~legal).any()
    assert positions.keeping.any(1).all(), "some move keeps the value"
    assert (positions.keeping != legal).any(1).all(), "some move gives it away"
    assert len({record.tobytes() for record in positions.records}) == 1000
    assert not any(wins_at_once(of, record) for record in positions.records)
    assert set(positions.outcomes.tolist()) == {0, 1}, "what is lost cannot be given away"


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.long)])
def test_the_solver_says_the_same_of_connect_four(step: int):
    pytest.importorskip("bitbully")
    positions = decisive_positions(FOUR)
    for i in range(0, 1000, step):
        expected = positions.outcomes[i], np.flatnonzero(positions.keeping[i]).tolist()
        assert keeping_moves(positions.records[i]) == expected


def test_the_committed_champion_is_as_strong_as_the_docs_say():
    [path] = (BENCH / "champions/connect_four/checkpoints").iterdir()
    kept = strength.values_kept(BENCH / "champions/connect_four", path, 0)
    assert np.mean(kept) == pytest.approx(0.780, abs=0.01)
    assert set(kept) == {0.0, 1.0}


@pytest.mark.long
def test_go5_opens_in_the_center_and_takes_the_whole_board():
    policy = strength.policy_of(BENCH / "champions/go5")
    policy.simulate(400)
    board = policy.board
    assert board.move_name(int(policy.choose(board.new()[None])[0][0])) == "C3"
    assert strength.games_taken(policy, 20) == {"random": 20, "mcts:1000": 20, "itself": 20}
