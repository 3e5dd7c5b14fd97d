"""ε-greedy actions from values: by torch's operations or, on a CPU, in one compiled loop, to the same bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyplay.nets import q_values

CHANCE = 3  # uniforms of an action: explore or not, which action then, which of several best
Choice = tuple[Tensor, Tensor, Tensor]


def epsilon_greedy(q: Tensor, mask: Tensor | None, noise: Tensor, epsilon: Tensor | None) -> Choice:
    """q [B, A] float32; mask bool [B, A]: legal actions, None: all; noise [B, CHANCE or more]; epsilon [B]: the chance
    of a random legal action instead of the best one, None: 0.

    → action int64, value max_a Q over legal actions, Q of the action, [B] each. Of several best actions one by chance.
    """
    return (compiled if q.device.type == "cpu" else by_torch)(q, mask, noise, epsilon)


def by_torch(q: Tensor, mask: Tensor | None, noise: Tensor, epsilon: Tensor | None) -> Choice:
    """epsilon_greedy on any device."""
    legal = q if mask is None else q.masked_fill(~mask, -torch.inf)
    value = legal.amax(1)
    action = random_choice(legal == value.unsqueeze(1), noise[:, 2])
    if epsilon is not None:
        some = random_choice(torch.ones_like(q, dtype=torch.bool) if mask is None else mask, noise[:, 1])
        action = torch.where(noise[:, 0] < epsilon, some, action)
    return action, value, q_values.take_action(q, action)


def random_choice(among: Tensor, u: Tensor) -> Tensor:
    """One of those marked in bool [N, A], each as likely, by uniforms [N] → int64 [N]; 0 where none is."""
    count = among.sum(1)
    nth = torch.minimum((u * count).long(), count - 1)
    return (among.cumsum(1) <= nth.unsqueeze(1)).sum(1)


def compiled(q: Tensor, mask: Tensor | None, noise: Tensor, epsilon: Tensor | None) -> Choice:
    """epsilon_greedy on a CPU. Thirty operations on a few numbers each cost more than a small network, and beside
    another thread each waits for the interpreter.
    """
    from polyplay.nets import epsilon_greedy_kernels

    rows, legal = len(q), np.ones(q.shape, np.bool_) if mask is None else mask.contiguous().numpy()
    chance = np.zeros(rows, np.float32) if epsilon is None else epsilon.contiguous().numpy()
    action, value, chosen = np.empty(rows, np.int64), np.empty(rows, np.float32), np.empty(rows, np.float32)
    given = q.detach().contiguous().numpy(), legal, noise.contiguous().numpy(), chance
    epsilon_greedy_kernels.epsilon_greedy_loop(*given, action, value, chosen)
    return torch.from_numpy(action), torch.from_numpy(value), torch.from_numpy(chosen)
