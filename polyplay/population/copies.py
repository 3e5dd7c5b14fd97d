"""When an agent of a league copies another one, and what its hyperparameters become then. Pure; imports no torch.

Jaderberg et al. 2019: an agent that has played enough matches looks at another one, drawn at random. If that one beats
it with probability 0.7 or more, it goes on with that one's weights, optimiser and hyperparameters. Some of these are
perturbed, or drawn anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from polyplay.common.files import Row
from polyplay.population.league_ratings import LeagueRatings, Match
from polyplay.population.priors import Prior
from polyplay.population.ratings import win_probability
from polyplay.population.rules import Choice, Standing, Values, is_ready

SURE = 0.7  # probability to win from which on one is copied
RANGE = 10.0  # hyperparameters without a prior stay between what was configured ÷ and × this
SKILLS = "elo", "mu", "sigma"  # of an agent, which become those of whom it copies


def outplayed(standings: Sequence[Standing], i: int, rng: np.random.Generator, sure: float = SURE) -> Choice:
    """Agent i copies a peer drawn at random that beats it with probability `sure` or more; scores are Elo ratings. Who
    has none has not played enough: it neither copies nor is copied.
    """
    mine = standings[i].score
    peers = [(j, s.score) for j, s in enumerate(standings) if j != i and s.score is not None]
    if mine is None or not peers:
        return Choice(None, "it has not played enough" if mine is None else "no other agent has played enough")
    j, score = peers[rng.integers(len(peers))]
    chance = win_probability(score, mine)
    return Choice(j if chance >= sure else None, f"agent {j} beats it with probability {chance:.2f}")


@dataclass(frozen=True)
class CopyRule:
    """every: matches of an agent between two looks, 0: there are none. configured: hyperparameters of a run; one that
    is 0 and has no prior stays. sure: the probability to win from which on one is copied. priors: ranges by name.
    chance: with which each value of a copy is perturbed, by itself. drawn: what every copy draws anew instead.
    """

    every: int = 0
    configured: Mapping[str, float] = field(default_factory=dict)
    sure: float = SURE
    priors: Mapping[str, Prior] = field(default_factory=dict)
    chance: float = 1.0
    drawn: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = ({*self.priors} - {*self.configured}) | ({*self.drawn} - {*self.ranges()})
        if unknown:
            raise ValueError(f"no hyperparameters that can vary: {sorted(unknown)}; there are {list(self.configured)}")

    @property
    def varied(self) -> tuple[str, ...]:
        """Hyperparameters that change."""
        return tuple(self.configured) if self.every else ()

    def ranges(self) -> dict[str, Prior]:
        """What each hyperparameter may become."""
        ends = {name: sorted((x / RANGE, x * RANGE)) for name, x in self.configured.items() if x}
        return {name: Prior(name, "log", low, high) for name, (low, high) in ends.items()} | dict(self.priors)

    def explore(self, copied: Values, rng: np.random.Generator) -> Values:
        """What the donor's values become."""
        values = dict(copied)
        for name, prior in self.ranges().items():
            if name in self.drawn:
                values[name] = float(prior.draw(rng))
            elif rng.random() < self.chance:
                values[name] = float(prior.perturb(copied[name], rng))
        return values

    def describe(self) -> list[str]:
        """A line for the diagram."""
        rows = [f"copies  who wins {self.sure:.0%}, every {self.every:,} matches of an agent"]
        return rows if self.every else []

    def due(self, history: CopyHistory, agents: int) -> int | None:
        """An agent that is to look now; None: there is none, or a copy is being made."""
        if not self.every or history.pending is not None:
            return None
        longest = max(range(agents), key=lambda a: history.matches[a] - history.looked[a])
        return longest if is_ready(history.matches[longest], history.looked[longest], self.every) else None

    def decide(self, agent: int, history: CopyHistory, elo: np.ndarray, hyper: np.ndarray, seed: int) -> Row:
        """The line of an agent's look. elo: float64 [players]; hyper: float64 [agents, n], the hyperparameters in
        use, in the order of `configured`.
        """
        rng = np.random.default_rng([seed, agent, history.looks])
        enough = [history.matches[a] >= self.every for a in range(len(hyper))]
        standings = [Standing(float(elo[a]) if played else None) for a, played in enumerate(enough)]
        choice = outplayed(standings, agent, rng, self.sure)
        if choice.donor is None:
            return {"look": agent, "why": choice.why}
        old, copied = (dict(zip(self.configured, hyper[a].tolist(), strict=True)) for a in (agent, choice.donor))
        line = {"copy": history.copies + 1, "look": agent, "donor": choice.donor, "why": choice.why}
        return {**line, "old": old, "values": self.explore(copied, rng)}


@dataclass
class CopyHistory:
    """What the log says of copies."""

    matches: Counter[int] = field(default_factory=Counter)  # of an agent, since it began or copied
    looked: Counter[int] = field(default_factory=Counter)  # those at its last look
    looks: int = 0
    copies: int = 0  # that were decided
    pending: Row | None = None  # the line of a copy that is not made yet
    made: list[Row] = field(default_factory=list)

    def count(self, matches: Sequence[Match], played: Sequence[int], agents: int) -> None:
        """Matches, as LeagueRatings.play gets them."""
        for i, n in Counter(played).items():
            for p in set(matches[i][0]):
                if p < agents:
                    self.matches[p] += n

    def look(self, line: Row) -> None:
        """The line of a look."""
        self.looks += 1
        self.looked[line["look"]] = self.matches[line["look"]]
        if "copy" in line:
            self.copies, self.pending = line["copy"], line

    def complete(self, line: Row, ratings: LeagueRatings) -> None:
        """The copy that is pending was made: the agent is rated as whom it copied."""
        if self.pending is None or self.pending["copy"] != line["copied"]:
            return
        agent, donor = self.pending["look"], self.pending["donor"]
        before = {name: float(getattr(ratings, name)[agent]) for name in SKILLS}
        about = {"copy": line["copied"], "agent": agent, "donor": donor, "at": line.get("at")}
        versions = {"version": line["version"], "donor_version": line["donor_version"]}
        counts = {"donor_elo": float(ratings.elo[donor]), "matches": self.matches[agent]}
        values = {"old": self.pending.get("old", {}), "values": self.pending["values"]}
        self.made.append({**about, **versions, **counts, **values, "before": before})
        ratings.inherit(agent, donor, 0.0)
        self.matches[agent] = self.looked[agent] = 0
        self.pending = None

    def begin(self, versions: Mapping[str, int], ratings: LeagueRatings) -> None:
        """A run goes on with these updates of its agents: copies that they have not are undone, the newest first."""
        self.pending = None
        for copy in reversed(self.made):
            if copy["version"] > versions.get(str(copy["agent"]), 0):
                for name, value in copy["before"].items():
                    getattr(ratings, name)[copy["agent"]] = value
        self.made = [copy for copy in self.made if copy["version"] <= versions.get(str(copy["agent"]), 0)]

    def save(self) -> Row:
        counts = {"matches": dict(self.matches), "looked": dict(self.looked), "looks": self.looks}
        return {"copying": {**counts, "copies": self.copies, "pending": self.pending}, "copies": self.made}

    def load(self, saved: Row) -> None:
        """The inverse."""
        held = saved["copying"]
        for name in ("matches", "looked"):
            getattr(self, name).update({int(a): n for a, n in held[name].items()})
        self.looks, self.copies, self.pending, self.made = (
            *map(held.get, ("looks", "copies", "pending")),
            saved["copies"],
        )
