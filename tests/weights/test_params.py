"""One vector, versioned, no torn reads."""

from __future__ import annotations

import threading
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.errors import Closed, UserError
from polyplay.nets.policy import RunningMoments
from polyplay.weights import params
from polyplay.weights.optimizers import NAMES, optimizer_state
from polyplay.weights.parameter_server import ParameterServer, ParameterShard
from polyplay.weights.params import AgentSnapshot, FlatParams, Params, SharedArrays, param_sizes
from polyplay.weights.update import AllReduce, Chunked, Hogwild, Local, OptimizerSpec, Update
from tests.weights.ends import PLAIN, finish, me


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


def test_weights_are_announced_while_readers_begin_and_end_to_wait():
    shared, over = Params(1, readers=2000), threading.Event()

    def readers() -> None:
        while not over.is_set():
            shared._waiting[:] = 1 - shared._waiting

    thread = threading.Thread(target=readers)
    thread.start()
    try:
        for version in range(1500):
            shared.announce(version, version)
    finally:
        over.set()
        thread.join()


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


# A snapshot brings weights and optimizer of one version, to the bit, or nothing.

Trained = tuple[nn.Module, FlatParams, torch.optim.Optimizer]


def trained(name: str, seed: int, steps: int) -> Trained:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    vector = FlatParams(net)
    optimizer = OptimizerSpec(name).make(vector.parameter)
    for _ in range(steps):
        step(net, vector, optimizer, torch.randn(16, 4))
    return net, vector, optimizer


def step(net: nn.Module, vector: FlatParams, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    vector.zero_grad()
    net(x).square().mean().backward()
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.step()


@pytest.mark.parametrize("steps", [(3, 5), (3, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("name", NAMES)
def test_who_reads_it_goes_on_as_who_wrote_it(name, steps):
    donor, other = (trained(name, seed, n) for seed, n in enumerate(steps))
    snapshot = AgentSnapshot(donor[0], OptimizerSpec(name).statistics)
    snapshot.write(7, *donor[1:], version=31)
    assert snapshot.number == 7
    assert snapshot.read(*other[1:]) == 31
    assert torch.equal(donor[1].flat, other[1].flat)
    state = optimizer_state(donor[2])
    assert all(torch.equal(x, optimizer_state(other[2])[k]) for k, x in state.items())
    snapshot.write(8, *trained(name, 9, 4)[1:], version=99)  # it is nobody's memory
    for x in torch.randn(3, 16, 4):
        step(*donor, x)
        step(*other, x)
    assert torch.equal(donor[1].flat, other[1].flat)


class Killed(BaseException):
    """The process that writes ends here."""


def test_who_is_killed_while_writing_leaves_none(monkeypatch):
    donor = trained("adam", 0, 3)
    snapshot = AgentSnapshot(donor[0], OptimizerSpec("adam").statistics)
    snapshot.write(1, *donor[1:], version=3)

    def killed(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        raise Killed

    monkeypatch.setattr(params, "optimizer_state", killed)
    with pytest.raises(Killed):
        snapshot.write(2, *donor[1:], version=3)
    assert snapshot.number == 0


# shared arrays

ADAM, RMSPROP = OptimizerSpec("adam"), OptimizerSpec("rmsprop_tf")
NET = nn.Linear(9, 2)  # 20 weights, no buffers


def _update(update: Update) -> Update:
    """mypy sees that it is one."""
    return update


UPDATES = [
    _update(Local(ADAM)),
    _update(AllReduce(ADAM, 2, 20)),
    _update(Hogwild(ADAM, 20, 20, 2)),
    _update(Chunked(ADAM, 20, 20, 2, 3)),
    _update(ParameterServer(ADAM, 20, 20, 2, 4)),
]


@pytest.mark.parametrize(
    ("shared", "least"),
    [
        (Params(1000, 3), 4 * 2 * 1000),
        (AllReduce(ADAM, 2, 1000), 4 * (2 + 3) * 1000),  # gradients; weights and two statistics
        (Hogwild(ADAM, 1000, 1000, 2), 4 * 3 * 1000),
        (Chunked(ADAM, 1000, 1000, 2), 4 * 3 * 1000),
        (ParameterServer(ADAM, 1000, 1000, 2, 4), 4 * (2 + 2 + 2) * 1000),  # gradients, statistics, copies
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, SharedArrays) else "",
)
def test_bytes_are_those_of_its_arrays(shared: SharedArrays, least: int):
    assert least <= shared.nbytes <= least + 5000  # counters of a cache line each


@pytest.mark.parametrize("shared", [Params(20), *(u for u in UPDATES if isinstance(u, SharedArrays))])
def test_one_that_was_sent_maps_the_same_memory(shared: SharedArrays):
    shared.patience = 0.25
    sent = cloudpickle.loads(cloudpickle.dumps(shared))
    assert (sent.patience, sent.nbytes, sent.label()) == (0.25, shared.nbytes, shared.label())
    for name in shared._places:
        getattr(shared, name)[...] = 1
        assert (getattr(sent, name) == 1).all()


# Buffers of float64 in a vector of float32: time stamps keep their differences in averages and copies.

AT = 1.7e9
WORKERS = 3


def net() -> Any:
    """Of 5 weights and a buffer of float32, so that doubles would begin at an odd place."""
    made = nn.Sequential(nn.Linear(4, 1), RunningMoments((2,)))
    made.register_buffer("single", torch.ones(2))
    return made


def stamps(seed: int) -> torch.Tensor:
    """Rows [64, 2] that differ by a few seconds."""
    return AT + torch.randn(64, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 4.0


def test_they_are_views_of_the_vector_that_a_published_copy_has_bit_by_bit():
    nets = [net(), net()]
    vectors = [FlatParams(one) for one in nets]
    for i in range(5):
        nets[0][1].observe(stamps(i))
    params = Params.of(nets[0])
    params.publish(vectors[0], 1, 1)
    params.pull(vectors[1])
    assert all(torch.equal(a, b) for a, b in zip(nets[0].buffers(), nets[1].buffers(), strict=True))
    assert nets[1][1].mean.tolist() == pytest.approx([AT, AT], abs=2.0)
    assert vectors[1].finite(), "whatever their bits would be as numbers of float32"
    nets[1][1].mean[0] = np.nan
    assert not vectors[1].finite()


def test_others_than_these_are_refused_in_one_line():
    half = nn.Linear(2, 1)
    half.register_buffer("x", torch.zeros(2, dtype=torch.float16))
    with pytest.raises(UserError, match=r"^network: x is torch.float16.*every floating buffer float32 or float64$"):
        FlatParams(half)
    with pytest.raises(UserError, match=r"^network: weight is torch.float64.*every weight must be dense float32"):
        FlatParams(nn.Linear(2, 1, dtype=torch.float64))


def test_weights_of_what_makes_no_network_are_refused_in_a_line():
    with pytest.raises(UserError, match=r"^policy: function given, allowed: a network, or a PolicyFactory of "):
        Params.of(lambda: nn.Linear(1, 1))  # type: ignore[arg-type]


def observed(update: Any, shards: int = 0) -> list[Any]:
    """Workers of an update that see twelve batches each, with one update behind each; their networks."""
    nets, bound = [net() for _ in range(WORKERS)], []
    for i, one in enumerate(nets):
        bound.append(update.open(me(i, WORKERS), one))
        bound[-1].begin(0, 0.0)
    parts = [ParameterShard(update, k) for k in range(shards)]

    def work(i: int, turn: int) -> None:
        bound[i].refresh()
        nets[i][1].observe(stamps(100 * i + turn))
        bound[i].vector.grad.zero_()
        for _ in bound[i].apply(0.1, np.zeros(3)):
            for part in parts:
                part.sweep()
        for part in parts:
            part.sweep()

    for turn in range(12):
        if isinstance(update, AllReduce):
            threads = [threading.Thread(target=work, args=(i, turn)) for i in range(WORKERS)]
            [t.start() for t in threads]
            [t.join(30) for t in threads]
        else:
            [work(i, turn) for i in range(WORKERS)]
    [one.refresh() for one in bound]
    return nets


DOUBLES_UPDATES = {
    "AllReduce": lambda: AllReduce(PLAIN, WORKERS, *reversed(param_sizes(net()))),
    "Hogwild": lambda: Hogwild(PLAIN, *param_sizes(net()), WORKERS),
    "Chunked": lambda: Chunked(PLAIN, *param_sizes(net()), WORKERS, 2),
    "ParameterServer": lambda: ParameterServer(PLAIN, *param_sizes(net()), WORKERS, 2),
}


@pytest.mark.parametrize("kind", DOUBLES_UPDATES)
def test_time_stamps_of_several_workers_are_known_as_those_of_one(kind):
    update = DOUBLES_UPDATES[kind]()
    alone = net()
    local = Local(PLAIN).open(me(), alone)
    for i in range(30):
        alone[1].observe(stamps(i))
        finish(local.apply(0.1, np.zeros(3)))
    for one in observed(update, 2 * (kind == "ParameterServer")):
        seen, want = one[1](stamps(7)), alone[1](stamps(7))
        assert float(want.abs().max()) > 1.5
        torch.testing.assert_close(seen, want, rtol=0.15, atol=0.3)
