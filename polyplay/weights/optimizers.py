"""Optimisers by name. RMSProp is four different optimisers; a paper's ε means nothing without its flavour.

name           first g  ε             used by
rmsprop_tf     1        inside √      TensorFlow 1: baselines' A2C, GA3C, IMPALA
rmsprop_a3c    0        inside √      A3C (Mnih et al. 2016), Lasagne: Accel RL
rmsprop_torch  0        outside √     PyTorch: TorchBeast
rmsprop_dqn    0        inside √      centred: DQN (Mnih et al. 2015, its released code), Ape-X
adagrad        0        outside √     a sum instead of a mean (Duchi et al. 2011): Gorila
adam           –        outside √     PyTorch's own (Kingma & Ba 2015)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyplay.common.errors import UserError

FLAVOURS: dict[str, dict[str, Any]] = {
    "rmsprop_tf": {"eps_inside": True, "g0": 1.0, "lr_inside": True},
    "rmsprop_a3c": {"eps_inside": True, "g0": 0.0, "lr_inside": True},
    "rmsprop_torch": {"eps_inside": False, "g0": 0.0, "lr_inside": False},
    "rmsprop_dqn": {"eps_inside": True, "g0": 0.0, "lr_inside": True, "centred": True},
    "adagrad": {"eps_inside": False, "g0": 0.0, "lr_inside": False, "sums": True},
}
NAMES = (*FLAVOURS, "adam")


class RMSProp(torch.optim.Optimizer):
    """RMSProp of every flavour, and AdaGrad. For a gradient Δ, per element:

    g ← α·g + (1 − α)·Δ², g starting at `g0`; with `sums` (AdaGrad) g ← g + Δ², and α is ignored
    u = Δ/√(g + ε) if `eps_inside` else Δ/(√g + ε)
    `centred`: m ← α·m + (1 − α)·Δ from 0, and g − m² in place of g. Never below 0, which it is but for rounding:
    where a gradient stays the same, ε may be smaller than that
    θ ← θ − lr·u without momentum; with it m ← momentum·m + lr·u, θ ← θ − m if `lr_inside` (TensorFlow),
    else m ← momentum·m + u, θ ← θ − lr·m (PyTorch). The two differ only where lr changes.

    All exist from the start (state "mean", "square", "momentum") and are updated in place, so they may be shared
    memory. On a CPU, without momentum, it is one pass over memory (fused.py). Raises UserError for settings out of
    range.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        alpha: float = 0.99,
        eps: float = 0.1,
        momentum: float = 0.0,
        eps_inside: bool = True,
        g0: float = 0.0,
        lr_inside: bool = True,
        centred: bool = False,
        sums: bool = False,
    ) -> None:
        _validate(lr, eps, alpha, momentum)
        if not g0 >= 0.0:
            raise UserError(f"g0 is {g0}; the first accumulator must be 0 or more")
        options: dict[str, Any] = {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum}
        options |= {"eps_inside": eps_inside, "g0": g0, "lr_inside": lr_inside, "centred": centred, "sums": sums}
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in group["params"]:
            if group["centred"]:
                self.state[p]["mean"] = torch.zeros_like(p, requires_grad=False)
            self.state[p]["square"] = torch.full_like(p, group["g0"], requires_grad=False)
            if group["momentum"]:
                self.state[p]["momentum"] = torch.zeros_like(p, requires_grad=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copies into the tensors held, so shared ones stay shared and `state_dict` stays untouched.

        Raises ValueError if `state_dict` is of another kind of optimiser or of parameters of other shapes.
        """
        held = [self.state[p] for group in self.param_groups for p in group["params"]]
        for i, ours in enumerate(held):
            given, needed = _shapes(state_dict["state"].get(i, {})), _shapes(ours)
            if given != needed:
                raise ValueError(f"optimiser state of parameter {i} must be {needed}; got {given}")
        super().load_state_dict(state_dict)
        params = (p for group in self.param_groups for p in group["params"])
        for p, ours in zip(params, held, strict=True):
            self.state[p] = {k: tensor.copy_(self.state[p][k]) for k, tensor in ours.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; gradients are only read."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    _update(p, p.grad, self.state[p], group)
        return loss


FEW = 4096  # weights of which several passes are as fast as one, and need no compiler


def _update(p: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    if _simple(p, grad, state, group):
        _in_one_pass(p, grad, state, group)
        return
    spread = _spread(grad, state, group)
    if group["eps_inside"] and not group["momentum"]:
        p.addcmul_(
            grad, (spread + group["eps"]).rsqrt_(), value=-group["lr"]
        )  # a sixth faster than a root to divide by
        return
    root = (spread + group["eps"]).sqrt_() if group["eps_inside"] else spread.sqrt().add_(group["eps"])
    if not group["momentum"]:
        p.addcdiv_(grad, root, value=-group["lr"])
        return
    inner, outer = (group["lr"], 1.0) if group["lr_inside"] else (1.0, group["lr"])
    state["momentum"].mul_(group["momentum"]).addcdiv_(grad, root, value=inner)
    p.add_(state["momentum"], alpha=-outer)


def _spread(grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
    """What the root is taken of, but for ε, after this gradient."""
    alpha, rest = _weights(group)
    square = state["square"].mul_(alpha).addcmul_(grad, grad, value=rest)
    if not group["centred"]:
        return square
    mean = state["mean"].mul_(alpha).add_(grad, alpha=rest)
    return torch.addcmul(square, mean, mean, value=-1.0).clamp_(min=0.0)


def _weights(group: dict[str, Any]) -> tuple[float, float]:
    """Those of the statistics so far and of the new gradient."""
    return (1.0, 1.0) if group["sums"] else (group["alpha"], 1.0 - group["alpha"])


def _plain(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()


def _simple(p: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> bool:
    """Whether one pass will do."""
    return not group["momentum"] and p.numel() > FEW and all(_plain(x) for x in (p, grad, state["square"]))


def _in_one_pass(
    p: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any], out: Tensor | None = None
) -> None:
    """out: other memory for the new weights."""
    from polyplay.weights import rmsprop_kernels

    eps, kept = group["eps"], [state["mean"]] if group["centred"] else []
    where = (eps, 0.0) if group["eps_inside"] else (0.0, eps)
    numbers = (np.float32(x) for x in (group["lr"], *_weights(group), *where))
    arrays = [x.detach().numpy().reshape(-1) for x in (p, grad, *kept, state["square"])]
    if out is None:
        loop = rmsprop_kernels.rmsprop_centred if group["centred"] else rmsprop_kernels.rmsprop
    else:
        loop = rmsprop_kernels.rmsprop_centred_into if group["centred"] else rmsprop_kernels.rmsprop_into
        arrays.insert(0, out.numpy())
    loop(*arrays, *numbers)


def make_optimizer(
    name: str,
    params: Tensor | Iterable[Tensor],
    lr: float,
    eps: float,
    alpha: float = 0.99,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """The optimiser called `name` (see NAMES) on `params` (one flat parameter or several).

    `alpha` and `momentum` are RMSProp's, `betas` are Adam's; each ignores the other's.
    Raises UserError for an unknown name or settings out of range.
    """
    check_optimizer(name)
    _validate(lr, eps, alpha, momentum)
    params = [params] if isinstance(params, Tensor) else list(params)
    if name == "adam":
        return torch.optim.Adam(params, lr=lr, eps=eps, betas=betas, fused=True)
    return RMSProp(params, lr=lr, alpha=alpha, eps=eps, momentum=momentum, **FLAVOURS[name])


@torch.no_grad()
def clip_average(grads: Iterable[Tensor], bound: float) -> None:
    """Shrink each gradient by itself, in place, to an average norm ‖Δ‖₂/size of at most `bound`.

    GA3C's USE_GRAD_CLIP as released (TensorFlow 1's clip_by_average_norm); at its 40 it hardly ever binds.
    """
    for grad in grads:
        norm = float(torch.linalg.vector_norm(grad)) / max(grad.numel(), 1)
        if norm > bound:
            grad.mul_(bound / norm)


def check_optimizer(name: str) -> None:
    """Raises UserError unless there is an optimiser of that name."""
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, n=1, cutoff=0.0)[0]
        raise UserError(f"optimizer {name!r} is unknown; use one of {', '.join(NAMES)}; did you mean {near!r}?")


def statistics(name: str, momentum: float = 0.0) -> tuple[str, ...]:
    """What the optimiser called `name` keeps per weight."""
    if name == "adam":
        return "exp_avg", "exp_avg_sq"
    mean = ("mean",) if FLAVOURS[name].get("centred") else ()
    return (*mean, "square", "momentum") if momentum else (*mean, "square")


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser of one parameter: the tensors themselves. Empty before Adam's first step."""
    held: dict[str, Tensor] = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return held


@torch.no_grad()
def step_into(optimizer: torch.optim.Optimizer, out: Tensor) -> None:
    """A step of an optimiser of one parameter, flat and with a gradient, that leaves the old weights where they are:
    from now on the parameter is `out`, other memory of its size.
    """
    group: dict[str, Any] = optimizer.param_groups[0]
    p, grad = group["params"][0], group["params"][0].grad
    if isinstance(optimizer, RMSProp) and _plain(out) and _simple(p, grad, optimizer.state[p], group):
        _in_one_pass(p, grad, optimizer.state[p], group, out)
        p.data = out
    else:
        p.data = out.copy_(p)
        optimizer.step()


def share_statistics(optimizer: torch.optim.Optimizer, memory: Tensor, fill: bool) -> None:
    """Have an optimiser of one parameter keep its statistics in `memory` [n, weights] (`statistics`), that others may
    use too. fill: begin with its own; otherwise it takes what is there.
    """
    held = optimizer_state(optimizer)
    if not held:  # Adam, which would make them at its first step
        parameter = optimizer.param_groups[0]["params"][0]
        held.update(
            step=torch.zeros((), device=parameter.device),
            exp_avg=torch.zeros_like(parameter),
            exp_avg_sq=torch.zeros_like(parameter),
        )
    for name, row in zip([k for k in held if k != "step"], memory, strict=True):
        held[name] = row.copy_(held[name].detach()) if fill else row


def slice_statistics(
    whole: torch.optim.Optimizer, make: Callable[[torch.nn.Parameter], torch.optim.Optimizer], at: slice
) -> torch.optim.Optimizer:
    """An optimiser of a part of the weights of `whole`, a `share`d one of one flat parameter: the same weights, the
    same statistics and count of steps. make: of its kind. The part has a gradient of its own, yet to be given.
    """
    parameter = torch.nn.Parameter(whole.param_groups[0]["params"][0].data[at])
    made = make(parameter)
    made.state[parameter] = {k: v if k == "step" else v[at] for k, v in optimizer_state(whole).items()}
    return made


def _shapes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {k: tuple(getattr(v, "shape", ())) for k, v in state.items()}


def _validate(lr: float, eps: float, alpha: float, momentum: float) -> None:
    if not lr >= 0.0:
        raise UserError(f"lr is {lr}; the learning rate must be 0 or more")
    if not eps > 0.0:
        raise UserError(f"eps is {eps}; it must be above 0, or a zero gradient divides 0 by 0")
    for option, given in (("alpha", alpha), ("momentum", momentum)):
        if not 0.0 <= given < 1.0:
            raise UserError(f"{option} is {given}; it must be at least 0 and below 1")
