"""Board games as environments: rows, sides, opponents, masks, options, and an exact state."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import polyplay
from polyplay.core import tree
from polyplay.core.errors import Closed, UserError
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs
from polyplay.envs.spaces import action_sampler
from polyplay.games import board_rules, records
from polyplay.games.boards import GAMES
from tests.games.test_board_rules import legal_of
from tests.systems.trained import resumed_and_whole, same_weights, updates


def play(pool, turns, seed=0):
    """Copies of what `turns` recvs gave, answered with legal moves at random, and these."""
    seen, draw = [], action_sampler(pool.spec.action, seed)
    for _ in range(turns):
        lanes, row = pool.recv()
        actions = draw(len(row["over"]), row["mask"])
        seen.append((np.arange(pool.lanes)[lanes], tree.map(np.copy, {**row, "action": actions})))
        pool.send(lanes, actions)
    return seen


def column(seen, field):
    return np.stack([row[field] for _, row in seen])


def test_what_it_shows_and_takes():
    spec = Envs("game:connect_four", 1).spec
    assert (spec.obs, spec.action, spec.mask) == (Field((3, 6, 7), "float32"), Discrete(7), Field((7,), "bool"))
    assert spec.describe["opponent"] == "random"
    assert Envs("game:tic_tac_toe", 1).spec.action == Discrete(9)


def answer_of(game, record, stones):
    """The move that makes the opponent's stones these."""
    ((cell, *more),) = np.nonzero(stones.ravel() != (game.stones(record) == records.mover(record) + 1))
    assert not more
    return cell % game.columns if game.gravity else cell


def follow(game, rows, second):
    """What each row of a lane must be, by the rules, from the player's moves and the opponent's stones: (observation,
    legal moves, reward, over).
    """
    record, action = game.new(), 0
    for row in rows:
        end, reward = records.GOES_ON, 0
        if row["first"]:
            record = game.new()
        else:
            end = board_rules.play(game.numbers, record, action)
            reward = int(end == records.WON)
        if end == records.GOES_ON and (second or not row["first"]):
            end = board_rules.play(game.numbers, record, answer_of(game, record, row["obs"][1]))
            reward = -int(end == records.WON)
        over, cells = end != records.GOES_ON, game.stones(record).reshape(game.rows, -1)
        planes = [cells == 1 + second, cells == 2 - second, np.full_like(cells, not second)]
        yield np.stack(planes), list(range(game.actions)) if over else legal_of(game, record), reward, over
        action, second = int(row["action"]), second != over


@pytest.mark.parametrize(("name", "opponent"), [*((name, "random") for name in GAMES), ("tic_tac_toe", "mcts:5")])
def test_games_go_by_the_rules_from_alternating_sides(name, opponent):
    pool = Envs(f"game:{name}", 3, options={"opponent": opponent}).open(1, lane=4)
    seen = play(pool, 120)
    for lane in range(3):
        rows = [tree.at(row, lane) for _, row in seen]
        for row, (obs, mask, reward, over) in zip(rows, follow(GAMES[name], rows, lane == 1), strict=True):
            assert (row["obs"] == obs).all()
            assert (np.flatnonzero(row["mask"]).tolist(), row["reward"], row["over"]) == (mask, reward, over)


def test_a_perfect_opponent_of_connect_four_wins_soon():
    """Its stones meet those of a random player."""
    pytest.importorskip("bitbully")
    rows = play(Envs("game:connect_four+opponent=perfect", 1).open(1), 24)
    over, reward = column(rows, "over"), column(rows, "reward")
    assert (reward[over] == -1).all()
    assert over.sum() > 1


def test_an_illegal_move_is_one_line_and_ends_the_pool():
    pool = Envs("game:tic_tac_toe", 2).open(1)
    lanes, row = pool.recv()
    taken = int(np.flatnonzero(~row["mask"][1])[0])
    with pytest.raises(ValueError, match=f"game:tic_tac_toe: lane 1 was sent the illegal move {taken}"):
        pool.send(lanes, np.array([0, taken]))
    with pytest.raises(Closed):
        pool.recv()


NET = {"tensorboard": False, "report_every": 0.5}


def test_a_run_goes_on_to_the_bit(tmp_path):
    env = "game:tic_tac_toe+opponent=mcts:5"
    resumed, whole = resumed_and_whole("ppo", tmp_path, 1_024, env=env, epochs=2, anneal="constant", **NET)
    assert updates(resumed) == updates(whole)
    assert same_weights(resumed, whole)


@pytest.mark.long
@pytest.mark.parametrize(("system", "steps"), [("ppo", 40_000), ("dqn", 30_000)])
def test_it_is_learnt_against_random_moves(system, steps, tmp_path):
    run = polyplay.train(system, env="game:tic_tac_toe", steps=steps, run=str(tmp_path / "run"), serial=True, **NET)
    assert polyplay.evaluate(run.directory, episodes=200)["episodic_return_mean"] > 0.6


SOLVER = (
    "opponent=perfect given, but it needs the package bitbully; `pip install 'polyplay[solver]'`; other opponents: "
)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("conect_four", {}, "did you mean connect_four?"),
        ("connect_four", {"oponent": "random"}, "unknown option 'oponent', did you mean 'opponent'"),
        ("connect_four", {"opponent": 5}, "opponent=5 must be of type str"),
        ("connect_four", {"opponent": "mcts"}, "opponent=mcts given, allowed: random, mcts:N with N simulations"),
        ("connect_four", {"opponent": "mcts:0"}, "from 1 to 100,000"),
        ("connect_four+opponent=randon", {}, "did you mean 'random'"),
        ("connect_four+opponent", {}, "opponent= given, allowed"),
        ("connect_four+opponent=perfect", {}, SOLVER + "random, mcts:N"),
        *(
            (f"{name}+opponent=perfect", {}, f"there is no solver for game:{name}; other opponents: random, mcts:N")
            for name in ("tic_tac_toe", "othello", "connect:6x6x4")
        ),
    ],
)
def test_mistakes(name, options, says, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *more: None if n == "bitbully" else find(n, *more))
    with pytest.raises(UserError) as raised:
        Envs(f"game:{name}", 1, options=options).spec  # noqa: B018
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
