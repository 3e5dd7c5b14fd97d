"""The rules and priors of population based training: who copies whom, what the copied values become. Pure.

Jaderberg et al. 2017, §4.1.1. A rule takes plain data and a generator of random numbers, and knows nothing of runs.
"""

from __future__ import annotations

import difflib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import numpy as np

from polyplay.core.errors import UserError

# Welch's t-test, with Student's distribution from the incomplete beta function. Pure; no SciPy.


TINY = 1e-300  # stands for 0 where a fraction divides by it
TERMS = 300  # of a continued fraction; some 20 are enough for 10 games


@dataclass(frozen=True)
class Welch:
    """The test of a's mean against b's."""

    t: float  # positive: a's mean is greater
    freedom: float  # degrees of freedom, Welch–Satterthwaite
    p: float  # two-sided: how likely such a |t| or a greater one is where both means are the same


def welch_test(a: Sequence[float], b: Sequence[float]) -> Welch:
    """Welch 1947: t = (ā − b̄) / √(s²ₐ/nₐ + s²ᵦ/nᵦ), for samples of two or more whose variances may differ.

    Where neither sample varies, equal means give p = 1 and others p = 0, both with nₐ + nᵦ − 2 degrees of freedom.
    """
    means = statistics.mean(map(float, a)) - statistics.mean(map(float, b))  # exact: equal numbers do not vary
    va, vb = (statistics.variance(map(float, x)) / len(x) for x in (a, b))
    if va + vb == 0:
        t = math.copysign(math.inf, means) if means else 0.0
        return Welch(t, len(a) + len(b) - 2.0, 0.0 if means else 1.0)
    t = means / math.sqrt(va + vb)
    share = va / (va + vb)
    freedom = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    return Welch(t, freedom, two_sided(t, freedom))


def two_sided(t: float, freedom: float) -> float:
    """The probability that |T| ≥ |t| for Student's T: I_x(ν/2, 1/2) with x = ν / (ν + t²)."""
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8). It converges fast where x is
    below (a + 1) / (a + b + 2); beyond, I_x(a, b) = 1 − I_{1−x}(b, a).
    """
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / a / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)) by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, TERMS):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or TINY)
        c = 1 + term / c or TINY
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


# Jaderberg et al. 2017, §4.1.1: a value is multiplied by 0.8 or by 1.2. Ray Tune moves in a list to a neighbour.


FACTORS = (0.8, 1.2)
RANGES = ("log", "uniform")
FORMS = "NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=a,b,c, as in --vary learning_rate=log:1e-5:1e-2"


@dataclass(frozen=True)
class Prior:
    """What a hyperparameter may be, and how likely: a range, or a list. A range under log is on one side of 0."""

    name: str
    kind: Literal["log", "uniform", "list"]
    low: float = 0  # of a range
    high: float = 0
    choices: tuple[Any, ...] = ()  # of a list
    whole: bool = False  # a range of whole numbers

    def draw(self, rng: np.random.Generator) -> Any:
        """A value: uniform in a range, its logarithm uniform under log, each entry of a list as likely."""
        if self.kind == "list":
            return self.choices[rng.integers(len(self.choices))]
        half, u = 0.5 * self.whole, rng.random()  # the whole numbers at both ends are as likely as the others
        low, high = self.low - half, self.high + half
        if self.kind == "log":
            sign = math.copysign(1.0, high)
            return self._clip(sign * math.exp(math.log(sign * low) * (1 - u) + math.log(sign * high) * u))
        return self._clip(low * (1 - u) + high * u)

    def perturb(self, value: Any, rng: np.random.Generator) -> Any:
        """`value` × 0.8 or × 1.2, as likely, held to the range. A whole number always moves, by 1 at least, from an end
        of its range inwards; in a list the next or the one before is taken.
        """
        up = int(rng.integers(2))
        if self.kind == "list":
            return self._neighbour(self.choices.index(value), 1 if up else -1)
        moved = self._times(value, FACTORS[up])
        return self._times(value, FACTORS[not up]) if self.whole and moved == value else moved

    def contains(self, value: object) -> bool:
        """Whether it can be drawn."""
        if self.kind == "list":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.low <= value <= self.high

    def label(self) -> str:
        """As it is written behind NAME= of --vary."""
        if self.kind == "list":
            return ",".join(map(str, self.choices))
        return f"{self.kind}:{self.low}:{self.high}"

    def _neighbour(self, i: int, step: int) -> Any:
        inside = 0 <= i + step < len(self.choices)
        return self.choices[i + step if inside else i - step]

    def _times(self, value: float, factor: float) -> float:
        """`value` times `factor`; of whole numbers the nearest, or the next in that direction."""
        moved = self._clip(value * factor)
        if self.whole and moved == value:
            return self._clip(value + (1 if (factor > 1) == (value >= 0) else -1))
        return moved

    def _clip(self, value: float) -> float:
        return min(max(round(value) if self.whole else value, self.low), self.high)


def initial(priors: Mapping[str, Prior], agents: int, seed: int) -> list[dict[str, float]]:
    """The values that each of several agents begins with: its own draw from priors of numbers, by the seed."""
    rngs = [np.random.default_rng([seed, agent, 0, 1]) for agent in range(agents)]  # copies draw from three numbers
    return [{name: float(prior.draw(rng)) for name, prior in priors.items()} for rng in rngs]


def prior_name(text: str) -> str:
    """The NAME of NAME=PRIOR. Raises UserError."""
    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise UserError(f"--vary: '{text}' given, allowed: {FORMS}")
    return name


def parse_prior(text: str, read: Callable[[str], Any]) -> Prior:
    """The prior that a word of --vary says. read: turns a word into a value of the field, as --NAME would, or raises
    UserError. Raises UserError.
    """
    name = prior_name(text)
    kind, *ends = text[len(name) + 1 :].split(":")
    if kind in RANGES:
        return _range(text, kind, ends, read)
    if not ends or "," in text:
        return Prior(name, "list", choices=_choices(text, read))
    near = difflib.get_close_matches(kind.lower(), RANGES, 1)
    _refuse(text, f"'{kind}:'", "log:LOW:HIGH or uniform:LOW:HIGH" + (f"; did you mean {near[0]}?" if near else ""))


def _range(text: str, kind: str, words: list[str], read: Callable[[str], Any]) -> Prior:
    name = prior_name(text)
    if len(words) != 2 or "" in words:
        _refuse(text, f"'{':'.join(words)}'", f"two numbers as in {name}={kind}:LOW:HIGH")
    (low, high), (a, b) = (_number(text, word, read) for word in words), words
    if low == high:
        _refuse(text, f"LOW and HIGH {a}", f"LOW below HIGH; for a fixed value write {_fixed(name, a)} without --vary")
    if low > high:
        _refuse(text, f"LOW {a} and HIGH {b}", f"LOW below HIGH; write {name}={kind}:{b}:{a}")
    if kind == "log" and low <= 0:
        _refuse(text, f"LOW {a}", f"above 0 under log; raise it, or write {name}=uniform:{a}:{b}")
    whole = isinstance(low, int) and isinstance(high, int)
    low, high = (low, high) if whole else (float(low), float(high))
    return Prior(name, "log" if kind == "log" else "uniform", low, high, whole=whole)


def _number(text: str, word: str, read: Callable[[str], Any]) -> Any:
    value = _read(text, word, read)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _refuse(text, f"'{word}'", f"a finite number; of anything else a list as in {prior_name(text)}=a,b,c")
    return value


def _choices(text: str, read: Callable[[str], Any]) -> tuple[Any, ...]:
    name = prior_name(text)
    words = text[len(name) + 1 :].split(",")
    if "" in words:
        _refuse(text, "an empty entry", "a value on both sides of a comma")
    if len(words) == 1:
        fixed = f"for a fixed value write {_fixed(name, words[0])} without --vary"
        _refuse(text, "one entry", f"two or more as in {name}=a,b,c, or a range as in {name}=log:LOW:HIGH; {fixed}")
    values = [_read(text, word, read) for word in words]
    for i, value in enumerate(values):
        if value in values[:i]:
            _refuse(text, f"'{words[i]}' twice", "each entry once; leave it out")
    return tuple(values)


def _read(text: str, word: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(word)
    except UserError as e:
        raise UserError(f"--vary {text}: {e}") from None


def _refuse(text: str, given: str, allowed: str) -> NoReturn:
    raise UserError(f"--vary {text}: {given} given, allowed: {allowed}")


def _fixed(name: str, word: str) -> str:
    return f"--{name.replace('_', '-')} {word}"


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


# Exploit: who copies whom. A member without a score neither copies nor is copied; one that failed is not copied.


def _of_scored(rule: Callable[[Sequence[Standing], float, int, np.random.Generator], Choice]) -> Exploit:
    """A rule for members that have a score, -inf where their run failed, which is said."""

    def exploit(standings: Sequence[Standing], i: int, rng: np.random.Generator) -> Choice:
        mine = standings[i].score
        if mine is None:
            return Choice(None, "no score since its last copy")
        found = rule(standings, mine, i, rng)
        return replace(found, why=f"its run failed; {found.why}") if mine == -math.inf else found

    return exploit


@_of_scored
def truncation(standings: Sequence[Standing], mine: float, i: int, rng: np.random.Generator) -> Choice:
    """One of the bottom 20 % copies any of the top 20 % that is better. Members with a score count; those that tie at
    the edge all belong to the 20 %.
    """
    scores = [s.score for s in standings if s.score is not None]
    most = -(-len(scores) // 5)  # members; 0.2 is not a float
    if sum(score < mine for score in scores) >= most:
        return Choice(None, "not in the bottom 20 %")
    better = [j for j, s in _donors(standings, i) if s > mine and sum(score > s for score in scores) < most]
    if not better:
        return Choice(None, "no member is better")
    return Choice(better[rng.integers(len(better))], "in the bottom 20 %")


@_of_scored
def tournament(standings: Sequence[Standing], mine: float, i: int, rng: np.random.Generator) -> Choice:
    """A member copies a peer drawn at random if that has a better score (§4.3.1, binary tournament)."""
    peers = _donors(standings, i)
    if not peers:
        return Choice(None, "no other member has a score")
    j, score = peers[rng.integers(len(peers))]
    return Choice(j, f"member {j} is better") if score > mine else Choice(None, f"member {j} is no better")


@_of_scored
def ttest(standings: Sequence[Standing], mine: float, i: int, rng: np.random.Generator) -> Choice:
    """A member copies a peer drawn at random if the mean of that one's last 10 games is higher and Welch's t-test says
    so: §4.1.1, "Welch's t-test on the last 10 episodes". The paper gives no level; here the two-sided p has to be below
    0.05, so a peer as good is copied in 2.5 % of looks. With fewer than two games nothing is copied, but a member that
    failed copies any peer.
    """
    peers = _donors(standings, i)
    if not peers:
        return Choice(None, "no other member has a score")
    j, _ = peers[rng.integers(len(peers))]
    if mine == -math.inf:
        return Choice(j, f"member {j} has not")
    own, other = standings[i].games[-GAMES:], standings[j].games[-GAMES:]
    if min(len(own), len(other)) < 2:
        return Choice(None, f"fewer than two games of it or of member {j}")
    test = welch_test(other, own)
    if test.t <= 0:
        return Choice(None, f"member {j} is no better")
    if test.p >= LEVEL:
        return Choice(None, f"member {j} may be no better, p = {test.p:.2g}")
    return Choice(j, f"member {j} is better, p = {test.p:.2g}")


@_of_scored
def never(standings: Sequence[Standing], mine: float, i: int, rng: np.random.Generator) -> Choice:
    """Nobody copies: random search."""
    return Choice(None, "nothing is copied")


def _donors(standings: Sequence[Standing], i: int) -> list[tuple[int, float]]:
    """Whom member i may copy, and their scores."""
    scored = [(j, s.score) for j, s in enumerate(standings) if s.score is not None]
    return [(j, score) for j, score in scored if j != i and score > -math.inf]


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


EXPLORE: dict[str, Explore] = dict(perturb=perturb, resample=resample, both=perturb_or_resample, none=unchanged)
