"""Rows of an environment as those of another one, which shows more and takes more actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyplay.acting.rows import as_tensors
from polyplay.core import tree
from polyplay.core.tree import Batch, Spec, Tree
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Leaf, MultiBinary, MultiDiscrete
from polyplay.nets.layers import AxisSegment
from polyplay.nets.surgery import AxisMatch, match_axes


@dataclass(frozen=True)
class WiderRows:
    """Rows of an environment as those of another one, which shows more and takes more actions. named: of parts of
    actions whose old values are not the first new ones, where they stand.
    """

    old: EnvSpec
    new: EnvSpec
    named: Mapping[str, AxisMatch] = field(default_factory=dict)

    def row(self, step: Batch) -> Batch:
        """With a mask by which the old actions alone are legal, where there are others."""
        mask = self._mask(step.get("mask"), len(step["first"]))
        rest = {k: v for k, v in step.items() if k not in ("obs", "mask", "noise")}
        return {**rest, "obs": _padded(step["obs"], self.new.obs), **({} if mask is None else {"mask": mask})}

    def action(self, action: Tree) -> Tree:
        """What is new of it is 0."""
        leaves = dict(tree.leaves(action))
        for path, match in self.named.items():
            leaves[path] = torch.from_numpy(match.new)[leaves[path]]
        return _padded(tree.nest(leaves), tree.map(lambda leaf: leaf.field, self.new.action))

    def _mask(self, given: Tree, n: int) -> Tree:
        old, found = dict(tree.leaves(self.old.action)), dict[str, Tensor]()
        masks = {} if given is None else dict(tree.leaves(given))
        for path, leaf in tree.leaves(self.new.action):
            if leaf.classes and (path in masks or leaf.classes != getattr(old.get(path), "classes", ())):
                before = () if path not in old else _values(old[path])
                match = self.named.get(path) or match_axes("", before, _values(leaf))
                found[path] = _legal(match, leaf, masks.get(path), n)
                if found[path].dim() == 3:  # one for each value of the first part, whose new ones are illegal
                    action = cast("Conditional", self.new.action)
                    more = action[action.first].n - found[path].shape[1]
                    found[path] = F.pad(found[path], (0, 0, 0, more))
        return tree.nest(found) if found else None


def _padded(given: Tree, spec: Spec) -> Tree:
    """Leaves [B, …] in the corner of zeros of the spec's shapes."""
    leaves = dict(tree.leaves(given))
    found = as_tensors(dict(tree.leaves(tree.zeros(spec, (len(next(iter(leaves.values()))),)))))
    for path in found.keys() & leaves.keys():
        found[path][(slice(None), *map(slice, leaves[path].shape[1:]))] = leaves[path]
    return tree.nest(found)


def _legal(match: AxisMatch, new: Leaf, mask: Tensor | None, n: int) -> Tensor:
    """bool [n, …, values]: of old numbers what is legal of the old values, of new ones the first value."""
    found = torch.zeros(*((n,) if mask is None else mask.shape[:-1]), sum(new.classes), dtype=torch.bool)
    ends = np.cumsum(new.classes)
    for end, count in zip(ends, new.classes, strict=True):
        if not np.isin(np.arange(end - count, end), match.new).any():
            found[..., end - count] = True
    found[..., torch.from_numpy(match.new)] = True if mask is None else mask[..., torch.from_numpy(match.old)]
    return found


def _values(leaf: Leaf) -> tuple[AxisSegment, ...]:
    shape = leaf.shape if isinstance(leaf, MultiDiscrete | MultiBinary) else ()
    return tuple(AxisSegment(str(at), (n,)) for at, n in zip(np.ndindex(*shape), leaf.classes, strict=True))
