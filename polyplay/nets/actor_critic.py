"""ActorCritic, a policy and its value: a torso (features of observations), an optional core, a head.

Shapes: N rows of a batch, B lanes, T+1 rows of a rollout. Acting and unrolling take the same path, so that
the same weights give the same bits on a CPU: whatever the batch for mlp torsos, cores and heads, and for
convolutions when they run in batches of the acting size (`chunk`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.tree import Batch, Field, Spec, Tree
from polyplay.nets.action_heads import ActionHead
from polyplay.nets.activation_reuse import Tape
from polyplay.nets.layers import CentredImages, Linear, SignedImages, cache_half_weights, initialise, torso_features
from polyplay.nets.precision import precision_of
from polyplay.nets.recurrent import Core
from polyplay.nets.running_stats import Normalize, ReturnScale

if TYPE_CHECKING:
    from polyplay.nets.atari import Conv


class ActorCritic(nn.Module):
    """torso: observation tree [N, ...] → [N, torso.features].

    previous: the core (or the head, without a core) also takes the previous action and the reward that came with the
    observation, clipped to ±1, both 0 on first rows, as in IMPALA. inputs: what observations go through first. returns:
    learns the size of returns; `unroll` then gives what to multiply rewards with.
    """

    bf16 = False  # the torso's numbers, see nets.precision

    def __init__(
        self,
        torso: nn.Module,
        head: ActionHead,
        core: Core | None = None,
        previous: bool = False,
        init: str = "orthogonal",
        inputs: CentredImages | SignedImages | Normalize | None = None,
        returns: ReturnScale | None = None,
    ):
        super().__init__()
        self.inputs, self.returns = inputs, returns
        self.torso, self.head, self.core, self.previous = torso, head, core, previous
        features = torso_features(torso, head.inputs if previous else None)
        if core is not None and core.inputs != features:
            raise ValueError(f"the core takes {core.inputs} numbers, but gets {features}")
        features = features if core is None else core.features
        self.actions = Linear(features, head.size)
        self.value = Linear(features, 1)
        initialise(self.actions, init, 0.01)
        initialise(self.value, init, 1.0)

    @property
    def noise(self) -> int:
        """Uniforms in (0, 1) that `act` takes per lane and step."""
        return self.head.noise

    def spec(self) -> Spec:
        number = Field((), "float32")
        return {"action": self.head.action, "logp": number, "value": number}

    def state_spec(self) -> Spec:
        spec = {} if self.core is None else self.core.state_spec()
        return {**spec, "action": self.head.action} if self.previous else spec

    def initial(self, lanes: int) -> Batch:
        device = self.value.weight.device
        return tree.map(lambda x: torch.from_numpy(x).to(device), tree.zeros(self.state_spec(), (lanes,)))

    @property
    def recalls(self) -> bool:
        """Whether `unroll` can take what `act` put on a tape."""
        return hasattr(self.torso, "recall")

    def act(self, step: Batch, state: Batch, tape: Tape | None = None) -> tuple[Batch, Batch]:
        """One row [B] of obs, reward, first, mask where there is one, and noise [B, noise] (without it the action is
        the mode). tape: gets what `unroll` needs not compute again, see nets.activation_reuse.

        → {"action", "logp", "value"} [B] and the state after it; the caller turns gradients off.
        """
        x = self._features(step["obs"], tape=tape)
        if self.previous:
            x = torch.cat([x, self._before(state["action"], step["reward"], step["first"])], 1)
        after: Batch = {}
        if self.core is not None:
            x, after = self.core.step(x, step["first"], state)
        params, noise = self._params(x, step.get("mask")), step.get("noise")
        action = self.head.mode(params) if noise is None else self.head.sample(params, noise)
        if self.previous:
            after["action"] = action
        value = self.value(x).squeeze(1)
        return {"action": action, "logp": self.head.logp(params, action), "value": value}, after

    def unroll(self, batch: Batch, state: Batch, chunk: int | None = None, tape: Tape | None = None) -> Batch:
        """Rows [T+1, B] of obs, reward, first, action, mask where there is one, and the state before row 0, under the
        present weights.

        → {"logp", "value", "entropy"} [T+1, B] for batch["action"], with `returns` also "reward_scale" [].
        `chunk`: rows per forward pass of the torso (all by default); with chunk=B convolutions give the bits that
        they gave while acting. `tape`: of acting in these rows with these weights.
        """
        first: Tensor = batch["first"]
        size = first.shape
        rows = {k: tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in ("obs", "action", "mask") if k in batch}
        x = self._features(rows["obs"], chunk, tape, recall=tape is not None)
        if self.previous:
            before = tree.map(shifted, state["action"], batch["action"])
            x = torch.cat([x, self._before(before, batch["reward"].flatten(), first.flatten())], 1)
        if self.core is not None:
            x = self.core.unroll(x.unflatten(0, size), first, state)[0].flatten(0, 1)
        params = self._params(x, rows.get("mask"))
        out = {
            "logp": self.head.logp(params, rows["action"]),
            "value": self.value(x).squeeze(1),
            "entropy": self.head.entropy(params),
        }
        out = {k: v.unflatten(0, size) for k, v in out.items()}
        return out if self.returns is None else {**out, "reward_scale": self.returns.scale()}

    def observe(self, batch: Batch) -> None:
        """Learn from rows [T+1, B] what is no weight: running statistics. Called after the rows were learnt."""
        if self.inputs is not None:
            self.inputs.observe(batch["obs"])
        if self.returns is not None:
            self.returns.observe(batch["reward"], batch["first"])

    def hold(self) -> None:
        """Acting uses copies of the large weights in bfloat16, where that is what is computed in, until the next call:
        due whenever the weights have changed. Without it they are converted in every pass.
        """
        if self.bf16:
            cache_half_weights(self.torso.modules())

    def _params(self, x: Tensor, mask: Tree) -> Tensor:
        """The head's numbers, those of illegal actions out of the game."""
        params: Tensor = self.actions(x)
        return params if mask is None else self.head.masked(params, mask)

    def _before(self, action: Tree, reward: Tensor, first: Tensor) -> Tensor:
        """What came before these rows: embedded action, clipped reward [N, inputs + 1]; 0 on first rows."""
        embedded = torch.cat([self.head.embed(action), reward.clamp(-1.0, 1.0).unsqueeze(1)], 1)
        return embedded * (~first).unsqueeze(1)

    def _features(self, obs: Tree, chunk: int | None = None, tape: Tape | None = None, recall: bool = False) -> Tensor:
        """float32 [N, features], whatever they were computed in."""
        with precision_of(self.value.weight, self.bf16):
            obs = obs if self.inputs is None else self.inputs(obs)
            if tape is None:
                x = chunked(self.torso, obs, chunk)
            else:
                x = cast("Conv", self.torso).recall(obs, tape) if recall else self.torso(obs, tape)
        return x.float() if self.bf16 else x


def shifted(before: Tensor, action: Tensor) -> Tensor:
    """[B, …] and [T+1, B, …] → [(T+1) · B, …]: the action before each row's."""
    return torch.cat([before.unsqueeze(0), action[:-1]]).flatten(0, 1)


def chunked(net: nn.Module, obs: Tree, chunk: int | None) -> Tensor:
    """net(obs) in pieces of `chunk` rows."""
    if chunk is None:  # first: an exported graph has any number of rows
        return net(obs)
    n = len(next(tree.leaves(obs))[1])
    if chunk >= n:
        return net(obs)
    pieces = range(0, n, chunk)
    return torch.cat([net(tree.map(lambda x, at=at: x[at : at + chunk], obs)) for at in pieces])
