"""Gumbel searches: tables of published fixtures, a slow plain twin, policies that improve. With mctx: test_mctx."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game, game
from polyplay.search import Search, SearchOptions
from polyplay.search.tree import considered_visits
from tests.search.test_policy import positions
from tests.search.test_search import planes_of
from tests.search.twins import Stub, searched

THREE, FOUR = GAMES["tic_tac_toe"], GAMES["connect_four"]


@pytest.mark.parametrize(
    ("actions", "simulations", "visits"),
    [  # mctx/_src/tests/seq_halving_test.py
        (0, 5, [0, 1, 2, 3, 4]),
        (1, 6, [0, 1, 2, 3, 4, 5]),
        (8, 24, [*[0] * 8, *[1] * 4, *[2] * 4, 3, 3, 4, 4, 5, 5, 6, 6]),
        (7, 24, [*[0] * 7, *[1] * 3, *[2] * 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]),
        (2, 7, [0, 0, 1, 1, 2, 2, 3]),
        (4, 16, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
    ],
)
def test_considered_visits_are_the_published_ones(actions: int, simulations: int, visits: list[int]):
    assert considered_visits(actions, simulations) == visits


class Plain:
    """One search: dicts and recursion, in float64."""

    def __init__(self, game: Game, record: np.ndarray, options: SearchOptions, noise: dict[int, float]):
        self.game, self.o, self.noise, self.stub = game, options, noise, Stub(game)
        self.root = self._node(record)

    def _node(self, record: np.ndarray) -> dict[str, Any]:
        (logits,), (value,) = self.stub.evaluate(planes_of(self.game, [record]))
        room = np.zeros(self.game.actions, np.int16)
        legal = room[: board_rules.legal(self.game.numbers, record, room)].tolist()
        top = max(float(logits[a]) for a in legal)
        total = math.fsum(math.exp(float(logits[a]) - top) for a in legal)
        p = {a: math.exp(float(logits[a]) - top) / total for a in legal}
        return {"record": record, "p": p, "value": float(value), "n": dict.fromkeys(legal, 0), "w": {}, "child": {}}

    def sigma(self, node: dict[str, Any]) -> dict[int, float]:
        n, q = node["n"], {a: node["w"][a] / k for a, k in node["n"].items() if k}
        share = math.fsum(node["p"][a] for a in q)
        mixed = node["value"]
        if q:
            mean = math.fsum(node["p"][a] * x for a, x in q.items()) / share
            mixed = (mixed + sum(n.values()) * mean) / (1 + sum(n.values()))
        full = {a: q.get(a, mixed) for a in n}
        return {a: (self.o.c_visit + max(n.values())) * (x + 1) / 2 for a, x in full.items()}

    def improved(self, node: dict[str, Any]) -> dict[int, float]:
        sigma = self.sigma(node)
        scores = {a: math.log(p) + sigma[a] for a, p in node["p"].items()}
        top = max(scores.values())
        total = math.fsum(math.exp(x - top) for x in scores.values())
        return {a: math.exp(x - top) / total for a, x in scores.items()}

    def best(self, visits: int) -> int:
        sigma, p = self.sigma(self.root), self.root["p"]
        among = [a for a, n in self.root["n"].items() if n == visits]
        return max(among, key=lambda a: (self.noise[a] + math.log(p[a]) + sigma[a], -a))

    def simulate(self, node: dict[str, Any]) -> float:
        """The value of the leaf for the node's mover."""
        if node is self.root:
            table = considered_visits(min(len(node["n"]), self.o.gumbel_actions), self.o.simulations)
            action = self.best(table[sum(node["n"].values())])
        else:
            policy, total = self.improved(node), 1 + sum(node["n"].values())
            action = max(policy, key=lambda a: (policy[a] - node["n"][a] / total, -a))
        if action not in node["child"]:
            record = node["record"].copy()
            result = board_rules.play(self.game.numbers, record, action)
            node["child"][action] = float(records.WORTH[result]) if result else self._node(record)
            child = node["child"][action]
            value = child if result else -child["value"]
        else:
            child = node["child"][action]
            value = child if isinstance(child, float) else -self.simulate(child)
        node["n"][action] += 1
        node["w"][action] = node["w"].get(action, 0.0) + value
        return value


@pytest.mark.parametrize(
    ("board", "options"),
    [
        (THREE, {"simulations": 8, "gumbel_actions": 4}),
        (THREE, {"simulations": 30}),
        (FOUR, {"simulations": 16, "temperature": ((0, 0.0),)}),
        (FOUR, {"simulations": 40, "gumbel_actions": 7}),
        (game("go+size=3+komi=0.5"), {"simulations": 24, "gumbel_actions": 8}),
    ],
    ids=lambda x: x.name if isinstance(x, Game) else "",
)
def test_every_visit_move_and_policy_is_the_twins(board: Game, options: dict[str, Any]):
    given_options, n = SearchOptions(**{"root": "gumbel", "gumbel_actions": 16, **options}), 12
    records = positions(board, n)
    search = Search(board, n, given_options, Stub(board), seed=4)
    search.restart(records=records)
    done = searched(search)
    moves, policy = search.choose(done), search.targets(done)
    for g, record in enumerate(records):
        legal = np.flatnonzero(done.legal[g])
        noise = dict(zip(legal.tolist(), search.tree.gumbel[g].tolist(), strict=False))
        twin = Plain(board, record, given_options, noise)
        for _ in range(given_options.simulations):
            twin.simulate(twin.root)
        assert done.visits[g, legal].tolist() == list(twin.root["n"].values())
        assert moves[g] == twin.best(max(twin.root["n"].values()))
        np.testing.assert_allclose(policy[g, legal], list(twin.improved(twin.root).values()), atol=2e-5)
        assert policy[g].sum() == pytest.approx(1, abs=1e-5)


def test_its_noise_is_gumbels_and_depends_on_the_seed():
    options, found = SearchOptions(16, root="gumbel"), []
    for seed in (0, 0, 1):
        search = Search(FOUR, 400, options, Stub(FOUR), seed=seed)
        search.restart()
        search.step()
        found.append(search.tree.gumbel.copy())
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    assert found[0].mean() == pytest.approx(0.5772, abs=0.1)
    assert found[0].var() == pytest.approx(math.pi**2 / 6, rel=0.15)


def test_its_noise_is_times_the_temperature_at_the_ply_of_the_root():
    """As logits / temperature plus noise would choose: so it ends where moves are no longer drawn."""

    def noise(board: Game, record: np.ndarray, *schedule: tuple[int, float]) -> np.ndarray:
        search = Search(board, 1, SearchOptions(16, root="gumbel", temperature=schedule), Stub(board), seed=3)
        search.restart(records=record[None])
        search.step()
        return search.tree.gumbel[0].copy()

    record = FOUR.new()
    for ply in range(4):
        whole, cooling = noise(FOUR, record, (0, 1.0)), noise(FOUR, record, (0, 1.0), (2, 0.5), (3, 0.0))
        assert np.count_nonzero(whole) > 4
        np.testing.assert_allclose(cooling, whole * (1.0, 1.0, 0.5, 0.0)[ply], rtol=1e-6)
        board_rules.play(FOUR.numbers, record, ply)
