"""A learner's memory of recent rows, and what it draws from them for UNREAL's reward prediction and value replay
(Jaderberg et al. 2016, §3.2 and §3.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from polyplay.common import tree
from polyplay.common.tree import Batch, Field, Spec, Tree
from polyplay.nets.auxiliary import FRAMES
from polyplay.nets.device import to_device, to_host

if TYPE_CHECKING:
    from polyplay.nets.actor_critic import ActorCritic
    from polyplay.nets.policy import Policy

EXAMPLES = ("obs", "reward", "first")  # what is kept of a row to predict rewards
COLUMNS = (*EXAMPLES, "terminated", "action", "latent_noise")  # to replay values, where rows have it
_NO_END, _ZERO, _REWARDING = range(3)  # what a row is as the one behind three such rows


class RecentRows:
    """The latest columns of batches [length, B], each by itself, with the state before it: as many as make `capacity`
    rows at most.

    row: a row's fields, with EXAMPLES among them; length: T+1; state: of one lane. UNREAL keeps 2,000 rows of each
    worker; here the number is the whole memory's, and of a batch that has more only the last columns are kept.
    ValueError for less than one column, or too short ones.
    """

    def __init__(self, row: Spec, length: int, capacity: int = 2000, state: Spec | None = None):
        if not 2 <= length <= capacity:
            raise ValueError(f"length must be 2 or more, capacity at least as much; got {length}, {capacity}")
        self.length, self.columns = length, capacity // length
        self.rows: Batch = tree.zeros(row, (length, self.columns))
        self.state: Batch = tree.zeros(state or {}, (self.columns,))
        self.filled = 0  # columns
        self._end = np.full((length, self.columns), _NO_END, np.int8)
        self._next = 0  # where the next column goes

    def save(self) -> Batch:
        """All of it."""
        marks = {"end": self._end, "next": np.array(self._next), "filled": np.array(self.filled)}
        return {"rows": self.rows, "state": self.state, **marks}

    @classmethod
    def of(cls, saved: Batch) -> RecentRows:
        """The inverse."""
        length, columns = saved["end"].shape
        fields = lambda arrays, lead: tree.map(lambda x: Field(x.shape[lead:], x.dtype.name), arrays)  # noqa: E731
        state = saved.get("state", {})
        made = cls(fields(saved["rows"], 2), length, length * columns, fields(state, 1))
        tree.write(made.rows, ..., saved["rows"])
        tree.write(made.state, ..., state)
        made._end[:], made._next, made.filled = saved["end"], int(saved["next"]), int(saved["filled"])
        return made

    @property
    def counts(self) -> tuple[int, int]:
        """How many examples there are to draw: with a reward of zero, with another."""
        return int((self._end == _ZERO).sum()), int((self._end == _REWARDING).sum())

    def add(self, rows: Batch, state: Batch | None = None) -> None:
        """Rows [length, B, …] and the state before them [B, …]. reward: what came with each row; first: begins of
        episodes, or of restarted lanes. ValueError for shapes that do not fit.
        """
        shapes = {x.shape[:2] for _, x in tree.leaves(rows)}
        if len(shapes) > 1 or rows["reward"].ndim != 2 or len(rows["reward"]) != self.length:
            raise ValueError(f"rows must be one [{self.length}, B] shape; got {sorted(shapes)}")
        lanes = rows["reward"].shape[1]
        last = slice(max(0, lanes - self.columns), None)
        rows = tree.at(rows, (slice(None), last))
        reward, first = rows["reward"], rows["first"]
        to = (self._next + np.arange(reward.shape[1])) % self.columns
        self._next = (self._next + len(to)) % self.columns
        self.filled = min(self.columns, self.filled + len(to))
        tree.write(self.rows, (slice(None), to), rows)
        tree.write(self.state, to, tree.at(state or {}, last))
        begins = first[1:-2] | first[2:-1] | first[3:]  # somewhere behind the oldest of four rows
        self._end[FRAMES:, to] = np.where(begins, _NO_END, np.where(reward[FRAMES:] == 0, _ZERO, _REWARDING))

    def sample_examples(self, n: int, rng: np.random.Generator) -> tuple[Tree, np.ndarray]:
        """n examples, with replacement: obs [3, n, …] of three rows on end, and the reward [n] that came with the row
        behind them, all of one episode.

        Half of them, the odd one by chance, have a reward that is not zero and stand first; all or none where the
        memory has but one kind. ValueError where it has no example.
        """
        zero, rewarding = (np.flatnonzero(self._end == kind) for kind in (_ZERO, _REWARDING))
        if not len(zero) + len(rewarding):
            raise ValueError("no example to draw: counts is (0, 0)")
        half = (n + int(rng.integers(2))) // 2
        most = 0 if not len(rewarding) else half if len(zero) else n
        drawn = [kind[rng.integers(len(kind), size=k)] for kind, k in ((rewarding, most), (zero, n - most)) if k]
        row, column = np.divmod(np.concatenate([np.zeros(0, np.int64), *drawn]), self.columns)
        before = row - FRAMES + np.arange(FRAMES)[:, None]
        return tree.at(self.rows["obs"], (before, column)), self.rows["reward"][row, column]

    def sample_columns(self, n: int, rng: np.random.Generator) -> tuple[Batch, Batch]:
        """n columns, with replacement: rows [length, n, …], and the state before them [n, …]. ValueError where it has
        none.
        """
        if not self.filled:
            raise ValueError("no column to draw: nothing was added")
        column = rng.integers(self.filled, size=n)
        return tree.at(self.rows, (slice(None), column)), tree.at(self.state, (column,))


class AuxiliaryRows:
    """What the auxiliary tasks of a learner's policy take beside a batch, from its memory of recent rows.

    Value replay begins with the recurrent state that acting began the column with, as old as its rows: so it can learn
    what is remembered from before. In miyosuda/unreal that state is zero.
    """

    def __init__(self, policy: Policy, device: torch.device):
        self.policy, self.device = cast("ActorCritic", policy), device
        heads = getattr(policy, "auxiliary", None)
        self.examples = heads is not None and heads.reward is not None  # whether any are drawn
        self.replays = heads is not None and heads.value  # likewise columns
        self.recent: RecentRows | None = None

    def draw(self, rows: Batch, batch: Batch, state: Batch, key: tuple[int, ...]) -> Batch:
        """Keep rows [T+1, B] and the state before them, and draw by `key` as many as there are lanes: "recent"
        [3, B, …] and "recent_reward" [B] once there is an example; "replayed", rows [T+1, B, …] with their "state".

        batch: the same rows on the device. Empty where no task takes any.
        """
        if not (self.examples or self.replays):
            return {}
        recent, lanes = self._keep(rows, batch, state), rows["first"].shape[1]
        rng, drawn = np.random.default_rng(key), Batch()
        if self.examples and any(recent.counts):
            drawn["recent"], drawn["recent_reward"] = recent.sample_examples(lanes, rng)
        if self.replays:
            columns, before = recent.sample_columns(lanes, rng)
            drawn["replayed"] = {**columns, "state": before}
        return cast("Batch", to_device(drawn, self.device))

    def _keep(self, rows: Batch, batch: Batch, state: Batch) -> RecentRows:
        kept = {k: tree.map(to_host, rows[k]) for k in (COLUMNS if self.replays else EXAMPLES) if k in rows}
        kept["reward"] = to_host(self.policy.rewarded(batch)["reward"])
        if self.recent is None:
            row = tree.map(lambda x: Field(tuple(x.shape[2:]), str(x.dtype)), kept)
            first, before = kept["first"], self.policy.state_spec() if self.replays else {}
            self.recent = RecentRows(row, len(first), max(2000, 2 * first.size), before)
        self.recent.add(kept, tree.map(to_host, state) if self.replays else {})
        return self.recent
