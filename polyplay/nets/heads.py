"""From numbers to actions: what a policy's last layer means for an action space.

Another space or a mask is another Head: everything else sees only this protocol.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.envs.spaces import Box, Discrete
from polyplay.errors import UserError
from polyplay.tree import Field

_EDGE = 2.0**-24  # uniforms are kept in [_EDGE, 1 - _EDGE]
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Head(Protocol):
    """A distribution over actions [N, *action.shape] given `params` [N, size], the last layer's output.

    A module, for what it learns itself.
    """

    size: int  # numbers it takes per row
    noise: int  # uniforms in (0, 1) a sample takes
    inputs: int  # numbers of `embed`
    action: Field

    def sample(self, params: Tensor, noise: Tensor) -> Tensor: ...  # noise [N, noise]
    def mode(self, params: Tensor) -> Tensor: ...
    def logp(self, params: Tensor, action: Tensor) -> Tensor: ...  # [N]
    def entropy(self, params: Tensor) -> Tensor: ...  # [N]
    def embed(self, action: Tensor) -> Tensor: ...  # [N, inputs]: an action as a network's input


class Categorical(nn.Module):
    """One of n actions by logits; int64 scalars."""

    noise = 1

    def __init__(self, n: int):
        super().__init__()
        self.size = self.inputs = n
        self.action = Field((), "int64")

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Inverse CDF: the first action whose cumulative probability exceeds the uniform; never one of 0."""
        cdf = F.softmax(params, -1).cumsum(-1)
        u = noise.clamp(_EDGE, 1.0 - _EDGE) * cdf[..., -1:]
        found = torch.searchsorted(cdf, u, right=True).squeeze(-1)
        return found.clamp_(max=self.size - 1)  # NaN logits find none: the learner shall see them and stop

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def logp(self, params: Tensor, action: Tensor) -> Tensor:
        return F.log_softmax(params, -1).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        logp = F.log_softmax(params, -1)
        return -(logp.exp() * logp).sum(-1)

    def embed(self, action: Tensor) -> Tensor:
        return F.one_hot(action.long(), self.size).float()


class Gaussian(nn.Module):
    """Independent normals: means by the network, log standard deviations learnt but the same in every state.

    Actions are float32 [*shape], unbounded; pools clip them, log-probabilities are those of the unclipped.
    """

    def __init__(self, shape: tuple[int, ...], log_std: float = 0.0):
        super().__init__()
        self.size = self.noise = self.inputs = math.prod(shape)
        self.action = Field(tuple(shape), "float32")
        self.log_std = nn.Parameter(torch.full((self.size,), float(log_std)))

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        normal = torch.erfinv(2.0 * noise.clamp(_EDGE, 1.0 - _EDGE) - 1.0) * math.sqrt(2.0)
        return self._shaped(params + self.log_std.exp() * normal)

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(params)

    def logp(self, params: Tensor, action: Tensor) -> Tensor:
        z = (action.reshape(params.shape) - params) * (-self.log_std).exp()
        return (-0.5 * z * z - self.log_std - _HALF_LOG_TAU).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (self.log_std + (0.5 + _HALF_LOG_TAU)).sum().expand(params.shape[:-1])

    def embed(self, action: Tensor) -> Tensor:
        return action.reshape(-1, self.inputs)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.action.shape)


def for_space(space: Any, log_std: float = 0.0) -> Categorical | Gaussian:
    """The head for an action space. UserError for spaces that have none."""
    if isinstance(space, Discrete):
        return Categorical(int(space.n))
    if isinstance(space, Box):
        return Gaussian(tuple(space.shape), log_std)
    raise UserError(f"network: actions {space} have no head; allowed are Discrete and Box")
