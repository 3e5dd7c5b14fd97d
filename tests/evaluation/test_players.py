"""A policy as a player of matches: a search knows the whole position, and options mean what they mean elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from polyplay.acting.play import MatchStarts, PlayOptions, choose_actions
from polyplay.envs.pool import Envs
from polyplay.evaluation.matches import BoardPlayer, PolicyPlayer, play_match
from polyplay.games.boards import GAMES, Game
from polyplay.search import SearchOptions
from polyplay.systems import System
from tests.search.test_policy import GO, OLD, after, legal, policy_of, positions, preferring, shown

TIC_TAC_TOE = GAMES["tic_tac_toe"]


def player(board: Game, policy: Any, **how: Any) -> PolicyPlayer:
    return PolicyPlayer(System(Envs(f"game:{board.name}", 1), None, ()), policy, PlayOptions(0, **how))


def row(board: Game, records: np.ndarray) -> dict[str, np.ndarray]:
    """What an environment shows of positions."""
    mask = np.zeros((len(records), board.actions), bool)
    for record, moves in zip(records, mask, strict=True):
        moves[legal(board, record)] = True
    off, reward = np.zeros(len(records), bool), np.zeros(len(records), np.float32)
    return {"obs": shown(board, records), "mask": mask, "reward": reward, "first": off}


@pytest.mark.parametrize("simulations", [0, 40])
def test_a_search_knows_repetitions_however_old(simulations, monkeypatch):
    records, at = np.stack([after(GO, moves) for moves, _ in OLD]), np.array([2, 0])
    policy, asked = preferring(GO, {repeats: 6.0 for _, repeats in OLD}, simulations), list[np.ndarray]()
    expected, choose = policy.choose(records[at])[0], policy.choose
    monkeypatch.setattr(policy, "choose", lambda records: (asked.append(records.copy()), choose(records))[1])
    moves = player(GO, policy)(records, np.zeros(3, np.uint64), at)
    assert [found.tolist() for found in asked] == [records[at].tolist()]
    assert moves.tolist() == expected.tolist()
    assert all(move in legal(GO, record) for move, record in zip(moves.tolist(), records[at], strict=True))


def test_searches_play_whole_games_from_old_repetitions():
    records = np.stack([after(GO, moves) for moves, _ in OLD]).repeat(2, 0)
    starts = MatchStarts(records, np.arange(6) % 2 == 0)
    one, two = (
        BoardPlayer("", GO, player(GO, preferring(GO, {repeats: 6.0 for _, repeats in OLD}, n)), {}) for n in (0, 20)
    )
    assert set(play_match(one, two, starts, seed=0)) <= {0.0, 0.5, 1.0}


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_a_search_takes_random_moves_as_in_an_environment(epsilon, greedy):
    records, at = positions(TIC_TAC_TOE, 30), np.arange(30)
    policy = policy_of(TIC_TAC_TOE, SearchOptions(10))
    here = player(TIC_TAC_TOE, policy, seed=3, greedy=greedy, epsilon=epsilon)
    there = Envs("game:tic_tac_toe", 1).spec, policy, here.how, at, row(TIC_TAC_TOE, records), {}
    for act in range(2):
        assert here(records, np.zeros(30, np.uint64), at).tolist() == choose_actions(*there, act)[0].tolist()
    changed = (choose_actions(*there, 0)[0] != policy.choose(records)[0]).mean()
    assert (changed == 0) == (epsilon == 0)


def test_other_policies_see_planes_and_mask():
    records, at = positions(TIC_TAC_TOE, 10), np.array([7, 3])
    network, seen = policy_of(TIC_TAC_TOE, SearchOptions(1)).network, list[Any]()

    class Watched:
        noise = 0

        def state_spec(self) -> dict:
            return {}

        def act(self, step: Any, state: Any) -> Any:
            seen.append({key: value.numpy().copy() for key, value in step.items()})
            return network.act(step, state)

    expected = row(TIC_TAC_TOE, records[at])
    moves = player(TIC_TAC_TOE, Watched(), greedy=True)(records, np.zeros(10, np.uint64), at)
    assert {key: value.tolist() for key, value in seen[0].items()} == {k: v.tolist() for k, v in expected.items()}
    with torch.no_grad():
        out, _ = network.act({key: torch.from_numpy(value) for key, value in expected.items()}, {})
    assert moves.tolist() == out["action"].tolist()
