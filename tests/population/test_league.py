"""The league's memory: what actors and learners hand over arrives once, also where the referee is killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyplay.core.errors import Closed, UserError
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.population.league import League
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
    assert (league.table(1)[1].tolist(), league.table(0)[0]) == ([1, 1], 0)


def test_every_wait_ends_when_it_is_closed():
    league = League(agents=1, actors=1, teams=(0, 1))
    league.close()
    for call in (
        lambda: league.table(0),
        lambda: league.wait(0),
        lambda: league.post(0, 1),
        league.wait_for_matches,
        league.order,
    ):
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
