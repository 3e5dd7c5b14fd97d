"""What is no environment, and what the message says to write."""

from __future__ import annotations

import json
import textwrap
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

import polyplay
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters
from polyplay.envs import Discrete, Envs
from polyplay.envs.build import build_env, factory, not_an_env
from polyplay.runs.flags import read_assignments
from tests.envs import faulty, players
from tests.envs.faulty import Obedient


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the working directory that registers an environment and offers factories."""
    (tmp_path / "my_games.py").write_text(
        textwrap.dedent(
            """
            import gymnasium
            from gymnasium.envs.classic_control import CartPoleEnv

            gymnasium.register("Local-v3", entry_point=CartPoleEnv, max_episode_steps=9)
            gymnasium.register("Plain", entry_point=CartPoleEnv)
            answer = 42

            def make(**kw):
                return CartPoleEnv(**kw)

            class Many:
                @staticmethod
                def easy():
                    return CartPoleEnv()
            """
        )
    )
    (tmp_path / "my_broken.py").write_text("import nothing_like_this")
    (tmp_path / "my_bug.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)


def test_names_become_environments(module):
    for name in ("CartPole-v1", "my_games:make", "my_games:Local-v3", "my_games:Many.easy", "my_games:Plain"):
        env = factory(name, {})()
        assert isinstance(env, gymnasium.Env)
        assert env.action_space.n == 2
    assert factory("my_games:Local-v3", {})().spec.max_episode_steps == 9
    assert factory(faulty.Obedient, {"length": 3})().length == 3
    assert factory("my_games:make", {"sutton_barto_reward": True})()._sutton_barto_reward
    assert factory("CartPole-v1", {"max_episode_steps": 3})().spec.max_episode_steps == 3


def test_a_module_of_the_working_directory_serves_a_process_pool(module):
    envs = Envs("my_games:Local-v3", 1, workers=1)
    assert envs.spec.action == Discrete(2)
    assert envs.spec.describe["time limit"] == "9 steps"
    pool = envs.open(0)
    try:
        assert pool.recv(60)[1]["first"].all()
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("CartPloe-v1", "--env: unknown environment 'CartPloe-v1', did you mean 'CartPole-v1'"),
        ("CartPole-v9", "did you mean 'CartPole-v1'"),
        ("SeaquestNoFrameskip-v7", "did you mean 'ALE/Seaquest-v5'"),
        ("blackjack-v0", "did you mean 'Blackjack-v1'"),  # the card game of Gymnasium's own
        ("toy_catch", "did you mean 'toy:catch'"),
        (
            "no_such_module:make",
            r"--env: no_such_module:make given, no module 'no_such_module'; it must .*; allowed: a Gymnasium id, ",
        ),
        ("my_broken:make", "no module 'nothing_like_this', which my_broken imports"),
        ("my_bug:make", "importing my_bug failed: ZeroDivisionError"),
        ("my_games:mak", "my_games has no 'mak', did you mean 'make'"),
        ("my_games:answer", "--env: my_games:answer given, answer must be callable, not int; allowed: a Gymnasium id"),
        ("my_games:Lokal-v3", "unknown environment 'Lokal-v3', did you mean 'Local-v3'"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(module, name, says):
    with pytest.raises(UserError, match=says) as e:
        factory(name, {})
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("Breakout-ram-v4", "Breakout-v4 --env-kwargs obs_type=ram"),
        ("Pong-ramNoFrameskip-v0", "PongNoFrameskip-v0 --env-kwargs obs_type=ram"),
        ("Pong-ramDeterministic-v4", "PongNoFrameskip-v4 --env-kwargs obs_type=ram frameskip=4"),
    ],
)
def test_ids_of_the_memory_of_atari_games(name, write):
    pytest.importorskip("ale_py")
    with pytest.raises(UserError) as e:
        factory(name, {})
    assert str(e.value) == f"--env: {name} given, which shows the console's memory: write --env {write}"


def test_atari_ids_of_old_stay_where_they_are_meant(module, monkeypatch):
    pytest.importorskip("ale_py")
    factory("PongNoFrameskip-v4", {"obs_type": "ram"})
    assert factory("PongDeterministic-v0", {"obs_type": "ram"}).keywords["frameskip"] == 4
    factory("PongNoFrameskip-v4", {"wrappers": ("my_games:make",)})
    monkeypatch.setitem(gymnasium.registry, "Freeway-v4", EnvSpec("Freeway-v4", entry_point=faulty.Obedient))
    assert factory("Freeway-v4", {})().unwrapped.action_space.n == 10


class Duck:
    """As an environment, but none."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (3,)), spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, True, False, {}


def env_with(name, **parts):
    spaces_of_duck = {"observation_space": Duck.observation_space, "action_space": Duck.action_space}
    return type(name, (gymnasium.Env,), {**spaces_of_duck, **parts})()


OfGym = type("OfGym", (Duck,), {"__module__": "gym.envs.classic"})
GymSpace = type("Discrete", (), {"__module__": "gym.spaces.discrete"})


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Duck(), "returned Duck, which is not a gymnasium.Env: inherit from gymnasium.Env, or give"),
        (
            env_with("OldButInherits", reset=lambda self: 0),
            "reset() of OldButInherits takes no seed, as gym's before 0.26: write def reset(self",
        ),
        (env_with("NoActions", action_space=None), "action_space of NoActions is None: set it in __init__"),
        (
            env_with("NoObservations", observation_space=None),
            "observation_space of NoObservations is None: set it in __init__",
        ),
        (env_with("Number", action_space=4), "action_space of Number is int 4, not a space: set it in __init__"),
        (
            env_with("OldSpace", action_space=GymSpace()),
            "action_space of OldSpace is a space of gym, which gymnasium replaced: import gymnasium as gym",
        ),
        (OfGym(), "returned OfGym, an environment of gym, which gymnasium replaced: import gymnasium as gym"),
        (Obedient, "returned the class Obedient, not an environment: return Obedient()"),
        (None, "returned None, which is not a gymnasium.Env: inherit"),
    ],
)
def test_one_line_says_what_to_write(made, says):
    assert not_an_env(made).startswith(says)
    with pytest.raises(UserError, match="rule build; polyplay check ENV explains") as e:
        build_env(lambda: made, "env:make")
    assert str(e.value).startswith(f"env:make: {says}")
    assert "\n" not in str(e.value)


# MiniGrid's observations: symbols for one-hot inputs, without the mission.


NAME = "minigrid:MiniGrid-MemoryS7-v0"


def test_a_name_without_its_package_is_completed() -> None:
    with pytest.raises(UserError, match="did you mean 'minigrid:MiniGrid-Nothing-v0'"):
        Envs("MiniGrid-Nothing-v0", 1).spec  # noqa: B018


def test_cells_and_direction_are_symbols_unless_other_wrappers_take_their_place() -> None:
    pytest.importorskip("minigrid")
    spec = Envs(NAME, 1).spec
    assert spec.obs == {"direction": Field((), "int64"), "image": Field((7, 7, 3), "uint8")}
    assert (spec.classes["direction"], spec.classes["image"]) == (4, (11, 6, 3) * 49)
    assert "the mission, a text, is left out" in spec.describe["observation"]
    flat = Envs(NAME, 1, options={"wrappers": ("minigrid.wrappers:FlatObsWrapper",)})
    assert flat.spec.obs == Field((2835,), "uint8")


# --env-kwargs and --wrapper: options and wrappers of environments, from the command line to the run that is opened.


WRAPPERS = """
import gymnasium
import numpy as np

def halved(env):
    return gymnasium.wrappers.TransformReward(env, lambda r: r / 2)

def doubled(env):
    return gymnasium.wrappers.TransformObservation(env, lambda x: 2 * x, env.observation_space)

def refused(env):
    raise ValueError("no licence")

def forgotten(env):
    halved(env)

answer = 42

class Levels(gymnasium.Env):  # shows and pays the level that reset() got
    observation_space = gymnasium.spaces.Box(-1, 99, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level = np.array([-1.0 if options is None else options["level"]], np.float32)
        self.steps = 0
        return self.level, {}

    def step(self, action):
        self.steps += 1
        return self.level, float(self.level[0]), self.steps == 5, False, {}

class Older(Levels):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)

def levels(num_envs, **how):
    return gymnasium.vector.SyncVectorEnv([Levels] * num_envs, **how)

def levels_of_its_own(num_envs):
    env = levels(num_envs)
    env.__class__ = type("Own", (type(env),), {})
    return env

def curriculum(progress):
    return {"level": round(10 * progress)}

def number(progress):
    return 3

def broken(progress):
    return {"level": 1 / 0}
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
    def first_rows(**how):
        with closing(Envs("CartPole-v1", 1, inline=inline, **how).open(0)) as pool:
            lanes, step = pool.recv()
            first = step["obs"].copy()
            pool.send(lanes, np.zeros(1, np.int64))
            return first, float(pool.recv()[1]["reward"][0])

    wrapped, reward = first_rows(wrappers=("my_wrappers:halved", "my_wrappers:doubled"))
    plain, none = first_rows(kwargs={"sutton_barto_reward": True})
    np.testing.assert_allclose(wrapped, 2 * plain, rtol=1e-6)
    assert (reward, none) == (0.5, 0.0)


def test_a_run_has_them_whenever_it_is_opened_and_is_trusted(here, monkeypatch):
    options = {"env": "CartPole-v1", "steps": 64, "serial": True, "run": "run", "tensorboard": False}
    run = polyplay.train("a2c", wrapper=("my_wrappers:halved",), env_kwargs={"max_episode_steps": 4}, **options)
    assert run.evaluate(episodes=3)["returns"] == [2.0] * 3
    assert json.loads((here / "run" / "config.json").read_text())["options"]["env_kwargs"] == ["max_episode_steps=4"]
    monkeypatch.setenv("XDG_DATA_HOME", str(here / "another"))
    with pytest.raises(UserError, match=r"its --wrapper my_wrappers:halved would execute .*my_wrappers\.py"):
        polyplay.evaluate("run", episodes=1)
    with pytest.raises(UserError, match="was made elsewhere"):
        polyplay.train("a2c", resume="auto", **options)


def test_values_are_literals_or_text():
    words = ("a=1", "b=-2.5", "c=true", "d=rgb_array", "e=[1, 2]", "f=None", "g=a=b")
    expected = {"a": 1, "b": -2.5, "c": True, "d": "rgb_array", "e": [1, 2], "f": None, "g": "a=b"}
    assert read_assignments("env_kwargs", words) == expected


HOW = [
    {"name": "my_wrappers:Levels", "inline": True},
    {"name": "my_wrappers:Levels", "workers": 2},
    {"name": "my_wrappers:levels", "inline": True},
]


@pytest.mark.parametrize("how", HOW)
def test_every_reset_gets_the_options_or_those_of_the_run_s_progress(here, how):
    """Single environments and vector ones, which then are made in mode DISABLED. Without a run the progress is 1."""

    def levels(run=None, **given):
        with closing(Envs(lanes=2, progress=run, **how, **given).open(0)) as pool:
            for _ in range(12):
                lanes, step = pool.recv()
                if step["first"].all():
                    yield step["obs"][:, 0].tolist()
                if run is not None:
                    run.set("remaining", run.remaining - 0.05)
                pool.send(lanes, np.zeros(2, np.int64))

    assert [*levels(reset_options={"level": 7})] == [[7.0, 7.0]] * 2
    assert [*levels(reset_options="my_wrappers:curriculum")] == [[10.0, 10.0]] * 2
    run = Hyperparameters(remaining=1.0)
    assert [*levels(run, reset_options="my_wrappers:curriculum")] == [[0.0, 0.0], [3.0, 3.0]]


@pytest.mark.parametrize("system", ["a2c", "impala"])
def test_a_curriculum_follows_a_run_and_goes_on_with_it(here, system):
    """Games of 5 steps whose return is 5 times the level; the level is a tenth of the progress."""
    alone = {"replicas": 1} if system == "a2c" else {"actors": 1}
    options = {"env": "my_wrappers:Levels", "network": "mlp", "lanes": 4, "unroll": 5, "reward": "none", **alone}
    options |= {"serial": True, "tensorboard": False, "env_options": ("my_wrappers:curriculum",)}
    run = polyplay.train(system, steps=1000, run="run", **options)

    def played():
        lines = (here / "run" / "episodes.jsonl").read_text().splitlines()
        return [json.loads(line)["episodic_return"] / 5 for line in lines]

    levels = played()
    assert levels == sorted(levels)
    assert {*levels} >= {*map(float, range(10))}
    polyplay.resume("run", steps=2000)
    more = played()[len(levels) :]
    assert (min(more), max(more)) == (5.0, 10.0), "half of the longer run is done"
    assert run.evaluate(episodes=2)["returns"] == [50.0, 50.0]
    assert json.loads((here / "run" / "config.json").read_text())["options"]["env_options"] == [*options["env_options"]]


def test_python_gives_options_as_a_dict_or_a_function(here):
    import my_wrappers

    common = {"env": "my_wrappers:Levels", "network": "mlp", "lanes": 4, "replicas": 1, "reward": "none"}
    common |= {"steps": 200, "serial": True, "tensorboard": False}
    run = polyplay.train("a2c", env_options={"level": 2}, run="run", **common)
    assert run.evaluate(episodes=2)["returns"] == [10.0, 10.0]
    run = polyplay.train("a2c", env_options=my_wrappers.curriculum, run="another", **common)
    assert run.evaluate(episodes=2)["returns"] == [50.0, 50.0]
    assert polyplay.check(my_wrappers.Levels, reset_options={"level": 2}, steps=50).status == 0


def test_matches_of_several_players_get_options_too():
    seen = []

    class Match(players.Scripted):
        def reset(self, seed=None, options=None):
            seen.append(options)
            return super().reset(seed)

    with closing(Envs(lambda: Match(length=2), 3, inline=True, reset_options={"level": 7}).open(0)) as pool:
        for _ in range(4):
            lanes, _row = pool.recv()
            pool.send(lanes, np.zeros(3, np.int64))
    assert seen
    assert all(given == {"level": 7} for given in seen)


RETURNS = r"allowed: NAME=VALUE …, or module:callable, a function of the run's progress \(0 to 1\) that returns a dict"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_options": ("level",)}, "--env-options: level given, allowed: NAME=VALUE, as in"),
        ({"env_options": ("a=1", "my_wrappers:number")}, "my_wrappers:number given with others, allowed: one module:"),
        ({"env_options": ("my_wrappers:curricula",)}, "has no 'curricula', did you mean 'curriculum'"),
        ({"env_options": ("absent:one",)}, f"--env-options: absent:one given, no module 'absent'; .*{RETURNS}"),
        ({"env_options": ("my_wrappers:answer",)}, f"answer must be callable, not int; {RETURNS}"),
        ({"env_options": ("my_wrappers:number",)}, f"number given, it returned int 3 at progress 0; {RETURNS}"),
        ({"env_options": ("my_wrappers:broken",)}, f"broken given, it raised ZeroDivisionError: .*; {RETURNS}"),
        (
            {"env": "my_wrappers:Older", "env_options": ("level=1",)},
            r"--env-options: given, but reset\(\) of Older takes none: write def reset",
        ),
        (
            {"env": "my_wrappers:levels_of_its_own", "env_options": ("level=1",), "lanes": 2},
            "--env-options: given, but Own resets lanes by itself, without options: make it in mode DISABLED, or give",
        ),
        ({"env": "toy:catch", "env_options": ("level=1",)}, "--env-options: toy:catch does not support it"),
        ({"env": "ALE/Pong-v5", "env_options": ("level=1",)}, "--env-options: ALE/Pong-v5 does not support it"),
        ({"env_kwargs": ("gravity",)}, "--env-kwargs: gravity given, allowed: NAME=VALUE, as in"),
        ({"wrapper": ("halved",)}, "--wrapper: halved given, allowed: module:callable"),
        (
            {"wrapper": ("my_wrappers:half",)},
            "--wrapper: my_wrappers:half given, my_wrappers has no 'half', did you mean 'halved'",
        ),
        ({"wrapper": ("absent:half",)}, f"--wrapper: absent:half given, no module 'absent'; it must .*{AROUND}"),
        ({"wrapper": ("my_wrappers:answer",)}, f"my_wrappers:answer given, answer must be callable, not int; {AROUND}"),
        ({"wrapper": ("my_wrappers:refused",)}, f"refused given, it raised ValueError: no licence .*; {AROUND}"),
        (
            {"wrapper": ("my_wrappers:forgotten",)},
            f"--wrapper: my_wrappers:forgotten given, it returned None; {AROUND}",
        ),
        ({"env_kwargs": ("gravity=1",)}, f"--env-kwargs: gravity given, which CartPole-v1 does not take; {OWN}"),
        ({"env_kwargs": ("render_mod=1",)}, "render_mod given, .*, did you mean 'render_mode'"),
        ({"env": "my_wrappers:refused", "env_kwargs": ("depth=1",)}, "depth given, .*; allowed: env; leave it out"),
        ({"env": "toy:catch", "wrapper": ("my_wrappers:halved",)}, "--wrapper: toy:catch does not support it"),
        ({"env": "toy:catch", "env_kwargs": ("rws=3",)}, "--env-kwargs: toy:catch: unknown option 'rws', did you mean"),
    ],
)
def test_mistakes_are_a_line(here, options, message):
    with pytest.raises(UserError, match=message) as e:
        polyplay.train("a2c", **{"env": "CartPole-v1", "steps": 10, "serial": True, "run": "run"} | options)
    assert "\n" not in str(e.value)
    assert not (here / "run").exists()
