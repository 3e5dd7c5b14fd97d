"""Convolutional networks for images uint8 [C, H, W], by their papers' names.

Parameters are counted for 4×84×84 and 6 actions, heads included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common.errors import UserError
from polyplay.common.tree import Field, Spec
from polyplay.envs.pool import EnvSpec
from polyplay.envs.space_files import byte_bounds
from polyplay.nets import activation_reuse
from polyplay.nets.activation_reuse import Tape
from polyplay.nets.axes import Axes, AxisSegment, linear_axes
from polyplay.nets.layers import Conv2d, Linear, initialise, pixels

Layers = tuple[tuple[int, int, int], ...]  # channels, kernel, stride
Padding = tuple[int, ...] | Literal["same"]  # pixels around each layer's input, () for none; or as TensorFlow's SAME


def image(name: str, obs: Spec, least: int) -> tuple[int, int, int]:
    """The observation's C, H, W. UserError unless it is one image of at least `least` pixels each way."""
    if isinstance(obs, Field) and len(obs.shape) == 3 and min(obs.shape[1:]) >= least:
        return obs.shape
    given = list(obs.shape) if isinstance(obs, Field) else f"a dict of {', '.join(obs)}"
    raise UserError(
        f"--network: {name!r} takes one image [C, H, W] of at least {least}×{least}, the observations are {given}; "
        "use mlp or a network of your own (module:callable)"
    )


def image_ends(spec: EnvSpec, path: str = "") -> tuple[int, int]:
    """The lowest and the highest byte of the image at `path`, as declared; 0 and 255 where nothing was."""
    if (ends := byte_bounds(spec).get(path)) is None:
        return 0, 255
    low = int(ends[0].min(initial=255))
    return low, max(int(ends[1].max(initial=0)), low + 1)


def image_scale(spec: EnvSpec, path: str = "") -> tuple[float, float]:
    """What bytes of the image at `path` are multiplied with, and what is taken from them first: 1/255 and 0 of pixels;
    see layers.pixels.
    """
    low, high = image_ends(spec, path)
    return 1.0 / (high - low), float(low)


class Conv(nn.Module):
    """Convolutions and one fully connected layer, each followed by ReLU. [N, C, H, W] → [N, features].

    hidden: that layer's width; 0 for none. scale: of bytes, see image_scale.
    """

    def __init__(
        self,
        name: str,
        obs: Spec,
        layers: Layers,
        hidden: int,
        init: str = "torch",
        padding: Padding = (),
        scale: tuple[float, float] = (1.0 / 255.0, 0.0),
    ):
        super().__init__()
        self.scale = scale
        same = padding == "same"
        around = (0,) * len(layers) if isinstance(padding, str) or not padding else padding
        channels, *sides = image(name, obs, 1 if same else _least(layers))
        self.convs, self.pads = nn.ModuleList(), []
        for (out, kernel, stride), evenly in zip(layers, around, strict=True):
            left, right, top, bottom = sided = _around(sides, kernel, stride) if same else (evenly,) * 4
            even = left == right and top == bottom  # then the convolution pads by itself, without a copy
            self.pads.append((0, 0, 0, 0) if even else sided)
            self.convs.append(Conv2d(channels, out, kernel, stride, (top, left) if even else 0))
            spare = top + bottom - kernel, left + right - kernel
            channels, sides = out, [(n + more) // stride + 1 for n, more in zip(sides, spare, strict=True)]
        flat = channels * math.prod(sides)
        self.fc = Linear(flat, hidden) if hidden else None
        self.features = hidden or flat
        initialise(self, init)

    def forward(self, obs: Tensor, tape: Tape | None = None) -> Tensor:
        """tape: gets every layer's output."""
        x = pixels(obs, *self.scale)
        for conv, pad in zip(self.convs, self.pads, strict=True):
            x = F.relu(conv(F.pad(x, pad) if any(pad) else x), inplace=True)
            if tape is not None:
                tape.append(x)
        if self.fc is None:
            return x.flatten(1)
        x = F.relu(self.fc(x.flatten(1)), inplace=True)
        if tape is not None:
            tape.append(x)
        return x

    def recall(self, obs: Tensor, tape: Tape) -> Tensor:
        """What forward(obs) gave with these weights, from its tape; gradients go back as through forward."""
        x = pixels(obs, *self.scale)
        for conv, pad, y in zip(self.convs, self.pads, tape, strict=False):
            x = activation_reuse.recall(cast("nn.Conv2d", conv), F.pad(x, pad) if any(pad) else x, y)
        if self.fc is None:
            return x.flatten(1)
        return activation_reuse.recall(self.fc, x.flatten(1), tape[-1])

    def axes(self) -> Axes:
        """See nets.axes."""
        return _behind_convolutions(self.fc)


def _behind_convolutions(fc: Linear | None) -> Axes:
    if fc is None:
        return {}
    return linear_axes(
        "fc", (AxisSegment("features", (fc.out_features,)),), (AxisSegment("pixels", (fc.in_features,), True),)
    )


def _least(layers: Layers) -> int:
    """The smallest side that unpadded convolutions leave at least one pixel of."""
    side = 1
    for _, kernel, stride in reversed(layers):
        side = (side - 1) * stride + kernel
    return side


def _around(sides: list[int], kernel: int, stride: int) -> tuple[int, ...]:
    """Pixels missing around an image, in F.pad's order; an odd one at the end (TensorFlow's SAME padding)."""
    h, w = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in sides)
    return w // 2, w - w // 2, h // 2, h - h // 2


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3×3."""

    def __init__(self, channels: int):
        super().__init__()
        self.one = Conv2d(channels, channels, 3, padding=1)
        self.two = Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(F.relu(self.one(F.relu(x)), inplace=True))


class Section(nn.Module):
    """3×3 convolution, 3×3/2 max pooling with TensorFlow's SAME padding, two residual blocks."""

    def __init__(self, inputs: int, channels: int):
        super().__init__()
        self.conv = Conv2d(inputs, channels, 3, padding=1)
        self.one, self.two = Residual(channels), Residual(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        odd = x.shape[2] % 2, x.shape[3] % 2  # an odd side is padded at both ends, an even one at its end
        return self.two(self.one(F.max_pool2d(x, 3, 2, padding=odd, ceil_mode=True)))


class Impala(nn.Module):
    """IMPALA's deep net (Espeholt et al. 2018, figure 3): 15 convolutions. [N, C, H, W] → [N, features]. 1,091,031
    parameters.
    """

    def __init__(
        self, spec: EnvSpec, channels: tuple[int, ...] = (16, 32, 32), hidden: int = 256, init: str = "sonnet"
    ):
        super().__init__()
        inputs, *sides = image("impala", spec.obs, 1)
        self.scale = image_scale(spec)
        self.sections = nn.Sequential()
        for out in channels:
            self.sections.append(Section(inputs, out))
            inputs, sides = out, [-(-n // 2) for n in sides]
        flat = inputs * math.prod(sides)
        self.fc = Linear(flat, hidden) if hidden else None
        self.features = hidden or flat
        initialise(self, init)

    def forward(self, obs: Tensor) -> Tensor:
        x = F.relu(self.sections(pixels(obs, *self.scale)), inplace=True).flatten(1)
        return x if self.fc is None else F.relu(self.fc(x), inplace=True)

    def axes(self) -> Axes:
        """See nets.axes."""
        return _behind_convolutions(self.fc)


NATURE: Layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALL: Layers = ((16, 8, 4), (32, 4, 2))
# name: convolutions, width of the layer behind them and initialisation unless others are asked for, padding
CONVS: dict[str, tuple[Layers, int, str, Padding]] = {
    # DQN's (Mnih et al. 2015), baselines' A2C and PPO, IMPALA's shallow Atari net. 1,687,719 parameters
    "nature": (NATURE, 512, "orthogonal", ()),
    # A3C's (Mnih et al. 2016), no padding: 84 → 20 → 9. 677,943 parameters
    "a3c": (SMALL, 256, "torch", ()),
    # Accel RL's cnn spec 0, for 104×80: 25×19 → 12×9. 899,127 parameters there
    "accel": (SMALL, 256, "orthogonal", (0, 1)),
    # Accel RL's cnn spec 1, for 104×80: 25×19 → 12×9 → 12×9. 3,621,031 parameters there
    "accel_large": (NATURE, 512, "orthogonal", (0, 1, 1)),
    # GA3C's small network as its code has it, SAME padding: 84 → 21 → 11. 1,005,623 parameters
    "ga3c": (SMALL, 256, "torch", "same"),
    # the large network of GA3C's talk, SAME padding: 84 → 21 → 11 → 6. 649,351 parameters
    "ga3c_large4": (((32, 8, 4), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # the same with stride 3: 84 → 28 → 14 → 7. 862,343 parameters
    "ga3c_large3": (((32, 8, 3), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # the same with stride 2: 84 → 42 → 21 → 11. 2,041,991 parameters
    "ga3c_large2": (((32, 8, 2), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # the same with stride 1: 84 → 84 → 42 → 21. 7,284,871 parameters
    "ga3c_large1": (((32, 8, 1), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # as DQN's released code has it: a pixel of padding around its input, 84 → 20 all the same. 1,687,719 weights
    "dqn": (NATURE, 512, "torch", (1, 0, 0)),
    # Dopamine's, SAME padding: 84 → 21 → 11 → 11. 4,047,015 parameters
    "dopamine": (NATURE, 512, "dopamine", "same"),
    # rlpyt's feed-forward policies, for 104×80: 25×19 → 12×9. 1,785,911 parameters there
    "rlpyt": (SMALL, 512, "torch", (0, 1)),
}


def conv(name: str) -> Callable[..., Conv]:
    """What makes a network of CONVS."""
    layers, width, style, padding = CONVS[name]

    def build(spec: EnvSpec, hidden: int = width, init: str = style) -> Conv:
        return Conv(name, spec.obs, layers, hidden, init, padding, image_scale(spec))

    build.__qualname__ = name
    return build
