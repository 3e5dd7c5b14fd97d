"""Heads of UNREAL's auxiliary tasks (Jaderberg et al. 2016): values of pixel control, reward prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import ActionSpec, describe_actions, describe_fields
from polyplay.nets.layers import Linear, initialise

PICTURE, CELL = 84, 4  # UNREAL's picture, of which the middle 80 × 80 count, and a cell's side, in pixels
CHANNELS = 32  # of the map that is deconvolved
REWARD_CLASSES = 3
TASKS = ("pixel", "reward", "value")
FRAMES = 3  # rows that a reward is predicted from


def control_cells(view: tuple[int, ...]) -> tuple[int, int]:
    """Cells h, w of what is shown, [C, H, W]: 20 × 20 of 84 × 84 pixels, those of a smaller picture itself.

    UserError for other pictures.
    """
    if len(view) == 3 and view[1:] == (PICTURE, PICTURE):
        return PICTURE // CELL - 1, PICTURE // CELL - 1
    if len(view) == 3 and min(view[1:]) >= 3 and max(view[1:]) < PICTURE:
        return view[1], view[2]
    raise UserError(
        f"--auxiliary pixel: a view {list(view)} given, allowed: [C, 84, 84], or planes of 3 to 83 cells a side"
    )


class PixelControl(nn.Module):
    """Action values of every cell, from features: a fully connected layer with ReLU, and a deconvolution that duels.

    Q(c, a) = V(c) + Σ_k (A_k(c, a_k) − mean A_k(c, ·)) for an action of parts a_k; of one part it is Wang et al.'s
    dueling (2016), as in UNREAL. Its maximum over all actions is V + Σ_k (max A_k − mean A_k). 20 × 20 cells come from
    9 × 9 by a kernel of 4 × 4 and a stride of 2; where a side is odd the kernel has 3. No ReLU behind it, unlike
    miyosuda/unreal: a Q that ReLU made 0 would get no gradient. UserError for actions that are real numbers.
    """

    options: Tensor  # [ΣA]: of each advantage, how many its part has
    starts: Tensor  # [K]: of each part, its first channel of the deconvolution; channel 0 is V

    def __init__(self, features: int, cells: tuple[int, int], action: ActionSpec):
        super().__init__()
        leaves = dict(tree.leaves(action))
        if not all(leaf.classes for leaf in leaves.values()):
            shown = describe_actions(action)
            raise UserError(f"--auxiliary pixel: takes actions that are whole numbers, here they are {shown}")
        self.cells, self.paths = cells, tuple(leaves)
        self.parts = [n for leaf in leaves.values() for n in leaf.classes]
        options = torch.tensor(self.parts)
        self.register_buffer("options", options.repeat_interleave(options), persistent=False)
        self.register_buffer("starts", 1 + options.cumsum(0) - options, persistent=False)
        kernel = 4 - cells[0] % 2, 4 - cells[1] % 2
        self.map = (cells[0] - kernel[0]) // 2 + 1, (cells[1] - kernel[1]) // 2 + 1
        self.fc = Linear(features, CHANNELS * math.prod(self.map))
        self.deconv = nn.ConvTranspose2d(CHANNELS, 1 + sum(self.parts), kernel, stride=2)
        initialise(self.fc, "torch")
        bound = (CHANNELS * math.prod(kernel)) ** -0.5
        for weight in self.deconv.parameters():
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """x [N, features] → the map [N, 32, h', w'] that the rest takes."""
        made: Tensor = F.relu(self.fc(x), inplace=True).unflatten(1, (CHANNELS, *self.map))
        return made

    def values(self, maps: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """V [N, h, w], and of each part A_k [N, n_k, h, w]."""
        value, *advantages = self.deconv(maps).split((1, *self.parts), 1)
        return value[:, 0], tuple(advantages)

    def chosen(self, maps: Tensor, action: Tree) -> Tensor:
        """Q of the actions [N, …] alone: [N, h, w].

        It is linear in the deconvolution's kernels, so each row is deconvolved once, with its own sum of kernels, which
        takes a fraction of the time of all maps.
        """
        share = self._shares(action)
        weight = self.deconv.weight.permute(1, 2, 3, 0)  # [1 + ΣA, kernel, 32]
        kernels = (share @ weight.flatten(1)).unflatten(1, (-1, CHANNELS))
        strokes = torch.bmm(kernels, maps.flatten(2))
        q = F.fold(strokes, self.cells, self.deconv.kernel_size, stride=2)
        bias = cast("Tensor", self.deconv.bias)
        return q.squeeze(1) + (share @ bias).view(-1, 1, 1)

    @torch.no_grad()
    def best(self, maps: Tensor) -> Tensor:
        """max_a Q [N, h, w], without gradient."""
        best, advantages = self.values(maps)
        for advantage in advantages:
            best = best + advantage.amax(1) - advantage.mean(1)
        return best

    def _shares(self, action: Tree) -> Tensor:
        """What Q of the actions has of V and of every advantage: [N, 1 + ΣA]."""
        found = dict(tree.leaves(action))
        parts = torch.cat([found[path].reshape(len(found[path]), -1) for path in self.paths], 1)
        mean = -1.0 / self.options.to(self.deconv.weight.dtype)
        share = torch.cat([mean.new_ones(1), mean]).repeat(len(parts), 1)
        at = parts.long() + self.starts
        return share.scatter_add_(1, at, torch.ones_like(at, dtype=share.dtype))


class RewardPrediction(nn.Module):
    """The class of the next reward from three rows' features: a hidden layer of 128 with ReLU, three logits."""

    def __init__(self, features: int):
        super().__init__()
        self.hidden, self.logits = Linear(3 * features, 128), Linear(128, REWARD_CLASSES)
        initialise(self, "torch")

    def forward(self, x: Tensor) -> Tensor:
        """x [3, N, features], the oldest row first → [N, 3]."""
        made: Tensor = self.logits(F.relu(self.hidden(torch.cat(x.unbind(), 1)), inplace=True))
        return made


def bootstrap_rows(batch: Batch) -> Tensor:
    """Which rows' best values the loss looks at, bool [T+1, B]: the last one, and those that truncation
    ended, unless they are terminated or the only one of their episode.
    """
    first, terminated = batch["first"], batch["terminated"]
    ends = torch.cat([first[1:], torch.ones_like(first[:1])])
    rows = ends & ~terminated & ~first
    rows[0] = False
    return rows


def pixel_control_values(head: PixelControl, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """chosen [T, B, h, w] and best [T+1, B, h, w] for losses.unreal.pixel_control_loss, from features [T+1, B, F]; best
    is 0 in rows where it is not looked at.

    batch: rows "action" (a tree), "first", "terminated".
    """
    rows = bootstrap_rows(batch)
    if x.ndim != 3 or x.shape[:2] != rows.shape:
        raise ValueError(f"x must be {list(rows.shape)} and features; got {list(x.shape)}")
    action = tree.map(lambda a: a[:-1].flatten(0, 1), batch["action"])
    chosen = head.chosen(head(x[:-1].flatten(0, 1)), action).unflatten(0, (-1, x.shape[1]))
    best = torch.zeros(*rows.shape, *head.cells, dtype=chosen.dtype, device=x.device)
    with torch.no_grad():
        best[rows] = head.best(head(x[rows]))
    return chosen, best


class AuxiliaryHeads(nn.Module):
    """The heads of `tasks`: pixel, reward; value has the policy's. features: behind the core, and behind the torso."""

    pixel: PixelControl | None
    reward: RewardPrediction | None
    value: bool  # whether values of replayed rows are wanted

    def __init__(self, tasks: Sequence[str], features: tuple[int, int], spec: EnvSpec):
        super().__init__()
        self.pixel, self.reward, self.value = None, None, "value" in tasks
        if unknown := [task for task in tasks if task not in TASKS]:
            raise UserError(f"--auxiliary: {unknown[0]} given, allowed: {', '.join(TASKS)}, with a comma between")
        if "pixel" in tasks:
            shown = [
                field.shape for _, field in tree.leaves(spec.obs) if field.dtype == "uint8" and len(field.shape) == 3
            ]
            if len(shown) != 1:
                seen = describe_fields(spec.obs)
                raise UserError(f"--auxiliary pixel: takes one image of bytes, here they are {seen}")
            self.pixel = PixelControl(features[0], control_cells(shown[0]), spec.action)
        if "reward" in tasks:
            self.reward = RewardPrediction(features[1])
