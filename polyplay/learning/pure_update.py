"""The update as one pure function of tensors, which can be traced, compiled or captured as a CUDA graph.

    update(weights [W], buffers [S − W], target [S] or [0], batch, state, hyper) -> gradient [W], buffers, LossOutput

FlatParams (in weights.params) joins a network's W weights and then its buffers to one vector of S numbers. The batch
and the recurrent state are nested dicts of tensors of fixed shapes. The batch includes random numbers (Loss.noise) and
importance weights. `hyper` has a scalar tensor for each hyperparameter. The function writes to none of its arguments.
Its branches and all its shapes are the same for all values of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyplay.core import tree
from polyplay.core.tree import Batch
from polyplay.learning.learner import pick_rows
from polyplay.learning.losses import Hyper, Loss, LossOutput
from polyplay.nets.factory import build_network
from polyplay.nets.layers import Conv2d, Linear
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.optimizers import OptimizerSpec, pure_step
from polyplay.weights.params import named_views

VECTORS = 4  # the first arguments of an UpdateFunction: weights, buffers, target, gradient
EAGER = {  # functions of eager updates, and why traced ones lack them; the last two change results by rounding
    "nets.layers.recall": "outputs of acting are no inputs: a traced update computes them again",
    "nets.layers.cache_half_weights": "copies in bfloat16 are no inputs: a traced update converts its weights",
    "nets.layers._GradientOfUses": "its backward fills Python lists: a traced update adds up the gradients of all uses",
    "nets.recurrent._copied": "how many lanes tick is a number: a traced update computes all, and keeps all",
}
PureUpdate = Callable[..., tuple[Tensor, Tensor, LossOutput]]


class _Networks(nn.Module):
    """A policy and its target network as one module, so that one `functional_call` sets the tensors of both."""

    def __init__(self, policy: Policy, target: Policy | None = None):
        super().__init__()
        self.policy, self.target = policy, target

    def forward(self, call: Callable[..., Any], *given: Any) -> Any:
        return call(self.policy, self.target, *given)


def make_loss(
    policy: Policy, loss: Callable[..., Any], target: Policy | None = None
) -> Callable[..., tuple[Any, Tensor]]:
    """Return a differentiable function that takes the arguments of `update`, and returns the loss and the new buffers.

    `policy` and `target` define the architecture. Their weights are not used, because weights are arguments of the
    function. Raises ValueError if a layer has a bfloat16 copy of its weight.
    """
    networks = _Networks(policy, target)
    if any(isinstance(m, Linear | Conv2d) and m.half_weight is not None for m in networks.modules()):
        raise ValueError("a network has copies of its weights (cache_weights); it must have none")

    def score(weights: Tensor, buffers: Tensor, fixed: Tensor, batch: Batch, state: Batch, hyper: Hyper) -> Any:
        odd = len(weights) % 2  # keeps float64 buffers at even indices, as in the whole vector
        behind = torch.cat([buffers.new_zeros(odd), buffers])[odd:]  # a copy, which networks may write to
        named = {f"policy.{k}": x for k, x in named_views(policy, weights, behind).items()}
        if target is not None:
            parts = fixed[: len(weights)], fixed[len(weights) :]
            named |= {f"target.{k}": x for k, x in named_views(target, *parts).items()}
        return functional_call(networks, named, (loss, batch, state, hyper)), behind

    return score


def make_update(policy: Policy, loss: Loss, target: Policy | None = None) -> PureUpdate:
    """Return the pure update function."""
    score = make_loss(policy, loss, target)

    def update(weights: Tensor, *given: Any) -> tuple[Tensor, Tensor, LossOutput]:
        leaf = weights.detach().requires_grad_()
        with torch.enable_grad():
            scored, buffers = score(leaf, *given)
        (gradient,) = torch.autograd.grad(scored.loss, leaf)
        return gradient, buffers, scored._replace(loss=scored.loss.detach())

    return update


def make_act(policy: Policy) -> Callable[[Tensor, Tensor, Batch, Batch], tuple[Batch, Batch]]:
    """Return Policy.act as a pure function: (weights, buffers, row, state) -> outputs and the next state."""
    score = make_loss(policy, lambda policy, _, row, state, __: policy.act(row, state))

    def act(weights: Tensor, buffers: Tensor, row: Batch, state: Batch) -> tuple[Batch, Batch]:
        with torch.no_grad():
            acted: tuple[Batch, Batch] = score(weights, buffers, weights, row, state, {})[0]
        return acted

    return act


@dataclass(frozen=True)
class UpdateFunction:
    """Makes the update as a function of single tensors of fixed shapes, which can be compiled or captured:

        (weights, buffers, target, gradient, hyper [H], *leaves) -> numbers [1 + metrics], and priority [B] if any

    The function writes to `gradient` and `buffers`, and returns the loss and the metrics in `numbers`. The `leaves` are
    the tensors of the nested dict {"batch": …, "state": …}, which lie at the paths `paths`. For a minibatch, they are
    the tensors of the whole rollout, followed by two tensors: `index` [n] holds the indices of the minibatch's
    transitions or lanes, and `inside` [n] is False where `index` is padding.

    If `optim` is given, the function also makes the optimizer's step in place. The tensors of the optimizer's state
    come before `hyper`, whose last number is the learning rate. The last of `numbers` is the gradient's norm.
    """

    policy: PolicyFactory
    loss: Loss
    target: bool
    hyper: tuple[str, ...]
    paths: tuple[str, ...]
    minibatch: bool = False
    whole: bool = False  # whether minibatches have whole lanes
    precision: str = "float32"
    device: str = "cpu"
    optim: OptimizerSpec | None = None
    states: int = 0  # number of tensors in the optimizer's state

    def __call__(self) -> Callable[..., tuple[Tensor, ...]]:
        nets = [build_network(self.policy, 0, self.precision, self.device) for _ in range(1 + self.target)]
        update = make_update(nets[0], self.loss, *nets[1:])

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            (weights, buffers, target, gradient), (*state, hyper), leaves = self._split(given)
            named = dict(zip(self.hyper, hyper.unbind(), strict=False))
            made, after, scored = update(weights, buffers, target, *self._rows(leaves), named)
            gradient.copy_(made)
            if len(buffers):
                buffers.copy_(after)
            numbers = [scored.loss, *(scored.metrics[k].to(scored.loss) for k in self.loss.metrics)]
            if self.optim is not None:
                stepped, new, norm = pure_step(self.optim, weights, made, state, hyper[-1])
                for x, now in zip((weights, *state), (stepped, *new), strict=True):
                    x.copy_(now)
                numbers.append(norm)
            return (torch.stack(numbers), *(() if scored.priority is None else (scored.priority,)))

        return function

    def _split(self, given: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
        own = VECTORS + self.states + 1
        return given[:VECTORS], given[VECTORS:own], given[own:]

    def _rows(self, leaves: Sequence[Tensor]) -> tuple[Batch, Batch]:
        n = len(self.paths)
        given = tree.nest(dict(zip(self.paths, leaves[:n], strict=True)))
        batch, state = given["batch"], given.get("state", {})
        if self.minibatch:
            index, inside = leaves[n:]
            batch, state = pick_rows(batch, state, index, self.whole)
            if not self.whole:
                batch["valid"] = batch["valid"] & inside
        return batch, state
