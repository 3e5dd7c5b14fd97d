"""Systems learn CartPole with no option but the environment: the settings of tuned.toml."""

from __future__ import annotations

import pytest

import polyplay
from polyplay import systems

LEARN = sorted(set(systems.ordinary()) - {"apex_dpg", "alphago_zero"})


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LEARN)
def test_cartpole_is_learnt(name, tmp_path):
    run = polyplay.train(name, env="CartPole-v1", run=tmp_path / name, tensorboard=False)
    assert run.evaluate(episodes=100)["episodic_return_mean"] >= 450
