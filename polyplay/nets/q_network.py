"""QNetwork and DPGNetwork.

QNetwork: the policy that Q-learning acts with, and the networks that it learns. Loops use it as any policy.

torso (features of observations), an optional core, a head of action values (nets.q_heads). Shapes as in
nets.torso_policy; the same weights give the same values to the bit in acting and unrolling, in the same batches.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.tree import Batch, Field, Tree
from polyplay.envs.spaces import Box
from polyplay.nets import q_heads
from polyplay.nets.action_heads import normal
from polyplay.nets.layers import Conv2d, Linear, initialise, torso_features
from polyplay.nets.q_heads import CHANCE, QHead, epsilon_greedy
from polyplay.nets.recurrent import Core, Temporal
from polyplay.nets.torso_policy import Inputs, TorsoPolicy


class QNetwork(TorsoPolicy):
    """previous: the core (or the head, without a core) also takes the previous action and the reward that came with the
    observation, 0 on first rows; `clipped` to ±1 or as it is (R2D2). support: lowest and highest atom. Discrete
    actions.
    """

    bf16_core = True
    outputs = ("value", "chosen")
    action = Field((), "int64")
    head: QHead

    def __init__(
        self,
        torso: nn.Module,
        head: QHead,
        core: Core | Temporal | None = None,
        previous: bool = False,
        clipped: bool = False,
        inputs: Inputs | None = None,
        support: tuple[float, float] = (-10.0, 10.0),
    ):
        super().__init__()
        self.torso, self.head, self.core, self.inputs = torso, head, core, inputs
        self.previous, self.clipped, self.support = previous, clipped, support
        self.noise = CHANCE + (q_heads.COLUMNS if head.noise else 0)

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """One row [B] of obs, reward, first, mask where there is one, noise [B, noise], and epsilon [B]: the chance of
        a random legal action instead of the best one. No noise: the best action of the mean weights, the first of
        several.

        → {"action", "value": max_a Q, "chosen": Q of the action} [B] and the state after it; over legal actions. The
        caller turns gradients off.
        """
        noise, epsilon, mask = step.get("noise"), step.get("epsilon"), step.get("mask")
        key = None if noise is None or not self.head.noise else q_heads.keys(noise)
        rows: Batch = {k: step[k] for k in ("reward", "first") if k in step}
        x, after, _ = self._behind_core(self._features(self.torso, step["obs"]), rows, state)
        q = self._q(self._scores(x, key))
        if noise is None:
            if epsilon is not None:
                raise ValueError("epsilon without noise: chance comes from step['noise'] alone")
            legal = q_heads.legal_values(q, mask)
            action, value = legal.argmax(1), legal.amax(1)
            chosen = q_heads.take_action(q, action)
        else:
            action, value, chosen = epsilon_greedy(q, mask, noise, epsilon)
        if self.previous:
            after["action"] = action
        return {"action": action, "value": value, "chosen": chosen}, after

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Rows [T+1, B] of obs, reward, first, action, mask where there is one, noise where weights shall be as noisy
        as while acting, and the state before row 0 → {"value", "chosen"} [T+1, B].
        """
        q = self._q(self.scores(batch, state))
        return {
            "value": q_heads.legal_values(q, batch.get("mask")).amax(-1),
            "chosen": q_heads.take_action(q, batch["action"]),
        }

    def scores(self, batch: Batch, state: Batch, key: int | None = None, cached: bool = False) -> Tensor:
        """What losses take: q [R, B, A] or logits [R, B, A, K] of rows [R, B], with gradient where it is wanted.

        batch: obs; with a core or `previous` first, reward and action too, and the `state` before row 0. key: of the
        noise, one for all rows; None: batch["noise"]'s if it is there, else the mean weights. cached: may use the
        copies that `freeze_noise` made; otherwise the weights are the present ones.
        """
        keys = None
        if self.head.noise and key is not None:
            keys = torch.full((1,), key % 2**63, dtype=torch.int64, device=next(self.parameters()).device)
        elif self.head.noise and "noise" in batch:
            keys = q_heads.keys(batch["noise"].flatten(0, 1))
        with contextlib.nullcontext() if cached else self._present_weights():
            made = self._scores(self._unrolled(batch, state)[0], keys)
        lead = next(tree.leaves(batch["obs"]))[1].shape[:2]
        return made.unflatten(0, lead)

    def after(self, batch: Batch, state: Batch) -> Batch:
        """The state behind rows [R, B], R ≥ 1, by the present weights."""
        with self._present_weights():
            _, after = self._unrolled(batch, state)
        return {**after, "action": batch["action"][-1]} if self.previous else after

    def _unrolled(self, batch: Batch, state: Batch) -> tuple[Tensor, Batch]:
        """What the head takes of rows [R, B]: [R · B, inputs], and the core's state behind them."""
        obs = tree.map(lambda x: x.flatten(0, 1), batch["obs"])
        return self._behind_core(self._features(self.torso, obs), batch, state)[:2]

    def _halves(self) -> Iterator[Linear | Conv2d]:
        yield from (layer for layer in self.torso.modules() if isinstance(layer, Linear | Conv2d))
        yield from self.head.halves()
        if self.core is not None:
            yield self.core.input

    @contextlib.contextmanager
    def _present_weights(self) -> Iterator[None]:
        """The weights as they are, whatever copies there are."""
        cached = [(layer, layer.half_weight) for layer in self._halves()]
        for layer, _ in cached:
            layer.half_weight = None
        try:
            yield
        finally:
            for layer, weight in cached:
                layer.half_weight = weight

    def _scores(self, x: Tensor, keys: Tensor | None) -> Tensor:
        noise = None if keys is None else q_heads.draw_noise(keys, self.head.noise, self.head.noisy)
        return self.head(x, noise, self._context)

    def _q(self, scores: Tensor) -> Tensor:
        return q_heads.expected_value(scores, *self.support) if self.head.atoms else scores


# DPGNetwork: an actor μ(s) and a critic Q(s, a) of real actions, in one module. Loops use it as any policy.
#
# Actions are in the environment's units wherever they leave or enter this module: rows, pools and replays hold those.
# Inside they are in half ranges, −1 at the space's `low` and 1 at its `high`; so are the deviation of noise and dQ/da.


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
