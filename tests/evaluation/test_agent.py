"""polyplay/evaluation/agent.py: `polyplay.load`, alone with a run's directory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import polyplay
from polyplay.acting import play
from polyplay.acting.play import PlayOptions
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.numbers import unscale
from polyplay.envs import pool

PARTS = """
import gymnasium, numpy as np
from gymnasium import spaces as gym

class Parts(gymnasium.Env):
    flags = gym.Tuple([gym.MultiBinary(2)])
    observation_space = gym.Dict({"b": gym.Box(-1, 1, (3,)), "a": gym.Discrete(4, start=2), "t": flags})
    action_space = gym.Tuple([gym.Discrete(3, start=-1), gym.Box(-2, 2, (2,), np.float64), gym.MultiDiscrete([2, 3])])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        draw = self.np_random
        flags = (draw.integers(0, 2, 2, np.int8),)
        return {"b": draw.uniform(-1, 1, 3).astype("f"), "a": int(draw.integers(2, 6)), "t": flags}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return self.look(), 1.0, self.t == 9, False, {}
"""


def trained(place: Path, name: str, **options) -> Path:
    env = "Pendulum-v1" if name == "apex_dpg" else "CartPole-v1"
    short = {"env": env, "steps": 100, "serial": True, "tensorboard": False, "run": place / name} | options
    return Path(polyplay.train(name, **short).directory)


def same_as_evaluation(run: Path, rows: int = 60, **options) -> int:
    """Row by row, the action that the evaluation's own loop takes is the agent's; how many rows were compared."""
    found = polyplay.load(run, **options)
    how = PlayOptions(1, options.get("seed", 0), epsilon=found._how.epsilon)
    players = [(play.policy_player(found._policy, how), slice(None))]
    state, games = None, play.play_rows(found._envs, 1, how.seed + play.SEED, players)
    for row, (step, expected, _) in enumerate(games):
        if row == rows or step["over"][0]:
            break
        obs = {k: v[0] for k, v in step["obs"].items()} if isinstance(step["obs"], dict) else step["obs"][0]
        action, state = found.act(obs, state, reward=step["reward"])
        assert np.array_equal(action, found._read(expected[0]))
    return row


@pytest.mark.parametrize("name", ["a2c", "apex_dpg", "dqn", "rainbow", "r2d2", "ppo"])  # each kind; the others are long
def test_every_kind_of_policy_acts_as_its_evaluation_to_the_bit(name, tmp_path):
    run = trained(tmp_path, name)
    assert same_as_evaluation(run) > 5
    assert same_as_evaluation(run, seed=3, epsilon=0.5) > 5


def test_each_agent_of_a_league_acts_as_its_evaluation(tmp_path):
    league = {"env": "toy:skirmish", "network": "mlp", "lanes": 16, "batch": 8, "steps": 160}
    run, returns = trained(tmp_path, "league", **league), []
    for whose in (0, 1):
        found = polyplay.load(run, agent=whose)
        returns.append(found.evaluate(episodes=4, seed=3, greedy=True)["returns"])
        assert returns[-1] == polyplay.evaluate(run, 4, 3, agent=str(whose), greedy=True, device="cpu")["returns"]
    assert returns[0] != returns[1]
    first, best = polyplay.load(run), polyplay.load(run, agent="best")
    assert first.evaluate(episodes=4, seed=3, greedy=True)["returns"] == returns[0]
    assert best.evaluate(episodes=4, seed=3, greedy=True)["returns"] in returns
    action, state = first.act(np.zeros((3, 5), np.float32))
    assert (action.shape, state.lanes) == ((3,), 3)
    assert (first.spec.seats, first.spec.teams, sorted(first.spec.bots)) == (4, (0, 0, 1, 1), ["focus", "opposite"])
    with pytest.raises(UserError, match="agent: '2' given, allowed: best, 0, 1"):
        polyplay.load(run, agent=2)


@pytest.mark.parametrize("name", ["impala", pytest.param("ppo", marks=pytest.mark.long)])
def test_networks_with_memory(name, tmp_path):
    run = trained(tmp_path, name, core="lstm")
    assert same_as_evaluation(run) > 5
    found, obs = polyplay.load(run), np.array([0.1, 0.2, -0.1, 0.0], np.float32)
    _, state = found.act(obs)
    assert found.value(obs, state) != found.value(obs) == found.value(obs)


UNITS = {  # what a learner did to rewards or values, by hand; the last ones are long
    "a2c": ({"reward": "none", "reward_scale": 0.1}, lambda v, net: v * 10.0),
    "ppo": ({"reward": "scale"}, lambda v, net: v / float(net.returns.scale())),
    "r2d2": (
        {"batch": 8, "unroll": 10, "sequence": 10, "burn_in": 0, "core_size": 16},
        lambda v, net: unscale(v, 1e-3),
    ),
    "a3c": ({"reward": "sign", "reward_scale": 0.1, "workers": 1}, lambda v, net: v),
}


@pytest.mark.parametrize("name", UNITS)
def test_values_are_in_the_environments_units(name, tmp_path):
    settings, by_hand = UNITS[name]
    found = polyplay.load(trained(tmp_path, name, network="mlp", **{"steps": 300, **settings}))
    obs = np.random.default_rng(0).normal(size=(4, *found.observation_space.shape)).astype(np.float32)
    step, *_ = found._step(obs, None, None, None)
    own = found._choose(step, None, True)[1]
    assert found.value(obs) == pytest.approx(np.float64(by_hand(own, found._policy)), rel=1e-5)
    assert (found.value(obs).dtype, type(found.value(obs[0]))) == (np.float32, float)
    if name == "ppo":
        assert float(found._policy.returns.scale()) != 1.0, "nothing to undo"


def test_a_fresh_process_needs_the_directory_alone(tmp_path, monkeypatch):
    """The environment's module is gone; tuples, dicts, starts and doubles are as it declared them."""
    place = tmp_path / "there"
    place.mkdir()
    (place / "parts_env.py").write_text(PARTS)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    run = trained(place, "ppo", env="parts_env:Parts", steps=60)
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    shutil.rmtree(place)
    code = """
import json, numpy as np, polyplay
agent = polyplay.load("moved", trust=True)
obs = agent.observation_space.sample()
action, state = agent.act(obs)
assert agent.action_space.contains(action), action
several, _ = agent.act({"b": np.zeros((5, 3), "f"), "a": np.full(5, 3), "t": (np.zeros((5, 2), np.int8),)})
print(json.dumps([[list(np.shape(part)) for part in several], isinstance(agent.value(obs), float), agent.system]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[[5], [5, 2], [5, 2]], True, "ppo"]


@pytest.fixture(scope="module")
def cart(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("cart"), "ppo")


def test_a_batch_is_its_rows_of_any_type_of_real_numbers(cart):
    found, obs = polyplay.load(cart), np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    assert found.act(obs, greedy=True)[0].tolist() == [int(found.act(row, greedy=True)[0]) for row in obs]
    assert found.value(obs).tolist() == [found.value(row) for row in obs]
    whole = np.array([[0, 1, 0, 1], [1, 1, 0, 0]], np.float32)
    for dtype in (np.float64, np.float16, np.int64, bool):
        assert found.value(whole.astype(dtype)).tolist() == found.value(whole).tolist()


def test_predict_is_stable_baselines_signature(cart):
    found, obs = polyplay.load(cart), np.zeros((3, 4), np.float32)
    action, state = found.predict(obs, None, np.ones(3, bool), "deterministic")
    assert action.tolist() == found.act(obs, greedy=True)[0].tolist()
    assert found.predict(obs, state, episode_start=np.array([True, False, False]))[0].shape == (3,)
    agents = polyplay.load(cart), polyplay.load(cart), polyplay.load(cart, seed=1)
    actions, again, other = ([int(agent.predict(obs[0])[0]) for _ in range(60)] for agent in agents)
    assert 5 < sum(actions) < 55, "calls without a state draw new numbers"
    assert actions == again != other


def test_evaluate_plays_as_the_command_and_writes_nothing(cart):
    before = sorted(cart.iterdir())
    found = polyplay.load(cart)
    assert found.evaluate(episodes=3)["returns"] == polyplay.evaluate(cart, episodes=3)["returns"]
    for file in cart.glob("evaluation-*"):
        file.unlink()
    assert found.evaluate(lambda: gymnasium.make("CartPole-v1"), episodes=2)["episodes"] == 2
    assert sorted(cart.iterdir()) == before


def test_a_checkpoint_by_its_directory_number_or_name(cart):
    newest = max((cart / "checkpoints").glob("[0-9]*"))
    for place, which in ((newest, None), (cart, newest.name), (cart, checkpoint.update_of(newest))):
        assert polyplay.load(place, checkpoint=which).checkpoint == newest
    assert repr(polyplay.load(newest)).startswith("<polyplay.Agent ppo, ")
    with pytest.raises(UserError, match="--checkpoint: '99999999' given, allowed: best, "):
        polyplay.load(cart, checkpoint=99_999_999)
    with pytest.raises(UserError, match="epsilon: 2 given, allowed: from 0 to 1"):
        polyplay.load(cart, epsilon=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.act(np.zeros(3, np.float32)), r"obs: declared float32 \[4\], given float32 \[3\]"),
        (lambda a: a.act(np.zeros(3)), r"obs: declared float32 \[4\], given float64 \[3\]"),
        (lambda a: a.act(np.zeros(4, complex)), r"obs: declared float32 \[4\], given complex128 \[4\]"),
        (lambda a: a.act(np.full(4, np.nan)), r"obs: nan at \[0\] of an observation, 4 of 4 values not finite"),
        (lambda a: a.act((np.zeros(4), {})), r"obs: a tuple of 2 given; reset\(\) returns .*: pass only the"),
        (lambda a: a.act(np.zeros((0, 4))), "obs: the batch is empty; pass at least one observation"),
        (lambda a: a.act(np.zeros(4), 3), "state: 3 is not a policy state; pass None or the previous call's state"),
        (lambda a: a.predict(np.zeros(4), (1, 2)), r"state: \(1, 2\) is not a policy state"),
        (
            lambda a: a.act(np.zeros((2, 4), np.float32), a.act(np.zeros(4, np.float32))[1]),
            "state: of 1 episodes",
        ),
        (lambda a: a.act(np.zeros(4, np.float32), mask=np.ones(2)), "mask: given, but this environment has no masks"),
        (lambda a: a.evaluate("Acrobot-v1"), r"env: Acrobot-v1 shows .*\[6\].* but the agent takes .*\[4\]"),
    ],
)
def test_what_does_not_fit_is_a_line(cart, call, message):
    with pytest.raises(UserError, match=message) as e:
        call(polyplay.load(cart))
    assert "\n" not in str(e.value)


def test_no_run_and_damaged_spaces(cart, tmp_path):
    with pytest.raises(UserError, match="no run at"):
        polyplay.load(tmp_path / "nothing")
    broken = tmp_path / "broken"
    shutil.copytree(cart, broken)
    for text in ("{", "[]", '{"schema": 2}', '{"schema": 1, "observation": {"kind": "Sphere"}, "action": {}}'):
        (broken / pool.FILE).write_text(text)
        with pytest.raises(UserError, match=r"spaces\.json is damaged: .*put back a copy of it"):
            polyplay.load(broken)
    (broken / pool.FILE).unlink()
    assert polyplay.load(broken).act(np.zeros(4, np.float32))[1].acts == 1
