from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from polyplay.core import tree
from polyplay.core.errors import Closed, UserError
from polyplay.core.tree import Field
from polyplay.envs import Box, Discrete, Envs, Greedy
from polyplay.games.toys import TOYS, game_rng

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


def test_pendulum_starts_where_gymnasiums_does():
    pool = Envs("toy:pendulum", 500).open(0)
    th, thdot = pool._states["th"], pool._states["thdot"]
    assert -np.pi <= th.min() < -3
    assert 3 < th.max() <= np.pi
    assert -1 <= thdot.min() < -0.95
    assert 0.95 < thdot.max() <= 1


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


@pytest.mark.parametrize("kw", [{}, {"groups": 2}, {"batching": Greedy(2)}])
@pytest.mark.parametrize("name", ALONE)
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
        ends.append(play(one, 300, rng))
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


def test_draws_are_uniform_and_independent():
    counters = np.arange(1000, dtype=np.uint64) * np.uint64(12345)
    u = np.stack([game_rng(counters, np.arange(1000)) for _ in range(50)])
    assert 0 <= u.min() < 0.001
    assert 0.999 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(u.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(u[0], u[1])[0, 1]) < 0.1


def test_groups_alternate_and_may_be_parked():
    pool = Envs("toy:catch", 4, groups=2).open(0)
    a, _ = pool.recv()
    b, _ = pool.recv()
    assert (a, b) == (slice(0, 2), slice(2, 4))
    with pytest.raises(RuntimeError, match="before"):
        pool.recv()
    for _ in range(3):
        pool.send(b, np.ones(2, int))
        assert pool.recv()[0] == b
    pool.send(a, np.ones(2, int))
    assert pool.recv()[0] == a


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("toy:catsh", {}, "unknown toy 'toy:catsh', did you mean 'toy:catch'"),
        ("toy:catch", {"row": 3}, "unknown option 'row', did you mean 'rows'"),
        ("toy:catch", {"rows": 1}, "rows ≥ 2"),
        ("toy:catch", {"dtype": "int8"}, "'float32' or 'uint8'"),
        ("toy:memory", {"cues": 1}, "cues ≥ 2"),
    ],
)
def test_mistakes(name, options, says):
    with pytest.raises(UserError, match=says):
        Envs(name, 1, options=options).spec  # noqa: B018


def test_closed():
    pool = Envs("toy:catch", 1).open(0)
    pool.close()
    pool.close()
    with pytest.raises(Closed):
        pool.recv()
    with pytest.raises(Closed):
        pool.send(slice(0, 1), np.zeros(1, int))
