"""Surgery: growth of a trained network, for new observations, actions or sizes of layers.

The method is that of OpenAI et al. 2019, Dota 2, Appendix B. For the old network's inputs, the grown network computes
the same outputs (bitwise, if the matrix product adds in the same order). In a layer's weights, rows belong to outputs
and columns to inputs:

              old columns               new columns
    old rows  old weights               0
    new rows  random, or 0 for actions  random, or 0 for actions

New rows have random weights, as in an untrained network. Rows of new actions are 0. The zeros get a gradient in the
first update. An optimizer's statistics of old weights are kept. Those of new weights start as in a new optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from polyplay.core.errors import UserError
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.layers import Axis, AxisSegment, TensorAxes, axis

RENEWED = 10_000  # most rows that enlarged running statistics remember, so that added ones adapt quickly
Arrays = Mapping[str, np.ndarray]


def tensor_axes(net: nn.Module) -> tuple[dict[str, TensorAxes], dict[str, str]]:
    """Return two dicts by the names in the state_dict: {name: axes of the tensor} and {name: key of the tensor}.

    A tensor has the same key in every network. A module's dict `axes` describes the axes of its tensors. Tensors
    without an entry never grow. A module's dict `stable` gives keys to inner modules whose paths differ between
    networks.
    """
    modules = {f"{path}.": vars(module) for path, module in net.named_modules()}
    stable = {p + k: name for p, own in modules.items() for k, name in own.get("stable", {}).items()}
    known = {p + k: axes for p, own in modules.items() for k, axes in own.get("axes", {}).items()}
    found, keys = dict[str, TensorAxes](), dict[str, str]()
    for name, x in net.state_dict().items():
        fixed = TensorAxes(tuple(axis(f"axis {i}", n, fixed=True) for i, n in enumerate(x.shape)))
        place = next((place for place in stable if name.startswith(f"{place}.")), None)
        found[name] = replace(known.get(name, fixed), spare=place is not None)
        keys[name] = name if place is None else stable[place] + name.removeprefix(place)
    return found, keys


@dataclass(frozen=True)
class AxisMatch:
    """Match of an axis before and after growth: index old[i] becomes index new[i].
    `silent`: new indices where numbers start at 0.
    `missing`: observations, parts of actions, or tasks that the new axis lacks.
    """

    old: np.ndarray
    new: np.ndarray
    silent: np.ndarray
    missing: tuple[str, ...] = ()


def match_axes(name: str, before: Axis, after: Axis) -> AxisMatch:
    """Match an axis of the tensor `name` before and after growth. Raises UserError if the tensor would lose numbers."""
    there, at = dict[str, tuple[AxisSegment, np.ndarray]](), 0
    for s in after:
        there[s.name] = s, np.arange(at, at + s.size).reshape(s.shape)
        at += s.size
    parts, place = {s.part for s in after} - {None}, 0
    old, new, missing = list[int](), list[int](), dict[str, None]()
    for s in before:
        if s.name in there:
            to, places = there[s.name]
            fits = len(s.shape) == len(to.shape) and all(a <= b for a, b in zip(s.shape, to.shape, strict=True))
            if not fits or (s.shape != to.shape and (s.fixed or to.fixed)):
                change = f"the {s.name} would go from {list(s.shape)} to {list(to.shape)}"
                raise UserError(f"surgery: {name}: {change}, and networks only grow")
            old += range(place, place + s.size)
            new += places[tuple(slice(n) for n in s.shape)].ravel().tolist()
        elif s.part is None or s.part in parts:
            raise UserError(f"surgery: {name}: the {s.name} would be missing, and networks only grow")
        else:
            missing[s.part] = None
        place += s.size
    silent = [n for s, places in there.values() if s.silent for n in places.ravel().tolist()]
    numbers = [np.array(x, np.int64) for x in (old, new, sorted({*silent} - {*new}))]
    return AxisMatch(numbers[0], numbers[1], numbers[2], tuple(missing))


@dataclass(frozen=True)
class TensorGrowth:
    """Recipe for one tensor of the new network.
    `source`: the tensor's name in the old network, or None for a new tensor.
    `matches`: one AxisMatch per axis.
    """

    axes: TensorAxes
    source: str | None
    matches: tuple[AxisMatch, ...]

    def keep(self, old: np.ndarray, new: np.ndarray, deaf: bool = True) -> np.ndarray:
        """Return `new` with the numbers of `old` inserted. deaf: whether new columns of old rows become 0."""
        out = np.array(new)
        if deaf and self.matches and self.axes.fill is None:
            out[self.matches[0].new] = 0.0
        out[np.ix_(*(m.new for m in self.matches))] = old[np.ix_(*(m.old for m in self.matches))]
        return out

    def fresh(self, new: np.ndarray) -> np.ndarray:
        """Return the tensor's initial numbers. new: this tensor in an untrained network."""
        out = np.array(new) if self.axes.fill is None else np.full_like(new, self.axes.fill)
        for i, match in enumerate(self.matches):
            np.moveaxis(out, i, 0)[match.silent] = 0.0
        return out


class NetworkGrowth:
    """Grows the network `old` to the sizes of the network `new`. Raises UserError if numbers would be lost, or if the
    new network has more layers or other activations.
    """

    def __init__(self, old: ActorCritic, new: ActorCritic):
        (before, keys), (after, new_keys) = tensor_axes(old), tensor_axes(new)
        was, now = _activations(old), _activations(new)
        if was != now:
            text = f"surgery: the new network's activations are {now}, those of RUN {was}"
            raise UserError(f"{text}; leave activations and other layers as they were")
        self.shapes = tuple({k: tuple(v.shape) for k, v in net.state_dict().items()} for net in (old, new))
        self.parameters = tuple([name for name, _ in net.named_parameters()] for net in (old, new))
        lost = [name for name, key in keys.items() if not before[name].spare and key not in new_keys.values()]
        if lost:
            raise UserError(f"surgery: {lost[0]} would be missing in the new network, and networks only grow")
        names = {key: name for name, key in keys.items()}
        self.tensors = dict[str, TensorGrowth]()
        for name, x in after.items():
            source = names.get(new_keys[name])
            if source is None and not x.spare:
                raise UserError(f"surgery: {name} would be new: layers grow, but none is added")
            old_axes = before[source].axes if source else ()
            if source and len(old_axes) != len(x.axes):
                raise UserError(f"surgery: {name} would have {len(x.axes)} axes instead of {len(old_axes)}")
            both = zip(old_axes, x.axes, strict=bool(source))
            self.tensors[name] = TensorGrowth(x, source, tuple(match_axes(name, *axes) for axes in both))
        match_axes("torso", *(net.torso.unit_axis for net in (old, new)))  # units: no tensor has this axis

    @property
    def changed(self) -> dict[str, tuple[tuple[int, ...] | None, tuple[int, ...]]]:
        """Shapes of each tensor that grows, before and after growth, by name. For a new tensor, the first is None."""
        before, after = self.shapes
        both = {name: (before.get(growth.source or ""), after[name]) for name, growth in self.tensors.items()}
        return {name: shapes for name, shapes in both.items() if shapes[0] != shapes[1]}

    @property
    def missing(self) -> list[str]:
        """Observations, parts of actions, and tasks that the new network lacks."""
        found = (m.missing for growth in self.tensors.values() for m in growth.matches)
        return sorted({part for parts in found for part in parts})

    def grow(self, state: Arrays, fresh: Arrays) -> dict[str, np.ndarray]:
        """Return the tensors of the grown network. state: those of the old network. fresh: those of an untrained new
        one.
        """
        changed, out = self.changed, dict[str, np.ndarray]()
        modules = {name.rpartition(".")[0] for name in changed}
        for name, growth in self.tensors.items():
            new = growth.fresh(fresh[name])
            out[name] = new if growth.source is None else growth.keep(state[growth.source], new)
            if growth.axes.counts and name.rpartition(".")[0] in modules:
                out[name] = np.asarray(np.minimum(out[name], np.float32(RENEWED)))
        return out

    def grow_statistics(self, flat: np.ndarray, rest: float = 0.0) -> np.ndarray:
        """Return a vector of optimizer statistics for the new network's parameters.

        `flat`: this vector for the old network. `rest`: value for new weights.
        """
        (before, after), (old_names, new_names) = self.shapes, self.parameters
        sizes = [int(np.prod(before[name], dtype=np.int64)) for name in old_names]
        parts = dict(zip(old_names, np.split(flat, np.cumsum(sizes)[:-1]), strict=True))
        found = []
        for name in new_names:
            growth, new = self.tensors[name], np.full(after[name], rest, flat.dtype)
            if growth.source is not None:
                new = growth.keep(parts[growth.source].reshape(before[growth.source]), new, deaf=False)
            found.append(new.ravel())
        return np.concatenate(found)


def _activations(net: ActorCritic) -> str:
    found = {type(m).__name__ for m in net.modules() if type(m).__module__ == nn.ReLU.__module__}
    return " and ".join(sorted(found)) or "none"
