"""Torsos, the first parts of networks, which compute features of observations.

Convolutional networks take images uint8 [C, H, W] and are named after their papers. Other torsos are fully connected
networks and those of FTW and OpenAI Five. Numbers of parameters in comments are for images of 4×84×84 and 6 actions,
heads included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec, Tree
from polyplay.envs.images import BARE
from polyplay.envs.pool import EnvSpec, byte_bounds
from polyplay.envs.spaces import ActionSpec, Conditional, Discrete, describe_fields
from polyplay.nets import layers
from polyplay.nets.layers import Conv2d, Linear, Tape, axis, initialize, pixels
from polyplay.nets.policy import Torso, task_axis

# Fully connected networks for vectors, and for trees of vectors.


# Activations whose bitwise result does not depend on an element's place in the batch, unlike ELU and SiLU.
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class MLP(Torso):
    """Fully connected network: observations → [N, features]. The entries of a dict are flattened and concatenated.

    Discrete and MultiDiscrete entries become one-hot. Bytes are scaled from their declared bounds to [0, 1]. The
    default layers are PPO's for MuJoCo (Schulman et al. 2017), where the value has a separate network.
    """

    tiled = True

    def __init__(
        self, spec: EnvSpec, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh", init: str = "orthogonal"
    ):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"activation: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        self.leaves = [(path, spec.classes.get(path, 0)) for path, _ in tree.leaves(spec.obs)]
        self.flat = layers.FlatLeaves(spec)
        columns, made = layers.observed_axis(spec), list[nn.Module]()
        for width in hidden:
            rows = axis("features", width)
            made += [Linear.along(rows, columns), ACTIVATIONS[activation]()]
            columns = rows
        self.layers, self.features = nn.Sequential(*made), hidden[-1]
        initialize(self, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        flat = [_one_hot(leaves[path], n) if n else self.flat.numbers(path, leaves[path]) for path, n in self.leaves]
        return self.layers(flat[0] if len(flat) == 1 else torch.cat(flat, 1))


class Flat(Torso):
    """Torso without layers: returns observations as one vector [N, features]. Numbers are converted as in MLP."""

    def __init__(self, spec: EnvSpec):
        super().__init__()
        self.leaves = [(path, spec.classes.get(path, 0), math.prod(f.shape)) for path, f in tree.leaves(spec.obs)]
        self.flat = layers.FlatLeaves(spec)
        self.features = sum((n if isinstance(n, int) else sum(n)) or size for _, n, size in self.leaves)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        flat = [_one_hot(leaves[path], n) if n else self.flat.numbers(path, leaves[path]) for path, n, _ in self.leaves]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


class Combined(Torso):
    """Network for observations that contain images: a dict → [N, features].

    Each image passes through convolutions and a layer of `hidden` units. The convolutions are Nature DQN's if both
    sides have at least 36 pixels. For smaller images, two convolutions with 3×3 kernels are used. One layer of `width`
    units takes all other entries. If the observation is more than one image, a last layer of `hidden` units takes all
    features. With hidden=0, all layers of `hidden` units are omitted.
    """

    def __init__(self, spec: EnvSpec, hidden: int = 256, width: int = 64, init: str = "orthogonal"):
        super().__init__()
        images = spec.image_leaves
        fields = dict(tree.leaves(spec.obs))
        rest = {path: field for path, field in fields.items() if path not in images}
        if not images:
            seen = describe_fields(spec.obs)
            raise UserError(f"--network combined: takes images of bytes, but the observations are {seen}; use mlp")
        self.paths, convs = images, list[Conv]()
        for path in images:
            if min(fields[path].shape[1:]) < LEAST:
                shape, least = list(fields[path].shape), f"{LEAST}×{LEAST}"
                cure = "leave it out of --images, or enlarge it"
                raise UserError(f"--network combined: the image {path or BARE} {shape} is smaller than {least}: {cure}")
            one = replace(spec, obs=fields[path], classes={}, spaces=None)
            conv = Conv("nature" if min(fields[path].shape[1:]) >= LARGE else "small", one, hidden, init)
            conv.scale = image_scale(spec, path)
            convs.append(conv)
        self.convs = nn.ModuleList(convs)
        self.stable = {f"convs.{i}": f"image {path}" for i, path in enumerate(images)}
        self.numbers = MLP(replace(spec, obs=tree.nest(rest)), (width,), "relu", init) if rest else None
        parts = sum(conv.features for conv in convs) + (width if rest else 0)
        rows, columns = axis("features", hidden), axis("parts", parts, fixed=True)
        self.join = Linear.along(rows, columns) if hidden and parts > hidden else None
        self.features = hidden or parts
        if self.join is not None:
            initialize(self.join, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        made = [conv(leaves[path]) for path, conv in zip(self.paths, self.convs, strict=True)]
        if self.numbers is not None:
            made.append(self.numbers(tree.nest({path: x for path, x in leaves.items() if path not in self.paths})))
        x = made[0] if len(made) == 1 else torch.cat(made, 1)
        return x if self.join is None else F.relu(self.join(x))


class WithTask(Torso):
    """Adds the task to an image network: a last layer takes the network's features and the task.

    `width`: size of a learned embedding of the task, or 0 for a one-hot task.
    `joined`: if false, the last layer is omitted, and the features and the task are concatenated.
    """

    def __init__(self, seen: Torso, tasks: tuple[str, ...], width: int, joined: bool = True, init: str = "orthogonal"):
        super().__init__()
        self.seen, self.n = seen, len(tasks)
        columns = task_axis(tasks, "task")
        self.embedding = Linear.along(axis("embedding", width), columns) if width else None
        behind = (*axis("features", seen.features), *(axis("embedding", width) if width else columns))
        self.join = Linear.along(axis("joined", seen.features), behind) if joined else None
        self.features = seen.features if joined else seen.features + (width or self.n)
        for layer in (self.embedding, self.join):
            if layer is not None:
                initialize(layer, init)

    def forward(self, obs: Tree) -> Tensor:
        task = layers.one_hot(obs["task"], self.n)
        x = torch.cat([self.seen(obs["seen"]), task if self.embedding is None else F.relu(self.embedding(task))], 1)
        return x if self.join is None else F.relu(self.join(x))


class SeparateMLPs(Torso):
    """Two MLPs, one for the policy and one for the value, as in PPO for MuJoCo (Schulman et al. 2017, §6.1).

    The policy's features come first, then `value_features` features for the value: observations → [N, features].
    """

    tiled = True

    def __init__(
        self, spec: EnvSpec, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh", init: str = "orthogonal"
    ):
        super().__init__()
        self.policy, self.value = (MLP(spec, hidden, activation, init) for _ in range(2))
        self.value_features = self.value.features
        self.features = self.policy.features + self.value_features

    def forward(self, obs: Tree) -> Tensor:
        return torch.cat([self.policy(obs), self.value(obs)], 1)


def _one_hot(x: Tensor, n: int | tuple[int, ...]) -> Tensor:
    """One-hot encode integers [N, ...] as float32 [N, numbers]. n: number of classes, or a tuple of one per integer."""
    if isinstance(n, tuple):
        first = torch.tensor([0, *n[:-1]], device=x.device).cumsum(0)  # offset of each integer's part
        return torch.zeros(x.shape[0], sum(n), device=x.device).scatter_(1, x.reshape(x.shape[0], -1) + first, 1.0)
    return layers.one_hot(x, n)


Layers = tuple[tuple[int, int, int], ...]  # (channels, kernel, stride) of each convolution
Padding = tuple[int, ...] | Literal["same"]  # pixels around each layer's input, () for none; or TensorFlow's SAME


def image(name: str, obs: Spec, least: int) -> tuple[int, int, int]:
    """Return C, H, W of the observation. Raises UserError unless `obs` is one image with sides of at least `least`."""
    if isinstance(obs, Field) and len(obs.shape) == 3 and min(obs.shape[1:]) >= least:
        return obs.shape
    raise UserError(
        f"--network: {name!r} takes one image [C, H, W] of at least {least}×{least}, but the observations are "
        f"{describe_fields(obs)}; use mlp or your own network (module:callable)"
    )


def image_ends(spec: EnvSpec, path: str = "") -> tuple[int, int]:
    """Return the declared bounds of an image's bytes. Without declared bounds, return 0 and 255."""
    if (ends := byte_bounds(spec).get(path)) is None:
        return 0, 255
    low = int(ends[0].min(initial=255))
    return low, max(int(ends[1].max(initial=0)), low + 1)


def image_scale(spec: EnvSpec, path: str = "") -> tuple[float, float]:
    """Return the arguments `scale` and `low` of layers.pixels for an image: 1/255 and 0 for ordinary pixels."""
    low, high = image_ends(spec, path)
    return 1.0 / (high - low), float(low)


class Conv(Torso):
    """Convolutions and one fully connected layer, each followed by ReLU: [N, C, H, W] → [N, features]. name: a key of
    CONVS. hidden: width of the fully connected layer, or 0 for none.
    """

    recalls = True

    def __init__(self, name: str, spec: EnvSpec, hidden: int, init: str):
        super().__init__()
        layers, _, _, padding = CONVS[name]
        self.scale = image_scale(spec)
        same, least = padding == "same", 1
        around = (0,) * len(layers) if isinstance(padding, str) or not padding else padding
        for _, kernel, stride in () if same else reversed(layers):  # least: the shortest side that leaves a pixel
            least = (least - 1) * stride + kernel
        channels, *sides = image(name, spec.obs, least)
        self.convs, self.pads = nn.ModuleList(), []
        for (out, kernel, stride), evenly in zip(layers, around, strict=True):
            left, right, top, bottom = sided = _around(sides, kernel, stride) if same else (evenly,) * 4
            even = left == right and top == bottom  # then the convolution pads by itself, without a copy
            self.pads.append((0, 0, 0, 0) if even else sided)
            self.convs.append(Conv2d(channels, out, kernel, stride, (top, left) if even else 0))
            spare = top + bottom - kernel, left + right - kernel
            channels, sides = out, [(n + more) // stride + 1 for n, more in zip(sides, spare, strict=True)]
        flat = channels * math.prod(sides)
        self.fc = Linear.along(axis("features", hidden), axis("pixels", flat, fixed=True)) if hidden else None
        self.features = hidden or flat
        initialize(self, init)

    def forward(self, obs: Tensor, tape: Tape | None = None) -> Tensor:
        """Return the features. tape: a list that receives every layer's output, for `recall`."""

        def apply(layer: nn.Module, x: Tensor) -> Tensor:
            y = F.relu(layer(x), inplace=True)
            if tape is not None:
                tape.append(y)
            return y

        return self._through(obs, apply)

    def recall(self, obs: Tensor, tape: Tape) -> Tensor:
        """See Torso.recall."""
        outputs = iter(tape)
        return self._through(obs, lambda layer, x: layers.recall(layer, x, next(outputs)))

    def _through(self, obs: Tensor, apply: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """Return the features, where apply(layer, x) computes each layer."""
        x = pixels(obs, *self.scale)
        for conv, pad in zip(self.convs, self.pads, strict=True):
            x = apply(conv, F.pad(x, pad) if any(pad) else x)
        return x.flatten(1) if self.fc is None else apply(self.fc, x.flatten(1))


def _around(sides: list[int], kernel: int, stride: int) -> tuple[int, ...]:
    """Return the padding of TensorFlow's SAME, in F.pad's order. An odd padding puts one more pixel at the end."""
    h, w = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in sides)
    return w // 2, w - w // 2, h // 2, h - h // 2


class Residual(nn.Module):
    """Residual block: x + conv(relu(conv(relu(x)))), with 3×3 convolutions."""

    def __init__(self, channels: int):
        super().__init__()
        self.one = Conv2d(channels, channels, 3, padding=1)
        self.two = Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(F.relu(self.one(F.relu(x)), inplace=True))


class Section(nn.Module):
    """Section of IMPALA's network: a 3×3 convolution, max pooling, and two residual blocks. The 3×3 pooling has stride
    2 and TensorFlow's SAME padding.
    """

    def __init__(self, inputs: int, channels: int):
        super().__init__()
        self.conv = Conv2d(inputs, channels, 3, padding=1)
        self.one, self.two = Residual(channels), Residual(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        odd = x.shape[2] % 2, x.shape[3] % 2  # an odd side is padded at both ends, an even one at its end
        return self.two(self.one(F.max_pool2d(x, 3, 2, padding=odd, ceil_mode=True)))


class Impala(Torso):
    """IMPALA's deep network (Espeholt et al. 2018, figure 3): [N, C, H, W] → [N, features].

    The network has 15 convolutions and 1,091,031 parameters.
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
        self.fc = Linear.along(axis("features", hidden), axis("pixels", flat, fixed=True)) if hidden else None
        self.features = hidden or flat
        initialize(self, init)

    def forward(self, obs: Tensor) -> Tensor:
        x = F.relu(self.sections(pixels(obs, *self.scale)), inplace=True).flatten(1)
        return x if self.fc is None else F.relu(self.fc(x), inplace=True)


NATURE: Layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALL: Layers = ((16, 8, 4), (32, 4, 2))
TINY: Layers = ((32, 3, 2), (64, 3, 1))
# name: convolutions, default width of the layer after them, default initialization, padding. Arrows show images' sides
CONVS: dict[str, tuple[Layers, int, str, Padding]] = {
    # DQN (Mnih et al. 2015), baselines' A2C and PPO, IMPALA's shallow Atari net. 1,687,719 parameters
    "nature": (NATURE, 512, "orthogonal", ()),
    # A3C (Mnih et al. 2016), no padding: sides 84 → 20 → 9. 677,943 parameters
    "a3c": (SMALL, 256, "torch", ()),
    # Accel RL's cnn spec 0, for images of 104×80 → 25×19 → 12×9, where it has 899,127 parameters
    "accel": (SMALL, 256, "orthogonal", (0, 1)),
    # Accel RL's cnn spec 1, for images of 104×80 → 25×19 → 12×9 → 12×9, where it has 3,621,031 parameters
    "accel_large": (NATURE, 512, "orthogonal", (0, 1, 1)),
    # GA3C's small network as in its code, SAME padding: sides 84 → 21 → 11. 1,005,623 parameters
    "ga3c": (SMALL, 256, "torch", "same"),
    # the large network of GA3C's talk, SAME padding: sides 84 → 21 → 11 → 6. 649,351 parameters
    "ga3c_large4": (((32, 8, 4), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # ga3c_large4 with first stride 3: sides 84 → 28 → 14 → 7. 862,343 parameters
    "ga3c_large3": (((32, 8, 3), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # ga3c_large4 with first stride 2: sides 84 → 42 → 21 → 11. 2,041,991 parameters
    "ga3c_large2": (((32, 8, 2), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # ga3c_large4 with first stride 1: sides 84 → 84 → 42 → 21. 7,284,871 parameters
    "ga3c_large1": (((32, 8, 1), (32, 4, 2), (64, 4, 2)), 256, "torch", "same"),
    # DQN's released code, with a pixel of padding around the image: sides 84 → 20 as without it. 1,687,719 parameters
    "dqn": (NATURE, 512, "torch", (1, 0, 0)),
    # Dopamine, SAME padding: sides 84 → 21 → 11 → 11. 4,047,015 parameters
    "dopamine": (NATURE, 512, "dopamine", "same"),
    # rlpyt's feed-forward policies, for images of 104×80 → 25×19 → 12×9, where they have 1,785,911 parameters
    "rlpyt": (SMALL, 512, "torch", (0, 1)),
    # Polyplay's own, for images with sides below 36 pixels
    "small": (TINY, 256, "orthogonal", ()),
}


# FTW's torso (Jaderberg et al. 2019, supplement, figure S11), and a similar one for small images such as arena:ctf's
# window. Observations other than the image join before the last layer.


LARGE = 36  # least side in pixels for a paper's convolutions
LEAST = 7  # least side in pixels for `small`


class FTWTorso(Torso):
    """FTW's torso: an image of bytes [N, C, H, W], optionally in a dict with vectors → [N, hidden].

    Images with sides of at least 36 pixels pass through convolutions of 32 filters (8×8, stride 4), 64 (4×4, stride 2),
    64 (3×3) and 64 (3×3). The last two are residual. Smaller images pass through convolutions of 32 filters (3×3) and
    64 (3×3, stride 2).
    """

    def __init__(self, spec: EnvSpec, hidden: int = 256, init: str = "orthogonal"):
        super().__init__()
        self.paths = [path for path, _ in tree.leaves(spec.obs)]
        fields = dict(tree.leaves(spec.obs))
        views = [path for path, field in fields.items() if len(field.shape) == 3 and field.dtype == "uint8"]
        if len(views) != 1 or any(len(fields[path].shape) > 1 for path in self.paths if path not in views):
            seen = f"but the observations are {describe_fields(spec.obs)}"
            raise UserError(f"--network ftw: takes one image of bytes and numbers beside it, {seen}")
        (self.view,) = views
        self.scale = image_scale(spec, self.view)
        channels, *sides = fields[self.view].shape
        large = min(sides) >= LARGE
        shapes = ((32, 8, 4), (64, 4, 2), (64, 3, 1), (64, 3, 1)) if large else ((32, 3, 1), (64, 3, 2))
        self.convs = nn.ModuleList()
        for out, kernel, stride in shapes:
            same = kernel // 2 if large and stride == 1 else 0
            self.convs.append(Conv2d(channels, out, kernel, stride, same))
            channels, sides = out, [(side + 2 * same - kernel) // stride + 1 for side in sides]
        if min(sides) < 1:
            shown = list(fields[self.view].shape)
            raise UserError(f"--network ftw: takes an image of 5 × 5 or more, but it is {shown}")
        self.flat = layers.FlatLeaves(spec)
        view = layers.AxisSegment("view", (channels, *sides), fixed=True)
        columns = view, *layers.observed_axis(spec, one_hot=False, without=(self.view,))
        self.fc = Linear.along(axis("features", hidden), columns)
        self.features = hidden
        initialize(self, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        x = pixels(leaves[self.view], *self.scale)
        for conv in self.convs:
            y = F.relu(conv(x))
            x = x + y if y.shape == x.shape else y
        numbers = [self.flat.numbers(path, leaves[path]).to(x.dtype) for path in self.paths if path != self.view]
        return F.relu(self.fc(torch.cat([x.flatten(1), *numbers], 1) if numbers else x.flatten(1)))


# A torso like OpenAI Five's (OpenAI et al. 2019, Dota 2): the units of a set share layers and are pooled; other numbers
# join before the last layer.


HERO, ALLIES = "own", "allies"  # paths of a vector and a set, whose embeddings are pooled together


class FiveTorso(Torso):
    """Torso like OpenAI Five's: a dict of vectors [N, n] and sets of units [N, units, numbers] → [N, hidden].

    A unit's first number says whether the unit is present. Two layers embed each unit; every set has its own layers.
    For each set, the maximum over the embeddings of present units is taken (0 if no unit is present). A last layer
    takes these maxima and the vectors. With hidden=0, the last layer is omitted.

    In the paper, the torso also takes the maximum, over all heroes, of the first quarter of each hero's vector. Here,
    if the observation has `own` (a hero) and `allies`, the torso does so with the embeddings of `own` and all allies.

    If a part of the actions chooses a unit, `pointer` is the name of this part and the size of embeddings. The last
    `unit_features` features are then the embeddings of all units, for UnitPointer (0 for absent units).
    """

    def __init__(self, spec: EnvSpec, hidden: int = 128, embedding: int = 32, init: str = "orthogonal"):
        super().__init__()
        fields = _numbers(spec)
        self.unit_sets = tuple(path for path, field in fields.items() if len(field) == 2)
        pooled = ALLIES in self.unit_sets and len(fields.get(HERO, ())) == 1
        self.quarter = embedding // 4 if pooled else 0
        self.vectors = [path for path in fields if path not in self.unit_sets and not (pooled and path == HERO)]
        self.encoders = nn.ModuleList(_two_layers(path, fields[path][1], embedding) for path in self.unit_sets)
        self.stable = {f"encoders.{i}": f"units of {path}" for i, path in enumerate(self.unit_sets)}
        self.hero = _two_layers(HERO, fields[HERO][0], embedding) if pooled else None
        heroes = ((HERO, embedding), ("heroes", self.quarter)) if pooled else ()
        columns = (
            *(layers.AxisSegment(f"observation {path}", fields[path], part=path) for path in self.vectors),
            *(layers.AxisSegment(name, (n,), fixed=True) for name, n in heroes),
            *(layers.AxisSegment(f"units of {path}", (embedding,), fixed=True, part=path) for path in self.unit_sets),
        )
        self.feature_axis = axis("features", hidden) if hidden else columns
        self.last = Linear.along(self.feature_axis, columns) if hidden else None
        units = sum(fields[path][0] for path in self.unit_sets)
        part = _pointing(spec.action, units)
        sets = {path: None if part else path for path in self.unit_sets}  # None: surgery may drop the set
        self.unit_axis = tuple(layers.AxisSegment(f"units of {k}", fields[k][:1], part=v) for k, v in sets.items())
        self.pointer = (part, embedding) if part else None
        self.unit_features = units * embedding if part else 0
        self.features = sum(segment.size for segment in self.feature_axis) + self.unit_features
        initialize(self, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        units = [_embed(layers, leaves[path]) for path, layers in zip(self.unit_sets, self.encoders, strict=True)]
        beside = [leaves[path].reshape(units[0].shape[0], -1).float() for path in self.vectors]
        if self.hero is not None:
            own = self.hero(leaves[HERO].float())
            heroes = torch.cat([own.unsqueeze(1), units[self.unit_sets.index(ALLIES)]], 1)
            beside += [own, heroes[:, :, : self.quarter].amax(1)]
        x = torch.cat([*beside, *(one.amax(1) for one in units)], 1)  # embeddings are ≥ 0, see _embed
        x = x if self.last is None else F.relu(self.last(x))
        return torch.cat([x, *(one.flatten(1) for one in units)], 1) if self.pointer else x


def _numbers(spec: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of observations by path. Raises UserError if they are not vectors and sets of units."""
    fields = dict(tree.leaves(spec.obs))
    real = all(len(field.shape) <= 2 and field.dtype.startswith("float") for field in fields.values())
    if not isinstance(spec.obs, dict) or not real or all(len(field.shape) < 2 for field in fields.values()):
        seen = f"but the observations are {describe_fields(spec.obs)}"
        raise UserError(f"--network five: takes a Dict of real vectors and sets [units, numbers], {seen}")
    return {path: field.shape for path, field in fields.items()}


def _pointing(action: ActionSpec, units: int) -> str | None:
    """Return the name of the action part that chooses a unit, or None. Raises UserError if several parts do."""
    uses = action.uses if isinstance(action, Conditional) else {}
    parts = [name for name in uses if action[name] == Discrete(units)]  # type: ignore[index]
    if len(parts) > 1:
        raise UserError(f"--network five: {', '.join(parts)} have a value for each of {units} units; allowed: one part")
    return parts[0] if parts else None


def _two_layers(path: str, numbers: int, embedding: int) -> nn.Sequential:
    """Make two layers that embed a unit."""
    rows = axis("embedding", embedding, fixed=True)
    first, second = Linear.along(rows, axis(f"observation {path}", numbers)), Linear.along(rows, rows)
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))


def _embed(layers: nn.Module, units: Tensor) -> Tensor:
    """Embed units [N, units, numbers] → [N, units, embedding]. Embeddings are ≥ 0; those of absent units are 0."""
    made: Tensor = layers(units.float().flatten(0, 1)).unflatten(0, (-1, units.shape[1]))
    return made * (units[:, :, :1] > 0)
