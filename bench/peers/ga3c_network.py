"""GA3C's `NetworkVP` in PyTorch: the same network, loss, optimizer and interface as the released TensorFlow 1 class.

16 8×8/4 and 32 4×4/2 convolutions with SAME padding, 256 hidden units; every weight and bias uniform in ±1/√fan_in;
sums over the batch; TensorFlow's RMSProp (g starts at 1, ε inside the root), one step per call of `train`. States come
as the released code has them, float32 [n, 84, 84, 4]. As with a TensorFlow session, predictions and training share
the weights without a lock. Every served prediction and every trained row is counted here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from logs import Log
from torch import Tensor

SIDES, CHANNELS, HIDDEN = 11, 32, 256  # 84 → 21 → 11 with SAME padding


def uniform(*shape: int, fan_in: int) -> Tensor:
    bound = 1.0 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound).requires_grad_()


class NetworkVP:
    config: Any = None  # GA3C's Config
    log: Log | None = None

    def __init__(self, device: str, model_name: str, num_actions: int):
        c, flat = self.config, SIDES * SIDES * CHANNELS
        self.model_name, self.num_actions = model_name, num_actions
        self.learning_rate, self.beta, self.epsilon = c.LEARNING_RATE_START, c.BETA_START, c.LOG_EPSILON
        shapes = (16, c.STACKED_FRAMES, 8, 8), (CHANNELS, 16, 4, 4), (HIDDEN, flat), (1, HIDDEN), (num_actions, HIDDEN)
        self.weights: list[Tensor] = []
        for shape in shapes:
            fan_in = math.prod(shape[1:])
            self.weights += [uniform(*shape, fan_in=fan_in), uniform(shape[0], fan_in=fan_in)]
        for i in (0, 2):  # states are [n, H, W, C], so are the filters, then
            self.weights[i].data = self.weights[i].data.contiguous(memory_format=torch.channels_last)
        self.squares = [torch.ones_like(w, requires_grad=False) for w in self.weights]
        self.roots = [torch.empty_like(square) for square in self.squares]  # memory made anew each time costs more
        self.served = self.calls = self.trained = self.updates = 0

    def forward(self, states: np.ndarray) -> tuple[Tensor, Tensor]:
        """float32 [n, 84, 84, 4] → logits [n, actions], values [n]."""
        w1, b1, w2, b2, w3, b3, wv, bv, wp, bp = self.weights
        x = torch.from_numpy(states).permute(0, 3, 1, 2)
        x = F.relu(F.conv2d(F.pad(x, (2, 2, 2, 2)), w1, b1, stride=4))
        x = F.relu(F.conv2d(F.pad(x, (1, 2, 1, 2)), w2, b2, stride=2))
        x = F.relu(F.linear(x.flatten(1), w3, b3))
        return F.linear(x, wp, bp), F.linear(x, wv, bv).squeeze(1)

    def predict_p_and_v(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            logits, value = self.forward(states)
            policy = F.softmax(logits, 1)
        self.served += len(states)
        self.calls += 1
        return policy.numpy(), value.numpy()

    def loss(self, states: np.ndarray, returns: np.ndarray, actions: np.ndarray) -> Tensor:
        """−Σ log max(π(a), ε) (R − V) − β Σ H + ½ Σ (R − V)², with H from log max(π, ε)."""
        logits, value = self.forward(states)
        policy = F.softmax(logits, 1)
        target = torch.from_numpy(returns.astype(np.float32))
        chosen = (policy * torch.from_numpy(actions)).sum(1)
        policy_part = (chosen.clamp(min=self.epsilon).log() * (target - value.detach())).sum()
        entropy = -self.beta * (policy.clamp(min=self.epsilon).log() * policy).sum()
        return 0.5 * (target - value).square().sum() - policy_part - entropy

    def train(self, states: np.ndarray, returns: np.ndarray, actions: np.ndarray, trainer_id: int) -> None:
        gradients = torch.autograd.grad(self.loss(states, returns, actions), self.weights)
        decay, epsilon = self.config.RMSPROP_DECAY, self.config.RMSPROP_EPSILON
        with torch.no_grad():
            for w, g, square, root in zip(self.weights, gradients, self.squares, self.roots, strict=True):
                square.mul_(decay).addcmul_(g, g, value=1.0 - decay)
                torch.add(square, epsilon, out=root).sqrt_()
                w.addcdiv_(g, root, value=-self.learning_rate)
        self.trained += len(returns)
        self.updates += 1
        if self.log is not None and self.log.due():
            self.log.write(steps=self.served, rows=self.trained, calls=self.calls, updates=self.updates)
