"""Values of presets that do not apply are left out; those of a person are refused, and no other option is named."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.nets.factory import make
from polyplay.runs import options, run
from polyplay.runs.options import attributed, fitted, left_out
from tests.envs.players import Scripted


class Numbered(gymnasium.Env):
    """Shows a number, takes a vector: what is tuned for such actions scales real numbers."""

    observation_space: spaces.Space = spaces.Discrete(5)
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


class Flags(Numbered):
    observation_space = spaces.MultiBinary(4)


class Bytes(Numbered):
    observation_space = spaces.Box(0, 255, (6,), np.uint8)


def wired(name, **given):
    """(settings, lines about what was left out) of a system as keywords give it; nothing is started."""
    page = systems.load(name)
    settings, how, sources = options.resolve(page, serial=True, **given)
    wire = partial(run._wire, page, options=how, sources=sources)
    fit, _, lines = fitted(settings, sources, wire)
    return fit, [text for _, text in lines]


def own_policy(spec):
    return make("mlp", spec)


@pytest.mark.parametrize("env", [Flags, Bytes])
def test_numbers_of_any_type_are_normalized(env):
    settings, left = wired("ppo", env=env, preset="mujoco")
    assert (settings.inputs, left) == ("normalize", [])


def test_inputs_of_a_preset_that_scale_numbers():
    settings, left = wired("ppo", env=Numbered, preset="mujoco")
    assert settings.inputs == "raw"
    assert len(left) == 1
    assert left[0].startswith("inputs normalize (preset mujoco): takes numbers that are neither")
    assert left[0].endswith("; raw instead")
    with pytest.raises(UserError, match=r"^--inputs normalize: takes numbers that are neither"):
        wired("ppo", env=Numbered, preset="mujoco", inputs="normalize")


def test_what_a_policy_of_ones_own_does_itself():
    settings, left = wired("ppo", env="Pendulum-v1", network=own_policy, preset="mujoco")
    assert (settings.inputs, settings.reward) == ("raw", "none")
    assert [text.partition(" (preset mujoco): ")[0] for text in left] == ["inputs normalize", "reward scale"]
    with pytest.raises(UserError, match=r"^--network: 'own_policy' is a whole policy; leave out --reward scale$"):
        wired("ppo", env="Pendulum-v1", network=own_policy, preset="mujoco", reward="scale", inputs="raw")


def test_lanes_become_whole_matches():
    settings, left = wired("a2c", env=Scripted)
    assert settings.lanes % 3 == 0
    assert left == [
        f"lanes {page_lanes('a2c')} (default): is no multiple of the 3 seats of a match: make it one; "
        f"{settings.lanes} instead"
    ]
    with pytest.raises(UserError, match=r"^--lanes 4 is no multiple of the 3 seats"):
        wired("a2c", env=Scripted, lanes=4)


def page_lanes(name):
    return systems.load(name).Config().lanes


def test_minibatches_are_as_many_as_there_are_rows():
    settings, _ = wired("ppo", env="CartPole-v1", lanes=2, unroll=4, preset="classic")
    assert 0 < settings.minibatches <= 4
    with pytest.raises(UserError, match=r"^--minibatches 64 of a replica"):
        wired("ppo", env="CartPole-v1", lanes=2, unroll=4, minibatches=64)


def test_tasks_for_images_are_left_out_elsewhere():
    settings, left = wired("a3c", env="CartPole-v1", preset="unreal", network="mlp")
    assert settings.auxiliary == "reward,value"
    assert left[0].startswith("auxiliary pixel=0.001,reward,value (preset unreal): ")


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_correction_for_probabilities_is_left_out_of_real_actions(preset):
    """ga3c's default, and that of its released code."""
    settings, left = wired("ga3c", env="Pendulum-v1", network="mlp", inputs="raw", preset=preset)
    assert settings.correction == "none"
    source = "default" if preset == "paper" else "preset released"
    assert left[0].startswith(f"correction {'plus' if preset == 'paper' else 'max'} ({source})")
    assert "guard" not in left[0]
    with pytest.raises(UserError, match=r"^--correction max: it is for actions with probabilities, .* use none, or vt"):
        wired("ga3c", env="Pendulum-v1", network="mlp", correction="max")
    assert wired("ga3c", env="Pendulum-v1", network="mlp", correction="vtrace")[0].correction == "vtrace"


def test_a_correction_is_left_out_of_a_policy_of_ones_own():
    settings, left = wired("ga3c", env="CartPole-v1", network=own_policy, preset="paper")
    assert settings.correction == "none"
    assert "guarded" not in "".join(left)
    with pytest.raises(UserError, match=r"^--network: 'own_policy' is a whole policy; leave out --correction plus$"):
        wired("ga3c", env="CartPole-v1", network=own_policy, preset="paper", correction="plus")


def test_a_system_with_layers_of_its_own_asks_for_a_torso():
    with pytest.raises(UserError, match=r"^--network: 'own_policy' is a whole policy; here a torso is needed") as e:
        wired("ftw", env="toy:skirmish", network=own_policy, points=(), core="none", auxiliary="none")
    assert str(e.value).count("--") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--epochs 10: no", "epochs 10 (preset classic): no"),
        ("--network: an image", "network separate (preset classic): an image"),
        ("--groups 1 given, allowed: 2", "groups 1 (default), allowed: 2"),
        ("--groups: 1 given; allowed: 2", "groups 1 (default); allowed: 2"),
        ("--groups 1 is nothing", "groups 1 (default) is nothing"),
        ("--lanes 6 does not divide", "--lanes 6 does not divide"),
        ("--groups: nothing given, but", "--groups: nothing given, but"),
        ("--env: no", "--env: no"),
        ("memory: too little", "memory: too little"),
        ("--nothing of ours", "--nothing of ours"),
    ],
)
def test_a_message_names_nothing_that_nobody_gave(text, says):
    given = {"env": "CartPole-v1", "preset": "classic", "lanes": 6}
    settings, _, sources = options.resolve(systems.load("ppo"), serial=True, **given)
    assert attributed(text, settings, sources) == says


def test_only_what_nobody_gave_is_left_out():
    settings, _, sources = options.resolve(systems.load("ppo"), env="Pendulum-v1", serial=True, preset="mujoco")
    text = "--inputs normalize: takes real numbers; or --reward scale, or --lanes"
    assert left_out(text, settings, sources) == {"inputs": "raw", "reward": "none"}
    assert left_out(text, settings, {**sources, "inputs": "command line"}) == {"reward": "none"}
    assert left_out(text, settings, {**sources, "inputs": "config it.yaml", "reward": "keyword"}) == {}
    assert options.is_order("x", {"x": "resume"})


def test_the_loop_ends():
    def refuse(settings):
        raise UserError("--minibatches 32 of nothing")

    settings, _, sources = options.resolve(systems.load("ppo"), env="Pendulum-v1", serial=True, preset="mujoco")
    with pytest.raises(UserError, match=r"^minibatches 32 \(preset mujoco\) of nothing"):
        fitted(settings, sources, refuse)
