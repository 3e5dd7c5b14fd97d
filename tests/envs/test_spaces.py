"""What is told of real actions' ranges."""

from __future__ import annotations

import json
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.numbers import uniform
from polyplay.core.tree import Field
from polyplay.envs import Envs, lane, masks, spaces
from polyplay.envs import pool as space_files
from polyplay.envs.base_pool import check_action
from polyplay.envs.spaces import (
    ActionRange,
    Box,
    Conditional,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    SpaceViolation,
    conditional_actions,
    describe_scaling,
)
from tests.envs import picky

INNER = gym.Dict({"goal": gym.Discrete(4, start=-1), "x": gym.Box(-1, 1, ())})
NEST = gym.Dict({"image": gym.Box(0, 255, (2, 2), np.uint8), "in": INNER})
PAIR = gym.Tuple([gym.MultiDiscrete([[2, 3]], start=[[5, -1]]), gym.Dict({"b": gym.MultiBinary([2, 1])})])
HYBRID = gym.Dict(picky.PARTS)


def test_spaces_become_ours():
    assert spaces.observation(gym.Box(0, 1, (3,), np.float64), "x") == Field((3,), "float64")
    assert spaces.observation(gym.Discrete(5), "x") == Field((), "int64")
    inner = {"goal": Field((), "int64"), "x": Field((), "float32")}
    nest = spaces.observation(NEST, "x")
    assert nest == {"image": Field((2, 2), "uint8"), "in": inner}
    assert (spaces.classes(NEST), spaces.classes(gym.Discrete(3))) == ({"in/goal": 4}, {"": 3})
    assert spaces.describe_fields(nest) == "image: uint8 [2, 2], in/goal: int64 [], in/x: float32 []"
    assert spaces.action(gym.Discrete(3, start=2), "x") == Discrete(3)
    box = spaces.action(gym.Box(np.float32([-1, 0]), np.float32([1, 5])), "x")
    same = Box((2,), np.float32([-1, 0]), np.float32([1, 5]))
    assert (box, hash(box)) == (same, hash(same))
    assert box != Box((2,), np.float32([-1, 0]), np.float32([1, 6]))
    assert (str(box), str(Discrete(3))) == ("[2] real, within [-1, 5]", "3 discrete")
    real = Box((2,), -np.ones(2, np.float32), np.ones(2, np.float32))
    mine = spaces.action(HYBRID, "x")
    assert mine == {
        "pick": Discrete(4),
        "rest": {"0": MultiDiscrete((1, 2), (2, 3)), "1": MultiBinary((2, 1)), "2": real},
    }
    assert spaces.describe_actions(mine["rest"]).startswith("0: [1, 2] discrete of 2, 3, 1: [2, 1] binary, 2: [2] real")
    rest = {"0": Field((1, 2), "int64"), "1": Field((2, 1), "int8"), "2": Field((2,), "float32")}
    assert spaces.fields(mine) == {"pick": Field((), "int64"), "rest": rest}
    assert str(MultiDiscrete((9,), (2,) * 9)).endswith("2, …")


SUPPORTED, NARROW = r"supported are .*gymnasium.wrappers", "has fewer than 16 numbers from low to high: declare -1"
UNFIT = [
    (spaces.action, gym.Box(1e8, 1e8 + 1, (2,), np.float64), NARROW),
    (spaces.action, gym.Box(np.array([0, 1.7e9]), np.array([1, 1.7e9 + 60]), dtype=np.float64), NARROW),
    (spaces.action, gym.Dict(a=gym.Box(-3e7 - 1, -3e7, (), np.float64)), NARROW),
    (spaces.action, gym.Text(4), SUPPORTED),
    (spaces.action, gym.Box(0, 3, (2,), np.int64), SUPPORTED),
    (spaces.action, gym.Tuple([gym.Discrete(2), gym.Text(4)]), SUPPORTED),
    (spaces.action, gym.Box(0, 1, (0,)), SUPPORTED),
    (spaces.observation, gym.Text(3), SUPPORTED),
    (spaces.observation, gym.Dict({"a": gym.Text(3)}), SUPPORTED),
    (spaces.observation, gym.Dict({"a/b": gym.Discrete(2)}), "keys must be strings without '/'"),
    (spaces.observation, gym.Dict({"a": gym.Tuple([])}), "has no parts; leave it out"),
    (spaces.observation, gym.Tuple([gym.Box(0, 1, (2, 0))]), "has a dimension of width 0, so no numbers: "),
]


@pytest.mark.parametrize(("read", "space", "says"), UNFIT)
def test_other_spaces_are_refused_on_one_line(read, space, says):
    with pytest.raises(UserError, match=rf"^MyEnv: (action|observation) .*{says}") as e:
        read(space, "MyEnv")
    assert "\n" not in str(e.value)


UNIT_BOX, PARTED = Box((1,), np.zeros(1), np.ones(1)), {"a": MultiDiscrete((2,), (2, 3)), "b": {"c": MultiBinary((1,))}}
GOOD = {"b": {"c": np.array([[True], [False]])}, "a": np.int32([[1, 2], [0, 0]])}
NO_ACTIONS = [
    (Discrete(3), np.array([0, 3]), "actions must"),
    (Discrete(3), np.array([0, -1]), "actions must"),
    (Discrete(3), np.array([0.0, 1.0]), "actions must"),
    (Discrete(3), np.array([[0], [1]]), "actions must"),
    (UNIT_BOX, np.float32([0, 1]), "actions must"),
    (UNIT_BOX, np.array([[0], [1]]), "actions must"),
    (PARTED, {"a": GOOD["a"]}, r"must have keys \['a', 'b'\], got keys \['a'\]"),
    (PARTED, GOOD["a"], "must have keys.*got ndarray"),
    (PARTED, {**GOOD, "a": np.int64([[1, 3], [0, 0]])}, "at 'a' must be .* of 2, 3, counted from 0, got 0…3"),
    (PARTED, {**GOOD, "a": np.int64([[1, -1], [0, 0]])}, "at 'a' must be"),
    (PARTED, {**GOOD, "b": {"c": np.int8([[2], [0]])}}, "at 'b/c' must be .1. binary"),
    (PARTED, {**GOOD, "b": {"c": np.float32([[1], [0]])}}, r"at 'b/c' must be integers \[2, 1\], got float32"),
]


@pytest.mark.parametrize(("space", "given", "says"), NO_ACTIONS)
def test_what_are_no_actions(space, given, says):
    with pytest.raises(ValueError, match=says):
        check_action(space, given, 2)


def test_actions_take_our_types():
    assert check_action(Discrete(3), np.int32([0, 2]), 2).dtype == np.int64
    assert check_action(UNIT_BOX, np.float64([[9.0]]), 1).dtype == np.float32
    out = check_action(PARTED, GOOD, 2)
    assert tree.map(lambda x: str(x.dtype), out) == {"a": "int64", "b": {"c": "int8"}}


def test_writer_writes_in_place():
    into = tree.zeros(spaces.observation(NEST, "x"), (3,))
    write = lane.observation_writer(NEST, into, 1)
    write({"image": np.full((2, 2), 7, np.uint8), "in": {"goal": 2, "x": 0.5}, "more": "is ignored"})
    assert into["image"].sum() == 28
    assert into["in"]["goal"].tolist() == [0, 3, 0], "counted from 0"
    assert into["in"]["x"].tolist() == [0, 0.5, 0]


BITS = {"b": np.int8([[0], [1]])}
REFUSED = [
    (gym.Box(0, 1, (2,)), np.zeros(3, np.float32), "shape", r"declared float32 \[2\], given float32 \[3\]"),
    (gym.Box(0, 1, (2,)), np.zeros(2), "dtype", r"declared float32 \[2\], given float64 \[2\]"),
    (gym.Box(0, 1, (2,)), [[0.0], [1.0, 2.0]], "shape", "given list that is not an array"),
    (gym.Box(0, 255, (2,), np.uint8), [300, 1], "dtype", r"declared uint8, given \[300, 1\], which it can't hold"),
    (gym.Dict(a=gym.Box(0, 1, (2,), bool)), {"a": [1, 2]}, "dtype", "at 'a' declared bool, given .1, 2., which it"),
    (gym.Box(0, 1, (2,)), None, "shape", r"given object \[\]"),
    (gym.Box(0, 9, (2,)), np.float32([0, np.nan]), "finite", r"nan at \[1\] of an observation, 1 of 2 values not"),
    (gym.Discrete(3), 3, "bounds", r"declared Discrete\(3\), given 3"),
    (gym.Discrete(3), [1], "shape", r"given int64 \[1\]"),
    (NEST, {"image": np.zeros((2, 2), np.uint8)}, "keys", r"declared keys \['image', 'in'\], given keys \['image'\]"),
    (NEST, np.zeros(2), "keys", "given ndarray"),
    (NEST, {"image": np.zeros((2, 2), np.uint8), "in": {"goal": 9, "x": 0.0}}, "bounds", "at 'in/goal' declared"),
    (PAIR, (np.array([[5, -1]]),), "keys", "declared a tuple of 2, given tuple of 1"),
    (PAIR, (np.array([[5, 2]]), BITS), "bounds", "at '0' declared MultiDiscrete.*given"),
    (PAIR, (np.array([[5, 0]]), {"b": np.float32([[0], [1]])}), "dtype", "at '1/b' declared.*given float32"),
]


@pytest.mark.parametrize(("space", "obs", "rule", "says"), REFUSED)
def test_writer_refuses_what_was_not_declared(space, obs, rule, says):
    into = tree.zeros(spaces.observation(space, "x"), (1,))
    with pytest.raises(SpaceViolation, match=says) as e:
        lane.observation_writer(space, into, 0)(obs)
    assert e.value.rule == rule
    assert "\n" not in str(e.value)


def test_writer_takes_what_casts_safely():
    into = np.zeros((1, 2), np.float64)
    write = lane.observation_writer(gym.Box(-9, 9, (2,), np.float64), into, 0)
    for obs in (np.float32([1, 2]), [1, 2], np.int32([1, 2])):
        into[:] = 0
        write(obs)
        assert into.tolist() == [[1, 2]]
    huge = np.float64([1.7e308, 1.7e308])
    write(huge)
    assert into.tolist() == [huge.tolist()], "though their sum is infinite"
    whole = np.zeros((1, 2), np.int64)
    lane.observation_writer(gym.Box(0, 9, (2,), np.int64), whole, 0)([3.0, True])
    assert whole.tolist() == [[3, 1]]


@pytest.mark.parametrize("kind", [np.int64, np.int32])
@pytest.mark.parametrize("start", [0, 5])
def test_environments_get_numbers_of_their_own_type(kind, start):
    given = lane.action_reader(gym.Discrete(3, start=start, dtype=kind))(np.int64([2, 0, 1])[2, ...])
    assert (given, type(given)) == (start + 1, kind)


def box(low: float, high: float) -> Box:
    return Box((2,), np.full(2, low, np.float32), np.full(2, high, np.float32))


LINES = [
    (box(900, 1100), True, "a policy's −1 … 1 is scaled to [900, 1100]"),
    (box(-1, 1), True, "a policy's numbers are clipped to [-1, 1]"),
    (box(-2, 2), False, "a policy's numbers are clipped to [-2, 2]"),
    (
        box(900, 1100),
        False,
        "clipped to [900, 1100], of which a new policy reaches next to nothing: give --actions scale",
    ),
    (box(-np.inf, np.inf), True, "without bounds: a policy's numbers, at first of mean 0 and deviation 1, are taken"),
    ({"a": Discrete(2), "b": box(0, 4)}, True, "b: a policy's −1 … 1 is scaled to [0, 4]"),
]


@pytest.mark.parametrize(("action", "scaled", "line"), LINES)
def test_a_line_says_what_becomes_of_a_policy_s_numbers(action, scaled, line):
    assert line in describe_scaling(action, scaled)
    assert "\n" not in describe_scaling(action, scaled)


def test_the_middle_of_large_bounds_is_found_without_overflow():
    found = ActionRange.of(box(-9e29, 9e29))
    assert found.half.tolist() == pytest.approx([9e29, 9e29])
    assert found.middle.tolist() == [0.0, 0.0]


# Uniform actions are uniform, legal, and the same for the same uniforms.


UNIT = Box((2,), np.array([-1, 0], np.float32), np.array([1, 4], np.float32))


def uniforms(space, n, seed=0):
    return uniform(seed, np.arange(n), np.zeros(n), spaces.action_width(space))


def test_every_value_has_the_same_chance():
    counts = np.bincount(spaces.random_actions(Discrete(5), uniforms(Discrete(5), 20_000)), minlength=5)
    assert np.abs(counts / 20_000 - 0.2).max() < 0.01
    real = spaces.random_actions(UNIT, uniforms(UNIT, 20_000))
    assert np.allclose(real.mean(0), [0.0, 2.0], atol=0.05)
    assert (real >= UNIT.low).all()
    assert (real <= UNIT.high).all()


@settings(max_examples=40)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.floats(0.001, 0.999))
    )
)
def test_a_masked_draw_is_the_legal_value_that_a_plain_count_finds(drawn):
    legal, u = drawn
    allowed = [i for i, yes in enumerate(legal) if yes]
    if not allowed:
        return
    given_ = np.array([[u]], np.float32)
    plain = allowed[int(float(given_[0, 0]) * len(allowed))]
    assert spaces.random_actions(Discrete(len(legal)), given_, np.array([legal])).tolist() == [plain]


def test_real_numbers_without_bounds_are_refused():
    free = Box((1,), np.array([-np.inf], np.float32), np.array([np.inf], np.float32))
    with pytest.raises(UserError, match=r"--epsilon: actions of \[1\] real, .* have no uniform draw; allowed here: 0"):
        spaces.action_width({"x": free})


def test_mixed_takes_the_other_where_it_says():
    own, other = {"a": np.zeros((3, 2)), "b": np.zeros(3, np.int64)}, {"a": np.ones((3, 2)), "b": np.ones(3, np.int64)}
    made = spaces.mix_random(own, other, np.array([True, False, True]))
    assert made["a"].tolist() == [[1, 1], [0, 0], [1, 1]]
    assert made["b"].tolist() == [1, 0, 1]
    assert made["b"].dtype == np.int64


BOX = Box((1,), np.float32([-1]), np.float32([1]))
PARTS = {"unit": Discrete(5), "verb": Discrete(4), "way": MultiDiscrete((2,), (2, 3))}
USES = {"unit": (2, 3), "way": (1, 3)}
ACTION = Conditional(PARTS, USES)


def test_the_first_part_is_the_one_that_uses_leaves_out():
    made = conditional_actions(PARTS, {"way": [3, 1, 3], "unit": np.array([2, 3])}, "x: uses")
    assert made == ACTION
    assert (made.first, list(made), made.uses) == ("verb", ["verb", "unit", "way"], USES)
    assert made.used("way").tolist() == [False, True, False, True]
    assert pickle.loads(pickle.dumps(made)) == made
    assert made != PARTS
    assert dict(made) == PARTS
    assert made != Conditional(PARTS, {**USES, "unit": (2,)})
    assert conditional_actions(PARTS, None, "x") is PARTS
    said = "verb: 4 discrete, unit: 5 discrete (verb 2, 3), way: [2] discrete of 2, 3 (verb 1, 3)"
    assert spaces.describe_actions(made) == said


ALL_BUT_ONE = "allowed: a dict of all of unit, verb, way but one, a Discrete that decides on the others"


@pytest.mark.parametrize(
    ("action", "uses", "says"),
    [
        *((PARTS, wrong, ALL_BUT_ONE) for wrong in ({"unit": (2,)}, {**USES, "Unit": (1,)}, [("unit", 2)])),
        (PARTS, {"unit": (0,), "verb": (1,)}, ALL_BUT_ONE),
        ({"a": BOX, "b": Discrete(2)}, {"b": (0,)}, "allowed: a dict of all of a, b but one, a Discrete that decides"),
        ({"verb": Discrete(2)}, {}, "allowed: a dict of all of verb but one"),
        (PARTS, {**USES, "unit": ()}, r"unit is used by \(\); allowed: some of 0…3, values of verb"),
        (PARTS, {**USES, "unit": (2, 4)}, r"unit is used by \(2, 4\); allowed: some of 0…3, values of verb"),
        (PARTS, {**USES, "unit": 2}, "unit is used by 2; allowed"),
        (Discrete(3), {}, "the actions are 3 discrete; allowed with a Dict"),
        ({"a": Discrete(2), "b": {"c": Discrete(2)}}, {"b": (0,)}, "parts that are no Dict or Tuple"),
    ],
)
def test_what_cannot_be_meant_is_one_line(action, uses, says):
    with pytest.raises(UserError, match=f"^x: uses.*{says}") as e:
        conditional_actions(action, uses, "x: uses")
    assert "\n" not in str(e.value)


def test_random_actions_are_legal_for_their_verb_and_0_where_unused():
    rng = np.random.default_rng(0)
    legal = {"verb": np.ones((4000, 4), bool), "unit": rng.random((4000, 4, 5)) < 0.4, "way": np.ones((4000, 5), bool)}
    legal["unit"][:, :2] = False
    legal["unit"][:, 2:, 4] = True
    made = spaces.action_sampler(ACTION, 0)(4000, legal)
    check_action(ACTION, made, 4000)
    verb, unit = made["verb"], made["unit"]
    takes = verb >= 2
    assert legal["unit"][np.arange(4000), verb, unit][takes].all()
    assert (unit[~takes] == 0).all()
    assert (made["way"][verb % 2 == 0] == 0).all()
    assert np.bincount(verb).min() > 800
    assert len(np.unique(made["way"][verb % 2 == 1], axis=0)) == 6
    aims = Conditional({"verb": Discrete(2), "aim": BOX}, {"aim": (1,)})
    made = spaces.action_sampler(aims, 0)(100)
    assert ((made["aim"][:, 0] == 0) == (made["verb"] == 0)).all()


# ------------------------------------------------------------------------------------------- masks

EACH = np.array([[0] * 5, [0] * 5, [1, 0, 0, 0, 0], [0, 0, 0, 1, 1]])


def test_masks_are_for_all_or_for_each_value_of_the_first_part():
    found = masks.mask_spec(ACTION, {"verb": [1] * 4, "unit": EACH, "way": ([1, 1], [1, 0, 0])}, "x")
    assert found == {"verb": Field((4,), "bool"), "unit": Field((4, 5), "bool"), "way": Field((5,), "bool")}
    assert masks.mask_spec(ACTION, {"unit": EACH.tolist()}, "x") == {"unit": Field((4, 5), "bool")}
    assert masks.mask_spec(ACTION, {"way": np.ones((4, 5))}, "x") == {"way": Field((4, 5), "bool")}
    for wrong in (np.ones((3, 5)), np.ones((5, 4)), np.ones(4)):
        with pytest.raises(UserError, match=r"x action_mask at 'unit' does not fit the actions.*or \[4, 5\]"):
            masks.mask_spec(ACTION, {"unit": wrong}, "x")
    with pytest.raises(UserError, match="at 'verb'"):
        masks.mask_spec(ACTION, {"verb": np.ones((4, 4))}, "x")


def written(given, last=False, spec=None):
    rows = tree.zeros(spec or masks.mask_spec(ACTION, given, "x"), (1,))
    masks.mask_writer(ACTION, rows, 0, inside=False)({}, {masks.KEY: given}, last)
    return tree.map(lambda x: x[0].astype(int).tolist(), rows)


def test_a_used_part_of_a_legal_value_needs_something_legal():
    assert written({"verb": [1, 0, 1, 1], "unit": EACH}) == {"verb": [1, 0, 1, 1], "unit": EACH.tolist()}
    assert written({"verb": [1, 1, 0, 0], "unit": [0] * 5})["unit"] == [0] * 5, "nobody uses it"
    assert written({"verb": [1, 0, 1, 0], "way": [0] * 5})["way"] == [0] * 5
    nothing = np.zeros((4, 5), int)
    lacks = EACH * np.array([1, 1, 1, 0])[:, None]
    for mask, says in (
        ({"verb": [1, 0, 0, 1], "unit": lacks}, "at 'unit': no value is legal for verb 3, which is legal"),
        ({"verb": [1, 0, 1, 1], "unit": nothing}, "'unit': no value is legal for verb 2"),
        ({"verb": [1, 1, 0, 0], "way": [1, 0, 0, 0, 0]}, "'way': no value is legal for verb 1"),
        ({"unit": nothing}, "'unit': no value is legal for verb 2"),
        ({"verb": [0, 0, 0, 0], "unit": EACH}, "at 'verb': no action is legal"),
    ):
        with pytest.raises(SpaceViolation, match=says) as e:
            written(mask)
        assert "\n" not in str(e.value)
    assert written({"verb": [0] * 4, "unit": nothing}, last=True) == {"verb": [1] * 4, "unit": [[1] * 5] * 4}


def test_a_mask_keeps_its_form_but_one_for_all_may_stand_for_each():
    spec = {"unit": Field((4, 5), "bool")}
    assert written({"unit": [0, 1, 0, 0, 0]}, spec=spec) == {"unit": [[0, 1, 0, 0, 0]] * 4}
    with pytest.raises(SpaceViolation, match=r"at 'unit': declared \[5\] at first, given \[4, 5\]"):
        written({"unit": EACH}, spec={"unit": Field((5,), "bool")})


# --------------------------------------------------------------------------------------- Gymnasium


class Order(gymnasium.Env):
    """Right: verb 1 and way 2; verb 0 takes nothing. What arrives is kept."""

    observation_space = gym.Box(-1, 1, (1,))
    action_space = gym.Dict({"verb": gym.Discrete(3, start=5), "way": gym.Discrete(4)})
    action_uses = {"way": (1, 2)}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = []
        return self.see()

    def see(self):
        each = np.zeros((3, 4), bool)
        each[1, 2] = True
        each[2, 3] = True
        return np.zeros(1, np.float32), {"action_mask": {"verb": [1, 1, 1], "way": each}}

    def step(self, action):
        self.taken.append((int(action["verb"]), int(action["way"])))
        assert self.taken[-1] in {(5, 0), (6, 2), (7, 3)}
        obs, info = self.see()
        return obs, float(self.taken[-1] == (6, 2)), len(self.taken) == 4, False, info


class Plain(gymnasium.Wrapper):
    """A wrapper that makes one number of the action and leaves out masks, and says so."""

    action_space = gym.Discrete(3)
    action_uses = None

    def reset(self, **given):
        return self.env.reset(**given)[0], {}


def test_a_gymnasium_environment_declares_it_by_an_attribute():
    wrapped = lambda: gymnasium.wrappers.TimeLimit(Order(), 50)  # noqa: E731
    envs = Envs(wrapped, 3, inline=True)
    assert envs.spec.action == Conditional({"verb": Discrete(3), "way": Discrete(4)}, {"way": (1, 2)})
    assert envs.spec.mask == {"verb": Field((3,), "bool"), "way": Field((3, 4), "bool")}
    assert envs.spec.describe["actions"] == "verb: 3 discrete, way: 4 discrete (verb 1, 2)"
    again = space_files.spec_from_json(json.loads(json.dumps(space_files.spec_to_json(envs.spec))), "it")
    assert (again.action, again.mask) == (envs.spec.action, envs.spec.mask)
    pool, draw = envs.open(0), spaces.action_sampler(envs.spec.action, 0)
    rewards = []
    for _ in range(20):
        lanes, row = pool.recv()
        rewards.append(row["reward"].copy())
        pool.send(lanes, draw(3, row["mask"]))  # the environment asserts that they fit
    pool.close()
    assert 0 < np.mean(rewards) < 1
    assert Envs(lambda: Plain(Order()), 1, inline=True).spec.action == Discrete(3)
