"""Toys: their rows and states, what perfect and random play score, and bots of matches."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Box, Discrete, Envs, Greedy, spaces
from polyplay.envs.spaces import Conditional
from polyplay.games.toys import TOYS, Skirmish
from tests.games.skirmishes import outcome

ALONE = [name for name, game in TOYS.items() if getattr(game, "seats", 1) == 1]  # the others: test_matches.py


def policy(pool, rng, n):
    action = pool.spec.action
    if isinstance(action, Discrete):
        return rng.integers(0, action.n, n)
    if isinstance(action, dict):
        return tree.map(lambda leaf: rng.integers(0, leaf.n, n), action)
    return rng.normal(0, 2, (n, *action.shape)).astype(np.float32)


def width(pool, lanes):
    return len(np.arange(pool.lanes)[lanes])


def play(pool, turns, rng):
    """Copies of what `turns` recvs gave, answered at random."""
    seen = []
    for _ in range(turns):
        lanes, row = pool.recv()
        seen.append((np.arange(pool.lanes)[lanes], tree.map(np.copy, row)))
        pool.send(lanes, policy(pool, rng, width(pool, lanes)))
    return seen


@pytest.mark.parametrize("name", ALONE)
def test_rows_follow_the_convention(name):
    pool = Envs(f"toy:{name}", 6).open(1)
    seen = play(pool, 450, np.random.default_rng(0))
    rows = {k: np.stack([row[k] for _, row in seen]) for k in ("first", "terminated", "truncated", "over", "reward")}
    over = rows["terminated"] | rows["truncated"]
    assert rows["first"][0].all()
    assert (rows["first"][1:] == over[:-1]).all()
    assert (rows["over"] == over).all()
    assert over.any()
    assert not (rows["terminated"] & rows["truncated"]).any()
    assert (rows["reward"][rows["first"]] == 0).all()
    assert rows["truncated"].any() == (name in ("pendulum", "still"))
    assert seen[0][1]["obs"].dtype == np.dtype(pool.spec.obs.dtype)
    assert seen[0][1]["obs"].shape == (6, *pool.spec.obs.shape)


def test_the_action_on_a_final_row_goes_nowhere():
    def run(say):
        pool, rng, seen = Envs("toy:catch", 3).open(1), np.random.default_rng(0), []
        for _ in range(40):
            lanes, row = pool.recv()
            seen.append(row["obs"].copy())
            pool.send(lanes, np.where(row["over"], say, rng.integers(0, 3, 3)))
        return np.stack(seen)

    assert (run(0) == run(2)).all()


def test_catch_random_and_perfect():
    pool = Envs("toy:catch", 64).open(3)
    rewards = np.concatenate([row["reward"][row["over"]] for _, row in play(pool, 300, np.random.default_rng(0))])
    assert -0.7 < rewards.mean() < -0.5
    rewards = []
    for _ in range(60):
        lanes, row = pool.recv()
        rewards.append(row["reward"][row["over"]])
        board = row["obs"].reshape(64, 10, 5)
        ball, paddle = board[:, :9].max(1).argmax(1), board[:, 9].argmax(1)
        pool.send(lanes, 1 + np.sign(ball - paddle))
    assert (np.concatenate(rewards[11:]) == 1).all()


def test_catch_lasts_rows_and_comes_as_bytes():
    pool = Envs("toy:catch", 2, options={"rows": 4, "columns": 3, "dtype": "uint8"}).open(0)
    assert pool.spec.obs == Field((12,), "uint8")
    seen = play(pool, 9, np.random.default_rng(0))
    assert [bool(row["over"][0]) for _, row in seen] == [False, False, False, True] * 2 + [False]
    assert sorted(set(seen[0][1]["obs"][0])) == [0, 255]


def test_memory_needs_the_cue():
    pool = Envs("toy:memory", 200, options={"cues": 4, "delay": 2}).open(0)
    assert pool.spec.action == Discrete(4)
    cues, rewards = None, []
    for t in range(16):
        lanes, row = pool.recv()
        assert row["first"].all() == (t % 4 == 0)
        if t % 4 == 0:
            assert (row["obs"][:, :4].sum(1) == 1).all()
            cues = row["obs"][:, :4].argmax(1)
            assert len(set(cues)) == 4
        else:
            assert not row["obs"][:, :4].any(), "the cue is shown once"
        assert row["obs"][:, 4].all() == (t % 4 == 2), "the light is on where the answer is due"
        if t % 4 == 3:
            rewards.append(row["reward"].copy())
        right = np.arange(200) % 2 == 0
        pool.send(lanes, np.where(right, cues, (cues + 1) % 4))
    assert (np.stack(rewards) == np.where(right, 1, -1)).all()


def test_pendulum_is_gymnasiums():
    states = Envs("toy:pendulum", 500).open(0)._states
    for name, most in (("th", np.pi), ("thdot", 1.0)):
        assert -most <= states[name].min() < -0.95 * most
        assert 0.95 * most < states[name].max() <= most
    env = gymnasium.make("Pendulum-v1").unwrapped
    pool = Envs("toy:pendulum", 5).open(2)
    assert pool.spec.action == Box((1,), np.float32([-2]), np.float32([2]))
    rng = np.random.default_rng(0)
    lanes, row = pool.recv()
    env.reset()
    env.state = np.array([pool._states["th"][3], pool._states["thdot"][3]])
    for t in range(200):
        action = policy(pool, rng, 5)
        pool.send(lanes, action)
        _, row = pool.recv()
        obs, reward, *_ = env.step(action[3])
        assert row["obs"][3].tolist() == obs.tolist()
        assert row["reward"][3] == np.float32(reward)
        assert row["truncated"][3] == (t == 199)


def test_cartpole_is_gymnasiums():
    env = gymnasium.make("CartPole-v1").unwrapped
    pool = Envs("toy:cartpole", 4).open(2)
    rng = np.random.default_rng(1)
    lanes, row = pool.recv()
    assert (np.abs(row["obs"]) <= 0.05).all()
    env.reset()
    env.state = pool._states["x"][1].copy()
    for _ in range(60):
        action = policy(pool, rng, 4)
        pool.send(lanes, action)
        _, row = pool.recv()
        obs, reward, terminated, *_ = env.step(action[1])
        assert row["obs"][1].tolist() == obs.tolist()
        assert (row["reward"][1], row["terminated"][1]) == (reward, terminated)
        if terminated:
            return
    raise AssertionError("it did not fall")


@pytest.mark.parametrize(
    ("name", "kw"), [*((name, {}) for name in ALONE), ("cartpole", {"groups": 2}), ("catch", {"batching": Greedy(2)})]
)
def test_state_and_load_go_on_to_the_bit(name, kw):
    """Saved between a recv and its send, loaded into a pool with another seed and past."""
    envs = Envs(f"toy:{name}", 6, **kw)
    pool, other = envs.open(1), envs.open(99)
    play(pool, 37, np.random.default_rng(0))
    lanes, _ = pool.recv()
    state = pool.state()
    play(other, 11, np.random.default_rng(5))
    other.load(state)
    ends = []
    for one in (pool, other):
        rng = np.random.default_rng(7)
        one.send(lanes, policy(one, rng, width(one, lanes)))
        ends.append(play(one, 120, rng))
    for (a, x), (b, y) in zip(*ends, strict=True):
        assert (a == b).all()
        assert all(
            (p == q).all() for p, q in zip(dict(tree.leaves(x)).values(), dict(tree.leaves(y)).values(), strict=True)
        )


def test_lanes_have_streams_of_their_own_wherever_they_live():
    whole = Envs("toy:cartpole", 4).open(1).recv()[1]["obs"]
    part = Envs("toy:cartpole", 2).open(1, lane=2).recv()[1]["obs"]
    assert (whole[2:] == part).all()
    assert len(np.unique(whole[:, 0])) == 4
    assert (Envs("toy:cartpole", 4).open(2).recv()[1]["obs"] != whole).all()


PARTS = {"verb": Discrete(4), "unit": Discrete(4), "offset": Discrete(3)}


def right(cue, verb):
    """What perfect play answers to a cue, for a verb."""
    return {"verb": verb, "unit": (cue + verb) % 4 if verb in (1, 3) else 0, "offset": (cue + verb) % 3 * (verb > 1)}


def returns(games, answer, rows=8):
    pool = Envs("toy:conditional", games, options={"rows": rows}).open(0)
    total = np.zeros(games)
    for _ in range(rows):
        lanes, row = pool.recv()
        total += row["reward"]
        assert not row["terminated"].any()
        pool.send(lanes, answer(row))
    total += pool.recv()[1]["reward"]
    return total, pool._rows["terminated"].copy()


def perfect(row):
    cues, verbs = row["obs"].argmax(1), row["mask"]["verb"][:, 1:].argmax(1) + 1
    each = [right(int(c), int(v)) for c, v in zip(cues, verbs, strict=True)]
    return {k: np.array([one[k] for one in each]) for k in PARTS}


def test_perfect_waiting_and_random_play():
    envs = Envs("toy:conditional", 2)
    assert envs.spec.action == Conditional(PARTS, {"unit": (1, 3), "offset": (2, 3)})
    assert envs.spec.obs == Field((4,), "float32")
    total, over = returns(50, perfect)
    assert np.allclose(total, 1)
    assert over.all()
    total, _ = returns(5, lambda row: tree.map(lambda x: x * 0, perfect(row)))
    assert (total == 0).all()
    draw = spaces.action_sampler(envs.spec.action, 0)
    total, _ = returns(400, lambda row: draw(400, row["mask"]))
    assert 0.15 < total.mean() < 0.3, "half of the time it waits, else a third to a half is right; nothing illegal"


def test_what_is_illegal_ends_the_game():
    pool = Envs("toy:conditional", 300).open(0)
    lanes, row = pool.recv()
    good, asked = perfect(row), row["mask"]["verb"][:, 1:].argmax(1) + 1
    cue = row["obs"].argmax(1)
    assert (row["mask"]["verb"].sum(1) == 2).all()
    n = np.arange(300)
    bad = {k: v.copy() for k, v in good.items()}
    bad["unit"][asked == 1] = ((cue + asked + 1) % 4)[asked == 1]
    bad["offset"][asked == 2] = ((cue + asked + 1) % 3)[asked == 2]
    bad["verb"][(asked == 3) & (n % 2 == 0)] = 1
    assert not row["mask"]["unit"][n, bad["verb"], bad["unit"]][asked == 1].any()
    assert not row["mask"]["offset"][n, bad["offset"]][asked == 2].any()
    pool.send(lanes, bad)
    _, after = pool.recv()
    fine = (asked == 3) & (n % 2 == 1)
    assert (after["reward"][~fine] == -1).all()
    assert (after["terminated"] == ~fine).all()
    assert (after["reward"][fine] > 0).all()


BEST, BOT = Skirmish.focus, Skirmish.opposite


def test_the_best_answer_beats_the_bot():
    won, lost = outcome(BEST, BOT, 1)
    assert 0.975 < won < 0.995
    assert won + lost < 1


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("catsh", {}, "unknown toy 'toy:catsh', did you mean 'toy:catch'"),
        ("skirmisch", {}, "did you mean 'toy:skirmish'"),
        ("catch", {"row": 3}, "unknown option 'row', did you mean 'rows'"),
        ("catch", {"rows": 1}, "rows ≥ 2"),
        ("catch", {"dtype": "int8"}, "'float32' or 'uint8'"),
        ("memory", {"cues": 1}, "cues ≥ 2"),
        ("conditional", {"rows": 0}, "toy:conditional needs rows ≥ 1, got rows=0"),
        ("still", {"planes": 0}, "toy:still needs numbers from 1 up"),
        ("rps", {"rounds": 0}, "rounds ≥ 1, got rounds=0"),
        ("skirmish", {"health": 0}, "health ≥ 1"),
        ("skirmish", {"accuracy": 0.0}, "0 < accuracy ≤ 1"),
        ("skirmish", {"late": 8}, "0 ≤ late < health, got health=8"),
        ("skirmish", {"lanes": 6}, "--lanes 6 is no multiple of the 4 seats of a match"),
        ("skirmish", {"lanes": 4, "groups": 2}, "--groups 2 of 4 lanes have 2 each"),
        ("rps", {"lanes": 6, "agents": 4, "groups": 1}, "--lanes 6 given; allowed: multiples of --players 4"),
    ],
)
def test_mistakes(name, options, says):
    kw = {k: v for k, v in options.items() if k in ("lanes", "agents", "groups")}
    with pytest.raises(UserError, match=says):
        Envs(f"toy:{name}", **{"lanes": 4, **kw}, options={k: v for k, v in options.items() if k not in kw}).open(0)
