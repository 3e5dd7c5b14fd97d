"""Recurrent cores of networks: LSTM, GRU, and the temporal core, which has a slow and a fast LSTM and a memory.

LSTM and GRU do not use cuDNN, whose packed weights could not be views of the vector of all weights. In a rollout, one
matrix product handles the inputs of all rows (steps). Then the state is updated row by row. Before a row that begins an
episode, the state is set to 0. Acting runs the same code for one row.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from polyplay.core import tree
from polyplay.core.tree import Batch, Field, Spec
from polyplay.nets.layers import Linear, RepeatedLinear, TensorAxes, axis, initialize, pad_lanes, tracing


class Cell(nn.Module):
    """Base of recurrent cells. `forward(gates, state)` computes one step and returns the next state.

    `gates`: outputs of the core's input layer, [B, gates·size]. The cell adds the product with the state.
    `state`: a tuple of tensors. The first one is the output.
    """

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
    """LSTM cell with a forget gate (Hochreiter & Schmidhuber 1997). Gates: input, forget, output, candidate."""

    names = ("h", "c")
    gates = 4

    def forward(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = state
        return lstm_step(torch.addmm(gates, h, self.recurrent.weight.t()), c)


def lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next h and c [B, size] of an LSTM, from the previous c and the gates [B, 4·size] before activation."""
    three = 3 * c.shape[1]
    i, f, o = torch.sigmoid(gates[:, :three]).chunk(3, 1)
    c = f * c + i * torch.tanh(gates[:, three:])
    return o * torch.tanh(c), c


class GRUCell(Cell):
    """GRU cell (Cho et al. 2014) as in cuDNN: the reset gate applies after the product. Gates: reset, update, new."""

    names = ("h",)
    gates = 3
    bias = True  # only the candidate needs it; the other gates have the input layer's bias

    def forward(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        gates_h = F.linear(h, self.recurrent.weight, self.recurrent.bias)
        two = 2 * self.size
        r, z = torch.sigmoid(gates[:, :two] + gates_h[:, :two]).chunk(2, 1)
        n = torch.tanh(gates[:, two:] + r * gates_h[:, two:])
        return (n + z * (h - n),)


class Core(nn.Module):
    """Recurrent core: a linear layer from the inputs to the gates, followed by a cell with `features` outputs."""

    exact = True  # see layers.Linear

    def __init__(self, cell: Cell, inputs: int, init: str = "orthogonal"):
        super().__init__()
        self.inputs, self.features, self.rows = inputs, cell.size, cell.rows
        self.input = Linear(inputs, cell.gates * cell.size)
        self.cell = cell
        initialize(self, init, gain=1.0)
        if init == "sonnet":  # TensorFlow's LSTM, as in IMPALA: one matrix of input and state, Glorot & Bengio 2010
            bound = math.sqrt(6.0 / (inputs + cell.size + cell.gates * cell.size))
            for layer in (self.input, cell.recurrent):
                nn.init.uniform_(layer.weight, -bound, bound)
        if cell.gates == 4:  # forget bias 1, to remember at first, as in TensorFlow's BasicLSTMCell and IMPALA
            with torch.no_grad():
                self.input.bias[cell.size : 2 * cell.size] += 1.0

    def state_spec(self) -> Spec:
        return {name: Field((self.features,), "float32") for name in self.cell.names}

    def unroll(
        self,
        x: Tensor,
        first: Tensor,
        state: Batch,
        context: contextlib.AbstractContextManager[object] = contextlib.nullcontext(),
    ) -> tuple[Tensor, Batch, None]:
        """Compute the core's outputs for rows x [T+1, B, inputs].

        `first`: bool [T+1, B], true where an episode begins.
        `state`: the state before the first row.
        `context`: context manager that may set the precision of the input layer. The cell computes in float32.
        Returns outputs [T+1, B, features], the state after the last row, and None (in Temporal, a Latent).
        """
        rows, lanes = first.shape
        with context:
            gates = self.input(x.reshape(rows * lanes, -1))
        gates = gates.view(rows, lanes, -1).float()
        keep = (~first).unsqueeze(-1).to(gates.dtype)
        now = tuple(state[name] for name in self.cell.names)
        if self.exact and (more := pad_lanes(lanes, x.device)):  # fill whole tiles, as in `Linear`
            gates, keep = (F.pad(v, (0, 0, 0, more)) for v in (gates, keep))
            now = tuple(F.pad(v, (0, 0, 0, more)) for v in now)
        outputs = []
        for gate, alive in zip(gates.unbind(0), keep.unbind(0), strict=True):
            now = self.cell(gate, tuple(v * alive for v in now))
            outputs.append(now[0][:lanes])
        return torch.stack(outputs), {k: v[:lanes] for k, v in zip(self.cell.names, now, strict=True)}, None


# Addresses in a differentiable memory: by content, by free space, and by the order of writes (_FollowLinks).
#
# Graves et al. 2016, "Hybrid computing using a neural network with dynamic external memory", as in deepmind/dnc. B
# lanes, N slots of W numbers, R read heads, one write head. A head's weights over slots are ≥ 0, and their sum is ≤ 1.


_EPSILON = 1e-6
_ROWS = 4  # the number of rows in a small product must be a multiple of this, see `bmm_rows`


def content_weights(memory: Tensor, keys: Tensor, strengths: Tensor) -> Tensor:
    """Return the weights of the read heads over the memory's slots, [B, R, N]: softmax(strength · cosine(key, slot)).

    Shapes: memory [B, N, W], keys [B, R, W], strengths [B, R].
    """
    norms = _norm(keys).unsqueeze(2) * _norm(memory).unsqueeze(1)
    similarity = bmm_rows(keys, memory.transpose(1, 2)) / (norms + _EPSILON)
    return torch.softmax(similarity * strengths.unsqueeze(2), 2)


def usage_after(usage: Tensor, write_weights: Tensor, free_gates: Tensor, read_weights: Tensor) -> Tensor:
    """Return the usage of the memory's slots after a write and reads: u ← (u + w − u·w) · Π_i (1 − f_i·r_i), [B, N].

    Writing to a slot marks it as used. Reading it with an open free gate marks it as unused. Shapes: usage u and write
    weights w [B, N], free gates f [B, R], read weights r [B, R, N]. As in the released code, w gets no gradient.
    """
    written = usage + (1.0 - usage) * write_weights.detach()
    retention = (1.0 - free_gates.unsqueeze(2) * read_weights).unbind(1)
    return written * functools.reduce(torch.mul, retention)  # torch.prod's gradient would look for zeros


def allocation_weights(usage: Tensor) -> Tensor:
    """Return write weights [B, N] that prefer unused slots of the memory: a[φ_j] = (1 − u[φ_j]) · Π_{i<j} u[φ_i].
    φ sorts the slots by their usage u [B, N], the lowest first. The order gets no gradient.
    """
    free, order = torch.sort(1.0 - (_EPSILON + (1.0 - _EPSILON) * usage), dim=1, descending=True, stable=True)
    before = torch.cumprod(torch.cat([torch.ones_like(free[:, :1]), 1.0 - free[:, :-1]], 1), 1)
    return torch.zeros_like(free).scatter(1, order, free * before)


class _EraseAndAdd(torch.autograd.Function):
    """Returns the memory [B, N, W] after a write with weights w: M[i, k]·(1 − w_i·e_k) + w_i·a_k."""

    @staticmethod
    def forward(memory: Tensor, write: Tensor, erase: Tensor, add: Tensor) -> Tensor:
        weights = write.unsqueeze(2)
        return memory * (1.0 - weights * erase.unsqueeze(1)) + weights * add.unsqueeze(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        memory, write, erase, add = ctx.saved_tensors
        shares, weights = grad * memory, write.unsqueeze(1)
        d_write = torch.bmm(grad, add.unsqueeze(2)) - torch.bmm(shares, erase.unsqueeze(2))
        d_erase, d_add = -torch.bmm(weights, shares).squeeze(1), torch.bmm(weights, grad).squeeze(1)
        kept = 1.0 - write.unsqueeze(2) * erase.unsqueeze(1)
        return kept.mul_(grad), d_write.squeeze(2), d_erase, d_add


def bmm_rows(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched matrix product a·b, [B, R, M]. The result of a lane is bitwise the same in every batch."""
    rows = a.shape[1]
    # For few rows, MKL chooses instructions by their place in memory; not so (as measured) for a multiple of _ROWS.
    more = -rows % _ROWS if a.device.type == "cpu" else 0
    return torch.bmm(F.pad(a, (0, 0, 0, more)), b)[:, :rows] if more else torch.bmm(a, b)


def _norm(x: Tensor) -> Tensor:
    return ((x * x).sum(2) + _EPSILON).sqrt()


class _FollowLinks(torch.autograd.Function):
    """Updates the temporal links L [B, N, N], and follows them from the words that were read last.

    L[i, j] says how much word i was written directly after word j: L[i, j] ← (1 − w_i − w_j)·L[i, j] + w_i·p_j, for
    write weights w and the previous precedence p. L[i, i] = 0. Returns L, forward_i = Σ_j L[i, j]·r_j and backward_j =
    Σ_i L[i, j]·r_i, for the last read weights r.
    """

    @staticmethod
    def forward(link: Tensor, precedence: Tensor, write: Tensor, read: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        new = _link_scale(write).mul_(link).addcmul_(write.unsqueeze(2), precedence.unsqueeze(1))
        new.diagonal(dim1=1, dim2=2).zero_()
        return new, bmm_rows(read, new.transpose(1, 2)), bmm_rows(read, new)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, output[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, forward: Tensor, backward: Tensor) -> tuple[Tensor, ...]:
        link, precedence, write, read, new = ctx.saved_tensors
        d_read = torch.bmm(forward, new) + torch.bmm(backward, new.transpose(1, 2))
        grad = torch.baddbmm(grad, torch.cat([forward, read], 1).transpose(1, 2), torch.cat([read, backward], 1))
        grad.diagonal(dim1=1, dim2=2).zero_()
        shares = grad * link
        d_write = torch.bmm(grad, precedence.unsqueeze(2)).squeeze(2) - shares.sum(1) - shares.sum(2)
        d_precedence = torch.bmm(write.unsqueeze(1), grad).squeeze(1)
        return grad.mul_(_link_scale(write)), d_precedence, d_write, d_read


def _link_scale(write: Tensor) -> Tensor:
    return (1.0 - write.unsqueeze(2)) - write.unsqueeze(1)


# The external memory of the Differentiable Neural Computer (Graves et al. 2016): one write head, several read heads.
#
# This memory has no weights. In every access, a controller's linear layer says what to write and what to look for.


class Memory(nn.Module):
    """External memory of `slots` words of `word` numbers each.

    A controller gives `interface` numbers, which say what to write and what to look for. Each access returns `reads`
    words, which have `features` numbers together. On a CPU, the results of a row are bitwise the same in every batch.
    """

    def __init__(self, slots: int = 450, word: int = 32, reads: int = 4):
        super().__init__()
        self.slots, self.word, self.reads = slots, word, reads
        self.features = reads * word
        self._sizes = (word, word + reads + 2, 3 * reads, (1 + reads) * word, 1 + reads)
        self.interface = sum(self._sizes)

    def state_spec(self) -> Spec:
        """Return the fields of the state. In the first row of an episode, the state is 0."""
        n = self.slots
        shapes = {"memory": (n, self.word), "usage": (n,), "link": (n, n), "precedence": (n,)}
        shapes |= {"read_weights": (self.reads, n), "write_weights": (n,)}
        return {name: Field(shape, "float32") for name, shape in shapes.items()}

    def forward(self, interface: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """Write, then read the memory. Return the words read [B, features], and the next state."""
        write_vector, gates, modes, keys, strengths = interface.split(self._sizes, 1)
        erase, free, allocation_gate, write_gate = torch.sigmoid(gates).split((self.word, self.reads, 1, 1), 1)
        backward_mode, content_mode, forward_mode = (
            torch.softmax(modes.unflatten(1, (self.reads, 3)), 2).unsqueeze(3).unbind(2)
        )
        write_key, read_keys = keys.unflatten(1, (1 + self.reads, self.word)).split((1, self.reads), 1)
        write_strength, read_strengths = F.softplus(strengths).split((1, self.reads), 1)

        usage = usage_after(state["usage"], state["write_weights"], free, state["read_weights"])
        content = content_weights(state["memory"], write_key, write_strength).squeeze(1)
        write = write_gate * (allocation_gate * allocation_weights(usage) + (1.0 - allocation_gate) * content)
        memory: Tensor = _EraseAndAdd.apply(state["memory"], write, erase, write_vector)

        given = state["link"], state["precedence"], write, state["read_weights"]
        link, forward, backward = _FollowLinks.apply(*given)
        content = content_weights(memory, read_keys, read_strengths)
        read = backward_mode * backward + content_mode * content + forward_mode * forward
        after = {"memory": memory, "usage": usage, "link": link, "read_weights": read, "write_weights": write}
        after["precedence"] = (1.0 - write.sum(1, keepdim=True)) * state["precedence"] + write
        return bmm_rows(read, memory).flatten(1), after


# A recurrent core of two LSTMs: FTW's recurrent temporal hierarchy (Jaderberg et al. 2019, supplement 2).
#
# The fast LSTM runs at every step, the slow LSTM where the episode's step number is a multiple of the period τ. Between
# such ticks, the slow LSTM's state and outputs are kept.
#
#     tick:        s_t = LSTM_slow([h_{t-1}, s_{t-1}]),  prior  P_t = N(μ_p, σ_p²) from s_t
#     every step:  h_t = LSTM_fast([x_t, s_t, μ_p, σ_p, h_{t-1}, z_{t-1}]),  posterior  Q_t = N(μ_q, σ_q²) from h_t
#                  z_t = μ_q + σ_q·ε_t,  ε_t ~ N(0, 1): the input of the heads
#
# σ = 0.1·softplus(·)/softplus(0) + 1e-6. Shapes: R rows of B lanes; x [B, inputs], all else [B, size].


SCALE, LEAST = 0.1, 1e-6  # initial and least standard deviation
LINKS = 2**28  # most numbers in link matrices that an unroll keeps at once for gradients
FIXED = 0.1  # standard deviation of the fixed distribution that a loss draws the prior toward


class Latent(NamedTuple):
    """Means and scales of z's posterior and prior, [R, B, size] each. ticks: true where the slow LSTM ran, [R, B]."""

    mean: Tensor
    scale: Tensor
    prior_mean: Tensor
    prior_scale: Tensor
    ticks: Tensor


class Temporal(nn.Module):
    """Recurrent core of a fast and a slow LSTM (see the equations in the comment above).

    Each row has `noise` standard normal numbers per lane, so acting and learning draw the same z. With a `memory`, both
    LSTMs write to it, and take the words that they read in their previous step.
    """

    period: Tensor
    gradient_scale: Tensor

    def __init__(self, inputs: int, size: int, init: str = "orthogonal", memory: Memory | None = None):
        super().__init__()
        self.inputs, self.features, self.noise, self.memory = inputs, size, size, memory
        self.rows = axis("gates", 4, size, fixed=True)
        self.register_buffer("period", torch.tensor(10.0))  # τ: number of steps from one tick to the next
        self.register_buffer("gradient_scale", torch.tensor(1.0))  # factor of gradients from the fast to the slow LSTM
        reads = 0 if memory is None else memory.features
        self.input = Linear(inputs, 4 * size)
        self.fast = RepeatedLinear(2 * size + reads, 4 * size, bias=False)
        self.slow = RepeatedLinear(2 * size + reads, 4 * size)
        self.down = RepeatedLinear(3 * size + reads, 4 * size, bias=False)  # from the slow to the fast LSTM
        self.prior = RepeatedLinear(size + reads, 2 * size)
        self.posterior = RepeatedLinear(size + reads, 2 * size)
        initialize(self, init, gain=1.0)
        initialize(self.prior, init, 0.1)
        if memory is not None:
            self.fast_interface = RepeatedLinear(size, memory.interface)
            self.slow_interface = RepeatedLinear(size, memory.interface)
        with torch.no_grad():  # to remember at first, as in Core
            for bias in (self.input.bias, self.slow.bias):
                bias[size : 2 * size] += 1.0

    def apply_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Set `period` and `gradient_scale` if they are in `values`."""
        for name in ("period", "gradient_scale"):
            if name in values:
                self.get_buffer(name).fill_(values[name])

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
        context: contextlib.AbstractContextManager[object] = contextlib.nullcontext(),
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Batch, Latent]:
        """See Core.unroll. Returns z, the state and a Latent. noise: ε [R, B, size]. None: z is its mean."""
        with context:
            gates = self.input(x.flatten(0, 1))
        gates = gates.view(*first.shape, -1).float()
        rows, now = len(first), {k: state[k] for k in self.state_spec()}
        counts = _counted(now.pop("count"), first)
        ticks = counts[:-1] % self.period.long() == 0
        given = (gates, first, ticks, *(() if noise is None else (noise,)))
        every = self._rows_at_once(*first.shape)
        found = []
        for part in zip(*(x.split(every) for x in given), strict=True):
            again = partial(checkpoint, self._rows, use_reentrant=False, preserve_rng_state=False)  # no random draw
            run = self._rows if every >= rows else again
            now, *shown = run(now, *part)
            found.append(shown)
        z, mean, scale, *prior = (torch.cat(x) for x in zip(*found, strict=True))
        return z, now | {"count": counts[-1]}, Latent(mean, scale, prior[0], prior[1], ticks)

    def _rows_at_once(self, rows: int, lanes: int) -> int:
        """Return the number of rows per gradient checkpoint, which limits the memory that backward needs."""
        if self.memory is None or tracing() or not torch.is_grad_enabled():
            return rows
        return max(1, LINKS // (2 * lanes * self.memory.slots**2))

    def _rows(
        self, now: Batch, gates: Tensor, first: Tensor, ticks: Tensor, noise: Tensor | None = None
    ) -> tuple[Any, ...]:
        """Unroll rows. Return the state after the last row, and z, the posterior and the prior of all rows."""
        traced, found = tracing(), []
        begins, lanes = [True] * len(first), [1] * len(first)  # a tracer can't read a tensor's values
        if not traced:
            begins, lanes = first.any(1).tolist(), ticks.sum(1).tolist()
        with contextlib.ExitStack() as stack:
            for layer in self.modules() if not traced else ():
                if isinstance(layer, RepeatedLinear):
                    stack.enter_context(layer.repeated())
            for t, gate in enumerate(gates.unbind(0)):
                now = _zeroed(now, first[t]) if begins[t] else now
                if lanes[t]:
                    at = ticks[t] if traced else None if lanes[t] == first.shape[1] else ticks[t].nonzero().squeeze(1)
                    now = self._tick(now, at)
                now, mean, scale = self._step(now, gate)
                now["z"] = mean if noise is None else mean + scale * noise[t]
                found.append((now["z"], mean, scale, now["prior_mean"], now["prior_scale"]))
        return now, *(torch.stack(x) for x in zip(*found, strict=True))

    def _tick(self, now: Batch, at: Tensor | None) -> Batch:
        """Step the slow LSTM. at: int64 numbers of the lanes to step, a bool mask [B], or None for all lanes."""
        some = at is not None and at.dtype != torch.bool
        old = tree.map(lambda x: x[at], now) if some else now
        reads = () if self.memory is None else (old["slow_reads"],)
        new, gates = {}, self.slow(torch.cat([old["h"], old["slow_h"], *reads], 1))
        new["slow_h"], new["slow_c"] = lstm_step(gates, old["slow_c"])
        shown = [new["slow_h"]]
        if self.memory is not None:
            new["slow_reads"], new["memory"] = self.memory(self.slow_interface(new["slow_h"]), old["memory"])
            shown.append(new["slow_reads"])
        new["prior_mean"], new["prior_scale"] = _normal(self.prior(torch.cat(shown, 1)))
        shown += [new["prior_mean"], new["prior_scale"]]
        new["held"] = self.down(_ScaledGradient.apply(torch.cat(shown, 1), self.gradient_scale))
        if at is None:
            return now | new
        put = _copied if some else _selected
        return now | {k: tree.map(partial(put, at), now[k], v) for k, v in new.items()}

    def _step(self, now: Batch, gates: Tensor) -> tuple[Batch, Tensor, Tensor]:
        """Step the fast LSTM. Return the state, in which z is still the old one, and the posterior's mean and scale."""
        reads = () if self.memory is None else (now["reads"],)
        gates = gates + now["held"] + self.fast(torch.cat([now["h"], now["z"], *reads], 1))
        new = dict(now)
        new["h"], new["c"] = lstm_step(gates, now["c"])
        shown = [new["h"]]
        if self.memory is not None:
            new["reads"], new["memory"] = self.memory(self.fast_interface(new["h"]), now["memory"])
            shown.append(new["reads"])
        return new, *_normal(self.posterior(torch.cat(shown, 1)))


def kl_terms(latent: Latent) -> Batch:
    """Return the KL divergences that losses use, [R, B] each, in nats.

    "kl_posterior": KL(Q ‖ P) at every step.
    "kl_prior": KL(P ‖ N(0, 0.1²)) at the steps of the slow LSTM, else 0.
    For diagonal normal distributions, KL is the sum over z of ln(σ₂/σ₁) + (σ₁² + (μ₁ − μ₂)²)/(2σ₂²) − ½.
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
    """Returns x, but multiplies the gradient by `scale`."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


def _counted(count: Tensor, first: Tensor) -> Tensor:
    """Return each row's step number in its episode, and that of the next row, int64 [R+1, B].
    count: step number [B] of the first row, if it does not begin an episode.
    """
    rows = torch.arange(len(first) + 1, device=first.device).unsqueeze(1)
    begun = torch.where(first, rows[:-1], -1).cummax(0).values  # row where the episode begins; -1: before row 0
    begun = torch.cat([begun, begun[-1:]])
    return torch.where(begun < 0, count + rows, rows - begun)


def _copied(at: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return old.index_copy(0, at, new)


def _selected(where: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return torch.where(where.view(-1, *[1] * (old.dim() - 1)), new, old)


def _zeroed(state: Batch, first: Tensor) -> Batch:
    """Return the state, set to 0 in lanes where `first` is True, because an episode begins there."""
    return tree.map(lambda x: x.masked_fill(first.view(-1, *[1] * (x.dim() - 1)), 0.0), state)


CELLS = {"lstm": LSTMCell, "gru": GRUCell}


def make_core(name: str, inputs: int, size: int, init: str = "orthogonal", memory: int = 0) -> Core | Temporal | None:
    """Make the recurrent core called `name`: an LSTM, a GRU, or the temporal core. For "none", return None. memory:
    number of words of the temporal core's memory, or 0 for no memory.
    """
    if name == "temporal":
        return Temporal(inputs, size, init, Memory(memory) if memory else None)
    return None if name == "none" else Core(CELLS[name](size), inputs, init)
