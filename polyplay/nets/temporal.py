"""A recurrent core of two clocks: FTW's recurrent temporal hierarchy (Jaderberg et al. 2019, supplement 2).

The fast LSTM runs at every step, the slow one where the episode's step number is a multiple of the period τ; between
such ticks its state and all that it puts out are held.

    tick:        s_t = LSTM_slow([h_{t-1}, s_{t-1}]),  prior  P_t = N(μ_p, σ_p²) of s_t
    every step:  h_t = LSTM_fast([x_t, s_t, μ_p, σ_p, h_{t-1}, z_{t-1}]),  posterior  Q_t = N(μ_q, σ_q²) of h_t
                 z_t = μ_q + σ_q·ε_t,  ε_t ~ N(0, 1): what the heads get

σ = 0.1·softplus(·)/softplus(0) + 1e-6. Shapes: R rows of B lanes; x [B, inputs], all else [B, size].
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.tree import Batch, Field, Spec
from polyplay.nets.layers import Linear, RepeatedLinear, initialise
from polyplay.nets.recurrent import lstm_step
from polyplay.nets.temporal_links import TemporalLinks

if TYPE_CHECKING:
    from polyplay.nets.memory import Memory

SCALE, LEAST = 0.1, 1e-6  # of deviations: at first, and at least
FIXED = 0.1  # deviation of what the prior is drawn towards


class Latent(NamedTuple):
    """Both distributions of z in rows [R, B, size], and bool [R, B]: where the slow clock ticked."""

    mean: Tensor
    scale: Tensor
    prior_mean: Tensor
    prior_scale: Tensor
    ticks: Tensor


class Temporal(nn.Module):
    """See above. `noise` standard normal numbers per lane and row come with the rows: rows keep them, so that acting
    and learning have the same z. memory: shared by both clocks, the slow one first; each also gets what it read last.
    """

    exact = True  # see layers.Linear
    period: Tensor
    gradient_scale: Tensor

    def __init__(self, inputs: int, size: int, init: str = "orthogonal", memory: Memory | None = None):
        super().__init__()
        self.inputs, self.features, self.noise, self.memory = inputs, size, size, memory
        self.register_buffer("period", torch.tensor(10.0))  # τ: steps from one tick to the next
        self.register_buffer("gradient_scale", torch.tensor(1.0))  # of what flows from the fast into the slow clock
        reads = 0 if memory is None else memory.features
        self.input = Linear(inputs, 4 * size)
        self.fast = RepeatedLinear(2 * size + reads, 4 * size, bias=False)
        self.slow = RepeatedLinear(2 * size + reads, 4 * size)
        self.down = RepeatedLinear(3 * size + reads, 4 * size, bias=False)  # what the fast clock gets of the slow one
        self.prior = RepeatedLinear(size + reads, 2 * size)
        self.posterior = RepeatedLinear(size + reads, 2 * size)
        initialise(self, init, gain=1.0)
        initialise(self.prior, init, 0.1)
        if memory is not None:
            self.fast_interface = RepeatedLinear(size, memory.interface)
            self.slow_interface = RepeatedLinear(size, memory.interface)
        with torch.no_grad():  # remember at first, as recurrent.Core
            for bias in (self.input.bias, self.slow.bias):
                bias[size : 2 * size] += 1.0

    def follow(self, values: Mapping[str, float]) -> None:
        """Take over what hyperparameters say of the clocks."""
        for name in ("period", "gradient_scale"):
            if name in values:
                getattr(self, name).fill_(values[name])

    def state_spec(self) -> Spec:
        names = ("h", "c", "z", "slow_h", "slow_c", "prior_mean", "prior_scale")
        spec: Spec = {name: Field((self.features,), "float32") for name in names}
        spec |= {"held": Field((4 * self.features,), "float32"), "count": Field((), "int64")}
        if self.memory is None:
            return spec
        reads = dict.fromkeys(("reads", "slow_reads"), Field((self.memory.features,), "float32"))
        return {**spec, **reads, "memory": self.memory.state_spec()}

    def unroll(
        self,
        x: Tensor,
        first: Tensor,
        state: Batch,
        context: AbstractContextManager[object] = contextlib.nullcontext(),
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Batch, Latent]:
        """As recurrent.Core.unroll, z for its output; noise: ε [R, B, size], None: z is the posterior's mean."""
        with context:
            gates = self.input(x.flatten(0, 1))
        gates = gates.view(*first.shape, -1).float()
        now, found = {k: state[k] for k in self.state_spec()}, []
        now, links = _apart(now) if self.memory is not None else (now, None)
        counts, begins = _counted(now.pop("count"), first), first.any(1).tolist()
        ticks = counts[:-1] % self.period.long() == 0
        lanes = ticks.sum(1).tolist()
        with contextlib.ExitStack() as stack:
            for layer in self.modules():
                if isinstance(layer, RepeatedLinear):
                    stack.enter_context(layer.repeated())
            for t, gate in enumerate(gates.unbind(0)):
                now = _zeroed(now, links, first[t]) if begins[t] else now
                now = self._tick(now, links, ticks[t], lanes[t] == first.shape[1]) if lanes[t] else now
                now, mean, scale = self._step(now, links, gate)
                now["z"] = mean if noise is None else mean + scale * noise[t]
                found.append((now["z"], mean, scale, now["prior_mean"], now["prior_scale"]))
        z, mean, scale, *prior = (torch.stack(rows) for rows in zip(*found, strict=True))
        now = now if links is None else now | {"memory": now["memory"] | {"link": links.end()}}
        return z, now | {"count": counts[-1]}, Latent(mean, scale, prior[0], prior[1], ticks)

    def _tick(self, now: Batch, links: TemporalLinks | None, ticks: Tensor, every: bool) -> Batch:
        """The slow clock's step in the lanes where it ticks; every: in all."""
        at = ticks.nonzero().squeeze(1)
        old = now if every else tree.map(lambda x: x[at], now)
        reads = () if self.memory is None else (old["slow_reads"],)
        new = {}
        new["slow_h"], new["slow_c"] = lstm_step(
            self.slow(torch.cat([old["h"], old["slow_h"], *reads], 1)), old["slow_c"]
        )
        shown = [new["slow_h"]]
        if self.memory is not None and links is not None:
            follow = links.follow if every else partial(links.follow, lanes=at)
            new["slow_reads"], new["memory"] = self.memory(self.slow_interface(new["slow_h"]), old["memory"], follow)
            shown.append(new["slow_reads"])
        new["prior_mean"], new["prior_scale"] = _normal(self.prior(torch.cat(shown, 1)))
        shown += [new["prior_mean"], new["prior_scale"]]
        new["held"] = self.down(_ScaledGradient.apply(torch.cat(shown, 1), self.gradient_scale))
        return now | (new if every else {k: _put(now[k], at, v) for k, v in new.items()})

    def _step(self, now: Batch, links: TemporalLinks | None, gates: Tensor) -> tuple[Batch, Tensor, Tensor]:
        """The fast clock's step, without z: the state, and the posterior's mean and scale."""
        reads = () if self.memory is None else (now["reads"],)
        gates = gates + now["held"] + self.fast(torch.cat([now["h"], now["z"], *reads], 1))
        new = dict(now)
        new["h"], new["c"] = lstm_step(gates, now["c"])
        shown = [new["h"]]
        if self.memory is not None and links is not None:
            new["reads"], new["memory"] = self.memory(self.fast_interface(new["h"]), now["memory"], links.follow)
            shown.append(new["reads"])
        return new, *_normal(self.posterior(torch.cat(shown, 1)))


def kl_terms(latent: Latent) -> Batch:
    """[R, B] each: KL(Q ‖ P) at every step, and KL(P ‖ N(0, 0.1²)) where the slow clock ticked, else 0. Of normal
    distributions without covariance, nats summed over z: Σ ln(σ₂/σ₁) + (σ₁² + (μ₁ − μ₂)²)/(2σ₂²) − ½.
    """
    fixed = torch.zeros_like(latent.prior_mean), torch.full_like(latent.prior_scale, FIXED)
    posterior = _kl(latent.mean, latent.scale, latent.prior_mean, latent.prior_scale)
    prior = _kl(latent.prior_mean, latent.prior_scale, *fixed)
    return {"kl_posterior": posterior, "kl_prior": torch.where(latent.ticks, prior, 0.0)}


def _kl(mean: Tensor, scale: Tensor, mean2: Tensor, scale2: Tensor) -> Tensor:
    return ((scale2 / scale).log() + (scale.square() + (mean - mean2).square()) / (2 * scale2.square()) - 0.5).sum(-1)


def _normal(params: Tensor) -> tuple[Tensor, Tensor]:
    mean, scale = params.chunk(2, 1)
    return mean, F.softplus(scale) * (SCALE / math.log(2.0)) + LEAST


class _ScaledGradient(torch.autograd.Function):
    """x, whose gradient is multiplied by `scale`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.scale, None


def _counted(count: Tensor, first: Tensor) -> Tensor:
    """Step numbers in the episodes of rows [R, B], and behind the last: int64 [R+1, B]. count: int64 [B], that of row 0
    unless it begins an episode.
    """
    rows = torch.arange(len(first) + 1, device=first.device).unsqueeze(1)
    begun = torch.where(first, rows[:-1], -1).cummax(0).values  # the row of the episode's begin, -1: before these
    begun = torch.cat([begun, begun[-1:]])
    return torch.where(begun < 0, count + rows, rows - begun)


def _apart(state: Batch) -> tuple[Batch, TemporalLinks]:
    """The state without the links of its memory, and those."""
    memory = dict(state["memory"])
    links = TemporalLinks(memory.pop("link"))
    return state | {"memory": memory}, links


def _zeroed(state: Batch, links: TemporalLinks | None, first: Tensor) -> Batch:
    """The state, zero in lanes where an episode begins, as then the links are."""
    if links is not None:
        links.clear(first)
    return tree.map(lambda x: x.masked_fill(first.view(-1, *[1] * (x.dim() - 1)), 0.0), state)


def _put(x: Any, at: Tensor, new: Any) -> Any:
    """x, with `new` in these lanes."""
    return tree.map(lambda old, value: old.index_copy(0, at, value), x, new)
