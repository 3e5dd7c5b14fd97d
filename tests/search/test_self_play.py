"""Self-play: whole games with outcomes of the right sign; resignation; notes of games; what is counted."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core import tree
from polyplay.core.checkpoint import write_arrays
from polyplay.core.files import Row
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES, Game
from polyplay.games.boards import game as game_of
from polyplay.games.records import NEVER, ResignOptions
from polyplay.search import SearchOptions, self_play
from polyplay.search.search import Finished
from polyplay.search.self_play import (
    ENOUGH,
    GRID,
    Resignation,
    SelfPlay,
    game_rows,
    is_sampled,
    learned_value,
)
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
    monkeypatch.setattr(self_play, "tally_game", lambda counters, rows, raw: whole.append(tree.map(np.copy, rows)))
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


# When a player gives a game up, with games whose values are made up.

MOVES = 20


def resign_game(made: Resignation, rng: np.random.Generator, lie: float) -> tuple[bool, bool]:
    """A game in lane 0, whose loser's values fall to −1; with the chance `lie` it is the winner's that fall. Whether
    somebody resigned, and was not the loser.
    """
    loser, liar = int(rng.integers(2)), rng.random() < lie
    falls, at = 1 - loser if liar else loser, np.array([0])
    for ply in range(MOVES):
        value = -ply / MOVES if ply % 2 == falls else ply / MOVES
        if made.decide(at, np.array([ply]), np.array([value]), np.array([value - 0.01]))[0]:
            made.begin(at)
            return True, liar
    made.ended(0, MOVES, -1.0 if loser == 0 else 1.0)
    made.begin(at)
    return False, False


def resigner(**options: object) -> Resignation:
    return Resignation(ResignOptions(**options), 1, MOVES, seed=3, first_lane=0)  # type: ignore[arg-type]


def test_a_tenth_is_played_on_and_nobody_resigns_before_enough_is_known():
    made, rng, first = resigner(), np.random.default_rng(0), 0
    played_on = 0
    for game in range(4000):
        resigned, _ = resign_game(made, rng, lie=0.0)
        first = first or (game if resigned else 0)
        played_on += made.played_on[0]
        if made.known < ENOUGH:
            assert not resigned
            assert made.v == NEVER
    assert abs(played_on / 4000 - 0.1) < 4 * (0.1 * 0.9 / 4000) ** 0.5
    assert first > 5 * ENOUGH
    assert made.v > -0.2, "where values never lie, one may resign early"
    assert made.rate == 0.0


def test_v_is_the_greatest_with_fewer_wrong_than_asked():
    made, rng = resigner(played_on=1.0), np.random.default_rng(2)
    for _ in range(300):  # a winner's value dips to −0.5 in one game of five
        dips, worth = rng.random() < 0.2, 1.0 if rng.random() < 0.5 else -1.0
        values = np.where(np.arange(MOVES) % 2 == (0 if worth < 0 else 1), -np.linspace(0, 1, MOVES), 0.5)
        if dips:
            values[1 if worth < 0 else 0] = -0.5
        made.values[0, :MOVES] = values
        made.ended(0, MOVES, worth)
    would, wrong = made.would.sum(0), made.wrong.sum(0)
    at = int(np.flatnonzero(made.v == GRID)[0])
    assert wrong[at] < 0.05 * would[at]
    assert wrong[at + 1] >= 0.05 * would[at + 1]
    assert made.v == pytest.approx(-0.5)


def test_a_fixed_value_and_none_at_all():
    at, ply, low = np.array([0]), np.array([3]), np.array([-0.95])
    fixed, off = resigner(v=-0.9, played_on=0.0), resigner(played_on=1.0)
    assert fixed.decide(at, ply, low, low)[0]
    assert not fixed.decide(at, ply, low, low + 0.2)[0], "its best child is better"
    assert not fixed.decide(at, ply * 0, low, low)[0], "not before the first move"
    assert not off.decide(at, ply, low, low)[0]


@pytest.mark.parametrize(("given", "v", "share"), [("auto", None, 0.1), ("off", None, 1.0), ("-0.9", -0.9, 0.1)])
def test_what_is_said_of_it(given, v, share):
    assert ResignOptions.parse(given) == ResignOptions(v, share)


@pytest.mark.parametrize(
    ("learned", "value"), [([-0.86, -0.83], -0.86), ([NEVER, -0.83], -0.83), ([NEVER, NEVER], NEVER), ([], NEVER)]
)
def test_what_players_learned_is_in_their_checkpoint(tmp_path: Path, learned: list[float], value: float):
    """The most careful of those that know enough."""
    found = tmp_path / "checkpoints/000000000007-steps-70"
    found.mkdir(parents=True)
    for i, v in enumerate(learned):
        made = resigner()
        made.v[...] = v
        (found / "workers").mkdir(exist_ok=True)
        write_arrays(
            found / f"workers/self_play-{i}.safetensors", {f"resignation/{k}": x for k, x in made.arrays.items()}
        )
    assert learned_value(found) == value
    alone = tmp_path / "checkpoints/champion-000000000005-steps-50"
    alone.mkdir()
    assert learned_value(alone) == value, "weights alone: as in the run's newest checkpoint"


# Games that are written down.


def noted(board: Game = BOARD, **more: Any) -> tuple[SelfPlay, list[Row], list[Finished]]:
    """A player, what it tells of its games, and the searches that it moves by."""
    told, searches, ctx = list[Row](), list[Finished](), context()
    ctx.log = lambda kind, text: told.append({"said": kind, **json.loads(text)})
    made = player(board, ctx=ctx, **more)
    add = made.notes.add
    made.notes.add = lambda games, actions, done: (searches.append(done), add(games, actions, done))[1]  # type: ignore[method-assign]
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


# What a player counts equals what a plain count over its rounds and games says.

GAMES_AT_ONCE = 6


class Lopsided(UniformEvaluator):
    """Prefers low actions, and takes every position for a small win of its mover."""

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, values = super().evaluate(planes)
        return logits - np.arange(logits.shape[1], dtype=np.float32) / 4, values + np.float32(0.25)


def counting(simulations: int = 12, reuse: bool = True) -> SelfPlay:
    ctx = WorkerContext("self_play", 0, 1, 0, 3, Counters(1, self_play.SEARCH_METRICS), RunControl())
    options = SearchOptions(simulations, noise=0.0, temperature=((0, 1.0),), reuse=reuse)
    queue, network = RolloutQueue(game_rows(BOARD), {}, 30, 1, 4), Lopsided(BOARD.actions)
    evaluator: Any = network
    return SelfPlay(ctx, BOARD, GAMES_AT_ONCE, options, evaluator, queue.producer(0))


def mean(made: SelfPlay, name: str) -> float:
    total, n = made.ctx.counters.metrics[self_play.SEARCH_METRICS.index(name)]
    return float(total / n)


def all_games(made: SelfPlay, games: int) -> list[dict[str, np.ndarray]]:
    """All games so far, at least so many."""
    found: list[dict[str, np.ndarray]] = []
    while len(found) < games:
        found += [game for rows in take(made, 1) for game in games_in(rows)]
    return found + [{k: v.copy() for k, v in game.items()} for game in made.finished]


def test_simulations_and_batches():
    """Each search is 12 simulations; without a kept tree it makes all of them, and one evaluation for its root."""
    made = counting(reuse=False)
    for _ in range(400):
        made._step()
    get = made.ctx.counters.get
    plays = made.search.tree.plays
    moves, unfinished = get("steps"), int(plays["done"].sum())
    assert get("simulations") == 12 * moves + unfinished
    roots = moves + GAMES_AT_ONCE - np.count_nonzero(made.search.tree.nodes[:, 0]["status"] == 0)
    assert get("simulations") > get("served") - roots, "those that end the game ask nothing"
    assert mean(made, "batch_occupancy") == pytest.approx(get("served") / (GAMES_AT_ONCE * get("calls")))


def test_games_and_values_by_stage():
    made = counting()
    games = all_games(made, 40)
    first = np.array([game["reward"][1] for game in games])
    assert len(games) == made.number
    assert mean(made, "first_player_wins") == pytest.approx((first > 0).mean())
    assert mean(made, "draws") == pytest.approx((first == 0).mean())
    visits = np.concatenate([game["visits"][:-1] for game in games]).astype(np.float64)
    entropy = [-sum(p * np.log(p) for p in row if p) for row in visits]
    assert mean(made, "visits_entropy") == pytest.approx(np.mean(entropy), rel=1e-5)
    z = np.concatenate([game["reward"][1:] for game in games])
    assert mean(made, "fresh_value_loss") == pytest.approx(np.mean((z - 0.25) ** 2), rel=1e-5)
    decisive = [game["reward"][1:] for game in games if game["reward"][1]]
    for i, name in enumerate(self_play.ACCURACY):
        right = [z > 0 for game in decisive for t, z in enumerate(game) if 3 * t // len(game) == i]
        assert mean(made, name) == pytest.approx(np.mean(right))


def test_games_are_numbered_and_a_replacement_numbers_anew():
    made = counting()
    numbers = [int(n) for rows in take(made, 6) for game in games_in(rows) for n in set(game["game"].tolist())]
    assert numbers == list(range(len(numbers)))
    assert all((rows["game"][rows["version"].size - 1] == -1) for rows in take(made, 1))
    other = counting()
    other.ctx.incarnation = 2
    (rows,) = take(other, 1)
    assert games_in(rows)[0]["game"][0] == 2 << 32
