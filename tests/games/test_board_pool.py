"""Board games as environments: rows, sides, opponents, masks, options, and an exact state."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest

import polyplay
from polyplay.core import tree
from polyplay.core.errors import Closed, UserError
from polyplay.core.machine import install_command
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs
from polyplay.envs.spaces import action_sampler
from polyplay.games import board_pool, board_rules, records
from polyplay.games.boards import GAMES, Game
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


WITH_SOLVER = install_command("solver")
SOLVER = f"opponent=perfect given, but it needs the package bitbully; `{WITH_SOLVER}`; other opponents: "


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


# The compiled tree search against a plain twin, and how well it plays.


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
            pick = untried[board_pool.integer_below(self.random, len(untried))] if untried else self.best(moves, legal)
            moves = (*moves, pick)
            result = board_rules.play(self.game.numbers, record, pick)
            if untried:
                break
        winner, last = None if result == records.DRAWN else 1 - record[0], 1 - record[0]
        while result == records.GOES_ON:
            legal = legal_of(self.game, record)
            winner = record[0]
            result = board_rules.play(
                self.game.numbers, record, legal[board_pool.integer_below(self.random, len(legal))]
            )
            winner = None if result == records.DRAWN else winner
        for n in range(len(moves), -1, -1):
            value = 0.5 if winner is None else float(winner == (last + len(moves) - n) % 2)
            self.visits[moves[:n]] = self.visits.get(moves[:n], 0) + 1
            self.values[moves[:n]] = self.values.get(moves[:n], 0.0) + value

    def best(self, moves: tuple[int, ...], legal: list[int]) -> int:
        def bound(action: int) -> float:
            n = self.visits[*moves, action]
            explore = math.sqrt(math.log(self.visits[moves]) / n)
            return self.values[*moves, action] / n + board_pool.EXPLORATION * explore

        return max(legal, key=bound)


def reached(game: Game, *moves: int) -> np.ndarray:
    record = game.new()
    for move in moves:
        board_rules.play(game.numbers, record, move)
    return record


def search(game: Game, record: np.ndarray, simulations: int, seed: int = 0) -> np.ndarray:
    return board_pool.mcts(game.numbers, record, simulations, game.actions, np.array([seed], np.uint64))


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
    drawn = np.bincount([board_pool.integer_below(random, 7) for _ in range(7000)], minlength=7)
    assert drawn.size == 7
    assert abs(drawn - 1000).max() < 120
    chosen = np.bincount([board_pool.most_visited(np.array([4, 1, 4, 4]), random) for _ in range(3000)], minlength=4)
    assert chosen[1] == 0
    assert abs(chosen[[0, 2, 3]] - 1000).max() < 120
