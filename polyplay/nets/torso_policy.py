"""What policies of a torso (features of observations), an optional core and a head share.

Shapes: N rows of a batch, B lanes, T+1 rows of a rollout. Acting and unrolling take the same path, so that
the same weights give the same bits on a CPU: whatever the batch for mlp torsos, cores and heads, and for
convolutions when they run in batches of the acting size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.nets.action_heads import ActionHead
from polyplay.nets.device import precision_of
from polyplay.nets.layers import CentredImages, SignedImages, cache_half_weights
from polyplay.nets.policy import Normalize
from polyplay.nets.q_heads import QHead
from polyplay.nets.recurrent import Core, Latent, Temporal

Inputs = CentredImages | SignedImages | Normalize


class TorsoPolicy(nn.Module):
    """previous: the core (or the head, without a core) also takes the previous action and the reward that came with the
    observation, 0 on first rows; `clipped` to ±1 or as it is. inputs: what observations go through first.
    """

    bf16 = False  # the torso's numbers, see nets.precision
    bf16_core = False  # whether the core's input and the head's hidden layers have them too
    noise = 0  # uniforms in (0, 1) that `act` takes per lane and step
    clipped = True
    outputs: tuple[str, ...]  # numbers that `act` puts out beside the action
    action: Spec
    torso: nn.Module
    head: ActionHead | QHead
    core: Core | Temporal | None
    inputs: Inputs | None
    previous: bool

    def spec(self) -> Spec:
        return {"action": self.action} | dict.fromkeys(self.outputs, Field((), "float32"))

    def state_spec(self) -> Spec:
        spec = {} if self.core is None else self.core.state_spec()
        return {**spec, "action": self.action} if self.previous else spec

    def initial(self, lanes: int) -> Batch:
        device = next(self.parameters()).device
        return tree.map(lambda x: torch.from_numpy(x).to(device), tree.zeros(self.state_spec(), (lanes,)))

    def observe(self, batch: Batch) -> None:
        """Learn from rows [T+1, B] what is no weight: running statistics. Called after the rows were learnt."""
        if self.inputs is not None:
            self.inputs.observe(batch["obs"])

    def freeze_noise(self) -> None:
        """Acting uses copies of the large weights in bfloat16, where that is what is computed in, until the next call:
        due whenever the weights have changed. Without it they are converted in every pass.
        """
        if self.bf16:
            cache_half_weights(self._halves())

    def _halves(self) -> Iterable[nn.Module]:
        """Layers that may be computed in bfloat16, among others."""
        return self.torso.modules()

    def _context(self) -> AbstractContextManager[object]:
        return precision_of(self, self.bf16)

    def _features(self, torso: Callable[[Tree], Tensor], obs: Tree) -> Tensor:
        """[N, features]; float32, whatever they were computed in, unless what is behind is computed in that too."""
        with self._context():
            x = torso(obs if self.inputs is None else self.inputs(obs))
        return x.float() if self.bf16 and not self.bf16_core else x

    def _behind_core(
        self, x: Tensor, rows: Batch, state: Batch, noise: Tensor | None = None
    ) -> tuple[Tensor, Batch, Latent | None]:
        """What the head takes of features [N, …] of rows [B] or [R, B], the core's state behind them, and what a
        temporal core drew from with `noise` [N, …]. rows: reward and first, where somebody takes them; action, where
        these are not rows to act in.
        """
        if self.previous:
            before = tree.map(shifted, state["action"], rows["action"]) if "action" in rows else state["action"]
            x = torch.cat([x, self._before(before, rows["reward"].flatten(), rows["first"].flatten()).to(x.dtype)], 1)
        if self.core is None:
            return x, {}, None
        first = torch.atleast_2d(rows["first"])
        context = self._context() if self.bf16_core else contextlib.nullcontext()
        drawn = () if noise is None else (noise.view(*first.shape, -1),)
        y, after, latent = self.core.unroll(x.unflatten(0, first.shape), first, state, context, *drawn)
        return y.flatten(0, 1), after, latent

    def _before(self, action: Tree, reward: Tensor, first: Tensor) -> Tensor:
        """What came before these rows: embedded action, reward [N, numbers of an action + 1]."""
        reward = reward.clamp(-1.0, 1.0) if self.clipped else reward
        return torch.cat([self.head.embed(action), reward.unsqueeze(1)], 1) * (~first).unsqueeze(1)


def shifted(before: Tensor, action: Tensor) -> Tensor:
    """[B, …] and [T+1, B, …] → [(T+1) · B, …]: the action before each row's."""
    return torch.cat([before.unsqueeze(0), action[:-1]]).flatten(0, 1)
