"""The update as one pure function of tensors, for whatever traces, compiles or captures it.

    update(weights [W], buffers [S − W], target [S] or [0], batch, state, hyper) -> PureUpdate

The vector is that of weights.params, in its two parts. All else that a loss takes is an argument too: batch and state
are trees of tensors of fixed shape, with noise and importance weights among them; hyper has a tensor [] for each
hyperparameter. Nothing is drawn, no argument is written to, and no number of a tensor decides what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyplay.core.tree import Batch
from polyplay.learning.returns import Loss, LossOutput
from polyplay.nets.policy import Policy
from polyplay.weights.params import as_doubles


class Scored(NamedTuple):
    """The loss [], the floating buffers behind it [S − W], metrics [] by name, and priorities [B] where there are
    some.
    """

    loss: Tensor
    buffers: Tensor
    metrics: dict[str, Tensor]
    priority: Tensor | None


class PureUpdate(NamedTuple):
    """The gradient [W], and what the loss gives."""

    gradient: Tensor
    scored: Scored


Hyper = Mapping[str, Tensor]
PureLoss = Callable[[Tensor, Tensor, Tensor, Batch, Batch, Hyper], Scored]


class _Networks(nn.Module):
    """A policy and its target network as one module, so that `functional_call` gives both their tensors."""

    def __init__(self, loss: Loss, policy: Policy, target: Policy | None):
        super().__init__()
        self.loss, self.policy, self.target = loss, policy, target

    def forward(self, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        return self.loss(self.policy, self.target, batch, state, hyper)


class _Layout:
    """Where a module's tensors stand in its vector, by their names behind `prefix`."""

    def __init__(self, module: nn.Module, prefix: str):
        floating = [(f"{prefix}{k}", x) for k, x in module.named_buffers() if x.is_floating_point()]
        self.parameters = [(f"{prefix}{k}", x.shape) for k, x in module.named_parameters()]
        self.singles = [(k, x.shape) for k, x in floating if x.dtype != torch.float64]
        self.doubles = [(k, x.shape) for k, x in floating if x.dtype == torch.float64]
        self.at = sum(shape.numel() for _, shape in self.singles)
        self.weights = sum(shape.numel() for _, shape in self.parameters)

    def views(self, weights: Tensor, buffers: Tensor) -> tuple[dict[str, Tensor], Callable[[], Tensor]]:
        """The tensors by name, and what gives the buffers as they are then: networks write to copies."""
        size = 2 * sum(shape.numel() for _, shape in self.doubles)
        singles, doubles = buffers[: len(buffers) - size].clone(), as_doubles(buffers[len(buffers) - size :].clone())
        named = _views(self.parameters, weights)
        named |= _views(self.singles, singles[: self.at]) | _views(self.doubles, doubles)
        return named, lambda: torch.cat([singles, doubles.view(torch.float32)]) if size else singles


def _views(named: Sequence[tuple[str, torch.Size]], numbers: Tensor) -> dict[str, Tensor]:
    parts = numbers.split([shape.numel() for _, shape in named]) if named else ()
    return {k: part.view(shape) for (k, shape), part in zip(named, parts, strict=True)}


def make_loss(policy: Policy, loss: Loss, target: Policy | None = None) -> PureLoss:
    """The loss alone, to be differentiated by its first argument. The modules give shapes; their weights are not read.

    target: another module of the same kind, where the loss takes a target network.
    """
    networks = _Networks(loss, policy, target)
    mine, its = _Layout(policy, "policy."), None if target is None else _Layout(target, "target.")

    def score(weights: Tensor, buffers: Tensor, fixed: Tensor, batch: Batch, state: Batch, hyper: Hyper) -> Scored:
        named, behind = mine.views(weights, buffers)
        if its is not None:
            named |= its.views(fixed[: its.weights], fixed[its.weights :])[0]
        scored = functional_call(networks, named, (batch, state, hyper))
        return Scored(scored.loss, behind(), dict(scored.metrics), scored.priority)

    return score


def make_update(policy: Policy, loss: Loss, target: Policy | None = None) -> Callable[..., PureUpdate]:
    """The gradient of `make_loss`'s loss with all else that it gives, of the same arguments."""
    score = make_loss(policy, loss, target)

    def update(weights: Tensor, buffers: Tensor, fixed: Tensor, batch: Batch, state: Batch, hyper: Hyper) -> PureUpdate:
        leaf = weights.detach().requires_grad_()
        with torch.enable_grad():
            scored = score(leaf, buffers, fixed, batch, state, hyper)
        (gradient,) = torch.autograd.grad(scored.loss, leaf)
        return PureUpdate(gradient, scored._replace(loss=scored.loss.detach()))

    return update
