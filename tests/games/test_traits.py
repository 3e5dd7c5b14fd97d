"""The game of all traits that tests train on: perfect play returns 1 with any of them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from polyplay.envs import Envs
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from tests.games.traits import NAME

SWITCHES = ("memory", "mask", "dict", "hybrid", "continuous")
ALL = [
    [name for name, on in zip(SWITCHES, chosen, strict=True) if on]
    for chosen in product((False, True), repeat=5)
    if not (chosen[1] and chosen[4] and not chosen[3])
]


def envs(switches, lanes=8, **options):
    return Envs("+".join([NAME, *switches]), lanes, options=options)


def cue_of(obs):
    """The cue that observations show, -1 where they show none."""
    if isinstance(obs, dict):
        sight = obs["near"]["sight"]
        return np.where(obs["room"] > 0, 2 * (obs["room"] - 1) + sight[:, :2].argmax(1), -1)
    return np.where(obs[:, :4].any(1), obs[:, :4].argmax(1), -1)


def light(obs):
    return (obs["near"]["sight"] if isinstance(obs, dict) else obs)[:, -1] > 0


def right(action, cue):
    """What the table in traits.py says."""
    pairs = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    aims = np.float32([-0.75, -0.25, 0.25, 0.75])[:, None]
    if isinstance(action, Discrete):
        return cue
    if isinstance(action, Box):
        return aims[cue]
    if isinstance(action, MultiDiscrete):
        return pairs[cue]
    if isinstance(action, MultiBinary):
        return pairs[cue].astype(np.int8)
    return {k: right(leaf, cue) for k, leaf in action.items()}


@pytest.mark.parametrize("switches", ALL, ids="+".join)
def test_perfect_play_returns_1_with_any_switches(switches):
    pool, lanes, cue = envs(switches, questions=3).open(1), 8, np.zeros(8, np.int64)
    returns, games = np.zeros(lanes), 0
    for t in range(15):
        which, row = pool.recv()
        returns += row["reward"]
        if row["over"].any():
            assert row["over"].all()
            assert returns == pytest.approx(np.ones(lanes))
            returns, games = np.zeros(lanes), games + 1
        shown = cue_of(row["obs"])
        assert ((shown >= 0) == ((not light(row["obs"]).any()) if "memory" in switches else True)).all(), t
        cue = np.where(shown >= 0, shown, cue)
        pool.send(which, right(pool.spec.action, cue))
    assert games == (2 if "memory" in switches else 3)


def test_the_right_answer_is_always_legal_others_change_and_an_illegal_one_ends_it():
    pool = envs(("mask",), lanes=200, questions=50).open(0)
    seen = []
    for _ in range(20):
        lanes, row = pool.recv()
        cue, mask = cue_of(row["obs"]), row["mask"]
        assert mask[np.arange(200), cue].all()
        seen.append(mask.copy())
        pool.send(lanes, cue)
    wrong = np.stack(seen).mean()
    assert 0.58 < wrong < 0.67  # (1 + 3/2) / 4
    assert len(np.unique(np.concatenate(seen), axis=0)) == 15, "every set but the empty one"
    lanes, row = pool.recv()
    illegal = ~row["mask"].all(1)  # before the send: rows are views
    pool.send(lanes, row["mask"].argmin(1))
    lanes, row = pool.recv()
    assert (row["terminated"] == illegal).all()
    assert (row["reward"][illegal] == -1).all()
    assert (row["reward"][~illegal] >= 0).all()


def test_an_illegal_part_of_an_action_ends_it_too():
    pool = envs(("mask", "hybrid"), lanes=100).open(0)
    lanes, row = pool.recv()
    action = right(pool.spec.action, cue_of(row["obs"]))
    bits = row["mask"]["1"].reshape(100, 2, 2).copy()
    action["1"] = np.where(bits.all(2), action["1"], 1 - action["1"]).astype(np.int8)
    pool.send(lanes, action)
    assert (pool.recv()[1]["terminated"] == ~bits.all((1, 2))).all()


def test_a_wrong_answer_is_worth_what_is_right_of_it():
    pool = envs(("hybrid", "continuous"), lanes=40, questions=1).open(0)
    lanes, row = pool.recv()
    action = right(pool.spec.action, cue_of(row["obs"]))
    pool.send(lanes, {"pick": (action["pick"] + 1) % 4, "aim": action["aim"] - np.float32(0.25)})
    reward = pool.recv()[1]["reward"]
    assert reward == pytest.approx(np.full(40, 0.75 / 2), abs=1e-6)
