"""Optimizers by name. RMSProp is four different optimizers; a paper's ε means nothing without its flavor.

name           first g  ε             used by
rmsprop_tf     1        inside √      TensorFlow 1: baselines' A2C, GA3C, IMPALA
rmsprop_a3c    0        inside √      A3C (Mnih et al. 2016), Lasagne: Accel RL
rmsprop_torch  0        outside √     PyTorch: TorchBeast
rmsprop_dqn    0        inside √      centered: DQN (Mnih et al. 2015, its released code), Ape-X
adagrad        0        outside √     a sum instead of a mean (Duchi et al. 2011): Gorila
adam           –        outside √     PyTorch's own (Kingma & Ba 2015)
adam_clipped   –        outside √     gradients within ±5·√v (clipped_adam): OpenAI Five
sgd            –        –             momentum, as PyTorch has it: AlphaGo Zero
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyplay.core import user_modules
from polyplay.core.compiled import compiled
from polyplay.core.errors import UserError
from polyplay.core.machine import ThreadPool
from polyplay.envs.pool import closest_names, need

# What all optimizers share, and when one pass over memory will do.


FEW = 4096  # weights of which several passes are as fast as one, and need no compiler
State = dict[str, Tensor]  # of one parameter, by name
Group = dict[str, Any]  # settings of some parameters, as torch has them
Array = np.ndarray
Number = np.float32


class OwnOptimizer(torch.optim.Optimizer, ABC):
    """One of ours: each parameter's update by itself, of state that exists from the start."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter; gradients are only read."""
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, self.state[p], group)

    step.hooked = True  # type: ignore[attr-defined]  # torch's hooks around a step take as long as a small one

    def add_param_group(self, param_group: Group) -> None:
        # without the decorator that imports torch's compiler (1.1 s, 70 MB of memory) to switch it off
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)
        group = self.param_groups[-1]
        self.state.update({p: self.begin(p, group) for p in group["params"]})

    @abstractmethod
    def begin(self, p: Tensor, group: Group) -> State:
        """The state before the first step, of one parameter."""

    @abstractmethod
    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Change one parameter and its state in place."""


def in_one_pass(*tensors: Tensor) -> bool:
    """Whether one pass over these will do: many float32 numbers of a CPU, each tensor in one piece."""
    plain = (x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() for x in tensors)
    return tensors[0].numel() > FEW and all(plain)


# Adam: torch's, and with a gradient that is clipped per weight by its own second moment, as OpenAI Five has it.


REACH = 5.0  # √v̂ that a gradient may be away from 0
BETA2 = 0.999


class Adam(OwnOptimizer):
    """Torch's fused Adam: of its step the call that computes. State "step", "exp_avg", "exp_avg_sq", as there."""

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float, betas: tuple[float, float]):
        super().__init__(params, {"lr": lr, "eps": eps, "betas": betas})

    def begin(self, p: Tensor, group: Group) -> State:
        own = {name: torch.zeros_like(p, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), device=p.device), **own}

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        steps, (beta1, beta2) = state["step"].add_(1), group["betas"]
        torch._fused_adam_(
            *([p], [grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [steps]),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True)
class OptimizerPart:
    """A part of the weights, `size` of them in the order of the vector: its learning rate is `rate` times the
    optimizer's, and it makes a step in every `every`-th update.
    """

    size: int
    rate: float = 1.0
    every: int = 1


def parts_of(network: torch.nn.Module, **parts: tuple[float, int]) -> tuple[OptimizerPart, ...]:
    """Parts of a network's weights: (rate, every) by the name of a child, (1, 1) for the others. (): all are (1, 1)."""
    found = list[OptimizerPart]()
    for name, x in network.named_parameters():
        own = OptimizerPart(x.numel(), *parts.get(name.partition(".")[0], (1.0, 1)))
        if found and (found[-1].rate, found[-1].every) == (own.rate, own.every):
            own = replace(own, size=found.pop().size + own.size)
        found.append(own)
    return tuple(found) if any((part.rate, part.every) != (1.0, 1) for part in found) else ()


class PartsAdam(Adam):
    """Adam of parts with learning rates and periods of their own. A part's step counts its own updates."""

    def __init__(self, params: Iterable[Tensor], parts: tuple[OptimizerPart, ...], **given: Any):
        self.parts = parts
        super().__init__(params, **given)

    def begin(self, p: Tensor, group: Group) -> State:
        # a float32 stops at 16,777,216, and periods would stop with it
        return {**super().begin(p, group), "step": torch.zeros((), dtype=torch.float64, device=p.device)}

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        updates, at = int(state["step"].add_(1)), 0
        for part in self.parts:
            own, at = slice(at, at + part.size), at + part.size
            if updates % part.every == 0:
                statistics = {name: state[name][own] for name in ("exp_avg", "exp_avg_sq")}
                steps = torch.tensor(updates // part.every - 1.0)
                rate = {**group, "lr": group["lr"] * part.rate}
                super().update(p[own], grad[own], {"step": steps, **statistics}, rate)


class ClippedAdam(Adam):
    """Adam (Kingma & Ba 2015) with the per-parameter clip of OpenAI Five (Berner et al. 2019, appendix C). For a
    gradient Δ, per element, from m = v = 0, at step t:

    v ← β₂·v + (1 − β₂)·Δ², v̂ = v/(1 − β₂ᵗ): of the gradient before it is clipped
    m ← β₁·m + (1 − β₁)·clamp(Δ, ±5·√v̂), m̂ = m/(1 − β₁ᵗ)
    θ ← θ − lr·m̂/(√v̂ + ε)

    v has the newest gradient already: with β₂ = 0.999 none is clipped in the first 25 steps, and none to less than
    0.158 of itself. On a CPU it is one pass over memory.
    """

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
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


ClippedAdamRule = tuple[Number, Number, Number, Number, Number, Number, Number]


@compiled
def clipped_adam(p: Array, grad: Array, mean: Array, square: Array, rule: ClippedAdamRule) -> None:
    """θ, Δ, m, v [n] float32, in place. rule: the learning rate by m's correction, β₁, 1 − β₁, β₂, 1 − β₂, the root of
    v's correction, ε.
    """
    rate, beta1, rest1, beta2, rest2, correction, eps = rule
    for i in range(p.size):
        delta = grad[i]
        second = beta2 * square[i] + rest2 * (delta * delta)
        deviation = np.sqrt(second) * correction
        bound = np.float32(5.0) * deviation
        first = beta1 * mean[i] + rest1 * max(min(delta, bound), -bound)
        square[i] = second
        mean[i] = first
        p[i] -= rate * first / (deviation + eps)


def _update_in_one_pass(p: Tensor, grad: Tensor, state: State, group: Group) -> None:
    (beta1, beta2), t = group["betas"], float(state["step"])
    rate, correction = group["lr"] / (1.0 - beta1**t), 1.0 / math.sqrt(1.0 - beta2**t)
    rule = tuple(np.float32(x) for x in (rate, beta1, 1.0 - beta1, beta2, 1.0 - beta2, correction, group["eps"]))
    arrays = [x.detach().numpy().reshape(-1) for x in (p, grad, state["exp_avg"], state["exp_avg_sq"])]
    clipped_adam(*arrays, rule)


PLAIN: Group = {"eps_inside": True, "g0": 0.0, "centered": False, "sums": False}
FLAVORS: dict[str, Group] = {  # what papers and frameworks do differently, see RMSProp
    "rmsprop_tf": {**PLAIN, "g0": 1.0},
    "rmsprop_a3c": PLAIN,
    "rmsprop_torch": {**PLAIN, "eps_inside": False},
    "rmsprop_dqn": {**PLAIN, "centered": True},
    "adagrad": {**PLAIN, "eps_inside": False, "sums": True},
}
STATISTICS = {"sgd": ("momentum_buffer",), **dict.fromkeys(("adam", "adam_clipped"), ("exp_avg", "exp_avg_sq"))}
NAMES = (*FLAVORS, "adam", "adam_clipped", "sgd")
LISTED = f"{', '.join(NAMES)}, or module:callable"


class SGD(OwnOptimizer):
    """For a gradient Δ: u ← momentum·u + (Δ + decay·θ) from 0, as torch has it; θ ← θ − lr·u."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float, decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    def begin(self, p: Tensor, group: Group) -> State:
        return {"momentum_buffer": torch.zeros_like(p, requires_grad=False)}

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        slope = grad.add(p, alpha=group["decay"])
        p.add_(state["momentum_buffer"].mul_(group["momentum"]).add_(slope), alpha=-group["lr"])


class RMSProp(OwnOptimizer):
    """RMSProp of every flavor, and AdaGrad. For a gradient Δ, per element:

    g ← α·g + (1 − α)·Δ², g starting at `g0`; with `sums` (AdaGrad) g ← g + Δ², and α is ignored
    u = Δ/√(g + ε) if `eps_inside` else Δ/(√g + ε)
    `centered`: m ← α·m + (1 − α)·Δ from 0, and g − m² in place of g. Never below 0, which it is but for rounding:
    where a gradient stays the same, ε may be smaller than that
    θ ← θ − lr·u

    All exist from the start (state "mean", "square") and are updated in place, so they may be shared memory. On a CPU
    it is one pass over memory.
    """

    team: ThreadPool | None = None  # threads that share that pass

    def __init__(
        self, params: Iterable[Tensor], flavor: Group, lr: float, alpha: float = 0.99, eps: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, **flavor})

    def begin(self, p: Tensor, group: Group) -> State:
        mean = {"mean": torch.zeros_like(p, requires_grad=False)} if group["centered"] else {}
        return {**mean, "square": torch.full_like(p, group["g0"], requires_grad=False)}

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        if in_one_pass(p, grad, state["square"]):
            _update_rmsprop_in_one_pass(p, grad, state, group, self.team)
            return
        alpha, rest = _weights(group)
        variance = state["square"].mul_(alpha).addcmul_(grad, grad, value=rest)
        if group["centered"]:
            mean = state["mean"].mul_(alpha).add_(grad, alpha=rest)
            variance = torch.addcmul(variance, mean, mean, value=-1.0).clamp_(min=0.0)
        if group["eps_inside"]:  # a sixth faster than a root to divide by
            p.addcmul_(grad, (variance + group["eps"]).rsqrt_(), value=-group["lr"])
        else:
            p.addcdiv_(grad, variance.sqrt().add_(group["eps"]), value=-group["lr"])


def _weights(group: Group) -> tuple[float, float]:
    """Those of the statistics so far and of the new gradient."""
    return (1.0, 1.0) if group["sums"] else (group["alpha"], 1.0 - group["alpha"])


Rule = tuple[Number, Number, Number, Number, Number]  # learning rate, α, 1 − α, ε inside the root, ε outside


@compiled
def rmsprop(p: Array, grad: Array, square: Array, rule: Rule) -> None:
    """θ, Δ, g [n] float32: g ← α·g + (1 − α)·Δ², θ ← θ − lr·Δ/(√(g + inside) + outside). In place."""
    lr, alpha, rest, inside, outside = rule
    for i in range(p.size):
        delta = grad[i]
        mean = alpha * square[i] + rest * (delta * delta)
        square[i] = mean
        p[i] -= lr * delta / (np.sqrt(mean + inside) + outside)


@compiled
def rmsprop_centered(p: Array, grad: Array, mean: Array, square: Array, rule: Rule) -> None:
    """The same with m ← α·m + (1 − α)·Δ [n] and max(g − m², 0) in place of g. In place."""
    lr, alpha, rest, inside, outside = rule
    for i in range(p.size):
        delta = grad[i]
        first = alpha * mean[i] + rest * delta
        second = alpha * square[i] + rest * (delta * delta)
        mean[i] = first
        square[i] = second
        p[i] -= lr * delta / (np.sqrt(max(second - first * first, np.float32(0.0)) + inside) + outside)


def _update_rmsprop_in_one_pass(p: Tensor, grad: Tensor, state: State, group: Group, team: ThreadPool | None) -> None:
    """team: threads, each for a part of the weights, to the same bits."""
    eps, mean = group["eps"], [state["mean"]] if group["centered"] else []
    where = (eps, 0.0) if group["eps_inside"] else (0.0, eps)
    rule = tuple(np.float32(x) for x in (group["lr"], *_weights(group), *where))
    arrays = [x.detach().numpy().reshape(-1) for x in (p, grad, *mean, state["square"])]
    loop: Callable[..., None] = rmsprop_centered if group["centered"] else rmsprop
    if team is None:
        loop(*arrays, rule)
    else:
        team.each(lambda i: loop(*(x[team.part(i, x.size)] for x in arrays), rule))


Make = Callable[..., torch.optim.Optimizer]
SIGNATURE = "module:callable, a function of ([parameter], lr=RATE) that returns a torch.optim.Optimizer"


class FirstValues(dict[str, Any]):
    """State of a parameter; `first` keeps the value that each name was first given."""

    def __init__(self) -> None:
        super().__init__()
        self.first: State = {}

    def __setitem__(self, name: str, value: Any) -> None:
        self.first.setdefault(name, value.clone() if isinstance(value, Tensor) else value)
        super().__setitem__(name, value)


def begin_own(make: Make, parameter: Tensor, lr: float) -> torch.optim.Optimizer:
    """Make a user's optimizer of one parameter, with its first state there, which torch's own make in the first step: a
    twin takes one of zeros along zeros.
    """
    twin = torch.nn.Parameter(torch.zeros_like(parameter))
    twin.grad, state = torch.zeros_like(twin), FirstValues()
    trial, optimizer = (make([p], lr=lr or 1e-3) for p in (twin, parameter))
    if not isinstance(trial, torch.optim.Optimizer):
        raise TypeError(f"it returned {type(trial).__name__}")
    trial.state[twin] = state
    trial.step()
    optimizer.state[parameter] = state.first
    return optimizer


def try_own(make: Make, title: str) -> tuple[str, ...]:
    """Names of the statistics that a user's optimizer keeps per weight. Raises UserError."""
    try:
        state = optimizer_state(begin_own(make, torch.nn.Parameter(torch.zeros(4)), 0.0))
    except UserError:
        raise
    except Exception as e:
        why = (str(e).splitlines() or [type(e).__name__])[0]
        raise UserError(f"--optimizer: {title} given, which failed on four weights: {why}; allowed: {SIGNATURE}") from e
    for name, x in state.items():
        if not isinstance(x, Tensor) or (x.ndim and (x.shape != (4,) or x.dtype != torch.float32)):
            kept = f"{x.dtype} {[*x.shape]} for four weights" if isinstance(x, Tensor) else type(x).__name__
            fits = "an optimizer whose state is tensors: one number, or a float32 for each weight"
            raise UserError(f"--optimizer: {title} given, whose state has {name}, {kept}; allowed: {fits}")
    return tuple(name for name, x in state.items() if x.ndim)


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer by name (NAMES) or module:callable, or a callable; `clip` bounds the global norm of the (averaged)
    gradient, 0 is off. A callable is called with ([parameter], lr=RATE), where the parameter is all weights as one
    vector, and returns a torch.optim.Optimizer; `lr` of its group is set before each step. It ignores the other fields.

    Raises UserError: no such name, or a callable that returns something else.
    """

    name: str | Make = "adam"
    eps: float = 1e-8
    decay: float = 0.99  # RMSProp's, of its statistics; others ignore it
    clip: float = 0.0
    momentum: float = 0.9  # SGD's
    beta1: float = 0.9  # Adam's
    l2: float = 0.0  # SGD's c of c·‖θ‖² in the loss: 2c·θ is added to the gradient
    parts: tuple[OptimizerPart, ...] = ()  # of all weights, Adam's, where their rates or periods differ
    own: Make | None = field(default=None, init=False, repr=False)  # a user's
    statistics: tuple[str, ...] = field(default=(), init=False, repr=False)  # what it keeps per weight

    def __post_init__(self) -> None:
        name = self.name
        if isinstance(name, str) and ":" not in name:
            need(name in NAMES, f"--optimizer: {name!r} is unknown{closest_names(name, NAMES)}; there are {LISTED}")
            found = STATISTICS.get(name) or (("mean", "square") if FLAVORS[name]["centered"] else ("square",))
        else:
            own = user_modules.find(name, "--optimizer", LISTED) if isinstance(name, str) else name
            found = try_own(own, self.title)
            object.__setattr__(self, "own", own)
        object.__setattr__(self, "statistics", found)
        if self.parts and name != "adam":
            given = f"--optimizer: {self.title} given, but parts of the network have rates or periods of their own"
            raise UserError(f"{given}; allowed: adam")

    @property
    def title(self) -> str:
        """Its name."""
        return user_modules.title(self.name)

    @property
    def pure(self) -> bool:
        """Whether `pure_step` takes its step: not a user's."""
        return type(self) is OptimizerSpec and self.own is None

    def make(self, parameter: Tensor, lr: float = 0.0) -> torch.optim.Optimizer:
        """The optimizer of one parameter."""
        if self.own is not None:
            return begin_own(self.own, parameter, lr)
        if self.name == "sgd":
            return SGD([parameter], lr, self.momentum, 2 * self.l2)
        if self.name in ("adam", "adam_clipped"):
            adam = partial(PartsAdam, parts=self.parts) if self.parts else Adam if self.name == "adam" else ClippedAdam
            return adam([parameter], lr=lr, eps=self.eps, betas=(self.beta1, BETA2))
        return RMSProp([parameter], FLAVORS[str(self.name)], lr, self.decay, self.eps)


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """The state of an optimizer of one parameter: the tensors themselves."""
    state: State = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return state


# One step as a pure function of tensors, for whatever compiles or captures it.


def pure_step(
    spec: OptimizerSpec, weights: Tensor, grad: Tensor, state: Sequence[Tensor], rate: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Clip a gradient [W] to the spec's norm and take a step: the new weights [W], the new state, the norm before [].

    state: the tensors of `optimizer_state`, in that order; rate: []. A gradient that is not finite changes nothing.
    """
    norm = torch.linalg.vector_norm(grad)
    if spec.clip:
        grad = grad * (spec.clip / (norm + 1e-6)).clamp(max=1.0)
    step = _pure_sgd if spec.name == "sgd" else _pure_adam if str(spec.name).startswith("adam") else _pure_rmsprop
    step = _pure_parts if spec.parts else step
    after, finite = step(spec, weights, grad, state, rate), norm.isfinite()
    made = [torch.where(finite, new, old) for new, old in zip(after, (weights, *state), strict=True)]
    return made[0], made[1:], norm


def _pure_adam(
    spec: OptimizerSpec, weights: Tensor, grad: Tensor, state: Sequence[Tensor], rate: Tensor
) -> list[Tensor]:
    """As Adam, or ClippedAdam."""
    (steps, mean, square), beta1, beta2 = state, spec.beta1, BETA2
    steps = steps + 1
    first, second = (1.0 - beta ** steps.double() for beta in (beta1, beta2))
    square = beta2 * square + (1.0 - beta2) * grad * grad
    deviation = square.sqrt() * second.rsqrt().float()
    if spec.name == "adam_clipped":
        grad = torch.maximum(torch.minimum(grad, REACH * deviation), -REACH * deviation)
    mean = mean + (1.0 - beta1) * (grad - mean)
    return [weights - (rate / first).float() * mean / (deviation + spec.eps), steps, mean, square]


def _pure_parts(
    spec: OptimizerSpec, weights: Tensor, grad: Tensor, state: Sequence[Tensor], rate: Tensor
) -> list[Tensor]:
    """As PartsAdam."""
    updates, sizes = state[0] + 1, [part.size for part in spec.parts]
    columns = zip(*(x.split(sizes) for x in (weights, grad, *state[1:])), strict=True)
    made = list[list[Tensor]]()
    for part, (own, slope, mean, square) in zip(spec.parts, columns, strict=True):
        turn = updates % part.every == 0
        steps = (updates / part.every).floor().clamp_min(1.0) - 1
        new = _pure_adam(spec, own, slope, (steps, mean, square), rate * part.rate)
        made.append([torch.where(turn, x, y) for x, y in zip((new[0], *new[2:]), (own, mean, square), strict=True)])
    weights, mean, square = (torch.cat(column) for column in zip(*made, strict=True))
    return [weights, updates, mean, square]


def _pure_rmsprop(
    spec: OptimizerSpec, weights: Tensor, grad: Tensor, state: Sequence[Tensor], rate: Tensor
) -> list[Tensor]:
    """As RMSProp."""
    flavor = FLAVORS[str(spec.name)]
    alpha, rest = _weights({**flavor, "alpha": spec.decay})
    *mean, square = state
    mean = [alpha * x + rest * grad for x in mean]
    square = alpha * square + rest * grad * grad
    variance = (square - mean[0] * mean[0]).clamp(min=0.0) if mean else square
    root = (variance + spec.eps).sqrt() if flavor["eps_inside"] else variance.sqrt() + spec.eps
    return [weights - rate * grad / root, *mean, square]


def _pure_sgd(
    spec: OptimizerSpec, weights: Tensor, grad: Tensor, state: Sequence[Tensor], rate: Tensor
) -> list[Tensor]:
    """As SGD."""
    momentum = spec.momentum * state[0] + (grad + 2 * spec.l2 * weights)
    return [weights - rate * momentum, momentum]


def load_state(optimizer: torch.optim.Optimizer, saved: State) -> None:
    """Copies into the tensors in use of an optimizer of one parameter, so shared ones stay shared.

    Raises ValueError if `saved` is of another kind of optimizer or of a parameter of another shape.
    """
    ours = optimizer_state(optimizer)
    if _shapes(saved) != _shapes(ours):
        raise ValueError(f"optimizer state must be {_shapes(ours)}; got {_shapes(saved)}")
    for name, tensor in ours.items():
        tensor.copy_(saved[name])


def set_step(optimizer: torch.optim.Optimizer, count: int) -> None:
    """Adam's count of steps, of an optimizer of one parameter; others have none."""
    if (step := optimizer_state(optimizer).get("step")) is not None:
        step.fill_(count)


def share_statistics(optimizer: torch.optim.Optimizer, memory: Tensor, fill: bool) -> None:
    """Have an optimizer of one parameter keep its statistics in `memory` [n, weights] (`statistics`), that others may
    use too. fill: begin with its own; otherwise it takes what is there.
    """
    state = optimizer_state(optimizer)
    for name, row in zip([k for k, x in state.items() if x.ndim], memory, strict=True):
        state[name] = row.copy_(state[name]) if fill else row


def slice_statistics(
    whole: torch.optim.Optimizer, make: Callable[[torch.nn.Parameter], torch.optim.Optimizer], at: slice
) -> torch.optim.Optimizer:
    """An optimizer of a part of the weights of `whole`, one of one flat parameter with shared statistics: the same
    weights, the same statistics and count of steps. make: of its kind. The part's gradient is yet to be given.
    """
    parameter = torch.nn.Parameter(whole.param_groups[0]["params"][0].data[at])
    made = make(parameter)
    made.state[parameter] = {k: v[at] if v.ndim else v for k, v in optimizer_state(whole).items()}
    return made


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in state.items()}
