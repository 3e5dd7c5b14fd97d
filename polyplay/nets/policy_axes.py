"""The axes of an ActorCritic's tensors: what its torso says of its own, and what stands behind and beside that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np

from polyplay.nets.action_heads import ActionHead, Bernoulli, Composite, Gaussian, MultiCategorical
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.auxiliary import FRAMES, PixelControl
from polyplay.nets.axes import Axes, Axis, AxisSegment, TensorAxes, axes_within, fixed_axes, linear_axes, module_axes
from polyplay.nets.conditional_head import ConditionalHead
from polyplay.nets.layers import torso_features
from polyplay.nets.recurrent import Core
from polyplay.nets.temporal import Temporal
from polyplay.nets.unit_pointer import UnitPointer


def policy_axes(policy: ActorCritic) -> Axes:
    """Of every tensor in its state_dict."""
    found = fixed_axes(policy.state_dict()) | module_axes(policy.torso, "torso") | _head_axes(policy.head)
    for name in ("inputs", "rewards"):
        if (module := getattr(policy, name)) is not None:
            found |= module_axes(module, name)
    size = torso_features(policy.torso, None)
    torso: Axis = getattr(policy.torso, "feature_axis", (AxisSegment("features", (size,)),))
    before = (*_embedded_axis(policy), AxisSegment("reward", (1,))) if policy.previous else ()
    behind: Axis = (*torso, *before)
    if isinstance(policy.core, Core | Temporal):
        found |= _core_axes(policy.core, behind)
        behind = (AxisSegment("core", (policy.core.features,)),)
    acting, valued = (behind, behind) if policy.split is None else _split(policy.split, size)
    if policy.hidden:
        hidden = (AxisSegment("hidden", (policy.hidden[0].out_features,)),)  # type: ignore[arg-type]
        found |= linear_axes("hidden.0", hidden, acting) | linear_axes("hidden.1", hidden, valued)
        acting = valued = hidden
    if isinstance(policy.actions, UnitPointer):
        found |= axes_within("actions", _pointer_axes(policy, acting))
    else:
        found |= linear_axes("actions", head_axis(policy.head), acting)
    found |= linear_axes("value", (AxisSegment("value", (1,), fixed=True),), valued)
    return found | _auxiliary_axes(policy, torso, behind)


def _split(at: int, features: int) -> tuple[Axis, Axis]:
    return (AxisSegment("the policy's features", (at,)),), (AxisSegment("the value's features", (features - at,)),)


def _core_axes(core: Core | Temporal, columns: Axis) -> Axes:
    if isinstance(core, Temporal):  # its own size stays
        rows: Axis = (AxisSegment("gates", (4, core.features), fixed=True),)
        return linear_axes("core.input", rows, columns)
    rows = (AxisSegment("gates", (core.cell.gates, core.features)),)
    found = linear_axes("core.cell.recurrent", rows, (AxisSegment("core", (core.features,)),))
    if not core.cell.bias:
        del found["core.cell.recurrent.bias"]
    return found | linear_axes("core.input", rows, columns)


def _auxiliary_axes(policy: ActorCritic, torso: Axis, behind: Axis) -> Axes:
    heads, found = policy.auxiliary, Axes()
    if heads is None:
        return found
    if heads.pixel is not None:
        found |= axes_within("auxiliary.pixel", _pixel_axes(heads.pixel, behind))
    if heads.reward is not None:
        rows = (AxisSegment("hidden", (heads.reward.hidden.out_features,), fixed=True),)
        seen = tuple(AxisSegment(f"{s.name} of row {i}", s.shape) for i in range(FRAMES) for s in torso)
        found |= linear_axes("auxiliary.reward.hidden", rows, seen)
    return found


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
    if isinstance(head, MultiCategorical):
        places = zip(np.ndindex(*head.action.shape), head.nvec, strict=True)
        return tuple(AxisSegment(f"{name}{list(i)}{whose}", (n,), part=part, silent=silent) for i, n in places)
    shape = head.action.shape if isinstance(head, Bernoulli | Gaussian) else (head.size,)
    return (AxisSegment(f"{name}{whose}", tuple(shape), part=part, silent=silent),)


def _head_axes(head: ActionHead) -> Axes:
    """Of what heads learn themselves: deviations."""
    found, flat = Axes(), not isinstance(head, Composite | ConditionalHead)
    where = "head" if flat else "head.heads" if isinstance(head, Composite) else "head.rest"
    parts = list(_parts(head))[isinstance(head, ConditionalHead) :]
    for i, (path, part) in enumerate(parts):
        if isinstance(part, Gaussian):
            name = f"{where}.log_std" if flat else f"{where}.{i}.log_std"
            found[name] = TensorAxes(f"head {path}.log_std", (_numbers(path, part),), spare=not flat)
    return found
