"""A snapshot brings weights and optimiser of one version, to the bit, or nothing."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch import nn

from polyplay.weights import params
from polyplay.weights.optimizers import NAMES, optimizer_state
from polyplay.weights.params import AgentSnapshot, FlatParams
from polyplay.weights.update import OptimizerSpec

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


def test_it_comes_into_the_memory_that_an_optimiser_has():
    donor, other = trained("adam", 0, 3), trained("adam", 1, 4)
    snapshot = AgentSnapshot(donor[0], OptimizerSpec("adam").statistics)
    snapshot.write(1, *donor[1:], version=3)
    ours = dict(optimizer_state(other[2]))
    snapshot.read(*other[1:])
    assert all(optimizer_state(other[2])[k] is x for k, x in ours.items())


def write(snapshot: AgentSnapshot, number: int) -> None:
    _, vector, optimizer = trained("adam", 1, 0)
    vector.flat.fill_(number)
    snapshot.write(number, vector, optimizer, version=10 * number)


def test_another_process_reads_it():
    net, vector, optimizer = trained("adam", 0, 0)
    snapshot = AgentSnapshot(net, OptimizerSpec("adam").statistics)
    worker = multiprocessing.get_context("spawn").Process(target=write, args=(snapshot, 4))
    worker.start()
    worker.join()
    assert (snapshot.number, snapshot.read(vector, optimizer)) == (4, 40)
    assert bool((vector.flat == 4).all())


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
