"""Presets: the numbers of their sources, which environment gets which, and what auto chose is told."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from polyplay import systems
from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs, make, process_pool
from polyplay.envs.pool import EnvSpec
from polyplay.nets import device
from polyplay.runs import flags, options, plan, terminal
from polyplay.runs.options import RunOptions
from polyplay.search import evaluators
from polyplay.systems import _presets
from polyplay.workers.crew import Crew

TABLE = tomllib.loads((Path(__file__).parent / "published.toml").read_text())

DOCS = Path(__file__).parents[2] / "docs" / "systems"

ABOUT = ("ours", "says", "differs")  # of a page

WIRED = ("parameters", "observation", "actions", "target_steps", "test_epsilon", "beta_end", "alpha")

ALL = [(name, preset) for name in systems.ordinary() for preset in systems.load(name).presets]


def said(name: str, preset: str) -> dict[str, Any]:
    """A preset's lines, with those of the one that it is like."""
    lines = dict(TABLE[name][preset])
    like = lines.pop("like", None)
    return ({} if like is None else said(name, like)) | lines


def wired(name: str, preset: str) -> dict[str, Any]:
    """The configuration, and what became of it in the wiring: every replica's share together."""
    page, crew = systems.load(name), Crew(0)
    config = page.presets[preset]()
    system = page.build(config, crew)
    spec, net = system.envs.spec, system.policy()
    shown = {path: list(field.shape) for path, field in tree.leaves(spec.obs)}
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(config).items()}
    found = given | {"observation": shown.get("", shown), "test_epsilon": system.epsilon}
    found["parameters"] = sum(p.numel() for p in net.parameters())
    if not isinstance(spec.action, dict):
        found["actions"] = int(getattr(spec.action, "n", 0)) or spec.action.shape[0]
    learner = next(role for role in crew.roles if role.learner)
    source = learner.source
    if source is not None and (replay := source.replay) is not None:
        found["alpha"] = getattr(replay.sampler, "alpha", 0.0)
        found["beta_end"] = getattr(replay.sampler, "beta_end", 0.0) or getattr(replay.sampler, "beta", 0.0)
        every = sum(part.every for part in learner.spec.parts if part.vectors)
        updates = every * (1 if learner.spec.update.asynchronous else learner.n)
        found["target_steps"] = updates * replay.batch / (replay.ratio or 1.0)
        whole = learner.n if source.holds_replay else 1
        if name in ("dqn", "rainbow", "accel_dqn"):
            found |= {
                "batch": whole * replay.batch,
                "capacity": whole * replay.capacity,
                "learning_starts": whole * replay.start,
            }
    return found


def test_the_table_has_every_preset_of_every_page():
    there = [(name, preset) for name, page in TABLE.items() for preset in page if preset not in ABOUT]
    assert sorted(there) == sorted(ALL)


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_a_preset_has_the_numbers_of_its_source(name, preset):
    expected, found = said(name, preset), wired(name, preset)
    expected.pop("source")
    differs = {} if preset == "quick" else {k: v[0] for k, v in TABLE[name].get("differs", {}).items()}
    known = {k: found.get(k) for k in expected}
    assert known == {k: _about(k, v) for k, v in expected.items()}
    assert all(found[k] != v for k, v in differs.items()), f"{name}: no longer differs, so docs need not say so"
    placed = set(expected) | set(TABLE[name]["ours"]) | set(TABLE[name].get("differs", {}))
    placed |= {"target_update"} if "target_steps" in expected else set()
    fields = {f.name for f in dataclasses.fields(systems.load(name).Config)}
    assert fields <= placed, f"{name}: say in published.toml where these are from"
    assert placed - fields <= set(WIRED), f"{name}: published.toml names what is no field"


def _about(key: str, value: Any) -> Any:
    """A period in updates is rounded."""
    return pytest.approx(value, rel=0.01 if key == "target_steps" else 1e-9) if type(value) in (int, float) else value


@pytest.mark.parametrize("name", systems.ordinary())
def test_what_differs_is_named_in_the_docs(name):
    text = " ".join((DOCS / f"{name}.md").read_text().split())
    for words in [*TABLE[name].get("says", []), *(v[1] for v in TABLE[name].get("differs", {}).values())]:
        assert words in text, f"docs/systems/{name}.md does not say {words!r}"


PAGES = {name: systems.load(name) for name in systems.ordinary()}

SECTIONS = [(name, domain) for name, page in PAGES.items() for domain in _presets.tuned(page)]

CLASSIC = [
    name for name in PAGES if name not in ("apex_dpg", "apex_sac", "td3", "alphago_zero", "five", "ftw", "league")
]

COMMON: dict[str, Any] = {"normalize_advantage": True, "max_grad_norm": 0.5, "entropy_cost": 0.0, "clip_range": 0.2}

COMMON |= {"optimizer_eps": 1e-5, "network": "separate"}  # 64 and 64 units, tanh

THEIRS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, str]]] = {  # numbers, and words about those that differ
    ("ppo", "mujoco"): (  # vwxyzjn/cleanrl, ppo_continuous_action.py
        COMMON
        | {"lanes": 1, "unroll": 2048, "epochs": 10, "minibatches": 32, "gamma": 0.99, "lam": 0.95}
        | {"learning_rate": 3e-4, "anneal": "rate", "value_cost": 0.25, "value_clip": True, "actions": "clip"}
        | {"inputs": "normalize", "reward": "scale", "frames": 1_000_000},
        {
            "lanes": "1 lane × 2,048 steps",
            "unroll": "8 lanes × 256 steps",
            "anneal": "constant clip range",
            "value_cost": "¼(R − V)², clipped",
            "value_clip": "¼(R − V)², clipped",
            "frames": "1M steps",
        },
    ),
    ("ppo", "classic"): (  # DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml, CartPole-v1; Stable-Baselines3's defaults
        COMMON
        | {"lanes": 8, "unroll": 32, "epochs": 20, "minibatches": 1, "gamma": 0.98, "lam": 0.8}
        | {"learning_rate": 1e-3, "anneal": "linear", "value_cost": 0.5, "value_clip": False, "frames": 100_000}
        | {"inputs": "raw", "reward": "none"},
        {"epochs": "20 epochs", "frames": "100k steps"},
    ),
}


def resolved(name: str, **given):
    return options.resolve(PAGES[name], **given)


@pytest.mark.parametrize(("name", "domain"), SECTIONS)
def test_every_section_is_of_known_fields_within_their_ranges_and_builds(name, domain):
    page, section = PAGES[name], dict(_presets.tuned(PAGES[name])[domain])
    assert section.pop("source")
    section.pop("shown", None)
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
    sources = {(name, domain): _presets.tuned(PAGES[name])[domain]["source"] for name, domain in SECTIONS}
    named = {key for key, source in sources.items() if "tuned here" not in source}
    assert named == {*THEIRS, ("dqn", "atari"), ("apex_dpg", "classic")}  # those two are presets of their pages


@pytest.mark.parametrize("name", CLASSIC)
def test_cartpole_gets_settings_for_it_and_atari_the_papers(name):
    settings, chosen, sources = resolved(name, env="CartPole-v1")
    assert chosen.preset == "classic"
    assert sources["frames"] == "preset classic"
    assert settings.env == "CartPole-v1"
    settings, chosen, _ = resolved(name, env="ALE/Breakout-v5")
    lanes = {"lanes": 16, "unroll": 1} if name == "dqn" else {}
    assert chosen.preset == ("atari" if lanes else "paper")
    assert settings == dataclasses.replace(PAGES[name].presets["paper"](), env="ALE/Breakout-v5", **lanes)


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


def test_a_preset_fits_the_observation_and_the_environment_is_made_once(monkeypatch):
    made = list[str]()
    monkeypatch.setattr(process_pool, "describe", lambda envs: made.append(envs.title) or screens)
    screens = EnvSpec(Field((3, 96, 96), "uint8"), Discrete(3))
    with make.remembering():
        assert _presets.choose(PAGES["ppo"], "CarRacing-v3") == "images"
        assert _presets.choose(PAGES["a2c"], "CarRacing-v3") == "paper"
        assert not _presets.warning(PAGES["ppo"], "paper", "CarRacing-v3")
        assert not _presets.warning(PAGES["ppo"], "images", "CarRacing-v3")
        assert _presets.choose(PAGES["ppo"], "LunarLander-v3", kwargs={"render_mode": "rgb_array"}) == "images"
    assert made == ["CarRacing-v3", "LunarLander-v3"]
    assert Envs("CarRacing-v3", 1).spec is screens
    assert len(made) == 3, "afterwards nothing is remembered"


@pytest.mark.parametrize(
    ("shape", "given", "shown"),
    [
        ((3, 96, 96), {}, (0, False, None)),
        ((3, 240, 320), {}, (0, False, "84x112")),
        ((3, 240, 320), {"size": "120x160"}, (0, False, "120x160")),
        ((3, 240, 320), {"images": "none"}, (0, False, None)),
        ((3, 96, 96), {"env": "CarRacing-v3"}, (2, True, "64")),
        ((3, 96, 96), {"env": "CarRacing-v3", "gray": False, "stack": 4}, (4, False, "64")),
    ],
)
def test_large_images_are_shown_smaller_unless_their_size_is_given(shape, given, shown, monkeypatch):
    spec = EnvSpec(Field(shape, "uint8"), Discrete(3), images=() if given.get("images") else None)
    monkeypatch.setattr(process_pool, "describe", lambda envs: spec)
    options = resolved("ppo", **{"env": "my:make", **given})[1]
    assert (options.stack or 0, options.gray, options.size) == shown


@pytest.mark.parametrize(
    ("name", "env", "given", "skip"),
    [
        ("dqn", "MountainCar-v0", {}, 4),
        ("sac", "MountainCarContinuous-v0", {}, 8),
        ("sac", "MountainCarContinuous-v0", {"frame_skip": 1}, 1),
        ("sac", "MountainCarContinuous-v0", {"preset": "paper"}, None),
        ("sac", "Pendulum-v1", {}, None),
    ],
)
def test_a_preset_may_repeat_actions(name, env, given, skip):
    _, options, sources = resolved(name, env=env, **given)
    assert options.frame_skip == skip
    assert skip is None or sources["frame_skip"] == ("keyword" if given else "preset classic")


def test_actions_are_clipped_only_where_that_is_asked_for_or_a_preset_s_code_does_it():
    """Its own environments by its name, or because they are of its kind; not others that are only likely to fit."""

    def actions(**given) -> str:
        return resolved("ppo", **given)[0].actions

    assert (actions(env="HalfCheetah-v5"), actions(env="Pendulum-v1")) == ("clip", "scale")
    assert actions(env="Pendulum-v1", preset="mujoco") == "clip"
    assert actions(env="Pendulum-v1", preset="mujoco", actions="scale") == "scale"
    assert actions(env=lambda: gymnasium.make("Pendulum-v1")) == "scale"
    assert actions(env="Pendulum-v1", preset="baselines") == "clip"


def test_a_preset_for_other_environments_is_told():
    text = _presets.warning(PAGES["ppo"], "quick", "CartPole-v1")
    assert text.endswith("but CartPole-v1 is of kind classic: omit --preset to use classic")
    assert text.startswith("--preset quick is for atari environments, ")
    assert not _presets.warning(PAGES["ppo"], "classic", "CartPole-v1")
    assert not _presets.warning(PAGES["ppo"], "paper", "ALE/Pong-v5")
    assert "is for classic environments, but ALE/Pong-v5 is of kind atari" in _presets.warning(
        PAGES["ppo"], "classic", "ALE/Pong-v5"
    )


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


def planned(name: str, **given: Any) -> str:
    """The first lines of a plan, whose precision is auto."""
    page, crew = systems.load(name), Crew(0, steps=1_000, precision="auto")
    made = plan.make_plan(crew, page.build(replace(page.presets["quick"](), **given), crew), RunOptions(steps=1_000))
    return "\n".join(f"{head}: {text}" for head, text in terminal.short_facts(made.lines))


@pytest.mark.parametrize(("has", "numbers"), [(True, "bfloat16"), (False, "float32")])
def test_the_precision_that_auto_stands_for_is_named(has: bool, numbers: str, monkeypatch: pytest.MonkeyPatch):
    for module in (device, evaluators):
        monkeypatch.setattr(module, "is_half", lambda how, device="cpu": has if how == "auto" else how == "bfloat16")
    assert f"; networks in {numbers} on the CPU" in planned("a2c", env="toy:catch", network="mlp", inputs="raw")
    told = planned("alphago_zero", env="game:tic_tac_toe", evaluator="torch")
    both = "the fastest of torch in float32, torch in bfloat16, measured when it starts"
    assert f"; self-play by {both if has else 'torch in float32'}" in told
