"""DPGNetwork: an actor μ(s) and a critic Q(s, a) of real actions, in one module. Loops use it as any policy.

Actions are in the environment's units wherever they leave or enter this module: rows, pools and replays hold those.
Inside they are in half ranges, −1 at the space's `low` and 1 at its `high`; so are the deviation of noise and dQ/da.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.tree import Batch, Field, Tree
from polyplay.envs.spaces import Box
from polyplay.nets.action_heads import normal
from polyplay.nets.layers import Linear, initialise, torso_features
from polyplay.nets.torso_policy import TorsoPolicy


class DPGNetwork(TorsoPolicy):
    """actor, critic: torsos of their own. Behind the actor's a layer of widths[0], tanh, and the action, tanh; behind
    the critic's, beside the action, one of widths[1], tanh, and the value.
    """

    outputs = ("value", "chosen")
    low: Tensor
    high: Tensor

    def __init__(self, space: Box, actor: nn.Module, critic: nn.Module, widths: tuple[int, int], init: str = "torch"):
        super().__init__()
        self.shape, self.size = tuple(space.shape), math.prod(space.shape)
        self.action, self.noise = Field(self.shape, "float32"), self.size
        self.core, self.inputs, self.previous = None, None, False
        for name, bound in (("low", space.low), ("high", space.high)):
            self.register_buffer(name, torch.tensor(bound, dtype=torch.float32).reshape(-1), persistent=False)
        self.actor, self.critic = actor, critic
        self.steer = _two(torso_features(actor, None), widths[0], self.size, init)
        self.judge = _two(torso_features(critic, None) + self.size, widths[1], 1, init)

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """One row [B] of obs, noise [B, noise] and epsilon [B], the deviation of the normal noise on each number of the
        action. Without one of the two the action is μ(s).

        → {"action" [B, …] within the bounds, "value": Q(s, μ(s)) [B], "chosen": Q of the action [B]} and no state. The
        caller turns gradients off.
        """
        best, features = self._best(step["obs"]), self._features(self.critic, step["obs"])
        inner, noise, deviation = best, step.get("noise"), step.get("epsilon")
        if deviation is not None:
            if noise is None:
                raise ValueError("a deviation without noise: chance comes from step['noise'] alone")
            inner = (best + deviation.unsqueeze(1) * normal(noise)).clamp(-1.0, 1.0)
        action = self._outer(inner)
        value, chosen = self._q(features, best), self._q(features, self._inner(action))
        return {"action": action, "value": value, "chosen": chosen}, {}

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Rows [T+1, B] of obs and action → {"value", "chosen"} [T+1, B], as `act` gives them."""
        size = batch["action"].shape[:2]
        obs, action = (tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action"))
        features = self._features(self.critic, obs)
        value, chosen = self._q(features, self._best(obs)), self._q(features, self._inner(action))
        return {"value": value.unflatten(0, size), "chosen": chosen.unflatten(0, size)}

    def value(self, obs: Tree) -> Tensor:
        """Q(s, μ(s)) [N] of observations [N, …]."""
        return self._q(self._features(self.critic, obs), self._best(obs))

    def learnt(self, obs: Tree, action: Tensor) -> Batch:
        """What a loss takes of rows [N]: "q", Q of the actions [N, …], with the critic's gradient; with the actor's
        "best", μ(s) [N, A] in half ranges, and "raw", what its tanh was made of; without gradient "value", Q(s, μ(s)),
        and "slope", its dQ/da [N, A] there.
        """
        features = self._features(self.critic, obs)
        raw = self.steer(self._features(self.actor, obs))
        best = raw.tanh()
        at = best.detach().requires_grad_()
        with torch.enable_grad():
            value = self._q(features.detach(), at)
            (slope,) = torch.autograd.grad(value.sum(), at)  # of the weights nothing: they are not asked for
        q = self._q(features, self._inner(action))
        return {"q": q, "best": best, "raw": raw, "value": value.detach(), "slope": slope}

    def _halves(self) -> Iterator[nn.Module]:
        return chain(self.actor.modules(), self.critic.modules())

    def _best(self, obs: Tree) -> Tensor:
        """μ(s) [N, A] in half ranges."""
        return self.steer(self._features(self.actor, obs)).tanh()

    def _q(self, features: Tensor, inner: Tensor) -> Tensor:
        return self.judge(torch.cat([features, inner], 1)).squeeze(1)

    def _inner(self, action: Tensor) -> Tensor:
        """From the environment's units [N, …] to half ranges [N, A]; 0 where there is but one number to choose."""
        flat, half = action.reshape(len(action), self.size), self.high / 2 - self.low / 2
        return (flat - (self.low / 2 + self.high / 2)) / torch.where(half > 0, half, 1.0)

    def _outer(self, inner: Tensor) -> Tensor:
        """The other way, never outside of the bounds by a last bit."""
        flat = (self.low / 2 + self.high / 2) + (self.high / 2 - self.low / 2) * inner
        return torch.minimum(torch.maximum(flat, self.low), self.high).reshape(len(inner), *self.shape)


def _two(inputs: int, width: int, outputs: int, init: str) -> nn.Sequential:
    made = nn.Sequential(Linear(inputs, width), nn.Tanh(), Linear(width, outputs))
    initialise(made, init, 1.0)
    return made
