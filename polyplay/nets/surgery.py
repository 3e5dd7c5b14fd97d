"""A network that grows.

A network that grows and stays the same function of what it heard before: OpenAI et al. 2019, Dota 2, Appendix B.

What is old of a layer [rows, columns] keeps its weights, and hears nothing of what is new. New rows have the weights
of a new network, so that what they put out differs; those of an action's new values have none.

              old columns   new columns
    old rows  the old ones  0
    new rows  fresh         fresh, or 0 for actions

So outputs are the same for old inputs, to the bit where the matrix product adds in the same order, and the gradient
reaches the weights at which old rows hear new units at once. Statistics of an optimiser are kept likewise, new ones 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch import nn

from polyplay.core.errors import UserError
from polyplay.nets import action_heads, layers
from polyplay.nets.action_heads import ActionHead, Composite, ConditionalHead, UnitPointer
from polyplay.nets.actor_critic import FRAMES, ActorCritic, PixelControl
from polyplay.nets.layers import Axes, Axis, AxisMatch, AxisSegment, TensorAxes, linear_axes
from polyplay.nets.recurrent import Core, Temporal

# The axes of an ActorCritic's tensors: what its parts say of their own, and what stands behind and beside the torso.


def policy_axes(policy: ActorCritic) -> Axes:
    """Of every tensor in its state_dict."""
    found, size = layers.module_axes(policy, "") | _deviation_axes(policy), layers.torso_features(policy.torso, None)
    torso: Axis = getattr(policy.torso, "feature_axis", (AxisSegment("features", (size,)),))
    behind: Axis = (*torso, *_embedded_axis(policy), AxisSegment("reward", (1,))) if policy.previous else torso
    if isinstance(policy.core, Core | Temporal):
        found |= _core_axes(policy.core, behind)
        behind = (AxisSegment("core", (policy.core.features,)),)
    acting = valued = behind
    if policy.split is not None:
        acting = (AxisSegment("the policy's features", (policy.split,)),)
        valued = (AxisSegment("the value's features", (size - policy.split,)),)
    if policy.hidden:
        hidden = (AxisSegment("hidden", (policy.hidden[0].out_features,)),)  # type: ignore[arg-type]
        found |= linear_axes("hidden.0", hidden, acting) | linear_axes("hidden.1", hidden, valued)
        acting = valued = hidden
    if isinstance(policy.actions, UnitPointer):
        found |= layers.axes_within("actions", _pointer_axes(policy, acting))
    else:
        found |= linear_axes("actions", head_axis(policy.head), acting)
    found |= linear_axes("value", (AxisSegment("value", (1,), fixed=True),), valued)
    if policy.auxiliary is not None and policy.auxiliary.pixel is not None:
        found |= layers.axes_within("auxiliary.pixel", _pixel_axes(policy.auxiliary.pixel, behind))
    if policy.auxiliary is not None and policy.auxiliary.reward is not None:
        rows = (AxisSegment("hidden", (policy.auxiliary.reward.hidden.out_features,), fixed=True),)
        seen = tuple(AxisSegment(f"{s.name} of row {i}", s.shape) for i in range(FRAMES) for s in torso)
        found |= linear_axes("auxiliary.reward.hidden", rows, seen)
    return found


def _core_axes(core: Core | Temporal, columns: Axis) -> Axes:
    if isinstance(core, Temporal):  # its own size stays
        rows: Axis = (AxisSegment("gates", (4, core.features), fixed=True),)
        return linear_axes("core.input", rows, columns)
    rows = (AxisSegment("gates", (core.cell.gates, core.features)),)
    found = linear_axes("core.cell.recurrent", rows, (AxisSegment("core", (core.features,)),))
    if not core.cell.bias:
        del found["core.cell.recurrent.bias"]
    return found | linear_axes("core.input", rows, columns)


def _pixel_axes(head: PixelControl, behind: Axis) -> Axes:
    maps = (AxisSegment("maps", (head.fc.out_features,), fixed=True),)
    parts = (AxisSegment(f"advantages {i}", (n,), silent=True) for i, n in enumerate(head.parts))
    values: Axis = (AxisSegment("value", (1,), fixed=True), *parts)
    channels, _, *kernel = head.deconv.weight.shape
    rest = tuple((AxisSegment("kernel", (n,), fixed=True),) for n in kernel)
    weight = (AxisSegment("channels", (channels,), fixed=True),), values, *rest
    found = {"deconv.weight": weight, "deconv.bias": (values,)}
    return linear_axes("fc", maps, behind) | {key: TensorAxes(key, axes) for key, axes in found.items()}


# ----------------------------------------------------------------------------------------------- of actions


def _parts(head: ActionHead) -> Iterator[tuple[str, ActionHead]]:
    """A head's parts by their paths; the path of a head that has none is ""."""
    if isinstance(head, ConditionalHead):
        yield from zip(head.paths, (head.first, *head.rest), strict=True)
    elif isinstance(head, Composite):
        yield from zip(head.paths, head.heads, strict=True)
    else:
        yield "", head


def head_axis(head: ActionHead, without: str | None = None) -> Axis:
    """The numbers that a head takes, but those of a part."""
    if not isinstance(head, ConditionalHead):
        return tuple(s for path, part in _parts(head) for s in _numbers(path, part))
    (name, first), *rest = _parts(head)
    found = [*_numbers(name, first)]
    for (path, part), values in zip(rest, head.users.split(head.counts), strict=True):
        for value in values.tolist() if path != without else ():
            found += _numbers(path, part, f" of {name} {value}")
    return tuple(found)


def _pointer_axes(policy: ActorCritic, columns: Axis) -> Axes:
    """Of a UnitPointer: it has a query for each value of the first part that names a unit, whatever units there are."""
    head, (part, embedding) = cast("ConditionalHead", policy.head), policy.torso.pointer  # type: ignore[misc]
    values = head.users.split(head.counts)[head.paths.index(part) - 1].tolist()
    names = [f"query of action {part} of {head.paths[0]} {value}" for value in values]
    queries = tuple(AxisSegment(name, (embedding,), fixed=True, silent=True) for name in names)
    return linear_axes("query", queries, columns) | linear_axes("others", head_axis(head, part), columns)


def _embedded_axis(policy: ActorCritic) -> Axis:
    """The numbers of an action as an input. A part that names units has those of each set of them."""
    named, found = named_units(policy), list[AxisSegment]()
    for path, part in _parts(policy.head):
        units = [replace(s, name=f"action {path}: {s.name}") for s in named.get(path, ())]
        found += units or _numbers(path, part, silent=False)
    return tuple(found)


def named_units(policy: ActorCritic) -> dict[str, Axis]:
    """The values of actions' parts that name units of observations."""
    pointer = getattr(policy.torso, "pointer", None)
    return {pointer[0]: policy.torso.unit_axis} if pointer else {}  # type: ignore[dict-item]


def _numbers(path: str, head: ActionHead, whose: str = "", silent: bool = True) -> Axis:
    """Of one part; new values of it, and parts that are new, begin with 0 where that is asked for."""
    name, part = f"action {path}".strip(), path or None
    if isinstance(head, action_heads.MultiCategorical):
        places = zip(np.ndindex(*head.action.shape), head.nvec, strict=True)
        return tuple(AxisSegment(f"{name}{list(i)}{whose}", (n,), part=part, silent=silent) for i, n in places)
    shape = head.action.shape if isinstance(head, action_heads.Bernoulli | action_heads.Gaussian) else (head.size,)
    return (AxisSegment(f"{name}{whose}", tuple(shape), part=part, silent=silent),)


def _deviation_axes(policy: ActorCritic) -> Axes:
    """Of what heads learn themselves, which goes and comes with the part of the actions."""
    names, found = {module: name for name, module in policy.named_modules()}, Axes()
    for path, part in _parts(policy.head):
        if isinstance(part, action_heads.Gaussian):
            key = f"head {path}.log_std"
            found[f"{names[part]}.log_std"] = TensorAxes(key, (_numbers(path, part),), spare=bool(path))
    return found


RENEWED = 10_000  # rows that running statistics remember at most where some are new, so that these are soon their own
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TensorGrowth:
    """A tensor of the new network, and the one it comes from; None: from none."""

    axes: TensorAxes
    source: str | None
    matches: tuple[AxisMatch, ...]

    def keep(self, old: np.ndarray, new: np.ndarray, deaf: bool = True) -> np.ndarray:
        """`new` with the old numbers in their places. deaf: old rows hear nothing of what is new."""
        out = np.array(new)
        if deaf and self.matches and self.axes.fill is None:
            out[self.matches[0].new] = 0.0
        out[np.ix_(*(m.new for m in self.matches))] = old[np.ix_(*(m.old for m in self.matches))]
        return out

    def fresh(self, new: np.ndarray) -> np.ndarray:
        """What new numbers are, those of a new network given."""
        out = np.array(new) if self.axes.fill is None else np.full_like(new, self.axes.fill)
        for axis, match in enumerate(self.matches):
            np.moveaxis(out, axis, 0)[match.silent] = 0.0
        return out


class NetworkGrowth:
    """How each tensor of `new` comes from one of `old`. Raises UserError: something would be lost, or is no part of an
    observation, an action or a layer that is there.
    """

    def __init__(self, old: ActorCritic, new: ActorCritic):
        before, after = policy_axes(old), policy_axes(new)
        was, now = _activations(old), _activations(new)
        if was != now:
            text = f"surgery: the grown network is not the old one: its activations are {now}, those of RUN {was}"
            raise UserError(f"{text}; leave activations and other layers as they were")
        names = {x.key: name for name, x in before.items()}
        self.shapes = tuple({k: tuple(v.shape) for k, v in net.state_dict().items()} for net in (old, new))
        self.parameters = tuple([name for name, _ in net.named_parameters()] for net in (old, new))
        lost = [name for key, name in names.items() if key not in {x.key for x in after.values()}]
        if lost := [name for name in lost if not before[name].spare]:
            raise UserError(f"surgery: {lost[0]} would be missing in the new network, and networks only grow")
        self.tensors = {name: _growth(name, x, names.get(x.key), before) for name, x in after.items()}
        sets = (getattr(net.torso, "unit_axis", ()) for net in (old, new))  # no tensor has a number of units
        units = _matched("torso", *sets)
        self.named = dict.fromkeys(named_units(old), units)  # where values of actions that name units stand

    @property
    def changed(self) -> dict[str, tuple[tuple[int, ...] | None, tuple[int, ...]]]:
        """The tensors that grow: their shapes before and after; None: they are new."""
        before, after = self.shapes
        both = {name: (before.get(growth.source or ""), after[name]) for name, growth in self.tensors.items()}
        return {name: shapes for name, shapes in both.items() if shapes[0] != shapes[1]}

    @property
    def missing(self) -> list[str]:
        """Parts of observations and actions that the new network has no more."""
        found = (m.missing for growth in self.tensors.values() for m in growth.matches)
        return sorted({part for parts in found for part in parts})

    def grow(self, state: Arrays, fresh: Arrays) -> dict[str, np.ndarray]:
        """The new network's tensors from the old one's and those of a new network that has learnt nothing."""
        changed, out = self.changed, dict[str, np.ndarray]()
        modules = {name.rpartition(".")[0] for name in changed}
        for name, growth in self.tensors.items():
            new = growth.fresh(fresh[name])
            out[name] = new if growth.source is None else growth.keep(state[growth.source], new)
            if growth.axes.counts and name.rpartition(".")[0] in modules:
                out[name] = np.asarray(np.minimum(out[name], np.float32(RENEWED)))
        return out

    def grow_statistics(self, flat: np.ndarray, rest: float = 0.0) -> np.ndarray:
        """The optimiser's numbers of all weights, flat in the order of parameters; `rest` for new weights."""
        (before, after), (old_names, new_names) = self.shapes, self.parameters
        ends = np.cumsum([int(np.prod(before[name], dtype=np.int64)) for name in old_names])
        if len(flat) != ends[-1]:
            raise ValueError(f"statistics must be [{ends[-1]}], one of each weight; got {list(flat.shape)}")
        parts = dict(zip(old_names, np.split(flat, ends[:-1]), strict=True))
        found = []
        for name in new_names:
            growth, new = self.tensors[name], np.full(after[name], rest, flat.dtype)
            if growth.source is not None:
                new = growth.keep(parts[growth.source].reshape(before[growth.source]), new, deaf=False)
            found.append(new.ravel())
        return np.concatenate(found)


def _growth(name: str, axes: TensorAxes, source: str | None, before: Mapping[str, TensorAxes]) -> TensorGrowth:
    if source is None and not axes.spare:
        raise UserError(f"surgery: {name} would be new: layers grow, but none is added")
    if source is None:
        return TensorGrowth(axes, None, ())
    old = before[source].axes
    if len(old) != len(axes.axes):
        raise UserError(f"surgery: {name} would have {len(axes.axes)} axes instead of {len(old)}")
    return TensorGrowth(axes, source, tuple(_matched(name, *both) for both in zip(old, axes.axes, strict=True)))


def _activations(net: ActorCritic) -> str:
    """The kinds of activation that are modules, which no tensor shows."""
    found = {type(m).__name__ for m in net.modules() if type(m).__module__ == nn.ReLU.__module__}
    return " and ".join(sorted(found)) or "none"


def _matched(name: str, before: Axis, after: Axis) -> AxisMatch:
    """Raises UserError: some numbers would be lost."""
    try:
        return layers.match_axes(before, after)
    except ValueError as e:
        raise UserError(f"surgery: {name}: {e}, and networks only grow") from None
