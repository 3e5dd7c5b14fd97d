"""Values of presets that do not apply, a person's that are refused, and hyperparameters that change on the way."""

from __future__ import annotations

import json
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
from polyplay.runs.flags import option_types, parse_values, split_flags
from polyplay.runs.load import crew_of
from polyplay.runs.options import (
    RunOptions,
    attributed,
    check_changes,
    fitted,
    from_json,
    left_out,
    parse_changes,
    scheduled_names,
    to_json,
)
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


class Flags(Numbered):
    observation_space = spaces.MultiBinary(4)


class Bytes(Numbered):
    observation_space = spaces.Box(0, 255, (6,), np.uint8)


def wired(name, **given):
    """(settings, lines about what was left out) of a system as keywords give it; nothing is started."""
    page = systems.load(name)
    settings, how, sources = options.resolve(page, serial=True, **given)
    wire = partial(run._wire, page, how)
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
        wired("ftw", env="toy:skirmish", network=own_policy, event_rewards=(), core="none", auxiliary="none")
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


def test_it_may_be_given_several_times_or_several_at_once() -> None:
    types = option_types(RunOptions)
    for line in (
        "--change a-b=1@0,2@0.5 --seed 3 --change c=3@10",
        "--change a-b=1@0,2@0.5 c=3@10",
        "--change=a-b=1@0,2@0.5,c=3@10",
    ):
        words = parse_values(split_flags(line.split(), types, "polyplay train"), types)["change"]
        assert words == ("a-b=1@0,2@0.5", "c=3@10")
    assert scheduled_names(words) == {"a_b", "c"}
    assert parse_values(split_flags(["--change="], types, "polyplay train"), types) == {"change": ()}
    options = RunOptions(change=words)
    assert from_json(RunOptions, json.loads(json.dumps(to_json(options)))) == options


@pytest.mark.parametrize(
    "word", ["x", "x=1", "x=1@", "x=@0", "x=1@2.5", "x=1@-1", "x=1@1.01", "x=nan@0", "x=1@nan", "x=1@inf", "1x=1@0"]
)
def test_what_is_no_schedule_is_one_line(word: str, capfd: pytest.CaptureFixture) -> None:
    line = refused(capfd, "train", "ppo", "--env", "toy:catch", "--change", word)
    assert line.startswith("polyplay: error: --change: ")
    assert f"{word} given, allowed: NAME=VALUE@AT" in line


def schedule_wired(system: str, change: tuple[str, ...], **config: Any) -> tuple[Any, Any]:
    """(a crew that is wired but not started, the types of its system's options)."""
    page, crew = systems.load(system), crew_of(RunOptions(change=change, serial=True, steps=1000))
    page.build(page.Config(**config), crew)
    return crew, option_types(page.Config)


@pytest.mark.parametrize(
    ("system", "change", "says"),
    [
        ("ppo", "epsilon=1@0", "--change: epsilon given, allowed here: learning_rate, entropy_cost"),
        ("ppo", "left=1@0", "--change: left given, allowed here: learning_rate, entropy_cost"),
        ("dqn", "learning_rat=1@0", "--change: learning_rat given, allowed here: learning_rate; did you mean"),
        ("ppo", "entropy_cost=-1@0", "--change entropy_cost: '-1.0' given, allowed: a number from 0 up, at most 1e30"),
        ("ppo", "entropy_cost=1@0.5,2@100", "entropy_cost from 500, 100 agent steps on given, allowed: each later"),
        ("ppo", "entropy_cost=1@0.5,2@500", "entropy_cost from 500, 500 agent steps on given, allowed: each later"),
    ],
)
def test_what_a_system_cannot_change_is_refused(system: str, change: str, says: str) -> None:
    with pytest.raises(UserError) as told:
        check_changes(*schedule_wired(system, (change,), env="toy:catch", network="mlp"))
    assert says in str(told.value)


def test_what_agents_copy_is_refused() -> None:
    league = {"env": "toy:rps", "exploit_every": 10}
    with pytest.raises(UserError, match="--change: entropy_cost given, but agents copy each other's"):
        check_changes(*schedule_wired("league", ("entropy_cost=1@0",), **league))
    (line,) = check_changes(*schedule_wired("league", ("entropy_cost=1@0,2@0.25",), env="toy:rps"))
    assert line == ("changes", "entropy_cost 1 from 0, 2 from 250 agent steps on")


def kept(directory: Path) -> dict[str, float]:
    """Hyperparameters of the last checkpoint."""
    saved = json.loads(max((directory / "checkpoints").glob("*/agents/0/learner.json")).read_text())
    return {name: value for name, value in saved["hyperparameters"].items() if name != "left"}


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
    with pytest.raises(UserError, match=r"--learning-rate: 0.1 given, but --change of .* says when"):
        polyplay.resume(run, learning_rate=0.1, steps=800)
    polyplay.resume(run, steps=800)  # whose half, 400, is over
    assert notes() == ["from 400 agent steps on: learning_rate 5e-05", begun[1]]
    polyplay.resume(run, steps=1000, learning_rate=1e-3, change=("entropy_cost=0.5@0.5",))
    assert kept(run) == {"learning_rate": 1e-3, "entropy_cost": 0.5}
    polyplay.resume(run, steps=1200, change=())
    assert kept(run) == {"learning_rate": 1e-3, "entropy_cost": 0.01}, "as configured"


def losses(directory: Path) -> list[tuple[int, float]]:
    return [(row["update"], row["loss"]) for row in read_lines(directory / "updates.jsonl", "update")]


@pytest.mark.parametrize("on", ["thread", pytest.param("process", marks=pytest.mark.long)])
def test_replicas_change_together_however_they_run(on: str, tmp_path: Path) -> None:
    settings = CATCH | {"replicas": 2, "trace": True, "report_every": 60.0, "change": CHANGE}
    alone = polyplay.train("a2c", run=str(tmp_path / "serial"), **settings).directory
    run = polyplay.train("a2c", run=str(tmp_path / on), **{**settings, "serial": False, "on": on}).directory
    assert losses(run) == losses(alone)
    plain = polyplay.train("a2c", run=str(tmp_path / "plain"), **{**settings, "change": CHANGE[1:]}).directory
    assert losses(plain) != losses(alone)


def test_a_population_does_not_vary_what_is_scheduled(tmp_path: Path) -> None:
    one = {"env": "toy:catch", "steps": 2000, "every": 1000, "population": 2, "run": str(tmp_path / "run")}
    with pytest.raises(UserError, match="--change: learning_rate given, and --vary learning_rate too"):
        polyplay.train("pbt", over="a2c", vary=("learning_rate=log:1e-5:1e-2",), change=CHANGE[:1], **one)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("more", "rewards"), [({}, "events"), ({"evolve": False}, "game")])
def test_events_that_a_game_has_not_are_left_out(more, rewards):
    settings, lines = wired("ftw", env="toy:skirmish", network="mlp", core="none", auxiliary="none", **more)
    assert (settings.event_rewards, settings.rewards) == ((), rewards)
    assert lines[0].startswith("event_rewards ('captured=1.0', ")
    with pytest.raises(
        UserError, match="--event-rewards: captured=1 given, allowed: EVENT=WEIGHT, with an event of hit"
    ):
        wired("ftw", env="toy:skirmish", event_rewards=("captured=1",), core="none", auxiliary="none")
