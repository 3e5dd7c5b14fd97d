"""Links along the order of writing: their invariants, and that learning from many accesses, of all lanes or some, is
that of plain operations, while few matrices are held.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyplay.nets.dnc import EVERY, TemporalLinks, follow_links, precedence_after
from tests.nets.test_addressing import LANES, QUICK, READS, SEEDS, SLOTS, are_weights, one_hot, weights


class PlainLinks:
    """As TemporalLinks, by plain operations on one lane after the other, from which autograd keeps all."""

    def __init__(self, link: Tensor):
        self.links = list(link.unbind())

    def follow(
        self, precedence: Tensor, write_weights: Tensor, read_weights: Tensor, lanes: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        ahead, back = [], []
        others = 1.0 - torch.eye(precedence.shape[1], dtype=precedence.dtype)
        for k, b in enumerate(range(len(self.links)) if lanes is None else lanes.tolist()):
            w = write_weights[k]
            kept = (1.0 - w[:, None] - w[None, :]) * self.links[b]
            self.links[b] = (kept + torch.outer(w, precedence[k])) * others
            ahead.append(read_weights[k] @ self.links[b].T)
            back.append(read_weights[k] @ self.links[b])
        return torch.stack(ahead), torch.stack(back)

    def clear(self, lanes: Tensor) -> None:
        self.links = [x * 0.0 if gone else x for x, gone in zip(self.links, lanes.tolist(), strict=True)]

    def end(self) -> Tensor:
        return torch.stack(self.links)


class Access(NamedTuple):
    cleared: Tensor | None
    lanes: Tensor | None
    numbers: tuple[Tensor, Tensor, Tensor]


def accesses(n: int, lanes: int, slots: int, reads: int, chance: float) -> list[Access]:
    """Random ones, some lanes cleared before them, or only some in them, by chance."""
    made = []
    for _ in range(n):
        some = (torch.rand(lanes) < 0.5).nonzero().squeeze(1) if torch.rand(()) < chance else None
        cleared = torch.rand(lanes) < 0.4 if torch.rand(()) < chance / 2 else None
        k = lanes if some is None else len(some)
        if k:
            made.append(Access(cleared, some, (weights(k, slots), weights(k, slots), weights(k, reads, slots))))
    return made


def play(links: TemporalLinks | PlainLinks, said: list[Access]) -> list[Tensor]:
    """Both ways of every access. As in a memory, what is read decides what is read and written next."""
    found: list[Tensor] = []
    for cleared, lanes, (precedence, write, read) in said:
        if cleared is not None:
            links.clear(cleared)
        last = found[-1].mean() if found else 0.0
        found += links.follow(precedence, write * (1.0 - 0.1 * last), read + 0.1 * last, lanes)
    return found


def losses(links: TemporalLinks | PlainLinks, said: list[Access], ended: bool) -> Tensor:
    """Of weights that differ from one to the next."""
    found = play(links, said)
    found += [links.end()] if ended else []
    return sum((torch.sin(i + torch.arange(x.numel())) * x.flatten()).sum() for i, x in enumerate(found))


@settings(QUICK, max_examples=20)
@given(SEEDS, LANES, SLOTS, READS, st.integers(1, 2 * EVERY + 5), st.sampled_from([0.0, 0.6]), st.booleans())
def test_numbers_and_gradients_are_those_of_plain_operations(seed, lanes, slots, reads, n, chance, ended):
    torch.manual_seed(seed)
    said, link = accesses(n, lanes, slots, reads, chance), torch.rand(lanes, slots, slots).double() / slots
    if not said:
        return
    for ours, plain in zip(play(TemporalLinks(link), said), play(PlainLinks(link), said), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    inputs = [x.requires_grad_() for x in (link, *(x for access in said for x in access.numbers))]
    found = [torch.autograd.grad(losses(kind(link), said, ended), inputs) for kind in (TemporalLinks, PlainLinks)]
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-10)


def test_gradients_in_single_precision():
    torch.manual_seed(0)
    said = [
        Access(cleared, lanes, tuple(x.float() for x in numbers))
        for cleared, lanes, numbers in accesses(40, 3, 50, 2, 0.5)
    ]
    link, inputs = torch.zeros(3, 50, 50), [x.requires_grad_() for access in said for x in access.numbers]
    found = [torch.autograd.grad(losses(kind(link), said, True), inputs) for kind in (TemporalLinks, PlainLinks)]
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def test_gradients_can_be_asked_for_again_and_in_parts():
    torch.manual_seed(1)
    said, link = accesses(25, 2, 4, 2, 0.5), torch.rand(2, 4, 4).double()
    inputs = [x.requires_grad_() for access in said for x in access.numbers]
    found = play(TemporalLinks(link), said)
    last, middle = found[-1].sum(), found[len(found) // 2].sum()
    plain = play(PlainLinks(link), said)
    for loss, other in ((middle, plain[len(found) // 2].sum()), (last, plain[-1].sum()), (last, plain[-1].sum())):
        for late in (inputs[len(inputs) // 3 :], inputs):
            ours, theirs = (
                torch.autograd.grad(x, late, retain_graph=True, allow_unused=True, materialize_grads=True)
                for x in (loss, other)
            )
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def matrices(shape: tuple[int, ...]) -> int:
    """Of this shape that are in memory."""
    found = (x for x in gc.get_objects() if issubclass(type(x), Tensor) and x.shape == shape)
    return len({x.untyped_storage().data_ptr() for x in found if x.untyped_storage().nbytes() >= x.nbytes})


def unrolled(n: int, shape: tuple[int, int, int]) -> Iterator[int]:
    """How many matrices there are after n accesses, then while three of them are undone."""
    lanes, slots, _ = shape
    links, going_back, total = TemporalLinks(torch.zeros(shape)), [], torch.zeros(())
    for i in range(n):
        write = weights(lanes, slots).float().requires_grad_()
        if i in (0, EVERY - 1, n - 1):
            write.register_hook(lambda _: going_back.append(matrices(shape)))
        ahead, _ = links.follow(weights(lanes, slots).float(), write, weights(lanes, 2, slots).float())
        total = total + ahead.square().sum()
    yield matrices(shape)
    total.backward()
    yield from going_back


def test_learning_holds_few_matrices():
    n = 4 * EVERY + 3
    behind, *going_back = unrolled(n, (2, 61, 61))
    assert behind == 1 + 5  # the newest, and those kept
    assert max(going_back) == 1 + 5 + (EVERY - 1) + 1  # those between two of them, and the gradient
    assert max(going_back) < n / 2


def test_acting_holds_the_newest_alone_and_lets_the_first_be():
    link, shape = torch.rand(2, 59, 59), (2, 59, 59)
    given_ = link.clone()
    with torch.no_grad():
        links = TemporalLinks(link)
        for _ in range(EVERY + 2):
            links.follow(weights(2, 59).float(), weights(2, 59).float(), weights(2, 2, 59).float())
            links.clear(torch.tensor([True, False]))
        assert torch.equal(link, given_)
        del given_
        assert matrices(shape) == 2
        assert not links.end()[0].any()


def test_what_was_kept_goes_with_the_graph():
    """Without the garbage collector."""
    links = TemporalLinks(torch.zeros(1, 5, 5))
    write = weights(1, 5).float().requires_grad_()
    found = [links.follow(write.detach(), write, weights(1, 2, 5).float())[0] for _ in range(EVERY + 2)]
    kept = [weakref.ref(segment) for segment in links._tape.segments]
    gc.disable()
    try:
        del links
        assert all(ref() is not None for ref in kept)
        del found
        assert all(ref() is None for ref in kept)
    finally:
        gc.enable()


@QUICK
@given(SEEDS, LANES, SLOTS, READS, st.integers(1, 8))
def test_links_and_precedence_stay_in_bounds(seed, lanes, slots, reads, writes):
    torch.manual_seed(seed)
    link, precedence = torch.zeros(lanes, slots, slots).double(), torch.zeros(lanes, slots).double()
    for _ in range(writes):
        write, read = weights(lanes, slots), weights(lanes, reads, slots)
        link, forward, backward = follow_links(link, precedence, write, read)
        precedence = precedence_after(precedence, write)
        assert are_weights(link)
        assert are_weights(link.transpose(1, 2))
        assert are_weights(precedence)
        assert are_weights(forward)
        assert are_weights(backward)
        assert (link.diagonal(dim1=1, dim2=2) == 0).all()


@QUICK
@given(st.permutations(range(7)), st.integers(2, 7))
def test_links_lead_along_the_order_of_writing(order, writes):
    """One-hot writes: forward from each slot is the one written next, backward the one before, nothing at the ends."""
    order = order[:writes]
    link, precedence = torch.zeros(1, 7, 7).double(), torch.zeros(1, 7).double()
    for slot in order:
        link = follow_links(link, precedence, one_hot(7, slot), torch.zeros(1, 1, 7).double())[0]
        precedence = precedence_after(precedence, one_hot(7, slot))
    idle = torch.zeros(1, 7).double()
    same, forward, backward = follow_links(link, precedence, idle, one_hot(7, *order).unsqueeze(0))
    assert torch.equal(same, link)
    assert torch.equal(forward[0, :-1], one_hot(7, *order[1:]))
    assert torch.equal(backward[0, 1:], one_hot(7, *order[:-1]))
    assert not forward[0, -1].any()
    assert not backward[0, 0].any()


@pytest.mark.parametrize(("slots", "reads"), [(1, 1), (4, 2), (5, 3)])
def test_links_gradients(slots, reads):
    link = torch.rand(2, slots, slots).double() * (1 - torch.eye(slots)) / slots
    given_ = (link, weights(2, slots), weights(2, slots), weights(2, reads, slots))
    assert torch.autograd.gradcheck(follow_links, [x.requires_grad_() for x in given_])


@pytest.mark.parametrize(
    ("slots", "of_write", "of_read"),
    [((5, 5), (2, 5), (2, 3, 4)), ((5, 4), (2, 5), (2, 3, 5)), ((5, 5), (1, 5), (1, 3, 5))],
)
def test_shapes_of_links_are_checked(slots, of_write, of_read):
    with pytest.raises(ValueError, match=r"shapes must be .*; got \["):
        follow_links(torch.zeros(2, *slots), *(torch.zeros(s) for s in (of_write, of_write, of_read)))
