"""Base classes of networks, torsos and players, and running statistics that normalize inputs, returns and values.

Inherit `Policy` to write a whole network, or `Torso` to write only its first part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.compiled import compiled
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.spaces import describe_fields
from polyplay.nets.layers import Axis, AxisSegment, Linear, Tape, TensorAxes, axis


class Player:
    """Chooses actions in B lanes (parallel environments). A player is a Policy, a bot or a tree search.

    The methods other than `act` have defaults for players without a network.
    """

    noise: int = 0  # number of uniform numbers in (0, 1) that `act` takes per lane and step

    @abstractmethod
    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act."""

    def spec(self) -> Spec:
        """Return the fields of `act`'s outputs for one lane. If the dict is empty, the steps are not stored."""
        return {}

    def state_spec(self) -> Spec:
        """Return the fields of one lane's state between steps, such as a recurrent state, or {} without a state."""
        return {}

    def initial(self, lanes: int) -> Batch:
        """Return the state before the first step: zeros [lanes, …] on the device of the weights."""
        return {}

    def reward_scale(self) -> float | Tensor:
        """Return the factor for rewards in losses: a float or a tensor []. The default is 1."""
        return 1.0

    def cache_weights(self) -> None:
        """Store bfloat16 copies of the large weights for acting, if the network computes in bfloat16.

        Call this method whenever the weights have changed. Without copies, `act` converts the weights in each call.
        """


class Policy(nn.Module, Player):
    """A network that acts in B lanes (parallel environments) and evaluates their rollouts of T+1 rows (steps).

    To write your own network, inherit this class and define `spec`, `act` and `unroll`. A recurrent network also
    defines `state_spec` and `initial`. `act` and `unroll` must compute the same function of the weights. The outputs
    must depend only on weights, inputs and noise, so do not use torch's random generator. If a network given as
    `module:callable` has wrong shapes or types, the run raises UserError at its start.
    """

    bf16: bool | None = None  # whether the torso computes in bfloat16; None: the user cannot choose the precision
    # parts with a method apply_hyperparameters(values), which sets a run's hyperparameters by name
    tuned: tuple[Any, ...] = ()
    observes: bool = False  # whether `observe` learns from observations; it is then called before a replay stores them
    settles: bool = False  # whether `settle` changes weights

    def spec(self) -> Spec:
        """Return the fields of `act`'s outputs for one lane: "action", as the environment takes it, and loss inputs."""
        raise NotImplementedError

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """Choose actions for one step of B lanes. The caller turns gradients off.

        `step`: dict with these entries:
            `obs`: observations [B, …].
            `reward`: float32 [B], the reward that came with `obs`.
            `first`: bool [B], true where an episode begins.
            `mask`: bool, the legal actions, if the environment has masks.
            `events`: float32 [B, E], if the environment counts events.
            `noise`: float32 [B, noise], uniform numbers. Without noise, the most probable actions are chosen.
            `epsilon`: float32 [B], if the system explores by epsilon.
        `state`: the state before the step, as in `state_spec`. Treat it as zero where `first` is true.

        Returns the outputs [B, …] that `spec` lists, and the state after the step.
        """
        raise NotImplementedError

    def unroll(self, batch: Batch, state: Batch) -> Batch:
        """Compute the inputs of the loss for a rollout, with gradients.

        `batch`: rows [T+1, B, …], with the actions taken (docs/concepts/rows.md).
        `state`: the state before the first row, [B, …].
        Returns outputs [T+1, B]. Actor-critic losses need "logp", "entropy" and "value" in float32.
        """
        raise NotImplementedError

    def observe(self, batch: Batch) -> None:
        """Update running statistics from a rollout, [T+1, B, …]. The statistics must be floating-point buffers."""

    def observe_targets(self, target: Tensor, batch: Batch) -> None:
        """Update running statistics from the targets of the values, [T, B]. batch: the rollout, [T+1, B]."""

    def settle(self) -> None:
        """After an update, rescale weights to the new statistics, so that the outputs stay the same."""

    def rewarded(self, rows: Batch) -> Batch:
        """Return the rows of a rollout. If the policy computes rewards from events, these replace the rows' rewards."""
        return rows


class PolicyFactory:
    """Makes a policy.

    Workers receive the pickled factory and call it to make their policy. Every call makes the same modules.
    """

    def __call__(self) -> Policy:
        """Make a policy on the CPU. Initial weights are drawn from torch's global generator."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The network's name in diagrams."""
        return type(self).__name__

    @property
    def choice(self) -> str:
        """Description of the chosen network for the plan printed before a run."""
        return self.title

    @property
    def scales_actions(self) -> bool:
        """Whether the policy scales continuous actions from −1 … 1 to the bounds of the action space."""
        return True


class Torso(nn.Module):
    """First part of a network, before core and heads, which computes features of observations.

    Your own torso inherits this class, sets `features` and defines `forward`. The other attributes have defaults.
    """

    features: int = 0  # number of features that `forward` returns per row
    value_features: int = 0  # how many features, the last ones, only the value uses; 0: the policy uses all
    unit_features: int = 0  # how many features, the last ones, describe units: they skip the core
    pointer: tuple[str, int] | None = None  # action part that chooses a unit, and size of its embedding
    unit_sets: tuple[str, ...] = ()  # paths of observations that are sets of units [units, numbers]
    unit_axis: Axis = ()  # names of the units, in the order of `unit_features`
    feature_axis: Axis = ()  # names along the features without those of units; (): one segment
    recalls: bool = False  # whether `forward` can record a tape that `recall` uses
    tiled: bool = False  # whether all layers are Linear, so that rows of zeros may be added

    def forward(self, obs: Tree) -> Tensor:
        """Return features, float32 [N, features]. obs: observations [N, …], a tensor or a dict of tensors."""
        raise NotImplementedError

    def recall(self, obs: Tree, tape: Tape) -> Tensor:
        """Return `forward(obs)` with gradients, from the layers' outputs that `forward` stored in `tape`.

        The weights must not have changed since then.
        """
        raise NotImplementedError

    @property
    def core_features(self) -> int:
        """Number of features that the core takes: all features except those of units (`unit_features`)."""
        return self.features - self.unit_features


# Running statistics, which a policy learns besides its weights, in floating buffers. Statistics of inputs are float64,
# in which numbers far from 0, such as time stamps, keep their differences.
#
# The statistics are published, saved and restored with the weights, and averaged over replicas like any buffer. They
# are sums, or moments about an origin that all replicas share, so their average over replicas is the statistic of all
# replicas' rows. Only learners call `observe`; actors and evaluations use the published statistics.


MOST = 1e7  # approximate number of rows that a statistic remembers; float32 can't count much further
LEAST = 1e-29  # least variance, divided by the mean's square: float64's rounding error
LARGEST = 1e150  # numbers are clipped to ±LARGEST, since their squares are averaged
TINY = 1e-200  # least variance of numbers whose mean is 0
BOUND = 10.0  # default bound of normalized numbers


class RunningMoments(nn.Module):
    """Running mean and variance of rows [n, *shape] in float64, updated batch by batch (Chan et al. 1979).

    `origin`: mean of the first batch, the same for all replicas.
    `second`: mean of (x − origin)², which can be averaged over replicas.
    `count`: number of rows so far. The first batch counts as one row.
    """

    mean: Tensor
    origin: Tensor
    second: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], bound: float = BOUND):
        super().__init__()
        self.bound = bound
        for name in ("mean", "origin", "second"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        axes = tuple(axis(f"axis {i}", n) for i, n in enumerate(shape))
        # numbers that surgery adds pass unchanged until their statistics are known
        fills = {"mean": 0.0, "origin": 0.0, "second": 1.0}
        self.axes = {name: TensorAxes(axes, fill) for name, fill in fills.items()}
        self.axes["count"] = TensorAxes((), counts=True)

    def variance(self) -> Tensor:
        return (self.second - (self.mean - self.origin).square()).clamp_min(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Return (x − mean) / deviation as float32, clipped to ±bound. After only one batch, the deviation is 1."""
        floor = LEAST * self.mean.square() + TINY  # a constant number becomes 0, not a rounding error
        deviation = torch.where(self.count > 1, (self.variance() + floor).sqrt(), 1.0)
        return ((x.double() - self.mean) / deviation).clamp(-self.bound, self.bound).float()

    @torch.no_grad()
    def observe(self, rows: Tensor) -> None:
        """Update the moments from rows [n, *shape]. NaN and infinite numbers count as the mean."""
        known, x = float(self.count), torch.where(rows.isfinite(), rows.double(), self.mean).clamp(-LARGEST, LARGEST)
        weight = len(rows) / (known + len(rows))
        if known:
            self.second += weight * ((x - self.origin).square().mean(0) - self.second)
        self.mean += weight * (x - self.mean).mean(0)
        if not known:
            self.origin.copy_(self.mean)
        self.count.fill_(min(known + len(rows), MOST) if known else 1.0)


def is_pixels(field: Field) -> bool:
    """Tell whether a field is an image of bytes, uint8 [C, H, W]."""
    return field.dtype == "uint8" and len(field.shape) == 3


class Normalize(nn.Module):
    """Normalizes each number of the observations to mean 0 and standard deviation 1.

    Images of bytes pass unchanged, and so do discrete observations (`classes`: their paths).
    `sets`: paths of observations [units, numbers]. A unit's first number says whether the unit is present, and passes
        unchanged. The moments of the other numbers are those of all present units together.
    """

    def __init__(self, obs: Spec, sets: Sequence[str] = (), bound: float = BOUND, classes: Collection[str] = ()):
        super().__init__()
        leaves = [(path, x) for path, x in tree.leaves(obs) if path not in classes and not is_pixels(x)]
        if not leaves:
            takes = f"takes numbers that are not images or classes, but the observations are {describe_fields(obs)}"
            raise UserError(f"--inputs normalize: {takes}; use raw or center")
        self.paths = [path for path, _ in leaves]
        self.sets = [path in sets for path in self.paths]
        shapes = [field.shape[1:] if path in sets else field.shape for path, field in leaves]
        self.moments = nn.ModuleList(RunningMoments(shape, bound) for shape in shapes)
        self.stable = {f"moments.{i}": f"moments of {path}" for i, path in enumerate(self.paths)}

    def forward(self, obs: Tree) -> Tree:
        flat = dict(tree.leaves(obs))
        for path, one, moments in zip(self.paths, self.sets, self.moments, strict=True):
            x, made = flat[path], moments(flat[path])
            flat[path] = torch.cat([x[..., :1].float(), made[..., 1:]], -1) if one else made
        return tree.nest(flat)

    def observe(self, obs: Tree) -> None:
        """Update the moments from rows [T+1, B, ...], except the last row, which the next rollout contains too."""
        flat = dict(tree.leaves(obs))
        for path, one, moments in zip(self.paths, self.sets, self.moments, strict=True):
            rows = flat[path][:-1].flatten(0, 1)
            rows = rows[rows[..., 0] > 0] if one else rows
            if len(rows):
                moments.observe(rows)  # type: ignore[operator]


@compiled
def _discounted(reward: np.ndarray, goes_on: np.ndarray, gamma: np.float32) -> np.ndarray:
    """Return discounted sums G_t = r_t + γ·G_{t-1}, float32 [T, B]. Where `goes_on` is False, G_t is 0."""
    sums = np.zeros_like(reward)
    for b in range(reward.shape[1]):
        before = np.float32(0.0)
        for t in range(reward.shape[0]):
            before = reward[t, b] + gamma * before if goes_on[t, b] else np.float32(0.0)
            sums[t, b] = before
    return sums


class ReturnScale(nn.Module):
    """Tracks the root mean square of discounted returns G, so that losses can divide rewards by it.

    G_t = r_t + γ·G_{t-1} starts at 0 in every rollout and in every episode. Gymnasium's NormalizeReward divides by the
    standard deviation of G instead.
    """

    total: Tensor
    count: Tensor

    def __init__(self, gamma: float):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("count", torch.zeros(()))

    def scale(self) -> Tensor:
        """Return the factor for rewards, a tensor []: 1 / (root mean square of G), or 1 while all returns are 0."""
        return torch.where(self.total > 0, (self.count / self.total.clamp_min(1e-30)).sqrt(), 1.0)

    @torch.no_grad()
    def observe(self, reward: Tensor, first: Tensor) -> None:
        """Update the root mean square from the rewards and from the flags `first`, [T+1, B] each."""
        goes_on = ~first[1:].cpu()
        sums = torch.from_numpy(_discounted(reward[1:].cpu().numpy(), goes_on.numpy(), np.float32(self.gamma)))
        square = sums.square()
        rows = torch.where(square.isfinite(), square, 0.0).sum(1)
        # add row after row in float32, as if each row came alone
        self.total.fill_(float(np.add.accumulate(np.append(np.float32(self.total.cpu()), rows.numpy()))[-1]))
        self.count += goes_on.sum()
        fade = MOST / float(self.count) if self.count > MOST else 1.0
        self.total *= fade
        self.count *= fade


# PopArt (van Hasselt et al. 2016; Hessel et al. 2019): a value for each task, normalized by running statistics of the
# task's targets. When these change, weights are rescaled so that values stay the same. Tasks share policy and features.
#
#     v = σ·n + μ, n = w·f + b        per task; f: features; n: the head's output; w, b: the head's weights


RATE = 3e-4  # β, the rate of the statistics (Hessel et al. 2019)
LOWEST, HIGHEST = 1e-4, 1e6  # bounds of σ


def task_axis(tasks: tuple[str, ...], what: str = "value") -> Axis:
    """Return an axis for `tasks`: a segment of length 1 for each task."""
    if not tasks:
        return axis(what, 1, fixed=True)
    return tuple(AxisSegment(f"{what} of {task}", (1,), part=f"task {task}") for task in tasks)


class TaskValues(nn.Module):
    """Selects each row's value among the outputs of a value head, which has one output per task.

    tasks: names of the tasks, or () for a single output.
    """

    def __init__(self, tasks: tuple[str, ...]):
        super().__init__()
        self.tasks = tasks

    def forward(self, outputs: Tensor, task: Tensor | None) -> Tensor:
        """Select values [N] from outputs [N, tasks]. task: each row's task number, int64 [N]. None: the first task."""
        if task is None or outputs.shape[1] == 1:
            return outputs[:, 0]
        return outputs.gather(1, task[:, None]).squeeze(1)

    def scale_of(self, task: Tensor | None, like: Tensor) -> Tensor | None:
        """Return PopArt's σ for each row, in the shape of `like`. Return None if values are not normalized."""
        return None

    def observe(self, target: Tensor, task: Tensor | None, valid: Tensor) -> None:
        """Update statistics, if there are any, from targets [T, B] where `valid` is True."""

    def settle(self, head: Linear) -> None:
        """Rescale the head's weights to the present statistics, if there are any."""


class PopArt(TaskValues):
    """Values that are normalized by running statistics of their targets, separately for each task.

    Buffers, [tasks] each:
    `mean`: μ, the running mean of the targets.
    `origin`: the mean before the last update.
    `second`: the running mean of (target − origin)². Float32 is precise enough, because differences are small.
    `shift`, `scale`: μ and σ for which the head's weights were last rescaled.
    """

    mean: Tensor
    origin: Tensor
    second: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, tasks: tuple[str, ...], rate: float = RATE):
        super().__init__(tasks)
        self.rate = rate
        fills = {"mean": 0.0, "origin": 0.0, "second": 1.0, "shift": 0.0, "scale": 1.0}
        for name, fill in fills.items():
            self.register_buffer(name, torch.full((max(1, len(tasks)),), fill))
        self.axes = {name: TensorAxes((task_axis(tasks, "statistics"),), fill) for name, fill in fills.items()}

    def variance(self) -> Tensor:
        """Return σ² [tasks] of the targets."""
        return (self.second - (self.mean - self.origin).square()).clamp_min(0.0)

    def forward(self, outputs: Tensor, task: Tensor | None) -> Tensor:
        """See TaskValues.forward. The head's outputs n are converted to values σ·n + μ."""
        number = outputs.new_zeros(outputs.shape[0], dtype=torch.int64) if task is None else task
        return super().forward(outputs, task) * self.scale[number] + self.shift[number]

    def scale_of(self, task: Tensor | None, like: Tensor) -> Tensor | None:
        """See TaskValues.scale_of."""
        return self.scale.expand_as(like) if task is None else self.scale[task]

    @torch.no_grad()
    def observe(self, target: Tensor, task: Tensor | None, valid: Tensor) -> None:
        """Update the running statistics from the targets G [T, B] where `valid` is True. task: int64 [T, B].

        μ ← (1 − β)·μ + β·E[G], ν ← (1 − β)·ν + β·E[G²] (Hessel et al. 2019, equation 4). E is the mean over the rows of
        a task. The second moment ν is about the old μ. A task without rows keeps its statistics.
        """
        n = len(self.mean)
        number = torch.zeros_like(valid, dtype=torch.int64) if task is None else task
        off = torch.where(valid, target.to(self.mean.dtype) - self.mean[number], 0.0)
        of_task = (number.flatten()[:, None] == torch.arange(n, device=valid.device)) & valid.flatten()[:, None]
        rows = torch.stack([torch.ones_like(off), off, off.square()]).flatten(1)
        count, first, second = (rows @ of_task.to(rows.dtype)).unbind()
        rate = self.rate * (count > 0)
        variance, mean = self.variance(), self.mean.clone()
        self.second.copy_(variance + rate * (second / count.clamp_min(1.0) - variance))
        self.mean.add_(rate * first / count.clamp_min(1.0))
        self.origin.copy_(mean)

    @torch.no_grad()
    def settle(self, head: Linear) -> None:
        """Rescale the head's weights so that the values stay the same (van Hasselt et al. 2016, proposition 1).

        w ← w·σ_old/σ, b ← (σ_old·b + μ_old − μ)/σ
        """
        deviation = self.variance().sqrt().clamp(LOWEST, HIGHEST)
        head.weight.mul_((self.scale / deviation)[:, None])
        head.bias.copy_((self.scale * head.bias + self.shift - self.mean) / deviation)
        self.shift.copy_(self.mean)
        self.scale.copy_(deviation)
