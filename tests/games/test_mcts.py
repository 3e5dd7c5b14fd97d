"""The compiled tree search against a plain twin, and how well it plays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polyplay.games import board_rules, mcts, records
from polyplay.games.boards import GAMES, Game
from tests.games.test_board_rules import legal_of


class PlainSearch:
    """UCT with a dict of positions by their moves, on the same random numbers."""

    def __init__(self, game: Game, record: np.ndarray, random: np.ndarray):
        self.game, self.root, self.random = game, record, random
        self.visits, self.values = {(): 0}, {(): 0.0}

    def simulate(self) -> None:
        moves, record, result = (), self.root.copy(), records.GOES_ON
        while result == records.GOES_ON:
            legal = legal_of(self.game, record)
            untried = [a for a in legal if (*moves, a) not in self.visits]
            pick = untried[mcts.integer_below(self.random, len(untried))] if untried else self.best(moves, legal)
            moves = (*moves, pick)
            result = board_rules.play(self.game.numbers, record, pick)
            if untried:
                break
        winner, last = None if result == records.DRAWN else 1 - record[0], 1 - record[0]
        while result == records.GOES_ON:
            legal = legal_of(self.game, record)
            winner = record[0]
            result = board_rules.play(self.game.numbers, record, legal[mcts.integer_below(self.random, len(legal))])
            winner = None if result == records.DRAWN else winner
        for n in range(len(moves), -1, -1):
            value = 0.5 if winner is None else float(winner == (last + len(moves) - n) % 2)
            self.visits[moves[:n]] = self.visits.get(moves[:n], 0) + 1
            self.values[moves[:n]] = self.values.get(moves[:n], 0.0) + value

    def best(self, moves: tuple[int, ...], legal: list[int]) -> int:
        def bound(action: int) -> float:
            n = self.visits[*moves, action]
            explore = math.sqrt(math.log(self.visits[moves]) / n)
            return self.values[*moves, action] / n + mcts.EXPLORATION * explore

        return max(legal, key=bound)


def reached(game: Game, *moves: int) -> np.ndarray:
    record = game.new()
    for move in moves:
        board_rules.play(game.numbers, record, move)
    return record


def search(game: Game, record: np.ndarray, simulations: int, seed: int = 0) -> np.ndarray:
    return mcts.mcts(game.numbers, record, simulations, game.actions, np.array([seed], np.uint64))


@pytest.mark.parametrize("game", GAMES.values(), ids=lambda g: g.name)
def test_visits_are_those_of_a_plain_twin(game: Game):
    rng = np.random.default_rng(0)
    for seed in range(3):
        record = reached(game, *rng.permutation(game.actions)[: seed % 4].tolist())
        plain = PlainSearch(game, record, np.array([seed], np.uint64))
        for _ in range(150):
            plain.simulate()
        assert search(game, record, 150, seed).tolist() == [plain.visits.get((a,), 0) for a in range(game.actions)]


def test_it_wins_and_prevents_a_loss():
    game = GAMES["connect_four"]
    assert search(game, reached(game, 0, 1, 0, 1, 0, 1), 300).argmax() == 0, "it wins at once"
    assert search(game, reached(game, 0, 6, 0, 5, 0), 300).argmax() == 0, "it stops three in a column"
    assert search(game, reached(game, 2, 2, 3, 3, 4, 4), 300).argmax() in (1, 5), "both ends win"


def test_draws_and_equal_visits_are_uniform():
    random = np.array([3], np.uint64)
    drawn = np.bincount([mcts.integer_below(random, 7) for _ in range(7000)], minlength=7)
    assert drawn.size == 7
    assert abs(drawn - 1000).max() < 120
    chosen = np.bincount([mcts.most_visited(np.array([4, 1, 4, 4]), random) for _ in range(3000)], minlength=4)
    assert chosen[1] == 0
    assert abs(chosen[[0, 2, 3]] - 1000).max() < 120
