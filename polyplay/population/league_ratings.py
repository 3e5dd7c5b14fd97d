"""What matches make of the ratings, points and qualities of a league's players. Imports no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from polyplay.common.files import Row
from polyplay.population.league import RATED, League
from polyplay.population.ratings import Elo, Skill, TrueSkill

Match = tuple[Sequence[int], Sequence[float]]  # the player of each block of seats, the outcome of each team
Pairing = tuple[list[int], list[int], float]  # two teams and the points of the first


class LeagueRatings:
    """The arrays of League.RATED: copies, until `bind` makes them the League's own."""

    elo: np.ndarray
    mu: np.ndarray
    sigma: np.ndarray
    quality: np.ndarray
    games: np.ndarray
    points: np.ndarray

    def __init__(self, league: League, elo: Elo, skill: TrueSkill):
        self.rule, self.skill, self.sides, self.agents = elo, skill, league.sides, league.agents
        self.drift = skill.sigma / 100  # τ of living agents, which learn between matches
        for name in RATED:
            setattr(self, name, np.zeros_like(getattr(league, name)))
        self.forget(slice(None))

    def bind(self, league: League) -> None:
        """Publish them in the league's memory, and work there from now on."""
        for name in RATED:
            getattr(league, name)[:] = getattr(self, name)
            setattr(self, name, getattr(league, name))

    def inherit(self, player: int, agent: int, quality: float) -> None:
        """A past self: as good as its agent is now."""
        for rating in (self.elo, self.mu, self.sigma):
            rating[player] = rating[agent]
        self.quality[player] = quality

    def forget(self, player: int | slice) -> None:
        """As before the first match."""
        self.elo[player], self.mu[player], self.sigma[player] = self.rule.start, self.skill.mu, self.skill.sigma
        self.quality[player] = 0
        for matrix in (self.games, self.points):
            matrix[player] = matrix[:, player] = 0

    def about(self, player: int, names: Sequence[str]) -> Row:
        """Its numbers, as league.json has them. against: matches with each other one, and points of these."""
        met = np.flatnonzero(self.games[player]).tolist()
        row: Row = {name: float(getattr(self, name)[player]) for name in ("elo", "mu", "sigma", "quality")}
        return row | {"against": {names[j]: [int(self.games[player, j]), float(self.points[player, j])] for j in met}}

    def load(self, player: int, row: Row, numbers: Mapping[str, int]) -> None:
        """The inverse."""
        for name in ("elo", "mu", "sigma", "quality"):
            getattr(self, name)[player] = row[name]
        for name, met in row["against"].items():
            at = player, numbers[name]
            self.games[at], self.points[at] = met

    def play(self, of: Sequence[Match], played: Sequence[int], costs: Mapping[int, float]) -> None:
        """Take matches: `of` are the different ones, `played` their indices in order. costs: what a player loses of its
        quality each time that a living agent beats it.
        """
        pairings = [self._pairings(*match) for match in of]
        for i, n in Counter(played).items():
            for pairing in pairings[i]:
                self._count(pairing, n, costs)
        there = {p for players, _ in of for p in players}
        elo = {p: float(self.elo[p]) for p in there}
        skill = {p: (float(self.mu[p]), float(self.sigma[p])) for p in there}
        for i in played:
            for pairing in pairings[i]:
                self._rate(pairing, elo, skill)
        for p in there:
            self.elo[p], (self.mu[p], self.sigma[p]) = elo[p], skill[p]

    def _pairings(self, players: Sequence[int], outcome: Sequence[float]) -> list[Pairing]:
        """A match as matches of two teams. A player counts once in a team, and not at all if it is in both."""
        teams = [dict.fromkeys(players[block] for block in blocks) for blocks in self.sides]
        found: list[Pairing] = []
        for t in range(len(teams)):
            for s in range(t):
                first, second = ([p for p in teams[a] if p not in teams[b]] for a, b in ((s, t), (t, s)))
                if first and second:
                    points = 0.5 if outcome[s] == outcome[t] else float(outcome[s] > outcome[t])
                    found.append((first, second, points))
        return found

    def _count(self, pairing: Pairing, n: int, costs: Mapping[int, float]) -> None:
        """`n` such matches, in the matrix and in the qualities."""
        first, second, points = pairing
        for a, b, won in ((first, second, points), (second, first, 1 - points)):
            at = np.ix_(a, b)
            self.games[at] += n
            self.points[at] += n * won
            if won == 1 and min(a) < self.agents:
                for p in b:
                    self.quality[p] -= n * costs.get(p, 0.0)

    def _rate(self, pairing: Pairing, elo: dict[int, float], skill: dict[int, Skill]) -> None:
        first, second, points = pairing
        mine, theirs = (sum(elo[p] for p in team) / len(team) for team in (first, second))
        change = self.rule.change(mine, theirs, points)
        moved = self.skill.rate(self._skills(first, skill), self._skills(second, skill), points)
        for team, rated, by in zip((first, second), moved, (change, -change), strict=True):
            for p, new in zip(team, rated, strict=True):
                elo[p] += by
                skill[p] = new

    def _skills(self, team: Sequence[int], skill: dict[int, Skill]) -> list[Skill]:
        return [(skill[p][0], math.hypot(skill[p][1], self.drift)) if p < self.agents else skill[p] for p in team]
