"""What all acting loops do with a row; exploration; devices.

What both acting loops do with a row: choose what the policy sees of it, write it, count the games.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch

from polyplay.buffers.rollout_queue import RolloutSlots
from polyplay.core import tree
from polyplay.core.tree import Batch, Index
from polyplay.core.worker import WorkerContext
from polyplay.envs.pool import Lanes, Pool
from polyplay.nets.device import fetch_outputs, to_device
from polyplay.nets.layers import Tape
from polyplay.nets.policy import Policy, TapedPolicy

# How often an ε-greedy actor plays at random: a schedule in agent steps, or a ladder over the lanes; or how large the
# noise on real actions is.
#
# `at(acts, lanes)` gives ε (or the noise's deviation), float32 [B], for lanes by their numbers among all workers' and
# how often each acted before. A pure function of both, or of a RunSchedule's weights, so nothing of it has to be
# saved, and a replaced actor explores as the one before it did.


class Exploration(Protocol):
    @property
    def lanes(self) -> int: ...  # of all workers together
    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray: ...
    def label(self) -> str: ...  # for the diagram


@dataclass(frozen=True)
class LinearEpsilon:
    """ε is `start` for the first `after` agent steps, then falls straight to `end` over `over` more, and stays.

    Mnih et al. 2015: 1 to 0.1 over 1M agent steps after 50k. lanes: of all workers together; they keep step, so
    that one lane's steps times `lanes` are all agent steps, but for one a game: the row that ends it is acted on too.
    """

    start: float = 1.0
    end: float = 0.1
    over: int = 1_000_000
    after: int = 50_000
    lanes: int = 1

    def label(self) -> str:
        return f"ε       LinearEpsilon to {np.float32(self.end):.3g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        done = (np.asarray(acts, np.float64) * self.lanes - self.after) / max(self.over, 1)
        return (self.start + (self.end - self.start) * np.clip(done, 0.0, 1.0)).astype(np.float32)


@dataclass(frozen=True)
class RunSchedule(LinearEpsilon):
    """The same by the agent steps of the whole run, earlier ones' too, which `weights` count, where lanes don't keep
    step (actors of Gorila that run freely). So whoever takes a lost one's place, or resumes, goes on where the run is.
    """

    weights: Any = None  # SharedWeights

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return super().at(np.full(np.shape(acts), self.weights.counts.learnt / self.lanes), lanes)


@dataclass(frozen=True)
class EpsilonLadder:
    """ε of lane i of N is base^(1 + α·i/(N − 1)), for ever (Ape-X, Horgan et al. 2018, §4.1; R2D2): 0.4 to 6.6e-4.

    One lane alone has i/(N − 1) = 0, so ε = base.
    """

    lanes: int
    base: float = 0.4
    alpha: float = 7.0

    def label(self) -> str:
        return f"ε       {type(self).__name__} to {self.base ** (1.0 + self.alpha * (self.lanes > 1)):.3g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        rung = np.asarray(lanes, np.float64) / max(self.lanes - 1, 1)
        return (self.base ** (1.0 + self.alpha * rung)).astype(np.float32)


@dataclass(frozen=True)
class GaussianNoise:
    """Every lane's actions get normal noise of this deviation, in half ranges, for ever (Ape-X DPG: 0.3)."""

    deviation: float = 0.3

    def label(self) -> str:
        return f"noise   normal, deviation {self.deviation:g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return np.full(np.shape(lanes), self.deviation, np.float32)


# On a CPU every function here gives back what it was given.


def policy_from_cpu(policy: Policy) -> Policy:
    """A policy whose inputs and outputs are on the CPU, wherever its weights are."""
    device = next(policy.parameters()).device
    return policy if device.type == "cpu" else cast("Policy", PolicyOnDevice(policy, device))


class PolicyOnDevice:
    """One copy there (observations that are there already stay), one copy back per call."""

    def __init__(self, policy: Policy, device: torch.device):
        self.policy, self.device = policy, device

    def __getattr__(self, name: str) -> object:
        return getattr(self.policy, name)

    def initial(self, lanes: int) -> Batch:
        return tree.map(lambda x: x.cpu(), self.policy.initial(lanes))

    def act(self, step: Batch, state: Batch, *tape: Tape) -> tuple[Batch, Batch]:
        """See Policy.act. What goes on a tape stays on the device."""
        out, after = cast("TapedPolicy", self.policy).act(
            to_device(step, self.device), to_device(state, self.device), *tape
        )
        both = fetch_outputs({"out": out, "after": after} if after else {"out": out})
        return both["out"], both.get("after", {})


def pool_to_device(pool: Pool, slots: RolloutSlots, device: torch.device) -> Pool:
    """A replica's pool, whose observations go to the device as they arrive, once; the slots' rows are there too,
    and both acting and learning read them.
    """
    if device.type == "cpu":
        return pool
    slots.rows["obs"] = tree.map(lambda x: torch.zeros_like(torch.from_numpy(x), device=device), slots.rows["obs"])
    return cast("Pool", PoolOnDevice(pool, device))


class PoolOnDevice:
    def __init__(self, pool: Pool, device: torch.device):
        self.pool, self.device = pool, device

    def __getattr__(self, name: str) -> object:
        return getattr(self.pool, name)

    def arrive(self, step: Batch) -> Batch:
        return {**step, "obs": to_device(step["obs"], self.device)}

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool."""
        lanes, step = self.pool.recv(timeout)
        return lanes, self.arrive(step)


def row_to_device(pool: Pool, step: Batch) -> Batch:
    """A row that was saved, as such a pool gave it."""
    return pool.arrive(step) if isinstance(pool, PoolOnDevice) else step


# A row with `first` is no transition: of a player that has gone, or has not come yet. A match is over once all its
# lanes have such rows in one turn, after some had others: it begins anew then, or rests.


class MatchesOver(NamedTuple):
    """Numbers of matches that were over before the rows of now."""

    whole: np.ndarray  # int [n]: everybody who came has ended
    broken: np.ndarray  # int [n]: the environment was begun anew in the middle


class MatchEnds:
    """lanes: int [matches, seats], those of each match, in any order."""

    def __init__(self, lanes: np.ndarray):
        self.lanes, self.match = lanes, np.empty(lanes.size, np.int64)
        self.match[lanes] = np.arange(len(lanes))[:, None]
        self.came, self.ended, self._first = np.zeros((3, lanes.size), bool)  # of each lane, in this match
        self._turn = np.zeros(lanes.size, np.int64)

    def watch(self, which: slice | np.ndarray, step: Batch) -> MatchesOver:
        """Rows of these lanes. What is known of the matches that it returns is of the next ones after `forget`."""
        first, none = step["first"], np.zeros(0, np.int64)
        self._turn[which] += 1
        self._first[which] = first
        self.came[which] |= ~first
        self.ended[which] |= step["over"]
        if not first.any():
            return MatchesOver(none, none)
        matches = np.unique(self.match[which][first])
        lanes = self.lanes[matches]
        here = (self._turn[lanes] == self._turn[lanes[:, :1]]).all(1)  # all rows of the turn
        over = here & self._first[lanes].all(1) & self.came[lanes].any(1)
        whole = (self.came[lanes] == self.ended[lanes]).all(1)
        return MatchesOver(matches[over & whole], matches[over & ~whole])

    def save(self) -> Batch:
        """What decides its answers to come."""
        return {"came": self.came, "ended": self.ended, "first": self._first, "turn": self._turn}

    def load(self, saved: Batch) -> None:
        """The inverse."""
        for name, array in self.save().items():
            array[:] = saved[name]

    def forget(self, matches: np.ndarray) -> None:
        """These are over."""
        self.came[self.lanes[matches]] = self.ended[self.lanes[matches]] = False


POLICY_INPUTS = ("obs", "mask", "reward", "first", "events")  # what a policy sees of a row


def as_tensors(batch: Batch) -> Batch:
    """Torch views of NumPy arrays; no bytes move. Tensors pass."""
    return tree.map(torch.as_tensor, batch)


class EpisodeCounter:
    """Returns and lengths of full games per lane, unclipped, whatever ends an episode for the learner."""

    def __init__(self, lanes: int):
        self.ret, self.length = np.zeros(lanes), np.zeros(lanes)
        self.ended, self.over = np.ones(lanes, bool), np.ones(lanes, bool)

    def count(self, ctx: WorkerContext, lanes: Lanes, step: Batch, first_lane: int, agent: int = 0) -> None:
        """agent: whose lanes these are; -1: nobody's who learns, whose games and steps do not count."""
        first, over = step["first"], step["over"]
        if first.any():
            # a first row starts a new game after one that was over, or after a lane had to be restarted in mid-episode
            new = first & (self.over[lanes] | ~self.ended[lanes])
            self.ret[lanes] = np.where(new, 0.0, self.ret[lanes])
            self.length[lanes] = np.where(new, 0.0, self.length[lanes])
        self.ret[lanes] += step["reward"]
        self.length[lanes] += ~first
        if over.any() and agent >= 0:
            for i in np.arange(len(self.ret))[lanes][over]:
                ctx.counters.episode(self.ret[i], self.length[i], first_lane + int(i), agent)
        self.ended[lanes] = step["terminated"] | step["truncated"]
        self.over[lanes] = over
        if agent >= 0:
            ctx.counters.add("steps", int(len(first) - np.count_nonzero(first)))


def policy_inputs(step: Batch) -> Batch:
    """Of a row; without its noise."""
    return {k: step[k] for k in POLICY_INPUTS if k in step}


WRITTEN = ("obs", "mask", "reward", "terminated", "truncated", "first", "events", "team_reward")  # of what a pool says


def write_row(rows: Batch, at: Index, step: Batch, out: Batch, version: int) -> None:
    for key in WRITTEN:
        if key in step:
            tree.write(rows[key], at, step[key])
    for key, value in out.items():
        tree.write(rows[key], at, tree.map(lambda x: x.numpy(), value))
    rows["version"][at] = version
