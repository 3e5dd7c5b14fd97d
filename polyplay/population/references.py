"""References that versions of an agent are rated against: their own skills, by matches of every two of them, the same
in every run of an environment. Pure; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

from polyplay.common.files import Row, read_object
from polyplay.population.rated_versions import RULES
from polyplay.population.ratings import Skill, TrueSkill

REFERENCES = "references.json"
RANDOM = "random"
SEED, MATCHES = 0, 32  # of every two: of every run the same

Pairs = Mapping[tuple[str, str], Sequence[float]]  # points of the first of two, match by match


def rate_references(names: Sequence[str], pairs: Pairs, rules: TrueSkill = RULES) -> dict[str, Skill]:
    """Skills of references by matches of every two of them, `random` among them, whose μ is 0. They are taken in
    rounds: the first match of each two, the second of each, and so on.
    """
    skills: dict[str, Skill] = dict.fromkeys(names, (rules.mu, rules.sigma))
    for match in range(max((len(points) for points in pairs.values()), default=0)):
        for (one, other), points in pairs.items():
            if match < len(points):
                (first,), (second,) = rules.rate([skills[one]], [skills[other]], points[match])
                skills[one], skills[other] = first, second
    return {name: (mu - skills[RANDOM][0], sigma) for name, (mu, sigma) in skills.items()}


@dataclass
class ReferenceTable:
    """The references of an environment, and the matches of every two of them, as references.json has them."""

    environment: str
    names: tuple[str, ...]
    rules: TrueSkill = RULES
    pairs: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    @property
    def settings(self) -> Row:
        """What decides the matches and their ratings."""
        about = {"environment": self.environment, "seed": SEED, "matches": MATCHES, "trueskill": asdict(self.rules)}
        return {**about, "names": list(self.names)}

    def missing(self) -> list[tuple[int, tuple[str, str]]]:
        """Every two that have not met yet, with their number."""
        return [(k, pair) for k, pair in enumerate(combinations(self.names, 2)) if pair not in self.pairs]

    def skills(self) -> dict[str, Skill]:
        return rate_references(self.names, {pair: self.pairs[pair] for pair in combinations(self.names, 2)}, self.rules)

    def save(self) -> Row:
        """references.json."""
        skills = {} if self.missing() else self.skills()
        rated = [{"name": name, "mu": mu, "sigma": sigma} for name, (mu, sigma) in skills.items()]
        played = [{"pair": list(pair), "points": points} for pair, points in self.pairs.items()]
        return {**self.settings, "references": rated, "played": played}

    def load(self, directory: Path) -> None:
        """Take the matches that references.json has, if they are of the same references, and whole."""
        try:
            saved = read_object(directory / REFERENCES)
            played = {(row["pair"][0], row["pair"][1]): [float(x) for x in row["points"]] for row in saved["played"]}
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return
        same = all(saved.get(name) == value for name, value in self.settings.items())
        whole = {pair: points for pair, points in played.items() if len(points) == MATCHES and {*points} <= {0, 0.5, 1}}
        self.pairs = whole if same else {}


def read_references(directory: Path) -> dict[str, float]:
    """The references of a run and their μ; empty: they are not known yet."""
    try:
        return {row["name"]: float(row["mu"]) for row in read_object(directory / REFERENCES)["references"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
