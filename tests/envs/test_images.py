"""Images in observations: what counts as one, and how its planes come into rows."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from polyplay.core.tree import Field
from polyplay.envs import Envs
from polyplay.envs.images import image_layout, image_leaves, is_image
from polyplay.envs.lane import observation_writer
from polyplay.envs.pool import byte_bounds
from polyplay.nets.factory import NetworkFactory


def box(*shape: int, dtype: Any = np.uint8) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ((84, 84), (1, 84, 84)),
        ((96, 96, 3), (3, 96, 96)),
        ((3, 96, 64), (3, 96, 64)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 4), (4, 84, 84)),
        ((4, 96, 96, 3), (12, 96, 96)),
        ((4, 1, 84, 84), (4, 84, 84)),
        ((240, 320, 3), (3, 240, 320)),
        ((24, 24, 3), (3, 24, 24)),
        ((23, 24, 3), None),  # small
        ((7, 7, 3), None),
        ((64, 3, 64), None),  # planes in the middle
        ((30, 30, 30), None),  # planes and columns cannot be told apart
        ((100, 100, 80), None),  # more planes than images have
        ((300,), None),
    ],
)
def test_the_layout_of_bytes(shape, row):
    layout = image_layout(box(*shape))
    assert (layout and layout.shape) == row
    if row is not None:
        assert is_image(Field(row, "uint8"))


def test_other_numbers_are_no_image():
    assert image_layout(box(84, 84, 3, dtype=np.float32)) is None
    assert image_layout(spaces.Discrete(3)) is None
    assert not is_image(Field((3, 84, 84), "float32"))


ORDERS = ("hw", "hwc", "chw", "shwc", "schw")
SIZES = {"s": 2, "c": 3, "h": 25, "w": 26}


@given(order=st.sampled_from(ORDERS), lanes=st.sampled_from([0, 3]), seed=st.integers(0, 99))
def test_a_row_has_every_pixel_at_its_place(order, lanes, seed):
    """By a slow twin, for one image and for those of several lanes."""
    rng, shape = np.random.default_rng(seed), tuple(SIZES[axis] for axis in order)
    layout = image_layout(box(*shape))
    assert layout is not None
    images = rng.integers(0, 256, (max(lanes, 1), *shape), np.uint8)
    rows, where = np.zeros((max(lanes, 1), *layout.shape), np.uint8), slice(None) if lanes else 0
    observation_writer(box(*shape), rows, where)(images if lanes else images[0])
    for lane, image in enumerate(images):
        for place in rng.integers(0, shape, (50, len(shape))).tolist():
            at = dict(zip(order, place, strict=True))
            plane = at.get("s", 0) * (3 if "c" in at else 1) + at.get("c", 0)
            assert rows[lane, plane, at["h"], at["w"]] == image[tuple(place)]
        assert np.array_equal(layout.of(image), rows[lane])


class Shows(gymnasium.Env):
    """Random observations of a space."""

    action_space = spaces.Discrete(3)

    def __init__(self, space: gymnasium.Space):
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple:
        return self.observation_space.sample(), 0.0, False, False, {}


NUMBERS = spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize(
    ("space", "shown", "network", "convolutions"),
    [
        (box(96, 96, 3), "uint8 [3, 96, 96]", "nature", 3),
        (box(28, 28, 3), "uint8 [3, 28, 28]", "combined", 2),
        (
            spaces.Dict(a=box(48, 64, 3), b=NUMBERS),
            "a: uint8 [3, 48, 64], b: float32 [2]",
            "combined",
            3,
        ),
        (spaces.Tuple((box(3, 50, 50), box(24, 24))), "0: uint8 [3, 50, 50], 1: uint8 [1, 24, 24]", "combined", 5),
    ],
)
def test_the_plan_names_the_planes_and_auto_gives_every_image_convolutions(space, shown, network, convolutions):
    spec = Envs(lambda: Shows(space), 1).spec
    assert spec.describe["observation"] == shown
    factory = NetworkFactory("auto", spec, {"init": "auto"})
    assert factory.choice.startswith(f"{network}, chosen by auto")
    assert sum(type(layer).__name__ == "Conv2d" for layer in factory().modules()) == convolutions


def test_bounds_of_bytes_are_in_the_order_of_rows():
    high = np.full((30, 40, 2), 255, np.uint8)
    high[..., 1] = 7
    spec = Envs(lambda: Shows(spaces.Box(np.zeros_like(high), high, dtype=np.uint8)), 1).spec
    low, high = byte_bounds(spec)[""]
    assert high.shape == (2, 30, 40)
    assert (high[0].min(), high[1].max(), low.max()) == (255, 7, 0)
    assert image_leaves(spec.obs) == [""]
