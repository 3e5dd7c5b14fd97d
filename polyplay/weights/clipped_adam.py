"""Adam whose gradient is clipped per weight by its own second moment, as OpenAI Five has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from polyplay.weights.torch_optimizer import Group, State, WithoutCompiler, in_one_pass

REACH = 5.0  # √v̂ that a gradient may be away from 0


class ClippedAdam(WithoutCompiler):
    """Adam (Kingma & Ba 2015) with the per-parameter clip of OpenAI Five (Berner et al. 2019, appendix C). For a
    gradient Δ, per element, from m = v = 0, at step t:

    v ← β₂·v + (1 − β₂)·Δ², v̂ = v/(1 − β₂ᵗ): of the gradient before it is clipped
    m ← β₁·m + (1 − β₁)·clamp(Δ, ±5·√v̂), m̂ = m/(1 − β₁ᵗ)
    θ ← θ − lr·m̂/(√v̂ + ε)

    v has the newest gradient already: with β₂ = 0.999 none is clipped in the first 25 steps, and none to less than
    0.158 of itself. All exist from the start (state "step", "exp_avg", "exp_avg_sq", as Adam's in torch) and are
    updated in place. On a CPU it is one pass over memory (clipped_adam_kernel).
    """

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float, betas: tuple[float, float] = (0.9, 0.999)):
        super().__init__(params, {"lr": lr, "eps": eps, "betas": betas})

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            own = {name: torch.zeros_like(p, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
            self.state[p] = {"step": torch.zeros((), device=p.device), **own}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient; gradients are only read."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    _update(p, p.grad, self.state[p], group)
        return loss


def _update(p: Tensor, grad: Tensor, state: State, group: Group) -> None:
    mean, square, steps = state["exp_avg"], state["exp_avg_sq"], state["step"].add_(1)
    if in_one_pass(p, grad, mean, square):
        _update_in_one_pass(p, grad, state, group)
        return
    (beta1, beta2), t = group["betas"], steps.double()  # a tensor: nobody waits for a device
    square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    deviation = square.sqrt().div_((1.0 - beta2**t).sqrt())
    bound = deviation * REACH
    mean.mul_(beta1).add_(grad.clamp(-bound, bound), alpha=1.0 - beta1)
    p.sub_(mean * (group["lr"] / (1.0 - beta1**t)) / deviation.add_(group["eps"]))


def _update_in_one_pass(p: Tensor, grad: Tensor, state: State, group: Group) -> None:
    from polyplay.weights.clipped_adam_kernel import clipped_adam

    (beta1, beta2), t = group["betas"], float(state["step"])
    rate, correction = group["lr"] / (1.0 - beta1**t), 1.0 / math.sqrt(1.0 - beta2**t)
    rule = tuple(np.float32(x) for x in (rate, beta1, 1.0 - beta1, beta2, 1.0 - beta2, correction, group["eps"]))
    arrays = [x.detach().numpy().reshape(-1) for x in (p, grad, state["exp_avg"], state["exp_avg_sq"])]
    clipped_adam(*arrays, rule)
