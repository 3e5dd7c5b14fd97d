from __future__ import annotations

import subprocess
import sys
import textwrap

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from polyplay.core.errors import UserError
from polyplay.envs import Discrete, Envs
from polyplay.envs.build import factory
from tests.envs import faulty


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
        ("SeaquestNoFrameskip-v7", "did you mean 'ALE/Seaquest-v5'"),
        ("Pong-v5", "did you mean 'ALE/Pong-v5'"),
        ("space_invaders-v1", "did you mean 'ALE/SpaceInvaders-v5'"),
        ("BrekoutNoFrameskip-v4", "did you mean 'ALE/Breakout-v5'"),
        ("Pongg-v0", "did you mean 'ALE/Pong-v5'"),
        ("blackjack-v0", "did you mean 'Blackjack-v1'"),  # the card game of Gymnasium's own
        ("toy_catch", "did you mean 'toy:catch'"),
        (
            "no_such_module:make",
            r"--env: no_such_module:make given, no module 'no_such_module'; it must .*; allowed: a Gymnasium id, ",
        ),
        ("my_broken:make", "no module 'nothing_like_this', which my_broken imports"),
        ("my_bug:make", "importing my_bug failed: ZeroDivisionError"),
        ("my_games:mak", "my_games has no 'mak', did you mean 'make'"),
        ("my_games:answer", "--env: my_games:answer given, answer is no callable but int; allowed: a Gymnasium id"),
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
        ("BreakoutNoFrameskip-v4", "--env ALE/Breakout-v5 --atari baselines, as most wrap it"),
        ("Pong-v0", "--env ALE/Pong-v5 --atari dopamine, with its sticky actions"),
        ("SpaceInvadersDeterministic-v4", "--env ALE/SpaceInvaders-v5 --atari baselines"),
        ("MsPacmanNoFrameskip-v0", "--env ALE/MsPacman-v5 --atari dopamine"),
        ("breakout-v4", "--env ALE/Breakout-v5 --atari baselines"),
        ("ale_py:Pong-v0", "--env ALE/Pong-v5 --atari dopamine"),
        ("PongNoFrameskip", "--env ALE/Pong-v5; allowed"),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["unregistered", "registered"])
def test_atari_games_by_the_ids_of_old(name, write, known):
    """Also where a process has ale-py's, and for check."""
    if known:
        pytest.importorskip("ale_py")
    with pytest.raises(UserError) as e:
        factory(name, {"frameskip": 4} if known else {})
    assert str(e.value).startswith(f"--env: {name} given, which shows the whole screen: write {write}")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("Breakout-ram-v4", "Breakout-v4"),
        ("Breakout-ramNoFrameskip-v0", "BreakoutNoFrameskip-v0"),
        ("mspacman-ramdeterministic-v4", "MsPacmanDeterministic-v4"),
    ],
)
def test_ids_that_name_a_games_memory(name, write):
    pytest.importorskip("ale_py")
    with pytest.raises(UserError) as e:
        factory(name, {})
    line = f"--env: {name} given, which ale-py no longer has: write --env {write} --env-kwargs obs_type=ram;"
    assert str(e.value).startswith(line)


def test_ids_of_old_are_known_in_a_process_that_has_not_imported_ale_py():
    """What `check` accepts, whose process has imported it, a run accepts too."""
    pytest.importorskip("ale_py")
    script = "from polyplay.envs.build import factory; print(factory('PongNoFrameskip-v4', {'obs_type': 'ram'}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PongNoFrameskip-v4" in done.stdout


def test_atari_ids_of_old_stay_where_they_are_meant(module, monkeypatch):
    pytest.importorskip("ale_py")
    factory("PongNoFrameskip-v4", {"obs_type": "ram"})
    factory("PongNoFrameskip-v4", {"wrappers": ("my_games:make",)})
    monkeypatch.setitem(gymnasium.registry, "Freeway-v4", EnvSpec("Freeway-v4", entry_point=faulty.Obedient))
    assert factory("Freeway-v4", {})().unwrapped.action_space.n == 10


def test_a_wrong_keyword_and_a_wrong_version_are_the_users(module):
    with pytest.raises(UserError, match="--env-kwargs: colour given, which my_games:make does not take; leave it out"):
        Envs("my_games:make", 1, options={"colour": 3}, inline=True).spec  # noqa: B018
    with pytest.raises(UserError, match=r"CartPole-v9.*did you mean 'CartPole-v1'"):
        Envs("CartPole-v9", 1, inline=True).spec  # noqa: B018
    with pytest.raises(UserError, match="makes 2 environments, but a group of the pool has lanes=1"):
        Envs(lambda: gymnasium.make_vec("CartPole-v1", 2), 1, inline=True).spec  # noqa: B018


class Later(gymnasium.Env):
    """Its spaces are not known before a reset."""

    action_space = gymnasium.spaces.Discrete(2)

    @property
    def observation_space(self):
        raise NotImplementedError("no level\nyet")


def test_a_space_that_raises_is_told_on_one_line():
    with pytest.raises(UserError, match=r"Later: could not be built: NotImplementedError: no level yet \(test_build"):
        Envs(Later, 1, inline=True).spec  # noqa: B018


class Sized(faulty.Obedient):
    def __init__(self, size, *, depth):
        super().__init__(size)


def inside():
    return Sized()


def test_what_an_environment_needs_to_be_built_is_told():
    with pytest.raises(UserError, match=r"which Sized needs to be built: --env-kwargs size=VALUE$"):
        Envs(Sized, 1, inline=True).spec  # noqa: B018
    with pytest.raises(UserError, match=r"which Sized needs to be built: --env-kwargs depth=VALUE$"):
        Envs(Sized, 1, inline=True, options={"size": 3}).spec  # noqa: B018
    with pytest.raises(UserError, match=r"inside: could not be built: TypeError.*missing 1 required"):
        Envs(inside, 1, inline=True).spec  # noqa: B018
