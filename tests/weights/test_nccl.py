"""What NCCL does between GPUs, done by gloo between processes; and who takes it."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch

from polyplay.core.errors import Leaving
from polyplay.weights import update
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import LEAVING, AllReduce, OptimizerSpec, _Whole
from tests.weights.ends import me


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(5))
        self.register_buffer("seen", torch.zeros(2))


def _rank(place: str, rank: int, pipe) -> None:
    vector = FlatParams(Net())
    vector.grad.fill_(float(rank + 1))
    vector.flat[5:] = 10.0 * rank
    end = update.NcclGroup(place, rank, 2, vector, "gloo")
    waited = end.average()
    pipe.send((vector.grad.tolist(), vector.flat.tolist(), waited > 0.0))
    torch.distributed.destroy_process_group()


def test_means_of_gradients_and_buffers():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    ends, place, children = [], update.meeting_place(), []
    for rank in range(2):
        here, there = context.Pipe(duplex=False)
        children.append(context.Process(target=_rank, args=(place, rank, there)))
        children[-1].start()
        ends.append(here)
    found = [end.recv() if end.poll(60) else None for end in ends]
    for child in children:
        child.join(30)
    assert found[0] == found[1]
    gradient, flat, waited = found[0]
    assert waited
    assert gradient == [1.5] * 5
    assert flat == [0.0] * 5 + [5.0] * 2


class Averages:
    """A group without GPUs: it counts who has entered it."""

    entered = 0

    def average(self) -> float:
        Averages.entered += 1
        return 0.0


@pytest.mark.parametrize("leaver", [None, 0, 1], ids=["nobody", "the first", "the second"])
def test_nobody_enters_it_to_wait_for_a_replica_that_leaves(leaver, monkeypatch):
    """A stop in a slow rollout: who is in it has no gradient, the other one has, and neither waits for the other."""
    monkeypatch.setattr(update, "fits", lambda device, replicas: True)
    monkeypatch.setattr(update, "NcclGroup", lambda *about: Averages())
    monkeypatch.setattr(Averages, "entered", 0)
    reduce = AllReduce(OptimizerSpec("adam"), 2, param_sizes(Net())[1])
    ends = [_Whole(reduce, me(i, 2), FlatParams(Net())) for i in range(2)]
    turns = {}
    for i, end in enumerate(ends):
        sums = np.zeros(6)
        sums[0], sums[LEAVING] = i + 1.0, i == leaver
        turns[i] = end.agree(sums) if i == leaver else end(0.1, sums)
    found = dict[int, object]()
    while len(found) < 2:
        for i in turns.keys() - found.keys():
            try:
                next(turns[i])
            except StopIteration as e:
                found[i] = e.value[1].tolist() if leaver is None else e.value.tolist()
            except Leaving:
                found[i] = "leaves"
    if leaver is None:
        assert found == {0: [3.0, 0.0, 0.0, 0.0, 0.0, 0.0], 1: [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
    else:
        assert found[1 - leaver] == "leaves"
        assert found[leaver] == [3.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert Averages.entered == (2 if leaver is None else 0)


@pytest.mark.parametrize(("device", "gpus", "process", "takes"), [
    ("cuda:0", 2, True, True),
    ("cuda:0", 1, True, False),  # two on one GPU
    ("cuda:0", 2, False, False),  # threads are all on the first
    ("cpu", 2, True, False),
])  # fmt: skip
def test_replicas_with_a_gpu_each_take_it(device, gpus, process, takes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if process else None)
    assert update.fits(torch.device(device), 2) is takes
