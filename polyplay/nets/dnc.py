"""The differentiable neural computer's memory.

Along which order a differentiable memory was written: its temporal links, over many accesses.

They are most of its state, and of what an access computes. Learning keeps every tenth of these matrices, and computes
those between anew when it goes back. From the next one it couldn't: where a write's weight is 1, links are forgotten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyplay.core.tree import Batch, Field, Spec

# How a differentiable memory is written, and addressed by content and by free space; by order: see temporal_links.
#
# Graves et al. 2016, "Hybrid computing using a neural network with dynamic external memory", as deepmind/dnc has it.
# B lanes, N slots of W numbers, R read heads, one write head. Weights over slots are ≥ 0 and sum to 1 at most.


_EPSILON = 1e-6
_TILE = 4  # rows that a small product must have a multiple of, see `bmm_rows`


def content_weights(memory: Tensor, keys: Tensor, strengths: Tensor) -> Tensor:
    """softmax over slots of strength · cosine(key, word): [B, N, W], [B, R, W], [B, R] → [B, R, N]."""
    norms = _norm(keys).unsqueeze(2) * _norm(memory).unsqueeze(1)
    similarity = bmm_rows(keys, memory.transpose(1, 2)) / (norms + _EPSILON)
    return torch.softmax(similarity * strengths.unsqueeze(2), 2)


def usage_after(usage: Tensor, write_weights: Tensor, free_gates: Tensor, read_weights: Tensor) -> Tensor:
    """u = (u + w − u·w) · Π_i (1 − f_i·r_i): what the last access wrote is used, but for what it read
    and is freed. [B, N], [B, N], [B, R], [B, R, N] → [B, N]; no gradient to what was written, as released.
    """
    written = usage + (1.0 - usage) * write_weights.detach()
    retention = (1.0 - free_gates.unsqueeze(2) * read_weights).unbind(1)
    return written * functools.reduce(torch.mul, retention)  # prod's gradient looks for zeros


def allocation_weights(usage: Tensor) -> Tensor:
    """a[φ_j] = (1 − u[φ_j]) · Π_{i<j} u[φ_i], slots φ in rising order of usage, the first of equals first: [B, N] →
    [B, N]. Gradients flow through the sorted usage, not through the order.
    """
    free, order = torch.sort(1.0 - (_EPSILON + (1.0 - _EPSILON) * usage), dim=1, descending=True, stable=True)
    before = torch.cumprod(torch.cat([torch.ones_like(free[:, :1]), 1.0 - free[:, :-1]], 1), 1)
    return torch.zeros_like(free).scatter(1, order, free * before)


class _EraseAndAdd(torch.autograd.Function):
    """M[i, k] · (1 − w_i·e_k) + w_i·a_k: [B, N, W], [B, N], [B, W], [B, W] → [B, N, W]. It saves its inputs."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, write: Tensor, erase: Tensor, add: Tensor) -> Tensor:
        ctx.save_for_backward(memory, write, erase, add)
        weights = write.unsqueeze(2)
        return memory * (1.0 - weights * erase.unsqueeze(1)) + weights * add.unsqueeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        memory, write, erase, add = ctx.saved_tensors
        shares, weights = grad * memory, write.unsqueeze(1)
        d_write = torch.bmm(grad, add.unsqueeze(2)) - torch.bmm(shares, erase.unsqueeze(2))
        d_erase, d_add = -torch.bmm(weights, shares).squeeze(1), torch.bmm(weights, grad).squeeze(1)
        kept = 1.0 - write.unsqueeze(2) * erase.unsqueeze(1)
        return kept.mul_(grad), d_write.squeeze(2), d_erase, d_add


def precedence_after(precedence: Tensor, write_weights: Tensor) -> Tensor:
    """p = (1 − Σ w)·p + w, how much each slot was the last one written: [B, N], [B, N] → [B, N]."""
    return (1.0 - write_weights.sum(1, keepdim=True)) * precedence + write_weights


def bmm_rows(a: Tensor, b: Tensor) -> Tensor:
    """a·b lane by lane, [B, R, K], [B, K, M] → [B, R, M], each lane to the bit what it would be in any other batch.

    On a CPU, BLAS computes products of few rows with instructions that depend on where in memory they lie. Whole
    tiles of rows it doesn't: measured with MKL, not promised by it.
    """
    rows = a.shape[1]
    more = -rows % _TILE if a.device.type == "cpu" else 0
    return torch.bmm(F.pad(a, (0, 0, 0, more)), b)[:, :rows] if more else torch.bmm(a, b)


def _norm(x: Tensor) -> Tensor:
    return ((x * x).sum(2) + _EPSILON).sqrt()


EVERY = 10  # writes to all lanes from one matrix that is kept to the next
_AT_ONCE = 2**18  # numbers of matrices computed at once on a CPU, whose cache has room for a few times as many


class TemporalLinks:
    """The link matrices of an unroll, from `link` [B, N, N] on, which is never written to.

    L[i, j] = (1 − w_i − w_j)·L[i, j] + w_i·p_j, L[i, i] = 0: how much i was written right after j. p is the
    precedence before this write. forward_i = Σ_j L[i, j]·r_j, backward_j = Σ_i L[i, j]·r_i, r what was read last.
    Graves et al. 2016, as deepmind/dnc has it.
    """

    def __init__(self, link: Tensor):
        self._tape = _Tape(link.detach(), torch.is_grad_enabled())
        self._link = link  # what autograd sees of the newest: its shape alone, once something was written

    def read_links(
        self, precedence: Tensor, write_weights: Tensor, read_weights: Tensor, lanes: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """forward and backward [B, R, N]; the links are then those behind this write.

        precedence, write_weights: [B, N]; read_weights: [B, R, N]. lanes: int64 [B'], those that all else is of, each
        once.
        """
        given = self._link, precedence, write_weights, read_weights
        self._link, forward, backward = _Follow.apply(self._tape, lanes, *given)
        return forward, backward

    def clear(self, lanes: Tensor) -> None:
        """No links from here on where this is True, bool [B]."""
        self._tape.write(_Write(lanes.nonzero().squeeze(1)))
        if self._link.requires_grad:
            self._link = self._link.masked_fill(lanes.view(-1, 1, 1), 0.0)

    def end(self) -> Tensor:
        """The newest link matrices. Nothing is to be written from here on."""
        link: Tensor = _End.apply(self._link, self._tape.link)
        return link


class _Write(NamedTuple):
    lanes: Tensor | None  # None: all
    precedence: Tensor | None = None  # None: these lanes are cleared
    weights: Tensor | None = None


class _Tape:
    """The newest links, and, if `keeping`, segments of what was written. It has no part in autograd's graph."""

    def __init__(self, link: Tensor, keeping: bool):
        self.link, self.keeping = link, keeping
        self.segments: list[_Segment] = []
        self._ours = False  # whether `link` may be written to

    def write(self, write: _Write, read: Tensor | None = None) -> tuple[Tensor, ...]:
        """forward and backward, if there is something to read."""
        if self.keeping:
            if not self.segments or self.segments[-1].written >= EVERY * len(self.link):
                self.segments.append(_Segment(self.link))
                self._ours = False
            self.segments[-1].add(write)
        self.link, ways = _written(self.link, write, self._ours, read)
        self._ours = True
        return ways


class _Segment:
    """Writes, and the links before the first of them, from which the rest is computed where it is needed again."""

    def __init__(self, link: Tensor):
        self.link, self.written = link, 0
        self.writes: list[_Write] = []
        self._before: list[Tensor] = []  # of some first writes, the links before each, of its lanes
        self._behind = link  # the last one of these

    def add(self, write: _Write) -> None:
        self.writes.append(write)
        self.written += len(self.link if write.lanes is None else write.lanes)

    def undo(self, i: int) -> tuple[Tensor, Tensor]:
        """The links before and behind write i, of its lanes. Cheap from the last write to the first."""
        if i >= len(self._before):
            self._replay(i)
        while len(self._before) > i + 1:
            self._back()
        return self._back()

    def _replay(self, i: int) -> None:
        self._before, self._behind = [], self.link
        for j, write in enumerate(self.writes[: i + 1]):
            self._before.append(self._behind if write.lanes is None else self._behind[write.lanes])
            self._behind, _ = _written(self._behind, write, j > 0 and write.lanes is not None)

    def _back(self) -> tuple[Tensor, Tensor]:
        before, lanes = self._before.pop(), self.writes[len(self._before)].lanes
        behind = self._behind if lanes is None else self._behind[lanes]
        self._behind = before if lanes is None else self._behind.index_copy_(0, lanes, before)
        self._behind = self._behind if self._before else self.link
        return before, behind


def _written(link: Tensor, write: _Write, ours: bool, read: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The links behind a write, in the same memory if that is ours, and forward and backward."""
    if write.lanes is None:
        new = link if ours else torch.empty_like(link, memory_format=torch.contiguous_format)
        return new, _write_links(link, write, read, new)
    new = link if ours else link.clone()
    if write.weights is None:
        return new.index_fill_(0, write.lanes, 0.0), ()
    some = link[write.lanes]
    ways = _write_links(some, write, read, some)
    return new.index_copy_(0, write.lanes, some), ways


def _write_links(link: Tensor, write: _Write, read: Tensor | None, out: Tensor) -> tuple[Tensor, ...]:
    """Writes the links behind a write to `out`, which may be `link`."""
    _, precedence, weights = write
    assert precedence is not None
    assert weights is not None
    ways = []
    for at in _parts(link):
        new, w = out[at], weights[at]
        torch.mul(_scale(w), link[at], out=new).addcmul_(w.unsqueeze(2), precedence[at].unsqueeze(1))
        new.diagonal(dim1=1, dim2=2).zero_()
        if read is not None:
            ways.append((bmm_rows(read[at], new.transpose(1, 2)), bmm_rows(read[at], new)))
    return tuple(torch.cat(parts) for parts in zip(*ways, strict=True))


class _Follow(torch.autograd.Function):
    """What it gives and takes for the link matrix has its shape and no numbers of its own; its gradient has all. That
    comes from the next `_Follow` or from `_End`, nobody else has it, and so it is written to: that of the links behind
    becomes that of those before.

    G += forward'⊗r + r⊗backward', G[i, i] = 0; p' = Gᵀ·w; w' = G·p − Σ_j (G∘L)[·, j] − Σ_i (G∘L)[i, ·];
    r' = forward'·L_new + backward'·L_newᵀ; G = (1 − w_i − w_j)·G.
    """

    @staticmethod
    def forward(
        ctx: Any, tape: _Tape, lanes: Tensor | None, link: Tensor, precedence: Tensor, write: Tensor, read: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(precedence, write, read)
        ways = tape.write(_Write(lanes, precedence.detach(), write.detach()), read)
        if tape.keeping:
            ctx.segment, ctx.write = tape.segments[-1], len(tape.segments[-1].writes) - 1
        ctx.lanes, ctx.shape = lanes, link.shape
        return link.new_zeros(()).expand(link.shape), *ways

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *ways: Tensor | None) -> tuple[Tensor | None, ...]:
        precedence, write, read = ctx.saved_tensors
        before, behind = ctx.segment.undo(ctx.write)
        grad = read.new_zeros(ctx.shape) if grad is None else grad
        forward, backward = (torch.zeros_like(read) if x is None else x for x in ways)
        some, found = grad if ctx.lanes is None else grad[ctx.lanes], []
        for at in _parts(some):
            g, w, r, f, b = some[at], write[at], read[at], forward[at], backward[at]
            d_read = torch.bmm(f, behind[at]) + torch.bmm(b, behind[at].transpose(1, 2))
            g.baddbmm_(torch.cat([f, r], 1).transpose(1, 2), torch.cat([r, b], 1))
            g.diagonal(dim1=1, dim2=2).zero_()
            shares = g * before[at]
            d_write = torch.bmm(g, precedence[at].unsqueeze(2)).squeeze(2) - shares.sum(1) - shares.sum(2)
            found.append((torch.bmm(w.unsqueeze(1), g).squeeze(1), d_write, d_read))
            g.mul_(_scale(w))
        link = grad if ctx.lanes is None else grad.index_copy_(0, ctx.lanes, some)
        return None, None, link, *(torch.cat(parts) for parts in zip(*found, strict=True))


class _End(torch.autograd.Function):
    """The numbers of `link` in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, link: Tensor) -> Tensor:
        return link.view_as(link)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.clone(), None


def _parts(link: Tensor) -> Iterator[slice]:
    """Lanes that are computed at once."""
    lanes = len(link)
    some = max(1, _AT_ONCE // max(1, link[0].numel())) if lanes and link.device.type == "cpu" else max(1, lanes)
    for at in range(0, max(1, lanes), some):
        yield slice(at, at + some)


def _scale(write_weights: Tensor) -> Tensor:
    """1 − w_i − w_j [B, N, N]."""
    return (1.0 - write_weights.unsqueeze(2)) - write_weights.unsqueeze(1)


# The external memory of the Differentiable Neural Computer (Graves et al. 2016): one write head, several read heads.
#
# It has no parameters. A linear layer of some controller says what to write and what to look for, anew in every access.


Follow = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # TemporalLinks.read_links, of all lanes or some


class Memory(nn.Module):
    """`slots` words of `word` numbers. An access takes `interface` numbers and gives `features`, `reads` words.

    On a CPU a row's results are to the bit what they would be in any other batch.
    """

    def __init__(self, slots: int = 450, word: int = 32, reads: int = 4):
        super().__init__()
        self.slots, self.word, self.reads = slots, word, reads
        self.features = reads * word
        self._sizes = (word, word + reads + 2, 3 * reads, (1 + reads) * word, 1 + reads)
        self.interface = sum(self._sizes)

    def state_spec(self) -> Spec:
        """All zero where an episode begins."""
        n = self.slots
        shapes = {"memory": (n, self.word), "usage": (n,), "link": (n, n), "precedence": (n,)}
        shapes |= {"read_weights": (self.reads, n), "write_weights": (n,)}
        return {name: Field(shape, "float32") for name, shape in shapes.items()}

    def forward(self, interface: Tensor, state: Batch, follow: Follow) -> tuple[Tensor, Batch]:
        """One access, writing before it reads: [B, interface], the state without links → words [B, features], the state
        behind. follow: what the links of many accesses are followed by.
        """
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

        forward, backward = follow(state["precedence"], write, state["read_weights"])
        content = content_weights(memory, read_keys, read_strengths)
        read = backward_mode * backward + content_mode * content + forward_mode * forward
        after = {"memory": memory, "usage": usage, "read_weights": read, "write_weights": write}
        after["precedence"] = precedence_after(state["precedence"], write)
        return bmm_rows(read, memory).flatten(1), after
