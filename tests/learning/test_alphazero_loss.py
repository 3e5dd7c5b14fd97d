"""AlphaGo Zero's loss against a plain twin; symmetries show the same position, and logits come back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polyplay.core.worker import Hyperparameters
from polyplay.games.boards import GAMES, Game
from polyplay.learning.alphazero_loss import AlphaZeroLoss, SymmetricOutputs

B, A = 5, 4


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    mask = rng.random((2, B, A)) < 0.6
    mask[..., 1] = True
    visits = rng.random((B, A)) * mask[0]
    visits /= visits.sum(1, keepdims=True)
    z = rng.integers(-1, 2, B)
    made = {"mask": mask, "visits": visits.astype(np.float32), "return": z.astype(np.float32)}
    return {k: torch.from_numpy(v) for k, v in made.items()}


def twin(logits: torch.Tensor, value: torch.Tensor, rows: dict[str, torch.Tensor], cost: float) -> float:
    """Equation 1 without c‖θ‖², one number at a time."""
    total = 0.0
    for b in range(B):
        legal = [a for a in range(A) if rows["mask"][0, b, a]]
        sum_ = math.fsum(math.exp(float(logits[b, a])) for a in legal)
        log_p = {a: float(logits[b, a]) - math.log(sum_) for a in legal}
        total += cost * (float(rows["return"][b]) - float(value[b])) ** 2
        total -= math.fsum(float(rows["visits"][b, a]) * log_p[a] for a in legal)
    return total / B


@pytest.mark.parametrize("cost", [1.0, 0.25])
def test_it_is_equation_1(cost):
    torch.manual_seed(1)
    logits, value, rows = torch.randn(B, A), torch.rand(B) * 2 - 1, batch()
    scored = AlphaZeroLoss(cost)({"logits": logits, "value": value}, rows, Hyperparameters())
    assert float(scored.loss) == pytest.approx(twin(logits, value, rows, cost), rel=1e-5)
    assert set(scored.metrics) == set(AlphaZeroLoss.metrics)
    assert float(scored.metrics["policy_kl"]) >= 0


def test_its_gradient_is_that_of_a_cross_entropy_over_legal_moves():
    torch.manual_seed(2)
    rows = batch(3)
    logits, value = torch.randn(B, A, requires_grad=True), torch.rand(B, requires_grad=True)
    AlphaZeroLoss()({"logits": logits, "value": value}, rows, Hyperparameters()).loss.backward()
    p = logits.detach().masked_fill(~rows["mask"][0], -torch.inf).softmax(1)
    torch.testing.assert_close(logits.grad, (p - rows["visits"]) / B)
    torch.testing.assert_close(value.grad, 2 * (value.detach() - rows["return"]) / B)


class Cells:
    """A network whose logit of an action is the mover's stone there, or in the top row of its column."""

    def __init__(self, board: Game):
        self.board = board

    def unroll(self, rows: dict[str, torch.Tensor], state: object) -> dict[str, torch.Tensor]:
        own = rows["obs"][0][:, 0]
        self.shown = rows["obs"][0]
        logits = own[:, 0] if self.board.gravity else own.flatten(1)
        return {"logits": logits[None], "value": own.sum((1, 2))[None]}


@pytest.mark.parametrize("name", GAMES)
def test_logits_are_of_the_actions_as_they_were(name):
    board, n = GAMES[name], 200
    rng = np.random.default_rng(4)
    bits = rng.random((2, n, *board.planes)) < 0.5
    planes = torch.from_numpy(bits.astype(np.float32))
    outputs, network = SymmetricOutputs(board, seed=7), Cells(board)
    rows = {"obs": torch.from_numpy(np.packbits(bits.reshape(2, n, -1), axis=2)), "action": torch.zeros(n)}
    out = outputs(network, None, rows, None, key=3)  # type: ignore[arg-type]
    own = planes[0, :, 0]
    torch.testing.assert_close(out["logits"], own[:, 0] if board.gravity else own.flatten(1))
    changed = (network.shown != planes[0]).flatten(1).any(1)
    assert 0 < int(changed.sum()) < n, "some are shown as they are, some are not"
    assert torch.equal(network.shown.sum((2, 3)), network.shown.flatten(2).sum(2))
    torch.testing.assert_close(network.shown.flatten(2).sort(2).values, planes[0].flatten(2).sort(2).values)


def test_the_same_update_shows_the_same_images_and_every_symmetry_comes():
    board = GAMES["tic_tac_toe"]
    outputs = SymmetricOutputs(board, seed=7)
    one, again, other = (outputs.images(400, key)[0] for key in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert len(torch.unique(one, dim=0)) == len(board.symmetries) == 8
    plain, actions = SymmetricOutputs(board, turned=False).images(50, 1)
    assert (plain == torch.arange(board.cells)).all()
    assert (actions == torch.arange(board.actions)).all()
