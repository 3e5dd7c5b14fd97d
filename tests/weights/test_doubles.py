"""Buffers of float64 in a vector of float32: time stamps keep their differences in averages and copies."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.errors import UserError
from polyplay.nets.policy import RunningMoments
from polyplay.weights.hogwild import Chunked, Hogwild
from polyplay.weights.parameter_server import ParameterServer, ParameterShard
from polyplay.weights.params import FlatParams, Params, param_sizes
from polyplay.weights.update import AllReduce, Local
from tests.weights.ends import PLAIN, finish, me

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
    with pytest.raises(UserError, match=r"^network: x is torch.float16.*must be dense float32 or float64$"):
        FlatParams(half)
    with pytest.raises(UserError, match=r"^network: weight is torch.float64.*every weight must be dense float32$"):
        FlatParams(nn.Linear(2, 1, dtype=torch.float64))


def observed(update: Any, shards: int = 0) -> list[Any]:
    """Workers of an update that see twelve batches each, with one update behind each; their networks."""
    nets, bound = [net() for _ in range(WORKERS)], []
    for i, one in enumerate(nets):
        vector = update.vector(me(i, WORKERS), one)
        bound.append(update.bind(me(i, WORKERS), vector))
        bound[-1].counts.begin(0, 0.0)
    parts = [ParameterShard(update, k) for k in range(shards)]

    def work(i: int, turn: int) -> None:
        bound[i].counts.newest()
        nets[i][1].observe(stamps(100 * i + turn))
        bound[i].vector.grad.zero_()
        for _ in bound[i](0.1, np.zeros(3)):
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
    [one.counts.newest() for one in bound]
    return nets


UPDATES = {
    "AllReduce": lambda: AllReduce(PLAIN, WORKERS, *reversed(param_sizes(net()))),
    "Hogwild": lambda: Hogwild(PLAIN, *param_sizes(net()), WORKERS),
    "Chunked": lambda: Chunked(PLAIN, *param_sizes(net()), WORKERS, 2),
    "ParameterServer": lambda: ParameterServer(PLAIN, *param_sizes(net()), WORKERS, 2),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_time_stamps_of_several_workers_are_known_as_those_of_one(kind):
    update = UPDATES[kind]()
    alone = net()
    local = Local(PLAIN).bind(me(), FlatParams(alone))
    for i in range(30):
        alone[1].observe(stamps(i))
        finish(local(0.1, np.zeros(3)))
    for one in observed(update, 2 * (kind == "ParameterServer")):
        seen, want = one[1](stamps(7)), alone[1](stamps(7))
        assert float(want.abs().max()) > 1.5
        torch.testing.assert_close(seen, want, rtol=0.15, atol=0.3)
