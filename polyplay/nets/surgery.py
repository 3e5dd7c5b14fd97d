"""A network that grows and stays the same function of what it heard before: OpenAI et al. 2019, Dota 2, Appendix B.

What is old of a layer [rows, columns] keeps its weights, and hears nothing of what is new. New rows have the weights
of a new network, so that what they put out differs; those of an action's new values have none.

              old columns   new columns
    old rows  the old ones  0
    new rows  fresh         fresh, or 0 for actions

So outputs are the same for old inputs, to the bit where the matrix product adds in the same order, and the gradient
reaches the weights at which old rows hear new units at once. Statistics of an optimiser are kept likewise, new ones 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn

from polyplay.common.errors import UserError
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.axes import Axis, AxisMatch, TensorAxes, match_axes
from polyplay.nets.policy_axes import named_units, policy_axes

RENEWED = 10_000  # rows that running statistics remember at most where some are new, so that these are soon their own
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TensorGrowth:
    """A tensor of the new network, and the one it comes from; None: from none."""

    axes: TensorAxes
    source: str | None
    matches: tuple[AxisMatch, ...]

    def keep(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """`new` with the old numbers in their places."""
        out = np.array(new)
        if not self.matches:
            out[...] = old
            return out
        if self.axes.fill is None:
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
                matches, old = growth.matches, parts[growth.source].reshape(before[growth.source])
                new[np.ix_(*(m.new for m in matches))] = old[np.ix_(*(m.old for m in matches))]
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
        return match_axes(before, after)
    except ValueError as e:
        raise UserError(f"surgery: {name}: {e}, and networks only grow") from None
