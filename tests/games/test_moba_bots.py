"""Bots of the lane game: what they do follows from the state alone, is legal, and levels are in order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.envs import Envs
from polyplay.envs.lane import Seats, load_bot, seat_bot
from polyplay.envs.make import connect
from polyplay.envs.spaces import random_actions
from polyplay.games import moba, moba_world
from polyplay.games.moba import BOTS, LaneBot, LaneGame
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import begun, nameable, scatter

DUEL = LaneWorld(team=2, lanes=1)


def seats_of(given: LaneWorld, s: Any, sides: tuple[int, ...] = (0, 1)) -> Seats:
    own = np.concatenate([np.arange(given.team) + side * given.team for side in sides])
    n = len(s["age"])
    return Seats(LaneGame(given), s, np.repeat(np.arange(n), len(own)), np.tile(own, n))


class AtRandom:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, obs: None, mask: None, at: Seats) -> Any:
        legal = tree.at(at.game.legal(at.states), (at.match, at.seat))
        return random_actions(at.game.action, self.rng.random((len(at.seat), 4)), legal)


def play(given: LaneWorld, one: Any, two: Any, n: int, seed: int) -> np.ndarray:
    """Who has won, [n]: 1 the first, -1 the second."""
    game, s, won = LaneGame(given), begun(given, n, seed), np.zeros(n)
    running = np.ones(n, bool)
    while running.any():
        action = {k: np.zeros((n, given.seats), np.int64) for k in moba_world.PARTS}
        for side, who in enumerate((one, two)):
            at = seats_of(given, s, (side,))
            for k, chosen in who(None, None, at).items():
                action[k][at.match, at.seat] = chosen
        s, row = game.step(s, action, lambda: np.zeros(n))
        ended = running & row["terminated"][:, 0]
        won[ended], running = row["team_reward"][ended, 0], running & ~ended
    return won


def shares(given: LaneWorld, better: Any, worse: Any, n: int, seed: int) -> tuple[int, int]:
    """Wins of each over n matches from either side."""
    won = np.concatenate([play(given, better, worse, n, seed), -play(given, worse, better, n, seed + 1)])
    return int((won > 0).sum()), int((won < 0).sum())


@pytest.mark.long  # it compiles all of them
def test_a_bot_has_every_public_name_and_plays_on_pools():
    envs = Envs("arena:lanes+team=2+lanes=1+length=60", 8)
    assert tuple(envs.spec.bots) == BOTS == ("level1", "level2", "level3", "level4")
    for name in BOTS:
        bot = load_bot(envs.spec, name)
        assert bot is getattr(moba, name)
        seat_bot(bot, connect(envs, 0, 0), slice(3, 7))


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_what_a_bot_does_does_not_depend_on_who_else_is_asked(level):
    given, rng, bot = LaneWorld(team=3, lanes=2), np.random.default_rng(level), LaneBot(level)
    s = begun(given, 5, level)
    scatter(given, s, rng)
    before, at = tree.map(np.copy, s), seats_of(given, s)
    whole = bot(None, None, at)
    some = rng.permutation(30)[:17]
    part = bot(None, None, at._replace(match=at.match[some], seat=at.seat[some]))
    assert all((part[k] == whole[k][some]).all() for k in moba_world.PARTS)
    alone = tree.map(lambda x: x[3:4].copy(), s)
    found = bot(None, None, Seats(at.game, alone, np.zeros(6, np.int64), np.arange(6)))
    assert all((found[k] == whole[k][at.match == 3]).all() for k in moba_world.PARTS)
    assert all((before[k] == v).all() for k, v in s.items()), "only read"


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_what_a_bot_does_is_legal(level):
    given, used = LaneWorld(team=3, lanes=1), set()
    for seed in range(4):
        s = begun(given, 30, seed)
        if seed:
            scatter(given, s, np.random.default_rng(seed))
        at, legal, named = seats_of(given, s), LaneGame(given).legal(s), nameable(given, s)
        chosen = LaneBot(level)(None, None, at)
        for i, (m, p) in enumerate(zip(at.match, at.seat, strict=True)):
            primary = int(chosen["primary"][i])
            assert legal["primary"][m, p, primary]
            assert primary not in moba_world.USES["unit"] or named[m, p, primary, chosen["unit"][i]]
            used.add(primary)
    assert used >= ({1, 2}, {1, 2, 7}, {1, 2, 3, 5, 7}, {1, 2, 3, 4, 5, 7})[level - 1]


@pytest.mark.long
def test_who_plays_better_wins():
    given = LaneWorld(team=2, lanes=1, length=1600)
    assert shares(given, moba.level1, AtRandom(), 4, 1)[0] >= 7
    assert shares(given, moba.level4, moba.level1, 4, 3)[0] >= 7


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("given", [DUEL, LaneWorld()], ids=["2v2", "5v5"])
def test_levels_are_in_order(given):
    for level, _ in itertools.pairwise((1, 2, 3, 4)):
        wins, losses = shares(given, LaneBot(level + 1), LaneBot(level), 60, level)
        assert wins / (wins + losses) > 0.65, level
