"""UNREAL's auxiliary tasks (Jaderberg et al. 2016): pixel control, reward prediction and value replay.

The module holds a learner's memory of recent rows, and the losses of the tasks. The losses are pure functions of rows,
by the convention of losses.py.

The loss of a task is multiplied by its cost and added to the policy's loss. Published costs are for losses that are
sums over time and examples. The functions of this module return means; WithAuxiliary turns them into sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.learning import losses
from polyplay.learning.losses import Hyper, Loss, LossOutput, Transitions, masked_mean
from polyplay.learning.parts import LearnerPart
from polyplay.nets.actor_critic import CELL, FRAMES, PICTURE, ActorCritic, control_cells
from polyplay.nets.device import to_device, to_host
from polyplay.nets.factory import NetworkFactory
from polyplay.nets.policy import PolicyFactory

# A learner's memory of recent rows, from which UNREAL's reward prediction and value replay draw (Jaderberg et al. 2016,
# §3.2 and §3.3).


EXAMPLES = ("obs", "reward", "first")  # fields of rows, kept to predict rewards
COLUMNS = (*EXAMPLES, "terminated", "action", "latent_noise")  # fields kept to replay values, if rows have them
_NO_END, _ZERO, _REWARDING = range(3)  # kinds of a row: end of no example, or of one with a zero or another reward


def specs_of(arrays: Batch, lead: int) -> Spec:
    """Return the types of arrays, and their shapes without the first `lead` dimensions."""
    return tree.map(lambda x: Field(x.shape[lead:], x.dtype.name), arrays)


class UnrealReplay:
    """Memory of recent rows, stored as columns. A column holds the rows of one lane in one rollout, and the recurrent
    state before the first of them. New columns replace the oldest columns.

    `row`: fields of a row, including those in EXAMPLES.
    `length`: number of rows in a column, T+1.
    `capacity`: maximum number of rows in memory. UNREAL stores 2,000 rows of each worker.
    `state`: fields of the recurrent state of one lane.
    """

    def __init__(self, row: Spec, length: int, capacity: int = 2000, state: Spec | None = None):
        self.length, self.columns = length, capacity // length
        self.rows: Batch = tree.zeros(row, (length, self.columns))
        self.state: Batch = tree.zeros(state or {}, (self.columns,))
        self.filled = 0  # number of filled columns
        self._end = np.full((length, self.columns), _NO_END, np.int8)
        self._next = 0  # index of the next column to fill

    def save(self) -> Batch:
        """Return the memory as a dict of arrays."""
        marks = {"end": self._end, "next": np.array(self._next), "filled": np.array(self.filled)}
        return {"rows": self.rows, "state": self.state, **marks}

    @classmethod
    def of(cls, saved: Batch) -> UnrealReplay:
        """Make a memory from the arrays that `save` returned."""
        length, columns = saved["end"].shape
        state = saved.get("state", {})
        made = cls(specs_of(saved["rows"], 2), length, length * columns, specs_of(state, 1))
        tree.write(made.rows, ..., saved["rows"])
        tree.write(made.state, ..., state)
        made._end[:], made._next, made.filled = saved["end"], int(saved["next"]), int(saved["filled"])
        return made

    @property
    def counts(self) -> tuple[int, int]:
        """Number of stored examples with zero reward, and number with nonzero reward."""
        return int((self._end == _ZERO).sum()), int((self._end == _REWARDING).sum())

    def add(self, rows: Batch, state: Batch | None = None) -> None:
        """Add the `rows` [length, B, …] of a rollout, and the recurrent `state` [B, …] before row 0. rows["first"]
        marks the first rows of episodes and of restarted lanes. If memory has fewer than B columns, store only the last
        lanes.
        """
        lanes = rows["reward"].shape[1]
        last = slice(max(0, lanes - self.columns), None)
        rows = tree.at(rows, (slice(None), last))
        reward, first = rows["reward"], rows["first"]
        to = (self._next + np.arange(reward.shape[1])) % self.columns
        self._next = (self._next + len(to)) % self.columns
        self.filled = min(self.columns, self.filled + len(to))
        tree.write(self.rows, (slice(None), to), rows)
        tree.write(self.state, to, tree.at(state or {}, last))
        begins = first[1:-2] | first[2:-1] | first[3:]  # an episode begins after the oldest of four rows
        self._end[FRAMES:, to] = np.where(begins, _NO_END, np.where(reward[FRAMES:] == 0, _ZERO, _REWARDING))

    def sample_examples(self, n: int, rng: np.random.Generator) -> tuple[Tree, np.ndarray]:
        """Draw n examples with replacement. An example is four consecutive rows of one episode. Return the observations
        [3, n, …] of the first three rows, and the reward [n] of the fourth row.

        Half of the examples have reward 0, and half another reward. If memory holds only one of these kinds, all
        examples are of this kind. If memory holds no example, return zeros.
        """
        zero, rewarding = (np.flatnonzero(self._end == kind) for kind in (_ZERO, _REWARDING))
        if not len(zero) + len(rewarding):
            return tree.zeros(specs_of(self.rows["obs"], 2), (FRAMES, n)), np.zeros(n, self.rows["reward"].dtype)
        half = (n + int(rng.integers(2))) // 2
        most = 0 if not len(rewarding) else half if len(zero) else n
        drawn = [kind[rng.integers(len(kind), size=k)] for kind, k in ((rewarding, most), (zero, n - most)) if k]
        row, column = np.divmod(np.concatenate([np.zeros(0, np.int64), *drawn]), self.columns)
        before = row - FRAMES + np.arange(FRAMES)[:, None]
        return tree.at(self.rows["obs"], (before, column)), self.rows["reward"][row, column]

    def sample_columns(self, n: int, rng: np.random.Generator) -> tuple[Batch, Batch]:
        """Draw n columns with replacement. Return rows [length, n, …], and the recurrent state [n, …] before row 0."""
        column = rng.integers(self.filled, size=n)
        return tree.at(self.rows, (slice(None), column)), tree.at(self.state, (column,))


class UnrealWindows(LearnerPart):
    """Adds the inputs of auxiliary tasks to a learner's batches. The inputs are drawn from a memory of recent rows.

    Value replay starts from the recurrent state stored while acting. In miyosuda/unreal it starts from a zero state.
    """

    recent: UnrealReplay | None = None

    def inputs(self, rows: Batch, batch: Batch, state: Batch) -> Batch:
        """Store the rows in memory, and return the inputs of auxiliary tasks, drawn from memory. Reward prediction gets
        examples: "recent" [3, B, …] and "recent_reward" [B]. If memory holds no example, "recent_weight" is 0, else 1.
        Value replay gets "replayed": rows [T+1, B, …], with the recurrent "state" before row 0.
        """
        learner, lanes = self.learner, rows["first"].shape[1]
        heads = learner.policy.auxiliary if isinstance(learner.policy, ActorCritic) else None
        if heads is None or not (heads.reward is not None or heads.value):
            return {}
        recent = self._keep(rows, batch, state, heads.value)
        rng, drawn = np.random.default_rng((*learner.run.seed, learner.version)), Batch()
        if heads.reward is not None:
            drawn["recent"], drawn["recent_reward"] = recent.sample_examples(lanes, rng)
            drawn["recent_weight"] = np.float32(any(recent.counts))
        if heads.value:
            columns, before = recent.sample_columns(lanes, rng)
            drawn["replayed"] = {**columns, "state": before}
        return cast("Batch", to_device(drawn, learner.device))

    def _keep(self, rows: Batch, batch: Batch, state: Batch, whole: bool) -> UnrealReplay:
        """Add the rows to memory, and return the memory. If `whole`, also store what value replay needs."""
        kept = {k: tree.map(to_host, rows[k]) for k in (COLUMNS if whole else EXAMPLES) if k in rows}
        policy = self.learner.policy
        kept["reward"] = to_host(policy.rewarded(batch)["reward"])
        if self.recent is None:
            first, before = kept["first"], policy.state_spec() if whole else {}
            self.recent = UnrealReplay(specs_of(kept, 2), len(first), max(2000, 2 * first.size), before)
        self.recent.add(kept, tree.map(to_host, state) if whole else {})
        return self.recent


BORDER = CELL // 2  # width in pixels of an image's border that belongs to no cell


@torch.no_grad()
def pixel_change(view: Tensor) -> Tensor:
    """Return each cell's reward in pixel control, float32 [T, B, h, w]: its change from row t to row t+1, in [0, 1].

    `view`: images, uint8 [T+1, B, C, H, W].

    In an image of 84 × 84 pixels, cells of 4 × 4 pixels cover the middle 80 × 80 pixels. Their change is the mean of
    |difference| / 255 (§3.1). In a smaller image, a cell is a pixel, and its change is the fraction of channels that
    differ. From one episode to the next, changes have no meaning. Raises ValueError if `view` does not fit.
    """
    fit = view.ndim == 5 and len(view) >= 2 and view.dtype == torch.uint8
    losses.check_shapes(fit, f"view must be uint8 [T+1, B, C, H, W] with T >= 1, it is {view.dtype}", view)
    pixels = control_cells(tuple(view.shape[2:])) != tuple(view.shape[3:])
    change = _picture_change if pixels else lambda before, after: (before != after).float().mean(1)
    return torch.stack([change(*pair) for pair in pairwise(view.unbind())])  # row by row, which fits caches


def _picture_change(before: Tensor, after: Tensor) -> Tensor:
    channels, inside = before.shape[1], slice(BORDER, PICTURE - BORDER)
    before, after = before[..., inside, inside], after[..., inside, inside]
    change = (torch.maximum(before, after) - torch.minimum(before, after)).int().sum(1, dtype=torch.int32)
    rows = change.unflatten(1, (-1, CELL)).sum(2, dtype=torch.int32)
    return rows.unflatten(2, (-1, CELL)).sum(3, dtype=torch.int32) / (255.0 * CELL * CELL * channels)


def pixel_control_loss(chosen: Tensor, best: Tensor, change: Tensor, batch: Batch, gamma: float = 0.9) -> Tensor:
    """Return the loss of pixel control: ½ Σ_cells (R_t − Q(s_t, a_t))², averaged over valid transitions. The targets R
    are those of n-step Q-learning without off-policy correction (§3.1). In each cell

    R_t = c_t + γ·(1 − terminated_{t+1})·R_{t+1} if the transition t → t+1 is valid, else max_a Q(s_t, a)
    R_T = max_a Q(s_T, a)

    `chosen`: Q(s_t, a_t) [T, B, h, w], with gradient.
    `best`: max_a Q(s_t, a) [T+1, B, h, w], read only in rows that nets.actor_critic.bootstrap_rows marks.
    `change`: c [T, B, h, w], the change of the cells.
    `batch`: rows "reward", "terminated", "first" [T+1, B].

    The sum over cells and the factor ½ are as in trfl and miyosuda/unreal, which also sum over time. If the policy's
    loss is a sum over transitions, multiply this loss by their number. Raises ValueError if shapes do not fit.
    """
    steps, cells = losses.transitions(batch, gamma), chosen.shape[2:]
    lead = steps.reward.shape
    fit = chosen.ndim == 4 and chosen.shape[:2] == lead and best.shape == (lead[0] + 1, lead[1], *cells)
    names = f"chosen and change must be [T, B, h, w] with [T, B] = {list(lead)}, best [T+1, B, h, w]"
    losses.check_shapes(fit and chosen.shape == change.shape, names, chosen, change, best)

    def each(x: Tensor) -> Tensor:
        return x.repeat_interleave(cells.numel(), 1)

    lanes = losses.Transitions(change.flatten(1), each(steps.discount.to(change.dtype)), each(steps.valid))
    target = losses.n_step(lanes, best.flatten(1)).view(change.shape)
    error = torch.where(steps.valid[..., None, None], target - chosen, 0.0)
    return 0.5 * error.square().sum() / steps.valid.sum().clamp(min=1)


def reward_classes(reward: Tensor) -> Tensor:
    """Return the classes of rewards, int64 in the same shape: 0 for zero, 1 for negative, 2 for positive."""
    return (reward < 0).long() + 2 * (reward > 0).long()


def reward_prediction_loss(logits: Tensor, reward: Tensor) -> Tensor:
    """Return the loss of reward prediction: the cross-entropy of the next reward's class, averaged over examples
    (§3.2). The inputs are logits [N, 3] and reward [N].
    """
    fit = reward.ndim == 1 and logits.shape == (len(reward), 3)
    losses.check_shapes(fit, "logits must be [N, 3] and reward [N]", logits, reward)
    return F.cross_entropy(logits, reward_classes(reward))


def value_replay_loss(value: Tensor, steps: Transitions) -> Tensor:
    """Return the loss of value replay: ½ (R_t − V_t)² of replayed rows, averaged over valid transitions (§3.3). The
    factor ½ is from miyosuda/unreal.

    `value`: V [T+1, B] under the current weights. The n-step returns R (losses.n_step) use V without gradient.
    `steps`: the transitions [T, B] between the rows.
    """
    error = torch.where(steps.valid, losses.n_step(steps, value) - value[:-1], 0.0)
    return 0.5 * masked_mean(error.square(), steps.valid)


# Terms that a temporal core and auxiliary tasks add to a policy-gradient loss (Jaderberg et al. 2019, supplement).


TERMS = MappingProxyType(  # loss terms of UNREAL's tasks, and their published costs
    {"pixel": ("pixel_control", 0.05), "reward": ("reward_prediction", 1.0), "value": ("value_replay", 1.0)}
)
KL = MappingProxyType({"kl_posterior": 1e-3, "kl_prior": 1e-4})  # loss terms of a temporal core, and their costs
DRAWN = {"reward_prediction": "reward_logits", "value_replay": "replayed_value"}  # outputs for drawn rows, by term


def task_costs(auxiliary: str, unroll: int, live: tuple[str, ...] = ()) -> dict[str, float]:
    """Return the cost (weight in the loss) of each auxiliary task that the option --auxiliary names.

    `live`: tasks whose costs are set by hyperparameters. If given, the option may name only these tasks, without costs.

    Raises UserError if a task is unknown, a cost is not a number, or a rollout has too few rows for reward prediction.
    """
    allowed, found = ", ".join(live or TERMS), dict[str, float]()
    allowed += ", separated by commas, or none" + ("; costs are in --ranges" if live else "; each may have =COST")
    for word in () if auxiliary == "none" else auxiliary.split(","):
        task, equals, cost = word.strip().partition("=")
        if task not in (live or TERMS) or task in found or (live and equals):
            twice = " twice" if task in found else ""
            raise UserError(f"--auxiliary: {word} given{twice}, allowed: {allowed}")
        found[task] = _cost(word, cost) if equals else TERMS[task][1]
    if "reward" in found and unroll < FRAMES:
        raise UserError(f"--unroll {unroll} given, allowed with --auxiliary reward: {FRAMES} or more")
    return found


def _cost(word: str, number: str) -> float:
    try:
        cost = float(number)
    except ValueError:
        cost = math.nan
    if not 0.0 <= cost < math.inf:
        raise UserError(f"--auxiliary: {word} given, allowed for a cost: a number, 0 or more")
    return cost


def terms_of(policy: PolicyFactory) -> dict[str, float]:
    """Return the cost of each term that a network adds to the loss. The terms are the two KL divergences of a temporal
    core, and the auxiliary tasks that the network has heads for.
    """
    if not isinstance(policy, NetworkFactory):
        return {}
    tasks = policy.options.get("auxiliary", ())
    costs = tasks if isinstance(tasks, Mapping) else {task: TERMS[task][1] for task in tasks}
    core = KL if policy.options.get("core") == "temporal" else {}
    return {**core, **{TERMS[task][0]: cost for task, cost in costs.items()}}


@dataclass
class WithAuxiliary(Loss):
    """Adds terms to an actor-critic's loss: `loss` + Σ cost · term.

    `loss`: an ActorCriticLoss. Value replay uses its discount, and treats rewards as it does.
    `terms`: cost of each term, by name. A hyperparameter NAME_cost replaces the cost of the term NAME. The terms
        kl_posterior and kl_prior are described in nets.recurrent.kl_terms.

    With cost 1, an example of a task counts as much as a transition of the rollout, as published. If `loss` is a sum
    over transitions, every term is a sum over its examples. If `loss` is a mean, every term is a mean, except reward
    prediction, which is a sum over examples divided by the number of transitions. All metrics are means. If the network
    outputs a "reward", that replaces the reward of the environment.
    """

    loss: losses.ActorCriticLoss
    terms: Mapping[str, float] = field(default_factory=lambda: dict(KL))

    def __post_init__(self) -> None:
        own = self.loss
        if not isinstance(own, losses.ActorCriticLoss):
            given = f"loss of class {type(own).__name__} given"
            raise UserError(f"WithAuxiliary: {given}, allowed: A2C, VTrace, PPO, APPO, or a subclass")
        self.metrics, self.reduction = (*own.metrics, *self.terms), own.reduction
        self.whole, self.recalls, self.anneals = own.whole, own.recalls, own.anneals
        self.reward, self.reward_scale = own.reward, own.reward_scale

    @property
    def title(self) -> str:
        return " + ".join([self.loss.title, *self.terms])

    def prepare(self, rows: Batch, scale: float | Tensor = 1.0) -> Batch:
        return self.loss.prepare(rows, scale)

    def noise(self, policy: Any, batch: Batch, key: losses.Key) -> Batch:
        return self.loss.noise(policy, batch, key)

    def __call__(self, policy: Any, target: Any, batch: Batch, state: Batch, hyper: Hyper) -> LossOutput:
        rows = tree.at(batch, slice(-1)) if self.recalls else batch
        return losses.observed(policy, self.score(policy.unroll(rows, state), batch, hyper), batch)

    def score(self, out: Batch, batch: Batch, hyper: Hyper) -> LossOutput:
        """Return the loss of a network's outputs `out` for rows [T+1, B]."""
        if "reward" in out:
            batch = {**batch, "reward": out["reward"]}
        scored = self.loss.score(out, batch, hyper)
        valid = batch["valid"] if "valid" in batch else ~batch["first"][1:]
        count = valid.sum().clamp(min=1)
        found = {name: self._term(name, valid, out, batch) for name in self.terms}
        summed = self.reduction == "sum"
        weights = {name: hyper.get(f"{name}_cost", self.terms[name]) for name in found}
        total = sum(weights[name] * x * self._share(name, count, batch, summed) for name, x in found.items())
        if summed:
            total = total * count
        loss = scored.loss + total
        metrics = {**scored.metrics, **{name: x.detach() for name, x in found.items()}, "loss": loss.detach()}
        return LossOutput(loss, metrics, scored.priority, scored.targets)

    def _share(self, name: str, count: Tensor, batch: Batch, summed: bool) -> Tensor | float:
        """Return the factor by which a term, a mean over its examples, is multiplied besides its cost."""
        if name == "reward_prediction" and "recent_reward" in batch:
            return len(batch["recent_reward"]) / count
        if name == "value_replay" and summed and "replayed" in batch:
            return losses.transitions(batch["replayed"], 1.0).valid.sum() / count
        return 1.0

    def _term(self, name: str, valid: Tensor, out: Batch, batch: Batch) -> Tensor:
        if name == "pixel_control":
            change = pixel_change(_view(batch["obs"]))
            return pixel_control_loss(out["pixel_chosen"], out["pixel_best"], change, batch)
        if name in DRAWN and DRAWN[name] not in out:  # a batch of rows alone, which measures an update's time
            return valid.new_zeros((), dtype=torch.float32)
        if name == "reward_prediction":
            return batch["recent_weight"] * reward_prediction_loss(out["reward_logits"], batch["recent_reward"])
        if name == "value_replay":
            said = {"reward_scale": out["reward_scale"]} if "reward_scale" in out else {}
            return value_replay_loss(out["replayed_value"], self.loss.transitions(batch["replayed"], said))
        return masked_mean(out[name][: len(valid)], valid)


def _view(obs: Tree) -> Tensor:
    return next(x for _, x in tree.leaves(obs) if x.ndim == 5 and x.dtype == torch.uint8)
