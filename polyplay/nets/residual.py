"""AlphaGo Zero's network (Silver et al. 2017), and FoldedNetwork, its faster form for acting.

The network is a residual tower of convolutions, followed by a policy head and a value head. `unroll` is for learning:
its batch normalization uses the batch's statistics and updates the running statistics. It raises an error if gradients
are off. `act` and `predict` use the running statistics and have no gradients. `train()` and `eval()` change nothing.

The running statistics are buffers. They are published, saved and averaged over replicas like weights.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete, describe_fields
from polyplay.nets.device import precision_of
from polyplay.nets.layers import Linear, initialize, outline
from polyplay.nets.policy import Policy, PolicyFactory


class NormalizedConv(nn.Module):
    """Convolution without bias that keeps the board's size, followed by batch normalization."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int, filters: int, kernel: int, momentum: float = 0.1, eps: float = 1e-5):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, padding=kernel // 2, bias=False)
        self.scale, self.shift = nn.Parameter(torch.ones(filters)), nn.Parameter(torch.zeros(filters))
        self.register_buffer("mean", torch.zeros(filters))
        self.register_buffer("variance", torch.ones(filters))
        self.momentum, self.eps = momentum, eps

    def forward(self, x: Tensor, by_batch: bool) -> Tensor:
        """Convolve and normalize. If `by_batch` is true, use the batch's statistics and update the running statistics.
        Otherwise, use the running statistics.
        """
        statistics = self.mean, self.variance
        return F.batch_norm(self.conv(x), *statistics, self.scale, self.shift, by_batch, self.momentum, self.eps)


class DualResidualNetwork(Policy):
    """AlphaGo Zero's network: planes of a board [N, C, H, W] → logits of all actions [N, A] and values [N].

    The value is in (−1, 1), for the player to move. A 3×3 convolution comes first, then `blocks` residual blocks of two
    convolutions each. The policy head is a 1×1 convolution of 2 filters and a linear layer. The value head is a 1×1
    convolution of 1 filter, a hidden layer of `hidden` units, and an output of one number with tanh. Batch
    normalization and ReLU follow every convolution.
    """

    bf16 = False  # whether convolutions compute in bfloat16, see nets.device

    def __init__(
        self, planes: tuple[int, int, int], actions: int, blocks: int, filters: int, hidden: int, init: str = "torch"
    ):
        super().__init__()
        channels, rows, columns = planes
        self.planes, self.actions = planes, actions
        self.stem = NormalizedConv(channels, filters, 3)
        self.tower = nn.ModuleList(NormalizedConv(filters, filters, 3) for _ in range(2 * blocks))
        self.policy, self.value = NormalizedConv(filters, 2, 1), NormalizedConv(filters, 1, 1)
        self.logits = Linear(2 * rows * columns, actions)
        self.hidden, self.output = Linear(rows * columns, hidden), Linear(hidden, 1)
        initialize(self, init)

    @property
    def title(self) -> str:
        return f"residual, {len(self.tower) // 2} blocks of {self.stem.conv.out_channels} filters"

    def trunk(self) -> list[NormalizedConv]:
        """Return the convolutions before the heads, in order."""
        return [self.stem, *(cast("NormalizedConv", conv) for conv in self.tower)]

    # -------------------------------------------------------------------------------- as a Policy

    def spec(self) -> Spec:
        return {"action": Field((), "int64"), "value": Field((), "float32")}

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """Return the most probable legal actions and the values, [B] each. step: obs, and mask if it exists."""
        logits, value = self.predict(step["obs"])
        mask = step.get("mask")
        legal = logits if mask is None else logits.masked_fill(~mask, -torch.inf)
        return {"action": legal.argmax(1), "value": value}, state

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Return {"logits" [T, B, A], "value" [T, B]} of observations [T, B, …]. Update the running statistics."""
        if not torch.is_grad_enabled():
            raise RuntimeError("unroll is for learning, but gradients are off; use predict")
        logits, value = self._compute(batch["obs"].flatten(0, 1), by_batch=True)
        lead = batch["obs"].shape[:2]
        return {"logits": logits.unflatten(0, lead), "value": value.unflatten(0, lead)}

    # -------------------------------------------------------------------------------- for acting and learning

    @torch.no_grad()
    def predict(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [N, A] and values [N] of planes of boards, normalized by the running statistics."""
        return self._compute(planes, by_batch=False)

    def _compute(self, planes: Tensor, by_batch: bool) -> tuple[Tensor, Tensor]:
        with precision_of(self, bool(self.bf16)):
            stem, *tower = self.trunk()
            x = F.relu(stem(planes.contiguous(memory_format=torch.channels_last), by_batch))
            for first, second in zip(tower[::2], tower[1::2], strict=True):
                x = F.relu(second(F.relu(first(x, by_batch)), by_batch) + x)
            policy, value = F.relu(self.policy(x, by_batch)), F.relu(self.value(x, by_batch))
        numbers = self.logits.weight.dtype
        value = F.relu(self.hidden(value.flatten(1).to(numbers)))
        return self.logits(policy.flatten(1).to(numbers)), torch.tanh(self.output(value)).squeeze(1)


@dataclass(frozen=True)
class BoardNetworkFactory(PolicyFactory):
    """Makes a DualResidualNetwork for a board game. The default sizes are the paper's.

    Raises UserError if observations are not planes of a board, or if actions are not Discrete.
    """

    spec: EnvSpec
    blocks: int = 19
    filters: int = 256
    hidden: int = 256  # size of the value head's hidden layer
    init: str = "torch"

    def __post_init__(self) -> None:
        obs, action = self.spec.obs, self.spec.action
        if not isinstance(obs, Field) or len(obs.shape) != 3 or obs.dtype != "float32":
            takes = "a board's planes are float32 [C, H, W]; take game:NAME"
            raise UserError(f"--env: the observations are {describe_fields(obs)}; {takes}")
        if not isinstance(action, Discrete):
            raise UserError(f"--env: the actions are {action}; a board's are Discrete; take game:NAME")

    @property
    def title(self) -> str:
        return f"residual, {self.blocks} × {self.filters}"

    @property
    def choice(self) -> str:
        """See PolicyFactory.choice."""
        return f"{self.blocks} residual blocks of {self.filters} filters"

    def __call__(self) -> DualResidualNetwork:
        planes, actions = self.spec.obs.shape, int(self.spec.action.n)  # type: ignore[union-attr]
        sizes = self.blocks, self.filters, self.hidden
        with outline():
            return DualResidualNetwork(planes, actions, *sizes, self.init)


# A residual network for acting only, whose batch normalizations are folded into the convolutions.


class FoldedNetwork(nn.Module):
    """Computes DualResidualNetwork.predict faster, for acting only.

    Batch normalizations are folded into their convolutions, and the first convolutions of both heads are merged into
    one. `take` copies the weights of a network.
    dtype: number type of the convolutions. The linear layers keep the network's number type.
    """

    def __init__(self, network: DualResidualNetwork, dtype: torch.dtype = torch.float32):
        super().__init__()
        stem, *tower = network.trunk()
        self.stem = _empty_conv(stem.conv, stem.conv.out_channels, dtype)
        self.tower = nn.ModuleList(_empty_conv(c.conv, c.conv.out_channels, dtype) for c in tower)
        self.split = network.policy.conv.out_channels  # number of filters of the policy head, before the value head's
        self.heads = _empty_conv(network.policy.conv, self.split + network.value.conv.out_channels, dtype)
        self.logits, self.hidden, self.output = map(copy.deepcopy, (network.logits, network.hidden, network.output))
        self.requires_grad_(False)
        self.take(network)

    @torch.no_grad()
    def take(self, network: DualResidualNetwork) -> None:
        """Copy the present weights and running statistics of a network of the same sizes."""
        for mine, theirs in zip(self.trunk(), network.trunk(), strict=True):
            _write(mine, *folded(theirs))
        heads = [folded(network.policy), folded(network.value)]
        _write(self.heads, *(torch.cat(parts) for parts in zip(*heads, strict=True)))
        ends = (self.logits, network.logits), (self.hidden, network.hidden), (self.output, network.output)
        for layer, new in ends:
            layer.load_state_dict(new.state_dict())

    def trunk(self) -> list[nn.Conv2d]:
        """Return the convolutions before the heads, in order."""
        return [self.stem, *(cast("nn.Conv2d", conv) for conv in self.tower)]

    def forward(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [N, A] and values [N] of planes [N, C, H, W]."""
        stem, *tower = self.trunk()
        x = F.relu_(stem(planes.to(stem.weight.dtype)))
        for first, second in zip(tower[::2], tower[1::2], strict=True):
            x = F.relu_(second(F.relu_(first(x))).add_(x))
        numbers = self.output.weight.dtype
        policy, value = F.relu_(self.heads(x)).to(numbers).tensor_split((self.split,), 1)
        value = self.output(F.relu_(self.hidden(value.flatten(1))))
        return self.logits(policy.flatten(1)), torch.tanh(value).squeeze(1)


def folded(conv: NormalizedConv) -> tuple[Tensor, Tensor]:
    """Return weight and bias, in float64, of a convolution that equals `conv` with its normalization."""
    factor = conv.scale.double() * (conv.variance.double() + conv.eps).rsqrt()
    return conv.conv.weight.double() * factor.view(-1, 1, 1, 1), conv.shift.double() - conv.mean.double() * factor


def _empty_conv(like: nn.Conv2d, filters: int, dtype: torch.dtype) -> nn.Conv2d:
    """Make a convolution like `like`, but with `filters` filters and a bias.

    The weights are in channels-last order, which is faster on a CPU.
    """
    kernel, around = like.kernel_size[0], like.padding[0]
    conv = nn.Conv2d(like.in_channels, filters, kernel, padding=around, dtype=dtype, device=like.weight.device)
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    return conv


def _write(conv: nn.Conv2d, weight: Tensor, bias: Tensor) -> None:
    assert conv.bias is not None
    conv.weight.copy_(weight)
    conv.bias.copy_(bias)
