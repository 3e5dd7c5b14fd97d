"""The loss of AlphaGo Zero, of positions that a replay drew: each under a symmetry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyplay.core.numbers import uniform
from polyplay.core.tree import Batch
from polyplay.games.boards import Game
from polyplay.learning.returns import Hyper, Key, Loss, LossOutput, check_one_shape, importance_weight
from polyplay.nets.policy import Policy


@dataclass(frozen=True)
class AlphaZeroLoss(Loss):
    """Mean over the batch of (z − v)² − Σ_a π(a) log p(a), where p is the softmax of the logits of legal
    moves (Silver et al. 2017, eq. 1). Its c‖θ‖² is the optimizer's weight decay 2c.

    Each position is shown to the network under a symmetry of its board, the same for the same `seed`, update and place
    in the batch; or as it is, without `turned`.

    value_mse is (z − v)²/4, the mean squared error of outcomes scaled to [0, 1] as the paper's figure 3 has it;
    policy_kl is Σ π log(π/p). Raises ValueError for shapes that do not fit.
    """

    board: Game
    seed: int = 0
    turned: bool = True

    metrics = (
        *("loss", "policy_loss", "value_loss", "value_mse", "policy_kl", "target_entropy"),
        *("value_mean", "value_accuracy", "weight_mean"),
    )

    def __call__(self, policy: Policy, target: None, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        """batch: "mask" [2, B, A], legal moves of the position (row 0) and of the one behind it; "visits" [B, A], the
        search's distribution π over legal moves; "return" [B], z: the game's outcome, −1 to 1, for the mover.
        """
        planes = unpacked(batch["obs"][0], self.board.planes) if self.board.binary else batch["obs"][0]
        cells = batch["cells"][:, None].expand(-1, planes.shape[1], -1)
        out = policy.unroll({"obs": planes.flatten(2).gather(2, cells).view_as(planes)[None]}, {})
        return self.score(out["logits"][0].gather(1, batch["actions"]), out["value"][0], batch)

    def noise(self, policy: Policy, batch: Batch, key: Key) -> Batch:
        """For each of n positions: "cells" [n, cells], which cell is shown at i, and "actions" [n, A], where action i
        is shown.
        """
        n, images = len(batch["action"]), self.board.symmetries
        u = uniform(self.seed, np.arange(n), np.array([key[2]]), 1)[:, 0]
        chosen = (u * len(images) * self.turned).astype(np.int64)  # 0: the identity
        cells, actions = np.stack([np.argsort(c) for c, _ in images]), np.stack([a for _, a in images])
        return {"cells": cells[chosen], "actions": actions[chosen]}

    def score(self, logits: Tensor, value: Tensor, batch: Batch) -> LossOutput:
        """Score logits [B, A] of all actions and values [B] of the mover, both with gradient."""
        target, z, legal = batch["visits"], batch["return"], batch["mask"][0]
        check_one_shape("[B, A] shape", {"logits": logits, "visits": target, "mask": legal})
        check_one_shape("[B] shape", {"value": value, "return": z})
        weight = importance_weight(batch, z)
        log_p = logits.masked_fill(~legal, -torch.inf).log_softmax(-1).masked_fill(~legal, 0.0)
        policy, error = -(target * log_p).sum(-1), (z - value).square()
        loss = (weight * (policy + error)).mean()
        with torch.no_grad():
            entropy, won = -torch.xlogy(target, target).sum(-1).mean(), z != 0
            right = (value.sign() == z.sign()) & won
            accuracy = right.to(z.dtype).sum() / won.sum().clamp(min=1)
            means = policy.mean(), error.mean(), error.mean() / 4, policy.mean() - entropy, entropy
            found = (loss.detach(), *means, value.mean(), accuracy, weight.mean())
        return LossOutput(loss, dict(zip(self.metrics, found, strict=True)))


def unpacked(bits: Tensor, planes: tuple[int, int, int]) -> Tensor:
    """float32 [B, C, H, W] of planes as bits, uint8 [B, ceil(C·H·W / 8)] (np.packbits)."""
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    single = bits[..., None].bitwise_right_shift(shifts).bitwise_and(1).flatten(1)
    return single[:, : math.prod(planes)].to(torch.float32).view(-1, *planes)
