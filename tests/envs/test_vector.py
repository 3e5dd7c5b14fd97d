from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import polyplay
from polyplay.acting.play import play_games
from polyplay.core import tree
from polyplay.core.errors import Closed, EnvFailure
from polyplay.envs import Envs, spaces
from polyplay.envs.inline_pool import InlinePool, VectorPool, action_writer
from polyplay.envs.pool import lane_seeds
from tests.envs import faulty, vectors
from tests.envs.vectors import OFF, Counting

FLAGS = ("first", "terminated", "truncated", "over")


def opened(name, lanes=3, groups=1, seed=7, lane=0, **options):
    return Envs(name, lanes, groups, inline=True, options=options).open(seed, lane)


def walk(pool, actions):
    """Rows of a pool of one group, as copies."""
    rows = []
    for action in actions:
        lanes, row = pool.recv()
        rows.append(tree.map(np.copy, row))
        pool.send(lanes, action)
    pool.close()
    return rows


def same(a, b):
    return all(
        ((x == y).all() and x.dtype == y.dtype) for (_, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True)
    )


def test_next_step_gives_the_same_rows_as_single_environments_to_the_bit():
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 2, 4) for _ in range(40)]
    vector = opened(vectors.poles, 4, lane=2)
    assert isinstance(vector, VectorPool)
    single = Envs("CartPole-v1", 4, inline=True, options={"max_episode_steps": 9}).open(7, 2)
    assert isinstance(single, InlinePool)
    assert all(same(x, y) for x, y in zip(walk(vector, actions), walk(single, actions), strict=True))


def test_dicts_whole_numbers_and_real_actions_too():
    rng = np.random.default_rng(1)
    actions = [rng.normal(size=(4, 2)).astype(np.float32) for _ in range(12)]
    rows = walk(opened(vectors.pairs, 4), actions), walk(opened(vectors.Pair, 4), actions)
    assert all(same(x, y) for x, y in zip(*rows, strict=True))
    assert rows[0][0]["obs"]["n"].tolist() == [0] * 4


def test_groups_are_vectors_of_their_own_with_seeds_of_their_own():
    pool, whole = opened(vectors.poles, 6, groups=2), opened(vectors.poles, 6)
    every = whole.recv()[1]["obs"].copy()
    assert len({tuple(row) for row in every}) == 6
    for group in (slice(0, 3), slice(3, 6), slice(0, 3), slice(3, 6)):
        lanes, row = pool.recv()
        assert lanes == group
        if row["first"].all():
            assert (row["obs"] == every[group]).all()
        pool.send(lanes, np.zeros(3, np.int64))


@pytest.mark.parametrize("make", [Counting, lambda num_envs: vectors.obedient(num_envs, OFF)])
def test_where_it_does_not_reset_we_do_and_rows_are_the_convention(make):
    """Lanes of 2, 3 and 4 steps: ends fall together in all ways. Both insist that none is stepped beyond its end."""
    rows = walk(opened(make, 3), [np.zeros(3, np.int64)] * 30)
    for lane in range(3):
        length = 2 + lane
        for t, row in enumerate(rows):
            step = t % (length + 1)
            assert row["obs"][lane, 0] == step, "the last row is the real last observation, the first a reset's"
            assert row["reward"][lane] == step
            end = step == length
            assert [bool(row[k][lane]) for k in FLAGS] == [step == 0, end, False, end]


def test_lanes_that_end_together_are_reset_once():
    rows = walk(opened(Counting, 3, spread=1), [np.zeros(3, np.int64)] * 9)
    assert [row["obs"][0, 0] for row in rows] == [0, 1, 2] * 3
    assert rows[-1]["obs"][0, 1] == 3, "episodes begun"


def test_seeds_are_one_per_lane_or_one_for_all():
    seeds = lane_seeds(7, 5, 3).tolist()
    pool = opened(Counting, 3, lane=5)
    assert pool._groups[0].env.seeds == seeds
    assert opened(vectors.OneSeed, 3, lane=5)._groups[0].env.seeds == seeds[0]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (1, r"lanes 4–6: step failed: ValueError: boom \(vectors.py:\d+\); a vector environment's lanes can't be rest"),
        (2, r"lanes 4–6: observation breaks its declared space: declared float32 \[3, 2\], given float32 \[3, 1\]"),
        (3, r"lanes 4–6: step failed: ValueError: reward, terminated, truncated must be \[3\], given \[\]"),
    ],
)
def test_what_it_does_wrong_ends_the_pool_in_one_line(action, says):
    pool = opened(Counting, 3, lane=4)
    lanes, _ = pool.recv()
    env = pool._groups[0].env
    with pytest.raises(EnvFailure, match=says) as e:
        pool.send(lanes, np.array([0, 0, action]))
    assert len(str(e.value).split("\n")[0]) < 250
    assert env.closed
    with pytest.raises(Closed):
        pool.recv()


def test_a_reset_outside_the_space_is_told():
    def low(num_envs):
        env = Counting(num_envs)
        env.see -= 5
        return env

    with pytest.raises(EnvFailure, match=r"at 'lane 0' -4 at \[1\] is not in \[-1, 99\]; widen low and high"):
        opened(low, 2)


def test_it_is_a_pool_like_the_others():
    pool = opened(Counting, 4, groups=2)
    with pytest.raises(ValueError, match="send"):
        pool.send(slice(0, 2), np.zeros(2, np.int64))
    pool.recv()
    pool.recv()
    with pytest.raises(RuntimeError, match="before"):
        pool.recv()
    assert pool.state() is None
    with pytest.raises(ValueError, match="no state"):
        pool.load({})
    pool.close()
    pool.close()


def test_other_actions_are_put_together_lane_by_lane(monkeypatch):
    monkeypatch.setattr(spaces, "action_reader", lambda space: lambda row: row + space.start)
    act = action_writer(gym.MultiDiscrete([3, 4], start=[1, 2]), 2)
    assert act(np.array([[0, 1], [2, 0]])).tolist() == [[1, 3], [3, 2]]


def test_systems_train_and_play_with_them(tmp_path):
    settings = dict(network="mlp", lanes=6, groups=2, replicas=1, unroll=4, steps=600, tensorboard=False)
    run = polyplay.train("a2c", env=vectors.poles, serial=True, run=str(tmp_path / "run"), **settings)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean"] == 9
    assert run.evaluate(5)["episodic_length_mean"] == 9


class Still:
    """A policy that always does 0."""

    noise = 1

    def initial(self, lanes):
        return {}

    def act(self, step, state):
        return {"action": torch.zeros(len(step["reward"]), dtype=torch.int64)}, {}


def test_games_are_played_in_as_many_lanes_as_there_must_be():
    games = play_games(Envs(vectors.three, 6, 2, inline=True), Still(), 5, seed=0)
    assert sorted(games) == [(3.0, 2), (3.0, 2), (6.0, 3), (6.0, 3), (10.0, 4)]


def test_faulty_single_environments_are_no_vectors():
    assert isinstance(opened(faulty.Obedient, 2), InlinePool)
