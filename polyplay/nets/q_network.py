"""QNetwork: the policy that Q-learning acts with, and the networks that it learns. Loops use it as any policy.

torso (features of observations), an optional core, a head of action values (nets.q_heads). Shapes as in
nets.torso_policy; the same weights give the same values to the bit in acting and unrolling, in the same batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.tree import Batch, Field
from polyplay.nets import noisy, q_values
from polyplay.nets.epsilon_greedy import CHANCE, epsilon_greedy
from polyplay.nets.layers import Conv2d, Linear, torso_features
from polyplay.nets.q_heads import QHead
from polyplay.nets.recurrent import Core
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
        core: Core | None = None,
        previous: bool = False,
        clipped: bool = False,
        inputs: Inputs | None = None,
        support: tuple[float, float] = (-10.0, 10.0),
    ):
        super().__init__()
        self.torso, self.head, self.core, self.inputs = torso, head, core, inputs
        self.previous, self.clipped, self.support = previous, clipped, support
        self.noise = CHANCE + (noisy.COLUMNS if head.noise else 0)
        features = torso_features(torso, head.actions if previous else None)
        taken = head.inputs if core is None else core.inputs
        if taken != features:
            raise ValueError(f"head or core takes {taken} numbers, not {features}")

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """One row [B] of obs, reward, first, mask where there is one, noise [B, noise], and epsilon [B]: the chance of
        a random legal action instead of the best one. No noise: the best action of the mean weights, the first of
        several.

        → {"action", "value": max_a Q, "chosen": Q of the action} [B] and the state after it; over legal actions. The
        caller turns gradients off.
        """
        noise, epsilon, mask = step.get("noise"), step.get("epsilon"), step.get("mask")
        key = None if noise is None or not self.head.noise else noisy.keys(noise)
        rows: Batch = {k: step[k] for k in ("reward", "first") if k in step}
        x, after, _ = self._behind_core(self._features(self.torso, step["obs"]), rows, state)
        q = self._q(self._scores(x, key))
        if noise is None:
            if epsilon is not None:
                raise ValueError("epsilon without noise: chance comes from step['noise'] alone")
            legal = _legal(q, mask)
            action, value = legal.argmax(1), legal.amax(1)
            chosen = q_values.take_action(q, action)
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
        return {"value": _legal(q, batch.get("mask")).amax(-1), "chosen": q_values.take_action(q, batch["action"])}

    def scores(self, batch: Batch, state: Batch, key: int | None = None, cached: bool = False) -> Tensor:
        """What losses take: q [R, B, A] or logits [R, B, A, K] of rows [R, B], with gradient where it is wanted.

        batch: obs; with a core or `previous` first, reward and action too, and the `state` before row 0. key: of the
        noise, one for all rows; None: batch["noise"]'s if it is there, else the mean weights. cached: may use the
        copies that `hold` made; otherwise the weights are the present ones.
        """
        keys = None
        if self.head.noise and key is not None:
            keys = torch.full((1,), key % 2**63, dtype=torch.int64, device=next(self.parameters()).device)
        elif self.head.noise and "noise" in batch:
            keys = noisy.keys(batch["noise"].flatten(0, 1))
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
        noise = None if keys is None else noisy.draw_noise(keys, self.head.noise, self.head.noisy)
        return self.head(x, noise, self._context)

    def _q(self, scores: Tensor) -> Tensor:
        return q_values.expected_value(scores, *self.support) if self.head.atoms else scores


def _legal(q: Tensor, mask: Tensor | None) -> Tensor:
    """Values, those of illegal actions −∞."""
    return q if mask is None else q.masked_fill(~mask, -torch.inf)
