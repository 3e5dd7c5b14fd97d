"""How a league went, by the lines of its matches.jsonl: ratings over matches, who copied whom. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.files import Row, read_lines
from polyplay.population.league import League
from polyplay.population.league_state import LeagueState
from polyplay.population.match_log import LOG
from polyplay.population.ratings import Elo, TrueSkill

POINTS = 400  # of a curve, about


class LeagueHistory(NamedTuple):
    """matches: int64 [n], rated so far; elo: float64 [n, agents] then; copies: as LeagueState has them, each with
    `match`, the number of those rated before it.
    """

    matches: np.ndarray
    elo: np.ndarray
    copies: list[Row]


def read_history(directory: Path) -> LeagueHistory:
    """Of a league's run, also of one that goes on. Raises UserError: it has no league, or its log is damaged."""
    lines = list(read_lines(directory / LOG))
    if not lines or "begin" not in lines[0]:
        raise UserError(f"RUN: {directory} has no {LOG} of a league: name a run of league or ftw")
    try:
        state = _fresh(lines[0])
        total = sum(len(line.get("played", ())) for line in lines)
        rated, every, found = 0, max(1, total // POINTS), [(0, state.ratings.elo[: state.places.start].copy())]
        copies: list[Row] = []
        for line in lines:
            state.apply(line)
            rated += len(line.get("played", ()))
            if len(state.copies.made) > len(copies):
                copies.append({**state.copies.made[-1], "match": rated})
            del copies[len(state.copies.made) :]  # a run that went on without them
            if rated >= found[-1][0] + every:
                found.append((rated, state.ratings.elo[: state.places.start].copy()))
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        raise UserError(f"{directory / LOG} is damaged ({e!r}): put back a copy of it") from None
    return LeagueHistory(np.array([n for n, _ in found]), np.stack([elo for _, elo in found]), copies)


def _fresh(begin: Row) -> LeagueState:
    """The state before the first line of a session."""
    league = League(begin["agents"], begin["actors"], begin["teams"], begin["seated"], begin["past"], begin["bots"])
    return LeagueState(league, Elo(**begin["elo"]), TrueSkill(**begin["trueskill"]))


def values_over(copies: list[Row], agent: int, first: Row, end: int) -> list[tuple[int, int, Row]]:
    """(begin, end, hyperparameters) of an agent in order, by matches rated. first: those it began with."""
    found, begin, values = list[tuple[int, int, Row]](), 0, first
    for copy in copies:
        if copy["agent"] == agent:
            found.append((begin, copy["match"], copy["old"] or values))
            begin, values = copy["match"], copy["values"]
    return [*found, (begin, end, values)]
