"""What all acting loops do with a row: ask the policy, write it, count the games; exploration; devices."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyplay.core import tree
from polyplay.core.tree import Batch, Index, Spec
from polyplay.core.worker import WorkerContext
from polyplay.envs.pool import Lanes, Pool
from polyplay.nets.device import fetch_outputs, to_device
from polyplay.nets.policy import Player


class Exploration(ABC):
    """How often an ε-greedy actor plays at random, or how large the noise on real actions is. Nothing of it has to be
    saved, and a replaced actor explores as the one before it did.
    """

    lanes: int = 1  # of all workers together

    @abstractmethod
    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """ε, or the noise's deviation, float32 [B], of lanes by their numbers among all workers' (int64 [B]) that acted
        so often before (int64 [B]). A pure function of both, or of the run's counts.
        """

    @abstractmethod
    def label(self) -> str:
        """A line of the diagram."""


@dataclass(frozen=True)
class LinearEpsilon(Exploration):
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
class EpsilonLadder(Exploration):
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
class GaussianNoise(Exploration):
    """Every lane's actions get normal noise of this deviation, in half ranges, for ever (Ape-X DPG: 0.3)."""

    deviation: float = 0.3

    def label(self) -> str:
        return f"noise   normal, deviation {self.deviation:g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return np.full(np.shape(lanes), self.deviation, np.float32)


# On a CPU every function here gives back what it was given.


def player_from_cpu(player: Player, device: torch.device | str) -> Player:
    """A player whose inputs and outputs are on the CPU, while its weights are on a device."""
    device = torch.device(device)
    return player if device.type == "cpu" else PlayerOnDevice(player, device)


class PlayerOnDevice(Player):
    """One copy there (observations that are there already stay), one copy back per call."""

    def __init__(self, player: Player, device: torch.device):
        self.player, self.device, self.noise = player, device, player.noise

    def spec(self) -> Spec:
        return self.player.spec()

    def state_spec(self) -> Spec:
        return self.player.state_spec()

    def initial(self, lanes: int) -> Batch:
        return tree.map(lambda x: x.cpu(), self.player.initial(lanes))

    def reward_scale(self) -> float | torch.Tensor:
        return self.player.reward_scale()

    def cache_weights(self) -> None:
        self.player.cache_weights()

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        """See Policy.act."""
        out, after = self.player.act(to_device(step, self.device), to_device(state, self.device))
        both = fetch_outputs({"out": out, "after": after} if after else {"out": out})
        return both["out"], both.get("after", {})


# A row with `first` is no transition: of a player that has gone, or has not come yet. A match is over once all its
# lanes have such rows in one turn, after some had others: it begins anew then, or rests.


class MatchEnds:
    """lanes: int [matches, seats], those of each match, in any order."""

    def __init__(self, lanes: np.ndarray):
        self.lanes, self.match = lanes, np.empty(lanes.size, np.int64)
        self.match[lanes] = np.arange(len(lanes))[:, None]
        self.came, self.ended, self._first = np.zeros((3, lanes.size), bool)  # of each lane, in this match
        self._turn = np.zeros(lanes.size, np.int64)

    def watch(self, which: slice | np.ndarray, step: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Rows of these lanes. The matches that were over before them, int [n] each: those in which everybody who came
        has ended, and those whose environment was begun anew in the middle. What is known of them is of the next ones
        after `forget`.
        """
        first, none = step["first"], np.zeros(0, np.int64)
        self._turn[which] += 1
        self._first[which] = first
        self.came[which] |= ~first
        self.ended[which] |= step["over"]
        if not first.any():
            return none, none
        matches = np.unique(self.match[which][first])
        lanes = self.lanes[matches]
        here = (self._turn[lanes] == self._turn[lanes[:, :1]]).all(1)  # all rows of the turn
        over = here & self._first[lanes].all(1) & self.came[lanes].any(1)
        whole = (self.came[lanes] == self.ended[lanes]).all(1)
        return matches[over & whole], matches[over & ~whole]

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


def act_rows(
    player: Player, step: Batch, state: Batch, noise: np.ndarray | None = None, epsilon: np.ndarray | None = None
) -> tuple[Batch, Batch]:
    """What a player makes of rows [B] as a pool gives them, after the state before them: its outputs [B], and the state
    behind them. No bytes move on a CPU.

    noise: float32 [B, player.noise] within (0, 1); None: it takes its likeliest action. epsilon: float32 [B], see
    Exploration; None: nothing is added to how the player explores.
    """
    inputs = {key: tree.map(torch.as_tensor, step[key]) for key in POLICY_INPUTS if key in step}
    if noise is not None:
        inputs["noise"] = torch.from_numpy(noise)
    if epsilon is not None:
        inputs["epsilon"] = torch.from_numpy(epsilon)
    with torch.no_grad():
        return player.act(inputs, state)


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


def report_faults(ctx: WorkerContext, pool: Pool, counts: bool = True) -> None:
    """Count what a pool repaired, and pass each on once."""
    ctx.counters.set("restarts", pool.restarts if counts else 0)
    with contextlib.suppress(IndexError):  # another thread was faster
        while pool.faults:
            ctx.log("warning", pool.faults.pop(0))
        while pool.remarks:
            ctx.log("remark", pool.remarks.pop(0))


WRITTEN = ("obs", "mask", "reward", "terminated", "truncated", "first", "events", "team_reward")  # of what a pool says


def write_row(rows: Batch, at: Index, step: Batch, out: Batch, version: int) -> None:
    for key in WRITTEN:
        if key in step:
            tree.write(rows[key], at, step[key])
    for key, value in out.items():
        tree.write(rows[key], at, tree.map(lambda x: x.numpy(), value))
    rows["version"][at] = version
