"""The compiled search against a slow plain twin, and what it must never do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.games import board_rules
from polyplay.games.boards import GAMES, Game, game
from polyplay.search import Search, SearchOptions
from polyplay.search.search import visit_shares
from polyplay.search.tree import ENDED, EXPANDED
from tests.search.twins import Node, Stub, TwinSearch, UniformEvaluator, searched

THREE, FOUR, ROW = GAMES["tic_tac_toe"], GAMES["connect_four"], GAMES["three_in_a_row"]
NOISE: dict[str, Any] = {"noise": 0.25, "noise_alpha": 0.6}
VARIANTS: list[tuple[Game, dict[str, Any]]] = [
    (THREE, {"simulations": 30}),
    (FOUR, {"simulations": 40, **NOISE}),
    (ROW, {"simulations": 40, **NOISE}),
    (FOUR, {"simulations": 25, "exploration": "alphago_zero", "c": 2.0, "reuse": False}),
    (FOUR, {"simulations": 40, "leaves": 4, **NOISE}),
    (THREE, {"simulations": 40, "leaves": 8}),
    (ROW, {"simulations": 30, "fpu": "parent", "noise": 0.25}),
    (FOUR, {"simulations": 30, "fpu": "parent", "leaves": 2}),
    (THREE, {"simulations": 0}),
    (FOUR, {"simulations": 50, "fast_simulations": 10, **NOISE}),
    (ROW, {"simulations": 40, "fast_simulations": 15, "full": 0.5, **NOISE}),
]
GAMES_AT_ONCE = 3


def planes_of(game: Game, records: list[np.ndarray]) -> np.ndarray:
    out = np.zeros((len(records), *game.planes), np.float32)
    for record, view in zip(records, out, strict=True):
        board_rules.write_planes(game.numbers, record, view)
    return out


def search_of(game: Game, more: dict[str, Any], seed: int = 0, evaluator: Any = None) -> Search:
    made = Search(game, GAMES_AT_ONCE, SearchOptions(**more), evaluator or Stub(game), seed=seed, lane=5)
    made.restart()
    return made


def finish(twin: TwinSearch, stub: Stub) -> np.ndarray:
    """The twin's visits by action, once its search is done."""
    while not twin.finished:
        records = twin.round()
        if records:
            logits, values = stub.evaluate(planes_of(twin.game, records))
            twin.answer(list(zip(logits, values, strict=True)))
    visits = np.zeros(twin.game.actions, np.int32)
    for action, child in twin.root.children.items():
        visits[action] = child.n
    return visits


@pytest.mark.parametrize(("game", "more"), VARIANTS, ids=lambda x: x.name if isinstance(x, Game) else "")
def test_every_visit_is_the_twins(game: Game, more: dict[str, Any]):
    search, stub = search_of(game, more), Stub(game)
    twins = [TwinSearch(game, SearchOptions(**more), 0, 5 + g) for g in range(GAMES_AT_ONCE)]
    for twin in twins:
        twin.restart()
    moves = 0
    while (search.tree.plays["status"] != ENDED).any():
        done = search.step()
        actions, targets = search.choose(done), search.targets(done)
        for i, g in enumerate(done.games):
            assert np.array_equal(finish(twins[g], stub), done.visits[i])
            assert done.value[i] == pytest.approx(twins[g].root.total / twins[g].root.n, abs=1e-6)
            assert done.raw[i] == np.float32(twins[g].root.raw)
            assert done.full[i] == twins[g].full
            expected = np.zeros(game.actions)
            for action, share in twins[g].targets().items():
                expected[action] = share
            assert targets[i] == pytest.approx(expected, abs=1e-6)
            assert list(np.flatnonzero(done.legal[i])) == list(twins[g].root.priors)
        results = search.advance(done.games, actions)
        assert results.tolist() == [twins[g].advance(a) for g, a in zip(done.games, actions, strict=True)]
        moves += len(actions)
    assert moves >= 5 * GAMES_AT_ONCE


def most_visited(node: Node) -> list[int]:
    """By recursion; of equals the first legal move."""
    seen = [action for action in node.priors if action in node.children and node.children[action].n]
    if not seen:
        return []
    best = max(seen, key=lambda action: node.children[action].n)
    return [best, *most_visited(node.children[best])]


@pytest.mark.parametrize("more", [{"simulations": 60}, {"simulations": 60, "leaves": 4}, {"simulations": 0}])
def test_the_principal_variation_is_the_twins(more: dict[str, Any]):
    search, stub = search_of(FOUR, more), Stub(FOUR)
    searched(search)
    for g in range(GAMES_AT_ONCE):
        twin = TwinSearch(FOUR, search.options, 0, 5 + g)
        twin.restart()
        finish(twin, stub)
        found = search.principal_variation(g)
        assert found == most_visited(twin.root)
        assert (len(found) > 1) == (search.options.simulations > 0)


@pytest.mark.parametrize("board", ["go+size=9", "othello+size=8"])
def test_a_tree_has_room_for_the_moves_of_every_position(board: str):
    """Where it has none, a position is evaluated again at each visit, and nothing below it is searched."""
    search = Search(game(board), 1, SearchOptions(150, leaves=2), UniformEvaluator(game(board).actions))
    search.restart()
    searched(search)
    nodes = search.tree.nodes[0, : search.tree.plays["nodes"][0]]
    assert len(nodes) > 140
    assert (nodes["status"] == EXPANDED).all()


def go_on(search: Search, steps: int) -> list[list[int]]:
    """The moves of so many steps."""
    moves = []
    for _ in range(steps):
        done = search.step()
        actions = search.choose(done)
        search.advance(done.games, actions)
        moves.append(actions.tolist())
    return moves


@pytest.mark.parametrize("more", [{}, {"leaves": 4, **NOISE}])
@pytest.mark.parametrize("waiting", [False, True])
def test_a_search_goes_on_to_the_bit_from_its_state(waiting: bool, more: dict[str, Any]):
    options = {"simulations": 30, **more}
    one = search_of(FOUR, options)
    go_on(one, 40)
    if waiting:
        one.round()  # leaves wait for an answer
    two = Search(FOUR, GAMES_AT_ONCE, SearchOptions(**options), Stub(FOUR), lane=5)
    two.load(one.state())
    assert go_on(one, 40) == go_on(two, 40)
    mine, other = one.state(), two.state()
    assert all(np.array_equal(mine[name], other[name]) for name in mine)


def test_a_uniform_network_finds_a_win_in_five_plies_and_its_value():
    """x on c1, d1, with b1 and e1 open: the third in a row leaves two places for the fourth."""
    search = Search(FOUR, 1, SearchOptions(simulations=10_000, reuse=False), UniformEvaluator(7))
    record = FOUR.new()
    for action in (2, 2, 3, 3):
        board_rules.play(FOUR.numbers, record, action)
    search.restart(records=record[None])
    done = searched(search)
    assert done.visits[0].argmax() in (1, 4)
    assert done.value[0] > 0.5


def test_temperatures_and_shares():
    assert SearchOptions().temperatures(np.array([0, 29, 30, 99])).tolist() == [1.0, 1.0, 0.0, 0.0]
    counts = np.array([[1.0, 3.0, 0.0], [2.0, 2.0, 1.0]])
    assert visit_shares(counts, np.ones(2)).tolist() == [[0.25, 0.75, 0.0], [0.4, 0.4, 0.2]]
    assert visit_shares(counts, np.zeros(2)).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert visit_shares(counts, np.full(2, 0.5))[0] == pytest.approx([0.1, 0.9, 0.0])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"simulations": 4, "leaves": 5}, "search leaves: must be at most its 4 simulations, got 5"),
        ({"simulations": 8, "root": "gumbel"}, "search gumbel_actions: must be from 1 to its 8 simulations, got 16"),
        ({"simulations": 4, "fast_simulations": 5}, "fast_simulations: must be from 0 to its 4 simulations, got 5"),
        (
            {"root": "gumbel", "fast_simulations": 5},
            "fast_simulations: must be 0, got 5: root gumbel halves the same number",
        ),
    ],
)
def test_bad_options_are_one_line(more: dict[str, Any], said: str):
    with pytest.raises(UserError) as raised:
        SearchOptions(**more)
    assert said in str(raised.value)
