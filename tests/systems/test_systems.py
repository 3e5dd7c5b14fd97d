"""Systems learn: a balancing, a swing-up and a memory task, as threads, as processes, and in one thread."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.atari import atari_preset
from polyplay.games import toys as toy
from polyplay.learning.unreal import WithAuxiliary
from polyplay.nets import recurrent
from polyplay.runs import options
from polyplay.runs.load import crew_of
from polyplay.runs.run import diagram
from polyplay.systems import _wiring
from tests.reports import rows
from tests.systems.settings import REAL

NET = {"network": "mlp", "optimizer": "adam", "entropy_cost": 0.0, "tensorboard": False, "report_every": 1.0}


TWO_CLOCKS: dict[str, dict[str, Any]] = {
    "a2c": {"lanes": 8, "replicas": 1, "unroll": 5},
    "appo": {"lanes": 8, "batch": 8, "unroll": 8, "minibatches": 2},
    "league": {"env": "toy:rps", "agents": 2, "lanes": 16, "batch": 8, "unroll": 4},
}


@pytest.mark.parametrize("system", TWO_CLOCKS)
def test_a_core_of_two_clocks_trains_everywhere_with_its_divergences(system, tmp_path, monkeypatch):
    """It is small here, where most pages have no setting for that."""

    class Small(recurrent.Temporal):
        def __init__(self, features: int, *_: object):
            super().__init__(features, 8, "orthogonal", None)

    monkeypatch.setattr(recurrent, "Temporal", Small)
    scored, seen = WithAuxiliary.__call__, list[float]()

    def score(self: WithAuxiliary, out: Any, batch: Any, hyperparameters: Any) -> Any:
        found = scored(self, out, batch, hyperparameters)
        seen.extend(float(found.metrics[name]) for name in ("kl_posterior", "kl_prior"))
        return found

    monkeypatch.setattr(WithAuxiliary, "__call__", score)
    settings = {"env": "toy:memory", "network": "mlp", "core": "temporal", "serial": True, "tensorboard": False}
    run = polyplay.train(system, run=str(tmp_path / "run"), steps=200, **{**settings, **TWO_CLOCKS[system]})
    assert run.exit_code == 0
    assert run.summary["steps"] >= 200
    assert len(seen) >= 8
    assert np.isfinite(seen).all()
    assert max(seen[::2]) > 0.01
    assert min(seen) > -1e-5
    logged = [row for row in rows(run.directory / "metrics.jsonl") if row.get("kl_posterior") is not None]
    assert logged


@dataclass(frozen=True)
class Far(toy.CartPole):
    """CartPole with observations far from 0 and of unlike sizes, and large rewards."""

    def see(self, s):
        return (s["x"] * np.array([1, 10, 0.01, 1]) + np.array([100, -50, 3, 0])).astype(np.float32)

    def step(self, s, action, draw):
        s, reward, terminated, truncated = super().step(s, action, draw)
        return s, 1000 * reward, terminated, truncated


def _far(monkeypatch, path, **more):
    monkeypatch.setitem(toy.TOYS, "far", Far)
    settings = dict(lanes=32, unroll=8, steps=20_000, learning_rate=4e-3, gamma=0.98, lam=0.98, anneal="constant")
    how = {"inputs": "normalize", "reward": "scale", "serial": True, "replicas": 1, **more}
    return polyplay.train("a2c", env="toy:far", run=str(path / "run"), **{**NET, **settings, **how})


def test_normalised_inputs_and_scaled_rewards_learn_and_go_with_the_policy(tmp_path, monkeypatch):
    run = _far(monkeypatch, tmp_path)
    assert run.summary["episodic_return_mean"] >= 60_000  # random play: 22,000
    page, spec = systems.load("a2c"), Envs("toy:far", 1)
    wired = page.build(run.settings, crew_of(options.RunOptions(serial=True)))
    policy = play.load_policy(wired, checkpoint.newest(run.directory, print))
    kept = {k: v.clone() for k, v in policy.named_buffers()}
    mean = kept["inputs.moments.0.mean"]
    assert mean[:2].tolist() == [pytest.approx(100, abs=1), pytest.approx(-50, abs=5)]
    assert kept["returns.count"] > 10_000
    games = play.play_games(spec, policy, 4, seed=1)
    assert np.mean([g[0] for g in games]) >= 60_000, "evaluation normalises as training did"
    assert all(bool((v == kept[k]).all()) for k, v in policy.named_buffers()), "and learns nothing"


@pytest.mark.parametrize("without", [{"inputs": "raw"}, {"reward": "none"}])
def test_without_either_the_same_run_learns_nothing(without, tmp_path, monkeypatch):
    assert _far(monkeypatch, tmp_path, **without).summary["episodic_return_mean"] < 40_000


@pytest.mark.parametrize("name", systems.ordinary())
def test_every_page_has_its_row_its_presets_and_a_figure(name):
    page = systems.load(name)
    assert set(page.ROW) == {"envs", "policy runs", "between", "pace", "update", "weights travel", "source"}
    if name == "league":  # nobody published settings for so small a one
        assert page.PRESETS["selfplay"]() == page.Config()
    else:
        assert set(page.PRESETS) >= {"paper", "quick"}
        assert page.PRESETS["paper"]() == page.Config()
    others = {"alphago_zero": "game:connect_four", "five": "arena:moba", "ftw": "arena:ctf", "league": "toy:rps"}
    env = "toy:pendulum" if name in REAL else others.get(name, "toy:catch")
    network = {} if name in ("alphago_zero", "ftw") else {"network": "mlp"}
    figure = diagram(name, page.Config(env=env, **network), options.RunOptions())
    assert env in figure
    assert {len(line) for line in figure.splitlines()} <= set(range(100))


def test_atari_presets_are_the_pages_own_or_asked_for():
    config = systems.load("a2c").Config

    def of(env: Any = "ALE/Pong-v5", life_loss: str = "auto", **how: str) -> dict[str, Any]:
        return _wiring.atari_options(config(env=env, **how), life_loss)

    assert of() == of(atari="baselines") == of(atari="auto") == atari_preset("baselines")
    assert of(life_loss="terminate", atari="dopamine") == {**atari_preset("dopamine"), "life_loss": "terminate"}
    assert of(atari="auto:plain") == {**of(), "pipeline": "plain"}
    assert of("toy:catch") == of(print) == {}


@pytest.mark.parametrize(
    ("env", "asked", "said"),
    [
        ("ALE/Pong-v5", "impalla", "did you mean 'impala'"),
        ("ALE/Pong-v5", "impala:fast", "allowed: native, plain"),
        ("CartPole-v1", "impala", "--env CartPole-v1 is no Atari game"),
    ],
)
def test_what_atari_cannot_be_is_one_line(env, asked, said):
    with pytest.raises(UserError, match=said) as e:
        _wiring.atari_options(systems.load("a2c").Config(env=env, atari=asked), "auto")
    assert "\n" not in str(e.value)


def test_a_run_its_resumption_and_its_evaluation_play_the_preset_that_was_asked_for(tmp_path):
    """accel's pictures are larger: weights for them would fit no other."""
    settings = dict(env="ALE/Breakout-v5", atari="accel", network="a3c", serial=True, lanes=2, replicas=1, unroll=2)
    run = polyplay.train("a2c", steps=8, run=str(tmp_path / "run"), tensorboard=False, **settings)
    kept = json.loads((run.directory / "config.json").read_text())
    assert kept["config"]["atari"] == "accel"
    assert "104, 80" in kept["environment"]["observation"]
    assert polyplay.resume(run.directory, steps=16).summary["steps"] == 16
    assert "104, 80" in polyplay.evaluate(run.directory, episodes=1)["environment"]["observation"]
