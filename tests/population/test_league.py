"""The league's memory: what actors and learners hand over arrives once, also where the referee is killed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from polyplay.core.errors import Closed, UserError
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.population.league import NOBODY, PAST, RESULTS, CopyOrder, Identity, League
from polyplay.population.referee import Opponents, referee
from polyplay.workers.role import Role


def test_tables_are_seen_whole_and_in_turn():
    league = League(agents=3, actors=2, teams=(0, 0, 1, 1))
    assert league.table(1)[0] == 0
    assert league.wait(1) is False
    league.seat(1, 1, [2, 0])
    assert league.wait(1) is True
    draw, players = league.table(1)
    league.seat(1, 2, [1, 1])
    assert (draw, players.tolist()) == (1, [2, 0]), "a copy"
    assert league.table(1)[1].tolist() == [1, 1]
    assert league.table(0)[0] == 0


def test_results_carry_the_draw_that_was_acknowledged_and_wrap_around():
    league = League(agents=2, actors=1, teams=(0, 1))
    at = 0
    for draw in range(1, 5):
        league.acknowledge(0, draw)
        league.report(0, np.tile([0, 1], (1500, 1)), np.tile([1.0, np.nan], (1500, 1)))
        found = league.results(0, at, RESULTS)
        assert found.draw.tolist() == [draw] * 1500
        assert (found.players == [0, 1]).all()
        assert (found.outcomes == [1, 0]).all(), "what is no number is 0"
        at += len(found.draw)
        league.take(0, at)
    assert league.lost(0) == 0
    league.report(0, np.tile([0, 1], (RESULTS + 3, 1)), np.ones((RESULTS + 3, 2)))
    assert len(league.results(0, at, RESULTS + 3).draw) == RESULTS
    assert league.lost(0) == 3


def test_a_past_self_is_posted_once_a_place_is_in_reserve():
    league = League(agents=2, actors=1, teams=(0, 1), past=4)
    assert league.post(1, 10) is None
    league.enter(1, 0, 5)
    assert league.post(1, 10) == 5
    assert league.posted(1, 0) == (PAST, 1, 10)
    assert league.posted(0, 0) is None
    assert league.post(1, 11) is None
    league.put(5, Identity(PAST, 1, 10))
    league.enter(1, 1, 3)
    assert league.post(1, 10) == 5
    assert league.post(1, 11) == 3
    assert league.identity(3).kind == NOBODY


def test_every_wait_ends_when_it_is_closed():
    league = League(agents=1, actors=1, teams=(0, 1))
    league.close()
    for call in (lambda: league.table(0), lambda: league.wait(0), lambda: league.post(0, 1), league.wait_for_matches):
        with pytest.raises(Closed):
            call()


def work(league: League, directory: Path) -> None:
    ctx = WorkerContext("referee", 0, 1, 0, 3, Counters(1), RunControl(), directory)
    for _ in referee(ctx, league=league, opponents=Opponents.parse("past:0.5"), matches=20):
        pass


@pytest.mark.parametrize("varied", [(), ("learning_rate",)])
def test_who_holds_it_in_a_diagram(varied):
    league = League(agents=3, actors=2, teams=(0, 1), bots=("scripted",), varied=varied)
    ends = {end for arrow in league.arrows() for end in (*arrow.givers, *arrow.takers)}
    held = {"plays": {"envs": object()}, "rates": {}, "posts": {"learner": True}}
    assert ends == set(held)
    for end, more in held.items():
        role = Role("r", work, 1, "fail", more.get("learner", False), "process", False, None, 1, more.get("envs"))
        role.league = league
        assert role.edges() == {end: league}
    assert league.label() == "3 agents, up to 100 past agents, bots: scripted"
    assert ("who copies whom" in [arrow.label for arrow in league.arrows()]) == bool(varied)


def test_an_order_is_there_until_its_copy_was_made():
    league = League(agents=3, actors=1, teams=(0, 1), varied=("learning_rate", "entropy_cost"))
    assert league.order() is None
    assert np.isnan(league.hyper).all()
    league.ask(CopyOrder(4, agent=2, donor=1), [0.1, 0.2])
    for _ in range(2):
        assert league.order() == (4, 2, 1)
        assert league.answer(4) is None
        league.ask(CopyOrder(4, agent=2, donor=1), [0.1, 0.2])
    league.copied(4, 30, 20)
    assert league.answer(4) == (30, 20)
    assert league.order() is None
    league.close()
    with pytest.raises(Closed):
        league.order()


@pytest.mark.parametrize(
    ("teams", "seated", "said"),
    [
        ([0, 1, 0, 1], 2, "--players 2 given; in seats of teams [0, 1, 0, 1] they meet nobody: name the agents of a"),
        ([0, 0, 0, 0], 2, "they meet nobody: a league needs seats of two teams"),
    ],
)
def test_seats_in_which_nobody_can_be_rated_are_refused(teams, seated, said):
    with pytest.raises(UserError, match=re.escape(said)):
        League(2, 1, teams, seated)
    League(2, 1, [0, 1, 0, 1], 4)
    League(2, 1, [0, 1, 2, 3], 2)
