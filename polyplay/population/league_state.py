"""What a league's log says: the lines of matches.jsonl, taken in their order, make its state. Imports no torch.

begin   a session of the run: who may play; what is handed over through memory is counted from 0; versions: updates of
        the agents that it goes on with
table   an actor's players from now on; costs: what a past self loses of its quality each time it is beaten
of      matches: `of` has the different ones, each the players of the blocks of seats and the teams' outcomes;
        `played` are their indices, in the order in which they were rated
lost    matches that an actor played and the referee was too slow for
post    a past self comes: AGENT-VERSION, as that player
leave   a past self leaves
look    that agent looked at another one; copy: and is to go on as `donor`, with `values` instead of `old`
copied  that copy was made: the agent's `version` has the weights of the donor's `donor_version`; at: when
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.population.copies import CopyHistory
from polyplay.population.league import AGENT, BOT, KINDS, NOBODY, PAST, Identity, League, blocks_of_teams
from polyplay.population.league_ratings import LeagueRatings
from polyplay.population.ratings import Elo, TrueSkill

COUNTS = "taken", "lost", "entered"  # in this session, by actor or agent


@dataclass
class LeagueTable:
    """The players that an actor has to seat, and what is still to know of those before."""

    draw: int = 0
    players: list[int] = field(default_factory=list)
    costs: dict[int, float] = field(default_factory=dict)  # by player
    before: list[int] = field(default_factory=list)
    costs_before: dict[int, float] = field(default_factory=dict)
    since: int = 0  # matches with this draw


class LeagueState:
    """Ratings, players and tables."""

    def __init__(self, league: League, elo: Elo, skill: TrueSkill):
        self.ratings = LeagueRatings(league, elo, skill)
        self.settings = {"agents": league.agents, "past": league.past, "bots": list(league.bots)}
        self.settings |= {"teams": list(league.teams), "seated": league.seated}
        self.actors, self.session, self.sides = league.actors, 0, league.sides
        self.rules = {"elo": asdict(elo), "trueskill": asdict(skill)}
        self.places = range(league.agents, league.players - len(league.bots))  # of past selves
        names = [*map(str, range(league.agents)), *[""] * len(self.places), *(f"bot:{name}" for name in league.bots)]
        self.names = names  # of players, "": nobody is there
        self.numbers = {name: p for p, name in enumerate(names) if name}
        self.selves: list[int] = []  # past selves, the oldest first
        self.tables: defaultdict[int, LeagueTable] = defaultdict(LeagueTable)  # of actors
        self.taken: Counter[int] = Counter()  # matches of an actor
        self.lost: Counter[int] = Counter()
        self.entered: Counter[int] = Counter()  # past selves of an agent
        self.history: list[Row] = []  # past selves that left
        self.copies = CopyHistory()

    def identity(self, player: int) -> Identity:
        if player < self.places.start:
            return Identity(AGENT, player, 0)
        if player >= self.places.stop:
            return Identity(BOT, player - self.places.stop, 0)
        return (
            Identity(PAST, *map(int, self.names[player].split("-"))) if self.names[player] else Identity(NOBODY, 0, 0)
        )

    def apply(self, line: Row) -> None:
        """Take one line. Raises UserError: it begins a session of another league."""
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
        """The line of the next session, with all that decides what matches make of ratings."""
        held = {"begin": self.session + 1, "actors": self.actors, **self.settings, **self.rules}
        return {**held, "versions": dict(versions)}

    def _begin(self, line: Row) -> None:
        for name, value in self.settings.items():
            grown = name == "teams" and blocks_of_teams(line[name], line["seated"]) == self.sides  # by surgery
            if line[name] != value and not grown:
                raise UserError(f"RUN: its league has {name} {line[name]}, not {value}: resume it as it was begun")
        self.session = line["begin"]
        self.copies.begin(line.get("versions", {}), self.ratings)
        for name in COUNTS:
            getattr(self, name).clear()
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
        table.before, table.costs_before = table.players, table.costs  # its last matches may still come
        table.draw, table.players, table.since = draw, [self.numbers[name] for name in names], 0
        table.costs = {p: cost for p, cost in zip(table.players, costs, strict=True) if cost}

    def _enter(self, name: str, player: int) -> None:
        agent = int(name.partition("-")[0])
        self.names[player], self.numbers[name] = name, player
        best = max((float(self.ratings.quality[p]) for p in self.selves), default=0.0)
        self.ratings.inherit(player, agent, best)
        self.selves.append(player)
        self.entered[agent] += 1

    def _leave(self, name: str) -> None:
        player = self.numbers.pop(name)
        self.history.append(self._row(player, name))
        self.ratings.forget(player)
        self.selves.remove(player)
        self.names[player] = ""

    # ------------------------------------------------------------------------------------------------ league.json

    def _row(self, player: int, name: str) -> Row:
        who = self.identity(player)
        about = {"name": name, "player": player, "kind": KINDS[who.kind], "agent": who.agent, "version": who.version}
        return about | self.ratings.about(player, self.names)

    def save(self) -> Row:
        """Everything, as plain data."""
        held = {"begin": self.session, "actors": self.actors, **self.settings, **self.rules}
        held |= {name: dict(getattr(self, name)) for name in COUNTS} | {"selves": list(self.selves)}
        held["tables"] = {actor: asdict(table) for actor, table in self.tables.items()}
        players = [self._row(p, name) for p, name in enumerate(self.names) if name]
        return held | {"players": players, "history": self.history, **self.copies.save()}

    def load(self, saved: Row) -> None:
        """The inverse, on a state that took no line yet. Raises UserError as `apply`; others: it is damaged."""
        self._begin(saved)
        for name in COUNTS:
            getattr(self, name).update({int(i): n for i, n in saved[name].items()})
        for actor, row in saved["tables"].items():
            costs = {name: {int(p): x for p, x in row[name].items()} for name in ("costs", "costs_before")}
            self.tables[int(actor)] = LeagueTable(**{**row, **costs})
        for row in saved["players"]:
            self.names[row["player"]], self.numbers[row["name"]] = row["name"], row["player"]
        for row in saved["players"]:
            self.ratings.load(row["player"], row, self.numbers)
        self.selves, self.history = saved["selves"], saved["history"]
        self.copies.load(saved)
