"""League of a run in shared memory: the players (agents and bots), their ratings, and the tables. A table is the set of
players of one actor's matches. Imports no torch.

    actor ──► results of matches ──► referee ──► ratings, points, tables ──► actor
    learner ──► its weights become a past agent ──► referee

Only one worker writes to each array, so no lock is needed. Only the referee writes ratings, players and tables. The
current agents have the player numbers 0 … A-1. The next numbers are those of past agents, and the last those of bots.
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
    """Identity of a player in a league. `agent`: number of the agent whose weights play, or index of a bot."""

    kind: int
    agent: int
    version: int  # version of a past agent's weights


class CopyOrder(NamedTuple):
    """Order to replace the weights of agent `agent` by those of agent `donor`."""

    number: int
    agent: int
    donor: int


# Matches in the order played: number of the draw that chose the players, int64 [n]; player of each block of seats,
# int32 [n, blocks]; outcome of each team, float32 [n, teams], where a higher number wins and equal numbers are a tie.
Results = tuple[np.ndarray, np.ndarray, np.ndarray]


def blocks_of_teams(teams: Sequence[int], seated: int) -> list[list[int]]:
    """Return the blocks of seats of each team (see League). `teams`: team of each seat. `seated`: players per table."""
    per = len(teams) // min(seated, len(teams))
    return [sorted({i // per for i, t in enumerate(teams) if t == team}) for team in sorted(set(teams))]


class League(Closable, Edge):
    """Players and tables of a league. A table is the set of `seated` players that are chosen for an actor's matches.
    The seats of a match are divided into `blocks` blocks of equal size, and one player plays all seats of a block. The
    number of blocks is `seated`, or the number of seats if that is smaller.
    """

    memory: ClassVar[str] = "league"
    LOCAL = ("taken", "reported", "lost", "drawn", "acknowledged", "entered", "posts", "newest", "reserve", "begun")
    elo = shared_array(np.float64, lambda s: (s.players,))
    quality = shared_array(np.float64, lambda s: (s.players,))  # quality of past agents, by which they are drawn
    games = shared_array(np.int64, lambda s: (s.players, s.players))  # games of the row's player against the column's
    points = shared_array(np.float64, lambda s: (s.players, s.players))  # wins + ties / 2 in these games
    kind = shared_array(np.int8, lambda s: (s.players,))
    agent = shared_array(np.int32, lambda s: (s.players,))
    version = shared_array(np.int64, lambda s: (s.players,))
    # hyperparameters of each agent, written by its learner; NaN: not known yet
    hyper = shared_array(np.float64, lambda s: (s.agents, len(s.varied)))
    values = shared_array(np.float64, lambda s: (len(s.varied),))  # new hyperparameters for the ordered copy
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
        """`teams`: team of each seat of a match.
        `past`: number of past agents to keep.
        `bots`: names of scripted players.
        `varied`: hyperparameters that change when an agent copies another one.
        Raises UserError if `varied` is given for a single agent, or if no two players can be opponents.
        """
        if varied and agents < 2:
            raise UserError(
                "--exploit-every: --agents 1 has no other agent to copy; use --agents 2 or more, or --exploit-every 0"
            )
        self.varied = tuple(varied)
        self.agents, self.actors, self.seated, self.past, self.bots = agents, actors, seated, past, tuple(bots)
        self.players = agents + past + agents + len(self.bots)  # each agent's next past agent has a reserved place
        self.teams, self.blocks = tuple(teams), min(seated, len(teams))
        self.sides = blocks_of_teams(teams, seated)
        if not any(set(one).isdisjoint(other) for one in self.sides for other in self.sides):
            few = "a league needs seats of two teams" if len(self.sides) < 2 else "list the agents of a team in a row"
            raise UserError(f"--players {seated}: no player meets another in seats of teams {list(teams)}; {few}")
        super().__init__(1 + actors)  # semaphores: the referee's, then each actor's
        self.reserve[:] = -1
        self.hyper[:] = np.nan

    def _attach(self) -> None:
        super()._attach()
        # per actor: number of matches that the referee took, that the actor reported, and that were lost because they
        # came too fast; number of the newest draw of players, and of the draw in use (0: no draw yet)
        # per agent: number of past agents entered, and posted; version of the past agent posted last; player number of
        # the next past agent (-1: no number is free)
        self.taken, self.reported, self.lost, self.drawn, self.acknowledged = self._actors.T[:: LINE // 8]
        self.entered, self.posts, self.newest, self.reserve = self._agents.T[:: LINE // 8]
        self.begun = self._run[1:2]  # whether a referee has started before

    @property
    def rated(self) -> tuple[np.ndarray, ...]:
        """Arrays that are updated by the results of matches."""
        return self.elo, self.quality, self.games, self.points

    # ------------------------------------------------------------------------------------------------ actors

    def table(self, actor: int) -> tuple[int, np.ndarray]:
        """Return the newest draw for an actor's table: its number (0: no draw yet), and the drawn players, int32
        [seated]. Raises Closed.
        """
        self.check()
        draw = int(self.drawn[actor])
        return draw, self._tables[actor, draw % 2].copy()

    def wait(self, actor: int) -> bool:
        """Wait up to `patience` seconds for a new draw of players. Return False after a timeout. Raises Closed."""
        self.check()
        return self._bells[1 + actor].wait(self.patience)

    def acknowledge(self, actor: int, draw: int) -> None:
        """Confirm that the actor has reported all earlier matches and now plays with the players of this draw. Until
        then, the referee makes no other draw, and the past agents of the previous draw keep their weights.
        """
        self.acknowledged[actor] = draw
        self._bells[0].post()

    def report(self, actor: int, players: np.ndarray, outcomes: np.ndarray) -> None:
        """Report finished matches of the acknowledged draw, in order. If the buffer of reported matches is full,
        further matches are dropped and counted.

        `players`: player of each block of seats, int [n, blocks].
        `outcomes`: outcome of each team, [n, teams]. The highest number wins, and equal numbers are a tie.
        """
        self.check()
        reported, n = int(self.reported[actor]), len(players)
        taken = min(n, RESULTS - reported + int(self.taken[actor]))
        at = np.arange(reported, reported + taken) % RESULTS
        self._draws[actor, at] = self.acknowledged[actor]
        self._players[actor, at] = players[:taken]
        self._outcomes[actor, at] = np.nan_to_num(outcomes[:taken])  # NaN becomes 0
        self.lost[actor] += n - taken
        self.reported[actor] = reported + taken
        self._bells[0].post()

    def identity(self, player: int) -> Identity:
        """Return the identity of a player. An actor must still use a draw with this player."""
        return Identity(int(self.kind[player]), int(self.agent[player]), int(self.version[player]))

    # ------------------------------------------------------------------------------------------------ learners

    def post(self, agent: int, version: int) -> int | None:
        """Offer an agent's weights, whose file must exist, to the league as a past agent. Return the past agent's
        player number. A version that was offered before keeps its number. Return None if the referee has not yet added
        the agent's previous past agent. The caller should then try again later. Raises Closed.
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
        """Return the referee's order to copy weights, or None if all ordered copies were made. Raises Closed."""
        self.check()
        number, pair = divmod(int(self._order[0]), self.agents**2)
        return CopyOrder(number, *divmod(pair, self.agents)) if number > self._copied[0] else None

    def copied(self, number: int, version: int, donor_version: int) -> None:
        """Record copy `number` as made. The agent's version `version` is the donor's version `donor_version`."""
        self._copied[1:3] = version, donor_version
        self._fence()
        self._copied[0] = number
        self._bells[0].post()

    # ------------------------------------------------------------------------------------------------ the referee

    def ask(self, order: CopyOrder, values: Sequence[float]) -> None:
        """Order a copy of weights. The previous copy must be complete. `values`: new hyperparameters."""
        self.values[:] = values
        self._fence()
        self._order[0] = (order.number * self.agents + order.agent) * self.agents + order.donor

    def answer(self, number: int) -> tuple[int, int] | None:
        """Return the versions of agent and donor in copy `number` if it is the newest copy that was made, else None."""
        return (int(self._copied[1]), int(self._copied[2])) if self._copied[0] == number else None

    def wait_for_matches(self) -> None:
        """Wait up to `patience` seconds for news, such as finished matches. Raises Closed."""
        self.check()
        self._bells[0].wait(self.patience)
        while self._bells[0].wait(0):  # drop tokens, since all news is read now
            pass

    def results(self, actor: int, begin: int, most: int) -> Results:
        """Return copies of at most `most` matches that an actor reported, starting with match number `begin`."""
        at = np.arange(begin, min(int(self.reported[actor]), begin + most)) % RESULTS
        return self._draws[actor, at], self._players[actor, at], self._outcomes[actor, at]

    def seat(self, actor: int, draw: int, players: Sequence[int]) -> None:
        """Publish the players of an actor's draw number `draw`. The actor must have acknowledged the previous draw."""
        self._tables[actor, draw % 2] = players
        self._fence()
        self.drawn[actor] = draw
        self._bells[1 + actor].post()

    def put(self, player: int, who: Identity) -> None:
        """Publish the identity of a player."""
        self.agent[player], self.version[player] = who.agent, who.version
        self.kind[player] = who.kind

    def posted(self, agent: int, entered: int) -> Identity | None:
        """Return the agent's newest past agent. Return None if the agent has posted at most `entered` past agents."""
        return Identity(PAST, agent, int(self.newest[agent])) if self.posts[agent] > entered else None

    def enter(self, agent: int, entered: int, reserve: int) -> None:
        """Publish how many past agents of an agent have entered. `reserve`: player number of the next past agent."""
        self.reserve[agent] = reserve
        self._fence()
        self.entered[agent] = entered

    def _fence(self) -> None:
        """Make other processes see all earlier writes before any later one."""
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
        """Return the flows between machines."""
        flows: list[Flow] = [Cells(MAIN, [EVERYONE], [self.agent, self.version, self.kind])]
        for a in range(self.actors):
            # `acknowledged` is sent after all earlier reports
            cells = [x[a : a + 1] for x in (self.lost, self.reported, self.acknowledged)]
            rows = [self._draws[a], self._players[a], self._outcomes[a]]
            bells = [self._bells[0]]
            flows.append(Cells(End("league", a), [MAIN], cells, bells, log=rows, counted=lambda cells: cells[1][0]))
        flows += [TableFlow(self, a) for a in range(self.actors)]
        ends = [End("rates", 0), *(End("league", a) for a in range(self.actors))]
        return Crossing(flows, [(self._bells[i], end) for i, end in enumerate(ends)], self.close)

    def save(self) -> Batch:
        """Return copies of all arrays, for a checkpoint. No worker may run during the call."""
        return {name: array.copy() for name, array in self.arrays().items()}

    def load(self, saved: Batch) -> None:
        """Restore the arrays that `save` returned."""
        for name, array in saved.items():
            self.arrays()[name][...] = array


class TableFlow(Cells):
    """Flow that sends an actor's machine the players of its matches. Weights of past agents are sent first."""

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
