"""The referee: opponents, ratings, past agents and tables; what comes too fast or is wrong; kills."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.buffers.league import AGENT, BOT, NOBODY, PAST, RESULTS, League
from polyplay.core.errors import Closed, UserError
from polyplay.core.files import read_lines
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.population import referee as referees
from polyplay.population.league_log import LOG, SUMMARY, LeagueState
from polyplay.population.ratings import win_probability
from polyplay.population.referee import (
    RATE,
    Opponents,
    Referee,
    keep_seats,
    match_weight,
    quality_chances,
    quality_cost,
    referee,
)
from tests.population.fake_members import Kill, Killed
from tests.population.leagues import employ, play, small


def at_work(
    directory: Path, rule: str = "latest", matches: int = 4, heard: list | None = None, **more: Any
) -> tuple[League, Referee]:
    """A league, and its referee after a turn. more: of the league."""
    league = small(**more)
    office = employ(directory, league, rule, matches, heard)
    office.turn()
    return league, office


def test_a_table_is_drawn_anew_once_it_was_acknowledged_and_has_played_enough(tmp_path):
    league = small(agents=3)
    office = employ(tmp_path, league, matches=3)
    assert office.turn() is False
    assert [league.table(a)[0] for a in range(2)] == [1, 1]
    assert league.table(0)[1][0] == 1, "actor 0's first table begins with agent 1"
    assert league.acknowledged[0] == 0
    play(league, 0, [(1, 0)] * 2)
    office.turn()
    assert league.table(0)[0] == 1
    play(league, 0, [(1, 0)])
    office.turn()
    assert [league.table(a)[0] for a in range(2)] == [2, 1]
    league.report(0, np.array([[1, 0]] * 9), np.array([(1, 0)] * 9))  # still with the first draw
    office.turn()
    assert league.table(0)[0] == 2
    play(league, 0, [(1, 0)] * 3)
    office.turn()
    assert league.table(0)[0] == 3


def test_a_past_self_is_as_good_as_its_agent_was_and_loses_quality_where_it_is_beaten(tmp_path):
    league, office = at_work(tmp_path, rule="past:1", matches=2, agents=1, actors=1)
    assert league.table(0)[1].tolist() == [0, 0]
    play(league, 0, [(1, 0)] * 2)  # against itself: not rated
    league.elo[0] = 1100
    player = league.post(0, 500)
    assert player == 1
    assert league.post(0, 600) is None, "the one before has not been entered"
    office.turn()
    assert league.games.sum() == 0
    assert league.post(0, 500) == player, "there is one already"
    assert (league.identity(player), league.elo[player]) == ((PAST, 0, 500), 1100)
    assert league.table(0)[1].tolist() == [0, player]
    play(league, 0, [(0, 1), (1, 0)])
    office.turn()
    assert league.quality[player] == pytest.approx(-0.01), "one of one: η"
    assert league.points[0, player] == 1
    other = league.post(0, 600)
    office.turn()
    assert league.quality[other] == league.quality[player], "as good as the best"


def test_the_worst_past_self_leaves_and_history_has_it(tmp_path):
    league = small(agents=1, actors=1, past=3)
    office = employ(tmp_path, league, rule="past:1", matches=1)
    for version in (1, 2, 3):
        assert league.post(0, version) == version
        office.turn()
    league.quality[1:4] = -1, -2, -2
    seated = int(league.table(0)[1].max())
    office.state.ratings.points[2, 0], office.state.ratings.games[2, 0] = 3, 7
    assert league.post(0, 4) == 4
    office.turn()
    left = next(p for p in (2, 3) if p != seated)
    assert league.identity(left).kind == NOBODY
    assert sorted(p for p in range(1, 5) if league.kind[p] == PAST) == sorted({1, 2, 3, 4} - {left})
    assert league.post(0, 5) == left
    office.turn()
    office.close()
    history = json.loads((tmp_path / SUMMARY).read_text())["history"]
    assert (history[0]["name"], history[0]["against"]) == (f"0-{left}", {"0": [7, 3.0]} if left == 2 else {})
    assert [row["leave"] for row in read_lines(tmp_path / LOG) if "leave" in row][:1] == [f"0-{left}"]


def test_teams_of_several_players(tmp_path):
    league = small(agents=4, actors=1, teams=(0, 0, 1, 1), seated=4)
    assert league.sides == [[0, 1], [2, 3]]
    office = employ(tmp_path, league)
    office.turn()
    assert sorted(league.table(0)[1].tolist()) == [0, 1, 2, 3]
    play(league, 0, [(1, 0)], [0, 1, 2, 3])
    office.turn()
    assert league.elo[:4].tolist() == [1008, 1008, 992, 992]
    assert league.games[:4, :4].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    play(league, 0, [(1, 0)], [0, 1, 0, 3])  # who is on both sides does not count
    office.turn()
    assert (league.games[0, 3], league.games[1, 3]) == (1, 2)
    five = small(teams=(0,) * 5 + (1,) * 5)
    assert (five.blocks, five.sides) == (2, [[0], [1]])


def test_each_against_each_other_where_there_are_more_teams(tmp_path):
    league, office = at_work(tmp_path, agents=3, actors=1, teams=(0, 1, 2), seated=3)
    play(league, 0, [(3.5, 2, 2)], [2, 0, 1])
    office.turn()
    assert league.points[:3, :3].tolist() == [[0, 0.5, 0], [0.5, 0, 0], [1, 1, 0]]


# ---------------------------------------------------------------------------------------------------- too fast, wrong
def test_what_comes_too_fast_is_counted_and_said(tmp_path):
    heard: list[tuple[str, str]] = []
    league, office = at_work(tmp_path, heard=heard)
    play(league, 1, [(1, 0)] * (RESULTS + 7))
    while office.turn():
        pass
    assert league.games.sum() == 2 * RESULTS
    assert [row["lost"] for row in read_lines(tmp_path / LOG) if "lost" in row] == [7]
    assert [text for _, text in heard] == [f"actor 1: 7 matches came too fast to be rated; {LOG} counts them"]


def test_while_the_disk_is_full_nothing_is_rated_and_nothing_lost(tmp_path, monkeypatch):
    heard: list[tuple[str, str]] = []
    league, office = at_work(tmp_path, heard=heard)
    play(league, 0, [(1, 0)] * 5)
    with monkeypatch.context() as m:
        m.setattr(office.log, "write", full)
        assert office.turn() is True
        office.turn()
    assert league.games.sum() == 0
    assert [text for _, text in heard] == [
        f"{LOG}: No space left; the disk is full: free some space; matches are rated once it can be written again"
    ]
    office.turn()
    assert league.games.sum() == 10


def full(rows: object) -> None:
    raise OSError(28, "No space left")


def test_another_league_does_not_go_on(tmp_path):
    employ(tmp_path, small()).close()
    with pytest.raises(UserError, match=r"RUN: its league has past 3, not 5"):
        employ(tmp_path, small(past=5))


def test_the_worker_takes_what_is_left_when_the_run_ends(tmp_path):
    league = small()
    ctx = WorkerContext("referee", 0, 1, 0, 3, Counters(1), RunControl(), tmp_path, patience=0.0)
    turns = referee(ctx, rates=league, opponents=Opponents.parse("elo"), matches=5)
    next(turns)
    play(league, 0, [(1, 0)] * 600)
    league.close()
    with pytest.raises(Closed):
        list(turns)
    saved = json.loads((tmp_path / SUMMARY).read_text())
    assert saved["players"][0]["against"] == {"1": [600, 0.0]}


def six() -> League:
    """Three agents, two past agents, room for two more and their agents' next, a bot."""
    league = small(agents=3, actors=1, past=0, bots=("scripted",))
    league.elo[:] = 1000.0, 1000.0, 1400.0, 600.0, 1200.0, 0.0, 1000.0
    league.quality[3:5] = 1.0, 2.0
    return league


def opponents(rule: str, n: int = 200) -> dict[int, float]:
    """How often each is drawn against player 0, over a grid of the random numbers."""
    grid, league = (np.arange(n) + 0.5) / n, six()
    found: Counter[int] = Counter()
    for which in grid[::10]:
        for where in grid:
            players, _ = Opponents.parse(rule).draw(0, league, [3, 4], np.array([[0.5, 0.5], [which, where]]))
            assert players[0] == 0
            found[players[1]] += 1
    return {p: found[p] / found.total() for p in sorted(found)}


def test_each_rule_draws_as_it_says():
    assert opponents("latest") == {1: 0.5, 2: 0.5}
    assert opponents("uniform") == dict.fromkeys((1, 2, 3, 4, 6), 0.2)
    shares = opponents("past:0.2")
    assert shares == pytest.approx({1: 0.4, 2: 0.4, 3: 0.2 / (1 + np.e), 4: 0.2 * np.e / (1 + np.e)}, abs=2e-3)
    assert opponents("past:0") == opponents("latest")
    weights = {p: match_weight(win_probability(1000, six().elo[p])) for p in (1, 2, 3, 4, 6)}
    expected = {p: weight / sum(weights.values()) for p, weight in weights.items()}
    assert opponents("elo") == pytest.approx(expected, abs=6e-3)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=30))
def test_the_expected_loss_of_quality_does_not_depend_on_how_past_selves_are_drawn(quality):
    chances = quality_chances(np.array(quality))
    assert chances.sum() == pytest.approx(1)
    expected = [p * quality_cost(p, len(quality)) for p in chances.tolist()]  # over who is drawn, each being beaten
    assert expected == pytest.approx([RATE / len(quality)] * len(quality))


def test_costs_come_with_past_selves_and_nobody_else_sits_twice_while_there_are_others():
    players, costs = Opponents.parse("past:1").draw(1, six(), [3, 4], np.array([[0.5, 0.5], [0.5, 0.1], [0.5, 0.9]]))
    assert players == [1, 3, 4]
    assert costs == pytest.approx([0, 0.005 * (1 + np.e), 0.005 * (1 + np.e) / np.e])
    random = np.random.default_rng(0)
    for rule in ("latest", "uniform", "elo"):
        players, costs = Opponents.parse(rule).draw(2, six(), [3, 4], random.random((3, 2)))
        assert (len(set(players)), costs) == (3, [0.0] * 3)
    for rule in ("latest", "uniform", "elo", "past:0.5"):
        assert Opponents.parse(rule).draw(0, small(agents=1), [], random.random((2, 2)))[0] == [0, 0]


@pytest.mark.parametrize("text", ["past", "past:", "past:1.5", "past:nan", "latest:1", "elo:", "best", ""])
def test_what_is_no_rule_is_refused_in_one_line(text):
    with pytest.raises(UserError, match=r"^--opponents .*: must be latest, uniform, elo, or past:P") as e:
        Opponents.parse(text)
    assert "\n" not in str(e.value)


def test_who_stays_keeps_the_seat():
    assert keep_seats([1, 2], [0.0, 0.5], [2, 1]) == ([2, 1], [0.5, 0.0])
    assert keep_seats([3, 1, 2], [0.1, 0.2, 0.3], [1, 4, 3]) == ([1, 2, 3], [0.2, 0.3, 0.1])
    assert keep_seats([0, 0], [0.0, 0.0], []) == ([0, 0], [0.0, 0.0])
    assert keep_seats([0, 5], [0.0, 0.0], [0, 0]) == ([0, 5], [0.0, 0.0])


class Scripted:
    """A run whose events are drawn by a seed: actors join, play and leave, learners post, the run stops and goes on."""

    def __init__(self, directory: Path, rng: np.random.Generator):
        self.directory, self.rng, self.sessions = directory, rng, 0
        self.versions = 0
        self.reported: dict[int, list[tuple]] = {0: [], 1: [], 2: []}  # by actor: what was not lost with a memory
        self.begin()

    def begin(self) -> None:
        """A session with memory of its own: of the one before stays what is in the log."""
        if self.sessions:
            written = Twin(self.directory).matches
            self.reported = {a: rows[: len(written.get(a, []))] for a, rows in self.reported.items()}
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
        seated = self.league.acknowledged[actor]
        if seated == draw and draw:
            n = int(self.rng.integers(1, 9))
            outcomes = np.array([(1, 0), (0.5, 0.5), (0, 1)])[self.rng.integers(3, size=n)]
            players = np.array([self.rng.permutation(table) for _ in range(n)])
            named = ([name_of(self.league, p) for p in row] for row in players)
            self.reported[actor] += zip(named, outcomes.tolist(), strict=True)
            self.league.report(actor, players, outcomes)
        if self.rng.random() < 0.2:
            self.versions += 1
            self.league.post(int(self.rng.integers(3)), self.versions)


def test_kills_joins_and_leaves_lose_no_rating(tmp_path, monkeypatch):
    """Every match that was reported is rated once, in its actor's order, and by the formulas."""
    rng = np.random.default_rng(5)
    run, kill = Scripted(tmp_path, rng), Kill(monkeypatch)
    for events in range(1, 301):
        run.event()
        monkeypatch.setattr(referees, "SAVE", -1.0 if events % 5 == 0 else 30.0)  # league.json now, or not
        kill.at(int(rng.integers(1, 7)) if rng.random() < 0.5 else 10**9)
        try:
            run.turn()
        except Killed:
            kill.never()
            run.office = None
            if rng.random() < 0.1:  # the whole run: what nobody took is lost with the memory
                run.begin()
        kill.never()
    run.turn()
    while run.office and run.office.turn():
        pass
    assert kill.kills > 30
    assert run.sessions > 3
    twin = Twin(tmp_path)
    assert twin.matches == run.reported
    assert len(run.office.state.history) > 5
    twin.agree(run.office.state)


def name_of(league: League, player: int) -> str:
    who = league.identity(player)
    return {AGENT: f"{who.agent}", PAST: f"{who.agent}-{who.version}", BOT: "bot:scripted"}[who.kind]


class Twin:
    """A plain reader of the log: players by their names, one match after the other."""

    def __init__(self, directory: Path):
        self.matches: dict[int, list[tuple]] = {}
        self.games: Counter[tuple[str, str]] = Counter()
        self.points: Counter[tuple[str, str]] = Counter()
        self.elo = dict.fromkeys(["0", "1", "2", "bot:scripted"], 1000.0)
        for row in read_lines(directory / LOG):
            if "post" in row:
                agent, _ = row["post"].split("-")
                self.elo[row["post"]] = self.elo[agent]
            for i in row.get("played", ()):
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
            for other in self.elo if name not in left else row["against"]:
                if other not in left and name not in left:
                    met = row["against"].get(other, [0, 0.0])
                    assert met == [self.games[name, other], self.points[name, other]]
        assert {row["name"] for row in saved["players"]} | left == set(self.elo)
