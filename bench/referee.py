"""How many matches a second the referee rates on one core, with Elo and TrueSkill, and its log written.

    python bench/referee.py

`referee`: everything: reports are taken from shared memory, written to matches.jsonl, rated, tables drawn. `ratings`:
Elo, TrueSkill, points, nothing written. `trueskill`: TrueSkill alone, by the package (`pip install trueskill`). Two
teams of that many different players win at random. Rounds take turns; a rate is by wall time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table

from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.population.league import League
from polyplay.population.league_log import LeagueRatings
from polyplay.population.ratings import Elo, TrueSkill
from polyplay.population.referee import MOST, Opponents, Referee

LEAST = 5_000  # matches/s that are promised
ELO, SKILL = Elo(), TrueSkill()
OUTCOMES = np.array([(1, 0), (0.5, 0.5), (0, 1)], np.float32)
Work = Callable[[], int]  # some matches; how many


def leagued(players: int) -> League:
    """Agents for two teams of so many players, one table."""
    league = League(2 * players, 1, (0,) * players + (1,) * players, seated=2 * players, past=50)
    league.patience = 0.0
    return league


def whole(players: int, directory: Path) -> Work:
    """Reports of MOST matches, and the referee's turn."""
    league, rng = leagued(players), np.random.default_rng(0)
    ctx = WorkerContext("referee", 0, 1, 0, 1, Counters(1), RunControl(), directory, patience=0.0)
    office = Referee(ctx, league, Opponents.parse("elo"), 64, ELO, SKILL)
    office.turn()

    def work() -> int:
        draw, seated = league.table(0)
        league.acknowledge(0, draw)
        league.report(0, np.tile(seated, (MOST, 1)), OUTCOMES[rng.integers(3, size=MOST)])
        office.turn()
        return MOST

    return work


def in_memory(players: int) -> Work:
    """Ratings of MOST matches."""
    ratings, rng = LeagueRatings(leagued(players), ELO, SKILL), np.random.default_rng(0)
    matches = [(list(range(2 * players)), outcome) for outcome in OUTCOMES.tolist()]

    def work() -> int:
        ratings.play(matches, rng.integers(3, size=MOST).tolist(), {})
        return MOST

    return work


def package(players: int) -> Work:
    """The same matches, one after the other, by the package's `rate`."""
    import trueskill

    peer, rng = trueskill.TrueSkill(tau=0.0, draw_probability=0.02), np.random.default_rng(0)
    teams = [tuple(peer.create_rating() for _ in range(players)) for _ in range(2)]
    ranks = [[0, 1], [0, 0], [1, 0]]

    def work() -> int:
        for i in rng.integers(3, size=MOST).tolist():
            teams[:] = peer.rate(teams, ranks[i])
        return MOST

    return work


def rate(work: Work, seconds: float) -> float:
    """Matches a second."""
    begun, n = time.perf_counter(), 0
    while (taken := time.perf_counter() - begun) < seconds:
        n += work()
    return n / taken


def measure(asked: argparse.Namespace, directory: Path) -> list[Row]:
    rows: list[Row] = []
    for players in asked.players:
        place = directory / str(players)
        place.mkdir()
        works = {"referee": whole(players, place), "ratings": in_memory(players)}
        if importlib.util.find_spec("trueskill"):
            works["trueskill"] = package(players)
        rates: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(asked.rounds):
            for name, work in works.items():
                rates[name].append(rate(work, asked.seconds))
        rows += [{"what": name, "players of a team": players, "matches/s": spread(rates[name])} for name in works]
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--players", type=int, nargs="+", default=[1, 5], help="of a team")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--note", default="", help="about the machine, into the result")
    parser.add_argument("--out", type=Path, default=RESULTS / "referee")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(asked, Path(directory))
    text = [
        "# Matches that a referee rates",
        "",
        *lines_about(data := {**about(), "load": load, "note": asked.note, "least": LEAST, "rows": rows}),
        f"- load average before: {load:.1f}{'; ' + asked.note if asked.note else ''}",
        f"- {asked.rounds} rounds of {asked.seconds:g} s each; promised: {LEAST:,} matches/s by `referee`",
        "",
        *table([{**row, "matches/s": said(row["matches/s"], 0)} for row in rows]),
    ]
    publish(asked.out, data, text)


if __name__ == "__main__":
    main()
