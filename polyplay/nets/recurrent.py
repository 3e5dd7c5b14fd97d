"""Recurrent cores: LSTM, GRU, two clocks.

Recurrent cores: our own LSTM and GRU, since cuDNN's packed weights can't be views of one vector.

The input's matrix product is done for all rows at once, the state's per step, with the state zeroed where an
episode begins, before that row is consumed. Acting is an unroll of one row, so both take the same path.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.tree import Batch, Field, Spec
from polyplay.nets.dnc import Memory, TemporalLinks
from polyplay.nets.layers import Linear, RepeatedLinear, TensorAxes, axis, initialise, pad_lanes


class Cell(nn.Module):
    """One step: the input's share of the gates [B, gates·size] and the state → next state, output first."""

    names: tuple[str, ...]
    gates: int
    bias = False

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        self.recurrent = nn.Linear(size, self.gates * size, bias=self.bias)
        self.rows = axis("gates", self.gates, size)
        self.axes = {"recurrent.weight": TensorAxes((self.rows, axis("core", size)))}
        self.axes["recurrent.bias"] = TensorAxes((self.rows,))


class LSTMCell(Cell):
    """Hochreiter & Schmidhuber 1997 with forget gate, one bias; gates: input, forget, output, candidate."""

    names = ("h", "c")
    gates = 4

    def forward(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = state
        return lstm_step(torch.addmm(gates, h, self.recurrent.weight.t()), c)


def lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c behind gates [B, 4·size], as LSTMCell has them in order, and c [B, size]."""
    three = 3 * c.shape[1]
    i, f, o = torch.sigmoid(gates[:, :three]).chunk(3, 1)
    c = f * c + i * torch.tanh(gates[:, three:])
    return o * torch.tanh(c), c


class GRUCell(Cell):
    """Cho et al. 2014 as cuDNN has it (reset after the product); gates: reset, update, candidate."""

    names = ("h",)
    gates = 3
    bias = True  # of it only the candidate's share is not redundant

    def forward(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        gates_h = F.linear(h, self.recurrent.weight, self.recurrent.bias)
        two = 2 * self.size
        r, z = torch.sigmoid(gates[:, :two] + gates_h[:, :two]).chunk(2, 1)
        n = torch.tanh(gates[:, two:] + r * gates_h[:, two:])
        return (n + z * (h - n),)


class Core(nn.Module):
    """A cell and its input layer. `inputs` numbers in, `features` out."""

    exact = True  # see layers.Linear

    def __init__(self, cell: Cell, inputs: int, init: str = "orthogonal"):
        super().__init__()
        self.inputs, self.features, self.rows = inputs, cell.size, cell.rows
        self.input = Linear(inputs, cell.gates * cell.size)
        self.cell = cell
        initialise(self, init, gain=1.0)
        if init == "sonnet":  # IMPALA's is TensorFlow's LSTM: one matrix of input and state, as Glorot & Bengio 2010
            bound = math.sqrt(6.0 / (inputs + cell.size + cell.gates * cell.size))
            for layer in (self.input, cell.recurrent):
                nn.init.uniform_(layer.weight, -bound, bound)
        if cell.gates == 4:  # remember at first: forget bias 1, as TensorFlow's BasicLSTMCell and so IMPALA
            with torch.no_grad():
                self.input.bias[cell.size : 2 * cell.size] += 1.0

    def state_spec(self) -> Spec:
        return {name: Field((self.features,), "float32") for name in self.cell.names}

    def unroll(
        self, x: Tensor, first: Tensor, state: Batch, context: AbstractContextManager[object] = contextlib.nullcontext()
    ) -> tuple[Tensor, Batch, None]:
        """x [T+1, B, inputs], first bool [T+1, B], state before row 0 → [T+1, B, features], state behind. context: what
        the input's product is computed in; all else is float32.
        """
        rows, lanes = first.shape
        with context:
            gates = self.input(x.reshape(rows * lanes, -1))
        gates = gates.view(rows, lanes, -1).float()
        keep = (~first).unsqueeze(-1).to(gates.dtype)
        now = tuple(state[name] for name in self.cell.names)
        if self.exact and (more := pad_lanes(lanes, x.device)):  # whole tiles, for the reason `Linear` has
            gates, keep = (F.pad(v, (0, 0, 0, more)) for v in (gates, keep))
            now = tuple(F.pad(v, (0, 0, 0, more)) for v in now)
        outputs = []
        for gate, alive in zip(gates.unbind(0), keep.unbind(0), strict=True):
            now = self.cell(gate, tuple(v * alive for v in now))
            outputs.append(now[0][:lanes])
        return torch.stack(outputs), {k: v[:lanes] for k, v in zip(self.cell.names, now, strict=True)}, None


CELLS = {"lstm": LSTMCell, "gru": GRUCell}


def make_core(name: str, inputs: int, size: int, init: str = "orthogonal", memory: int = 0) -> Core | Temporal | None:
    """An LSTM, a GRU, the temporal one, with so many words of memory, or None for "none"."""
    if name == "temporal":
        return Temporal(inputs, size, init, Memory(memory) if memory else None)
    return None if name == "none" else Core(CELLS[name](size), inputs, init)


# A recurrent core of two clocks: FTW's recurrent temporal hierarchy (Jaderberg et al. 2019, supplement 2).
#
# The fast LSTM runs at every step, the slow one where the episode's step number is a multiple of the period τ; between
# such ticks its state and all that it puts out are held.
#
#     tick:        s_t = LSTM_slow([h_{t-1}, s_{t-1}]),  prior  P_t = N(μ_p, σ_p²) of s_t
#     every step:  h_t = LSTM_fast([x_t, s_t, μ_p, σ_p, h_{t-1}, z_{t-1}]),  posterior  Q_t = N(μ_q, σ_q²) of h_t
#                  z_t = μ_q + σ_q·ε_t,  ε_t ~ N(0, 1): what the heads get
#
# σ = 0.1·softplus(·)/softplus(0) + 1e-6. Shapes: R rows of B lanes; x [B, inputs], all else [B, size].


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
        self.rows = axis("gates", 4, size, fixed=True)
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

    def apply_hyperparameters(self, values: Mapping[str, float]) -> None:
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
        now, found, links = {k: state[k] for k in self.state_spec()}, [], None
        if self.memory is not None:
            now["memory"] = dict(now["memory"])
            links = TemporalLinks(now["memory"].pop("link"))
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
        new, gates = {}, self.slow(torch.cat([old["h"], old["slow_h"], *reads], 1))
        new["slow_h"], new["slow_c"] = lstm_step(gates, old["slow_c"])
        shown = [new["slow_h"]]
        if self.memory is not None and links is not None:
            follow = links.read_links if every else partial(links.read_links, lanes=at)
            new["slow_reads"], new["memory"] = self.memory(self.slow_interface(new["slow_h"]), old["memory"], follow)
            shown.append(new["slow_reads"])
        new["prior_mean"], new["prior_scale"] = _normal(self.prior(torch.cat(shown, 1)))
        shown += [new["prior_mean"], new["prior_scale"]]
        new["held"] = self.down(_ScaledGradient.apply(torch.cat(shown, 1), self.gradient_scale))
        if not every:
            new = {k: tree.map(lambda x, some: x.index_copy(0, at, some), now[k], v) for k, v in new.items()}
        return now | new

    def _step(self, now: Batch, links: TemporalLinks | None, gates: Tensor) -> tuple[Batch, Tensor, Tensor]:
        """The fast clock's step, without z: the state, and the posterior's mean and scale."""
        reads = () if self.memory is None else (now["reads"],)
        gates = gates + now["held"] + self.fast(torch.cat([now["h"], now["z"], *reads], 1))
        new = dict(now)
        new["h"], new["c"] = lstm_step(gates, now["c"])
        shown = [new["h"]]
        if self.memory is not None and links is not None:
            new["reads"], new["memory"] = self.memory(self.fast_interface(new["h"]), now["memory"], links.read_links)
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


def _zeroed(state: Batch, links: TemporalLinks | None, first: Tensor) -> Batch:
    """The state, zero in lanes where an episode begins, as then the links are."""
    if links is not None:
        links.clear(first)
    return tree.map(lambda x: x.masked_fill(first.view(-1, *[1] * (x.dim() - 1)), 0.0), state)
