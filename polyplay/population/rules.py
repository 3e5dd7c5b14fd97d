"""Evolution of a population: rules that decide which member copies which, and how copied hyperparameters change.

The rules are those of Jaderberg et al. 2017, §4.1.1, and 2019. Members of a population are runs (population.trainer) or
agents of a league (population.league_log).
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NoReturn

import numpy as np

from polyplay.core.errors import UserError
from polyplay.core.files import is_number
from polyplay.population.ratings import win_probability

# Welch's t-test, without SciPy.


def welch_test(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return t and the two-sided p of Welch's t-test (Welch 1947), for two samples of at least two numbers each.

    t = (ā − b̄) / √(s²ₐ/nₐ + s²ᵦ/nᵦ). p comes from Student's distribution with Welch–Satterthwaite degrees of freedom.
    If both samples are constant, p is 1 for equal means, else 0.
    """
    means = statistics.mean(map(float, a)) - statistics.mean(map(float, b))  # exact, so that equal means differ by 0
    va, vb = (statistics.variance(map(float, x)) / len(x) for x in (a, b))
    if va + vb == 0:
        return (math.copysign(math.inf, means), 0.0) if means else (0.0, 1.0)
    t, share = means / math.sqrt(va + vb), va / (va + vb)
    freedom = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    return t, two_sided(t, freedom)


def two_sided(t: float, freedom: float) -> float:
    """Return the probability that |T| ≥ |t|, for Student's T with ν ≥ 1 degrees of freedom. It is the integral of
    sin^(ν−1) from 0 to arctan(√ν / |t|), divided by the integral from 0 to π/2.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    root = (1 + nodes) / 2

    def integral(end: float) -> float:  # Gauss–Legendre quadrature in the fourth root of the angle
        return end * float(weights @ (root**3 * np.sin(end * root**4) ** (freedom - 1)))

    return integral(math.atan2(math.sqrt(freedom), abs(t))) / integral(math.pi / 2)


# Jaderberg et al. 2017, §4.1.1: a value is multiplied by 0.8 or 1.2; as in Ray Tune, a list's entry becomes a neighbor.


FACTORS = (0.8, 1.2)
RANGE = 10.0
FORMS = "NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=a,b,c, as in --vary learning_rate=log:1e-5:1e-2"


@dataclass(frozen=True)
class Prior:
    """Distribution from which values of a hyperparameter are drawn: over a range, or over a list. In a `log` range,
    both ends must have the same sign.
    """

    name: str
    kind: Literal["log", "uniform", "list"]
    low: float = 0  # lower end of a range
    high: float = 0
    choices: tuple[Any, ...] = ()  # entries of a list
    whole: bool = False  # whether the range has only whole numbers
    chance: float = 1.0  # rule mutate: probability that a copied value is perturbed
    drawn: bool = False  # rule mutate: whether a copied value is resampled instead

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value: uniformly from a range or a list, or log-uniformly from a `log` range."""
        if self.kind == "list":
            return self.choices[rng.integers(len(self.choices))]
        half, u = 0.5 * self.whole, rng.random()  # half makes whole numbers at both ends as likely as others
        low, high = self.low - half, self.high + half
        if self.kind == "log":
            sign = math.copysign(1.0, high)
            return self._clip(sign * math.exp(math.log(sign * low) * (1 - u) + math.log(sign * high) * u))
        return self._clip(low * (1 - u) + high * u)

    def perturb(self, value: Any, rng: np.random.Generator) -> Any:
        """Return `value` × 0.8 or × 1.2, with equal probability, clipped to the range. A whole number changes by at
        least 1. For a list, return the next or the previous entry.
        """
        up = int(rng.integers(2))
        if self.kind == "list":
            i, step = self.choices.index(value), 1 if up else -1
            return self.choices[i + step if 0 <= i + step < len(self.choices) else i - step]
        moved = self._times(value, FACTORS[up])
        return self._times(value, FACTORS[not up]) if self.whole and moved == value else moved

    def label(self) -> str:
        """Return the prior as text, as --vary takes it after NAME=."""
        if self.kind == "list":
            return ",".join(map(str, self.choices))
        return f"{self.kind}:{self.low}:{self.high}"

    def _times(self, value: float, factor: float) -> float:
        """Return `value` · `factor`, clipped. A whole number is rounded, and changes by at least 1 before clipping."""
        moved = self._clip(value * factor)
        if self.whole and moved == value:
            return self._clip(value + (1 if (factor > 1) == (value >= 0) else -1))
        return moved

    def _clip(self, value: float) -> float:
        return min(max(round(value) if self.whole else value, self.low), self.high)


def combinations(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of one entry per name. The entry of the last name changes fastest."""
    return [dict(zip(lists, chosen, strict=True)) for chosen in product(*lists.values())]


def around(values: Mapping[str, float], chance: float = 1.0) -> dict[str, Prior]:
    """Return a default prior for each value except 0: log-uniform from a tenth of the value to ten times the value."""
    ends = {name: sorted((x / RANGE, x * RANGE)) for name, x in values.items() if x}
    return {name: Prior(name, "log", low, high, chance=chance) for name, (low, high) in ends.items()}


def initial(priors: Mapping[str, Prior], agents: int, seed: int) -> list[dict[str, float]]:
    """Return the initial hyperparameters of each agent, drawn from the priors."""
    rngs = [np.random.default_rng([seed, agent, 0, 1]) for agent in range(agents)]  # copies' seeds have 3 numbers
    return [{name: float(prior.draw(rng)) for name, prior in priors.items()} for rng in rngs]


def parse_prior(text: str, read: Callable[[str], Any]) -> Prior:
    """Parse one NAME=PRIOR of --vary. Raises UserError for invalid text. read: converts a word to a value."""
    name, _, given = text.partition("=")
    if not (name and given):
        raise UserError(f"--vary '{text}': must be {FORMS}")
    kind, *ends = given.split(":")
    words = ends if kind in ("log", "uniform") else given.split(",")

    def refuse(what: str) -> NoReturn:
        option = f"--{name.replace('_', '-')}"
        raise UserError(f"--vary {text}: {what}; allowed: {FORMS}; for a fixed value write {option} alone")

    try:
        values = [read(word) for word in words if word]
    except UserError as e:
        raise UserError(f"--vary {text}: {e}") from None
    if len(values) < max(2, len(words)):
        refuse(f"'{given}' must have two values or more")
    if kind not in ("log", "uniform"):
        if any(value in values[:i] for i, value in enumerate(values)):
            refuse("an entry appears twice")
        return Prior(name, "list", choices=tuple(values))
    if len(values) > 2 or not all(map(is_number, values)):
        refuse(f"'{':'.join(words)}' must be two finite numbers")
    low, high = values
    if low >= high or (kind == "log" and low <= 0):
        refuse(f"LOW {words[0]} must be below HIGH {words[1]}, and above 0 under log")
    whole = isinstance(low, int) and isinstance(high, int)
    low, high = (low, high) if whole else (float(low), float(high))
    return Prior(name, "log" if kind == "log" else "uniform", low, high, whole=whole)


GAMES = 10  # number of each member's newest games in a t-test
LEVEL = 0.05  # the t-test's two-sided p must be below this
AGAIN = 0.25  # probability that a value is resampled, as in Ray Tune
SURE = 0.7  # an agent is copied if it wins with at least this probability

Values = dict[str, Any]
Priors = Mapping[str, Prior]
Choice = tuple[int | None, str]  # decision for a member: member to copy (None: no copy), and the reason


@dataclass(frozen=True)
class Standing:
    """Score and hyperparameters of a member of a population, from which the rules decide about copies."""

    score: float | None  # higher is better; None: unknown since the last copy; -inf: the run failed
    games: tuple[float, ...] = ()  # returns whose mean is the score
    values: Values = field(default_factory=dict)  # hyperparameters


class Population(ABC):
    """Base class of populations: members that train separately and copy each other. While `evolve` runs, nothing else
    changes the members.
    """

    @abstractmethod
    def standings(self) -> Sequence[Standing]:
        """Return a Standing (score and hyperparameters) for each member, in the order of the members' numbers."""

    @abstractmethod
    def copy(self, receiver: int, donor: int, values: Values) -> None:
        """Let member `receiver` continue from the learned state of member `donor`, with the hyperparameters `values`.
        Raises UserError, without a change, if the donor has no complete state.
        """


@dataclass(frozen=True)
class Evolution:
    """Rules by which runs (pbt) or agents (league, ftw) copy each other and change the copied hyperparameters."""

    every: int = 0  # agent steps of a run, or matches of an agent, between two decisions; 0: no decisions
    exploit: str = "outplayed"
    explore: str = "mutate"
    priors: Priors = field(default_factory=dict)

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the hyperparameters that change when a member copies another one."""
        return tuple(self.priors) if self.every else ()

    def describe(self) -> list[str]:
        """Return a line about copies for the diagram of a league. If agents never copy, return []."""
        return [f"copies  an agent that wins {SURE:.0%}, every {self.every:,} matches"] if self.every else []


def evolve(population: Population, i: int, rules: Evolution, rng: np.random.Generator) -> Choice:
    """Choose a donor (member to copy) for member `i`, and copy it. Return the donor, or None, and the reason.

    Member `i` gets the donor's hyperparameters, changed by a rule. The result depends only on standings and `rng`.
    """
    standings = population.standings()
    donor, why = choose_donor(rules.exploit, standings, i, rng)
    if donor is not None:
        try:
            population.copy(i, donor, change_values(rules.explore, standings[donor].values, rules.priors, rng))
        except UserError as e:
            return None, f"not copied: {e}"
    return donor, why


Peers = list[tuple[int, float]]  # other members that may be copied, and their scores


def choose_donor(rule: str, standings: Sequence[Standing], i: int, rng: np.random.Generator) -> Choice:
    """Return the donor of member `i`, or None, and the reason. Members without a score do not copy and are not copied.
    Failed members copy others, but are not copied.
    """
    mine = standings[i].score
    if mine is None:
        return None, "no score since its last copy"
    scored = [(j, s.score) for j, s in enumerate(standings) if s.score is not None and s.score > -math.inf]
    donor, why = EXPLOIT[rule](standings, i, mine, [peer for peer in scored if peer[0] != i], rng)
    return donor, f"its run failed; {why}" if mine == -math.inf else why


def truncation(standings: Sequence[Standing], i: int, mine: float, peers: Peers, rng: np.random.Generator) -> Choice:
    """A member in the bottom 20 % copies a random better member in the top 20 %. Members without a score do not count.
    Members with equal scores at the edge of the 20 % all belong to it.
    """
    scores = [s.score for s in standings if s.score is not None]
    most = -(-len(scores) // 5)  # 20 % of the members, rounded up; exact, unlike 0.2
    if sum(score < mine for score in scores) >= most:
        return None, "not in the bottom 20 %"
    better = [j for j, s in peers if s > mine and sum(score > s for score in scores) < most]
    if not better:
        return None, "no member is better"
    return better[rng.integers(len(better))], "in the bottom 20 %"


def tournament(standings: Sequence[Standing], i: int, mine: float, peers: Peers, rng: np.random.Generator) -> Choice:
    """A member copies a random other member if that member's score is better (Jaderberg et al. 2017, §4.3.1)."""
    if not peers:
        return None, "no other member has a score"
    j, score = peers[rng.integers(len(peers))]
    return (j, f"member {j} is better") if score > mine else (None, f"member {j} is no better")


def t_test(standings: Sequence[Standing], i: int, mine: float, peers: Peers, rng: np.random.Generator) -> Choice:
    """A member copies a random other member if that member's mean return is higher by Welch's t-test over 10 games.

    Jaderberg et al. 2017, §4.1.1, test the last 10 games, but give no significance level. Here, the two-sided p must be
    below 0.05. If one of the members has fewer than two games, no copy is made. A failed member copies any member.
    """
    if not peers:
        return None, "no other member has a score"
    j, _ = peers[rng.integers(len(peers))]
    if mine == -math.inf:
        return j, f"member {j} has not"
    own, other = standings[i].games[-GAMES:], standings[j].games[-GAMES:]
    if min(len(own), len(other)) < 2:
        return None, f"fewer than two games of it or of member {j}"
    t, p = welch_test(other, own)
    if t <= 0:
        return None, f"member {j} is no better"
    sure = p < LEVEL
    return j if sure else None, f"member {j} {'is better' if sure else 'may be no better'}, p = {p:.2g}"


def outplayed(standings: Sequence[Standing], i: int, mine: float, peers: Peers, rng: np.random.Generator) -> Choice:
    """An agent copies a random other agent if that agent beats it with probability 0.7 or more (Jaderberg et al. 2019).
    The probability is computed from the Elo ratings, which are the scores.
    """
    if not peers:
        return None, "no other agent has played enough"
    j, score = peers[rng.integers(len(peers))]
    chance = win_probability(score, mine)
    return j if chance >= SURE else None, f"agent {j} beats it with probability {chance:.2f}"


def nobody(standings: Sequence[Standing], i: int, mine: float, peers: Peers, rng: np.random.Generator) -> Choice:
    """No member copies another, so training is a random search."""
    return None, "nothing is copied"


# rule → function that chooses the peer that member i copies; `mine`: member i's score
EXPLOIT = {"truncation": truncation, "tournament": tournament, "ttest": t_test, "outplayed": outplayed, "none": nobody}

# rule → function that changes a copied value v by its prior p and generator r. perturb: times 0.8 or 1.2; resample:
# drawn from p with probability 0.25; both: drawn with probability 0.25, else perturbed (Ray Tune); mutate: see Prior
EXPLORE: dict[str, Callable[[Any, Prior, np.random.Generator], Any]] = {
    "perturb": lambda v, p, r: p.perturb(v, r),
    "resample": lambda v, p, r: p.draw(r) if r.random() < AGAIN else v,
    "both": lambda v, p, r: p.draw(r) if r.random() < AGAIN else p.perturb(v, r),
    "mutate": lambda v, p, r: p.draw(r) if p.drawn else p.perturb(v, r) if r.random() < p.chance else v,
    "none": lambda v, p, r: v,
}


def change_values(rule: str, values: Values, priors: Priors, rng: np.random.Generator) -> Values:
    """Return copied hyperparameters. Each one that has a prior is changed by the rule."""
    return {**values, **{name: EXPLORE[rule](values[name], prior, rng) for name, prior in priors.items()}}
