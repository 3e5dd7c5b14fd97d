"""nets/actor_critic.py: composite dueling values against sums by hand and all joint actions, shapes, learning."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from polyplay.games.ctf_rules import COMPOSITE, World
from polyplay.nets.actor_critic import PixelControl, RewardPrediction, control_cells
from tests.nets.helpers import parameters

SPACES: list[Any] = [
    Discrete(4),
    MultiDiscrete((3,), (2, 3, 2)),
    MultiDiscrete((2, 1), (3, 2)),
    {"b": MultiBinary((2,)), "a": Discrete(3)},
]


def joint_actions(space: Any) -> Any:
    """All of them, a tree of [all, ...]."""
    leaves = dict(tree.leaves(space)) if isinstance(space, dict) else {"": space}
    sizes = [leaf.classes for leaf in leaves.values()]
    rows = np.array(list(itertools.product(*(range(n) for part in sizes for n in part))))
    ends = np.cumsum([len(part) for part in sizes])[:-1]
    flat = zip(leaves.items(), np.split(rows, ends, 1), strict=True)
    return tree.nest({path: torch.from_numpy(x.reshape(len(x), *leaf.field.shape)) for (path, leaf), x in flat})


def by_hand(head: PixelControl, maps: Tensor, row: int, numbers: list[int]) -> Tensor:
    """Q [h, w] of one row and action."""
    value, advantages = head.values(maps)
    q = value[row].clone()
    for part, number in zip(advantages, numbers, strict=True):
        q += part[row, number] - sum(part[row, k] for k in range(part.shape[1])) / part.shape[1]
    return q


def numbers_of(action: Any, row: int) -> list[int]:
    return [int(x) for _, leaf in tree.leaves(action) for x in leaf[row].flatten()]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("cells", [(20, 20), (11, 11), (5, 8), (3, 4)])
def test_values_of_all_joint_actions_and_the_best_of_them(space: Any, cells: tuple[int, int]) -> None:
    torch.manual_seed(0)
    head = PixelControl(6, cells, space).double()
    action = joint_actions(space)
    count = len(next(tree.leaves(action))[1])
    maps = head(torch.randn(1, 6, dtype=torch.float64)).repeat(count, 1, 1, 1)
    chosen = head.chosen(maps, action)
    assert chosen.shape == (count, *cells)
    expected = torch.stack([by_hand(head, maps, i, numbers_of(action, i)) for i in range(count)])
    torch.testing.assert_close(chosen, expected)
    torch.testing.assert_close(head.best(maps)[0], expected.amax(0))


def test_gradients_of_the_chosen_are_those_of_the_whole_maps() -> None:
    torch.manual_seed(1)
    head = PixelControl(5, (11, 11), SPACES[1]).double()
    x, weight = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 11, 11, dtype=torch.float64)
    action = torch.tensor([[0, 2, 1], [1, 0, 1], [1, 1, 0]])
    grads = []
    for whole in (False, True):
        features = x.clone().requires_grad_()
        maps = head(features)
        q = torch.stack([by_hand(head, maps, i, action[i].tolist()) for i in range(3)]) if whole else None
        made = head.chosen(maps, action) if q is None else q
        grads.append(torch.autograd.grad((made * weight).sum(), [features, *head.parameters()]))
    for fast, slow in zip(*grads, strict=True):
        assert slow.abs().max() > 0
        torch.testing.assert_close(fast, slow)


def test_the_best_has_no_gradient_and_no_rows_are_no_trouble() -> None:
    head = PixelControl(5, (11, 11), COMPOSITE)
    assert not head.best(head(torch.randn(2, 5))).requires_grad
    assert head.best(head(torch.zeros(0, 5))).shape == (0, 11, 11)


def test_layers_and_first_weights_are_unreals() -> None:
    """256 → 9·9·32, then 4 × 4 kernels for V and six advantages, all uniform in 1/√inputs."""
    head = PixelControl(256, (20, 20), Discrete(6))
    assert parameters(head) == 256 * 2592 + 2592 + 32 * 16 * 7 + 7
    for layer, inputs in ((head.fc, 256), (head.deconv, 32 * 16)):
        for p in (layer.weight, layer.bias):
            assert p.abs().max().item() <= inputs**-0.5
        assert layer.weight.std().item() == pytest.approx((3 * inputs) ** -0.5, rel=0.05)
    assert not head.state_dict().keys() - dict(head.named_parameters()).keys()


def test_cells_of_what_capture_the_flag_shows() -> None:
    assert control_cells(World(view="pixels").obs["view"].shape) == (20, 20)
    assert control_cells(World(view="window").obs["view"].shape) == (11, 11)
    assert control_cells((2, 5, 8)) == (5, 8)
    for view in ((3, 96, 96), (3, 84, 60), (1, 2, 9), (12,)):
        with pytest.raises(UserError, match=r"--auxiliary pixel: a view \[.*\] given, allowed: \[C, 84, 84\]"):
            control_cells(view)


@pytest.mark.parametrize("nested", [False, True])
def test_real_numbers_are_no_choice_to_value(nested: bool) -> None:
    box = Box((2,), np.full(2, -1, np.float32), np.full(2, 1, np.float32))
    with pytest.raises(
        UserError, match=r"^--auxiliary pixel: takes actions that are whole numbers, here they are .*\[2\] real"
    ):
        PixelControl(4, (11, 11), {"a": Discrete(2), "b": box} if nested else box)


def test_pixel_control_learns_what_each_part_of_an_action_does() -> None:
    """Values are additive in the parts, and differ from cell to cell."""
    torch.manual_seed(2)
    head = PixelControl(8, (7, 7), MultiDiscrete((2,), (3, 2)))
    x, action = torch.randn(64, 8), torch.stack([torch.randint(3, (64,)), torch.randint(2, (64,))], 1)
    effects = torch.randn(3, 7, 7), torch.randn(2, 7, 7)
    goal = effects[0][action[:, 0]] + effects[1][action[:, 1]]
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    losses = []
    for _ in range(100):
        loss = (head.chosen(head(x), action) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_reward_prediction_takes_three_rows_the_oldest_first() -> None:
    torch.manual_seed(3)
    head = RewardPrediction(5)
    assert parameters(head) == 15 * 128 + 128 + 128 * 3 + 3
    x = torch.randn(3, 4, 5)
    out = head(x)
    assert out.shape == (4, 3)
    row = torch.cat([x[0, 2], x[1, 2], x[2, 2]])
    expected = head.logits.weight @ (head.hidden.weight @ row + head.hidden.bias).relu() + head.logits.bias
    torch.testing.assert_close(out[2], expected)
    assert not torch.allclose(head(x.flip(0)), out)
