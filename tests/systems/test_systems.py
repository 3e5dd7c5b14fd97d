"""Systems on kinds of environments: several players, drawn spaces, real actions, unlike scales; what every page has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.envs import Envs, check
from polyplay.envs.atari import atari_preset, id_options
from polyplay.envs.spaces import Box
from polyplay.games import toys as toy
from polyplay.learning import Source
from polyplay.learning.unreal import WithAuxiliary
from polyplay.nets import recurrent
from polyplay.runs import options, run
from polyplay.runs.load import crew_of, load_run
from polyplay.runs.options import fitted
from polyplay.runs.plan import _scaling
from polyplay.runs.run import diagram
from polyplay.systems import Page, _wiring
from tests.envs.players import Scripted
from tests.reports import rows
from tests.systems.settings import REAL
from tests.systems.test_five import GIVEN, Shared
from tests.systems.test_leagues import TEAMS
from tests.toys import CartPole

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
    scored, seen = WithAuxiliary.score, list[float]()

    def score(self: WithAuxiliary, out: Any, batch: Any, hyper: Any) -> Any:
        found = scored(self, out, batch, hyper)
        seen.extend(float(found.metrics[name]) for name in ("kl_posterior", "kl_prior"))
        return found

    monkeypatch.setattr(WithAuxiliary, "score", score)
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
class Far(CartPole):
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


def test_normalized_inputs_and_scaled_rewards_learn_and_go_with_the_policy(tmp_path, monkeypatch):
    run = _far(monkeypatch, tmp_path)
    assert run.summary["episodic_return_mean"] >= 60_000  # random play: 22,000
    page, spec = systems.load("a2c"), Envs("toy:far", 1)
    wired = page.build(run.settings, crew_of(options.RunOptions(serial=True)))
    policy = play.load_policy(wired, checkpoint.newest(run.directory, print))
    kept = {k: v.clone() for k, v in policy.named_buffers()}
    mean = kept["inputs.moments.0.mean"]
    assert mean[:2].tolist() == [pytest.approx(100, abs=1), pytest.approx(-50, abs=5)]
    assert kept["returns.count"] > 10_000
    games = play.play_games(spec, policy, play.PlayOptions(4, 1))
    assert np.mean([g[0] for g in games]) >= 60_000, "evaluation normalizes as training did"
    assert all(bool((v == kept[k]).all()) for k, v in policy.named_buffers()), "and learns nothing"


@pytest.mark.parametrize("without", [{"inputs": "raw"}, {"reward": "none"}])
def test_without_either_the_same_run_learns_nothing(without, tmp_path, monkeypatch):
    assert _far(monkeypatch, tmp_path, **without).summary["episodic_return_mean"] < 40_000


def test_every_system_is_good_for_something():
    assert all(systems.load(name).row["good for"] for name in systems.names())


@pytest.mark.parametrize("name", systems.ordinary())
def test_every_page_has_its_row_its_presets_and_a_figure(name):
    page = systems.load(name)
    assert set(page.row) == {
        "idea",
        "good for",
        "envs",
        "policy runs",
        "between",
        "pace",
        "update",
        "weights travel",
        "source",
    }
    if name == "league":  # nobody published settings for so small a one
        assert page.presets["selfplay"]() == page.Config()
    else:
        assert set(page.presets) >= {"paper", "quick"}
        assert page.presets["paper"]() == page.Config()
    others = {"alphago_zero": "game:connect_four", "five": "arena:moba", "ftw": "arena:ctf", "league": "toy:rps"}
    env = "toy:tests.toys:Pendulum" if name in REAL else others.get(name, "toy:catch")
    network = {} if name in ("alphago_zero", "ftw") else {"network": "mlp"}
    figure = diagram(page, page.Config(env=env, **network), options.RunOptions())
    assert env in figure
    assert {len(line) for line in figure.splitlines()} <= set(range(100))


@dataclass(frozen=True)
class Small:
    env: str = "toy:catch"
    frames: int = 100


@dataclass(frozen=True)
class Unset:
    env: str
    frames: int = 100


@dataclass(frozen=True)
class Timeless:
    env: str = "toy:catch"


@dataclass(frozen=True)
class Twice(Small):
    steps: int = 3


def no_system(c: Any, crew: Any) -> Any:
    return None


OWN = Page(Small, no_system)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((Small(), no_system), r"Page: Config Small\(.*\) given, allowed: a dataclass of options"),
        ((dict, no_system), "Page: Config <class 'dict'> given, allowed: a dataclass of options"),
        ((Unset, no_system), "Page: Config Unset has no default for env: give every option one"),
        ((Timeless, no_system), "Page: Config Timeless has no frames: every system has options of these names"),
        ((Small, None), r"Page: build None given, allowed: a function build\(c, crew\) that returns System"),
    ],
)
def test_a_page_of_ones_own_is_checked(given: Any, says: str):
    with pytest.raises(UserError, match=says):
        Page(*given)


class Closed(Source):
    """Without the methods that every source has."""


LACKS = Page(Small, lambda c, crew: Closed())


def test_a_class_that_lacks_a_method_is_one_line():
    with pytest.raises(UserError, match=r"SYSTEM: build of .*: Can't instantiate abstract class Closed .*open"):
        polyplay.train(LACKS)


def test_an_option_of_every_run_is_none_of_a_page():
    with pytest.raises(UserError, match="Twice: steps is an option of every run too: rename it"):
        options.resolve(Page(Twice, no_system), None, env="toy:catch")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (OWN, r"SYSTEM: build of tests\.systems\.test_systems:OWN must return a System, got NoneType"),
        (Page(Small, no_system), "SYSTEM: a Page given that has no name in a module: write NAME = Page"),
        (Small, "SYSTEM: Small given, allowed: a name, or a"),
        (systems, r"SYSTEM: polyplay\.systems given, allowed: a name, or a"),
        (3, "SYSTEM: type int given, allowed: a name, or a"),
        ("__main__:mine", "SYSTEM: mine is in the program that started the run, not here: resume in that program"),
        ("no_such_module:system", "SYSTEM: no_such_module:system given, no module 'no_such_module'"),
        ("tests.systems.test_systems:SMALL", "which is a dict, not a Page; allowed: module:NAME, where the module"),
    ],
)
def test_what_is_no_system_is_refused_before_anything_starts(given: Any, says: str, tmp_path: Path):
    with pytest.raises(UserError, match=says):
        polyplay.train(given, run=tmp_path / "run", steps=100)
    assert not (tmp_path / "run" / "config.json").exists()


def test_atari_presets_are_the_pages_own_or_asked_for():
    config = systems.load("a2c").Config

    def of(env: Any = "ALE/Pong-v5", life_loss: str = "auto", **how: str) -> dict[str, Any]:
        return _wiring.atari_options(config(env=env, **how), life_loss)

    assert of() == of(atari="baselines") == of(atari="auto") == atari_preset("baselines")
    assert of(life_loss="terminate", atari="dopamine") == {**atari_preset("dopamine"), "life_loss": "terminate"}
    assert of(atari="auto:plain") == {**of(), "pipeline": "plain"}
    assert of("toy:catch") == of(print) == {}


def test_an_atari_id_of_old_decides_before_the_pages_preset_and_contradicts_one_that_was_asked_for():
    def of(env: str, **how: str) -> dict[str, Any]:
        return _wiring.atari_options(systems.load("r2d2").Config(env=env, **how))

    own = {"frameskip": 4, "frameskip_min": 2, "maxpool": False, "sticky": 0.25, "full_actions": False}
    assert of("Pong-v0") == atari_preset("r2d2") | own
    assert of("PongNoFrameskip-v4", atari="dqn2015") == atari_preset("dqn2015") | id_options("PongNoFrameskip-v4")
    with pytest.raises(UserError, match="dopamine given, but --env PongNoFrameskip-v4 means sticky"):
        of("PongNoFrameskip-v4", atari="dopamine")


def test_a_run_its_resumption_and_its_evaluation_play_the_preset_that_was_asked_for(tmp_path):
    """accel's pictures are larger: weights for them would fit no other."""
    settings = dict(env="ALE/Breakout-v5", atari="accel", network="a3c", serial=True, lanes=2, replicas=1, unroll=2)
    run = polyplay.train("a2c", steps=8, run=str(tmp_path / "run"), tensorboard=False, **settings)
    kept = json.loads((run.directory / "config.json").read_text())
    assert kept["config"]["atari"] == "accel"
    assert "104, 80" in kept["environment"]["observation"]
    assert polyplay.resume(run.directory, steps=16).summary["steps"] == 16
    assert "104, 80" in polyplay.evaluate(run.directory, episodes=1)["environment"]["observation"]


SMALL: dict[str, Any] = {"network": "mlp", "preset": "paper", "tensorboard": False, "checkpoint_every": 1e9}

PAGES: dict[str, dict[str, Any]] = {
    "ppo": {"lanes": 12, "groups": 2, "replicas": 2, "unroll": 16, "minibatches": 2},
    "a2c": {"lanes": 6},
    "a3c": {"workers": 2},
    "impala": {"actors": 2, "lanes": 3, "batch": 6, "unroll": 5},
    "ga3c": {"agents": 6, "schedule": "off", "min_batch": 20},
    "dqn": {"lanes": 3, "capacity": 3000, "learning_starts": 60, "batch": 16},
}


def train(page: str, run: Path, steps: int = 400, **more: Any) -> Any:
    return polyplay.train(page, env=Scripted, steps=steps, run=str(run), **{**SMALL, **PAGES[page], **more})


@pytest.mark.parametrize("page", PAGES)
def test_one_policy_plays_all_seats(page: str, tmp_path: Path):
    run = train(page, tmp_path / "run", serial=True)
    assert run.exit_code == 0
    assert run.summary["steps"] >= 400
    # seats die, come late or never come: returns are those of players, whose games last 1 to 5 steps
    assert 10 <= run.summary["episodic_return_mean"] <= 160


def test_a_run_is_repeated_evaluated_and_resumed(tmp_path: Path):
    first, again = (train("a2c", tmp_path / name, serial=True) for name in ("a", "b"))
    assert first.summary["episodic_return_mean"] == again.summary["episodic_return_mean"]
    found = polyplay.evaluate(tmp_path / "a", episodes=7)
    assert found["episodes"] == 7
    whole = polyplay.resume(tmp_path / "a", steps=800)
    assert whole.summary["steps"] >= 800


@pytest.mark.parametrize(
    ("page", "change", "text"),
    [
        ("a2c", {"lanes": 4}, "--lanes 4: must be a multiple of the 3 seats"),
        ("ppo", {"lanes": 12, "groups": 1, "replicas": 8}, "--lanes 12 does not divide among --replicas 8 .*3 seats"),
        ("impala", {"lanes": 4, "batch": 8}, "--lanes 4: must be a multiple of the 3 seats"),
        ("dqn", {"lanes": 1}, "--lanes 1: must be a multiple of the 3 seats"),
        ("ga3c", {"agents": 4}, "--agents 4: must be a multiple of the 3 seats"),
    ],
)
def test_lanes_that_make_no_whole_matches_are_refused(page: str, change: dict, text: str, tmp_path: Path):
    with pytest.raises(UserError, match=text):
        train(page, tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


FEW: dict[str, Any] = {"lanes": 2, "unroll": 4}


POLICIES = {"impala": {**FEW, "actors": 1, "batch": 2}, "ppo": {**FEW, "replicas": 1, "minibatches": 1}}

ENV = "tests.envs.drawn:make"


@pytest.mark.parametrize(("seed", "system"), [(0, "ppo"), (13, "impala")])
def test_what_check_accepts_trains(seed: int, system: str, tmp_path: Any):
    made = {"seed": seed, "taken": "drawn"}
    found = check.check_env(ENV, options=made, steps=12, measure=0.01)
    assert found.status == 0, [f for f in found.findings if f.level == "failed"]
    given = {"env": ENV, "env_kwargs": made, "preset": "paper", "network": "mlp", **POLICIES[system]}
    run = polyplay.train(system, run=str(tmp_path / "run"), serial=True, tensorboard=False, steps=40, **given)
    assert run.exit_code == 0


def test_what_check_refuses_does_not_train(tmp_path: Any):
    """A width of 0, by both in the same words."""
    env = "tests.envs.drawn:empty"
    (failed,) = [f for f in check.check_env(env, steps=5).findings if f.level == "failed"]
    assert failed.name == "spaces"
    with pytest.raises(UserError) as e:
        polyplay.train("ppo", env=env, run=str(tmp_path / "run"), serial=True, tensorboard=False, steps=20)
    assert failed.seen in str(e.value)
    assert not (tmp_path / "run").exists()


FAR = Box((1,), np.float32([900.0]), np.float32([1_100.0]))


@dataclass(frozen=True)
class RealShared(Shared):
    """A number above the middle of its range stands for 1."""

    action = FAR

    def step(self, s: dict[str, np.ndarray], action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        return super().step(s, (np.asarray(action)[..., 0] > 1_000).astype(np.int64), draw)


FTW: dict[str, Any] = {**TEAMS, "env": f"toy:{__name__}:RealShared", "event_rewards": (), "agents": 2, "players": 2}

FTW |= {"batch": 8, "evolve": False, "rewards": "game", "unroll": 20}

FIVE: dict[str, Any] = {**GIVEN, "env": f"toy:{__name__}:RealShared"}

BOTH = pytest.mark.parametrize(("system", "given"), [("ftw", FTW), ("five", FIVE)])


@BOTH
@pytest.mark.parametrize("actions", ["scale", "clip"])
def test_a_new_policy_s_actions_are_scaled_or_taken_as_they_are(system, given, actions):
    page, more = systems.load(system), {} if actions == "scale" else {"actions": "clip"}
    settings, how, sources = options.resolve(page, serial=True, **given, **more)
    _, (_, made), _ = fitted(settings, sources, partial(run._wire, page, how))
    torch.manual_seed(0)
    head = made.policy().head
    with torch.no_grad():
        drawn = head.sample(torch.zeros(500, head.size), torch.rand(500, head.noise))
    assert (900 < drawn.mean() < 1_100) == (actions == "scale")
    assert float(drawn.std()) == pytest.approx(100.0 if actions == "scale" else 1.0, rel=0.1)
    said = _scaling(made)
    assert said.startswith("a policy's −1 … 1 is scaled to [900, 1100]" if actions == "scale" else "a policy's numbers")


@BOTH
def test_they_train_go_on_and_are_read_again(system, given, tmp_path):
    how = {**given, "serial": True, "tensorboard": False, "run": tmp_path / "run"}
    first = polyplay.train(system, steps=400, **how)
    assert first.exit_code == 0
    assert first.summary["updates"] > 0
    assert load_run(tmp_path / "run")[1].actions == "scale"
    assert polyplay.resume(tmp_path / "run", steps=800).summary["updates"] > first.summary["updates"]
