"""The league's memory: what actors and learners hand over arrives once, also where the referee is killed."""

from __future__ import annotations

import re

import pytest

from polyplay.buffers.league import League
from polyplay.core.errors import Closed, UserError


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


@pytest.mark.parametrize(
    ("teams", "seated", "said"),
    [
        ([0, 1, 0, 1], 2, "--players 2: no player meets another in seats of teams [0, 1, 0, 1]; list the agents of a"),
        ([0, 0, 0, 0], 2, "[0, 0, 0, 0]; a league needs seats of two teams"),
    ],
)
def test_seats_in_which_nobody_can_be_rated_are_refused(teams, seated, said):
    with pytest.raises(UserError, match=re.escape(said)):
        League(2, 1, teams, seated)
    League(2, 1, [0, 1, 0, 1], 4)
    League(2, 1, [0, 1, 2, 3], 2)
