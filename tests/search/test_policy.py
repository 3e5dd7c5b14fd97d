"""A search that plays from what a network sees."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from polyplay.envs.pool import Envs
from polyplay.evaluation.matches import openings as random_openings
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, game
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search import SearchOptions
from polyplay.search.search import Search, SearchPolicy
from tests.games.test_board_rules import legal_of as legal
from tests.search.twins import UniformEvaluator

GO = game("go+size=3")
OLD = [  # moves, and the one after them that repeats a position of more than eight plies before
    ([1, 5, 3, 6, 8, 7, 2, 8, 0, 4, 1, 2, 3], 5),
    ([2, 4, 7, 6, 3, 8, 6, 0, 3, 1, 7, 5, 2], 4),
    ([0, 3, 5, 2, 1, 8, 2, 4, 0, 6, 5, 7, 1], 3),
]


def after(board: Game, moves: list[int]) -> np.ndarray:
    record = board.new()
    for move in moves:
        assert board_rules.play(board.numbers, record, move) == records.GOES_ON
    return record


def positions(board: Game, n: int, seed: int = 0) -> np.ndarray:
    """Records of random games, all of which go on."""
    rng, found = np.random.default_rng(seed), list[np.ndarray]()
    room = np.zeros(board.actions, np.int16)
    while len(found) < n:
        record = board.new()
        for _ in range(int(rng.integers(board.longest))):
            moves = room[: board_rules.legal(board.numbers, record, room)]
            before = record.copy()
            if board_rules.play(board.numbers, record, int(rng.choice(moves))) != records.GOES_ON:
                record = before
                break
        found.append(record)
    return np.stack(found)


def shown(board: Game, records: np.ndarray) -> np.ndarray:
    planes = np.zeros((len(records), *board.planes), np.float32)
    for record, out in zip(records, planes, strict=True):
        board_rules.write_planes(board.numbers, record, out)
    return planes


def policy_of(board: Game, options: SearchOptions) -> SearchPolicy:
    torch.manual_seed(0)
    factory = BoardNetworkFactory(Envs(f"game:{board.name}", 1).spec, blocks=1, filters=8, hidden=8)
    return SearchPolicy(board, options, factory, factory())


def preferring(board: Game, logits: dict[int, float], simulations: int) -> SearchPolicy:
    """Its network answers these logits everywhere, 0 for other moves, and that positions are even."""
    factory = BoardNetworkFactory(Envs(f"game:{board.name}", 1).spec, blocks=1, filters=8, hidden=8)
    network = factory()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        for move, logit in logits.items():
            network.logits.bias[move] = logit
    return SearchPolicy(board, SearchOptions(simulations), factory, network)


def test_it_takes_a_win_in_one_and_moves_only_where_a_move_is_legal():
    board = GAMES["connect_four"]
    record = board.new()
    for move in (0, 6, 0, 6, 0, 5):  # three in column a, the first player's turn
        board_rules.play(board.numbers, record, move)
    rows = np.stack([record, record, board.new()])
    mask = np.ones((3, board.actions), bool)
    mask[1] = False  # over
    policy = policy_of(board, SearchOptions(100, noise=0.25))
    out, _ = policy.act({"obs": torch.from_numpy(shown(board, rows)), "mask": torch.from_numpy(mask)}, {})
    assert out["action"].tolist()[:2] == [0, 0]
    assert out["value"][0] > 0.5
    assert out["value"][1] == 0


def test_without_simulations_it_is_the_bare_network():
    board = GAMES["tic_tac_toe"]
    policy = policy_of(board, SearchOptions(0))
    planes = torch.from_numpy(shown(board, positions(board, 20)))
    mask = ~(planes[:, 0] + planes[:, 1]).bool().flatten(1)
    step = {"obs": planes, "mask": mask}
    bare, _ = policy.network.act(step, {})
    searched, _ = policy.act(step, {})
    assert torch.equal(searched["action"], bare["action"])
    torch.testing.assert_close(searched["value"], bare["value"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("root", "before"), [("puct", [0]), ("gumbel", [400, 0, 2]), ("gumbel_mctx", [1, 4])])
def test_what_was_asked_for_before_does_not_weaken_a_search(root, before):
    board = game("othello+size=6")
    options = SearchOptions(24, root=root, gumbel_actions=8, leaves=4, noise=0.25)
    used, fresh = policy_of(board, options), policy_of(board, options)
    for simulations in before:
        used.simulate(simulations)
    for policy in (used, fresh):
        policy.simulate(24)
    assert used.options == fresh.options
    assert (used.options.gumbel_actions, used.options.leaves) == (8, 4)
    (*_, after), (*_, new) = (policy.grow(board.new()[None]) for policy in (used, fresh))
    assert np.array_equal(after.finished().visits, new.finished().visits)
    assert np.count_nonzero(new.finished().visits) > 1


@pytest.mark.parametrize(("moves", "repeats", "simulations"), [(*OLD[0], 0), (*OLD[1], 40), (*OLD[2], 40)])
def test_it_makes_no_move_that_the_mask_forbids(moves, repeats, simulations):
    """Planes do not show what the move repeats, so the search takes it for the best."""
    record, policy = after(GO, moves), preferring(GO, {repeats: 6.0, 8: 3.0}, simulations)
    planes = shown(GO, record[None])
    as_shown = GO.records(planes)
    assert set(legal(GO, as_shown[0])) - set(legal(GO, record)) == {repeats}
    mask = torch.zeros(3, GO.actions, dtype=torch.bool)
    mask[0, legal(GO, as_shown[0])] = mask[1, legal(GO, record)] = mask[2, GO.cells] = True
    out, _ = policy.act({"obs": torch.from_numpy(planes.repeat(3, 0)), "mask": mask}, {})
    *_, search = policy.grow(as_shown)
    found = search.finished()
    order = sorted(legal(GO, record), key=lambda move: (found.visits[0, move], found.priors[0, move]))
    assert out["action"].tolist() == [repeats, order[-1], GO.cells]
    assert simulations or order[-1] == 8
    assert len(set(out["value"].tolist())) == 1, "of the position, whatever the move"


FOUR = GAMES["connect_four"]
OPTIONS = SearchOptions(30, noise=0.0, temperature=((0, 0.0),), reuse=False)


def openings(n: int, plies: int) -> np.ndarray:
    return np.stack([*islice(random_openings(FOUR, plies, seed=1), n)])


def searching(most: int, options: SearchOptions = OPTIONS, seed: int = 0) -> Search:
    return Search(FOUR, most, options, UniformEvaluator(FOUR.actions), seed)


def test_a_position_has_the_same_move_in_whatever_company():
    records = openings(23, 6)
    alone = [int(searching(1).choose_moves(record[None])[0]) for record in records]
    assert len(set(alone)) > 2
    eight = searching(8)
    assert eight.choose_moves(records).tolist() == alone, "in parts of eight"
    assert eight.choose_moves(records[:3]).tolist() == alone[:3], "fewer than before"
    assert eight.choose_moves(records[10:18]).tolist() == alone[10:18]
