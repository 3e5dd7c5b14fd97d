"""The league of a run, in shared memory: who plays, how well, and at which table. Imports no torch.

    actor ──► results of matches ──► referee ──► ratings, points, tables ──► actor
    learner ──► its weights are a past agent from now on ──► referee

Every array has one writer, so whoever is killed leaves no lock. Players are numbers: the living agents 0 … A-1, then
room for past agents, then bots. The referee alone writes ratings, players and tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from polyplay.core.checkpoint import self_path
from polyplay.core.errors import UserError
from polyplay.core.flows import EVERYONE, MAIN, Cells, Crossing, End, Flow, Piece
from polyplay.core.shared_memory import LINE, Closable, shared_array
from polyplay.core.tree import Batch
from polyplay.core.worker import Arrow, Edge

NOBODY, AGENT, PAST, BOT = range(4)  # kinds of players
KINDS = "nobody", "agent", "past agent", "bot"
RESULTS = 4096  # matches that an actor may report before the referee takes them


class Identity(NamedTuple):
    """Who a player of a league is. agent: whose weights; of a bot, its place among `bots`."""

    kind: int
    agent: int
    version: int  # of a past agent's weights


class CopyOrder(NamedTuple):
    """Agent `agent` of a league is to go on as `donor`."""

    number: int
    agent: int
    donor: int


# Matches that were played, in their order: the draw of each, int64 [n]; the player of each block of seats, int32 [n,
# blocks]; the outcome of each team, float32 [n, teams]: more is better, equal is a draw.
Results = tuple[np.ndarray, np.ndarray, np.ndarray]


def blocks_of_teams(teams: Sequence[int], seated: int) -> list[list[int]]:
    """Of each team the blocks of seats that have some of its own. teams: of each seat; seated: players at a table."""
    per = len(teams) // min(seated, len(teams))
    return [sorted({i // per for i, t in enumerate(teams) if t == team}) for team in sorted(set(teams))]


class League(Closable, Edge):
    """Players and tables. A table has `seated` players; a match has `blocks` of equal numbers of seats, in order, and a
    player in each: as many blocks as players, or as seats where these are fewer.
    """

    memory: ClassVar[str] = "league"
    LOCAL = ("taken", "reported", "lost", "drawn", "acknowledged", "entered", "posts", "newest", "reserve", "begun")
    elo = shared_array(np.float64, lambda s: (s.players,))
    quality = shared_array(np.float64, lambda s: (s.players,))  # of past agents
    games = shared_array(np.int64, lambda s: (s.players, s.players))  # that row's player played against column's
    points = shared_array(np.float64, lambda s: (s.players, s.players))  # won + drawn / 2 of these
    kind = shared_array(np.int8, lambda s: (s.players,))
    agent = shared_array(np.int32, lambda s: (s.players,))
    version = shared_array(np.int64, lambda s: (s.players,))
    # what each agent learns with, by its learner; nan: not known yet
    hyper = shared_array(np.float64, lambda s: (s.agents, len(s.varied)))
    values = shared_array(np.float64, lambda s: (len(s.varied),))  # what the agent of the order is to learn with
    _order = shared_array(np.int64, lambda s: (LINE // 8,))
    _copied = shared_array(np.int64, lambda s: (LINE // 8,))
    _run = shared_array(np.int64, lambda s: (LINE // 8,))
    _tables = shared_array(np.int32, lambda s: (s.actors, 2, s.seated))
    _actors = shared_array(np.int64, lambda s: (s.actors, 5 * LINE // 8))
    _agents = shared_array(np.int64, lambda s: (s.agents, 4 * LINE // 8))
    _draws = shared_array(np.int64, lambda s: (s.actors, RESULTS))
    _players = shared_array(np.int32, lambda s: (s.actors, RESULTS, s.blocks))
    _outcomes = shared_array(np.float32, lambda s: (s.actors, RESULTS, len(s.sides)))

    def __init__(
        self,
        agents: int,
        actors: int,
        teams: Sequence[int],
        seated: int = 2,
        past: int = 100,
        bots: Sequence[str] = (),
        varied: Collection[str] = (),
    ):
        """teams: of each seat of a match. past: past agents that are kept. bots: names of scripted players. varied:
        hyperparameters that change where agents copy each other. Raises UserError: there is only one, or no match of
        these seats is one of players against others.
        """
        if varied and agents < 2:
            raise UserError(
                "--exploit-every: given, but --agents 1 has no other to copy; give it 2 or more, or --exploit-every 0"
            )
        self.varied = tuple(varied)
        self.agents, self.actors, self.seated, self.past, self.bots = agents, actors, seated, past, tuple(bots)
        self.players = agents + past + agents + len(self.bots)  # an agent's next past agent has its place in reserve
        self.teams, self.blocks = tuple(teams), min(seated, len(teams))
        self.sides = blocks_of_teams(teams, seated)
        if not any(set(one).isdisjoint(other) for one in self.sides for other in self.sides):
            few = "a league needs seats of two teams" if len(self.sides) < 2 else "name the agents of a team in a row"
            raise UserError(f"--players {seated} given; in seats of teams {list(teams)} they meet nobody: {few}")
        super().__init__(1 + actors)  # bells: the referee's, then each actor's
        self.reserve[:] = -1
        self.hyper[:] = np.nan

    def _attach(self) -> None:
        super()._attach()
        # of each actor: matches that are written down, that it told of, that came too fast; the newest draw, and the
        # one that it plays with (0: none yet). Of each agent: past agents that were entered, and posted; the version of
        # the one posted last; the player that the next one will be (-1: none is free)
        self.taken, self.reported, self.lost, self.drawn, self.acknowledged = self._actors.T[:: LINE // 8]
        self.entered, self.posts, self.newest, self.reserve = self._agents.T[:: LINE // 8]
        self.begun = self._run[1:2]  # whether a referee has been here

    @property
    def rated(self) -> tuple[np.ndarray, ...]:
        """What matches change."""
        return self.elo, self.quality, self.games, self.points

    # ------------------------------------------------------------------------------------------------ actors

    def table(self, actor: int) -> tuple[int, np.ndarray]:
        """The number of the newest draw, 0: there was none yet; and int32 [seated], its players. Raises Closed."""
        self.check()
        draw = int(self.drawn[actor])
        return draw, self._tables[actor, draw % 2].copy()

    def wait(self, actor: int) -> bool:
        """Wait up to `patience` seconds for a draw; False: none came. Raises Closed."""
        self.check()
        return self._bells[1 + actor].wait(self.patience)

    def acknowledge(self, actor: int, draw: int) -> None:
        """From now on the actor plays with this draw, and all that it played before has been reported. Until then
        there is no other, and no weights of a past agent at either table go.
        """
        self.acknowledged[actor] = draw
        self._bells[0].post()

    def report(self, actor: int, players: np.ndarray, outcomes: np.ndarray) -> None:
        """Matches that are over, in their order, played with the acknowledged draw.

        players: int [n, blocks], the player of each block of seats; outcomes: [n, teams], more is better, equal is a
        draw. What the referee is too slow for is left out and counted as lost: acting never waits for it.
        """
        self.check()
        reported, n = int(self.reported[actor]), len(players)
        taken = min(n, RESULTS - reported + int(self.taken[actor]))
        at = np.arange(reported, reported + taken) % RESULTS
        self._draws[actor, at] = self.acknowledged[actor]
        self._players[actor, at] = players[:taken]
        self._outcomes[actor, at] = np.nan_to_num(outcomes[:taken])  # what is no number is 0
        self.lost[actor] += n - taken
        self.reported[actor] = reported + taken
        self._bells[0].post()

    def identity(self, player: int) -> Identity:
        """Who it is; of a player at a table that was drawn and not given up yet."""
        return Identity(int(self.kind[player]), int(self.agent[player]), int(self.version[player]))

    # ------------------------------------------------------------------------------------------------ learners

    def post(self, agent: int, version: int) -> int | None:
        """Make a past agent of the agent's weights, whose file is there. Its player's number; the same again if there
        is one of that version. None: the one before has not been entered yet, ask again. Raises Closed.
        """
        self.check()
        there = np.flatnonzero((self.kind == PAST) & (self.agent == agent) & (self.version == version))
        if len(there):
            return int(there[0])
        if self.posts[agent] != self.entered[agent] or self.reserve[agent] < 0:
            return None
        player = int(self.reserve[agent])
        self.newest[agent] = version
        self.posts[agent] += 1
        self._bells[0].post()
        return player

    def order(self) -> CopyOrder | None:
        """The copy that is to be made; None: there is none. Raises Closed."""
        self.check()
        number, pair = divmod(int(self._order[0]), self.agents**2)
        return CopyOrder(number, *divmod(pair, self.agents)) if number > self._copied[0] else None

    def copied(self, number: int, version: int, donor_version: int) -> None:
        """The copy was made: the agent's next weights, of that version, are the donor's of that one."""
        self._copied[1:3] = version, donor_version
        self._fence()
        self._copied[0] = number
        self._bells[0].post()

    # ------------------------------------------------------------------------------------------------ the referee

    def ask(self, order: CopyOrder, values: Sequence[float]) -> None:
        """Have a copy made; the one before was. Again the same: nothing changes."""
        self.values[:] = values
        self._fence()
        self._order[0] = (order.number * self.agents + order.agent) * self.agents + order.donor

    def answer(self, number: int) -> tuple[int, int] | None:
        """Versions of the agent and of its donor, once that copy was made."""
        return (int(self._copied[1]), int(self._copied[2])) if self._copied[0] == number else None

    def wait_for_matches(self) -> None:
        """Wait up to `patience` seconds for something to be handed over. Raises Closed."""
        self.check()
        self._bells[0].wait(self.patience)
        while self._bells[0].wait(0):  # of what is looked at now
            pass

    def results(self, actor: int, begin: int, most: int) -> Results:
        """Copies of up to `most` matches of an actor, from number `begin` on."""
        at = np.arange(begin, min(int(self.reported[actor]), begin + most)) % RESULTS
        return self._draws[actor, at], self._players[actor, at], self._outcomes[actor, at]

    def seat(self, actor: int, draw: int, players: Sequence[int]) -> None:
        """Publish a draw: the actor has acknowledged the one before, or none."""
        self._tables[actor, draw % 2] = players
        self._fence()
        self.drawn[actor] = draw
        self._bells[1 + actor].post()

    def put(self, player: int, who: Identity) -> None:
        """Publish who a player is."""
        self.agent[player], self.version[player] = who.agent, who.version
        self.kind[player] = who.kind

    def posted(self, agent: int, entered: int) -> Identity | None:
        """The past agent of an agent of which `entered` were entered before; None: there is no new one."""
        return Identity(PAST, agent, int(self.newest[agent])) if self.posts[agent] > entered else None

    def enter(self, agent: int, entered: int, reserve: int) -> None:
        """So many past agents of the agent were entered; the next one will be that player."""
        self.reserve[agent] = reserve
        self._fence()
        self.entered[agent] = entered

    def _fence(self) -> None:
        """What was written is there before what is written next."""
        self._bells[0].post()
        self._bells[0].wait(0)

    # ------------------------------------------------------------------------------------------------ an edge

    def label(self) -> str:
        bots = f", bots: {', '.join(self.bots)}" if self.bots else ""
        past = f", up to {self.past} past agents" if self.past else ""
        return f"{self.agents} agents{past}{bots}"

    def arrows(self) -> list[Arrow]:
        return [
            Arrow(f"results of matches ({self.label()})", ("league",), ("rates",)),
            Arrow(f"tables of {self.seated}", ("rates",), ("league",)),
            *([Arrow("past agents", ("posts",), ("rates",))] if self.past else []),
            *([Arrow("who copies whom", ("rates",), ("posts",))] if self.varied else []),
        ]

    def crossing(self) -> Crossing:
        """Return the flows of results and tables. Tables come last: the players at a table are known by then."""
        flows: list[Flow] = [Cells(MAIN, [EVERYONE], [self.agent, self.version, self.kind])]
        for a in range(self.actors):
            # who sees a draw acknowledged has all that was reported before
            cells = [x[a : a + 1] for x in (self.lost, self.reported, self.acknowledged)]
            rows = [self._draws[a], self._players[a], self._outcomes[a]]
            bells = [self._bells[0]]
            flows.append(Cells(End("league", a), [MAIN], cells, bells, log=rows, counted=lambda cells: cells[1][0]))
        flows += [TableFlow(self, a) for a in range(self.actors)]
        ends = [End("rates", 0), *(End("league", a) for a in range(self.actors))]
        return Crossing(flows, [(self._bells[i], end) for i, end in enumerate(ends)], self.close)

    def save(self) -> Batch:
        """All of it, for a checkpoint that is made while everybody stands still."""
        return {name: array.copy() for name, array in self.arrays().items()}

    def load(self, saved: Batch) -> None:
        """The inverse."""
        for name, array in saved.items():
            self.arrays()[name][...] = array


class TableFlow(Cells):
    """Players at an actor's table. The weights of past agents among them are sent first."""

    def __init__(self, league: League, a: int):
        cells = [league.taken[a : a + 1], league._tables[a], league.drawn[a : a + 1]]
        super().__init__(MAIN, [End("league", a)], cells, [league._bells[1 + a]])
        self.league = league

    def pieces(self, old: bytes | None, new: bytes, gives: bool) -> Iterator[Piece]:
        for player in {*self.split(new)[1].ravel().tolist()}:
            who = self.league.identity(player)
            if who.kind == PAST:
                yield from self.traffic.files(str(self_path(Path(), who.agent, who.version)), keep=True)
        yield from super().pieces(old, new, gives)
