"""How good versions of an agent are: TrueSkill by matches against references, whose own skills are fixed (Berner et al.
2019). Pure; imports no torch.

Random play is 0. As σ = 25/3 and β = σ/2, who wins 80 % of matches is better by 4.96 points: √2·β times the normal
quantile of 0.8. The paper says 8.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyplay.common.files import Row, is_row, read_lines
from polyplay.population.ratings import Skill, TrueSkill

RATINGS = "ratings.jsonl"  # matches of a run's versions against references
NUMBERS = "version", "steps", "wall_seconds", "reference_mu", "mu", "sigma"  # that a line has
NEAR, FEWEST = 10.0, 2  # points within which opponents are; how many there are at least
RULES = TrueSkill()


@dataclass
class RatedVersion:
    """steps, wall_seconds: of the run, when its weights were taken."""

    version: int
    steps: int
    wall_seconds: float
    skill: Skill
    points: dict[str, list[float]] = field(default_factory=dict)  # of its matches against each reference

    @property
    def matches(self) -> int:
        return sum(map(len, self.points.values()))


def rate_against(skill: Skill, reference: float, points: Iterable[float], rules: TrueSkill = RULES) -> Skill:
    """A player after matches against a reference of that skill, which stays. points: of the player, in their order.

    For each, c² = σ² + 2β², and with v and w of Herbrich et al. 2006: μ ← μ ± σ²/c · v, σ² ← σ² (1 − σ²/c² · w).
    """
    for scored in points:
        (skill,), _ = rules.rate([skill], [(reference, 0.0)], scored)
    return skill


def first_skill(rated: Sequence[RatedVersion], rules: TrueSkill = RULES) -> Skill:
    """What the next version begins with: the μ of the one before, the first at random play's."""
    return (rated[-1].skill[0] if rated else 0.0), rules.sigma


def rate_lines(lines: Iterable[Row], rules: TrueSkill = RULES) -> list[RatedVersion]:
    """Versions by the lines of ratings.jsonl, in their order. A damaged one is left out."""
    rated: list[RatedVersion] = []
    for line in lines:
        if is_row(line, NUMBERS) and line.get("points"):
            take_line(rated, line, rules)
    return rated


def take_line(rated: list[RatedVersion], line: Row, rules: TrueSkill = RULES) -> None:
    """Take the next line: matches of a new version, or more of the last one."""
    if not rated or rated[-1].version != line["version"]:
        start = first_skill(rated, rules)
        rated.append(RatedVersion(line["version"], line["steps"], line["wall_seconds"], start))
    last = rated[-1]
    last.skill = rate_against(last.skill, line["reference_mu"], line["points"], rules)
    last.points.setdefault(line["reference"], []).extend(line["points"])


def next_reference(mu: float, points: Mapping[str, Sequence[float]], references: Mapping[str, float]) -> str:
    """Whom a version plays next: of the references within 10 points of its μ, at least of the two nearest, the one that
    it has played least, the nearest of several. points: of its matches so far.
    """
    nearest = sorted(references, key=lambda name: (abs(references[name] - mu), name))
    near = sum(abs(skill - mu) <= NEAR for skill in references.values())
    return min(nearest[: max(near, FEWEST)], key=lambda name: len(points.get(name, ())))


def read_rated(directory: Path, rules: TrueSkill = RULES) -> list[RatedVersion]:
    """The rated versions of a run; empty: there are none."""
    return rate_lines(read_lines(directory / RATINGS), rules)
