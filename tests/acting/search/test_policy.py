"""A search that plays from what a network sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyplay.acting.search import SearchOptions
from polyplay.acting.search.policy import SearchPolicy
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES, Game
from polyplay.envs.pool import Envs
from polyplay.nets.residual import BoardNetworkFactory


def positions(board: Game, n: int, seed: int = 0) -> np.ndarray:
    """Records of random games, all of which go on."""
    rng, found = np.random.default_rng(seed), list[np.ndarray]()
    room = np.zeros(board.actions, np.int16)
    while len(found) < n:
        record = board.new()
        for _ in range(int(rng.integers(board.longest))):
            moves = room[: kernels.legal(board.numbers, record, room)]
            before = record.copy()
            if kernels.play(board.numbers, record, int(rng.choice(moves))) != kernels.GOES_ON:
                record = before
                break
        found.append(record)
    return np.stack(found)


def shown(board: Game, records: np.ndarray) -> np.ndarray:
    planes = np.zeros((len(records), *board.planes), np.float32)
    for record, out in zip(records, planes, strict=True):
        kernels.write_planes(board.numbers, record, out)
    return planes


def policy_of(board: Game, options: SearchOptions) -> SearchPolicy:
    torch.manual_seed(0)
    factory = BoardNetworkFactory(Envs(f"game:{board.name}", 1).spec, blocks=1, filters=8, hidden=8)
    return SearchPolicy(board, options, factory, factory())


@pytest.mark.parametrize("name", GAMES)
def test_planes_show_the_whole_position(name):
    board = GAMES[name]
    records = positions(board, 50)
    assert np.array_equal(board.records(shown(board, records)), records)


def test_it_takes_a_win_in_one_and_moves_only_where_a_move_is_legal():
    board = GAMES["connect_four"]
    record = board.new()
    for move in (0, 6, 0, 6, 0, 5):  # three in column a, the first player's turn
        kernels.play(board.numbers, record, move)
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


def test_it_grows_to_what_it_chooses_by_whatever_leaves():
    board = GAMES["connect_four"]
    record, policy = board.new()[None], policy_of(board, SearchOptions(40))
    for leaves in (1, 4):
        policy.simulate(40, leaves)
        sums = [int(search.look(np.array([0])).visits.sum()) for search in policy.grow(record)]
        assert sums == sorted(sums)
        assert (sums[0], sums[-1], len(sums) > 5) == (0, 40, True)
        *_, search = policy.grow(record)
        assert policy.choose(record)[0] == search.choose(search.finished())
    policy.simulate(20)
    assert (policy.options.simulations, policy.options.leaves) == (20, 4)
