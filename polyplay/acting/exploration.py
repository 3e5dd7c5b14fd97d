"""How often an ε-greedy actor plays at random: a schedule in agent steps, or a ladder over the lanes; or how large the
noise on real actions is. Imports no torch.

`at(acts, lanes)` gives ε (or the noise's deviation), float32 [B], for lanes by their numbers among all workers' and how
often each acted before.
A pure function of both, or of a RunSchedule's counts, so nothing of it has to be saved, and a replaced actor
explores as the one before it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


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
        return f"ε       {type(self).__name__} to {np.float32(self.end):.3g}"

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        done = (np.asarray(acts, np.float64) * self.lanes - self.after) / max(self.over, 1)
        return (self.start + (self.end - self.start) * np.clip(done, 0.0, 1.0)).astype(np.float32)


class StepCounts(Protocol):
    @property
    def learnt(self) -> float: ...  # agent steps of all workers, earlier runs' too


@dataclass(frozen=True)
class RunSchedule:
    """A schedule by the agent steps of the whole run, as `counts` has them, where lanes don't keep step (actors of
    Gorila that run freely). So whoever takes a lost one's place, or resumes, goes on where the run is.
    """

    schedule: LinearEpsilon
    counts: StepCounts

    @property
    def lanes(self) -> int:
        return self.schedule.lanes

    def label(self) -> str:
        return self.schedule.label()

    def at(self, acts: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return self.schedule.at(np.full(np.shape(acts), self.counts.learnt / self.lanes), lanes)


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
