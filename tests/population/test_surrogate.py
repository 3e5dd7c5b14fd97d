"""Two workers on the paper's toy (Jaderberg et al. 2017, Fig. 2): what copying and exploring are each good for.

To maximise: Q(θ) = 1.2 − (θ₀² + θ₁²). A worker only sees the surrogate 1.2 − (h₀θ₀² + h₁θ₁²) and follows its gradient
from (0.9, 0.9), one with h = (1, 0), the other with h = (0, 1): alone each gets one θ to 0, and Q to 0.39.

Where h is copied too, copying alone makes both workers alike, and × 0.8 or × 1.2 leaves a 0 at 0. So "copying alone"
copies θ and leaves each its h (nothing is varied), and "both" draws each h anew from its prior, uniform:0:1, with
probability 0.25: `resample`, or `both`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyplay.population.rules import EXPLOIT, EXPLORE, Standing, is_ready, parse_prior

EVERY, RATE, STEPS = 5, 0.02, 800  # between decisions; of the gradient; of both workers together
PRIORS = {name: parse_prior(f"{name}=uniform:0:1", float) for name in ("h0", "h1")}
SEEDS = range(20)
COPYING = ["truncation", "tournament", "ttest"]
Theta = tuple[float, float]


def quality(theta: Theta) -> float:
    return 1.2 - (theta[0] ** 2 + theta[1] ** 2)  # a sum in brackets: two mirrored workers tie to the last bit


def follow(theta: Theta, h: dict[str, float]) -> Theta:
    """A step up the surrogate's gradient."""
    return theta[0] - 2 * RATE * h["h0"] * theta[0], theta[1] - 2 * RATE * h["h1"] * theta[1]


class Worker:
    def __init__(self, h0: float, h1: float):
        self.theta: Theta = (0.9, 0.9)
        self.h = {"h0": h0, "h1": h1}
        self.steps = self.since = 0
        self.score: float | None = None


class Pair:
    """The two workers, their decisions and their lineage. varied: a copy takes h too, and it is explored."""

    def __init__(self, exploit: str, explore: str = "none", varied: bool = False, seed: int = 0):
        self.exploit, self.explore, self.varied = EXPLOIT[exploit], EXPLORE[explore], varied
        self.rng = np.random.default_rng(seed)
        self.workers = [Worker(1.0, 0.0), Worker(0.0, 1.0)]
        self.rows = [self.row(i, None, {}, w.h) for i, w in enumerate(self.workers)]
        self.copies = 0

    def run(self, in_step: bool = False) -> Pair:
        """In step: with a barrier, each sees the other as it was there. Else one makes a step, drawn at random."""
        for _ in range(STEPS // 2 if in_step else STEPS):
            turn = [0, 1] if in_step else [int(self.rng.integers(2))]
            for i in turn:
                self.train(self.workers[i])
            self.decide([i for i in turn if is_ready(self.workers[i].steps, self.workers[i].since, EVERY)])
        return self

    def train(self, worker: Worker) -> None:
        worker.theta = follow(worker.theta, worker.h)
        worker.steps += 1

    def decide(self, ready: list[int]) -> None:
        for worker in (self.workers[i] for i in ready):
            worker.score, worker.since = quality(worker.theta), worker.steps
        standings = [Standing(w.score, (w.score,) * 2 if w.score is not None else ()) for w in self.workers]
        found = [(i, self.exploit(standings, i, self.rng).donor) for i in ready]
        for i, donor in found:
            if donor is not None:
                self.copy(i, donor)

    def copy(self, i: int, donor: int) -> None:
        receiver, giver, old = self.workers[i], self.workers[donor], self.workers[i].h
        self.copies += 1
        receiver.theta, receiver.score = giver.theta, None
        if self.varied:
            receiver.h = self.explore(dict(giver.h), PRIORS, self.rng)
        self.rows.append(self.row(i, donor, old, receiver.h))

    def row(self, i: int, donor: int | None, old: dict[str, float], new: dict[str, float]) -> dict[str, Any]:
        at = None if donor is None else self.workers[donor].steps
        return {"member": i, "steps": self.workers[i].steps, "donor": donor, "donor_steps": at, "old": old, "new": new}

    @property
    def best(self) -> float:
        return max(quality(w.theta) for w in self.workers)


@pytest.mark.parametrize("in_step", [False, True])
def test_without_copying_and_exploring(in_step):
    assert all(Pair("none", seed=s).run(in_step).best == pytest.approx(0.39, abs=1e-9) for s in SEEDS)


@pytest.mark.parametrize("rule", COPYING)
def test_copying_alone(rule):
    assert min(Pair(rule, seed=s).run().best for s in SEEDS) >= 1.1


@pytest.mark.parametrize("explore", ["resample", "both"])
@pytest.mark.parametrize("rule", COPYING)
def test_copying_and_exploring(rule, explore):
    assert [s for s in SEEDS if Pair(rule, explore, varied=True, seed=s).run().best >= 1.19] == list(SEEDS)


@pytest.mark.parametrize("explore", ["none", "perturb"])
def test_a_zero_that_is_copied_and_only_multiplied_stays(explore):
    """A copy makes both workers blind to the same θ."""
    pairs = [Pair("truncation", explore, varied=True, seed=s).run() for s in SEEDS]
    assert all(p.copies and p.best == pytest.approx(0.39, abs=1e-3) for p in pairs)


@pytest.mark.parametrize("rule", sorted(EXPLOIT))
@pytest.mark.parametrize("explore", sorted(EXPLORE))
def test_in_step_both_tie_for_ever(rule, explore):
    pair = Pair(rule, explore, varied=True).run(in_step=True)
    assert pair.copies == 0
    assert pair.workers[0].score == pair.workers[1].score
    assert pair.best == pytest.approx(0.39, abs=1e-9)
