"""What loops ask of a network; running statistics.

What every loop asks of a network: `Policy`, and of its weights: `Network`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.spaces import describe_fields
from polyplay.nets.layers import Tape, TensorAxes, axis


class Network(Protocol):
    """The part of `nn.Module` that weights are read and moved by."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def to(self, device: torch.device | str) -> Self: ...


@runtime_checkable
class Policy(Network, Protocol):
    """A module that acts in B lanes and unrolls T+1 rows of them, as the same function of its weights.

    Some have more, which loops look for: `observe` (running statistics), `freeze_noise` (copies of weights in
    bfloat16) and tapes (TapedPolicy).
    """

    @property
    def noise(self) -> int: ...  # uniforms in (0, 1) that `act` takes per lane and step
    def spec(self) -> Spec: ...  # what `act` puts out, per lane
    def state_spec(self) -> Spec: ...  # recurrent state, per lane; {} without one
    def initial(self, lanes: int) -> Batch: ...  # the state before the first step
    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]: ...  # one row [B]: outputs, the state after it
    def unroll(self, batch: Batch, state: Batch) -> Batch: ...  # rows [T+1, B], the state before row 0


@runtime_checkable
class TapedPolicy(Policy, Protocol):
    """One whose `unroll` can take what `act` has computed, where `recalls` says so."""

    @property
    def recalls(self) -> bool: ...
    def act(self, step: Batch, state: Batch, tape: Tape | None = None) -> tuple[Batch, Batch]: ...
    def unroll(self, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch: ...


PolicyFactory = Callable[[], Policy]


# What a policy learns besides its weights: running statistics, in floating buffers. Those of inputs are of float64, so
# that numbers far from 0, such as time stamps, keep their differences.
#
# So they are published, saved and restored with the weights, and averaged over replicas like any buffer. They are made
# so that this plain average is the statistic of all replicas' rows: sums, and moments about an origin that all share.
# `observe` is called by learners alone: who acts or evaluates uses what it was given.


MOST = 1e7  # rows that a statistic remembers, roughly: older ones fade; float32 can't count on much further
LEAST = 1e-29  # of the mean's square: the least variance, that of rounding in float64
LARGEST = 1e150  # numbers count as no larger, since their squares are averaged
TINY = 1e-200  # the least variance of what is 0
BOUND = 10.0  # of what leaves here, unless it is told another


class RunningMoments(nn.Module):
    """Running mean and variance of rows [n, *shape] in float64: Chan et al. 1979, one batch after the other.

    `second` is the second moment about `origin`, the mean of the first batch, which replicas share; about means of
    their own its average would lack the variance between replicas. The first batch counts as one row, at its mean.
    """

    mean: Tensor
    origin: Tensor
    second: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], bound: float = BOUND):
        super().__init__()
        self.bound = bound
        for name in ("mean", "origin", "second"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        axes = tuple(axis(f"axis {i}", n) for i, n in enumerate(shape))
        # new numbers pass as they are until their own statistics are known
        fills = {"mean": 0.0, "origin": 0.0, "second": 1.0}
        self.axes = {name: TensorAxes(axes, fill) for name, fill in fills.items()}
        self.axes["count"] = TensorAxes((), counts=True)

    def variance(self) -> Tensor:
        return (self.second - (self.mean - self.origin).square()).clamp_min(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """(x − mean)/deviation as float32, within ±bound; the deviation is 1 until one is known."""
        floor = LEAST * self.mean.square() + TINY  # what never changes is 0, not its own rounding error
        deviation = torch.where(self.count > 1, (self.variance() + floor).sqrt(), 1.0)
        return ((x.double() - self.mean) / deviation).clamp(-self.bound, self.bound).float()

    @torch.no_grad()
    def observe(self, rows: Tensor) -> None:
        """Learn from rows [n, *shape]; what isn't finite counts as the mean."""
        known, x = float(self.count), torch.where(rows.isfinite(), rows.double(), self.mean).clamp(-LARGEST, LARGEST)
        weight = len(rows) / (known + len(rows))
        if known:
            self.second += weight * ((x - self.origin).square().mean(0) - self.second)
        self.mean += weight * (x - self.mean).mean(0)
        if not known:
            self.origin.copy_(self.mean)
        self.count.fill_(min(known + len(rows), MOST) if known else 1.0)


def is_pixels(field: Field) -> bool:
    """Whether bytes are pixels: [C, H, W]."""
    return field.dtype == "uint8" and len(field.shape) == 3


class Normalize(nn.Module):
    """Observations whose numbers have mean 0 and deviation 1, each by itself. Images of bytes pass as they are, and so
    does what is one of `classes`.

    sets: paths of units [units, numbers] whose first number says whether one is there. It passes, and units share the
    moments of all others, which are of those that are there.
    """

    def __init__(self, obs: Spec, sets: Sequence[str] = (), bound: float = BOUND, classes: Collection[str] = ()):
        super().__init__()
        leaves = [(path, x) for path, x in tree.leaves(obs) if path not in classes and not is_pixels(x)]
        if not leaves:
            takes = f"takes numbers that are neither an image nor classes, the observations are {describe_fields(obs)}"
            raise UserError(f"--inputs normalize: {takes}; use raw or centre")
        self.paths = [path for path, _ in leaves]
        self.sets = [path in sets for path in self.paths]
        shapes = [field.shape[1:] if path in sets else field.shape for path, field in leaves]
        self.moments = nn.ModuleList(RunningMoments(shape, bound) for shape in shapes)
        self.stable = {f"moments.{i}": f"moments of {path}" for i, path in enumerate(self.paths)}

    def forward(self, obs: Tree) -> Tree:
        flat = dict(tree.leaves(obs))
        for path, one, moments in zip(self.paths, self.sets, self.moments, strict=True):
            x, made = flat[path], moments(flat[path])
            flat[path] = torch.cat([x[..., :1].float(), made[..., 1:]], -1) if one else made
        return tree.nest(flat)

    def observe(self, obs: Tree) -> None:
        """Learn from rows [T+1, B, ...]; the last row is the next rollout's first, and counts there."""
        flat = dict(tree.leaves(obs))
        for path, one, moments in zip(self.paths, self.sets, self.moments, strict=True):
            rows = flat[path][:-1].flatten(0, 1)
            rows = rows[rows[..., 0] > 0] if one else rows
            if len(rows):
                moments.observe(rows)  # type: ignore[operator]


class ReturnScale(nn.Module):
    """The size of discounted returns: the root of the running mean of G², for losses that scale rewards by it.

    G_t = r_t + γ·G_{t-1} runs forward within a rollout, from 0 before its row 1 and again at every first row: short
    rollouts see short sums. About 0, not about their mean (Gymnasium's NormalizeReward): a reward that never
    changes has a size too.
    """

    total: Tensor
    count: Tensor

    def __init__(self, gamma: float):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("count", torch.zeros(()))

    def scale(self) -> Tensor:
        """What to multiply rewards with: 1/size, [], 1 while all were 0."""
        return torch.where(self.total > 0, (self.count / self.total.clamp_min(1e-30)).sqrt(), 1.0)

    @torch.no_grad()
    def observe(self, reward: Tensor, first: Tensor) -> None:
        """Learn from rows [T+1, B]."""
        sums = torch.zeros_like(reward[0])
        for r, goes_on in zip(reward[1:], ~first[1:], strict=True):
            sums = torch.where(goes_on, r + self.gamma * sums, 0.0)
            square = sums.square()
            self.total += torch.where(square.isfinite(), square, 0.0).sum()
            self.count += goes_on.sum()
        fade = MOST / float(self.count) if self.count > MOST else 1.0
        self.total *= fade
        self.count *= fade
