"""What a player counts equals what a plain count over its rounds and games says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.games.boards import GAMES
from polyplay.search import SearchOptions, self_play
from polyplay.search.self_play import SelfPlay, game_rows
from tests.search.test_self_play import games_in, take
from tests.search.twins import UniformEvaluator

BOARD = GAMES["tic_tac_toe"]
GAMES_AT_ONCE = 6


class Lopsided(UniformEvaluator):
    """Prefers low actions, and takes every position for a small win of its mover."""

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, values = super().evaluate(planes)
        return logits - np.arange(logits.shape[1], dtype=np.float32) / 4, values + np.float32(0.25)


def player(simulations: int = 12, reuse: bool = True) -> SelfPlay:
    ctx = WorkerContext("self_play", 0, 1, 0, 3, Counters(1, self_play.SEARCH_METRICS), RunControl())
    options = SearchOptions(simulations, noise=0.0, temperature=((0, 1.0),), reuse=reuse)
    queue, network = RolloutQueue(game_rows(BOARD), {}, 30, 1, 4), Lopsided(BOARD.actions)
    evaluator: Any = network
    return SelfPlay(ctx, BOARD, GAMES_AT_ONCE, options, evaluator, queue.producer(0))


def mean(made: SelfPlay, name: str) -> float:
    total, n = made.ctx.counters.metrics[self_play.SEARCH_METRICS.index(name)]
    return float(total / n)


def played(made: SelfPlay, games: int) -> list[dict[str, np.ndarray]]:
    """All games so far, at least so many."""
    found: list[dict[str, np.ndarray]] = []
    while len(found) < games:
        found += [game for rows in take(made, 1) for game in games_in(rows)]
    return found + [{k: v.copy() for k, v in game.items()} for game in made.finished]


def test_simulations_and_what_was_saved():
    """Each search is 12 simulations; without a kept tree it makes all of them, and one evaluation for its root."""
    made = player(reuse=False)
    for _ in range(400):
        made._step()
    get = made.ctx.counters.get
    plays = made.search.tree.plays
    moves, unfinished = get("steps"), int(plays["done"].sum())
    assert get("simulations") == 12 * moves + unfinished
    roots = moves + GAMES_AT_ONCE - np.count_nonzero(made.search.tree.nodes[:, 0]["status"] == 0)
    terminal = get("simulations") - (get("served") - roots)
    assert terminal > 0
    assert mean(made, "saved_by_terminal") == pytest.approx(terminal / get("simulations"))
    assert mean(made, "saved_by_reuse") == 0.0
    assert mean(made, "batch_occupancy") == pytest.approx(get("served") / (GAMES_AT_ONCE * get("calls")))


def test_what_a_kept_tree_saves():
    made = player()
    for _ in range(400):
        made._step()
    total, n = made.ctx.counters.metrics[self_play.SEARCH_METRICS.index("saved_by_reuse")]
    assert n == made.ctx.counters.get("simulations") + total
    assert 0.2 < total / n < 0.8
    # all simulations of searches that ended, and of those that go on
    assert n >= 12 * made.ctx.counters.get("steps")


def test_games_and_values_by_stage():
    made = player()
    games = played(made, 40)
    first = np.array([game["reward"][1] for game in games])
    assert len(games) == made.number
    assert mean(made, "first_player_wins") == pytest.approx((first > 0).mean())
    assert mean(made, "draws") == pytest.approx((first == 0).mean())
    visits = np.concatenate([game["visits"][:-1] for game in games]).astype(np.float64)
    legal = np.concatenate([game["mask"][:-1] for game in games])
    entropy = [-sum(p * np.log(p) for p in row if p) for row in visits]
    assert mean(made, "visits_entropy") == pytest.approx(np.mean(entropy), rel=1e-5)
    prior = np.exp(-np.arange(9) / 4) * legal
    prior /= prior.sum(1, keepdims=True)
    kl = [sum(p * np.log(p / q) for p, q in zip(*pair, strict=True) if p) for pair in zip(visits, prior, strict=True)]
    assert mean(made, "visits_kl") == pytest.approx(np.mean(kl), rel=1e-4)
    z = np.concatenate([game["reward"][1:] for game in games])
    assert mean(made, "fresh_value_loss") == pytest.approx(np.mean((z - 0.25) ** 2), rel=1e-5)
    decisive = [game["reward"][1:] for game in games if game["reward"][1]]
    for i, name in enumerate(self_play.ACCURACY):
        right = [z > 0 for game in decisive for t, z in enumerate(game) if 3 * t // len(game) == i]
        assert mean(made, name) == pytest.approx(np.mean(right))


def test_games_are_numbered_and_a_replacement_numbers_anew():
    made = player()
    numbers = [int(n) for rows in take(made, 6) for game in games_in(rows) for n in set(game["game"].tolist())]
    assert numbers == list(range(len(numbers)))
    assert all((rows["game"][rows["version"].size - 1] == -1) for rows in take(made, 1))
    other = player()
    other.ctx.incarnation = 2
    (rows,) = take(other, 1)
    assert games_in(rows)[0]["game"][0] == 2 << 32
