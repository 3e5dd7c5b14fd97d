"""polyplay/systems/_presets.py and tuned.toml: which preset fits which environment, and what it changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.runs import flags, options
from polyplay.systems import _presets
from polyplay.workers.crew import Crew

PAGES = {name: systems.load(name) for name in systems.ordinary()}
SECTIONS = [(name, domain) for name, page in PAGES.items() for domain in _presets.tuned(page)]
CLASSIC = [name for name in PAGES if name not in ("apex_dpg", "alphago_zero", "five", "ftw", "league")]


DOCS = Path(__file__).parents[2] / "docs" / "systems"
COMMON: dict[str, Any] = {"normalize_advantage": True, "max_grad_norm": 0.5, "entropy_cost": 0.0, "clip_range": 0.2}
COMMON |= {"optimizer_eps": 1e-5, "network": "separate"}  # 64 and 64 units, tanh
THEIRS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, str]]] = {  # numbers, and words about those that differ
    ("ppo", "mujoco"): (  # vwxyzjn/cleanrl, ppo_continuous_action.py
        COMMON
        | {"lanes": 1, "unroll": 2048, "epochs": 10, "minibatches": 32, "gamma": 0.99, "lam": 0.95}
        | {"learning_rate": 3e-4, "anneal": "rate", "value_cost": 0.25, "value_clip": True, "actions": "clip"}
        | {"inputs": "normalize", "reward": "scale", "budget": 1_000_000},
        {
            "lanes": "1 lane of 2,048 steps",
            "unroll": "8 lanes of 256 steps",
            "anneal": "a constant clip range",
            "value_cost": "half of 0.5 (R − V)²",
            "value_clip": "the change of the value is clipped",
            "budget": "1M steps",
        },
    ),
    ("ppo", "classic"): (  # DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml, CartPole-v1; Stable-Baselines3's defaults
        COMMON
        | {"lanes": 8, "unroll": 32, "epochs": 20, "minibatches": 1, "gamma": 0.98, "lam": 0.8}
        | {"learning_rate": 1e-3, "anneal": "linear", "value_cost": 0.5, "value_clip": False, "budget": 100_000}
        | {"inputs": "raw", "reward": "none"},
        {"epochs": "20 epochs", "budget": "100k steps"},
    ),
}


def resolved(name: str, **given):
    return options.resolve(PAGES[name], **given)


@pytest.mark.parametrize(("name", "domain"), SECTIONS)
def test_every_section_is_of_known_fields_within_their_ranges_and_builds(name, domain):
    page, section = PAGES[name], dict(_presets.tuned(PAGES[name])[domain])
    assert section.pop("source")
    types = flags.option_types(page.Config)
    for env in (None, *section.pop("envs", {})):
        c = _presets.settings(page, domain, env)
        for field in dataclasses.fields(c):
            flags.check_value(field.name, getattr(c, field.name), types[field.name])
        assert (getattr(c, "reward", "none") in _presets.CLIPPED) == (domain == "atari")
    if domain == "classic":
        assert page.build(_presets.settings(page, domain), Crew(0)).policy()


@pytest.mark.parametrize(("name", "domain"), THEIRS)
def test_what_differs_from_the_code_that_a_preset_is_named_after_is_told(name, domain):
    theirs, words = THEIRS[name, domain]
    ours, page = vars(_presets.settings(PAGES[name], domain)), (DOCS / f"{name}.md").read_text()
    assert {k for k, value in theirs.items() if ours[k] != value} == set(words)
    assert [text for text in words.values() if text not in page] == []


def test_no_other_preset_names_code_that_it_is_after():
    named = {(name, domain) for name, domain in SECTIONS if "tuned here" not in _source(name, domain)}
    assert named == {*THEIRS, ("dqn", "atari"), ("apex_dpg", "classic")}  # those two are presets of their pages


def _source(name, domain):
    return _presets.tuned(PAGES[name])[domain]["source"]


@pytest.mark.parametrize("name", CLASSIC)
def test_cartpole_gets_settings_for_it_and_atari_the_papers(name):
    settings, chosen, sources = resolved(name, env="CartPole-v1")
    assert chosen.preset == "classic"
    assert sources["budget"] == "preset classic"
    assert settings.env == "CartPole-v1"
    settings, chosen, _ = resolved(name, env="ALE/Breakout-v5")
    lanes = {"lanes": 16, "unroll": 1} if name == "dqn" else {}
    assert chosen.preset == ("atari" if lanes else "paper")
    assert settings == dataclasses.replace(PAGES[name].PRESETS["paper"](), env="ALE/Breakout-v5", **lanes)


def test_the_environment_that_a_page_plays_by_itself_decides_too():
    settings, chosen, sources = resolved("dqn")
    assert (settings.env, settings.lanes, chosen.preset) == ("ALE/Pong-v5", 16, "atari")
    assert sources["lanes"] == "preset atari"
    assert resolved("dqn", preset="paper")[0].lanes == 1
    assert resolved("dqn", env="toy:catch")[0].lanes == 1


def test_what_is_given_wins_over_the_preset():
    settings, chosen, sources = resolved("ppo", env="CartPole-v1", lanes=4, preset="auto")
    assert (settings.lanes, chosen.preset, sources["lanes"]) == (4, "classic", "keyword")
    settings, chosen, _ = resolved("ppo", env="CartPole-v1", preset="paper")
    assert (settings.reward, chosen.preset) == ("clip", "paper")
    assert resolved("ppo", preset="classic")[0].env == "CartPole-v1"


@pytest.mark.parametrize(
    ("env", "domain"),
    [
        ("ALE/Pong-v5", "atari"),
        ("toy:catch", "toy"),
        ("CartPole-v1", "classic"),
        ("game:connect_four", "classic"),
        ("LunarLander-v3", "box2d"),
        ("Hopper-v5", "mujoco"),
        ("module:make", "other"),
        (print, "other"),
    ],
)
def test_domains(env, domain):
    assert _presets.domain(env) == domain


def test_an_environment_of_ones_own_gets_what_fits_its_spaces():
    assert _presets.choose(PAGES["ppo"], lambda: gymnasium.make("CartPole-v1")) == "classic"
    assert _presets.choose(PAGES["ppo"], "toy:catch") == "paper"


def test_actions_are_clipped_only_where_that_is_asked_for_or_a_preset_s_code_does_it():
    """Its own environments by its name, or because they are of its kind; not others that are only likely to fit."""

    def actions(**given) -> str:
        return resolved("ppo", **given)[0].actions

    assert actions(env="HalfCheetah-v5") == "clip"
    assert actions(env="Pendulum-v1") == "scale"
    assert actions(env="Pendulum-v1", preset="mujoco") == "clip"
    assert actions(env="Pendulum-v1", preset="mujoco", actions="scale") == "scale"
    assert actions(env=lambda: gymnasium.make("Pendulum-v1")) == "scale"
    assert actions(env="Pendulum-v1", preset="baselines") == "clip"


def test_rewards_are_clipped_on_atari_only():
    for name in PAGES:
        for env in ("CartPole-v1", "toy:catch", "Acrobot-v1"):
            given = {"env": "Pendulum-v1"} if name == "apex_dpg" else {"env": env}
            assert getattr(resolved(name, **given)[0], "reward", "none") not in _presets.CLIPPED, (name, env)


def test_a_preset_for_other_environments_is_told():
    text = _presets.warning(PAGES["ppo"], "quick", "CartPole-v1")
    assert text.endswith("but CartPole-v1 is of kind classic: omit --preset to use classic")
    assert text.startswith("--preset quick is for atari environments, ")
    assert not _presets.warning(PAGES["ppo"], "classic", "CartPole-v1")
    assert not _presets.warning(PAGES["ppo"], "paper", "ALE/Pong-v5")
    assert "is for classic environments, but ALE/Pong-v5 is of kind atari" in _presets.warning(
        PAGES["ppo"], "classic", "ALE/Pong-v5"
    )


def test_settings_that_are_taken_for_want_of_better_ones_are_told(monkeypatch):
    monkeypatch.setattr(_presets, "domain", lambda env: "mujoco")  # as if: it is an extra
    text = _presets.warning(PAGES["a2c"], "classic", "Pendulum-v1")
    assert text == "a2c has no settings for mujoco environments such as Pendulum-v1: it uses those for classic"


def test_an_unknown_preset_names_all():
    with pytest.raises(UserError, match=r"allowed for ppo: auto, paper, .*classic.*did you mean"):
        resolved("ppo", preset="clasic")


@pytest.mark.parametrize(
    ("given", "network"),
    [
        ({"hidden": (32, 16)}, "separate(32,16)"),
        ({"hidden": (32,), "activation": "relu"}, "separate(32,relu)"),
        ({"activation": "relu", "network": "mlp"}, "mlp(relu)"),
    ],
)
def test_layers_become_part_of_the_networks_name(given, network):
    settings = resolved("ppo", env="CartPole-v1", **given)[0]
    assert settings.network == network
    policy = PAGES["ppo"].build(settings, Crew(0)).policy()
    torso = policy.torso.policy if network.startswith("separate") else policy.torso
    sizes = [layer.out_features for layer in torso.layers if hasattr(layer, "out_features")]
    assert sizes == list(given.get("hidden", (64, 64)))


def test_a_recurrent_core_takes_the_place_of_separate_networks():
    assert resolved("ppo", env="CartPole-v1")[0].network == "separate"
    assert resolved("ppo", env="CartPole-v1", core="lstm")[0].network == "mlp"
    assert resolved("ppo", env="CartPole-v1", core="lstm", hidden=(32,))[0].network == "mlp(32)"


class Pictures(gymnasium.Env):
    """One small image, always the same."""

    observation_space = gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((7, 7, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((7, 7, 3), np.uint8), 0.0, True, False, {}


def test_a_wrapper_decides_what_kind_of_environment_it_is(monkeypatch, tmp_path):
    """Images that a wrapper makes vectors of, and the other way round."""
    (tmp_path / "flat_wrapper.py").write_text(
        "import gymnasium\ndef flat(env):\n    return gymnasium.wrappers.FlattenObservation(env)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert resolved("ppo", env=Pictures)[1].preset == "paper"
    assert resolved("ppo", env=Pictures, wrapper=("flat_wrapper:flat",))[1].preset == "classic"
