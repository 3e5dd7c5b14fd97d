from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.envs import All, Envs, Greedy, Group
from polyplay.envs.pool import closest_names, lane_seeds, options


@dataclasses.dataclass(frozen=True)
class Some:
    rate: float = 0.5
    count: int = 1
    on: bool = False
    kind: str = "a"


@pytest.mark.parametrize(
    "kw",
    [
        {"lanes": 0},
        {"lanes": 4, "groups": 3},
        {"lanes": 4, "groups": 0},
        {"lanes": 4, "groups": 2, "batching": Greedy(2)},
        {"lanes": 4, "batching": Greedy(0)},
        {"lanes": 4, "batching": Greedy(5)},
        {"lanes": 4, "workers": -1},
        {"lanes": 4, "step_timeout": 0.0},
        {"lanes": 4, "max_restarts": -1},
    ],
)
def test_impossible_descriptions(kw):
    with pytest.raises(UserError) as e:
        Envs("toy:catch", **kw)
    assert "\n" not in str(e.value)


def test_batching_decides_between_slices_and_numbers():
    for batching in (All(), Group()):
        assert isinstance(Envs("toy:catch", 4, batching=batching).open(0).recv()[0], slice)
    assert isinstance(Envs("toy:catch", 4, groups=2).open(0).recv()[0], slice)
    lanes, row = Envs("toy:catch", 4, batching=Greedy(3)).open(0).recv()
    assert lanes.dtype == np.int64
    assert len(lanes) == len(row["first"]) == 3


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
    assert (np.abs(flips.mean(0) - 0.5) < 0.06).all(), "neighbours have nothing in common"


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


def test_nearest():
    assert closest_names("cartpole-v1", ["CartPole-v1", "Pendulum-v1"]) == ", did you mean 'CartPole-v1'?"
    assert closest_names("zzz", ["CartPole-v1"]) == ""
