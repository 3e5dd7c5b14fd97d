"""A referee that is killed again and again loses no rating."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from polyplay.core.files import read_lines
from polyplay.population import referee as referees
from polyplay.population.league import AGENT, BOT, PAST, League
from polyplay.population.league_log import LOG, LeagueState
from polyplay.population.ratings import TrueSkill
from polyplay.population.referee import Referee
from tests.population.leagues import Files, Killed, employ, small


class Scripted:
    """A run whose events are drawn by a seed: actors join, play and leave, learners post, the run stops and goes on."""

    def __init__(self, directory: Path, rng: np.random.Generator):
        self.directory, self.rng, self.sessions = directory, rng, 0
        self.handed = list[tuple[int, int, tuple[int, ...]]]()  # every match: its actor, and what was reported
        self.versions = 0
        self.begin()

    def begin(self) -> None:
        """A session with memory of its own."""
        self.league = small(agents=3, actors=3, past=4, bots=("scripted",))
        self.sessions += 1
        self.office: Referee | None = None

    def turn(self) -> None:
        if self.office is None:
            self.office = employ(self.directory, self.league, rule="past:0.5", matches=5)
        self.office.turn()

    def event(self) -> None:
        """An actor plays, after it or its successor looked at the table; or a learner posts."""
        actor = int(self.rng.integers(3))
        draw, table = self.league.table(actor)
        if draw and self.rng.random() < 0.3:
            self.league.acknowledge(actor, draw)
        seated = self.league.acknowledged(actor)
        if seated == draw and draw:
            n = int(self.rng.integers(1, 9))
            outcomes = np.array([(1, 0), (0.5, 0.5), (0, 1)])[self.rng.integers(3, size=n)]
            self.league.report(actor, np.array([self.rng.permutation(table) for _ in range(n)]), outcomes)
        if self.rng.random() < 0.2:
            self.versions += 1
            self.league.post(int(self.rng.integers(3)), self.versions)


def test_1_000_kills_joins_and_leaves_lose_no_rating(tmp_path, monkeypatch):
    """Every match that was reported is rated once, in its actor's order, and by the formulas."""
    rng = np.random.default_rng(5)
    run, files = Scripted(tmp_path, rng), Files(monkeypatch, np.random.default_rng(6))
    reports = Reports(monkeypatch)
    events = 0
    while events < 1000:
        events += 1
        run.event()
        monkeypatch.setattr(referees, "SAVE", -1.0 if events % 5 == 0 else 30.0)  # league.json now, or not
        files.left = int(rng.integers(1, 7)) if rng.random() < 0.5 else -1
        try:
            run.turn()
        except Killed:
            run.office = None
            if rng.random() < 0.1:  # the whole run: what nobody took is lost with the memory
                reports.session_ends(tmp_path)
                run.begin()
        files.left = -1
    run.turn()
    while run.office and run.office.turn():
        pass
    assert files.kills > 100
    assert run.sessions > 10
    twin = Twin(tmp_path)
    assert twin.matches == reports.taken()
    assert len(run.office.state.history) > 20
    twin.agree(run.office.state)


class Reports:
    """What actors reported, as long as it was not lost with a run's memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.before: dict[int, list[tuple]] = {}
        self.now: dict[int, list[tuple]] = {}
        real = League.report

        def report(league: League, actor: int, players: np.ndarray, outcomes: np.ndarray) -> None:
            names = [name_of(league, p) for p in players.ravel()]
            rows = np.array(names).reshape(players.shape).tolist()
            self.now.setdefault(actor, []).extend(zip(rows, outcomes.tolist(), strict=True))
            real(league, actor, players, outcomes)

        monkeypatch.setattr(League, "report", report)

    def session_ends(self, directory: Path) -> None:
        """Of this session stays what is in the log."""
        written = Twin(directory).session
        for actor, rows in self.now.items():
            self.before.setdefault(actor, []).extend(rows[: written.get(actor, 0)])
        self.now = {}

    def taken(self) -> dict[int, list[tuple]]:
        return {a: [*self.before.get(a, []), *self.now.get(a, [])] for a in {*self.before, *self.now}}


def name_of(league: League, player: int) -> str:
    who = league.identity(player)
    return {AGENT: f"{who.agent}", PAST: f"{who.agent}-{who.version}", BOT: "bot:scripted"}[who.kind]


class Twin:
    """A plain reader of the log: players by their names, one match after the other."""

    def __init__(self, directory: Path):
        self.matches: dict[int, list[tuple]] = {}
        self.session: Counter[int] = Counter()
        self.games: Counter[tuple[str, str]] = Counter()
        self.points: Counter[tuple[str, str]] = Counter()
        self.elo = dict.fromkeys(["0", "1", "2", "bot:scripted"], 1000.0)
        self.skill = dict.fromkeys(self.elo, (25.0, 25 / 3))
        for row in read_lines(directory / LOG):
            if "begin" in row:
                self.session.clear()
            if "post" in row:
                agent, _ = row["post"].split("-")
                self.elo[row["post"]], self.skill[row["post"]] = self.elo[agent], self.skill[agent]
            for i in row.get("played", ()):
                self.session[row["actor"]] += 1
                self.matches.setdefault(row["actor"], []).append(tuple(row["of"][i]))
                self.rate(*row["of"][i])

    def rate(self, players: list[str], outcome: list[float]) -> None:
        a, b = players
        if a == b:
            return
        points = {1.0: 1.0, 0.5: 0.5, 0.0: 0.0}[outcome[0]]
        change = 16 * (points - 1 / (1 + 10 ** ((self.elo[b] - self.elo[a]) / 400)))
        self.elo[a] += change
        self.elo[b] -= change
        moving = [(m, math.hypot(s, 25 / 300 if len(p) == 1 else 0)) for p in (a, b) for m, s in [self.skill[p]]]
        (self.skill[a],), (self.skill[b],) = TrueSkill().rate(moving[:1], moving[1:], points)
        for pair, won in (((a, b), points), ((b, a), 1 - points)):
            self.games[pair] += 1
            self.points[pair] += won

    def agree(self, state: LeagueState) -> None:
        """With all players, those that left included."""
        saved = state.save()
        left = {row["name"] for row in saved["history"]}
        for row in [*saved["players"], *saved["history"]]:
            name = row["name"]
            assert row["elo"] == pytest.approx(self.elo[name], abs=1e-9)
            assert (row["mu"], row["sigma"]) == pytest.approx(self.skill[name], abs=1e-9)
            for other in self.elo if name not in left else row["against"]:
                if other not in left and name not in left:
                    met = row["against"].get(other, [0, 0.0])
                    assert met == [self.games[name, other], self.points[name, other]]
        assert {row["name"] for row in saved["players"]} | left == set(self.elo)
