"""Ratings by matches: Elo for teams, TrueSkill for two players, and references (opponents of fixed skill).

Ratings are updated match by match. This module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

from polyplay.core.files import Row, is_row, read_lines, read_object

NORMAL = NormalDist()
PEAK = 1 / math.sqrt(2 * math.pi)  # density of the normal distribution at 0
Skill = tuple[float, float]  # a player's mean μ and standard deviation σ


def win_probability(elo: float, other: float) -> float:
    """Return a player's chance to beat another by Elo's model. With a lead of 400 points, the odds are 10 to 1."""
    return 1 / (1 + 10 ** ((other - elo) / 400))


START = 1000.0  # initial Elo rating (Elo 1978), base 10
K = 16.0  # most points by which a match changes a rating


def elo_change(first: float, second: float, points: float) -> float:
    """Return the points that each player of the first team gains, and that each player of the second team loses.
    `first`, `second`: mean ratings of the teams. `points`: 1 if the first team won, ½ for a draw, 0 if it lost.
    """
    return K * (points - win_probability(first, second))


# TrueSkill (Herbrich et al. 2006). For two players, the message passing has a closed form. The constants are those of
# OpenAI Five (Berner et al. 2019), where the skill of a version does not drift.


MU, SIGMA = 25.0, 25 / 3  # skill of a player that has not played yet
BETA = 25 / 6  # standard deviation of a player's performance in a match
DRAW = 0.02  # probability of a draw between equal players
MARGIN = BETA * (NORMAL.inv_cdf((DRAW + 1) / 2) * math.sqrt(2))  # a smaller difference of performances is a draw


def trueskill(first: Skill, second: Skill, points: float) -> tuple[Skill, Skill]:
    """Return both players' skills after a match. `points`: 1 if the first player won, ½ for a draw, 0 if it lost."""
    variance = (first[1] * first[1] + BETA**2) + (second[1] * second[1] + BETA**2)
    c, lost = math.sqrt(variance), points < 0.5
    ahead = (second[0] - first[0] if lost else first[0] - second[0]) / c
    v, w = _drawn(ahead, MARGIN / c) if points == 0.5 else _won(ahead - MARGIN / c)
    v = (-v if lost else v) / c
    return _moved(first, v, w / variance), _moved(second, -v, w / variance)


def _moved(skill: Skill, v: float, w: float) -> Skill:
    mu, variance = skill[0], skill[1] * skill[1]
    return mu + variance * v, math.sqrt(variance * (1 - variance * w))


def _density(x: float) -> float:
    return PEAK * math.exp(-x * x / 2)


def _cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _won(x: float) -> tuple[float, float]:
    """Return TrueSkill's v and w for a win. x: expected lead of the winner − draw margin, in standard deviations."""
    below = _cdf(x)
    if below <= 1e-300:
        return -x, 1.0  # the limits for x → −∞
    v = _density(x) / below
    return v, min(max(v * (v + x), 0.0), 1.0)


def _drawn(x: float, margin: float) -> tuple[float, float]:
    """Return TrueSkill's v and w for a draw. x: expected lead of the first player, in standard deviations."""
    low, high = -margin - abs(x), margin - abs(x)
    inside = _cdf(high) - _cdf(low)
    if inside <= 1e-300:
        v, w = high, 1.0  # the limits for |x| → ∞
    else:
        v = (_density(low) - _density(high)) / inside
        w = v * v + (high * _density(high) - low * _density(low)) / inside
    return (v if x >= 0 else -v), min(max(w, 0.0), 1.0)


# Versions of an agent are rated against references of fixed skill (Berner et al. 2019). Random play has skill 0. With σ
# = 25/3 and β = σ/2, a lead of 4.96 points wins 80 % of matches: √2·β times the normal quantile of 0.8. The paper says
# 8.3.


RATINGS = "ratings.jsonl"  # file with the matches of a run's versions against references
NUMBERS = "version", "steps", "wall_seconds", "reference_mu", "mu", "sigma"  # numeric fields of a line
NEAR, FEWEST = 10.0, 2  # references within NEAR points are considered, or the FEWEST nearest


@dataclass
class RatedVersion:
    """A version of the weights and its matches. steps, wall_seconds: the run's counts when the weights were taken."""

    version: int
    steps: int
    wall_seconds: float
    skill: Skill
    points: dict[str, list[float]] = field(default_factory=dict)  # reference → points of matches

    @property
    def matches(self) -> int:
        return sum(map(len, self.points.values()))


def rate_against(skill: Skill, reference: float, points: Iterable[float]) -> Skill:
    """Return a player's skill after matches against a reference of fixed skill. points: the player's results.
    After each match, with v and w of Herbrich et al. 2006: μ ← μ ± σ²/c · v, σ² ← σ² (1 − σ²/c² · w), c² = σ² + 2β².
    """
    for scored in points:
        skill, _ = trueskill(skill, (reference, 0.0), scored)
    return skill


def first_skill(rated: Sequence[RatedVersion]) -> Skill:
    """Return the initial skill of the next version: σ = SIGMA, and the previous version's μ (0 without one)."""
    return (rated[-1].skill[0] if rated else 0.0), SIGMA


def rate_lines(lines: Iterable[Row]) -> list[RatedVersion]:
    """Return the rated versions from the lines of ratings.jsonl, in order. Damaged lines are left out."""
    rated: list[RatedVersion] = []
    for line in lines:
        if is_row(line, NUMBERS) and line.get("points"):
            take_line(rated, line)
    return rated


def take_line(rated: list[RatedVersion], line: Row) -> None:
    """Apply a line of ratings.jsonl to `rated`. The line's matches belong to the last version or to a new one."""
    if not rated or rated[-1].version != line["version"]:
        start = first_skill(rated)
        rated.append(RatedVersion(line["version"], line["steps"], line["wall_seconds"], start))
    last = rated[-1]
    last.skill = rate_against(last.skill, line["reference_mu"], line["points"])
    last.points.setdefault(line["reference"], []).extend(line["points"])


def next_reference(mu: float, points: Mapping[str, Sequence[float]], references: Mapping[str, float]) -> str:
    """Return the reference (opponent of fixed skill) that a version plays next. points: earlier results, by reference.

    All references within 10 points of the version's μ are considered, and at least the two nearest. Among them, the one
    with the fewest matches is chosen.
    """
    nearest = sorted(references, key=lambda name: (abs(references[name] - mu), name))
    near = sum(abs(skill - mu) <= NEAR for skill in references.values())
    return min(nearest[: max(near, FEWEST)], key=lambda name: len(points.get(name, ())))


def read_rated(directory: Path) -> list[RatedVersion]:
    """Return the rated versions of a run, which may be none."""
    return rate_lines(read_lines(directory / RATINGS))


REFERENCES = "references.json"
RANDOM = "random"
SEED, MATCHES = 0, 32  # seed, and matches of each pair of references: the same in every run


def reference_settings(environment: str, names: Sequence[str]) -> Row:
    """Return the settings that the references' skills depend on."""
    skills = {"mu": MU, "sigma": SIGMA, "beta": BETA, "draw": DRAW}
    return {"environment": environment, "seed": SEED, "matches": MATCHES, "trueskill": skills, "names": list(names)}


def reference_skills(names: Sequence[str], pairs: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, Skill]:
    """Return the skills of the references from round-robin matches, shifted so that `random` has μ = 0. Matches are
    rated in turn: the first match of each pair, then the second match of each pair, and so on.
    """
    skills: dict[str, Skill] = dict.fromkeys(names, (MU, SIGMA))
    for scored in zip(*pairs.values(), strict=True):
        for (one, other), points in zip(pairs, scored, strict=True):
            skills[one], skills[other] = trueskill(skills[one], skills[other], points)
    return {name: (mu - skills[RANDOM][0], sigma) for name, (mu, sigma) in skills.items()}


def read_references(directory: Path, settings: Mapping[str, object] | None = None) -> dict[str, float]:
    """Return the μ of a run's references, by name. Return {} if the file is missing, damaged or has other settings."""
    try:
        found = read_object(directory / REFERENCES)
        same = all(found[name] == value for name, value in (settings or {}).items())
        return {row["name"]: float(row["mu"]) for row in found["references"]} if same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
