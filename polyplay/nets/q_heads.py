"""Heads of action values: features → q [N, A], or logits [N, A, K] over K atoms. One branch, or two that duel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common.errors import UserError
from polyplay.nets.layers import Linear, initialise
from polyplay.nets.noisy import VARIANTS, Noisy

BIASES = ("each", "shared", "none")
Context = AbstractContextManager[object]  # the precision that layers are computed in
Make = Callable[[int, int, bool], nn.Module]  # inputs, outputs, bias


class DuelingBranch(nn.Module):
    """[N, inputs] → [N, outputs]: a hidden layer with ReLU, if `hidden` is more than 0, and a last one without."""

    def __init__(self, inputs: int, hidden: int, outputs: int, make: Make, bias: bool):
        super().__init__()
        self.hidden = make(inputs, hidden, True) if hidden else None
        self.last = make(hidden or inputs, outputs, bias)
        self.noise = sum(getattr(layer, "noise", 0) for layer in (self.hidden, self.last))

    def forward(self, x: Tensor, noise: Tensor | None, context: Context) -> Tensor:
        """noise [N or 1, self.noise]; context: what the hidden layer is computed in. The last one is float32."""
        at = getattr(self.hidden, "noise", 0)
        if self.hidden is not None:
            with context:
                x = F.relu(_apply(self.hidden, x, None if noise is None else noise[:, :at]), inplace=True)
        return _apply(self.last, x.float(), None if noise is None else noise[:, at:])


def _apply(layer: nn.Module, x: Tensor, noise: Tensor | None) -> Tensor:
    return layer(x, noise) if isinstance(layer, Noisy) else layer(x)


class QHead(nn.Module):
    """Values of `actions` actions; atoms: 0 for numbers, else logits of that many atoms.

    dueling: Q = V + A − mean_a A (Wang et al. 2016), atom by atom (Hessel et al. 2018), from two branches; the gradient
    that they give the features together is multiplied by `scale` (1/√2 there). hidden: width of a branch's hidden
    layer, 0 for none. noisy: a variant of Noisy for every layer, and its first σ·√inputs, None for its own.
    bias: of the last layer of Q, or of A: "each" action's, one "shared" by all (tuned double DQN), or "none" (all last
    layers of dqn_zoo's Rainbow). Raises UserError.
    """

    def __init__(
        self,
        inputs: int,
        actions: int,
        atoms: int = 0,
        hidden: int = 0,
        dueling: bool = False,
        scale: float = 1.0,
        noisy: str = "none",
        sigma: float | None = None,
        bias: str = "each",
        init: str = "torch",
    ):
        super().__init__()
        _validate(atoms, hidden, scale, noisy, sigma, bias)
        self.inputs, self.actions, self.atoms, self.scale, self.noisy = inputs, actions, atoms, scale, noisy
        make, size = partial(_layer, noisy, sigma, init), max(atoms, 1)
        self.advantage = DuelingBranch(inputs, hidden, actions * size, make, bias == "each")
        self.value = DuelingBranch(inputs, hidden, size, make, bias != "none") if dueling else None
        self.shared = nn.Parameter(torch.empty(size)) if bias == "shared" and not dueling else None
        if self.shared is not None:
            bound = (hidden or inputs) ** -0.5 if init == "torch" else 0.0
            nn.init.uniform_(self.shared, -bound, bound)
        self.noise = sum(s.noise for s in (self.advantage, self.value) if s is not None)

    def forward(
        self, x: Tensor, noise: Tensor | None = None, context: Callable[[], Context] = contextlib.nullcontext
    ) -> Tensor:
        """x [N, inputs], noise [N or 1, self.noise] → float32 [N, A] or [N, A, K]. context: see DuelingBranch."""
        if self.scale != 1.0 and x.requires_grad:
            x.register_hook(lambda grad: grad * self.scale)
        at = self.advantage.noise
        advantage = self.advantage(x, None if noise is None else noise[:, :at], context())
        made = advantage.unflatten(1, (self.actions, self.atoms)) if self.atoms else advantage
        if self.shared is not None:
            made = made + self.shared
        if self.value is None:
            return made
        value = self.value(x, None if noise is None else noise[:, at:], context())
        return (value.unsqueeze(1) if self.atoms else value) + made - made.mean(1, keepdim=True)

    def embed(self, action: Tensor) -> Tensor:
        """Actions [N] as a network's input, [N, actions]."""
        return F.one_hot(action.long(), self.actions).float()

    def halves(self) -> Iterator[Linear]:
        """Layers that may be computed in bfloat16."""
        for branch in (self.advantage, self.value):
            if branch is not None and branch.hidden is not None:
                yield from (cast("Linear", m) for m in branch.hidden.modules() if isinstance(m, Linear))


def _layer(noisy: str, sigma: float | None, init: str, inputs: int, outputs: int, bias: bool) -> nn.Module:
    if noisy != "none":
        return Noisy(inputs, outputs, VARIANTS[noisy][1] if sigma is None else sigma, bias, init)
    layer = Linear(inputs, outputs, bias=bias)
    initialise(layer, init)
    return layer


def _validate(atoms: int, hidden: int, scale: float, noisy: str, sigma: float | None, bias: str) -> None:
    if noisy not in ("none", *VARIANTS):
        raise UserError(f"noisy: {noisy!r} is not one of none, {', '.join(VARIANTS)}")
    if bias not in BIASES:
        raise UserError(f"bias: {bias!r} is not one of {', '.join(BIASES)}")
    if atoms < 0 or atoms == 1:
        raise UserError(f"atoms: {atoms} given, allowed: 2 or more, or 0 for plain numbers")
    if hidden < 0:
        raise UserError(f"width: {hidden} given, allowed: 1 or more, or 0 for no hidden layer")
    if not 0.0 < scale <= 1.0:
        raise UserError(f"scale: {scale} given, allowed: above 0 and at most 1")
    if sigma is not None and not sigma > 0.0:
        raise UserError(f"sigma: {sigma} given, allowed: above 0; noisy=none has none")
