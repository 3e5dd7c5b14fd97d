"""Self-play: whole games, one behind another, with outcomes of the right sign; it goes on to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core import tree
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game
from polyplay.games.boards import game as game_of
from polyplay.games.records import ResignOptions
from polyplay.search import SearchOptions
from polyplay.search.self_play import SearchMetrics, SelfPlay, game_rows
from tests.games.test_board_rules import legal_of as legal
from tests.search.test_policy import shown
from tests.search.twins import UniformEvaluator

BOARD = GAMES["tic_tac_toe"]
OPTIONS = SearchOptions(12, noise=0.25, noise_alpha=1.0, temperature=((0, 1.0),))


def player(board: Game = BOARD, games: int = 6, T: int = 30, ctx: WorkerContext | None = None, **more: Any) -> SelfPlay:
    queue, more = RolloutQueue(game_rows(board), {}, T, 1, 4), dict(more)
    evaluator: Any = more.pop("evaluator", None) or UniformEvaluator(board.actions)
    options = more.pop("options", OPTIONS)
    return SelfPlay(ctx or context(), board, games, options, evaluator, queue.producer(0), **more)


def context() -> WorkerContext:
    return WorkerContext("self_play", 0, 1, 0, 3, Counters(1), RunControl())


def take(made: SelfPlay, slots: int) -> list[dict[str, np.ndarray]]:
    """Copies of the rows [T+1] of the next slots; each is given back."""
    found = []
    for slot in made.slots(lambda: 5):
        if slot is None:
            continue
        found.append(tree.map(lambda x, s=slot: x[s, :, 0].copy(), made.out.rows))
        made.out.commit(slot)
        made.out.queue._empty[0].put(made.out.queue._full[0].take(made.out.queue.use, 2))
        if len(found) == slots:
            break
    return found


def games_in(rows: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    begins = np.flatnonzero(rows["first"])
    parts = [
        {k: v[a:b] for k, v in rows.items()} for a, b in zip(begins, [*begins[1:], len(rows["first"])], strict=True)
    ]
    return [game for game in parts if len(game["first"]) > 1]


@pytest.mark.parametrize("name", ["tic_tac_toe", "three_in_a_row"])
def test_slots_hold_whole_games_as_the_rules_have_them(name):
    board = GAMES[name]
    made = player(board, T=3 * (board.longest + 1))
    played = [game for rows in take(made, 8) for game in games_in(rows)]
    assert len(played) >= 16
    for game in played:
        moves, record = len(game["first"]) - 1, board.new()
        for t in range(moves):
            assert np.array_equal(game["obs"][t], np.packbits(shown(board, record[None])[0] > 0.5))
            assert np.array_equal(np.flatnonzero(game["mask"][t]), legal(board, record))
            assert game["visits"][t].sum() == pytest.approx(1)
            assert not game["visits"][t][~game["mask"][t]].any()
            result = board_rules.play(board.numbers, record, int(game["action"][t]))
            assert (result == records.GOES_ON) == (t < moves - 1)
        assert game["terminated"].tolist() == [False] * moves + [True]
        last = 1.0 if result == records.WON else 0.0
        assert game["reward"][1:].tolist() == [last * (-1) ** (moves - 1 - t) for t in range(moves)]
        assert (game["version"] == 5).all()


def test_moves_of_capped_searches_have_no_rows(monkeypatch):
    """What the others would learn from stays: the game's outcome, for who was to move."""
    whole = list[dict[str, np.ndarray]]()
    monkeypatch.setattr(SearchMetrics, "ended", lambda self, game, rows: whole.append(tree.map(np.copy, rows)))
    made = player(options=replace(OPTIONS, simulations=20, fast_simulations=2, full=0.4))
    found = [game for slot in take(made, 6) for game in games_in(slot)]
    expected = [[t for t in range(len(game["first"])) if game["visits"][t].any()] for game in whole]
    pairs = [(game, full) for game, full in zip(whole, expected, strict=True) if full][: len(found)]
    assert len(found) > 20
    for one, (game, full) in zip(found, pairs, strict=True):
        assert len(one["first"]) == len(full) + 1
        assert np.array_equal(one["obs"][:-1], game["obs"][full])
        assert one["reward"][1:].tolist() == [game["reward"][t + 1] for t in full]
        assert one["first"].tolist() == [True] + [False] * len(full)
        assert one["terminated"].tolist() == [False] * len(full) + [True]
    moves = sum(len(game["first"]) - 1 for game in whole)
    assert 0.3 * moves < sum(map(len, expected)) < 0.5 * moves
    counters = made.ctx.counters
    assert counters.get("steps") == sum(map(len, expected)) + made.recorded.sum(), "what has a row is an agent step"


class Sure:
    """A network that is sure that one side loses: 0 the first player, 1 the second."""

    title = "sure"

    def __init__(self, board: Game, loser: int):
        self.actions, self.loser = board.actions, loser

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mover = (planes[:, -1, 0, 0] < 0.5).astype(int)
        values = np.where(mover == self.loser, -0.95, 0.95).astype(np.float32)
        return np.zeros((len(planes), self.actions), np.float32), values


@pytest.mark.parametrize("name", ["connect_four", "go+size=5"])
@pytest.mark.parametrize(("loser", "moves"), [(0, 2), (1, 1)])
def test_who_is_sure_to_lose_resigns_and_has_lost(name: str, loser: int, moves: int):
    """Nobody before the first move. All games end at once, so there are rounds in which nobody moves."""
    board, resign = game_of(name), ResignOptions(-0.9, played_on=0.0)
    made = player(board, T=board.longest + 1, evaluator=Sure(board, loser), resign=resign)
    rows = take(made, 2)
    played = [game for slot in rows for game in games_in(slot)]
    assert len(played) > 20
    for one in played:
        assert len(one["first"]) == moves + 1
        assert one["terminated"].tolist() == [False] * moves + [True]
        last = (moves - 1) % 2
        assert one["reward"][moves] == (1.0 if last != loser else -1.0) == 1.0, "who moved last has won"
        assert one["reward"][1:].tolist() == [(-1.0) ** (moves - 1 - t) for t in range(moves)]
        assert not one["mask"][moves].any()
    assert made.ctx.counters.get("episodes") >= len(played)


def test_a_game_that_is_played_on_has_its_own_end():
    made = player(BOARD, evaluator=Sure(BOARD, 1), resign=ResignOptions(played_on=1.0))
    assert all(len(one["first"]) >= 6 for rows in take(made, 3) for one in games_in(rows))
    assert made.resignation.known > 0


def test_rows_that_are_left_over_lead_nowhere():
    rows = take(player(), 1)[0]
    last = int(np.flatnonzero(rows["terminated"])[-1])
    assert rows["first"][last + 1 :].all()
    assert rows["first"][-1]


def test_games_are_counted_with_the_first_player_s_return():
    made = player()
    played = [game for rows in take(made, 6) for game in games_in(rows)]
    returns = made.ctx.counters.games[: len(played), 0].tolist()
    assert returns == [float(game["reward"][1]) for game in played]
    assert {-1.0, 1.0} <= set(returns)


def test_it_goes_on_to_the_bit_from_the_middle_of_searches():
    made = player()
    take(made, 2)
    for _ in range(5):
        made._step()
    saved = tree.map(np.array, made.save())
    again = player()
    again.load(saved)
    for one, other in zip(take(made, 5), take(again, 5), strict=True):
        assert all(np.array_equal(one[k], other[k]) for k in one)


def test_a_slot_has_room_for_the_longest_game():
    with pytest.raises(ValueError, match="no room for a game of 9 moves"):
        player(T=9)
