"""Optimizers by name. RMSProp has four flavors, and a paper's ε suits only that paper's flavor.

"first g" is the initial value of the mean square of gradients.

name           first g  ε             used by
rmsprop_tf     1        inside √      TensorFlow 1: baselines' A2C, GA3C, IMPALA
rmsprop_a3c    0        inside √      A3C (Mnih et al. 2016), Lasagne: Accel RL
rmsprop_torch  0        outside √     PyTorch: TorchBeast
rmsprop_dqn    0        inside √      centered: DQN (Mnih et al. 2015, its released code), Ape-X
adagrad        0        outside √     a sum instead of a mean (Duchi et al. 2011): Gorila
adam           –        outside √     PyTorch's own (Kingma & Ba 2015)
adam_clipped   –        outside √     gradients within ±5·√v (clipped_adam): OpenAI Five
sgd            –        –             momentum, as in PyTorch: AlphaGo Zero
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

# Base class of all optimizers, and the condition for an update in one pass over memory.


FEW = 4096  # up to this number of weights, several passes are as fast as one compiled pass
State = dict[str, Tensor]  # tensors of one parameter, by name
Group = dict[str, Any]  # settings of some parameters, as in torch
Array = np.ndarray
Number = np.float32


class OwnOptimizer(torch.optim.Optimizer, ABC):
    """Base of Polyplay's optimizers, whose state exists before the first step."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter. Gradients stay unchanged."""
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, self.state[p], group)

    step.hooked = True  # type: ignore[attr-defined]  # skips torch's hooks, which take as long as a small step

    def add_param_group(self, param_group: Group) -> None:
        # skip the decorator, which imports torch's compiler (1.1 s, 70 MB of memory) only to disable it
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)
        group = self.param_groups[-1]
        self.state.update({p: self.begin(p, group) for p in group["params"]})

    @abstractmethod
    def begin(self, p: Tensor, group: Group) -> State:
        """Return the state of one parameter before the first step."""

    @abstractmethod
    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Change one parameter and its state in place."""


def in_one_pass(*tensors: Tensor) -> bool:
    """Tell whether a compiled loop can update these tensors: contiguous, float32, on a CPU, and longer than FEW."""
    plain = (x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() for x in tensors)
    return tensors[0].numel() > FEW and all(plain)


# Adam: torch's, and OpenAI Five's, which clips each weight's gradient by the gradient's second moment.


REACH = 5.0  # bound of a gradient in ClippedAdam, in multiples of √v̂
BETA2 = 0.999


class Adam(OwnOptimizer):
    """Adam, as in torch. The state has "step", "exp_avg" and "exp_avg_sq"."""

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float, betas: tuple[float, float]):
        super().__init__(params, {"lr": lr, "eps": eps, "betas": betas})

    def begin(self, p: Tensor, group: Group) -> State:
        own = {name: torch.zeros_like(p, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), device=p.device), **own}

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        steps, (beta1, beta2) = state["step"].add_(1), group["betas"]
        torch._fused_adam_(  # called directly, without the overhead of torch.optim
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
    """Settings of a part of the weights, which are `size` consecutive numbers of the weight vector.

    `rate`: factor that multiplies the learning rate for this part.
    `every`: number of updates after which the part takes a step. 1: it takes a step in each update.
    """

    size: int
    rate: float = 1.0
    every: int = 1


def parts_of(network: torch.nn.Module, **parts: tuple[float, int]) -> tuple[OptimizerPart, ...]:
    """Return the network's weights as parts with separate settings, or () if all settings are the default.
    `parts`: the settings (rate, every) of child modules, by the child's name. The default is (1, 1).
    """
    found = list[OptimizerPart]()
    for name, x in network.named_parameters():
        own = OptimizerPart(x.numel(), *parts.get(name.partition(".")[0], (1.0, 1)))
        if found and (found[-1].rate, found[-1].every) == (own.rate, own.every):
            own = replace(own, size=found.pop().size + own.size)
        found.append(own)
    return tuple(found) if any((part.rate, part.every) != (1.0, 1) for part in found) else ()


class PartsAdam(Adam):
    """Adam for weights in parts, each with its own learning rate and period. Each part counts its own steps."""

    def __init__(self, params: Iterable[Tensor], parts: tuple[OptimizerPart, ...], **given: Any):
        self.parts = parts
        super().__init__(params, **given)

    def begin(self, p: Tensor, group: Group) -> State:
        # float32 cannot count beyond 16,777,216, so periods would end there
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
    """Adam (Kingma & Ba 2015) with the per-parameter clip of OpenAI Five (Berner et al. 2019, appendix C).

    For each element of a gradient Δ, at step t, with m = v = 0 before the first step:

    v ← β₂·v + (1 − β₂)·Δ², v̂ = v/(1 − β₂ᵗ)
    m ← β₁·m + (1 − β₁)·clamp(Δ, ±5·√v̂), m̂ = m/(1 − β₁ᵗ)
    θ ← θ − lr·m̂/(√v̂ + ε)

    v includes the newest gradient, without the clip. For β₂ = 0.999, the first 25 steps clip no gradient.
    """

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        mean, square, steps = state["exp_avg"], state["exp_avg_sq"], state["step"].add_(1)
        if in_one_pass(p, grad, mean, square):
            _update_in_one_pass(p, grad, state, group)
            return
        (beta1, beta2), t = group["betas"], steps.double()  # a tensor, so that the CPU does not wait for a GPU
        square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
        deviation = square.sqrt().div_((1.0 - beta2**t).sqrt())
        bound = deviation * REACH
        mean.mul_(beta1).add_(grad.clamp(-bound, bound), alpha=1.0 - beta1)
        p.sub_(mean * (group["lr"] / (1.0 - beta1**t)) / deviation.add_(group["eps"]))


ClippedAdamRule = tuple[Number, Number, Number, Number, Number, Number, Number]


@compiled
def clipped_adam(p: Array, grad: Array, mean: Array, square: Array, rule: ClippedAdamRule) -> None:
    """Take a step of ClippedAdam on float32 arrays [n]. Update `p`, `mean` and `square` in place.
    `rule`: the tuple (lr/(1 − β₁ᵗ), β₁, 1 − β₁, β₂, 1 − β₂, 1/√(1 − β₂ᵗ), ε).
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
FLAVORS: dict[str, Group] = {  # differences between papers and frameworks; settings: see RMSProp
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
    """SGD with momentum, as in torch: u ← momentum·u + Δ + decay·θ; θ ← θ − lr·u. Δ is the gradient; u begins at 0."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float, decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    def begin(self, p: Tensor, group: Group) -> State:
        return {"momentum_buffer": torch.zeros_like(p, requires_grad=False)}

    def update(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        slope = grad.add(p, alpha=group["decay"])
        p.add_(state["momentum_buffer"].mul_(group["momentum"]).add_(slope), alpha=-group["lr"])


class RMSProp(OwnOptimizer):
    """RMSProp of every flavor, and AdaGrad. For each element of a gradient Δ:

    g ← α·g + (1 − α)·Δ², or g ← g + Δ² if `sums` (AdaGrad). The initial g is `g0`.
    u = Δ/√(g + ε) if `eps_inside`, else Δ/(√g + ε).
    θ ← θ − lr·u

    If `centered`, max(g − m², 0) replaces g in u, where m ← α·m + (1 − α)·Δ. The initial m is 0.

    The state ("mean", "square") exists before the first step. Steps change it in place, so it can be in shared memory.
    """

    team: ThreadPool | None = None  # threads that share the one pass

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
        if group["eps_inside"]:  # a sixth faster than dividing by a root
            p.addcmul_(grad, (variance + group["eps"]).rsqrt_(), value=-group["lr"])
        else:
            p.addcdiv_(grad, variance.sqrt().add_(group["eps"]), value=-group["lr"])


def _weights(group: Group) -> tuple[float, float]:
    return (1.0, 1.0) if group["sums"] else (group["alpha"], 1.0 - group["alpha"])


Rule = tuple[Number, Number, Number, Number, Number]  # learning rate, α, 1 − α, ε inside the root, ε outside


@compiled
def rmsprop(p: Array, grad: Array, square: Array, rule: Rule) -> None:
    """Take a step of RMSProp on float32 arrays [n]. Update `p` and `square` in place.
    `rule`: the tuple (learning rate, α, 1 − α, ε inside the root, ε outside the root).
    """
    lr, alpha, rest, inside, outside = rule
    for i in range(p.size):
        delta = grad[i]
        mean = alpha * square[i] + rest * (delta * delta)
        square[i] = mean
        p[i] -= lr * delta / (np.sqrt(mean + inside) + outside)


@compiled
def rmsprop_centered(p: Array, grad: Array, mean: Array, square: Array, rule: Rule) -> None:
    """Take a step of centered RMSProp, like `rmsprop`. Update `p`, `mean` and `square` in place."""
    lr, alpha, rest, inside, outside = rule
    for i in range(p.size):
        delta = grad[i]
        first = alpha * mean[i] + rest * delta
        second = alpha * square[i] + rest * (delta * delta)
        mean[i] = first
        square[i] = second
        p[i] -= lr * delta / (np.sqrt(max(second - first * first, np.float32(0.0)) + inside) + outside)


def _update_rmsprop_in_one_pass(p: Tensor, grad: Tensor, state: State, group: Group, team: ThreadPool | None) -> None:
    eps, mean = group["eps"], [state["mean"]] if group["centered"] else []
    where = (eps, 0.0) if group["eps_inside"] else (0.0, eps)
    rule = tuple(np.float32(x) for x in (group["lr"], *_weights(group), *where))
    arrays = [x.detach().numpy().reshape(-1) for x in (p, grad, *mean, state["square"])]
    loop: Callable[..., None] = rmsprop_centered if group["centered"] else rmsprop
    if team is None:
        loop(*arrays, rule)
    else:  # bitwise the same result
        team.each(lambda i: loop(*(x[team.part(i, x.size)] for x in arrays), rule))


Make = Callable[..., torch.optim.Optimizer]
SIGNATURE = "module:callable, a function of ([parameter], lr=RATE) that returns a torch.optim.Optimizer"


class FirstValues(dict[str, Any]):
    """State of a parameter in an optimizer. The dict `first` keeps the first value of each entry."""

    def __init__(self) -> None:
        super().__init__()
        self.first: State = {}

    def __setitem__(self, name: str, value: Any) -> None:
        self.first.setdefault(name, value.clone() if isinstance(value, Tensor) else value)
        super().__setitem__(name, value)


def begin_own(make: Make, parameter: Tensor, lr: float) -> torch.optim.Optimizer:
    """Make a user's optimizer of one parameter, with its state before the first step.

    Torch's optimizers create their state in the first step. To get it, a second optimizer takes a step on zeros.
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
    """Test a user's optimizer on four weights. Return the names of the statistics that it keeps per weight. Raises
    UserError if the optimizer is not usable.
    """
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
            fits = "an optimizer whose state is tensors: one number, or one float32 per weight"
            raise UserError(f"--optimizer: {title} given, whose state has {name}, {kept}; allowed: {fits}")
    return tuple(name for name, x in state.items() if x.ndim)


@dataclass(frozen=True)
class OptimizerSpec:
    """Description of an optimizer: a name from NAMES, module:callable, or a callable.

    `clip`: bound of the global norm of the (averaged) gradient. 0: no bound.

    A callable gets ([parameter], lr=RATE), where the parameter is the vector of all weights, and returns a
    torch.optim.Optimizer. Learners set its learning rate before each step, and use only the fields `name` and `clip`.
    Raises UserError if the name is unknown, or if a callable returns something else.
    """

    name: str | Make = "adam"
    eps: float = 1e-8
    decay: float = 0.99  # α of RMSProp's statistics; other optimizers ignore it
    clip: float = 0.0
    momentum: float = 0.9  # SGD's momentum
    beta1: float = 0.9  # Adam's β₁
    l2: float = 0.0  # factor c of SGD's penalty c·‖θ‖²: 2c·θ is added to the gradient
    parts: tuple[OptimizerPart, ...] = ()  # parts of the weights, for Adam, if their learning rates or periods differ
    own: Make | None = field(default=None, init=False, repr=False)  # a user's callable
    statistics: tuple[str, ...] = field(default=(), init=False, repr=False)  # names of the numbers kept per weight

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
            given = f"--optimizer: {self.title} given, but parts of the network have separate learning rates or periods"
            raise UserError(f"{given}; use adam")

    @property
    def title(self) -> str:
        """Name of the optimizer or of the callable."""
        return user_modules.title(self.name)

    @property
    def pure(self) -> bool:
        """Whether `pure_step` can take this optimizer's step; False for a user's optimizer."""
        return type(self) is OptimizerSpec and self.own is None

    def make(self, parameter: Tensor, lr: float = 0.0) -> torch.optim.Optimizer:
        """Make the optimizer of one parameter."""
        if self.own is not None:
            return begin_own(self.own, parameter, lr)
        if self.name == "sgd":
            return SGD([parameter], lr, self.momentum, 2 * self.l2)
        if self.name in ("adam", "adam_clipped"):
            adam = partial(PartsAdam, parts=self.parts) if self.parts else Adam if self.name == "adam" else ClippedAdam
            return adam([parameter], lr=lr, eps=self.eps, betas=(self.beta1, BETA2))
        return RMSProp([parameter], FLAVORS[str(self.name)], lr, self.decay, self.eps)


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """Return the state of an optimizer that has one parameter. The tensors are the optimizer's own, not copies."""
    state: State = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return state


# One step as a pure function of tensors, to be compiled or captured.


def pure_step(
    spec: OptimizerSpec, weights: Tensor, grad: Tensor, state: Sequence[Tensor], rate: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Clip a gradient [W] and take a step, as a pure function of tensors. A gradient that is not finite changes
    nothing. Return the new weights [W], the new state, and the norm before the clip [].
    `state`: tensors of `optimizer_state`, in the order of its entries. `rate`: learning rate [].
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
    momentum = spec.momentum * state[0] + (grad + 2 * spec.l2 * weights)
    return [weights - rate * momentum, momentum]


def load_state(optimizer: torch.optim.Optimizer, saved: State) -> None:
    """Copy a saved state into the tensors of an optimizer of one parameter. Shared tensors stay shared. Raises
    ValueError if `saved` is from another kind of optimizer, or of another shape.
    """
    ours = optimizer_state(optimizer)
    if _shapes(saved) != _shapes(ours):
        raise ValueError(f"optimizer state must be {_shapes(ours)}; got {_shapes(saved)}")
    for name, tensor in ours.items():
        tensor.copy_(saved[name])


def set_step(optimizer: torch.optim.Optimizer, count: int) -> None:
    """Set the step count of Adam. Do nothing for an optimizer without a step count."""
    if (step := optimizer_state(optimizer).get("step")) is not None:
        step.fill_(count)


def share_statistics(optimizer: torch.optim.Optimizer, memory: Tensor, fill: bool) -> None:
    """Move an optimizer's statistics to `memory` [statistics, weights], which other optimizers may share.
    `fill`: whether to write the statistics into `memory`. Otherwise, the optimizer takes over the contents of `memory`.
    """
    state = optimizer_state(optimizer)
    for name, row in zip([k for k, x in state.items() if x.ndim], memory, strict=True):
        state[name] = row.copy_(state[name]) if fill else row


def slice_statistics(
    whole: torch.optim.Optimizer, make: Callable[[torch.nn.Parameter], torch.optim.Optimizer], at: slice
) -> torch.optim.Optimizer:
    """Return an optimizer of the weights in slice `at`. It shares weights, statistics and step count with `whole`.
    `whole`: optimizer of one flat parameter, with shared statistics.
    `make`: makes an optimizer of the same class. The new optimizer's parameter has no gradient yet.
    """
    parameter = torch.nn.Parameter(whole.param_groups[0]["params"][0].data[at])
    made = make(parameter)
    made.state[parameter] = {k: v[at] if v.ndim else v for k, v in optimizer_state(whole).items()}
    return made


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in state.items()}
