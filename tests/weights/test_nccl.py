"""What NCCL does between GPUs, done by gloo between processes; and who takes it."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch

from polyplay.weights import nccl
from polyplay.weights.flat import FlatParams


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(5))
        self.register_buffer("seen", torch.zeros(2))


def _rank(place: str, rank: int, pipe) -> None:
    vector = FlatParams(Net())
    vector.grad.fill_(float(rank + 1))
    vector.flat[5:] = 10.0 * rank
    end = nccl.NcclGroup(place, rank, 2, vector, "gloo")
    total, waited = end.average(np.array([rank, 0.5, 2**40 + 1.0]))
    pipe.send((vector.grad.tolist(), vector.flat.tolist(), total.tolist(), waited > 0.0))
    torch.distributed.destroy_process_group()


def test_means_of_gradients_and_buffers_and_sums_of_counts():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    ends, place, children = [], nccl.meeting_place(), []
    for rank in range(2):
        here, there = context.Pipe(duplex=False)
        children.append(context.Process(target=_rank, args=(place, rank, there)))
        children[-1].start()
        ends.append(here)
    found = [end.recv() if end.poll(60) else None for end in ends]
    for child in children:
        child.join(30)
    assert found[0] == found[1]
    gradient, flat, total, waited = found[0]
    assert waited
    assert gradient == [1.5] * 5
    assert flat == [0.0] * 5 + [5.0] * 2
    assert total == [1.0, 1.0, 2.0**41 + 2.0]


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
    assert nccl.fits(torch.device(device), 2) is takes
