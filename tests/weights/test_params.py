"""One vector, versioned, no torn reads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.errors import Closed, UserError
from polyplay.weights.params import FlatParams, Params


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def test_a_bound_module_learns_the_same_to_the_bit():
    plain, bound = _net(), _net()
    vector = FlatParams(bound)
    a = torch.optim.Adam(plain.parameters(), lr=1e-2, foreach=False)
    b = torch.optim.Adam([vector.parameter], lr=1e-2, foreach=False)
    x = torch.randn(16, 4)
    for _ in range(5):
        a.zero_grad()
        plain(x).square().mean().backward()
        a.step()
        vector.zero_grad()
        bound(x).square().mean().backward()
        b.step()
    for p, q in zip(plain.state_dict().values(), bound.state_dict().values(), strict=True):
        assert torch.equal(p, q)


def test_the_vector_carries_floating_buffers_and_survives_load_state_dict():
    net = _net()
    vector = FlatParams(net)
    assert vector.size == vector.weights + 16  # BatchNorm's running mean and variance
    net(torch.randn(32, 4) + 3.0)
    assert vector.flat[vector.weights :].abs().sum() > 0
    net.load_state_dict({k: torch.full_like(v, 2) for k, v in net.state_dict().items()})
    assert bool((vector.flat == 2).all())


def test_other_dtypes_are_refused_by_name():
    with pytest.raises(UserError, match=r"0\.weight is torch\.float64"):
        FlatParams(nn.Sequential(nn.Linear(2, 2).double()))


def test_publish_and_pull_with_versions():
    one, two = FlatParams(_net()), FlatParams(_net())
    params = Params(one.size)
    with pytest.raises(RuntimeError, match="nothing was published"):
        params.pull(two)
    one.flat.fill_(3.0)
    params.publish(one, version=7, round=0)
    assert params.pull(two, have=-1) == 7
    assert bool((two.flat == 3).all())
    two.flat.fill_(0.0)
    assert params.pull(two, have=7) == 7
    assert bool((two.flat == 0).all())  # it had them: nothing was copied


def test_readers_never_see_a_torn_copy():
    writer = FlatParams(nn.Linear(300, 300))
    params, stop, torn = Params(writer.size, readers=2), threading.Event(), []
    writer.flat.fill_(0.0)
    params.publish(writer, 0, 0)

    def read() -> None:
        mine, held = FlatParams(nn.Linear(300, 300)), -1
        while not stop.is_set():
            held = params.pull(mine, held)
            low, high = float(mine.flat.min()), float(mine.flat.max())
            if low != high or low != held:
                torn.append((low, high, held))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for t in threads:
        t.start()
    for version in range(1, 600):
        writer.flat.fill_(float(version))
        params.publish(writer, version, version)
    stop.set()
    for t in threads:
        t.join()
    assert torn == []


def test_waiting_for_a_round_wakes_up_and_can_be_told_to_stop():
    vector = FlatParams(_net())
    params = Params(vector.size, readers=2)
    assert not params.wait(0, reader=0, timeout=0.01)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(params.wait(3, reader=1, timeout=100)))
    thread.start()
    for i in range(4):
        params.publish(vector, i, i)
    thread.join()
    assert seen == [True]
    params.close()
    with pytest.raises(Closed):
        params.wait(9, reader=0, timeout=100)
    with pytest.raises(Closed):
        params.pull(vector)
    assert np.isfinite(vector.read()).all()


class Bell:
    """Rings at once; something happens meanwhile."""

    def __init__(self, *happens):
        self.happens, self.left = list(happens), []

    def wait(self, timeout: float) -> bool:
        self.left.append(timeout)
        self.happens.pop(0)()
        return True

    def post(self) -> None:
        pass


def test_an_earlier_round_does_not_end_the_wait_for_a_later_one():
    vector = FlatParams(_net())
    params = Params(vector.size)
    bell = params._bells._all[0] = Bell(*(lambda i=i: params.publish(vector, i, i) for i in range(3)))
    assert params.wait(2, reader=0, timeout=100)
    assert bell.left == sorted(bell.left, reverse=True)
    assert len(bell.left) == 3
    bell.happens = [lambda: None, params.close]
    with pytest.raises(Closed):
        params.wait(3, reader=0, timeout=100)
    assert len(bell.left) == 5


def test_readers_that_all_wait_go_on_with_the_weights_that_stay():
    vector = FlatParams(_net())
    params, waited = Params(vector.size, readers=2), list[bool]()
    params.publish(vector, 7, 0)

    def stay() -> None:
        waited.extend([params.waits(slice(0, 1)), params.waits(slice(0, 2))])
        params.stay(slice(0, 1), np.array([3]))

    params._bells._all[0] = Bell(stay)
    assert params.wait(0, reader=0, timeout=100, learnt=3)
    assert waited == [True, False]
    assert not params.wait(0, reader=1, timeout=0.0, learnt=3)
    assert params.version == 7


def test_tokens_of_before_do_not_shorten_the_wait():
    params = Params(8)
    params._bells[0].post(5)
    before = time.monotonic()
    assert not params.wait(0, reader=0, timeout=0.05)
    assert time.monotonic() - before >= 0.05
    assert not params._bells[0].wait(0)
    assert not params._waiting.any()


def test_modules_can_lie_in_one_given_memory():
    memory = np.zeros(8, np.float32)
    one, two = nn.Linear(7, 1), nn.Linear(7, 1)
    first = FlatParams(one, memory)
    assert np.array_equal(memory, first.read())
    assert memory.any()
    second = FlatParams(two, memory, write=False)
    assert torch.equal(one.weight, two.weight), "the second took what was there"
    with torch.no_grad():
        one.weight += 1.0
    assert torch.equal(one.weight, two.weight)
    two(torch.ones(3, 7)).sum().backward()
    assert second.grad.any()
    assert not first.grad.any()
