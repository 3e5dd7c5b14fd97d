"""Games that are written down: a sample, whose moves, values and visits are those of the rows, and results those of the
rules.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.core.files import Row
from polyplay.games import board_rules
from polyplay.games.boards import Game
from polyplay.games.boards import game as game_of
from polyplay.games.records import ResignOptions
from polyplay.search.search import Finished
from polyplay.search.self_play import SelfPlay, is_sampled
from tests.search.test_self_play import BOARD, Sure, context, games_in, player, take


def noted(board: Game = BOARD, **more: Any) -> tuple[SelfPlay, list[Row], list[Finished]]:
    """A player, what it tells of its games, and the searches that it moves by."""
    told, searches, ctx = list[Row](), list[Finished](), context()
    ctx.log = lambda kind, text: told.append({"said": kind, **json.loads(text)})
    made = player(board, ctx=ctx, **more)
    moved = made.metrics.moved
    made.metrics.moved = lambda done: (searches.append(done), moved(done))[1]  # type: ignore[method-assign]
    return made, told, searches


def test_lines_are_the_rows_of_self_play():
    made, told, searches = noted()
    played = {int(game["game"][0]): game for rows in take(made, 6) for game in games_in(rows)}
    assert len(told) >= len(played) > 20
    found = defaultdict[bytes, list[tuple[float, list[int]]]](list)  # by position
    for done in searches:
        for record, value, visits in zip(done.records, done.value, done.visits.tolist(), strict=True):
            found[record.tobytes()].append((round(float(value), 4), visits))
    for line in told[: len(played)]:
        number = int(line["name"].removeprefix("self_play-0-"))
        rows = played[number]
        assert line["moves"] == [BOARD.move_name(a) for a in rows["action"][:-1]]
        assert (line["outcome"], line["resigned"]) == (int(rows["reward"][1]), False)
        record = BOARD.new()
        for t, action in enumerate(rows["action"][:-1]):
            value, visits, searched = (line[name][t] for name in ("values", "visits", "searched"))
            assert visits / searched == pytest.approx(float(rows["visits"][t][action]))
            assert any(v == value and (n[action], sum(n)) == (visits, searched) for v, n in found[record.tobytes()])
            board_rules.play(BOARD.numbers, record, action)
        assert (line["said"], line["kind"], line["black"], line["white"]) == ("game", "self_play", 5, 5)
        assert line["game"] == "tic_tac_toe"
    assert len({line["name"] for line in told}) == len(told)


def test_only_the_first_player_tells():
    made, told, _ = noted()
    made.ctx.index = 1
    take(made, 2)
    assert told == []


def test_a_saved_player_tells_of_the_same_games():
    made, told, _ = noted()
    take(made, 2)
    for _ in range(5):
        made._step()
    saved, before = tree.map(np.array, made.save()), len(told)
    again, told_again, _ = noted()
    again.load(saved)
    take(made, 4)
    take(again, 4)
    assert told_again == told[before:] != []


def test_the_sample_is_of_all_ages_and_small():
    numbers = [n for n in range(65_536) if is_sampled(n)]
    assert numbers[:130] == [*range(128), 128, 130]
    for n in (256, 4_096, 65_536):
        assert sum(n // 2 <= number < n for number in numbers) == 64
    assert len(numbers) == 128 + 64 * 9


@pytest.mark.parametrize(("loser", "moves", "outcome"), [(0, 2, -1), (1, 1, 1)])
def test_a_resigned_game_has_no_margin(loser: int, moves: int, outcome: int):
    board, resign = game_of("go+size=5"), ResignOptions(-0.9, played_on=0.0)
    made, told, _ = noted(board, T=board.longest + 1, evaluator=Sure(board, loser), resign=resign)
    take(made, 1)
    for line in told:
        assert (line["resigned"], line["margin"], line["outcome"]) == (True, None, outcome)
        assert len(line["moves"]) == moves
