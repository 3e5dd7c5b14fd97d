"""polyplay/runs/options.py: an environment that was made already."""

from __future__ import annotations

import gymnasium
import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.runs.options import is_instance, made_from


def test_workers_make_their_own_by_the_same_arguments(tmp_path):
    env = gymnasium.make("CartPole-v1", max_episode_steps=5, render_mode="rgb_array", sutton_barto_reward=True)
    assert made_from(env) == ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 5})
    run = polyplay.train("a2c", env=env, steps=64, serial=True, run=tmp_path / "run", tensorboard=False)
    assert polyplay.load(run.directory).evaluate(episodes=2)["episodic_length_mean"] == 5
    assert made_from(gymnasium.make("CartPole-v1")) == ("CartPole-v1", {})


def test_what_is_no_instance():
    assert not any(map(is_instance, ("CartPole-v1", gymnasium.Env, lambda: gymnasium.make("CartPole-v1"), None)))


def bare():
    from gymnasium.envs.classic_control import CartPoleEnv

    return CartPoleEnv()


def wrapped():
    return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda r: r)


@pytest.mark.parametrize("make", [bare, wrapped])
def test_one_that_cannot_be_made_again_is_a_line(make, tmp_path):
    message = "env: an instance of CartPoleEnv given, which workers cannot make again; give a function that makes one"
    with pytest.raises(UserError, match=message) as e:
        polyplay.train("a2c", env=make(), run=tmp_path / "run")
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()
