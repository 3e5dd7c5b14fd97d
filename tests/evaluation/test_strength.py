"""Strength by known positions and by matches: colours, openings and points are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyplay import systems
from polyplay.acting import play
from polyplay.common import checkpoint
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES
from polyplay.envs.boards.opponents import opponent
from polyplay.envs.boards.positions import Decisive, decisive_positions
from polyplay.evaluation.strength import match, openings, share_kept
from polyplay.runs.directory import read_config
from polyplay.workers.crew import Crew

BOARD = GAMES["tic_tac_toe"]


def first_legal(records: np.ndarray) -> np.ndarray:
    room = np.zeros(BOARD.actions, np.int16)
    return np.array([room[: kernels.legal(BOARD.numbers, record, room)][0] for record in records], np.int64)


def test_openings_have_their_plies_and_go_on():
    found = openings(BOARD, 50, 3, seed=1)
    assert {kernels.ply(record) for record in found} == {3}
    assert len({record.tobytes() for record in found}) > 20
    assert np.array_equal(found, openings(BOARD, 50, 3, seed=1))


def test_a_stronger_player_gets_the_points_with_both_colours():
    seen = list[np.ndarray]()

    def searched(records: np.ndarray) -> np.ndarray:
        seen.append(records.copy())
        random = np.arange(len(records), dtype=np.uint64)
        return opponent("mcts:400", BOARD)(records, random, np.arange(len(records)))

    found = match(BOARD, searched, opponent("random", BOARD), pairs=20, plies=1, seed=3)
    assert found["games"] == 40
    assert found["wins"] + found["draws"] + found["losses"] == 40
    assert found["points"] == found["wins"] + found["draws"] / 2 > 34
    assert {int(record[0]) for records in seen for record in records} == {0, 1}, "both colours"


def test_a_match_of_equals_has_the_same_points_both_ways():
    one = match(BOARD, first_legal, lambda records, random, at: first_legal(records[at]), pairs=30, plies=2, seed=5)
    assert one["wins"] == one["losses"], "the second game of a pair is the first with colours changed"


def test_the_committed_champion_is_as_strong_as_the_docs_say():
    run = Path(__file__).parents[2] / "bench/champions/connect_four"
    page = systems.load("alphago_zero")
    wired = page.build(page.Config(**read_config(run)["config"]), Crew(0))
    player = play.load_player(wired, checkpoint.everything(run)[-1])
    player.simulate(0)
    assert share_kept(lambda records: player.choose(records)[0], decisive_positions()) == pytest.approx(0.780, abs=0.01)


def test_the_share_of_moves_that_keep_the_value():
    records = openings(BOARD, 10, 2, seed=2)
    keeping = np.zeros((10, BOARD.actions), bool)
    keeping[np.arange(10), first_legal(records)] = True
    keeping[7:] = False
    positions = Decisive([""] * 10, records, np.zeros(10, np.int8), keeping)
    assert share_kept(first_legal, positions, at_once=4) == pytest.approx(0.7)
