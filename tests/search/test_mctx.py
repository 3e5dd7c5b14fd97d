"""The compiled search against mctx's: what that found in positions of ours is in mctx.npz (see mctx_found)."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.games import board_rules
from polyplay.games.boards import GAMES, Game
from polyplay.search import Search, SearchOptions
from tests.search import mctx_found
from tests.search.mctx_found import CASES, CONSIDERED, GUMBEL, POSITIONS, SIMULATIONS, positions
from tests.search.twins import Stub


def known(name: str) -> dict[str, np.ndarray]:
    with np.load(mctx_found.FOUND) as found:
        return {key.partition(" ")[2]: found[key] for key in found.files if key.partition(" ")[0] == name}


def begun(game: Game, records: np.ndarray, options: SearchOptions) -> Search:
    search = Search(game, len(records), options, Stub(game))
    search.restart(records=records)
    return search


@pytest.mark.parametrize(("name", "most"), CASES)
def test_root_visits_are_those_of_mctx(name: str, most: int):
    game, options = GAMES[name], SearchOptions(SIMULATIONS, "alphazero", c=1.25, c_base=19652.0, reuse=False)
    search = begun(game, positions(game, most), options)
    while len((done := search.step()).games) < POSITIONS:
        pass
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
    while len((done := search.step()).games) < POSITIONS:
        pass
    np.testing.assert_array_equal(theirs["gumbel_visits"], done.visits)
    assert search.choose(done).tolist() == theirs["moves"].tolist()
    np.testing.assert_allclose(search.targets(done), theirs["policy"], atol=1e-4)


def test_where_mctx_is_installed_it_finds_that():
    pytest.importorskip("mctx")
    for key, values in mctx_found.found_by_mctx().items():
        name, _, part = key.partition(" ")
        np.testing.assert_allclose(values, known(name)[part], atol=1e-5)
