"""The compiled search against mctx: mctx.npz has what that found in positions of ours (bench/peers/mctx_found.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.boards import GAMES, Game
from polyplay.search import Search, SearchOptions
from tests.search.twins import Stub, searched

POSITIONS, SIMULATIONS = 50, 60
GUMBEL, CONSIDERED = 24, 5  # simulations, and moves that are considered
FOUND = Path(__file__).with_name("mctx.npz")
CASES = (("connect_four", 30), ("tic_tac_toe", 5))  # plies at most of the positions


def positions(game: Game, most: int) -> np.ndarray:
    """Of random play of 0 to `most` plies, int8 [POSITIONS, record]."""
    rng, found = np.random.default_rng(3), list[np.ndarray]()
    while len(found) < POSITIONS:
        record = game.new()
        if random_moves(game, record, int(rng.integers(most + 1)), rng):
            found.append(record)
    return np.stack(found)


def random_moves(game: Game, record: np.ndarray, plies: int, rng: np.random.Generator) -> bool:
    """Whether the game goes on after them."""
    legal, result = np.empty(game.actions, np.int16), kernels.GOES_ON
    while plies and result == kernels.GOES_ON:
        action = int(legal[rng.integers(board_rules.legal(game.numbers, record, legal))])
        result, plies = board_rules.play(game.numbers, record, action), plies - 1
    return result == kernels.GOES_ON


def known(name: str) -> dict[str, np.ndarray]:
    with np.load(FOUND) as found:
        return {key.partition(" ")[2]: found[key] for key in found.files if key.partition(" ")[0] == name}


def begun(game: Game, records: np.ndarray, options: SearchOptions) -> Search:
    search = Search(game, len(records), options, Stub(game))
    search.restart(records=records)
    return search


@pytest.mark.parametrize(("name", "most"), CASES)
def test_root_visits_are_those_of_mctx(name: str, most: int):
    game, options = GAMES[name], SearchOptions(SIMULATIONS, "alphazero", c=1.25, c_base=19652.0, reuse=False)
    search = begun(game, positions(game, most), options)
    done = searched(search)
    assert done.visits.sum(1).tolist() == [SIMULATIONS] * POSITIONS
    np.testing.assert_array_equal(known(name)["visits"], done.visits)


@pytest.mark.parametrize(("name", "most"), CASES)
def test_a_gumbel_search_with_the_noise_of_mctx_has_its_visits_moves_and_policy(name: str, most: int):
    game, theirs = GAMES[name], known(name)
    records, room = positions(game, most), np.zeros(game.actions, np.int16)
    search = begun(game, records, SearchOptions(GUMBEL, root="gumbel_mctx", gumbel_actions=CONSIDERED))
    search.step()  # the roots are evaluated
    for g, record in enumerate(records):
        moves = room[: board_rules.legal(game.numbers, record, room)]
        search.tree.gumbel[g, : len(moves)] = theirs["noise"][g, moves]
    done = searched(search)
    np.testing.assert_array_equal(theirs["gumbel_visits"], done.visits)
    assert search.choose(done).tolist() == theirs["moves"].tolist()
    np.testing.assert_allclose(search.targets(done), theirs["policy"], atol=1e-4)
