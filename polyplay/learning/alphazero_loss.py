"""The loss of AlphaGo Zero, and what its network says of positions that a replay drew: each under a symmetry.

out    "logits" [B, A] of all actions and "value" [B] of the mover, with gradient (`SymmetricOutputs`)
batch  of a replay: "mask" [2, B, A], legal moves of the position (row 0) and of the one behind it; "visits" [B, A], the
       search's distribution π over legal moves; "return" [B], z: the game's outcome, −1 to 1, for who was to move
hyperparameters  not used
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from polyplay.core.numbers import uniform
from polyplay.core.tree import Batch
from polyplay.core.worker import Hyperparameters
from polyplay.games.boards import Game
from polyplay.learning import returns
from polyplay.nets.policy import Policy


@dataclass(frozen=True)
class AlphaZeroLoss:
    """Mean over the batch of (z − v)² − Σ_a π(a) log p(a), where p is the softmax of the logits of legal
    moves (Silver et al. 2017, eq. 1). Its c‖θ‖² is the optimizer's weight decay 2c.

    value_mse is (z − v)²/4, the mean squared error of outcomes scaled to [0, 1] as the paper's figure 3 has it;
    policy_kl is Σ π log(π/p). Raises ValueError for shapes that do not fit.
    """

    metrics: ClassVar[tuple[str, ...]] = (
        *("loss", "policy_loss", "value_loss", "value_mse", "policy_kl", "target_entropy"),
        *("value_mean", "value_accuracy", "weight_mean"),
    )

    def __call__(self, out: Batch, batch: Batch, hyperparameters: Hyperparameters) -> returns.LossOutput:
        logits, value, target, z = out["logits"], out["value"], batch["visits"], batch["return"]
        legal = batch["mask"][0]
        returns.check_one_shape("[B, A] shape", {"logits": logits, "visits": target, "mask": legal})
        returns.check_one_shape("[B] shape", {"value": value, "return": z})
        weight = returns.importance_weight(batch, z)
        log_p = logits.masked_fill(~legal, -torch.inf).log_softmax(-1).masked_fill(~legal, 0.0)
        policy, error = -(target * log_p).sum(-1), (z - value).square()
        loss = (weight * (policy + error)).mean()

        def metrics() -> dict[str, Tensor]:
            entropy = -torch.xlogy(target, target).sum(-1).mean()
            right = (value.sign() == z.sign())[z != 0].float()
            accuracy = right.mean() if len(right) else z.new_zeros(())
            means = policy.mean(), error.mean(), error.mean() / 4, policy.mean() - entropy, entropy
            found = (loss, *means, value.mean(), accuracy, weight.mean())
            return dict(zip(self.metrics, found, strict=True))

        return returns.LossOutput(loss, returns.LazyMetrics(metrics))


@dataclass(frozen=True)
class SymmetricOutputs:
    """`outputs` of a LearnerSpec: each position is shown to the network under a symmetry of its board, the same for
    the same `seed`, update and place in the batch; or as it is, without `turned`. Logits are given for the actions as
    they were.
    """

    board: Game
    seed: int = 0
    turned: bool = True

    def __call__(self, policy: Policy, target: object, batch: Batch, state: object, key: int) -> Batch:
        cells, actions = self.images(len(batch["action"]), key)
        planes = unpacked(batch["obs"][0], self.board.planes) if self.board.binary else batch["obs"][0]
        shown = planes.flatten(2).gather(2, cells[:, None].expand(-1, planes.shape[1], -1)).view_as(planes)
        out = policy.unroll({"obs": shown[None]}, {})
        return {"logits": out["logits"][0].gather(1, actions), "value": out["value"][0]}

    def images(self, n: int, key: int) -> tuple[Tensor, Tensor]:
        """For each of n positions: [n, cells] which cell is shown at i, and [n, actions] where action i is shown."""
        all_cells = np.stack([np.argsort(cells) for cells, _ in self.board.symmetries])
        all_actions = np.stack([actions for _, actions in self.board.symmetries])
        u = uniform(self.seed, np.arange(n), np.array([key]), 1)[:, 0]
        chosen = (u * len(all_cells) * self.turned).astype(np.int64)  # 0: the identity
        return torch.from_numpy(all_cells[chosen]), torch.from_numpy(all_actions[chosen])


def unpacked(bits: Tensor, planes: tuple[int, int, int]) -> Tensor:
    """float32 [B, C, H, W] of planes as bits, uint8 [B, ceil(C·H·W / 8)] (np.packbits)."""
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    single = bits[..., None].bitwise_right_shift(shifts).bitwise_and(1).flatten(1)
    return single[:, : math.prod(planes)].to(torch.float32).view(-1, *planes)
