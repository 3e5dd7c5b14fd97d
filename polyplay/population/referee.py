"""The referee of a league rates matches that actors report, admits past agents, draws tables, and decides on copies.

    League ──► results, past agents ──► lines of matches.jsonl ──► LeagueState ──► ratings, players, tables ──► League

A table is the group of players in an actor's matches. A past agent is an older copy of an agent. The referee writes a
line to the log before applying it, so a restarted referee restores every rating from the log. This module imports no
torch.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polyplay.buffers import actor_checkpoint
from polyplay.buffers.league import CopyOrder, League
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import Row, read_lines, refusal_text
from polyplay.core.machine import now
from polyplay.core.numbers import uniform
from polyplay.core.worker import WorkerContext
from polyplay.population.league_log import LOG, SUMMARY, LeagueAgents, LeagueState, MatchLog
from polyplay.population.ratings import win_probability
from polyplay.population.rules import Evolution

# Rules that draw the other players of a table (group of players in an actor's matches), beside its first player:
#
# latest   other current agents, with their newest weights; an agent meets itself if it is the only one
# uniform  any of the current agents, past agents and bots
# past:P   with probability P a past agent, drawn by quality; else the same as latest
# elo      the same players as uniform, but preferably players that the first player beats about half the time


LATEST, UNIFORM, PAST_SELVES, BY_ELO = "latest", "uniform", "past", "elo"
DEVIATION = 1 / 6  # standard deviation, around ½, of the win probability in BY_ELO (Jaderberg et al. 2019)
RATE = 0.01  # learning rate η of the qualities (Berner et al. 2019, appendix N)


@dataclass(frozen=True)
class Opponents:
    """A rule that draws opponents at a table (group of players in a match). share: probability of a past agent."""

    rule: str
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Opponents:
        """Parse the text of the option --opponents, such as `past:0.2`. Raises UserError."""
        rule, colon, rest = text.partition(":")
        if text in (LATEST, UNIFORM, BY_ELO):
            return cls(text)
        try:
            share = float(rest)
        except ValueError:
            share = math.nan
        if rule == PAST_SELVES and colon and 0 <= share <= 1:
            return cls(rule, share)
        raise UserError(f"--opponents {text}: must be latest, uniform, elo, or past:P with P from 0 to 1")

    def describe(self) -> list[str]:
        share = f":{self.share:g}" if self.rule == PAST_SELVES else ""
        return [f"tables  of opponents {self.rule}{share}"]

    def draw(
        self, first: int, league: League, past: Sequence[int], random: np.ndarray
    ) -> tuple[list[int], list[float]]:
        """Draw the players of a table, beginning with `first`. Also return the quality that each loses by a defeat.

        Players are drawn without repetition, as far as possible. Past agents drawn by quality may repeat.
        `past`: player numbers of the past agents. `random`: uniform numbers in (0, 1), float [seated, 2].
        """
        agents, bots = range(league.agents), range(league.players - len(league.bots), league.players)
        pool = [*agents, *past, *bots] if self.rule in (UNIFORM, BY_ELO) else list(agents)
        players, costs = [first], [0.0]
        for which, where in random[1:].tolist():
            if past and which < self.share:
                chances = quality_chances(league.quality[list(past)])
                at = draw_index(chances, where)
                players.append(past[at])
                costs.append(quality_cost(float(chances[at]), len(chances)))
                continue
            left = [p for p in pool if p not in players] or pool
            weights = np.ones(len(left))
            if self.rule == BY_ELO:
                weights = np.array([match_weight(win_probability(league.elo[first], league.elo[p])) for p in left])
            players.append(left[draw_index(weights, where)])
            costs.append(0.0)
        return players, costs


def match_weight(chance: float) -> float:
    """Return the weight of a match that is won with probability `chance`: a normal density, scaled to 1 at ½."""
    return math.exp(-(((chance - 0.5) / DEVIATION) ** 2) / 2)


def quality_chances(quality: np.ndarray) -> np.ndarray:
    """Return the probability with which each past agent is drawn: the softmax of the qualities."""
    weights = np.exp(quality - quality.max())
    return weights / weights.sum()


def quality_cost(chance: float, n: int) -> float:
    """Return the quality that one of `n` past agents loses by a defeat. chance: probability with which it was drawn.
    Agents that are drawn rarely lose more, so that the expected loss is the same for all.
    """
    return RATE / (n * chance)


def draw_index(weights: np.ndarray, where: float) -> int:
    """Draw an index with these weights. where: uniform random number from 0 to 1."""
    ends = np.cumsum(weights)
    return min(int(np.searchsorted(ends, where * ends[-1], side="right")), len(ends) - 1)


def keep_seats(players: Sequence[int], costs: Sequence[float], before: Sequence[int]) -> tuple[list[int], list[float]]:
    """Reorder the new players of a table and their costs. Players of the previous table `before` keep their seats."""
    places: list[int | None] = [None] * len(players)
    rest = []
    for i, player in enumerate(players):
        at = next((at for at, p in enumerate(before) if p == player and places[at] is None), None)
        if at is None:
            rest.append(i)
        else:
            places[at] = i
    order = [rest.pop(0) if i is None else i for i in places]
    return [players[i] for i in order], [costs[i] for i in order]


STATE = "league/state"  # the referee's file in a checkpoint that is made between two rounds of turns
MOST = 256  # most matches in a line of the log
SAVE = 30.0  # seconds between writes of league.json
NO_COPIES = Evolution()


def referee(
    ctx: WorkerContext,
    *,
    rates: League,
    opponents: Opponents,
    matches: int,
    evolution: Evolution = NO_COPIES,
) -> Iterator[None]:
    """Rate the matches that actors report. matches: number of matches after which a table gets new players."""
    place = contextlib.nullcontext(ctx.directory) if ctx.directory else tempfile.TemporaryDirectory()  # in a dry run
    with place as directory:
        rating = Referee(replace(ctx, directory=Path(directory)), rates, opponents, matches, evolution)
        with contextlib.closing(rating):
            ctx.hooks.write_part = rating.write_part
            if rating.found is not None:
                yield  # all workers restore their state in this round
            while True:
                if not rating.turn():
                    rates.wait_for_matches()
                yield


class Referee:
    """Referee of a league. The log's lines determine the league's state, which the referee copies to shared memory."""

    def __init__(
        self, ctx: WorkerContext, league: League, opponents: Opponents, matches: int, evolution: Evolution = NO_COPIES
    ):
        assert ctx.directory is not None
        self.ctx, self.league, self.opponents, self.matches = ctx, league, opponents, matches
        self.log, self.found = MatchLog(ctx.directory), actor_checkpoint.between_rounds(ctx)
        if self.found is not None:  # a resumed run: restore the log and the league's memory
            self.log.cut(self.found.json(STATE)["lines"])
            league.load(self.found.arrays(actor_checkpoint.LEAGUE))
        self.state = LeagueState(league)
        self.agents = LeagueAgents(league, self.state.copies, evolution)
        for line in read_lines(ctx.directory / LOG):
            self.state.apply(line)
        if not league.begun[0]:
            versions = {} if ctx.resume is None else checkpoint.manifest(ctx.resume)["counters"].get("agents", {})
            self.log.write(line := self.state.beginning(versions))
            self.state.apply(line)
        self.failed, self.warned = False, False  # whether the last write failed; whether lost matches were reported
        self._publish()
        self.saved = 0.0
        self._save()

    def write_part(self, number: int) -> None:
        """Write the league's part of a checkpoint."""
        assert self.ctx.directory is not None
        part = checkpoint.CheckpointPart(self.ctx.directory, number)
        try:
            self.log.sync()
            part.json(STATE, {"lines": self.log.lines})
            part.arrays(actor_checkpoint.LEAGUE, self.league.save())
        except OSError as e:
            self.ctx.log("warning", f"checkpoint {number}: without the league's matches under way: {refusal_text(e)}")

    def _publish(self) -> None:
        """Write the whole state to the League's shared memory."""
        state, league = self.state, self.league
        state.ratings.bind(league)
        for player in range(league.players):
            league.put(player, state.identity(player))
        for actor, table in state.tables.items():
            if table.draw:
                league.seat(actor, table.draw, table.players)
        league.begun[0] = 1
        self._ask()
        self._hand_back()
        if self.found is None:
            self._make_room()

    def turn(self) -> bool:
        """Process the data that actors and learners have handed over. Return whether any data came."""
        acknowledged = self.league.acknowledged.tolist()  # read first, so that the results include earlier matches
        lines = [*self._results(), *self._posts(), *self._copied()]
        if self._take(lines):
            self._hand_back()
            self._make_room(acknowledged)
            agent = self.agents.due()
            if agent is not None and self._take([self.agents.look(agent, self.ctx.seed)]):
                self._ask()
            drawn = [*self._draws(acknowledged)]
            if self._take(drawn):
                for line in drawn:
                    table = self.state.tables[line["actor"]]
                    self.league.seat(line["actor"], table.draw, table.players)
        if time.monotonic() > self.saved + SAVE:
            self._save()
        return bool(lines)

    def _take(self, lines: list[Row]) -> bool:
        """Write lines to the log, and then apply them. Return False if writing fails."""
        if not lines:
            return True
        try:
            self.log.write(*lines)
        except OSError as e:
            if not self.failed:
                self.ctx.log("warning", f"{LOG}: {refusal_text(e)}; matches are rated once it can be written again")
            self.failed = True
            time.sleep(self.ctx.patience)
            return False
        self.failed = False
        for line in lines:
            self.state.apply(line)
        return True

    # ------------------------------------------------------------------------------------------------ handed over

    def _results(self) -> Iterator[Row]:
        """Yield log lines with the matches that actors have reported."""
        names = self.state.names
        for actor in range(self.league.actors):
            draws, seated, outcomes = self.league.results(actor, self.state.taken[actor], MOST)
            if len(draws):
                n = int(np.argmax(draws != draws[0])) or len(draws)
                kinds, played = dict[tuple, int](), list[int]()
                for players, outcome in zip(seated[:n].tolist(), outcomes[:n].tolist(), strict=True):
                    if not all(names[p] for p in players):
                        raise RuntimeError(f"actor {actor} reported a match of players {players}: some do not exist")
                    played.append(kinds.setdefault((tuple(players), tuple(outcome)), len(kinds)))
                of = [[[names[p] for p in players], list(outcome)] for players, outcome in kinds]
                yield {"actor": actor, "draw": int(draws[0]), "of": of, "played": played}
            if lost := int(self.league.lost[actor]) - self.state.lost[actor]:
                yield {"actor": actor, "lost": lost}
                if not self.warned:
                    self.warned = True
                    self.ctx.log(
                        "warning", f"actor {actor}: {lost} matches came too fast to be rated; {LOG} counts them"
                    )

    def _posts(self) -> Iterator[Row]:
        for agent in range(self.league.agents):
            who = self.league.posted(agent, self.state.entered[agent])
            if who is not None:
                yield {"post": f"{agent}-{who.version}", "player": int(self.league.reserve[agent])}

    def _copied(self) -> Iterator[Row]:
        pending = self.state.copies.pending
        if pending is not None and (made := self.league.answer(pending["copy"])) is not None:
            yield {"copied": pending["copy"], "version": made[0], "donor_version": made[1], "at": now()}

    def _hand_back(self) -> None:
        """Release the memory of data that is in the log now."""
        for actor in range(self.league.actors):
            self.league.taken[actor] = self.state.taken[actor]
        for player in self.league.reserve.tolist():
            if player >= 0 and self.state.names[player]:
                self.league.put(player, self.state.identity(player))

    # ------------------------------------------------------------------------------------------------ decisions

    def _make_room(self, acknowledged: list[int] | None = None) -> None:
        """Reserve a player number for the next past agent of each agent. If no number is free, remove a past agent."""
        state, league = self.state, self.league
        reserves = league.reserve.tolist()
        for agent, player in enumerate(reserves):
            if player < 0 or state.names[player]:
                taken = {p for a, p in enumerate(reserves) if a != agent}
                free = next((p for p in state.places if not state.names[p] and p not in taken), -1)
                reserves[agent] = free if free >= 0 else self._dismiss(acknowledged)
            elif league.entered[agent] == state.entered[agent]:
                continue
            league.enter(agent, state.entered[agent], reserves[agent])

    def _dismiss(self, acknowledged: list[int] | None) -> int:
        """Remove the past agent of lowest quality, except the newest and those at tables. Return its number, or -1."""
        state, seated = self.state, set[int]()
        for actor, table in state.tables.items():
            left = acknowledged is not None and acknowledged[actor] == table.draw
            waiting = self.league.results(actor, state.taken[actor], 1)[0]
            seated.update(table.players, () if left and (waiting == table.draw).all() else table.before)
        quality = {p: float(state.ratings.quality[p]) for p in state.past_agents[:-1] if p not in seated}
        player = min(quality, key=lambda p: quality[p], default=-1)
        if player < 0 or not self._take([{"leave": state.names[player]}]):
            return -1
        self.league.put(player, state.identity(player))
        return player

    def _ask(self) -> None:
        """Order the pending copy, if one exists."""
        if (line := self.state.copies.pending) is not None:
            self.league.ask(CopyOrder(line["copy"], line["look"], line["donor"]), list(line["values"].values()))

    def _draws(self, acknowledged: list[int]) -> Iterator[Row]:
        """Yield a line with new players for each actor that needs a table."""
        for actor in range(self.league.actors):
            table = self.state.tables[actor]
            if table.draw == 0 or (acknowledged[actor] == table.draw and table.since >= self.matches):
                draw, seated = table.draw + 1, self.league.seated
                random = uniform(self.ctx.seed, np.array([actor]), np.array([draw]), 2 * seated).reshape(-1, 2)
                first = (actor + draw) % self.league.agents  # so that every agent is first equally often
                drawn = self.opponents.draw(first, self.league, self.state.past_agents, random)
                players, costs = keep_seats(*drawn, table.players)
                names = [self.state.names[p] for p in players]
                yield {"actor": actor, "draw": draw, "table": names, "costs": costs}

    # ------------------------------------------------------------------------------------------------ files

    def _save(self) -> None:
        self.saved = time.monotonic()
        try:
            self.log.save(self.state.save())
        except OSError as e:
            self.ctx.log("warning", f"{SUMMARY}: {refusal_text(e)}; it is written again later")

    def close(self) -> None:
        """Process the data that is left, and write league.json."""
        while self._take(lines := [*self._results(), *self._posts(), *self._copied()]) and lines:
            self._hand_back()
            self._make_room()
        self._save()
        self.log.close()
