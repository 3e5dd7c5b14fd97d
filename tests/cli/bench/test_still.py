from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from polyplay.cli.bench import settings
from polyplay.common.errors import UserError
from polyplay.common.tree import Field
from polyplay.envs import Discrete, Envs
from polyplay.envs.spaces import Box
from polyplay.envs.toys import still

NUMBERS = {"planes": 2, "height": 5, "width": 4, "actions": 3}


@pytest.mark.parametrize("numbers", [NUMBERS, {"planes": 7, "height": 0, "width": 0, "actions": 2}])
def test_as_a_toy_and_in_processes_it_is_the_same(numbers: dict[str, int]):
    toy = Envs(still.still_name(numbers), 2)
    gym = Envs(partial(still.StillEnv, **numbers), 2, inline=True)
    assert toy.spec.obs == gym.spec.obs
    assert toy.spec.action == gym.spec.action == Discrete(numbers["actions"])
    assert still.still_options(toy.spec.obs, toy.spec.action, "x") == numbers
    rows = []
    for envs in (toy, gym):
        pool = envs.open(0)
        seen = []
        for _ in range(803):
            lanes, row = pool.recv()
            seen.append({k: np.array(v) for k, v in row.items()})
            pool.send(lanes, np.zeros(2, np.int64))
        pool.close()
        rows.append(seen)
    for a, b in zip(*rows, strict=True):
        for key in ("obs", "reward", "first", "terminated", "truncated"):
            np.testing.assert_array_equal(a[key], b[key], key)
    over = [i for i, row in enumerate(rows[0]) if row["truncated"].all()]
    assert over == [400, 801]
    assert rows[0][401]["first"].all()
    assert len(np.unique(rows[0][0]["obs"])) > 3


def test_what_it_cannot_look_like():
    for obs, action in (
        (Field((3,), "float32"), Box((1,), np.zeros(1), np.ones(1))),
        ({"a": Field((3,), "float32")}, Discrete(2)),
    ):
        with pytest.raises(UserError, match="--without env: x shows"):
            still.still_options(obs, action, "x")
    with pytest.raises(UserError, match="numbers from 1 up"):
        still.Still(planes=0)


def test_environments_as_json_has_them():
    assert settings.environment("toy:catch") == "toy:catch"
    assert Envs(settings.environment(NUMBERS), 1, inline=True).spec.obs == Field((2, 5, 4), "uint8")
