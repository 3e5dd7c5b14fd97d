"""Values of presets that do not apply, a person's that are refused, and hyperparameters that change on the way."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.nets.factory import make
from polyplay.runs import options, run
from polyplay.runs.flags import option_types
from polyplay.runs.load import crew_of
from polyplay.runs.options import RunOptions, check_changes, fitted, parse_changes
from tests.envs.players import Scripted
from tests.verbs import refused


class Numbered(gymnasium.Env):
    """Shows a number, takes a vector: what is tuned for such actions scales real numbers."""

    observation_space: spaces.Space = spaces.Discrete(5)
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


class Bytes(Numbered):
    observation_space = spaces.Box(0, 255, (6,), np.uint8)


def own_policy(spec):
    return make("mlp", spec)


def wired(name: str, **given: Any) -> tuple[Any, list[str]]:
    """(settings, lines about what was left out) of a system as keywords give it; nothing is started."""
    page = systems.load(name)
    settings, how, sources = options.resolve(page, serial=True, **given)
    fit, _, lines = fitted(settings, sources, partial(run._wire, page, how))
    return fit, [text for _, text in lines]


NUMBERED = {"env": Numbered, "preset": "mujoco"}
OWN = {"env": "Pendulum-v1", "network": own_policy, "preset": "mujoco"}
OWN_GA3C = {"env": "CartPole-v1", "network": own_policy, "preset": "paper"}
GA3C = {"env": "Pendulum-v1", "network": "mlp", "inputs": "raw"}
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "lanes": 2, "unroll": 4, "preset": "box2d"}
UNREAL = {"env": "CartPole-v1", "preset": "unreal", "network": "mlp"}
FTW = {"env": "toy:skirmish", "network": "mlp", "core": "none", "auxiliary": "none"}
OWN_FTW = {"env": "toy:skirmish", "network": own_policy, "event_rewards": (), "core": "none", "auxiliary": "none"}


@pytest.mark.parametrize(
    ("name", "given", "fit", "lines"),
    [
        ("ppo", {"env": Bytes, "preset": "mujoco"}, {"inputs": "normalize"}, []),
        ("ppo", NUMBERED, {"inputs": "raw"}, ["inputs normalize (preset mujoco): --inputs normalize: takes numbers"]),
        (
            "ppo",
            OWN,
            {"inputs": "raw", "reward": "none"},
            ["inputs normalize (preset mujoco): --", "reward scale (pre"],
        ),
        ("a2c", {"env": Scripted}, {"lanes": 18}, ["lanes 16 (default): --lanes 16: must be a multiple of the 3 sea"]),
        ("ppo", CARTPOLE, {"minibatches": 4}, ["minibatches 32 (preset box2d): "]),
        ("a3c", UNREAL, {"auxiliary": "reward,value"}, ["auxiliary pixel=0.001,reward,value (preset unreal): "]),
        ("ga3c", {**GA3C, "preset": "paper"}, {"correction": "none"}, ["correction plus (default): "]),
        ("ga3c", {**GA3C, "preset": "released"}, {"correction": "none"}, ["correction max (preset released): "]),
        ("ga3c", {**GA3C, "correction": "vtrace"}, {"correction": "vtrace"}, []),
        ("ga3c", OWN_GA3C, {"correction": "none"}, ["correction plus (default): "]),
        ("ftw", FTW, {"event_rewards": (), "rewards": "events"}, ["event_rewards ('captured=1.0', "]),
        (
            "ftw",
            {**FTW, "evolve": False},
            {"rewards": "game"},
            ["event_rewards ('captured=1.0', ", "rewards events ("],
        ),
    ],
)
def test_a_wish_that_does_not_apply_is_left_out(name, given, fit, lines):
    settings, left = wired(name, **given)
    assert {k: getattr(settings, k) for k in fit} == fit
    assert [text[: len(begin)] for text, begin in zip(left, lines, strict=True)] == lines


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("ppo", {**NUMBERED, "inputs": "normalize"}, "--inputs normalize: takes numbers that are not images"),
        (
            "ppo",
            {**OWN, "reward": "scale", "inputs": "raw"},
            "is a whole policy; leave out --reward scale",
        ),
        ("a2c", {"env": Scripted, "lanes": 4}, "--lanes 4: must be a multiple of the 3 seats"),
        ("ppo", {**CARTPOLE, "minibatches": 64}, "--minibatches 64 of a replica"),
        ("a3c", {**UNREAL, "auxiliary": "pixel=0.1"}, "--auxiliary pixel:"),
        ("ga3c", {**GA3C, "correction": "max"}, "--correction max: needs actions with probabilities"),
        ("ga3c", {**OWN_GA3C, "correction": "plus"}, "'own_policy' is a whole policy; leave out --correction plus"),
        ("ftw", {**FTW, "event_rewards": ("captured=1",)}, "--event-rewards: captured=1 given, allowed: EVENT=WEIGHT"),
        ("ftw", OWN_FTW, "--network: 'own_policy' is a whole policy; here a torso is needed"),
    ],
)
def test_an_order_that_does_not_apply_is_refused(name, given, says):
    with pytest.raises(UserError, match=re.escape(says)):
        wired(name, **given)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("--epochs 10: no", "epochs 10 (preset classic)"),
        ("--network: an image", "network separate (preset classic)"),
        ("--groups: 1 given; allowed: 2", "groups 1 (default)"),
        ("--minibatches 32 of nothing", "minibatches 1 (preset classic)"),
        ("--lanes 6 does not divide", ""),
        ("--env: no", ""),
        ("memory: too little", ""),
        ("--nothing of ours", ""),
    ],
)
def test_a_message_says_whose_value_it_is_where_nobody_gave_it(text, source):
    """Also where what is left out does not help: then the loop ends."""

    def refuse(settings: Any) -> None:
        raise UserError(text)

    settings, _, sources = options.resolve(systems.load("ppo"), env="CartPole-v1", preset="classic", lanes=6)
    with pytest.raises(UserError) as e:
        fitted(settings, sources, refuse)
    assert str(e.value) == (f"{text}; {source}" if source else text)


CATCH: dict[str, Any] = {"env": "toy:catch", "lanes": 4, "unroll": 5, "serial": True, "tensorboard": False}
CATCH |= {"anneal": "constant", "report_every": 1e-4, "steps": 400, "quiet": True}
CHANGE = ("learning_rate=5e-4@0,5e-5@0.5", "entropy_cost=0.02@100")


@pytest.mark.parametrize(
    ("place", "at", "part"),
    [
        *(("0", 0.0, True), ("0.0", 0.0, True), ("0.8", 0.8, True), (".5", 0.5, True), ("5e-1", 0.5, True)),
        *(("1.0", 1.0, True), ("1", 1.0, False), ("40M", 4e7, False), ("1e7", 1e7, False), ("2.5k", 2500.0, False)),
        ("10_000_000", 1e7, False),
    ],
)
def test_places_are_parts_of_the_run_or_agent_steps(place: str, at: float, part: bool) -> None:
    ((point,),) = (schedule.points for schedule in parse_changes([f"x=0.25@{place}"]))
    assert (point.value, point.at, point.part) == (0.25, at, part)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--change a-b=1@0,2@0.5 --seed 3 --change c=3@10", ("a-b=1@0,2@0.5", "c=3@10")),
        ("--change a-b=1@0,2@0.5 c=3@10", ("a-b=1@0,2@0.5", "c=3@10")),
        ("--change=a-b=1@0,2@0.5,c=3@10", ("a-b=1@0,2@0.5", "c=3@10")),
        ("--change=", ()),
    ],
)
def test_it_may_be_given_several_times_or_several_at_once(line: str, words: tuple[str, ...]) -> None:
    assert options.parse(systems.load("a2c"), line.split())[1].change == words
    assert options.scheduled_names(words) == ({"a_b", "c"} if words else set())


@pytest.mark.parametrize(
    "word", ["x", "x=1", "x=1@", "x=@0", "x=1@2.5", "x=1@-1", "x=1@1.01", "x=nan@0", "x=1@nan", "x=1@inf", "1x=1@0"]
)
def test_what_is_no_schedule_is_one_line(word: str, capfd: pytest.CaptureFixture) -> None:
    line = refused(capfd, "train", "ppo", "--env", "toy:catch", "--change", word)
    assert line.startswith("polyplay: error: --change: ")
    assert f"{word} given, allowed: " in line


@pytest.mark.parametrize(
    ("system", "change", "says"),
    [
        ("ppo", "epsilon=1@0", "--change: epsilon given, allowed here: learning_rate, entropy_cost"),
        ("dqn", "learning_rat=1@0", "--change: learning_rat given, allowed here: learning_rate; did you mean"),
        ("league", "entropy_cost=1@0", "--change: entropy_cost given, allowed here: "),
        ("ppo", "entropy_cost=-1@0", "--change entropy_cost: '-1.0' given, allowed: a number from 0 up, at most 1e30"),
        ("ppo", "entropy_cost=1@0.5,2@100", "entropy_cost changes at 500, 100 agent steps; each must be later"),
        ("ppo", "entropy_cost=1@0.5,2@500", "entropy_cost changes at 500, 500 agent steps; each must be later"),
        ("ppo", "entropy_cost=1@0,2@0.25", ""),
    ],
)
def test_what_a_system_cannot_change_is_refused(system: str, change: str, says: str) -> None:
    """Nor what agents copy."""
    page, crew = systems.load(system), crew_of(RunOptions(change=(change,), serial=True, steps=1000))
    given = {"env": "toy:rps", "exploit_every": 10} if system == "league" else {"env": "toy:catch", "network": "mlp"}
    page.build(page.Config(**given), crew)
    if not says:
        (line,) = check_changes(crew, option_types(page.Config))
        assert line == ("changes", "entropy_cost 1 from 0, 2 from 250 agent steps")
        return
    with pytest.raises(UserError) as told:
        check_changes(crew, option_types(page.Config))
    assert says in str(told.value)


def kept(directory: Path) -> dict[str, float]:
    """Hyperparameters of the last checkpoint."""
    saved = json.loads(max((directory / "checkpoints").glob("*/agents/0/learner.json")).read_text())
    return {name: value for name, value in saved["hyperparameters"].items() if name != "remaining"}


def test_a_run_keeps_to_its_schedule_and_goes_on_with_it(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    def notes() -> list[str]:
        return [line for line in capfd.readouterr().out.splitlines() if " agent steps on: " in line]

    settings = CATCH | {"quiet": False, "replicas": 2, "minibatches": 1}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), change=CHANGE, **settings).directory
    begun = ["from 0 agent steps on: learning_rate 0.0005", "from 100 agent steps on: entropy_cost 0.02"]
    assert notes() == [*begun, "from 200 agent steps on: learning_rate 5e-05"]
    assert kept(run) == {"learning_rate": 5e-5, "entropy_cost": 0.02}
    rows = [row for row in read_lines(run / "metrics.jsonl", "steps") if row.get("entropy_cost") is not None]
    assert all(0.00999 < row["entropy_cost"] < 0.02001 and 4.9e-5 < row["learning_rate"] < 5.1e-4 for row in rows)
    assert rows
    assert json.loads((run / "config.json").read_text())["options"]["change"] == list(CHANGE)
    with pytest.raises(UserError, match=r"--learning-rate: 0.1 given, but --change of .* schedules it"):
        polyplay.resume(run, learning_rate=0.1, steps=800)
    polyplay.resume(run, steps=800)  # whose half, 400, is over
    assert notes() == ["from 400 agent steps on: learning_rate 5e-05", begun[1]]
    polyplay.resume(run, steps=1000, learning_rate=1e-3, change=("entropy_cost=0.5@0.5",))
    assert kept(run) == {"learning_rate": 1e-3, "entropy_cost": 0.5}
    polyplay.resume(run, steps=1200, change=())
    assert kept(run) == {"learning_rate": 1e-3, "entropy_cost": 0.01}, "as configured"


def losses(directory: Path) -> list[tuple[int, float]]:
    return [(row["update"], row["loss"]) for row in read_lines(directory / "updates.jsonl", "update")]


def test_replicas_change_together_in_threads_as_in_one(tmp_path: Path) -> None:
    settings = CATCH | {"replicas": 2, "trace": True, "report_every": 60.0, "change": CHANGE, "steps": 200}
    alone = polyplay.train("a2c", run=str(tmp_path / "serial"), **settings).directory
    run = polyplay.train("a2c", run=str(tmp_path / "b"), **{**settings, "serial": False, "on": "thread"}).directory
    assert losses(run) == losses(alone)
    plain = polyplay.train("a2c", run=str(tmp_path / "plain"), **{**settings, "change": CHANGE[1:]}).directory
    assert losses(plain) != losses(alone)


def test_a_population_does_not_vary_what_is_scheduled(tmp_path: Path) -> None:
    one = {"env": "toy:catch", "steps": 2000, "every": 1000, "population": 2, "run": str(tmp_path / "run")}
    with pytest.raises(UserError, match="--change: learning_rate given together with --vary learning_rate"):
        polyplay.train("pbt", over="a2c", vary=("learning_rate=log:1e-5:1e-2",), change=CHANGE[:1], **one)
    assert not (tmp_path / "run").exists()
