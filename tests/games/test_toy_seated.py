from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.envs import Discrete, Envs
from polyplay.games.toys import RockPaperScissors, Skirmish
from tests.games.skirmishes import outcome

BEST, BOT = Skirmish.focus, Skirmish.opposite


def test_what_they_say_of_themselves():
    spec = Envs("toy:rps", 2).spec
    assert (spec.seats, spec.teams, spec.kinds) == (2, (0, 1), (0, 0))
    assert (spec.events, spec.team_reward, spec.action) == ((), False, Discrete(3))
    spec = Envs("toy:skirmish", 4).spec
    assert (spec.seats, spec.teams, spec.kinds) == (4, (0, 0, 1, 1), (0, 0, 0, 0))
    assert (spec.events, spec.team_reward, spec.action) == (("hit", "kill", "death"), True, Discrete(2))
    assert Envs("toy:catch", 1).spec.seats == 1


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("toy:rps", {"rounds": 0}, "rounds ≥ 1, got rounds=0"),
        ("toy:skirmish", {"health": 0}, "health ≥ 1"),
        ("toy:skirmish", {"accuracy": 0.0}, "0 < accuracy ≤ 1"),
        ("toy:skirmish", {"late": 8}, "0 ≤ late < health, got health=8"),
        ("toy:skirmisch", {}, "did you mean 'toy:skirmish'"),
    ],
)
def test_mistakes(name, options, says):
    with pytest.raises(UserError, match=says):
        Envs(name, 4, options=options).spec  # noqa: B018


def test_rock_paper_scissors():
    game = RockPaperScissors()
    both = np.array(list(itertools.product(range(3), repeat=2)))
    s, row = game.step(game.reset(lambda: None, 9), both, lambda: None)
    rock, paper, scissors = row["reward"][:, 0].reshape(3, 3)
    assert rock.tolist() == [0, -1, 1]
    assert paper.tolist() == [1, 0, -1]
    assert scissors.tolist() == [-1, 1, 0]
    assert (row["reward"].sum(1) == 0).all()
    assert row["terminated"].all()
    assert not s["here"].any()


def test_rounds_of_rock_paper_scissors():
    pool, flags = Envs("toy:rps+rounds=3", 2).open(0), []
    for _ in range(5):
        lanes, row = pool.recv()
        flags.append(bool(row["over"].all()))
        pool.send(lanes, np.array([1, 0]))
    assert flags == [False, False, False, True, False]


# --------------------------------------------------------------------------------------------- skirmish

units = st.lists(st.integers(0, 8), min_size=4, max_size=4)
choices = st.lists(st.integers(0, 1), min_size=4, max_size=4)
shots = st.lists(st.floats(0, 0.999), min_size=4, max_size=4)
SIDES = np.array([2, 3, 0, 1])
PLACES = np.array([1, 0, 2, 3])


def stepped(health, action, luck):
    """The state and row after one step of one match; luck: the uniform of each seat's shot."""
    health, draws = np.array([health]), iter(luck)
    s = {"here": health > 0, "health": health, "age": np.array([5])}
    return Skirmish().step(s, np.array([action]), lambda: np.array([next(draws)]))


@given(units, choices, shots)
def test_points_are_kills_less_losses(health, action, luck):
    after, row = stepped(health, action, luck)
    died = (np.array(health) > 0) & (after["health"][0] == 0)
    losses = died.reshape(2, 2).sum(1)
    points = row["reward"][0].reshape(2, 2).sum(1)
    assert points.tolist() == [(losses[1] - losses[0]) / 2, (losses[0] - losses[1]) / 2]
    assert (row["team_reward"][0].reshape(2, 2) == points[:, None] / 2).all()
    assert (row["events"][0, :, 2] == died).all()
    assert (after["health"] <= health).all()
    assert not (after["here"] & (after["health"] == 0)).any()


@given(units, choices, shots)
def test_sides_are_alike(health, action, luck):
    one, row = stepped(health, action, luck)
    other, mirrored = stepped(*(np.array(x)[SIDES] for x in (health, action, luck)))
    assert (one["health"][:, SIDES] == other["health"]).all()
    assert (one["here"][:, SIDES] == other["here"]).all()
    for key in row:
        assert (row[key][:, SIDES] == mirrored[key]).all()
    assert (Skirmish().see(one)[:, SIDES] == Skirmish().see(other)).all()


@given(units, choices, shots)
def test_places_in_a_team_are_alike(health, action, luck):
    one, row = stepped(health, action, luck)
    aims = np.array(action) ^ np.array([0, 0, 1, 1])  # the enemies' names change too
    other, moved = stepped(np.array(health)[PLACES], aims[PLACES], np.array(luck)[PLACES])
    assert (one["health"][:, PLACES] == other["health"]).all()
    for key in row:
        assert (row[key][:, PLACES] == moved[key]).all()


def test_who_is_hit_by_both_loses_four():
    after, row = stepped([8, 8, 8, 3], [1, 1, 0, 1], [0, 0, 0, 0.99])
    assert after["health"].tolist() == [[7, 8, 8, 0]]
    assert row["reward"].tolist() == [[0.25, 0.25, 0, -0.5]]
    assert row["events"].tolist() == [[[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1]]]
    assert row["terminated"].tolist() == [[False, False, False, True]]


def test_observations_are_each_seats_own():
    see = Skirmish().see({"here": np.ones((1, 4), bool), "health": np.array([[8, 6, 4, 2]]), "age": np.zeros(1, int)})
    assert (see[0] * 8).tolist() == [[0, 8, 6, 4, 2], [8, 6, 8, 4, 2], [0, 4, 2, 8, 6], [8, 2, 4, 8, 6]]


def test_late_units_cannot_be_seen_nor_hit():
    pool = Envs("toy:skirmish", 4, options={"health": 4, "accuracy": 1.0, "late": 2}).open(0)
    seen = []
    for _ in range(4):
        lanes, row = pool.recv()
        seen.append((row["obs"][0].tolist(), row["first"].tolist()))
        pool.send(lanes, np.ones(4, int))
    assert seen[:2] == [([0, 1, 0, 1, 0], [True] * 4), ([0, 1, 0, 1, 0], [False, True] * 2)]
    assert seen[2] == ([0, 1, 1, 1, 1], [False, True, False, True]), "they arrive"
    assert seen[3] == ([0, 1, 0, 1, 0], [False] * 4), "each was hit by both"


def test_the_best_answer_beats_the_bot():
    won, lost = outcome(BEST, BOT, 1)
    assert 0.975 < won < 0.995
    assert won + lost < 1


def test_equals_are_equal():
    for team in (BEST, BOT):
        won, lost = outcome(team, team, 2)
        assert abs(won - lost) < 0.05
    guess = np.random.default_rng(0)
    won, _ = outcome(BEST, lambda obs: guess.integers(0, 2, len(obs)), 3)
    assert won > 0.85
    won, _ = outcome(lambda obs: guess.integers(0, 2, len(obs)), BOT, 3)
    assert 0.6 < won < 0.75


def test_late_reinforcements_change_no_winner():
    assert outcome(BEST, BOT, 4, late=4)[0] > 0.95


def blows(shooters, p):
    """Probabilities and damages of so many shots at one unit."""
    return [[(1, 0)], [(1 - p, 0), (p, 1)], [((1 - p) ** 2, 0), (2 * p * (1 - p), 1), (p * p, 4)]][shooters]


def counts(state, side, action):
    """How many shoot at the first and at the second unit opposite."""
    return tuple(sum(action[i] == whom and state[2 * side + i] > 0 for i in (0, 1)) for whom in (0, 1))


def odds(state, ours, theirs, p, known):
    """The probability of winning from a state, where those of all states with less health are known."""
    total, stay = 0.0, 0.0
    shots = [blows(k * (unit > 0), p) for k, unit in zip((*theirs, *ours), state, strict=True)]
    for blow in itertools.product(*shots):
        q = blow[0][0] * blow[1][0] * blow[2][0] * blow[3][0]
        after = tuple(max(unit - damage, 0) for unit, (_, damage) in zip(state, blow, strict=True))
        if after == state:
            stay += q
        else:
            total += q * known[after]
    return total / (1 - stay)


@pytest.mark.long
def test_no_answer_to_the_bot_is_better():
    """All states by dynamic programming: the best of all answers, and `best`."""
    game, known, upper = Skirmish(), {}, {}
    states = sorted(itertools.product(range(game.health + 1), repeat=4), key=sum)
    health = np.array(states)
    obs = game.see({"here": health > 0, "health": health, "age": np.zeros(len(states), int)})
    best, bot = BEST(obs)[:, :2].tolist(), BOT(obs)[:, 2:].tolist()
    for state, answer, other in zip(states, best, bot, strict=True):
        if not any(state[:2]) or not any(state[2:]):
            known[state] = upper[state] = float(any(state[:2]))
            continue
        theirs = counts(state, 1, other)
        known[state] = odds(state, counts(state, 0, answer), theirs, game.accuracy, known)
        answers = {counts(state, 0, a) for a in itertools.product((0, 1), repeat=2)}
        upper[state] = max(odds(state, ours, theirs, game.accuracy, upper) for ours in answers)
    full = (game.health,) * 4
    assert round(known[full], 3) == 0.986
    assert round(upper[full], 3) == 0.987
