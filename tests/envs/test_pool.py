"""Spaces as JSON and back: of every type of numbers, of kinds derived from Gymnasium's, with whatever bounds."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

from polyplay.core.errors import UserError
from polyplay.envs import Envs, pool
from polyplay.envs.build import inspect_env
from polyplay.envs.pool import lane_seeds, options
from polyplay.envs.spaces import observation
from polyplay.runs.load import check_spaces
from tests.envs import drawn


@dataclasses.dataclass(frozen=True)
class Some:
    rate: float = 0.5
    count: int = 1
    on: bool = False
    kind: str = "a"


IMPOSSIBLE = [{"lanes": 0}, {"groups": 3}, {"groups": 2, "at_once": 2}, {"at_once": 5}]
IMPOSSIBLE += [{"workers": -1}, {"step_timeout": 0.0}, {"max_restarts": -1}]


@pytest.mark.parametrize("wrong", IMPOSSIBLE)
def test_impossible_descriptions(wrong):
    with pytest.raises(UserError) as e:
        Envs("toy:catch", **{"lanes": 4, **wrong})
    assert "\n" not in str(e.value)


def test_descriptions_travel_with_their_spec():
    envs = Envs("toy:catch", 4, options={"rows": 6})
    spec = envs.spec
    copy = pickle.loads(pickle.dumps(envs))
    assert copy == envs
    assert copy.__dict__["spec"] == spec, "not built again"
    assert hash(copy) == hash(envs)


def test_a_factory_travels_by_value():
    size = 7
    copy = pickle.loads(pickle.dumps(Envs(lambda: size, 1)))
    assert copy.name() == 7
    assert "lambda" in copy.title


def test_lane_seeds_are_unique_and_belong_to_seed_and_lane():
    seeds = lane_seeds(3, 0, 100_000)
    assert len(set(seeds.tolist())) == 100_000
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    assert (lane_seeds(3, 500, 8) == seeds[500:508]).all()
    assert not set(lane_seeds(4, 0, 1000).tolist()) & set(seeds[:1000].tolist())
    assert lane_seeds(-1, 0, 2).shape == (2,)


def test_lane_seeds_are_well_mixed():
    seeds = lane_seeds(0, 0, 4096)
    bits = (seeds[:, None] >> np.arange(31)) & 1
    assert (np.abs(bits.mean(0) - 0.5) < 0.05).all()
    flips = bits[1:] ^ bits[:-1]
    assert (np.abs(flips.mean(0) - 0.5) < 0.06).all(), "neighbors have nothing in common"


def test_options_are_checked():
    assert options(Some, {"rate": 1, "on": True}, "x") == Some(rate=1, on=True)
    for given, says in (
        ({"rat": 1.0}, "x: unknown option 'rat', did you mean 'rate'"),
        ({"rate": "1"}, "rate='1' must be of type float"),
        ({"count": 1.5}, "of type int"),
        ({"count": True}, "of type int"),
        ({"on": 1}, "of type bool"),
        ({"kind": 3}, "of type str"),
    ):
        with pytest.raises(UserError, match=says):
            options(Some, given, "x")


def test_drawn_environments_are_described_as_their_files_say():
    for seed in range(60):
        env = drawn.make(seed)
        spec = inspect_env(env, "x")
        back = pool.spec_from_json(json.loads(json.dumps(pool.spec_to_json(spec))), "spaces.json")
        assert (back.obs, back.action, back.classes) == (spec.obs, spec.action, spec.classes)
        shown, taken = pool.of_spec(back)
        assert shown.contains(env.reset(seed=1)[0])
        assert taken.contains(env.action_space.sample())


def test_rows_hold_what_networks_can_compute_with():
    kinds = {"uint16": "int32", "uint32": "int64", "uint64": "float64", "longdouble": "float64", "float16": "float16"}
    for given, held in kinds.items():
        assert observation(gym.Box(0, 1, (2,), np.dtype(given).type), "x").dtype == held
    assert observation(gym.MultiDiscrete([3, 4], dtype=np.uint64), "x").dtype == "int64"


def test_bounds_of_bytes_are_those_declared_and_else_those_of_pixels():
    shown = gym.Dict({"flags": gym.Box(0, 1, (2,), np.uint8), "n": gym.Discrete(3), "x": gym.Box(0, 1, (2,))})
    spec = inspect_env(drawn.Drawn(shown, gym.Discrete(2)), "x")
    assert {path: (low.tolist(), high.tolist()) for path, (low, high) in pool.byte_bounds(spec).items()} == {
        "flags": ([0, 0], [1, 1])
    }
    bare = type(spec)(spec.obs, spec.action, classes=spec.classes)
    assert pool.byte_bounds(bare)["flags"][1].tolist() == [255, 255]


@pytest.mark.parametrize("damage", [{"n": 10**400}, {"n": float("inf")}, {"n": 2, "dtype": "bool[3]"}, {"kind": "x"}])
def test_damage_of_any_kind_is_one_line(damage: dict[str, Any]):
    spec = inspect_env(drawn.Drawn(gym.Box(0, 1, (2,)), gym.Discrete(2)), "x")
    saved = pool.spec_to_json(spec)
    with pytest.raises(UserError, match=r"^f\.json is damaged: .*; put back a copy of it$"):
        pool.spec_from_json({**saved, "action": {**saved["action"], **damage}}, "f.json")


ORDERS = {
    "parts in another order": (
        gym.Dict([("a", gym.Box(0, 1, ())), ("b", gym.Box(0, 1, ()))]),
        gym.Dict([("b", gym.Box(0, 1, ())), ("a", gym.Box(0, 1, ()))]),
    ),
    "more classes": (gym.Discrete(5), gym.Discrete(7)),
    "other numbers of classes": (gym.MultiDiscrete([3, 4]), gym.MultiDiscrete([4, 3])),
    "bytes within other bounds": (gym.Box(0, 1, (3,), np.uint8), gym.Box(0, 255, (3,), np.uint8)),
}


@pytest.mark.parametrize(("was", "now"), ORDERS.values(), ids=ORDERS)
def test_what_a_network_reads_otherwise_is_refused_when_a_run_goes_on(was, now, tmp_path: Path):
    one, other = (inspect_env(drawn.Drawn(space, gym.Discrete(2)), "x") for space in (was, now))
    (tmp_path / pool.FILE).write_text(json.dumps(pool.spec_to_json(one)))
    envs = Envs("x:y", 1)
    envs.__dict__["spec"] = one
    check_spaces(tmp_path, envs)
    envs.__dict__["spec"] = other
    with pytest.raises(UserError, match=r"x:y shows .*, but .* was trained on ") as e:
        check_spaces(tmp_path, envs)
    shown, _, trained = str(e.value).partition(" shows ")[2].partition(", but ")
    assert shown not in trained, "they are told apart"


def test_the_range_of_numbers_that_are_read_as_they_are_is_no_matter():
    one, other = (inspect_env(drawn.Drawn(gym.Box(0, high, (3,)), gym.Discrete(2)), "x") for high in (1, 9))
    assert pool.network_view(one) == pool.network_view(other)
