"""ActorCritic, a policy and its value: a torso (features of observations), an optional core, a head.

Shapes and bits are as nets.torso_policy has them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.nets.action_heads import ActionHead
from polyplay.nets.activation_reuse import Tape
from polyplay.nets.layers import Linear, initialise, torso_features
from polyplay.nets.recurrent import Core
from polyplay.nets.running_stats import ReturnScale
from polyplay.nets.torso_policy import Inputs, TorsoPolicy

if TYPE_CHECKING:
    from polyplay.nets.atari import Conv


class ActorCritic(TorsoPolicy):
    """torso: observation tree [N, ...] → [N, torso.features].

    previous: the core (or the head, without a core) also takes the previous action and the reward that came with the
    observation, clipped to ±1, both 0 on first rows, as in IMPALA. inputs: what observations go through first. returns:
    learns the size of returns; `unroll` then gives what to multiply rewards with.
    """

    outputs = ("logp", "value")
    head: ActionHead

    def __init__(
        self,
        torso: nn.Module,
        head: ActionHead,
        core: Core | None = None,
        previous: bool = False,
        init: str = "orthogonal",
        inputs: Inputs | None = None,
        returns: ReturnScale | None = None,
    ):
        super().__init__()
        self.inputs, self.returns = inputs, returns
        self.torso, self.head, self.core, self.previous = torso, head, core, previous
        self.noise, self.action = head.noise, head.action
        features = torso_features(torso, head.inputs if previous else None)
        if core is not None and core.inputs != features:
            raise ValueError(f"the core takes {core.inputs} numbers, but gets {features}")
        features = features if core is None else core.features
        own = getattr(torso, "value_features", 0)  # the value's alone, behind the policy's
        if own and (core is not None or previous):
            raise UserError("--network: separate networks of policy and value have no core; use mlp with one")
        self.split = features - own if own else None
        self.actions = Linear(features - own, head.size)
        self.value = Linear(own or features, 1)
        initialise(self.actions, init, 0.01)
        initialise(self.value, init, 1.0)

    @property
    def recalls(self) -> bool:
        """Whether `unroll` can take what `act` put on a tape."""
        return hasattr(self.torso, "recall")

    def act(self, step: Batch, state: Batch, tape: Tape | None = None) -> tuple[Batch, Batch]:
        """One row [B] of obs, reward, first, mask where there is one, and noise [B, noise] (without it the action is
        the mode). tape: gets what `unroll` needs not compute again, see nets.activation_reuse.

        → {"action", "logp", "value"} [B] and the state after it; the caller turns gradients off.
        """
        torso = self.torso if tape is None else partial(self.torso, tape=tape)
        rows: Batch = {k: step[k] for k in ("reward", "first") if k in step}
        x, after = self._behind_core(self._features(torso, step["obs"]), rows, state)
        params, noise = self._params(x, step.get("mask")), step.get("noise")
        action = self.head.mode(params) if noise is None else self.head.sample(params, noise)
        if self.previous:
            after["action"] = action
        value = self._value(x)
        return {"action": action, "logp": self.head.logp(params, action), "value": value}, after

    def unroll(self, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch:
        """Rows [T+1, B] of obs, reward, first, action, mask where there is one, and the state before row 0, under the
        present weights.

        → {"logp", "value", "entropy"} [T+1, B] for batch["action"], with `returns` also "reward_scale" [].
        `tape`: of acting in these rows with these weights.
        """
        rows = {k: tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action", "mask") if k in batch}
        torso = self.torso if tape is None else partial(cast("Conv", self.torso).recall, tape=tape)
        x, _ = self._behind_core(self._features(torso, rows["obs"]), batch, state)
        params = self._params(x, rows.get("mask"))
        out = {
            "logp": self.head.logp(params, rows["action"]),
            "value": self._value(x),
            "entropy": self.head.entropy(params),
        }
        out = {k: v.unflatten(0, batch["first"].shape) for k, v in out.items()}
        return out if self.returns is None else {**out, "reward_scale": self.returns.scale()}

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        if self.returns is not None:
            self.returns.observe(batch["reward"], batch["first"])

    def _params(self, x: Tensor, mask: Tree) -> Tensor:
        """The head's numbers, those of illegal actions out of the game."""
        params: Tensor = self.actions(x if self.split is None else x[:, : self.split])
        return params if mask is None else self.head.masked(params, mask)

    def _value(self, x: Tensor) -> Tensor:
        value: Tensor = self.value(x if self.split is None else x[:, self.split :])
        return value.squeeze(1)
