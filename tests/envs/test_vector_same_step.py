"""Vector environments that reset in the same step: last rows from info, first rows as they were returned."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import polyplay
from polyplay.core.errors import EnvFailure, UserError
from polyplay.envs import Envs
from tests.envs import vectors
from tests.envs.test_vector import opened, same, walk
from tests.envs.vectors import SAME


def columns(rows, lane):
    """(steps, episode, reward, first, over) of each row of a lane of `Counting`."""
    return [
        (*r["obs"][lane].astype(int).tolist(), int(r["reward"][lane]), bool(r["first"][lane]), bool(r["over"][lane]))
        for r in rows
    ]


@pytest.mark.parametrize("make", [vectors.Batched, vectors.Listed])
def test_lanes_that_end_together_are_the_convention_without_a_step_between(make):
    """Each lane ends after 2 steps, for 1 and 2 points."""
    rows = walk(opened(make, 3, spread=1), np.zeros((7, 3), np.int64))
    for lane in range(3):
        assert columns(rows, lane) == [
            (0, 1, 0, True, False),
            (1, 1, 1, False, False),
            (2, 1, 2, False, True),
            (0, 2, 0, True, False),
            (1, 2, 1, False, False),
            (2, 2, 2, False, True),
            (0, 3, 0, True, False),
        ]


@pytest.mark.parametrize("make", [vectors.Batched, vectors.Listed])
def test_where_others_go_on_a_lane_makes_a_step_unseen_whose_reward_is_not_lost(make):
    rows = walk(opened(make, 2, spread=2), np.zeros((7, 2), np.int64))
    assert columns(rows, 1)[:5] == [
        (0, 1, 0, True, False),
        (1, 1, 1, False, False),
        (2, 1, 2, False, False),
        (3, 1, 3, False, True),
        (0, 2, 0, True, False),
    ]
    assert columns(rows, 0)[2:5] == [(2, 1, 2, False, True), (0, 2, 0, True, False), (2, 2, 3, False, True)]
    for lane in (0, 1):
        for before, after in pairwise(rows):
            assert after["first"][lane] == before["over"][lane]


def of_gymnasium(kind):
    def make(num_envs: int = 4):
        return kind([vectors.Pair] * num_envs, autoreset_mode=SAME)

    return make


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasium_s_own_give_the_rows_of_single_environments(kind):
    rng = np.random.default_rng(1)
    actions = [rng.normal(size=(4, 2)).astype(np.float32) for _ in range(12)]
    rows = walk(opened(of_gymnasium(kind), 4), actions), walk(opened(vectors.Pair, 4), actions)
    assert all(same(x, y) for x, y in zip(*rows, strict=True))


class Uneven(vectors.Pair):
    """Ends at random."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, bool(self.np_random.random() < 0.4) or self.n == 3, info


def test_of_gymnasium_s_own_no_step_is_missing_where_others_go_on():
    def make(num_envs: int = 4):
        return SyncVectorEnv([Uneven] * num_envs, autoreset_mode=SAME, copy=False)

    rows = walk(opened(make, 4), np.zeros((60, 4, 2), np.float32))
    assert 5 < sum(r["over"].sum() for r in rows[:-1]) < 200
    for before, after in pairwise(rows):
        assert (after["first"] == before["over"]).all()
        assert (after["obs"]["n"] == np.where(before["over"], 0, before["obs"]["n"] + 1)).all()


def test_without_its_last_observations_it_is_refused_in_one_line():
    pool = opened(vectors.Same, 3)
    with pytest.raises(UserError, match=r"^Same: Same resets in the same step \(SAME_STEP\) and gives no info") as e:
        walk(pool, np.zeros((5, 3), np.int64))
    assert "\n" not in str(e.value)
    assert not isinstance(e.value, EnvFailure)


class Mild(vectors.Batched):
    """Every action is as good."""

    def step(self, actions):
        return super().step(np.zeros_like(actions))


def test_a_system_trains_with_one_and_counts_whole_games(tmp_path):
    settings = {"network": "mlp", "lanes": 3, "replicas": 1, "serial": True, "tensorboard": False, "steps": 300}
    run = polyplay.train("a2c", env=Mild, run=str(tmp_path / "run"), **settings)
    assert run.exit_code == 0
    assert Envs(Mild, 3, inline=True).spec.vector
    assert 3.0 <= run.summary["episodic_return_mean"] <= 10.0  # 1 + 2, 1 + 2 + 3 and 1 + 2 + 3 + 4
