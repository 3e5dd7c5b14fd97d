"""Log of a league of agents: file matches.jsonl. The log's lines, applied in order, give the league's state.

A table is the group of players in an actor's matches. This module imports no torch. Each line has one of these keys:

begin   session number `begin` of the run begins, with the league's settings. `versions`: updates of each agent so far
table   an actor's table has new players. `costs`: the quality that each player loses by a defeat
of      results of matches. `of`: the different results, each with the players and every team's outcome. `played`: the
        index of each match's result in `of`, in the order in which the matches were rated
lost    number of an actor's matches that are not rated, because the referee was too slow
post    past agent `post` (AGENT-VERSION) enters the league as player number `player`
leave   past agent `leave` leaves the league
look    agent `look` was compared with another agent. If the line has `copy` (the number of a copy), the agent will get
        the weights of agent `donor`, and the hyperparameters `values` instead of `old`
copied  copy number `copied` was made. The agent's `version` has the weights of the donor's `donor_version`. `at`: time
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polyplay.buffers import league as leagues
from polyplay.buffers.league import Identity, League
from polyplay.core.errors import UserError
from polyplay.core.files import JsonLines, Row, read_lines, write_bytes
from polyplay.population.ratings import START, elo_change
from polyplay.population.rules import Evolution, Population, Standing, Values, evolve

LOG, SUMMARY, SCHEMA = "matches.jsonl", "league.json", 1


class MatchLog(JsonLines):
    """File matches.jsonl of a league, in which the referee writes a line before applying it. lines: number of lines."""

    def __init__(self, directory: Path):
        super().__init__(directory / LOG)
        self.directory = directory
        with open(directory / LOG, "rb") as file:
            self.lines = sum(1 for _ in file)

    def cut(self, lines: int) -> None:
        """Remove all lines after the first `lines` lines. Raises OSError, or UserError if the file has fewer lines."""
        if self.lines < lines:
            text = f"{self.directory / LOG} has {self.lines:,} lines, and the checkpoint was written after {lines:,}"
            raise UserError(f"{text}: ratings and copies can't continue; resume from an older checkpoint")
        with open(self.directory / LOG, "rb") as file:
            os.ftruncate(self.file.fd, sum(map(len, itertools.islice(file, lines))))
        self.lines = lines

    def sync(self) -> None:
        """Write all lines to the disk, so that they survive a crash of the machine. Raises OSError."""
        os.fsync(self.file.fd)

    def write(self, *rows: Mapping[str, object]) -> None:
        """Append lines. Raises OSError, with nothing written."""
        super().write(*rows)
        self.lines += len(rows)

    def save(self, summary: Row) -> None:
        """Write `summary`, the state after all lines, to league.json for people and tournaments. Raises OSError."""
        whole = {"schema": SCHEMA, "lines": self.lines, **summary}
        write_bytes(self.directory / SUMMARY, json.dumps(whole).encode())


def has_league(directory: Path) -> bool:
    """Tell whether matches.jsonl is the log of a league: the log's first line begins a session of the run."""
    return "begin" in next(read_lines(directory / LOG), {})


Match = tuple[Sequence[int], Sequence[float]]  # player of each block of seats, outcome of each team
Pairing = tuple[list[int], list[int], float]  # players of two teams, points of the first team


class LeagueRatings:
    """Elo ratings, qualities and results of a league's players, in local arrays until `bind` is called."""

    def __init__(self, league: League):
        self.sides, self.agents = league.sides, league.agents
        self._work_in(tuple(map(np.zeros_like, league.rated)))
        self.forget(slice(None))

    def _work_in(self, arrays: tuple[np.ndarray, ...]) -> None:
        self.arrays = arrays
        self.elo, self.quality, self.games, self.points = arrays

    def bind(self, league: League) -> None:
        """Copy the ratings to the league's shared memory, and change them only there afterward."""
        for shared, own in zip(league.rated, self.arrays, strict=True):
            shared[:] = own
        self._work_in(league.rated)

    def inherit(self, player: int, agent: int, quality: float) -> None:
        """Give a player the Elo rating of the player `agent`, and the given quality."""
        self.elo[player], self.quality[player] = self.elo[agent], quality

    def forget(self, player: int | slice) -> None:
        """Reset a player's rating, quality and results to the values before the first match."""
        self.elo[player], self.quality[player] = START, 0
        for matrix in (self.games, self.points):
            matrix[player] = matrix[:, player] = 0

    def about(self, player: int, names: Sequence[str]) -> Row:
        """Return a player's row for league.json. `against` has matches and points, by the other player's name."""
        met = np.flatnonzero(self.games[player]).tolist()
        row: Row = {"elo": float(self.elo[player]), "quality": float(self.quality[player])}
        return row | {"against": {names[j]: [int(self.games[player, j]), float(self.points[player, j])] for j in met}}

    def play(self, of: Sequence[Match], played: Sequence[int], costs: Mapping[int, float]) -> None:
        """Rate matches. of: the different matches. played: for each match in order, its index in `of`.
        costs: quality that a past agent (older copy of an agent) loses each time a current agent beats it.
        """
        pairings = [self._pairings(*match) for match in of]
        for i, n in Counter(played).items():
            for pairing in pairings[i]:
                self._count(pairing, n, costs)
        there = {p for players, _ in of for p in players}
        elo = {p: float(self.elo[p]) for p in there}
        for i in played:
            for pairing in pairings[i]:
                _rate(pairing, elo)
        for p in there:
            self.elo[p] = elo[p]

    def _pairings(self, players: Sequence[int], outcome: Sequence[float]) -> list[Pairing]:
        """Return all pairs of teams in a match. Leave out players that are in both teams."""
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
        first, second, points = pairing
        for a, b, won in ((first, second, points), (second, first, 1 - points)):
            at = np.ix_(a, b)
            self.games[at] += n
            self.points[at] += n * won
            if won == 1 and min(a) < self.agents:
                for p in b:
                    self.quality[p] -= n * costs.get(p, 0.0)


def _rate(pairing: Pairing, elo: dict[int, float]) -> None:
    """Update the Elo ratings after a match of two teams. All ratings of a team change by the same number."""
    first, second, points = pairing
    mine, theirs = (sum(elo[p] for p in team) / len(team) for team in (first, second))
    change = elo_change(mine, theirs, points)
    for team, by in ((first, change), (second, -change)):
        for p in team:
            elo[p] += by


# Jaderberg et al. 2019: an agent that has played enough matches is compared with another agent, drawn at random. If the
# other agent wins with probability 0.7 or more, the first agent copies the other's weights, optimizer state and
# hyperparameters. Some hyperparameters are then perturbed or resampled.


@dataclass
class CopyHistory:
    """The log's comparisons of agents (looks), and its copies of one agent's weights by another agent."""

    matches: Counter[int] = field(default_factory=Counter)  # agent → matches since the agent began or copied
    looked: Counter[int] = field(default_factory=Counter)  # agent → `matches` at the agent's last look
    looks: int = 0
    copies: int = 0  # number of copies decided
    pending: Row | None = None  # line of the copy that is decided but not made
    made: list[Row] = field(default_factory=list)

    def count(self, matches: Sequence[Match], played: Sequence[int], agents: int) -> None:
        """Count the matches of each agent. For the parameters, see LeagueRatings.play."""
        for i, n in Counter(played).items():
            for p in set(matches[i][0]):
                if p < agents:
                    self.matches[p] += n

    def look(self, line: Row) -> None:
        """Apply a line about the comparison of an agent with another one."""
        self.looks += 1
        self.looked[line["look"]] = self.matches[line["look"]]
        if "copy" in line:
            self.copies, self.pending = line["copy"], line

    def complete(self, line: Row, ratings: LeagueRatings) -> None:
        """Apply the line of a completed copy: the agent that copied gets the donor's rating."""
        if self.pending is None or self.pending["copy"] != line["copied"]:
            return
        agent, donor = self.pending["look"], self.pending["donor"]
        about = {"copy": line["copied"], "agent": agent, "donor": donor, "at": line.get("at")}
        versions = {"version": line["version"], "donor_version": line["donor_version"]}
        counts = {"elo": float(ratings.elo[agent]), "donor_elo": float(ratings.elo[donor])}
        values = {"old": self.pending.get("old", {}), "values": self.pending["values"]}
        self.made.append({**about, **versions, **counts, "matches": self.matches[agent], **values})
        ratings.inherit(agent, donor, 0.0)
        self.matches[agent] = self.looked[agent] = 0
        self.pending = None

    def begin(self, versions: Mapping[str, int], ratings: LeagueRatings) -> None:
        """Begin a session with the agents at `versions` (numbers of updates). Undo copies that were made later."""
        self.pending = None
        for copy in reversed(self.made):
            if copy["version"] > versions.get(str(copy["agent"]), 0):
                ratings.elo[copy["agent"]] = copy["elo"]
        self.made = [copy for copy in self.made if copy["version"] <= versions.get(str(copy["agent"]), 0)]


class LeagueAgents(Population):
    """Population of a league's agents. `look` decides about a copy. The referee then orders the copy."""

    def __init__(self, league: League, history: CopyHistory, evolution: Evolution):
        self.league, self.history, self.evolution = league, history, evolution
        self.copied: Row = {}  # part of a look's line about the copy; {}: no copy

    def standings(self) -> list[Standing]:
        """Return the agents' standings. The score is the Elo rating. It is None for fewer than `every` matches."""
        league, played, every = self.league, self.history.matches, self.evolution.every
        elo = [float(league.elo[a]) if played[a] >= every else None for a in range(league.agents)]
        values = [dict(zip(league.varied, hyper, strict=True)) for hyper in league.hyper.tolist()]
        return [Standing(score, values=own) for score, own in zip(elo, values, strict=True)]

    def copy(self, receiver: int, donor: int, values: Values) -> None:
        numbers = {name: float(value) for name, value in values.items()}
        self.copied = {"donor": donor, "old": self.standings()[receiver].values, "values": numbers}

    def due(self) -> int | None:
        """Return an agent that must be compared now, or None. No agent is due while a copy is pending."""
        history, every = self.history, self.evolution.every
        if not every or history.pending is not None or np.isnan(self.league.hyper).any():
            return None
        longest = max(range(self.league.agents), key=lambda a: history.matches[a] - history.looked[a])
        return longest if history.matches[longest] - history.looked[longest] >= every else None

    def look(self, agent: int, seed: int) -> Row:
        """Compare a due agent with another agent. Return the line for the log. seed: seed of the run."""
        self.copied = {}
        rng = np.random.default_rng([seed, agent, self.history.looks])
        _, why = evolve(self, agent, self.evolution, rng)
        number = {"copy": self.history.copies + 1} if self.copied else {}
        return {**number, "look": agent, "why": why, **self.copied}


@dataclass
class LeagueTable:
    """Players in an actor's matches, and the previous players, whose last matches may not have been reported yet."""

    draw: int = 0
    players: list[int] = field(default_factory=list)
    costs: dict[int, float] = field(default_factory=dict)  # player → quality lost by a defeat
    before: list[int] = field(default_factory=list)
    costs_before: dict[int, float] = field(default_factory=dict)
    since: int = 0  # matches since these players were drawn


class LeagueState:
    """The state of a league: ratings, players and tables (groups of players in an actor's matches)."""

    def __init__(self, league: League):
        self.ratings = LeagueRatings(league)
        self.settings = {"agents": league.agents, "past": league.past, "bots": list(league.bots)}
        self.settings |= {"teams": list(league.teams), "seated": league.seated}
        self.actors, self.session, self.sides = league.actors, 0, league.sides
        self.places = range(league.agents, league.players - len(league.bots))  # player numbers for past agents
        names = [*map(str, range(league.agents)), *[""] * len(self.places), *(f"bot:{name}" for name in league.bots)]
        self.names = names  # names of players, by number; "": an empty place
        self.numbers = {name: p for p, name in enumerate(names) if name}
        self.past_agents: list[int] = []  # player numbers of past agents, the oldest first
        self.tables: defaultdict[int, LeagueTable] = defaultdict(LeagueTable)  # by actor
        self.taken: Counter[int] = Counter()  # actor → matches in the log in this session
        self.lost: Counter[int] = Counter()
        self.entered: Counter[int] = Counter()  # agent → past agents that entered in this session
        self.history: list[Row] = []  # rows about past agents that left
        self.copies = CopyHistory()

    def identity(self, player: int) -> Identity:
        if player < self.places.start:
            return Identity(leagues.AGENT, player, 0)
        if player >= self.places.stop:
            return Identity(leagues.BOT, player - self.places.stop, 0)
        name = self.names[player]
        return Identity(leagues.PAST, *map(int, name.split("-"))) if name else Identity(leagues.NOBODY, 0, 0)

    def apply(self, line: Row) -> None:
        """Apply one line of the log. Raises UserError if the line begins a session of a league with other settings."""
        if "of" in line:
            self._play(line["actor"], line["draw"], line["of"], line["played"])
        elif "table" in line:
            self._draw(self.tables[line["actor"]], line["draw"], line["table"], line["costs"])
        elif "post" in line:
            self._enter(line["post"], line["player"])
        elif "leave" in line:
            self._leave(line["leave"])
        elif "lost" in line:
            self.lost[line["actor"]] += line["lost"]
        elif "look" in line:
            self.copies.look(line)
        elif "copied" in line:
            self.copies.complete(line, self.ratings)
        elif "begin" in line:
            self._begin(line)

    def beginning(self, versions: Mapping[str, int]) -> Row:
        """Return the line of the next session, with all settings that affect ratings. `versions`: updates by agent."""
        return {**self.about, "begin": self.session + 1, "versions": dict(versions)}

    @property
    def about(self) -> Row:
        return {"begin": self.session, "actors": self.actors, **self.settings}

    def _begin(self, line: Row) -> None:
        for name, value in self.settings.items():
            grown = name == "teams" and leagues.blocks_of_teams(line[name], line["seated"]) == self.sides  # by surgery
            if line[name] != value and not grown:
                raise UserError(f"RUN: its league has {name} {line[name]}, not {value}: resume it unchanged")
        self.session = line["begin"]
        self.copies.begin(line.get("versions", {}), self.ratings)
        for counts in (self.taken, self.lost, self.entered):
            counts.clear()
        for actor, table in list(self.tables.items()):
            table.before = []
            if actor >= line["actors"]:
                del self.tables[actor]

    def _play(self, actor: int, draw: int, of: Sequence[Sequence], played: Sequence[int]) -> None:
        table = self.tables[actor]
        self.taken[actor] += len(played)
        table.since += len(played) if table.draw == draw else 0
        matches = [([self.numbers[name] for name in names], outcome) for names, outcome in of]
        self.copies.count(matches, played, self.places.start)
        self.ratings.play(matches, played, table.costs if table.draw == draw else table.costs_before)

    def _draw(self, table: LeagueTable, draw: int, names: Sequence[str], costs: Sequence[float]) -> None:
        table.before, table.costs_before = table.players, table.costs  # last matches of the old table may still arrive
        table.draw, table.players, table.since = draw, [self.numbers[name] for name in names], 0
        table.costs = {p: cost for p, cost in zip(table.players, costs, strict=True) if cost}

    def _enter(self, name: str, player: int) -> None:
        agent = int(name.partition("-")[0])
        self.names[player], self.numbers[name] = name, player
        best = max((float(self.ratings.quality[p]) for p in self.past_agents), default=0.0)
        self.ratings.inherit(player, agent, best)
        self.past_agents.append(player)
        self.entered[agent] += 1

    def _leave(self, name: str) -> None:
        player = self.numbers.pop(name)
        self.history.append(self._row(player, name))
        self.ratings.forget(player)
        self.past_agents.remove(player)
        self.names[player] = ""

    # ------------------------------------------------------------------------------------------------ league.json

    def _row(self, player: int, name: str) -> Row:
        who = self.identity(player)
        about = {"name": name, "player": player, "kind": leagues.KINDS[who.kind], "agent": who.agent}
        return {**about, "version": who.version, **self.ratings.about(player, self.names)}

    def save(self) -> Row:
        """Return the state as plain data for league.json."""
        players = [self._row(p, name) for p, name in enumerate(self.names) if name]
        return {**self.about, "players": players, "history": self.history, "copies": self.copies.made}


POINTS = 400  # approximate number of points of a curve


class LeagueHistory(NamedTuple):
    """The Elo ratings over a run.

    matches: number of matches rated so far, int64 [n].
    elo: ratings of the agents after these matches, float64 [n, agents].
    copies: rows of CopyHistory.made, each with `match`: the number of matches rated before the copy.
    """

    matches: np.ndarray
    elo: np.ndarray
    copies: list[Row]

    def values_over(self, agent: int, first: Row) -> list[tuple[int, Row]]:
        """Return [(matches rated before, hyperparameters)] of `agent`: `first`, and the values after each copy."""
        begin, values, found = 0, first, list[tuple[int, Row]]()
        for copy in self.copies:
            if copy["agent"] == agent:
                found.append((begin, copy["old"] or values))
                begin, values = copy["match"], copy["values"]
        return [*found, (begin, values)]


def read_history(directory: Path) -> LeagueHistory:
    """Read a league's Elo ratings over the run, even during the run. Raises UserError without a valid league log."""
    lines = list(read_lines(directory / LOG))
    if not lines or "begin" not in lines[0]:
        raise UserError(f"RUN: {directory} has no {LOG} of a league: name a run of league or ftw")
    try:
        begin = lines[0]
        held = (begin[name] for name in ("agents", "actors", "teams", "seated", "past", "bots"))
        state = LeagueState(League(*held))
        total = sum(len(line.get("played", ())) for line in lines)
        rated, every, found = 0, max(1, total // POINTS), [(0, state.ratings.elo[: state.places.start].copy())]
        copies: list[Row] = []
        for line in lines:
            state.apply(line)
            rated += len(line.get("played", ()))
            if len(state.copies.made) > len(copies):
                copies.append({**state.copies.made[-1], "match": rated})
            del copies[len(state.copies.made) :]  # a resumed run undid these copies
            if rated >= found[-1][0] + every:
                found.append((rated, state.ratings.elo[: state.places.start].copy()))
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        raise UserError(f"{directory / LOG} is damaged ({e!r}): put back a copy of it") from None
    return LeagueHistory(np.array([n for n, _ in found]), np.stack([elo for _, elo in found]), copies)
