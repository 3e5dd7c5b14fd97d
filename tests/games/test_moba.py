"""arena:lanes as an environment: matches, seeds, states, rewards of teams, and wrong options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyplay.cli.main import main
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.make import connect
from polyplay.envs.spaces import random_actions
from polyplay.games import moba_world
from polyplay.games.moba import LaneGame
from polyplay.games.moba_views import EVENTS, REWARDS, SHARES
from polyplay.games.moba_world import LaneWorld, middle
from tests.games.moba_scenes import actions, begun, scatter

SHORT = "arena:lanes+team=2+lanes=1+length=80"


def drawn(spec, lane: int, t: int, row) -> dict[str, np.ndarray]:
    """Actions of the lanes of a row that depend on their numbers and the step alone."""
    n = len(row["first"])
    u = np.stack([np.random.default_rng([t, lane + i]).random(4) for i in range(n)])
    return random_actions(spec.action, u, row["mask"])


def played(title: str, lanes: int, steps: int, lane: int = 0, seed: int = 3) -> list:
    """Rows of so many steps."""
    pool, rows = connect(Envs(title, lanes), seed, lane), []
    for t in range(steps):
        ids, row = pool.recv()
        rows.append(tree.map(np.copy, row))
        pool.send(ids, drawn(pool.spec, lane, t, row))
    return rows


def equal(a, b) -> bool:
    return all((x == y).all() for (_, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_a_match_has_two_teams_events_and_an_end():
    spec = Envs(SHORT, 8).spec
    assert (spec.seats, spec.teams, spec.events, spec.team_reward) == (4, (0, 0, 1, 1), (*REWARDS, *SHARES), True)
    assert {k: v.n for k, v in spec.action.items()} == {"primary": 8, "unit": 1 + 2 + 8 + 6, "offset": 81, "delay": 4}
    rows = played(SHORT, 8, 45)
    ends = [t for t, row in enumerate(rows) if row["terminated"].all()]
    assert ends == [20, 41]
    assert all(rows[t + 1]["first"].all() for t in ends)
    assert {k: v.shape for k, v in rows[0]["mask"].items()} == {"primary": (8, 8), "unit": (8, 8, 17)}
    legal = [row["mask"]["primary"].all() and row["mask"]["unit"].all() for row in rows]
    assert [t for t, all_are in enumerate(legal) if all_are] == ends, "nobody plays there"
    assert not any(row["truncated"].any() for row in rows)
    assert max(abs(row["reward"]).max() for row in rows) > 0


def test_five_against_five_are_at_most_48_units():
    given = LaneWorld()
    shapes = {name: field.shape for name, field in given.obs.items()}
    assert 1 + sum(given.sets) == 48
    assert [shapes[k][0] for k in ("allies", "enemies", "creeps", "towers")] == list(given.sets)
    assert LaneWorld(team=1, lanes=1).sets == (1, 1, 8, 6)


@pytest.mark.parametrize("title", [SHORT, "arena:lanes+team=1+lanes=2+length=60+randomise=1+repeat=3"])
def test_lanes_play_alike_however_many_there_are(title):
    seats = Envs(title, 4).spec.seats
    together, apart = played(title, 2 * seats, 40), [played(title, seats, 40, lane=lane) for lane in (0, seats)]
    for whole, *parts in zip(together, *apart, strict=True):
        assert equal(whole, tree.map(lambda *x: np.concatenate(x), *parts))


def test_a_state_goes_on_to_the_bit():
    envs = Envs(SHORT + "+randomise=0.5", 8)
    pool, after = connect(envs, 7, 0), []
    for t in range(30):
        ids, row = pool.recv()
        pool.send(ids, drawn(pool.spec, 0, t, row))
    state = pool.state()
    for rest in (pool, connect(envs, 8, 0)):
        rest.load(state)
        rows = []
        for t in range(30, 70):
            ids, row = rest.recv()
            rows.append(tree.map(np.copy, row))
            rest.send(ids, drawn(pool.spec, 0, t, row))
        after.append(rows)
    assert all(equal(a, b) for a, b in zip(*after, strict=True))


@pytest.mark.parametrize("spirit", [0.0, 0.3, 1.0])
def test_rewards_of_both_teams_sum_to_nothing_at_any_team_spirit(spirit):
    given = LaneWorld(team=3, lanes=1, spirit=spirit)
    s, rng, game, most = begun(given, 8), np.random.default_rng(1), LaneGame(given), 0.0
    scatter(given, s, rng)
    for _ in range(15):
        chosen = actions(given, s, rng)
        s, row = game.step(s, {k: chosen[:, :, i] for i, k in enumerate(moba_world.PARTS)}, rng.random)
        np.testing.assert_allclose(row["reward"].sum(1), 0.0, atol=1e-9)
        own, team = np.moveaxis(row["events"][..., len(EVENTS) :], -1, 0)
        np.testing.assert_allclose(row["reward"], (1 - spirit) * own + spirit * team, atol=1e-9)
        np.testing.assert_allclose(team, np.repeat(own.reshape(8, 2, 3).mean(2), 3, 1), atol=1e-9)
        teams, most = row["reward"].reshape(8, 2, 3), max(most, abs(row["reward"]).max())
        assert spirit < 1 or np.ptp(teams, 2).max() < 1e-9
    assert most > 0.3


@pytest.mark.parametrize("reward", moba_world.KINDS)
@pytest.mark.parametrize("side", [0, 1])
def test_who_takes_the_core_has_won(reward, side):
    given = LaneWorld(team=2, lanes=1, reward=reward)
    s, game = begun(given, 2), LaneGame(given)
    half = s["units"].shape[1] // 2
    theirs = (1 - side) * half
    s["units"][0, [theirs + half - 2, theirs + half - 1], moba_world.HEALTH] = 0, 1  # an inner tower has fallen
    s["units"][0, side * half, : moba_world.HEALTH] = s["units"][0, theirs + half - 1, : moba_world.HEALTH]
    s = game.step(s, {k: np.zeros((2, 4), np.int64) for k in moba_world.PARTS}, lambda: np.zeros(2))[0]
    chosen = {k: np.zeros((2, 4), np.int64) for k in moba_world.PARTS}
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
    s["units"][0, half - 2, moba_world.HEALTH] -= 1
    s["units"][1, -2, moba_world.HEALTH] -= 1
    _, row = game.step(s, {k: np.zeros((3, 2), np.int64) for k in moba_world.PARTS}, lambda: np.zeros(3))
    assert row["team_reward"].tolist() == [[-1, 1], [1, -1], [0, 0]]
    assert row["reward"].tolist() == [[-5, 5], [5, -5], [0, 0]]
    assert row["events"][:, :, EVENTS.index("win")].tolist() == [[0, 1], [1, 0], [0, 0]]
    assert row["terminated"].all()


def test_clocks_of_randomised_matches_begin_at_any_step_of_their_first_half():
    given = LaneWorld(team=1, lanes=1, length=400, repeat=4, randomise=1.0)
    ages = begun(given, 2000, 3)["age"]
    assert not (ages % 4).any()
    assert len(set(ages.tolist())) == 50
    assert (ages.min(), ages.max()) == (0, 196)
    assert not begun(replace(given, randomise=0.0), 5, 3)["age"].any()


def test_heroes_of_randomised_matches_begin_anywhere_on_their_way():
    given = LaneWorld(team=2, lanes=3, randomise=1.0)
    units = begun(given, 3000, 3)["units"]
    half = units.shape[1] // 2
    own, theirs = units[:, :2, moba_world.X], moba_world.WIDTH - units[:, half : half + 2, moba_world.X]
    end = moba_world.WIDTH - moba_world.CORE_X
    for x in (own, theirs):
        assert moba_world.SPAWN_X <= x.min() < moba_world.SPAWN_X + 100
        assert end - 100 < x.max() <= end
    y, lanes = units[:, :2, moba_world.Y], [moba_world.FIRST_LANE + moba_world.LANE_APART * k for k in range(3)]
    assert {*np.unique(y[(own > moba_world.TURN_X) & (own <= moba_world.WIDTH - moba_world.TURN_X)])} == {*lanes}
    assert {*np.unique(y[own > moba_world.WIDTH - moba_world.TURN_X])} == {middle(3)}
    dead = units[:, [0, 1, half, half + 1], moba_world.HEALTH] == 0
    assert abs(dead.mean() - moba_world.DEAD) < 4 * (moba_world.DEAD * (1 - moba_world.DEAD) / dead.size) ** 0.5
    assert len(np.unique(y[own <= moba_world.TURN_X])) == len(
        np.unique(begun(replace(given, randomise=0.0), 1)["units"][:, :2, 1])
    )


@pytest.mark.parametrize("lanes", [1, 3])
def test_buildings_of_randomised_matches_are_worn_from_the_outer_one_on(lanes):
    units = begun(LaneWorld(team=1, lanes=lanes, randomise=1.0), 3000, 3)["units"]
    first = 1 + moba_world.SLOTS * lanes
    own, theirs = (half[:, first:] for half in np.split(units, 2, 1))
    assert (own[..., moba_world.HEALTH] != theirs[..., moba_world.HEALTH]).any(1).mean() > 0.9, "one side is behind"
    own = np.concatenate([own, theirs])
    assert (own[..., moba_world.HEALTH] <= own[..., moba_world.MOST]).all()
    outer, inner = own[:, : 2 * lanes : 2, moba_world.HEALTH], own[:, 1 : 2 * lanes : 2, moba_world.HEALTH]
    core = own[:, -1, moba_world.HEALTH]
    assert (inner[outer > 0] == moba_world.TOWER_HEALTH).all()
    assert (core[(inner > 0).all(1)] == moba_world.CORE_HEALTH).all()
    assert 400 <= core.min() < 430
    for gone, chance in ((outer == 0, 1.5 / 2.4), (inner == 0, 0.5 / 2.4)):
        assert abs(gone.mean() - chance) < 0.03
    standing = own[:, :, moba_world.HEALTH].sum(1).reshape(2, -1)
    assert (abs(standing[0] - standing[1]) <= lanes * moba_world.UNEVEN * moba_world.CORE_HEALTH + 2).all()


def test_randomised_matches_begin_with_a_wave_of_each_side_face_to_face():
    given = LaneWorld(team=2, lanes=3, randomise=1.0)
    s, plain = begun(given, 500, 3), begun(replace(given, randomise=0.0), 5)
    half = s["units"].shape[1] // 2
    creeps = slice(2, 2 + moba_world.SLOTS * 3)
    own, theirs = (s["units"][:, at : at + half][:, creeps].reshape(500, 3, moba_world.SLOTS, 6) for at in (0, half))
    assert not plain["units"][:, creeps, moba_world.HEALTH].any()
    for side, wave in enumerate((own, theirs)):
        assert (wave[:, :, : moba_world.WAVE, moba_world.HEALTH] == s["wave"][:, side, :, None]).all()
        assert not wave[:, :, moba_world.WAVE :, moba_world.HEALTH].any()
        assert (wave[:, 1, : moba_world.WAVE, moba_world.Y] == middle(3)).all()
    gap = theirs[:, :, 0, moba_world.X] - own[:, :, 0, moba_world.X]
    assert (gap == moba_world.CREEP_RANGE).all(), "so near that they fight at once"
    front = own[:, :, 0, moba_world.X] + gap // 2
    assert moba_world.OUTER_X <= front.min() < moba_world.OUTER_X + 100
    assert moba_world.WIDTH - moba_world.OUTER_X - 100 < front.max() <= moba_world.WIDTH - moba_world.OUTER_X


def test_one_side_of_a_randomised_match_may_have_learnt_and_earned_more():
    given = LaneWorld(team=2, lanes=1, randomise=1.0)
    s = begun(given, 4000, 3)
    half = s["units"].shape[1] // 2
    units, heroes = s["units"][:, [0, 1, half, half + 1]], s["heroes"]
    experience, level = heroes[:, :, moba_world.EXPERIENCE], heroes[:, :, moba_world.LEVEL]
    assert {*np.unique(level)} == {1, 2, 3, 4, 5}
    assert (moba_world.TO_LEVEL * level * (level - 1) <= experience).all()
    assert (experience < moba_world.TO_LEVEL * level * (level + 1)).all()
    alive = units[:, :, moba_world.HEALTH] > 0
    assert (units[:, :, moba_world.HEALTH] == units[:, :, moba_world.MOST])[alive].all()
    grown = units[:, :, moba_world.MOST] - moba_world.HEALTH_A_LEVEL * (level - 1)
    assert 225 <= grown.min() < 235
    assert 365 < grown.max() <= 375
    assert (heroes[:, :, moba_world.MANA] == moba_world.MANA_AT_FIRST + moba_world.MANA_A_LEVEL * level).all()
    mean = experience.reshape(4000, 2, 2).mean(2)
    assert abs(np.corrcoef(mean.T)[0, 1]) < 0.06, "sides are drawn apart"
    assert np.corrcoef(experience[:, 0], experience[:, 1])[0, 1] > 0.2, "heroes of a side are alike"


def test_randomised_matches_are_not_alike():
    one, two = (begun(LaneWorld(team=2, lanes=2, randomise=chance), 50, 3) for chance in (0.0, 1.0))
    for of, low, high in ((lambda s: s["heroes"][:, :, moba_world.GOLD], 0, 800), (lambda s: s["wave"], 60, 100)):
        assert np.ptp(of(one)) == 0
        assert low <= of(two).min() < low + (high - low) / 5
        assert high - (high - low) / 3 < of(two).max() <= high


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("arena:lane", "--env: arena:lane given, allowed: arena:ctf, arena:lanes"),
        ("arena:lanes+team=6", "team=6, lanes=3 given, allowed: 1 to 5 heroes of a side, 1 to 3 lanes"),
        ("arena:lanes+lanes=0", "team=5, lanes=0 given"),
        ("arena:lanes+length=10", "length=10, repeat=4 given, allowed: a repeat from 1, and a length"),
        ("arena:lanes+spirit=1.5", "spirit=1.5 given, allowed: 0 to 1"),
        ("arena:lanes+randomise=2", "randomise=2 given, allowed: 0 to 1"),
        ("arena:lanes+reward=score", "reward=score given, allowed: shaped, win"),
        ("arena:lanes+maps=train", "unknown option 'maps'"),
    ],
)
def test_wrong_options_are_one_line(title, said):
    with pytest.raises(UserError, match=said.replace("+", r"\+")) as raised:
        _ = Envs(title, 10).spec
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_it_passes_the_check(capfd):
    assert main(["check", SHORT]) == 0, capfd.readouterr()
