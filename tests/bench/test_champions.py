"""The champions in bench/champions play as their results say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import strength  # noqa: E402


@pytest.mark.long
def test_go5_opens_in_the_centre_and_takes_the_whole_board():
    policy = strength.policy_of(BENCH / "champions/go5")
    policy.simulate(400)
    board = policy.board
    assert board.move_name(int(policy.choose(board.new()[None])[0][0])) == "C3"
    assert strength.games_taken(policy, 20) == {"random": 20, "mcts:1000": 20, "itself": 20}
