"""The actor-critic network (ActorCritic), the heads of UNREAL's auxiliary tasks, and rewards computed from game events.

ActorCritic is a policy network with a value head. The torso, the first part of the network, computes features of
observations. An optional recurrent core and the heads follow.

In shapes, B is the number of lanes (parallel environments), T+1 the number of steps in a rollout, and N the number of
observations in any batch. On a CPU, `act` and `unroll` give bitwise equal results for equal weights. With convolutions,
this holds only if both use batches of the same size.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.pool import OWN_REWARD, TEAM_REWARD, EnvSpec
from polyplay.envs.spaces import ActionSpec, describe_actions, describe_fields
from polyplay.nets.action_heads import ActionHead, ConditionalHead, UnitPointer, normal
from polyplay.nets.device import precision_of
from polyplay.nets.layers import (
    Axis,
    AxisSegment,
    CenteredImages,
    Linear,
    SignedImages,
    Tape,
    TensorAxes,
    axis,
    cache_half_weights,
    initialize,
    spare_rows,
    tracing,
)
from polyplay.nets.policy import Normalize, Policy, ReturnScale, TaskValues, Torso, is_pixels, task_axis
from polyplay.nets.recurrent import Core, Latent, Temporal, kl_terms

# Rewards of an agent: a weighted sum of game events; evolution tunes the weights (Jaderberg et al. 2019).


PREFIX = "reward_"  # prefix of hyperparameters that are weights of events
SPIRIT = "team_spirit"  # hyperparameter τ: r = (1 − τ) · own reward + τ · team's mean (Berner et al. 2019, appendix G)


class EventRewards(nn.Module):
    """Reward computed from counts of game events: r = Σ_e w_e · events_e. The weights w are published with the network,
    but training does not change them.
    """

    weights: Tensor

    def __init__(self, events: Sequence[str]):
        super().__init__()
        self.names = [PREFIX + event for event in events]
        self.register_buffer("weights", torch.zeros(len(events)))
        self.axes = {"weights": TensorAxes((tuple(AxisSegment(name, (1,), part=name) for name in self.names),))}

    def forward(self, events: Tensor) -> Tensor:
        """Return rewards [...] of event counts [..., E]."""
        return (events * self.weights).sum(-1)

    def apply_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Set the weights named in `values`. "team_spirit" sets the weights of the player's and the team's reward."""
        known = dict(values)
        if SPIRIT in values:
            known |= {PREFIX + OWN_REWARD: 1.0 - values[SPIRIT], PREFIX + TEAM_REWARD: values[SPIRIT]}
        for i, name in enumerate(self.names):
            if name in known:
                self.weights[i] = known[name]


# Heads of UNREAL's auxiliary tasks (Jaderberg et al. 2016): pixel control and reward prediction.


PICTURE, CELL = 84, 4  # side in pixels of UNREAL's image, whose middle 80 × 80 pixels count, and of a cell
CHANNELS = 32  # channels of the map before the deconvolution
REWARD_CLASSES = 3
FRAMES = 3  # number of rows from which a reward is predicted


def control_cells(view: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of cells (h, w) into which pixel control divides an image [C, H, W]. An image of 84 × 84 pixels
    has 20 × 20 cells. A smaller image has one cell per pixel. Raises UserError unless both sides have 84 pixels, or
    both have 3 to 83 pixels.
    """
    if len(view) == 3 and view[1:] == (PICTURE, PICTURE):
        return PICTURE // CELL - 1, PICTURE // CELL - 1
    if len(view) == 3 and min(view[1:]) >= 3 and max(view[1:]) < PICTURE:
        return view[1], view[2]
    allowed = "[C, 84, 84], or planes of 3 to 83 cells a side"
    raise UserError(f"--auxiliary pixel: the view is {list(view)}, but must be {allowed}")


class PixelControl(nn.Module):
    """Head of pixel control: computes action values of every cell of the image from features.

    A fully connected layer with ReLU is followed by a deconvolution, which computes V and the advantages A_k of each
    part k of the action. For cell c and action a, Q(c, a) = V(c) + Σ_k (A_k(c, a_k) − mean A_k(c, ·)). For actions with
    one part, this is the dueling network of Wang et al. (2016), as in UNREAL. The maximum over actions is V + Σ_k (max
    A_k − mean A_k).

    The deconvolution makes 20 × 20 cells from 9 × 9 by a 4 × 4 kernel and stride 2. If the number of cells along a side
    is odd, the kernel has size 3 along that side. Unlike in miyosuda/unreal, no ReLU follows, because Q would get no
    gradient where ReLU gives 0. Raises UserError if some actions are continuous.
    """

    options: Tensor  # [ΣA]: for each advantage, the number of values of its part of the action
    starts: Tensor  # [K]: each part's first output channel of the deconvolution; channel 0 is V

    def __init__(self, features: int, cells: tuple[int, int], action: ActionSpec):
        super().__init__()
        leaves = dict(tree.leaves(action))
        if not all(leaf.classes for leaf in leaves.values()):
            shown = describe_actions(action)
            raise UserError(f"--auxiliary pixel: needs discrete actions, but the environment's are {shown}")
        self.cells, self.paths = cells, tuple(leaves)
        self.parts = [n for leaf in leaves.values() for n in leaf.classes]
        options, starts = [n for n in self.parts for _ in range(n)], [*accumulate(self.parts[:-1], initial=1)]
        self.register_buffer("options", torch.tensor(options), persistent=False)
        self.register_buffer("starts", torch.tensor(starts), persistent=False)
        kernel = 4 - cells[0] % 2, 4 - cells[1] % 2
        self.map = (cells[0] - kernel[0]) // 2 + 1, (cells[1] - kernel[1]) // 2 + 1
        self.fc = Linear(features, CHANNELS * math.prod(self.map))
        self.deconv = nn.ConvTranspose2d(CHANNELS, 1 + sum(self.parts), kernel, stride=2)
        advantages = (AxisSegment(f"advantages {i}", (n,), silent=True) for i, n in enumerate(self.parts))
        values, sides = (*axis("value", 1, fixed=True), *advantages), [axis("kernel", n, fixed=True) for n in kernel]
        self.axes = {"deconv.weight": TensorAxes((axis("channels", CHANNELS, fixed=True), values, *sides))}
        self.axes["deconv.bias"] = TensorAxes((values,))
        initialize(self.fc, "torch")
        bound = (CHANNELS * math.prod(kernel)) ** -0.5
        for weight in self.deconv.parameters():
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return the deconvolution's input, maps [N, 32, h', w'], from features x [N, features]."""
        return F.relu(self.fc(x), inplace=True).unflatten(1, (CHANNELS, *self.map))

    def values(self, maps: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return V [N, h, w], and the advantages A_k [N, n_k, h, w] of each part k."""
        value, *advantages = self.deconv(maps).split((1, *self.parts), 1)
        return value[:, 0], tuple(advantages)

    def chosen(self, maps: Tensor, action: Tree) -> Tensor:
        """Return Q [N, h, w] of the given actions [N, …]."""
        # Q is linear in the kernels: one deconvolution with their weighted sum takes less time than Q of all actions
        share = self._shares(action)
        weight = self.deconv.weight.permute(1, 2, 3, 0)  # [1 + ΣA, kernel, 32]
        kernels = (share @ weight.flatten(1)).unflatten(1, (-1, CHANNELS))
        strokes = torch.bmm(kernels, maps.flatten(2))
        q = F.fold(strokes, self.cells, self.deconv.kernel_size, stride=2)
        bias = cast("Tensor", self.deconv.bias)
        return q.squeeze(1) + (share @ bias).view(-1, 1, 1)

    @torch.no_grad()
    def best(self, maps: Tensor) -> Tensor:
        """Return max_a Q [N, h, w], without gradient."""
        best, advantages = self.values(maps)
        for advantage in advantages:
            best = best + advantage.amax(1) - advantage.mean(1)
        return best

    def _shares(self, action: Tree) -> Tensor:
        """Return the coefficients [N, 1 + ΣA] of V and of all advantages in Q of the given actions."""
        found = dict(tree.leaves(action))
        parts = torch.cat([found[path].reshape(len(found[path]), -1) for path in self.paths], 1)
        mean = -1.0 / self.options.to(self.deconv.weight.dtype)
        share = torch.cat([mean.new_ones(1), mean]).repeat(len(parts), 1)
        at = parts.long() + self.starts
        return share.scatter_add_(1, at, torch.ones_like(at, dtype=share.dtype))


class RewardPrediction(nn.Module):
    """Head that predicts the class of the next reward from the features of three rows. It has one hidden layer, of 128
    units with ReLU.
    """

    def __init__(self, features: int):
        super().__init__()
        self.hidden, self.logits = Linear(3 * features, 128), Linear(128, REWARD_CLASSES)
        initialize(self, "torch")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [N, 3] of features x [3, N, features], the oldest row first."""
        return self.logits(F.relu(self.hidden(torch.cat(x.unbind(), 1)), inplace=True))


def bootstrap_rows(batch: Batch) -> Tensor:
    """Return a bool mask [T+1, B] of the rows from which pixel control bootstraps: the last row of the rollout, and the
    last row of each truncated episode. Terminated rows are not marked.
    """
    first = batch["first"]
    rows = torch.cat([first[1:], torch.ones_like(first[:1])]) & ~batch["terminated"] & ~first
    rows[0] = False
    return rows


def pixel_control_values(head: PixelControl, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the inputs of unreal.pixel_control_loss: chosen [T, B, h, w] and best [T+1, B, h, w]. The first is Q of
    the actions taken. The second is the maximum of Q over actions, or 0 in rows that `bootstrap_rows` does not mark.

    `x`: features [T+1, B, F].
    `batch`: tensors "action" (or a nested dict), "first" and "terminated", [T+1, B, …].
    """
    rows = bootstrap_rows(batch)
    if x.ndim != 3 or x.shape[:2] != rows.shape:
        raise ValueError(f"x must be {list(rows.shape)} and features; got {list(x.shape)}")
    action = tree.map(lambda a: a[:-1].flatten(0, 1), batch["action"])
    chosen = head.chosen(head(x[:-1].flatten(0, 1)), action).unflatten(0, (-1, x.shape[1]))
    with torch.no_grad():
        if tracing():  # all rows, since a trace cannot depend on the number of used rows
            every = head.best(head(x.flatten(0, 1))).unflatten(0, rows.shape)
            return chosen, torch.where(rows[..., None, None], every, 0.0)
        best = torch.zeros(*rows.shape, *head.cells, dtype=chosen.dtype, device=x.device)
        best[rows] = head.best(head(x[rows]))
    return chosen, best


class AuxiliaryHeads(nn.Module):
    """Heads of UNREAL's auxiliary tasks `pixel` and `reward`. The task `value` uses the policy's value head.

    `features`: number of features after the core, and number of features after the torso.
    """

    pixel: PixelControl | None
    reward: RewardPrediction | None

    def __init__(self, tasks: Collection[str], features: tuple[int, int], spec: EnvSpec):
        super().__init__()
        self.pixel, self.reward, self.value = None, None, "value" in tasks  # value: whether to evaluate replayed rows
        if "pixel" in tasks:
            shown = [field.shape for _, field in tree.leaves(spec.obs) if is_pixels(field)]
            if len(shown) != 1:
                seen = describe_fields(spec.obs)
                raise UserError(f"--auxiliary pixel: takes one image of bytes, but the observations are {seen}")
            self.pixel = PixelControl(features[0], control_cells(shown[0]), spec.action)
        if "reward" in tasks:
            self.reward = RewardPrediction(features[1])

    def stand(self, behind: Axis, torso: Axis) -> None:
        """Name the inputs of the heads, for surgery. `behind` names the features after the core, and `torso` those
        after the torso.
        """
        if self.pixel is not None:
            self.pixel.fc.stand(axis("maps", self.pixel.fc.out_features, fixed=True), behind)
        if self.reward is not None:
            seen = tuple(AxisSegment(f"{s.name} of row {i}", s.shape) for i in range(FRAMES) for s in torso)
            self.reward.hidden.stand(axis("hidden", self.reward.hidden.out_features, fixed=True), seen)


# Base of policies that consist of a torso (features of observations), an optional core and a head.


Inputs = CenteredImages | SignedImages | Normalize


class TorsoPolicy(Policy):
    """Base of policies that consist of a torso, an optional core and a head.

    `previous`: whether the core also takes the previous action, and the reward that came with the observation. If there
        is no core, the head takes them. Both are 0 in the first row of an episode.
    `clipped`: whether this reward is clipped to ±1.
    `inputs`: module that preprocesses observations.
    """

    bf16 = False  # whether the torso computes in bfloat16, see nets.device
    bf16_core = False  # whether the core's input layer and the head's hidden layers also compute in bfloat16
    clipped = True
    outputs: tuple[str, ...]  # names of the numbers that `act` returns besides the action
    action: Spec
    torso: Torso
    head: Any  # an ActionHead or a QHead
    core: Core | Temporal | None
    inputs: Inputs | None
    previous: bool
    units = 0  # number of features, the last ones, that skip the core and enter the head

    def spec(self) -> Spec:
        return {"action": self.action} | dict.fromkeys(self.outputs, Field((), "float32"))

    def state_spec(self) -> Spec:
        spec = {} if self.core is None else self.core.state_spec()
        return {**spec, "action": self.action} if self.previous else spec

    def initial(self, lanes: int) -> Batch:
        device = next(self.parameters()).device
        return tree.map(lambda x: torch.from_numpy(x).to(device), tree.zeros(self.state_spec(), (lanes,)))

    def observe(self, batch: Batch) -> None:
        """See Policy.observe."""
        if self.inputs is not None:
            self.inputs.observe(batch["obs"])

    def cache_weights(self) -> None:
        """See Policy.cache_weights."""
        if self.bf16:
            cache_half_weights(self.modules())

    def _context(self) -> contextlib.AbstractContextManager[object]:
        return precision_of(self, bool(self.bf16))

    def _features(self, torso: Callable[[Tree], Tensor], obs: Tree) -> Tensor:
        """Return features [N, features], in bfloat16 if both `bf16` and `bf16_core` are True, else in float32."""
        if not self.bf16:
            return torso(obs if self.inputs is None else self.inputs(obs))
        with self._context():
            x = torso(obs if self.inputs is None else self.inputs(obs))
        return x if self.bf16_core else x.float()

    def _behind_core(
        self, x: Tensor, rows: Batch, state: Batch, noise: Tensor | None = None
    ) -> tuple[Tensor, Batch, Latent | None]:
        """Return the heads' input (without features of units), the core's new state, and a temporal core's Latent.

        `x`: features [N, …] of rows [B] or [R, B].
        `rows`: "reward" and "first" if needed, and in `unroll` also "action".
        `noise`: standard normal numbers for the Latent, [N, …].
        """
        if self.units:
            x = x[:, : -self.units].contiguous()
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
        """Return the embedded previous action and the reward, [N, head.inputs + 1], with 0 on first rows."""
        reward = reward.clamp(-1.0, 1.0) if self.clipped else reward
        return torch.cat([self.head.embed(action), reward.unsqueeze(1)], 1) * (~first).unsqueeze(1)


def shifted(before: Tensor, action: Tensor) -> Tensor:
    """Return the previous action of each row, [(T+1) · B, …]. In row 0, this is `before` [B, …]."""
    return torch.cat([before.unsqueeze(0), action[:-1]]).flatten(0, 1)


class ActorCritic(TorsoPolicy):
    """Policy network with a value head, for actor-critic algorithms.

    `torso`: maps observations, a nested dict of [N, ...], to features [N, torso.features].
    `previous`: whether the core also takes the previous action, and the reward that came with the observation, clipped
        to ±1 as in IMPALA. If there is no core, the heads take them. Both are 0 in the first row of an episode.
    `inputs`: module that preprocesses observations.
    `returns`: module that tracks the size of returns. If given, `unroll` also returns "reward_scale".
    `rewards`: module that computes rewards from game events, in place of the environment's rewards.
    `width`: size of a hidden layer before the policy's outputs, and of another before the value. 0: no hidden layers.
    `values`: module that selects an observation's value among several outputs of the value head.

    With a temporal core, rows have `latent_noise`, and `unroll` also returns the KL divergences of recurrent.kl_terms.
    """

    outputs = ("logp", "value")
    head: ActionHead

    def __init__(
        self,
        torso: Torso,
        head: ActionHead,
        core: Core | Temporal | None = None,
        previous: bool = False,
        init: str = "orthogonal",
        inputs: Inputs | None = None,
        returns: ReturnScale | None = None,
        rewards: EventRewards | None = None,
        width: int = 0,
        auxiliary: AuxiliaryHeads | None = None,
        values: TaskValues | None = None,
    ):
        super().__init__()
        self.inputs, self.returns, self.rewards, self.auxiliary = inputs, returns, rewards, auxiliary
        self.values, self.settles = values, values is not None
        self.observes = inputs is not None
        self.tuned = tuple(part for part in (core, rewards) if isinstance(part, Temporal | EventRewards))
        self.torso, self.head, self.core, self.previous = torso, head, core, previous
        self.latents = core.noise if isinstance(core, Temporal) else 0
        self.noise, self.action = head.noise + self.latents, head.action
        self.units, own, pointer = torso.unit_features, torso.value_features, torso.pointer
        if own and (core is not None or previous):
            raise UserError("--network: separate networks of policy and value take no core; use mlp")
        size = torso.core_features
        seen = torso.feature_axis or axis("features", size)
        behind = (*seen, *_embedded_axis(head, torso), *axis("reward", 1)) if previous else seen
        if core is not None:
            core.input.stand(core.rows, behind)
            behind = axis("core", core.features)
        if auxiliary is not None:
            auxiliary.stand(behind, seen)
        self.split = size - own if own else None
        acting, valued = (axis("the policy's", size - own), axis("the value's", own)) if own else (behind, behind)
        self.hidden = nn.ModuleList(Linear.along(axis("hidden", width), x) for x in (acting, valued) if width)
        acting, valued = (axis("hidden", width),) * 2 if width else (acting, valued)
        self.actions = (
            UnitPointer(acting, cast("ConditionalHead", head), *pointer)
            if pointer
            else Linear.along(head.axis(), acting)
        )
        self.value = Linear.along(task_axis(values.tasks if values else ()), valued)
        initialize(self.hidden, init)
        initialize(self.actions, init, 0.01)
        initialize(self.value, init, 1.0)

    def spec(self) -> Spec:
        noise = {"latent_noise": Field((self.latents,), "float32")} if self.latents else {}
        return {**super().spec(), **noise}

    def cache_weights(self) -> None:
        """See Policy.cache_weights. Copies only the torso's weights."""
        if self.bf16:
            cache_half_weights(self.torso.modules())

    @property
    def recalls(self) -> bool:
        """Whether `unroll` can reuse activations that `act` recorded on a tape."""
        return self.torso.recalls

    def act(self, step: Batch, state: Batch, tape: Tape | None = None) -> tuple[Batch, Batch]:
        """Choose actions for one step of B lanes. Return {"action", "logp", "value"} [B], and the new recurrent state.
        The caller turns gradients off.

        `step`: "obs", "reward" and "first", optionally "mask", "events" and "noise" [B, noise]. Without noise, the most
            probable action is chosen.
        `tape`: list to which activations are appended, for `unroll` to reuse (see layers.recall).
        """
        torso = self.torso if tape is None else partial(self.torso, tape=tape)
        step = step if self.rewards is None else self.rewarded(step)
        rows: Batch = {k: step[k] for k in ("reward", "first") if k in step}
        noise, drawn = step.get("noise"), None
        if self.latents and noise is not None:
            drawn, noise = normal(noise[:, : self.latents]), noise[:, self.latents :]
        obs, n = self._tiled(step["obs"])
        features = self._features(torso, obs)
        x, after, _ = self._behind_core(features, rows, state, drawn)
        params, value = self._heads(x, step, features, n)
        action = self.head.mode(params) if noise is None else self.head.sample(params, noise)
        if self.previous:
            after["action"] = action
        out = {"action": action, "logp": self.head.logp(params, action), "value": value}
        if self.latents:
            out["latent_noise"] = x.new_zeros(x.shape) if drawn is None else drawn
        return out, after

    def unroll(self, batch: Batch, state: Batch, tape: Tape | None = None) -> Batch:
        """Evaluate a rollout with the current weights. Return {"logp", "value", "entropy"} [T+1, B], where logp is the
        log-probability of batch["action"].

        `batch`: "obs", "reward", "first", "action", and optionally "mask", [T+1, B, …] each.
        `state`: the recurrent state before row 0.
        `tape`: activations that `act` recorded for these rows with the same weights.

        If `returns` is given, the result has a scalar "reward_scale". With PopArt, the result has "value_scale" [T+1,
        B], the scale by which PopArt normalizes each value.
        """
        batch = batch if self.rewards is None else self.rewarded(batch)
        taken = ("obs", "action", "mask", "task")
        rows = {k: tree.map(lambda x: x.flatten(0, 1), batch[k]) for k in taken if k in batch}
        torso = self.torso if tape is None else partial(self.torso.recall, tape=tape)
        obs, n = self._tiled(rows["obs"])
        features = self._features(torso, obs)
        x, _, latent = self._behind_core(features, batch, state, batch.get("latent_noise"))
        params, value = self._heads(x, rows, features, n)
        logp, entropy = self.head.logp(params, rows["action"]), self.head.entropy(params)
        out = {"logp": logp, "value": value, "entropy": entropy}
        if self.values is not None and (scale := self.values.scale_of(rows.get("task"), value)) is not None:
            out["value_scale"] = scale
        out = {k: v.unflatten(0, batch["first"].shape) for k, v in out.items()}
        out |= {} if latent is None else kl_terms(latent)
        out |= {} if self.auxiliary is None else self._auxiliary_outputs(self.auxiliary, x, batch)
        out |= {} if self.rewards is None else {"reward": batch["reward"]}
        return out if self.returns is None else {**out, "reward_scale": self.returns.scale()}

    def reward_scale(self) -> float | Tensor:
        """See Policy.reward_scale."""
        return 1.0 if self.returns is None else self.returns.scale()

    def observe(self, batch: Batch) -> None:
        """See Policy.observe."""
        if self.inputs is not None:
            self.inputs.observe(batch["obs"])
        if self.returns is not None:
            self.returns.observe(self.rewarded(batch)["reward"], batch["first"])

    def observe_targets(self, target: Tensor, batch: Batch) -> None:
        """See Policy.observe_targets."""
        if self.values is not None:
            task = batch["task"][: len(target)] if "task" in batch else None
            self.values.observe(target, task, ~batch["first"][1:])

    def settle(self) -> None:
        """See Policy.settle."""
        if self.values is not None:
            self.values.settle(self.value)

    def _auxiliary_outputs(self, heads: AuxiliaryHeads, x: Tensor, batch: Batch) -> Batch:
        """Return the outputs for the auxiliary losses. `x` has the features after the core, [(T+1) · B, features]. For
        reward prediction, batch["recent"] has observations [3, N, …]. For value replay, batch["replayed"] has rows
        [T+1, N, …] and the "state" before the first row.
        """
        out: Batch = {}
        if heads.pixel is not None:
            behind = x.unflatten(0, batch["first"].shape)
            out["pixel_chosen"], out["pixel_best"] = pixel_control_values(heads.pixel, behind, batch)
        if heads.reward is not None and "recent" in batch:
            rows = tree.map(lambda obs: obs.flatten(0, 1), batch["recent"])
            seen = self._features(self.torso, rows)[:, : self.torso.core_features]
            out["reward_logits"] = heads.reward(seen.unflatten(0, (FRAMES, -1)))
        if heads.value and "replayed" in batch:
            replayed = batch["replayed"]
            features = self._features(self.torso, tree.map(lambda x: x.flatten(0, 1), replayed["obs"]))
            y, _, _ = self._behind_core(features, replayed, replayed["state"], replayed.get("latent_noise"))
            _, value = self._heads(y, {}, features, len(y))
            out["replayed_value"] = value.unflatten(0, replayed["first"].shape)
        return out

    def rewarded(self, rows: Batch) -> Batch:
        """See Policy.rewarded. Computes the reward from game events."""
        return {**rows, "reward": self.rewards(rows["events"])} if self.rewards and "events" in rows else rows

    def _tiled(self, obs: Tree) -> tuple[Tree, int]:
        """Pad observations with zeros to the batch size that layers.Linear needs, so that the layers need not pad. Do
        this only if all layers are Linear. Return the observations, and the batch size before padding.
        """
        x = next(tree.leaves(obs))[1]
        n = x.shape[0]
        alone = self.torso.tiled and self.core is None and not self.previous and self.auxiliary is None
        more = spare_rows(n) if alone and self.value.exact and x.device.type == "cpu" else 0
        return tree.map(lambda x: F.pad(x, (0, 0) * (x.dim() - 1) + (0, more)), obs) if more else obs, n

    def _heads(self, x: Tensor, rows: Batch, features: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return the action head's params, masked if `rows` has a "mask", and the values, for the first `n` rows. `x`
        is the input of the heads, and `features` the torso's output, which ends with the units' embeddings.
        """
        acting, valued = (x, x) if self.split is None else x.split([self.split, x.shape[1] - self.split], 1)
        if self.hidden:
            acting, valued = F.relu(self.hidden[0](acting)), F.relu(self.hidden[1](valued))
        params = self.actions(acting, features[:, -self.units :]) if self.units else self.actions(acting)
        outputs: Tensor = self.value(valued)
        if n < outputs.shape[0]:
            params, outputs = params[:n], outputs[:n]
        value = outputs.squeeze(1) if self.values is None else self.values(outputs, rows.get("task"))
        mask = rows.get("mask")
        return params if mask is None else self.head.masked(params, mask), value


def _embedded_axis(head: ActionHead, torso: Torso) -> Axis:
    """Return names along an embedded action. For a part that chooses a unit, these are the units' names."""
    found = list[AxisSegment]()
    for path, part in head.parts.items():
        if torso.pointer is not None and path == torso.pointer[0]:
            found += [replace(s, name=f"action {path}: {s.name}") for s in torso.unit_axis]
        else:
            found += part.segments(path, silent=False)
    return tuple(found)
