"""The rules of population based training: who is ready, who copies whom, what the copied values become. Pure.

Jaderberg et al. 2017, §4.1.1. A rule takes plain data and a generator of random numbers, and knows nothing of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyplay.population.priors import Prior
from polyplay.population.welch import welch_test

GAMES = 10  # that a t-test looks at
LEVEL = 0.05  # of its two-sided p
AGAIN = 0.25  # probability that a value is drawn anew, Ray Tune's

Values = dict[str, Any]
Priors = Mapping[str, Prior]


@dataclass(frozen=True)
class Standing:
    """How a member does."""

    score: float | None  # None: no score since its last copy; -inf: its run failed
    games: tuple[float, ...] = ()  # the returns that the score is the mean of


@dataclass(frozen=True)
class Choice:
    """What an exploit rule says of a member."""

    donor: int | None  # None: it copies nobody
    why: str


Exploit = Callable[[Sequence[Standing], int, np.random.Generator], Choice]
Explore = Callable[[Values, Priors, np.random.Generator], Values]


def is_ready(steps: int, since: int, every: int) -> bool:
    """Whether a decision about a member is due. steps: its own agent steps; since: those at its last decision."""
    return steps - since >= every


# Exploit: who copies whom. A member without a score neither copies nor is copied; one that failed is not copied.


def truncation(standings: Sequence[Standing], i: int, rng: np.random.Generator) -> Choice:
    """One of the bottom 20 % copies any of the top 20 % that is better. Members with a score count; those that tie at
    the edge all belong to the 20 %.
    """
    mine = standings[i].score
    scores = [s.score for s in standings if s.score is not None]
    if mine is None:
        return _no_score()
    most = -(-len(scores) // 5)  # members; 0.2 is not a float
    if sum(score < mine for score in scores) >= most:
        return Choice(None, "not in the bottom 20 %")
    better = [j for j, s in _donors(standings, i) if s > mine and sum(score > s for score in scores) < most]
    if not better:
        return _said(mine, None, "no member is better")
    return _said(mine, better[rng.integers(len(better))], "in the bottom 20 %")


def tournament(standings: Sequence[Standing], i: int, rng: np.random.Generator) -> Choice:
    """A member copies a peer drawn at random if that has a better score (§4.3.1, binary tournament)."""
    mine, peers = standings[i].score, _donors(standings, i)
    if mine is None:
        return _no_score()
    if not peers:
        return _said(mine, None, "no other member has a score")
    j, score = peers[rng.integers(len(peers))]
    return _said(mine, j, f"member {j} is better") if score > mine else _said(mine, None, f"member {j} is no better")


def ttest(standings: Sequence[Standing], i: int, rng: np.random.Generator) -> Choice:
    """A member copies a peer drawn at random if the mean of that one's last 10 games is higher and Welch's t-test says
    so: §4.1.1, "Welch's t-test on the last 10 episodes". The paper gives no level; here the two-sided p has to be below
    0.05, so a peer as good is copied in 2.5 % of looks. With fewer than two games nothing is copied, but a member that
    failed copies any peer.
    """
    mine, peers = standings[i].score, _donors(standings, i)
    if mine is None:
        return _no_score()
    if not peers:
        return _said(mine, None, "no other member has a score")
    j, _ = peers[rng.integers(len(peers))]
    if mine == -math.inf:
        return _said(mine, j, f"member {j} has not")
    own, other = standings[i].games[-GAMES:], standings[j].games[-GAMES:]
    if min(len(own), len(other)) < 2:
        return Choice(None, f"fewer than two games of it or of member {j}")
    test = welch_test(other, own)
    if test.t <= 0:
        return Choice(None, f"member {j} is no better")
    if test.p >= LEVEL:
        return Choice(None, f"member {j} may be no better, p = {test.p:.2g}")
    return Choice(j, f"member {j} is better, p = {test.p:.2g}")


def never(standings: Sequence[Standing], i: int, rng: np.random.Generator) -> Choice:
    """Nobody copies: random search."""
    mine = standings[i].score
    return _no_score() if mine is None else _said(mine, None, "nothing is copied")


def _donors(standings: Sequence[Standing], i: int) -> list[tuple[int, float]]:
    """Whom member i may copy, and their scores."""
    scored = [(j, s.score) for j, s in enumerate(standings) if s.score is not None]
    return [(j, score) for j, score in scored if j != i and score > -math.inf]


def _no_score() -> Choice:
    return Choice(None, "no score since its last copy")


def _said(mine: float, donor: int | None, why: str) -> Choice:
    return Choice(donor, f"its run failed; {why}" if mine == -math.inf else why)


EXPLOIT: dict[str, Exploit] = {"truncation": truncation, "tournament": tournament, "ttest": ttest, "none": never}


# Explore: what the copied values become. What has no prior stays.


def perturb(values: Values, priors: Priors, rng: np.random.Generator) -> Values:
    """Each × 0.8 or × 1.2 by itself."""
    return values | {name: prior.perturb(values[name], rng) for name, prior in priors.items()}


def resample(values: Values, priors: Priors, rng: np.random.Generator) -> Values:
    """Each by itself drawn anew with probability 0.25."""
    return values | {name: prior.draw(rng) for name, prior in priors.items() if rng.random() < AGAIN}


def perturb_or_resample(values: Values, priors: Priors, rng: np.random.Generator) -> Values:
    """Each by itself drawn anew with probability 0.25, else perturbed: Ray Tune's."""
    return values | {
        name: prior.draw(rng) if rng.random() < AGAIN else prior.perturb(values[name], rng)
        for name, prior in priors.items()
    }


def unchanged(values: Values, priors: Priors, rng: np.random.Generator) -> Values:
    """As the donor has them."""
    return dict(values)


EXPLORE: dict[str, Explore] = {
    "perturb": perturb,
    "resample": resample,
    "both": perturb_or_resample,
    "none": unchanged,
}
