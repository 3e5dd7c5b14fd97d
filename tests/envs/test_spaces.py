from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import spaces
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete, SpaceViolation

INNER = gym.Dict({"goal": gym.Discrete(4, start=-1), "x": gym.Box(-1, 1, ())})
NEST = gym.Dict({"image": gym.Box(0, 255, (2, 2), np.uint8), "in": INNER})
PAIR = gym.Tuple([gym.MultiDiscrete([[2, 3]], start=[[5, -1]]), gym.Dict({"b": gym.MultiBinary([2, 1])})])
HYBRID = gym.Dict(
    {
        "pick": gym.Discrete(3, start=2),
        "rest": gym.Tuple(
            [
                gym.MultiDiscrete([[2, 3]], np.int16, start=[[5, -1]]),
                gym.MultiBinary([2, 1]),
                gym.Box(-1, 1, (2,), np.float64),
                gym.Box(0, 1, ()),
            ]
        ),
    }
)


def test_observations_become_fields():
    assert spaces.observation(gym.Box(0, 1, (3,), np.float64), "x") == Field((3,), "float64")
    assert spaces.observation(gym.Discrete(5), "x") == Field((), "int64")
    assert spaces.observation(NEST, "x") == {
        "image": Field((2, 2), "uint8"),
        "in": {"goal": Field((), "int64"), "x": Field((), "float32")},
    }
    assert spaces.classes(NEST) == {"in/goal": 4}
    assert spaces.classes(gym.Discrete(3)) == {"": 3}
    assert (
        spaces.describe_fields(spaces.observation(NEST, "x"))
        == "image: uint8 [2, 2], in/goal: int64 [], in/x: float32 []"
    )


def test_actions_become_ours():
    assert spaces.action(gym.Discrete(3, start=2), "x") == Discrete(3)
    box = spaces.action(gym.Box(np.float32([-1, 0]), np.float32([1, 5])), "x")
    assert box == Box((2,), np.float32([-1, 0]), np.float32([1, 5]))
    assert box != Box((2,), np.float32([-1, 0]), np.float32([1, 6]))
    assert hash(box) == hash(Box((2,), np.float32([-1, 0]), np.float32([1, 5])))
    assert (str(box), str(Discrete(3))) == ("[2] real, within [-1, 5]", "3 discrete")


@pytest.mark.parametrize(
    "box",
    [
        gym.Box(1e8, 1e8 + 1, (2,), np.float64),
        gym.Box(np.array([0, 1.7e9]), np.array([1, 1.7e9 + 60]), dtype=np.float64),
        gym.Dict(a=gym.Box(-3e7 - 1, -3e7, (), np.float64)),
    ],
)
def test_ranges_without_numbers_of_float32_are_refused(box):
    with pytest.raises(UserError, match="has fewer than 16 numbers from low to high: declare -1"):
        spaces.action(box, "x")


def test_other_narrow_ranges_are_taken():
    for low, high in ((900, 1100), (1e6, 1e6 + 1), (-1e-3, 1e-3), (1.0, 1.0), (-np.inf, np.inf), (0, np.inf)):
        assert spaces.action(gym.Box(low, high, (2,), np.float64), "x").shape == (2,)
    assert spaces.action(gym.Box(-1e300, 1e300, (2,), np.float64), "x").shape == (2,)
    assert spaces.action(gym.Box(-3.4e38, 3.4e38, (2,)), "x").shape == (2,)


def test_actions_of_several_parts_are_dicts():
    rest = {
        "0": MultiDiscrete((1, 2), (2, 3)),
        "1": MultiBinary((2, 1)),
        "2": Box((2,), -np.ones(2, np.float32), np.ones(2, np.float32)),
        "3": Box((), np.float32(0), np.float32(1)),
    }
    mine = spaces.action(HYBRID, "x")
    assert mine == {"pick": Discrete(3), "rest": rest}
    assert spaces.describe_actions(mine["rest"]).startswith("0: [1, 2] discrete of 2, 3, 1: [2, 1] binary, 2: [2] real")
    assert spaces.fields(mine) == {
        "pick": Field((), "int64"),
        "rest": {
            "0": Field((1, 2), "int64"),
            "1": Field((2, 1), "int8"),
            "2": Field((2,), "float32"),
            "3": Field((), "float32"),
        },
    }
    assert str(MultiDiscrete((9,), (2,) * 9)).endswith("2, …")


@pytest.mark.parametrize(
    "space",
    [
        gym.Text(4),
        gym.Box(0, 3, (2,), np.int64),
        gym.Graph(gym.Box(0, 1), None),
        gym.Sequence(gym.Discrete(2)),
        gym.OneOf([gym.Discrete(2), gym.Discrete(3)]),
        gym.Tuple([gym.Discrete(2), gym.Text(4)]),
        gym.Box(0, 1, (0,)),
    ],
)
def test_other_action_spaces_say_what_is_supported(space):
    with pytest.raises(UserError, match=r"MyEnv: action space .* supported are Discrete.*gymnasium.wrappers") as e:
        spaces.action(space, "MyEnv")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "space",
    [
        gym.Text(3),
        gym.Dict({"a": gym.Text(3)}),
        gym.Dict({"a/b": gym.Discrete(2)}),
        gym.Tuple([gym.OneOf([gym.Discrete(2)])]),
        gym.Dict({"a": gym.Tuple([])}),
    ],
)
def test_other_observation_spaces_say_what_is_supported(space):
    with pytest.raises(UserError, match="MyEnv: observation"):
        spaces.observation(space, "MyEnv")


def test_check_action():
    assert spaces.check_action(Discrete(3), np.int32([0, 2]), 2).dtype == np.int64
    assert spaces.check_action(Box((1,), np.zeros(1), np.ones(1)), np.float64([[9.0]]), 1).dtype == np.float32
    for space, action in (
        (Discrete(3), np.array([0, 3])),
        (Discrete(3), np.array([0, -1])),
        (Discrete(3), np.array([0.0, 1.0])),
        (Discrete(3), np.array([[0], [1]])),
        (Box((1,), np.zeros(1), np.ones(1)), np.float32([0, 1])),
        (Box((1,), np.zeros(1), np.ones(1)), np.array([[0], [1]])),
    ):
        with pytest.raises(ValueError, match="actions must"):
            spaces.check_action(space, action, 2)


def test_check_action_of_several_parts():
    space = {"a": MultiDiscrete((2,), (2, 3)), "b": {"c": MultiBinary((1,))}}
    good = {"b": {"c": np.array([[True], [False]])}, "a": np.int32([[1, 2], [0, 0]])}
    out = spaces.check_action(space, good, 2)
    assert tree.map(lambda x: str(x.dtype), out) == {"a": "int64", "b": {"c": "int8"}}
    for wrong, says in (
        ({"a": good["a"]}, r"must have keys \['a', 'b'\], got keys \['a'\]"),
        (good["a"], "must have keys.*got ndarray"),
        ({**good, "a": np.int64([[1, 3], [0, 0]])}, "at 'a' must be .* of 2, 3, counted from 0, got 0…3"),
        ({**good, "a": np.int64([[1, -1], [0, 0]])}, "at 'a' must be"),
        ({**good, "b": {"c": np.int8([[2], [0]])}}, "at 'b/c' must be .1. binary"),
        ({**good, "b": {"c": np.float32([[1], [0]])}}, r"at 'b/c' must be integers \[2, 1\], got float32"),
    ):
        with pytest.raises(ValueError, match=says):
            spaces.check_action(space, wrong, 2)


def test_actor_gives_the_environment_what_it_declared():
    assert spaces.action_reader(gym.Discrete(3, start=5))(np.int64(2)) == 7
    act = spaces.action_reader(gym.Box(-1, 1, (2,), np.float64))
    given = np.float32([-3, 0.5])
    out = act(given)
    assert out.dtype == np.float64
    assert out.tolist() == [-1, 0.5]
    assert not np.shares_memory(out, given)


def test_actor_gives_elements_of_any_space():
    row = {
        "pick": np.int64(2),
        "rest": {"0": np.array([[1, 2]]), "1": np.int8([[1], [0]]), "2": np.float32([-3, 0.5]), "3": np.float32(0.25)},
    }
    given = spaces.action_reader(HYBRID)(row)
    assert HYBRID.contains(given)
    assert isinstance(given["rest"], tuple)
    assert given["pick"] == 4
    assert type(given["pick"]) is np.dtype(HYBRID["pick"].dtype).type
    many, bits, real, one = given["rest"]
    assert (many.tolist(), many.dtype) == ([[6, 1]], np.int16)
    assert (bits.tolist(), bits.dtype) == ([[1], [0]], np.int8)
    assert (real.tolist(), real.dtype) == ([-1, 0.5], np.float64)
    assert (one.shape, one.dtype) == ((), np.float32)
    assert not np.shares_memory(bits, row["rest"]["1"]), "an environment may change what it was given"


def test_observations_of_any_space():
    fields = spaces.observation(PAIR, "x")
    assert fields == {"0": Field((1, 2), "int64"), "1": {"b": Field((2, 1), "int8")}}
    assert spaces.classes(PAIR) == {"0": (2, 3)}
    into = tree.zeros(fields, (3,))
    write = spaces.observation_writer(PAIR, into, 1)
    PAIR.seed(0)
    for _ in range(20):
        obs = PAIR.sample()
        write(obs)
        assert (into["0"][1] == obs[0] - [[5, -1]]).all(), "counted from 0"
        assert (into["1"]["b"][1] == obs[1]["b"]).all()
    assert not into["0"][[0, 2]].any()
    for wrong, says in (
        ((np.array([[5, -1]]),), "declared a tuple of 2, given tuple of 1"),
        ({"0": 1}, "declared a tuple of 2, given dict"),
        ((np.array([[5, 2]]), {"b": np.int8([[0], [1]])}), "at '0' declared MultiDiscrete.*given"),
        ((np.array([[4, 0]]), {"b": np.int8([[0], [1]])}), "at '0' declared MultiDiscrete"),
        ((np.array([[5, 0]]), {"b": np.int8([[0], [2]])}), "at '1/b' declared MultiBinary"),
        ((np.array([[5, 0]]), {"b": np.float32([[0], [1]])}), "at '1/b' declared MultiBinary.*given float32"),
        (([[5], [5, 0]], {}), "given list that is no array"),
    ):
        with pytest.raises(SpaceViolation, match=says) as e:
            write(wrong)
        assert "\n" not in str(e.value)


def test_writer_writes_in_place():
    into = tree.zeros(spaces.observation(NEST, "x"), (3,))
    write = spaces.observation_writer(NEST, into, 1)
    write({"image": np.full((2, 2), 7, np.uint8), "in": {"goal": 2, "x": 0.5}, "more": "is ignored"})
    assert into["image"].sum() == 28
    assert into["in"]["goal"].tolist() == [0, 3, 0], "counted from 0"
    assert into["in"]["x"].tolist() == [0, 0.5, 0]


@pytest.mark.parametrize(
    ("space", "obs", "says"),
    [
        (gym.Box(0, 1, (2,)), np.zeros(3, np.float32), r"declared float32 \[2\], given float32 \[3\]"),
        (gym.Box(0, 1, (2,)), np.zeros(2), r"declared float32 \[2\], given float64 \[2\]"),
        (gym.Box(0, 9, (2,), np.uint8), np.zeros(2, np.int64), r"declared uint8 \[2\], given int64 \[2\]"),
        (gym.Box(0, 1, (2,)), [0.0], r"declared float32 \[2\], given float32 \[1\]"),
        (gym.Box(0, 1, (2,)), [[0.0], [1.0, 2.0]], "given list that is no array"),
        (gym.Box(0, 255, (2,), np.uint8), [300, 1], r"declared uint8, given \[300, 1\], which it can't hold"),
        (gym.Box(0, 255, (2,), np.uint8), (-1, 1), "which it can't hold"),
        (gym.Box(-9, 9, (1,), np.int64), [2**70], "which it can't hold"),
        (gym.Box(0, 9, (2,), np.int64), [0.5, 1.0], r"given \[0.5, 1.0\], which it can't hold"),
        (
            gym.Dict(a=gym.Box(0, 1, (2,), bool)),
            {"a": [1, 2]},
            "at 'a' declared bool, given .1, 2., which it can't hold",
        ),
        (gym.Box(0, 1, (2,)), None, r"given object \[\]"),
        (gym.Discrete(3), 3, r"declared Discrete\(3\), given 3"),
        (gym.Discrete(3), 1.0, "given float64"),
        (NEST, {"image": np.zeros((2, 2), np.uint8)}, r"declared keys \['image', 'in'\], given keys \['image'\]"),
        (NEST, np.zeros(2), "given ndarray"),
        (NEST, {"image": np.zeros((2, 2), np.uint8), "in": {"goal": 9, "x": 0.0}}, "at 'in/goal' declared"),
    ],
)
def test_writer_refuses_what_was_not_declared(space, obs, says):
    into = tree.zeros(spaces.observation(space, "x"), (1,))
    with pytest.raises(SpaceViolation, match=says) as e:
        spaces.observation_writer(space, into, 0)(obs)
    assert "\n" not in str(e.value)


def test_writer_takes_what_casts_safely():
    into = np.zeros((1, 2), np.float64)
    write = spaces.observation_writer(gym.Box(-9, 9, (2,), np.float64), into, 0)
    for obs in (np.float32([1, 2]), [1, 2], np.int32([1, 2])):
        into[:] = 0
        write(obs)
        assert into.tolist() == [[1, 2]]
    whole = np.zeros((1, 2), np.int64)
    spaces.observation_writer(gym.Box(0, 9, (2,), np.int64), whole, 0)([3.0, True])
    assert whole.tolist() == [[3, 1]]
