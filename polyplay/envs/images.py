"""Find images in observations, and convert them to uint8 [planes, height, width], the form that networks take.

An environment may give an image as [H, W], [H, W, C], [C, H, W], [S, H, W, C] or [S, C, H, W], with C color planes and
S stacked frames. The converted image is [1, H, W], [C, H, W] or [S·C, H, W]. This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec

SMALLEST = 24  # pixels of a side; arrays of bytes with a shorter side count as numbers
PLANES = 64  # most planes of an image
IMAGES = "polyplay.images"  # key of Envs.options, see Envs.images
BARE = "obs"  # name of an observation that is a single array


@dataclass(frozen=True)
class ImageOptions:
    """Options about images. The values 0, False and () keep what the environment gives.

    leaves: paths of images; None: all parts that look like images.
    stack: number of stacked frames.
    size: height and width.
    skip: number of frames per action.
    """

    leaves: tuple[str, ...] | None = None
    stack: int = 0
    gray: bool = False
    size: tuple[int, ...] = ()
    skip: int = 0

    @property
    def changes(self) -> str:
        """Return the given command-line flags that change images, such as "--stack, --gray", for messages."""
        given = {"--stack": self.stack, "--gray": self.gray, "--size": self.size}
        return ", ".join(option for option, value in given.items() if value)

    @property
    def given(self) -> str:
        """Return all given command-line flags about images, for messages."""
        around = "" if self.leaves is None else "--images", "--frame-skip" if self.skip else ""
        return ", ".join(filter(None, [*around, self.changes]))

    def __str__(self) -> str:
        size = "×".join(map(str, self.size))
        stack, skip = f"{self.stack} frames stacked" * bool(self.stack), f"actions last {self.skip}" * bool(self.skip)
        return ", ".join(filter(None, ("gray" * self.gray, size, stack, skip)))


def read_image_options(
    images: str, stack: int | None, gray: bool, size: str | None, skip: int | None = None
) -> ImageOptions | None:
    """Return the image options of a command line; None: all are defaults. Raises UserError if the size is invalid."""
    named = tuple(name for word in images.split(",") if (name := word.strip()) not in ("", "none"))
    leaves = None if images == "auto" else named
    sides = [] if size is None else size.lower().split("x")
    if size is not None and not (len(sides) in (1, 2) and all(n.isdecimal() and int(n) > 0 for n in sides)):
        raise UserError(f"--size: {size} given, allowed: pixels of a side, or of both: 84 or 96x128 (height, width)")
    found = ImageOptions(leaves, stack or 0, gray, tuple(int(n) for n in (sides * 2)[:2]), skip or 0)
    return None if found == ImageOptions() else found


@dataclass(frozen=True)
class ImageLayout:
    """Layout of an image in the environment, and its shape in a row (the data of one step).

    axes: numbers of the image's axes in the environment, in the order stack, color, height, width (if they exist).
    shape: shape [planes, H, W] of the image in a row.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def moves(self) -> bool:
        """Whether the layout of an image in a row differs from its layout in the environment."""
        return len(self.axes) != 3 or self.axes != (0, 1, 2)

    def writer(self, row: np.ndarray) -> Callable[[np.ndarray], None]:
        """Return a function that writes an image into a row, or n images into n rows."""
        several = row.ndim - len(self.shape)
        axes = (*range(several), *(axis + several for axis in self.axes))

        def write(image: np.ndarray) -> None:
            turned = image.transpose(axes)
            row.reshape(turned.shape)[...] = turned

        return write

    def of(self, image: np.ndarray) -> np.ndarray:
        """Return a copy of an image in the layout of rows."""
        return np.ascontiguousarray(image.transpose(self.axes)).reshape(self.shape)


def is_image(field: Field) -> bool:
    """Tell whether a part of a row is an image: uint8 [planes, H, W], with sides of at least SMALLEST pixels."""
    sides = field.shape[1:]
    return field.dtype == "uint8" and len(sides) == 2 and min(sides) >= SMALLEST and field.shape[0] < min(sides)


def image_leaves(obs: Spec) -> list[str]:
    """Return the paths of the images in observations."""
    return [path for path, field in tree.leaves(obs) if is_image(field)]


def image_layout(space: gym.Space, least: int = SMALLEST) -> ImageLayout | None:
    """Return the layout of the images of a space, or None if its values are not images.

    An image is a Box of uint8, at least `least` pixels high and wide. An image with three axes has its planes on the
    first or the last axis, which must be shorter than the other two. With four axes, the first axis counts stacked
    frames, and the same rule applies to the other three.
    """
    if not isinstance(space, gym.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3, 4):
        return None
    shape, n = space.shape, len(space.shape)
    if n == 2:
        return ImageLayout((0, 1), (1, *shape)) if min(shape) >= least else None
    frames, (a, b, c) = shape[: n - 3], shape[n - 3 :]
    stack, at = tuple(range(n - 3)), n - 3
    first, last = (a < min(b, c), min(b, c)), (c < min(a, b), min(a, b))
    if first[0] and a <= PLANES and first[1] >= least:
        return ImageLayout((*stack, at, at + 1, at + 2), (math.prod(frames) * a, b, c))
    if last[0] and c <= PLANES and last[1] >= least:
        return ImageLayout((*stack, at + 2, at, at + 1), (math.prod(frames) * c, a, b))
    return None
