"""The referee: ratings, past selves, tables; what comes too fast or is wrong."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from polyplay.core.errors import Closed, UserError
from polyplay.core.files import read_lines
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.population.league import AGENT, BOT, NOBODY, PAST, RESULTS, League
from polyplay.population.league_log import LOG, SUMMARY
from polyplay.population.ratings import Elo, TrueSkill
from polyplay.population.referee import Opponents, referee
from tests.population.leagues import employ, play, small


def test_results_are_rated_in_their_order(tmp_path):
    league = small()
    office = employ(tmp_path, league)
    assert office.turn() is False
    assert league.table(0)[1].tolist() == [1, 0], "actor 0's first table begins with agent 1"
    play(league, 0, [(1, 0), (0, 1), (0.5, 0.5), (1, 0)])
    assert office.turn() is True
    elo, skill = [1000.0, 1000.0], [(25.0, 25 / 3)] * 2
    for points in (0.0, 1.0, 0.5, 0.0):  # of agent 0
        change = Elo().change(*elo, points)
        elo = [elo[0] + change, elo[1] - change]
        moving = [(mu, float(np.hypot(sigma, 25 / 300))) for mu, sigma in skill]
        (first,), (second,) = TrueSkill().rate([moving[0]], [moving[1]], points)
        skill = [first, second]
    assert league.elo[:2].tolist() == pytest.approx(elo)
    assert np.stack([league.mu[:2], league.sigma[:2]], 1) == pytest.approx(np.array(skill))
    assert league.games[:2, :2].tolist() == [[0, 4], [4, 0]]
    assert league.points[:2, :2].tolist() == [[0, 1.5], [2.5, 0]]


def test_a_table_is_drawn_anew_once_it_was_acknowledged_and_has_played_enough(tmp_path):
    league = small(agents=3)
    office = employ(tmp_path, league, matches=3)
    office.turn()
    assert [league.table(a)[0] for a in range(2)] == [1, 1]
    assert league.acknowledged(0) == 0
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


def test_every_agent_comes_first_as_often(tmp_path):
    league = small(agents=3, actors=3)
    office = employ(tmp_path, league, rule="elo", matches=1)
    for _ in range(12):
        office.turn()
        for actor in range(3):
            play(league, actor, [(1, 0)])
    tables = [row["table"] for row in read_lines(tmp_path / LOG) if "table" in row]
    counts = {name: sum(name in table for table in tables) for name in "012"}
    assert len(tables) == 36
    assert sum(counts.values()) == 72
    assert min(counts.values()) >= 12


def test_a_past_self_is_as_good_as_its_agent_was_and_loses_quality_where_it_is_beaten(tmp_path):
    league = small(agents=1, actors=1)
    office = employ(tmp_path, league, rule="past:1", matches=2)
    office.turn()
    assert league.table(0)[1].tolist() == [0, 0]
    play(league, 0, [(1, 0)] * 2)  # against itself: not rated
    league.elo[0] = 1100
    player = league.post(0, 500)
    assert player == 1
    assert league.post(0, 600) is None, "the one before has not been entered"
    office.turn()
    assert league.games.sum() == 0
    assert league.post(0, 500) == player, "there is one already"
    assert league.identity(player) == (PAST, 0, 500)
    assert league.elo[player] == 1100
    assert league.table(0)[1].tolist() == [0, player]
    play(league, 0, [(0, 1), (1, 0)])
    office.turn()
    assert league.quality[player] == pytest.approx(-0.01), "one of one: η"
    assert league.points[0, player] == 1
    other = league.post(0, 600)
    office.turn()
    assert league.quality[other] == league.quality[player], "as good as the best"


def test_results_of_the_draw_before_cost_what_they_did_then(tmp_path):
    league = small(agents=1, actors=1)
    office = employ(tmp_path, league, rule="past:1", matches=1)
    league.post(0, 1)
    office.turn()
    assert league.table(0)[1].tolist() == [0, 1]
    play(league, 0, [(0, 1)])
    league.post(0, 2)
    office.turn()
    assert league.table(0)[0] == 2
    league.report(0, np.array([[1, 0]]), np.array([[0, 1]]))
    office.turn()
    assert league.quality[1] == pytest.approx(-0.01)


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
    assert history[0]["name"] == f"0-{left}"
    assert history[0]["against"] == ({"0": [7, 3.0]} if left == 2 else {})
    assert [row["leave"] for row in read_lines(tmp_path / LOG) if "leave" in row][:1] == [f"0-{left}"]


def test_a_past_self_that_sits_somewhere_stays(tmp_path):
    league = small(agents=1, actors=1, past=1)
    office = employ(tmp_path, league, rule="past:1", matches=1)
    league.post(0, 1)
    office.turn()
    assert league.table(0)[1].tolist() == [0, 1]
    assert league.post(0, 2) == 2
    office.turn()
    assert league.post(0, 3) is None, "no place is free"
    play(league, 0, [(1, 0)] * 300)  # the worse one is drawn hardly any more
    office.turn()
    office.turn()
    assert league.table(0)[1].tolist() == [0, 2]
    assert league.post(0, 3) is None, "the actor still plays with the first"
    league.acknowledge(0, 2)
    office.turn()
    assert league.identity(1).kind == NOBODY
    assert league.post(0, 3) == 1


def test_a_referee_that_was_killed_before_it_said_so_enters_a_past_self_once(tmp_path, monkeypatch):
    league = small()
    office = employ(tmp_path, league)
    player = league.post(1, 7)
    for name in ("take", "enter", "put", "seat"):  # no memory is written: as if it were killed after the lines
        monkeypatch.setattr(League, name, lambda *args: None)
    office.turn()
    monkeypatch.undo()
    assert league.post(1, 8) is None
    office = employ(tmp_path, league)
    office.turn()
    assert league.identity(player) == (PAST, 1, 7)
    assert league.post(1, 8) not in (None, player)
    office.turn()
    real = league._agents.copy()
    league.post(0, 9)
    office.turn()
    league._agents[:, 0] = real[:, 0]  # killed between the two cells: a place is in reserve, but the learner waits
    assert league.post(0, 10) is None
    employ(tmp_path, league)
    assert league.post(0, 10) is not None
    assert [row["post"] for row in read_lines(tmp_path / LOG) if "post" in row] == ["1-7", "1-8", "0-9"]


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
    assert league.games[0, 3] == 1
    assert league.games[1, 3] == 2
    five = small(teams=(0,) * 5 + (1,) * 5)
    assert five.blocks == 2
    assert five.sides == [[0], [1]]


def test_each_against_each_other_where_there_are_more_teams(tmp_path):
    league = small(agents=3, actors=1, teams=(0, 1, 2), seated=3)
    office = employ(tmp_path, league)
    office.turn()
    play(league, 0, [(3.5, 2, 2)], [2, 0, 1])
    office.turn()
    assert league.points[:3, :3].tolist() == [[0, 0.5, 0], [0.5, 0, 0], [1, 1, 0]]


def test_bots_play_where_the_rule_has_anybody(tmp_path):
    league = small(agents=1, actors=1, past=2, bots=("scripted",))
    office = employ(tmp_path, league, rule="uniform")
    office.turn()
    bot = league.players - 1
    assert league.identity(bot) == (BOT, 0, 0)
    assert league.identity(0) == (AGENT, 0, 0)
    assert league.table(0)[1].tolist() == [0, bot]
    play(league, 0, [(1, 0)])
    office.turn()
    assert '"bot:scripted"' in (tmp_path / LOG).read_text()


# ---------------------------------------------------------------------------------------------------- too fast, wrong


def test_what_comes_too_fast_is_counted_and_said(tmp_path):
    heard: list[tuple[str, str]] = []
    league = small()
    office = employ(tmp_path, league, heard=heard)
    office.turn()
    play(league, 1, [(1, 0)] * (RESULTS + 7))
    while office.turn():
        pass
    assert league.games.sum() == 2 * RESULTS
    assert [row["lost"] for row in read_lines(tmp_path / LOG) if "lost" in row] == [7]
    assert [text for _, text in heard] == [f"actor 1: 7 matches came too fast to be rated; {LOG} counts them"]


def test_a_player_who_is_not_there_is_never_written(tmp_path):
    league = small()
    office = employ(tmp_path, league)
    office.turn()
    play(league, 0, [(1, 0)], [0, 3])
    with pytest.raises(RuntimeError, match="actor 0 reported a match of players"):
        office.turn()
    assert "of" not in (tmp_path / LOG).read_text().replace("of_", "")


def test_while_the_disk_is_full_nothing_is_rated_and_nothing_lost(tmp_path, monkeypatch):
    heard: list[tuple[str, str]] = []
    league = small()
    office = employ(tmp_path, league, heard=heard)
    office.turn()
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
    turns = referee(ctx, league=league, opponents=Opponents.parse("elo"), matches=5)
    next(turns)
    play(league, 0, [(1, 0)] * 600)
    next(turns)
    league.close()
    with pytest.raises(Closed):
        for _ in turns:
            pass
    with pytest.raises(Closed):
        league.table(0)
    assert league.games[0, 1] == 600
    saved = json.loads((tmp_path / SUMMARY).read_text())
    assert saved["players"][0]["against"] == {"1": [600, 0.0]}


def test_the_worker_sleeps_while_there_is_nothing_to_do(tmp_path):
    league = small()
    league.patience = 0.1
    ctx = WorkerContext("referee", 0, 1, 0, 3, Counters(1), RunControl(), tmp_path)
    turns, until = referee(ctx, league=league, opponents=Opponents.parse("past:1"), matches=5), time.monotonic() + 0.55
    next(turns)
    n = 0
    while time.monotonic() < until:
        next(turns)
        n += 1
    assert n <= 7
