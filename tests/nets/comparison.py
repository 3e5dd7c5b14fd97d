"""Two policies in the same rows: one acts in its environment, the other one, which sees and does more, is asked too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyplay.acting.play import SEED
from polyplay.acting.rows import as_tensors, policy_inputs
from polyplay.core import tree
from polyplay.core.numbers import uniform
from polyplay.core.tree import Batch, Spec, Tree
from polyplay.envs import All, Envs
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Conditional, Leaf, MultiBinary, MultiDiscrete
from polyplay.nets.layers import AxisMatch, AxisSegment, match_axes
from polyplay.nets.policy import Policy

LANES = 8


class PolicyDifference(NamedTuple):
    """The largest differences in so many rows; logp: None, actions have real numbers that the other one lacks."""

    rows: int
    logp: float | None
    value: float
    relative: float  # the largest of both, each divided by 1 + its size


def compare_policies(
    envs: Envs,
    old: Policy,
    new: Policy,
    spec: EnvSpec,
    steps: int,
    seed: int,
    named: Mapping[str, AxisMatch] | None = None,
) -> PolicyDifference:
    """`old` acts in some lanes of `envs` for so many steps. `new`, a policy for `spec`, gets the same rows: what it
    sees beyond is 0, and what it can do beyond is illegal. Both keep their own state. named: see WiderRows.
    """
    wider, rows, state = WiderRows(envs.spec, spec, named or {}), 0, dict[str, Any]()
    most = dict.fromkeys(("logp", "value") if wider.comparable else ("value",), 0.0)
    relative = 0.0
    for step, out in _acted(envs, old, steps, seed):
        row = wider.row(step) | {"action": wider.action(out["action"])}
        row |= {k: out[k] for k in ("latent_noise",) if k in out}
        lanes = len(out["value"])
        noise = torch.full((lanes, new.noise), 0.5)
        noise[:, : old.noise] = step["noise"][:, : new.noise]
        with torch.no_grad():
            state = state if rows else new.initial(lanes)
            found = new.unroll(tree.map(lambda x: x.unsqueeze(0), row), state)
            _, state = new.act({**row, "noise": noise}, state)
        state |= {k: row[k] for k in ("action",) if k in state}
        rows += lanes
        for name in most:
            off = (found[name][0] - out[name]).abs()
            most[name] = max(most[name], float(off.max()))
            relative = max(relative, float((off / (1.0 + out[name].abs())).max()))
    return PolicyDifference(rows, most.get("logp"), most["value"], relative)


def _acted(envs: Envs, policy: Policy, steps: int, seed: int) -> Iterator[tuple[Batch, Batch]]:
    """The rows, with the noise, and what the policy puts out."""
    lanes = envs.spec.width or max(LANES // envs.spec.seats, 1) * envs.spec.seats
    few = replace(envs, lanes=lanes, workers=0, batching=All(), groups=1, active=0, agents=1)
    with closing(few.open(seed + SEED)) as pool:
        state, numbers = policy.initial(lanes), np.arange(lanes)
        for at in range(steps):
            which, step = pool.recv()
            noise = uniform(seed + SEED, numbers, np.full(lanes, at), policy.noise)
            inputs = as_tensors(tree.map(np.copy, policy_inputs(step)) | {"noise": noise})
            with torch.no_grad():
                out, state = policy.act(inputs, state)
            yield inputs, out
            pool.send(which, tree.map(lambda x: x.numpy(), out["action"]))


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

    @property
    def comparable(self) -> bool:
        """Whether all that is new of actions can be illegal."""
        old = dict(tree.leaves(self.old.action))
        boxes = [(leaf, old.get(path)) for path, leaf in tree.leaves(self.new.action) if isinstance(leaf, Box)]
        return all(before is not None and before.shape == leaf.shape for leaf, before in boxes)

    def _mask(self, given: Tree, n: int) -> Tree:
        old, found = dict(tree.leaves(self.old.action)), dict[str, Tensor]()
        masks = {} if given is None else dict(tree.leaves(given))
        for path, leaf in tree.leaves(self.new.action):
            if leaf.classes and (path in masks or leaf.classes != getattr(old.get(path), "classes", ())):
                before = () if path not in old else _values(old[path])
                match = self.named.get(path) or match_axes(before, _values(leaf))
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
