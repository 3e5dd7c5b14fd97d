"""A torso in OpenAI Five's kind (OpenAI et al. 2019, Dota 2): units of a set share layers and are pooled, and numbers
beside them join in front of the last layer.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Tree
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import ActionSpec, Conditional, Discrete, describe_fields
from polyplay.nets.axes import Axes, AxisSegment, axes_within, linear_axes
from polyplay.nets.layers import Linear, initialise

HERO, ALLIES = "own", "allies"  # a vector and a set, whose embeddings are pooled together


class FiveTorso(nn.Module):
    """Vectors [N, n] and sets of units [N, units, numbers], whose first number says whether a unit is there → features
    [N, hidden]. hidden 0: no last layer. Two layers of each set make embeddings of its units; features hear their
    maximum over the units that are there, 0 where none is.

    Cross-hero pool: in the paper a maximum over the first quarter of the vectors of all five heroes, each of what that
    hero sees. A row here is what one hero sees, so it is over the first quarter of the embeddings of `own` and of
    `allies` as this row shows them, where an observation has both.

    Where a part of conditional actions has as many values as there are units, `pointer` has its name and the size of an
    embedding. Then behind the features, as the last `unit_features` of [N, features], stand the embeddings of all units
    in the observation's order, 0 where none is: see UnitPointer.
    """

    def __init__(self, spec: EnvSpec, hidden: int = 128, embedding: int = 32, init: str = "orthogonal"):
        super().__init__()
        fields = _numbers(spec)
        if hidden < 0 or embedding < 4:
            raise UserError(f"--network five: hidden={hidden}, embedding={embedding} given, allowed: from 0 and from 4")
        self.unit_sets = tuple(path for path, field in fields.items() if len(field) == 2)
        pooled = ALLIES in self.unit_sets and len(fields.get(HERO, ())) == 1
        self.quarter = embedding // 4 if pooled else 0
        self.vectors = [path for path in fields if path not in self.unit_sets and not (pooled and path == HERO)]
        self.encoders = nn.ModuleList(_two_layers(fields[path][1], embedding) for path in self.unit_sets)
        self.hero = _two_layers(fields[HERO][0], embedding) if pooled else None
        heroes = ((HERO, embedding), ("heroes", self.quarter)) if pooled else ()
        self.columns = (
            *(AxisSegment(f"observation {path}", fields[path], part=path) for path in self.vectors),
            *(AxisSegment(name, (n,), fixed=True) for name, n in heroes),
            *(AxisSegment(f"units of {path}", (embedding,), fixed=True, part=path) for path in self.unit_sets),
        )
        size = sum(segment.size for segment in self.columns)
        self.last = Linear(size, hidden) if hidden else None
        self.feature_axis = (AxisSegment("features", (hidden,)),) if hidden else self.columns
        units = sum(fields[path][0] for path in self.unit_sets)
        part = _pointing(spec.action, units)
        spare = {path: None if part else path for path in self.unit_sets}  # where no action names units, a set may go
        self.unit_axis = tuple(AxisSegment(f"units of {path}", fields[path][:1], part=spare[path]) for path in spare)
        self.pointer = (part, embedding) if part else None
        self.unit_features = units * embedding if part else 0
        self.features = (hidden or size) + self.unit_features
        initialise(self, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        units = [_embed(layers, leaves[path]) for path, layers in zip(self.unit_sets, self.encoders, strict=True)]
        beside = [leaves[path].reshape(units[0].shape[0], -1).float() for path in self.vectors]
        if self.hero is not None:
            own = self.hero(leaves[HERO].float())
            heroes = torch.cat([own.unsqueeze(1), units[self.unit_sets.index(ALLIES)]], 1)
            beside += [own, heroes[:, :, : self.quarter].amax(1)]
        x = torch.cat([*beside, *(one.amax(1) for one in units)], 1)  # embeddings are not negative: see _embed
        x = x if self.last is None else F.relu(self.last(x))
        return torch.cat([x, *(one.flatten(1) for one in units)], 1) if self.pointer else x

    def axes(self) -> Axes:
        """See nets.axes. The size of embeddings stays."""
        found = Axes()
        for i, (path, layers) in enumerate(zip(self.unit_sets, self.encoders, strict=True)):
            own = _layers_axes(path, layers)
            found |= {f"encoders.{i}.{k}": replace(x, key=f"units of {path}.{k}", spare=True) for k, x in own.items()}
        if self.hero is not None:
            found |= axes_within("hero", _layers_axes(HERO, self.hero))
        return found | (linear_axes("last", self.feature_axis, self.columns) if self.last else {})


def _numbers(spec: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Shapes by path. Raises UserError: others than of vectors and sets of units."""
    fields = dict(tree.leaves(spec.obs))
    real = all(len(field.shape) <= 2 and field.dtype.startswith("float") for field in fields.values())
    if not isinstance(spec.obs, dict) or not real or all(len(field.shape) < 2 for field in fields.values()):
        seen = describe_fields(spec.obs)
        raise UserError(f"--network five: takes a Dict of real vectors and sets [units, numbers], here they are {seen}")
    return {path: field.shape for path, field in fields.items()}


def _pointing(action: ActionSpec, units: int) -> str | None:
    """The part of the actions that names a unit. Raises UserError: it could be one of several."""
    uses = action.uses if isinstance(action, Conditional) else {}
    parts = [name for name in uses if action[name] == Discrete(units)]  # type: ignore[index]
    if len(parts) > 1:
        raise UserError(f"--network five: {', '.join(parts)} have a value for each of {units} units; allowed: one part")
    return parts[0] if parts else None


def _two_layers(numbers: int, embedding: int) -> nn.Sequential:
    first, second = Linear(numbers, embedding), Linear(embedding, embedding)
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))


def _layers_axes(path: str, layers: nn.Module) -> Axes:
    first, _, second, _ = layers.children()
    embedding = (AxisSegment("embedding", (second.out_features,), fixed=True),)  # type: ignore[arg-type]
    seen = (AxisSegment(f"observation {path}", (first.in_features,)),)  # type: ignore[arg-type]
    return linear_axes("0", embedding, seen) | linear_axes("2", embedding, embedding)


def _embed(layers: nn.Module, units: Tensor) -> Tensor:
    """[N, units, numbers] → [N, units, embedding], from 0 on, and 0 where none is."""
    made: Tensor = layers(units.float().flatten(0, 1)).unflatten(0, (-1, units.shape[1]))
    return made * (units[:, :, :1] > 0)
