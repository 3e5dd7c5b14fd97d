"""The lane game: rewards of teams, who has won; bots that are legal, by the state alone, and in order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.envs.lane import Seats
from polyplay.envs.spaces import random_actions
from polyplay.games import moba
from polyplay.games import moba_world as w
from polyplay.games.moba import LaneBot, LaneGame
from polyplay.games.moba_views import EVENTS
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import actions, begun, nameable, scatter


@pytest.mark.parametrize("spirit", [0.0, 0.3, 1.0])
def test_rewards_of_both_teams_sum_to_nothing_at_any_team_spirit(spirit):
    given = LaneWorld(team=3, lanes=1, spirit=spirit)
    s, rng, game, most = begun(given, 8), np.random.default_rng(1), LaneGame(given), 0.0
    scatter(given, s, rng)
    for _ in range(15):
        chosen = actions(given, s, rng)
        s, row = game.step(s, {k: chosen[:, :, i] for i, k in enumerate(w.PARTS)}, rng.random)
        np.testing.assert_allclose(row["reward"].sum(1), 0.0, atol=1e-9)
        own, team = np.moveaxis(row["events"][..., len(EVENTS) :], -1, 0)
        np.testing.assert_allclose(row["reward"], (1 - spirit) * own + spirit * team, atol=1e-9)
        np.testing.assert_allclose(team, np.repeat(own.reshape(8, 2, 3).mean(2), 3, 1), atol=1e-9)
        teams, most = row["reward"].reshape(8, 2, 3), max(most, abs(row["reward"]).max())
        assert spirit < 1 or np.ptp(teams, 2).max() < 1e-9
    assert most > 0.3


@pytest.mark.parametrize(("reward", "side"), [*zip(w.KINDS, (0, 1), strict=True)])
def test_who_takes_the_core_has_won(reward, side):
    given = LaneWorld(team=2, lanes=1, reward=reward)
    s, game = begun(given, 2), LaneGame(given)
    half = s["units"].shape[1] // 2
    theirs = (1 - side) * half
    s["units"][0, [theirs + half - 2, theirs + half - 1], w.HEALTH] = 0, 1  # an inner tower has fallen
    s["units"][0, side * half, : w.HEALTH] = s["units"][0, theirs + half - 1, : w.HEALTH]
    s = game.step(s, {k: np.zeros((2, 4), np.int64) for k in w.PARTS}, lambda: np.zeros(2))[0]
    chosen = {k: np.zeros((2, 4), np.int64) for k in w.PARTS}
    chosen["primary"][0, side * 2], chosen["unit"][0, side * 2] = 2, sum(given.sets) - 1
    s, row = game.step(s, chosen, lambda: np.zeros(2))
    sign = 1 - 2 * side
    assert row["terminated"].tolist() == [[True] * 4, [False] * 4]
    assert row["team_reward"].tolist() == [[sign, sign, -sign, -sign], [0] * 4]
    assert row["events"][0, :, EVENTS.index("win")].tolist() == [1 - side, 1 - side, side, side]
    assert (row["reward"][0] * row["team_reward"][0] > 0.9).all()


def test_who_has_more_towers_has_won_when_time_is_over():
    given = LaneWorld(team=1, lanes=1, length=4)
    s, game = begun(given, 3), LaneGame(given)
    half = s["units"].shape[1] // 2
    s["units"][0, half - 2, w.HEALTH] -= 1
    s["units"][1, -2, w.HEALTH] -= 1
    _, row = game.step(s, {k: np.zeros((3, 2), np.int64) for k in w.PARTS}, lambda: np.zeros(3))
    assert row["team_reward"].tolist() == [[-1, 1], [1, -1], [0, 0]]
    assert row["reward"].tolist() == [[-5, 5], [5, -5], [0, 0]]
    assert row["events"][:, :, EVENTS.index("win")].tolist() == [[0, 1], [1, 0], [0, 0]]
    assert row["terminated"].all()


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
        action = {k: np.zeros((n, given.seats), np.int64) for k in w.PARTS}
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


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_what_a_bot_does_is_legal_and_follows_from_the_state_of_its_match_alone(level):
    given, rng, bot = LaneWorld(team=3, lanes=1), np.random.default_rng(level), LaneBot(level)
    used: set[int] = set()
    for seed in range(4):
        s = begun(given, 30, seed)
        if seed:
            scatter(given, s, rng)
        before, at, legal, named = (
            tree.map(np.copy, s),
            seats_of(given, s),
            LaneGame(given).legal(s),
            nameable(given, s),
        )
        whole, some = bot(None, None, at), rng.permutation(180)[:100]
        part = bot(None, None, at._replace(match=at.match[some], seat=at.seat[some]))
        assert all((part[k] == whole[k][some]).all() for k in w.PARTS)
        found = bot(
            None, None, Seats(at.game, tree.map(lambda x: x[3:4].copy(), s), np.zeros(6, np.int64), np.arange(6))
        )
        assert all((found[k] == whole[k][at.match == 3]).all() for k in w.PARTS)
        assert all((before[k] == v).all() for k, v in s.items()), "only read"
        for m, p, primary, unit in zip(at.match, at.seat, whole["primary"], whole["unit"], strict=True):
            assert legal["primary"][m, p, primary]
            assert primary not in w.USES["unit"] or named[m, p, primary, unit]
            used.add(int(primary))
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
