"""Lanes that would step one environment together are refused, wherever the function hides it."""

from __future__ import annotations

import re
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Envs, lane, rules
from polyplay.envs.build import imported
from polyplay.envs.rules import RULES
from polyplay.envs.spaces import SpaceViolation
from tests.envs.players import Scripted
from tests.envs.vectors import Counting

DOCS = Path(__file__).parents[2] / "docs" / "start" / "your_environment.md"


def test_a_message_names_its_rule_and_can_be_read_again():
    assert {rules.rule_of(f"x: y {rules.rule_suffix(rule)}") for rule in RULES} == set(RULES)
    assert rules.rule_of("x: y") is None
    assert lane.final_observation_flaw(SpaceViolation("x", "finite"), True).rule == "finite"
    assert rules.without_rule(f"x: y {rules.rule_suffix('seed')}; more") == "x: y; more"
    assert (
        rules.rule_message(SpaceViolation("given 3", "reward")) == "given 3 (rule reward; polyplay check ENV explains)"
    )
    assert rules.rule_message(SpaceViolation("given 3", "shape")).startswith(
        "observation breaks its declared space: given 3 (rule"
    )


def test_the_documentation_has_every_rule_with_its_sentence():
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+?) \| (.+?) \|$", DOCS.read_text(), re.M)
    assert {name: (says.replace("`", ""), run) for name, says, run in rows} == {
        n: (r.says, r.run) for n, r in RULES.items()
    }


def test_what_a_fix_names_is_there():
    named = [name for rule in RULES.values() for name in re.findall(r"polyplay[.\w]+:\w+", rule.fix)]
    assert "polyplay.envs.pettingzoo:pad" in named
    assert all(callable(imported(name)) for name in named)


@pytest.mark.parametrize("reward", [1, 1.5, True, np.float32(2), np.int64(3), np.bool_(1), np.array(0.5)])
def test_numbers_are_rewards(reward: Any):
    assert (lane.read_reward(reward), type(lane.read_reward(reward))) == (float(reward), float)


NO_FLAG = "truncated must be a boolean, given"
WRONG = [  # what reads it, what is given, the rule, what is said
    (lane.read_reward, None, "reward", "given None"),
    (lane.read_reward, float("nan"), "reward", "given nan"),
    (lane.read_reward, 1e300, "reward", r"of float32, given 1e\+300"),
    (lane.read_reward, 10**400, "reward", "given int 1000"),
    (lane.read_reward, np.zeros(2), "reward", r"given ndarray \[2\]"),
    (lane.read_reward, Decimal(1), "reward", "given Decimal"),
    (lane.read_reward, 1j, "reward", "given complex"),
    *((partial(lane.read_flag, "truncated"), x, "flags", NO_FLAG) for x in (None, "yes", np.array([True]), 2, [], {})),
    (lane.read_step, (7, 1.0, False, {}), "step", r"step\(\) must return"),
    (lane.read_step, None, "step", r"step\(\) must return"),
]


@pytest.mark.parametrize(("read", "given", "rule", "says"), WRONG)
def test_what_is_no_reward_flag_or_answer(read: Any, given: Any, rule: str, says: str):
    with pytest.raises(SpaceViolation, match=says) as e:
        read(given)
    assert e.value.rule == rule


def test_what_step_returns():
    assert lane.read_step((7, np.float32(1), np.bool_(False), True, {})) == (7, 1.0, False, True, {})
    assert all(lane.read_flag("terminated", x) is True for x in (True, 1, np.bool_(1), np.int32(1), np.array(True)))


def test_inside_tells_where_an_observation_lies_outside():
    space = gym.Dict({"a": gym.Box(0, 1, (2, 2)), "b": gym.Discrete(3)})
    fine = {"a": np.zeros((2, 2), np.float32), "b": 2}
    lane.check_contains(space, fine)
    for obs, rule, says in (
        ({**fine, "a": np.float32([[0, 1], [5, 0]])}, "bounds", r"at 'a' 5 at \[1, 0\] is not in \[0, 1\]"),
        ({**fine, "b": 3}, "bounds", r"at 'b' given a value outside Discrete\(3\)"),
        ({**fine, "c": 1}, "keys", "given keys"),
    ):
        with pytest.raises(SpaceViolation, match=says) as e:
            lane.check_contains(space, obs)
        assert e.value.rule == rule
    lane.check_contains(gym.Box(0, 9, (2,), np.float32), np.array([1, 2], np.int64)), "its type is the writer's matter"


STEP = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    ("box", "value", "inside"),
    [
        (gym.Box(0, 1, (2,), np.float64), 1.0000000000000002, True),
        (gym.Box(0, 1, (2,), np.float64), 1.0000000000000022, False),
        (gym.Box(0, 1, (2,), np.float64), np.float32(1 + STEP), True),  # its own type is coarser
        (gym.Box(0, 1, (2,), np.float32), np.float32(1 + STEP), True),
        (gym.Box(-1e6, 1e6, (2,), np.float32), np.float32(1000000.1), True),
        (gym.Box(0, np.inf, (2,), np.float64), -1e-9, False),
        (gym.Box(0, 9, (2,), np.int64), 10, False),
    ],
)
def test_rounding_is_no_breach(box, value, inside):
    obs = np.array([0, value], box.dtype if not isinstance(value, np.float32) else np.float32)
    assert not box.contains(obs)
    if inside:
        assert "but only by rounding: accepted unchanged" in lane.check_contains(box, obs)
        return
    with pytest.raises(SpaceViolation) as e:
        lane.check_contains(box, obs)
    line = rules.rule_message(e.value)
    assert f"{lane.in_full(obs[1])} at [1] is not in [" in line
    assert "]; widen low and high (-inf and inf are allowed), or clip the observation (rule bounds;" in line
    assert obs.dtype.type(lane.in_full(obs[1])) == obs[1], "in full"


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ((84, 84, 12), "an image [H, W, C] of float32"),
        ((4, 84, 84, 3), "a stack of images [S, H, W, C]"),
        ((4, 1, 84, 84), "a stack of images [S, C, H, W]"),
        ((12, 84, 84), ""),
        ((84, 84), ""),
    ],
)
def test_images_whose_planes_no_network_finds(shape, form):
    """Of numbers other than bytes: those of bytes are images by their layout."""
    flaw = rules.image_flaw(Field(shape, "float32"))
    assert flaw.startswith(f"observations {list(shape)} look like {form}") if form else flaw == ""
    mixed = {"screen": Field((3, 84, 84), "uint8"), "depth": Field(shape, "float32")}
    assert rules.image_flaw(mixed) == flaw.replace("observations", "observations depth", 1)


def test_images_that_are_read_as_numbers():
    obs = {"eye": Field((64, 64, 3), "uint8"), "grid": Field((7, 7, 3), "uint8"), "joints": Field((40, 40), "float32")}
    assert rules.flat_images(obs) == ["the image eye [64, 64, 3] as 12,288 numbers"]
    assert rules.flat_images(Field((84, 84), "uint8")) == ["the image [84, 84] as 7,056 numbers"]
    assert rules.flat_images(Field((300,), "uint8")) == []
    assert rules.flat_images(Field((3, 84, 84), "uint8"), other=True) == []


POLE, MATCH, MANY = gymnasium.make("CartPole-v1"), Scripted(), Counting(2)


def pole():
    return POLE


def wrapped():
    """Another object each time, around the same one."""
    return gymnasium.wrappers.TimeLimit(POLE, 10)


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (pole, {}),
        (wrapped, {}),
        (wrapped, {"inline": False, "workers": 1}),
        (lambda: MATCH, {}),
        (lambda num_envs=2: MANY, {"groups": 3}),
    ],
)
def test_the_same_environment_twice(make, how):
    with (
        pytest.raises(UserError, match=r"the function returned the same environment twice .*rule copies") as e,
        closing(Envs(make, 6, **{"inline": True, **how}).open(0)) as pool,
    ):
        pool.recv(60)
    assert "\n" not in str(e.value)


def test_a_lane_that_begins_anew_and_a_pool_after_another_may_have_it(monkeypatch):
    """What was closed is nobody's."""
    monkeypatch.setattr(rules, "check_second", lambda *_: None)
    for _ in range(2):
        with closing(Envs(pole, 1, inline=True).open(0)) as pool:
            pool.recv()
            pool._units[0].close()
            pool._units[0].prepare()
    assert id(POLE) not in rules._taken
