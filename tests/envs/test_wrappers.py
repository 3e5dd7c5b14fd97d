"""--env-kwargs and --wrapper: options and wrappers of environments, from the command line to the run that is opened."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.runs import flags

WRAPPERS = """
import gymnasium

def halved(env):
    return gymnasium.wrappers.TransformReward(env, lambda r: r / 2)

def doubled(env):
    return gymnasium.wrappers.TransformObservation(env, lambda x: 2 * x, env.observation_space)

def refused(env):
    raise ValueError("no licence")

def forgotten(env):
    halved(env)

answer = 42
"""


AROUND = "allowed: module:callable, a function that takes an environment and returns one"
OWN = "allowed: sutton_barto_reward, render_mode, max_episode_steps; leave it out"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    (tmp_path / "my_wrappers.py").write_text(WRAPPERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("inline", [True, False])
def test_kwargs_and_wrappers_reach_the_environment(here, inline):
    wrapped = Envs("CartPole-v1", 1, inline=inline, wrappers=("my_wrappers:halved", "my_wrappers:doubled"))
    plain = Envs("CartPole-v1", 1, inline=inline, kwargs={"sutton_barto_reward": True})
    seen = {}
    for name, envs in (("wrapped", wrapped), ("plain", plain)):
        pool = envs.open(0)
        try:
            lanes, step = pool.recv()
            first = step["obs"].copy()
            pool.send(lanes, np.zeros(1, np.int64))
            seen[name] = first, float(pool.recv()[1]["reward"][0])
        finally:
            pool.close()
    np.testing.assert_allclose(seen["wrapped"][0], 2 * seen["plain"][0], rtol=1e-6)
    assert (seen["wrapped"][1], seen["plain"][1]) == (0.5, 0.0)


def test_a_run_has_them_whenever_it_is_opened(here):
    run = polyplay.train(
        "a2c", env="CartPole-v1", steps=64, serial=True, wrapper=("my_wrappers:halved",),
        env_kwargs={"max_episode_steps": 4}, run="run", tensorboard=False,
    )  # fmt: skip
    assert run.evaluate(episodes=3)["returns"] == [2.0] * 3
    assert json.loads((here / "run" / "config.json").read_text())["options"]["env_kwargs"] == ["max_episode_steps=4"]


def test_a_strangers_wrapper_is_not_executed_without_a_word(here, monkeypatch):
    options = {"steps": 64, "serial": True, "run": "run", "tensorboard": False}
    polyplay.train("a2c", env="CartPole-v1", wrapper=("my_wrappers:halved",), **options)
    monkeypatch.setenv("XDG_DATA_HOME", str(here / "another"))
    with pytest.raises(UserError, match=r"its wrapper 0 my_wrappers:halved would execute .*my_wrappers\.py"):
        polyplay.evaluate("run", episodes=1)
    with pytest.raises(UserError, match="was made elsewhere"):
        polyplay.train("a2c", env="CartPole-v1", resume="auto", **options)


def test_values_are_literals_or_text():
    words = ("a=1", "b=-2.5", "c=true", "d=rgb_array", "e=[1, 2]", "f=None", "g=a=b")
    expected = {"a": 1, "b": -2.5, "c": True, "d": "rgb_array", "e": [1, 2], "f": None, "g": "a=b"}
    assert flags.read_assignments("env_kwargs", words) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_kwargs": ("gravity",)}, "--env-kwargs: gravity given, allowed: NAME=VALUE, as in"),
        ({"wrapper": ("halved",)}, "--wrapper: halved given, allowed: module:callable"),
        (
            {"wrapper": ("my_wrappers:half",)},
            "--wrapper: my_wrappers:half given, my_wrappers has no 'half', did you mean 'halved'",
        ),
        ({"wrapper": ("absent:half",)}, f"--wrapper: absent:half given, no module 'absent'; it must .*{AROUND}"),
        ({"wrapper": ("my_wrappers:answer",)}, f"my_wrappers:answer given, answer is no callable but int; {AROUND}"),
        ({"wrapper": ("my_wrappers:refused",)}, f"refused given, it raised ValueError: no licence .*; {AROUND}"),
        (
            {"wrapper": ("my_wrappers:forgotten",)},
            f"--wrapper: my_wrappers:forgotten given, it returned None; {AROUND}",
        ),
        ({"env_kwargs": ("gravity=1",)}, f"--env-kwargs: gravity given, which CartPole-v1 does not take; {OWN}"),
        ({"env_kwargs": ("render_mod=1",)}, "render_mod given, .*, did you mean 'render_mode'"),
        ({"env": "my_wrappers:refused", "env_kwargs": ("depth=1",)}, "depth given, .*; allowed: env; leave it out"),
        ({"env": "toy:catch", "wrapper": ("my_wrappers:halved",)}, "--wrapper: toy:catch takes none"),
        ({"env": "toy:catch", "env_kwargs": ("rws=3",)}, "--env-kwargs: toy:catch: unknown option 'rws', did you mean"),
    ],
)
def test_mistakes_are_a_line(here, options, message):
    with pytest.raises(UserError, match=message) as e:
        polyplay.train("a2c", **{"env": "CartPole-v1", "steps": 10, "serial": True, "run": "run"} | options)
    assert "\n" not in str(e.value)
    assert not (here / "run").exists()
