"""MiniGrid's observations: symbols for one-hot inputs, without the mission."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Envs
from polyplay.nets import factory

NAME = "minigrid:MiniGrid-MemoryS7-v0"


def test_a_name_without_its_package_is_completed() -> None:
    with pytest.raises(UserError, match="did you mean 'minigrid:MiniGrid-Nothing-v0'"):
        Envs("MiniGrid-Nothing-v0", 1).spec  # noqa: B018


def test_cells_and_direction_are_symbols() -> None:
    pytest.importorskip("minigrid")
    spec = Envs(NAME, 1).spec
    assert spec.obs == {"direction": Field((), "int64"), "image": Field((7, 7, 3), "uint8")}
    assert spec.classes["direction"] == 4
    assert spec.classes["image"] == (11, 6, 3) * 49
    assert "the mission, a text, is left out" in spec.describe["observation"]


@pytest.mark.parametrize("inline", [True, False])
def test_a_network_takes_them_one_hot(inline: bool) -> None:
    pytest.importorskip("minigrid")
    envs = Envs(NAME, 2, inline=inline)
    policy = factory.make("auto", envs.spec)
    with closing(envs.open(0)) as pool:
        _, step = pool.recv(60)
        image = np.array(step["obs"]["image"])
        assert image.max() > 0
        obs = {k: torch.from_numpy(np.array(v)) for k, v in step["obs"].items()}
        seen: list[torch.Tensor] = []
        policy.torso.layers.register_forward_pre_hook(lambda _, x: seen.append(x[0]))  # type: ignore[attr-defined,union-attr,operator]
        policy.torso(obs)  # type: ignore[operator]
    assert seen[0].shape == (2, 4 + 49 * 20)
    assert seen[0].sum(1).tolist() == [1 + 147] * 2
    assert seen[0][0, 4:15].argmax() == image[0, 0, 0, 0]


def test_other_wrappers_take_their_place() -> None:
    pytest.importorskip("minigrid")
    flat = Envs(NAME, 1, options={"wrappers": ("minigrid.wrappers:FlatObsWrapper",)})
    assert flat.spec.obs == Field((2835,), "uint8")
