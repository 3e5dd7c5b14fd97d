"""A network's answers have the same bits in every company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.acting.search.evaluators import TorchEvaluator, UniformEvaluator


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.policy, self.value = nn.Linear(8 * 42, 7), nn.Linear(8 * 42, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.policy(x), torch.tanh(self.value(x))


def positions(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (n, 3, 6, 7)).astype(np.float32)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_position_has_the_same_bits_wherever_it_lies(precision: str):
    torch.manual_seed(0)
    evaluator = TorchEvaluator(Small(), "cpu", 8, precision)
    planes = positions(19)
    logits, values = evaluator.evaluate(planes)
    assert (logits.dtype, logits.shape, values.shape) == (np.float32, (19, 7), (19,))
    order = np.random.default_rng(1).permutation(19)
    for part in (order, order[:3], order[5:6]):
        again, other = evaluator.evaluate(planes[part])
        assert np.array_equal(again, logits[part])
        assert np.array_equal(other, values[part])


def test_the_network_acts_with_its_running_statistics():
    network = Small()
    assert network.training
    TorchEvaluator(network, "cpu", 4).evaluate(positions(4))
    assert not network.training
    assert network.norm.num_batches_tracked == 0


def test_uniform_knows_nothing():
    logits, values = UniformEvaluator(7).evaluate(positions(5))
    assert (logits.shape, values.shape) == ((5, 7), (5,))
    assert not logits.any()
    assert not values.any()
