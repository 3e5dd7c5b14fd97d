"""ActorCritic, a policy and its value: a torso (features of observations), an optional core, a head.

Shapes and bits are as nets.torso_policy has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Field, Spec, Tree
from polyplay.nets.action_heads import ActionHead, normal
from polyplay.nets.activation_reuse import Tape
from polyplay.nets.auxiliary import FRAMES, AuxiliaryHeads, pixel_control_values
from polyplay.nets.event_rewards import EventRewards
from polyplay.nets.layers import Linear, initialise, torso_features
from polyplay.nets.recurrent import Core
from polyplay.nets.running_stats import ReturnScale
from polyplay.nets.temporal import Temporal, kl_terms
from polyplay.nets.torso_policy import Inputs, TorsoPolicy
from polyplay.nets.unit_pointer import UnitPointer

if TYPE_CHECKING:
    from polyplay.nets.atari import Conv
    from polyplay.nets.conditional_head import ConditionalHead


class ActorCritic(TorsoPolicy):
    """torso: observation tree [N, ...] → [N, torso.features].

    previous: the core (or the head, without a core) also takes the previous action and the reward that came with the
    observation, clipped to ±1, both 0 on first rows, as in IMPALA. inputs: what observations go through first. returns:
    learns the size of returns; `unroll` then gives what to multiply rewards with. rewards: of events, which then take
    the reward's place everywhere. width: of a hidden layer of the policy and one of the value; 0: none.

    With a temporal core rows have `latent_noise`, and `unroll` gives the KL divergences of nets.temporal.kl_terms.
    """

    outputs = ("logp", "value")
    head: ActionHead

    def __init__(
        self,
        torso: nn.Module,
        head: ActionHead,
        core: Core | Temporal | None = None,
        previous: bool = False,
        init: str = "orthogonal",
        inputs: Inputs | None = None,
        returns: ReturnScale | None = None,
        rewards: EventRewards | None = None,
        width: int = 0,
        auxiliary: AuxiliaryHeads | None = None,
    ):
        super().__init__()
        self.inputs, self.returns, self.rewards, self.auxiliary = inputs, returns, rewards, auxiliary
        self.torso, self.head, self.core, self.previous = torso, head, core, previous
        self.latents = core.noise if isinstance(core, Temporal) else 0
        self.noise, self.action = head.noise + self.latents, head.action
        features = torso_features(torso, head.inputs if previous else None)
        if core is not None and core.inputs != features:
            raise ValueError(f"the core takes {core.inputs} numbers, but gets {features}")
        features = features if core is None else core.features
        pointer = getattr(torso, "pointer", None)  # a part of the actions, and how many numbers a unit has
        self.units = getattr(torso, "unit_features", 0)
        own = getattr(torso, "value_features", 0)  # the value's alone, behind the policy's
        if own and (core is not None or previous):
            raise UserError("--network: separate networks of policy and value have no core; use mlp with one")
        self.split = features - own if own else None
        self.hidden = nn.ModuleList(Linear(n, width) for n in (features - own, own or features) if width)
        self.actions = (
            UnitPointer(width or features, cast("ConditionalHead", head), *pointer)
            if pointer
            else Linear(width or features - own, head.size)
        )
        self.value = Linear(width or own or features, 1)
        initialise(self.hidden, init)
        initialise(self.actions, init, 0.01)
        initialise(self.value, init, 1.0)

    def spec(self) -> Spec:
        noise = {"latent_noise": Field((self.latents,), "float32")} if self.latents else {}
        return {**super().spec(), **noise}

    def follow(self, values: Mapping[str, float]) -> None:
        """Take over what a run's hyperparameters say of parts of the network."""
        for part in (self.core, self.rewards):
            if isinstance(part, Temporal | EventRewards):
                part.follow(values)

    @property
    def recalls(self) -> bool:
        """Whether `unroll` can take what `act` put on a tape."""
        return hasattr(self.torso, "recall")

    def act(self, step: Batch, state: Batch, tape: Tape | None = None) -> tuple[Batch, Batch]:
        """One row [B] of obs, reward, first, mask and events where there are any, and noise [B, noise] (without it the
        action is the mode). tape: gets what `unroll` needs not compute again, see nets.activation_reuse.

        → {"action", "logp", "value"} [B] and the state after it; the caller turns gradients off.
        """
        torso = self.torso if tape is None else partial(self.torso, tape=tape)
        step = self.rewarded(step)
        rows: Batch = {k: step[k] for k in ("reward", "first") if k in step}
        noise, drawn = step.get("noise"), None
        if self.latents and noise is not None:
            drawn, noise = normal(noise[:, : self.latents]), noise[:, self.latents :]
        features, units = self._seen(torso, step["obs"])
        x, after, _ = self._behind_core(features, rows, state, drawn)
        params = self._params(x, step.get("mask"), units)
        action = self.head.mode(params) if noise is None else self.head.sample(params, noise)
        if self.previous:
            after["action"] = action
        out = {"action": action, "logp": self.head.logp(params, action), "value": self._value(x)}
        if self.latents:
            out["latent_noise"] = x.new_zeros(x.shape) if drawn is None else drawn
        return out, after

    def unroll(self, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch:
        """Rows [T+1, B] of obs, reward, first, action, mask where there is one, and the state before row 0, under the
        present weights.

        → {"logp", "value", "entropy"} [T+1, B] for batch["action"], with `returns` also "reward_scale" [].
        `tape`: of acting in these rows with these weights.
        """
        batch = self.rewarded(batch)
        rows = {k: tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action", "mask") if k in batch}
        torso = self.torso if tape is None else partial(cast("Conv", self.torso).recall, tape=tape)
        features, units = self._seen(torso, rows["obs"])
        x, _, latent = self._behind_core(features, batch, state, batch.get("latent_noise"))
        params = self._params(x, rows.get("mask"), units)
        out = {
            "logp": self.head.logp(params, rows["action"]),
            "value": self._value(x),
            "entropy": self.head.entropy(params),
        }
        out = {k: v.unflatten(0, batch["first"].shape) for k, v in out.items()}
        out |= ({} if latent is None else kl_terms(latent)) | self._auxiliary_outputs(x, batch)
        out |= {} if self.rewards is None else {"reward": batch["reward"]}
        return out if self.returns is None else {**out, "reward_scale": self.returns.scale()}

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        if self.returns is not None:
            self.returns.observe(self.rewarded(batch)["reward"], batch["first"])

    def _auxiliary_outputs(self, x: Tensor, batch: Batch) -> Batch:
        """What losses of auxiliary tasks take, from features behind the core [(T+1) · B, features]. Of reward
        prediction batch has `recent`, observations [3, N, …]; of value replay `replayed`, rows [T+1, N, …] with the
        `state` before them.
        """
        heads, out = self.auxiliary, dict[str, Tensor]()
        if heads is None:
            return out
        if heads.pixel is not None:
            behind = x.unflatten(0, batch["first"].shape)
            out["pixel_chosen"], out["pixel_best"] = pixel_control_values(heads.pixel, behind, batch)
        if heads.reward is not None and "recent" in batch:
            rows = tree.map(lambda obs: obs.flatten(0, 1), batch["recent"])
            seen, _ = self._seen(self.torso, rows)
            out["reward_logits"] = heads.reward(seen.unflatten(0, (FRAMES, -1)))
        if heads.value and "replayed" in batch:
            out["replayed_value"] = self._replayed_value(batch["replayed"])
        return out

    def _replayed_value(self, rows: Batch) -> Tensor:
        """V [T+1, N] of rows that are kept, from rows["state"] on."""
        features, _ = self._seen(self.torso, tree.map(lambda x: x.flatten(0, 1), rows["obs"]))
        x, _, _ = self._behind_core(features, rows, rows["state"], rows.get("latent_noise"))
        return self._value(x).unflatten(0, rows["first"].shape)

    def rewarded(self, rows: Batch) -> Batch:
        """Rows with the agent's own reward of events, where it has one and they say what happened."""
        return (
            rows if self.rewards is None or "events" not in rows else {**rows, "reward": self.rewards(rows["events"])}
        )

    def _seen(self, torso: Callable[[Tree], Tensor], obs: Tree) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the core takes of observations [N, …], and what beside it the head does: numbers of units."""
        x = self._features(torso, obs)
        if not self.units:
            return x, ()
        features, units = x.split((x.shape[1] - self.units, self.units), 1)
        return features.contiguous(), (units,)

    def _params(self, x: Tensor, mask: Tree, units: tuple[Tensor, ...]) -> Tensor:
        """The head's numbers, those of illegal actions out of the game."""
        x = x if self.split is None else x[:, : self.split]
        params: Tensor = self.actions(F.relu(self.hidden[0](x)) if self.hidden else x, *units)
        return params if mask is None else self.head.masked(params, mask)

    def _value(self, x: Tensor) -> Tensor:
        x = x if self.split is None else x[:, self.split :]
        value: Tensor = self.value(F.relu(self.hidden[1](x)) if self.hidden else x)
        return value.squeeze(1)
