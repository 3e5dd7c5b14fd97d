"""Who sits where: every lane has one seat, agents share matches as said, draws repeat themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import EnvSpec
from polyplay.envs.base_pool import BROKEN, FAILED, NOTE, Seating, SharedRows, check_seats
from polyplay.envs.spaces import Discrete


def test_notes_are_cut_to_their_place():
    board = SharedRows(EnvSpec(Field((1,), "float32"), Discrete(3)), 2, 1)
    board.note(0, BROKEN, "ä" * NOTE)
    kind, text = board.read(0)
    assert kind == BROKEN
    assert 0 < len(text) < NOTE
    board.note(0, FAILED, "short")
    assert board.read(0) == (FAILED, "short")


@st.composite
def tables(draw):
    few, times = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    seats, agents = draw(st.sampled_from([(few * times, few), (few, few * times), (few, 1)]))
    return draw(st.integers(1, 4)) * seats * agents, seats, agents


@given(tables(), st.integers(0, 2**40), st.integers(0, 1000))
def test_every_lane_has_one_seat_and_every_agent_its_share_of_each_match(table, seed, lane):
    lanes, seats, agents = table
    seating = Seating(lanes, seats, agents, seed, lane)
    for _ in range(3):
        assert sorted(seating.lanes.ravel()) == list(range(lanes))
        assert (seating.lanes[seating.match, seating.seat] == np.arange(lanes)).all()
        of = seating.lanes // (lanes // agents)  # the agent of each seat
        for row in of:
            counts = np.bincount(row, minlength=agents)
            assert set(counts[counts > 0]) == {max(seats // agents, 1)}
        seating.draw(np.arange(0, seating.matches, 2))


def test_an_agent_with_several_seats_has_seats_next_to_each_other():
    seating = Seating(64, 4, 2)
    for _ in range(5):
        seating.draw(np.arange(16))
        agents = seating.lanes // 32
        assert (agents[:, 0] == agents[:, 1]).all()
        assert (agents[:, 2] == agents[:, 3]).all()


def test_draws_are_even():
    """Of 4,000 matches each of 4 agents has each seat in a quarter."""
    seating = Seating(4000, 4, 4, seed=1)
    seating.draw(np.arange(1000))
    first = seating.lanes.copy()
    counts = np.zeros((4, 4))
    for _ in range(4):
        counts += [np.bincount(seating.lanes[:, seat] // 1000, minlength=4) for seat in range(4)]
        seating.draw(np.arange(1000))
    assert (np.abs(counts / 4000 - 0.25) < 0.03).all()
    assert (seating.lanes != first).any()


def test_draws_follow_from_seed_and_lane_and_go_on_where_they_were():
    one, same, later, other = (Seating(32, 2, 2, seed, lane) for seed, lane in ((7, 0), (7, 0), (7, 32), (8, 0)))
    for seating in (one, same, later, other):
        seating.draw(np.arange(16))
    assert (one.lanes == same.lanes).all()
    assert (one.lanes != later.lanes).any()
    assert (one.lanes != other.lanes).any()
    saved = one.state()
    one.draw(np.arange(16))
    resumed = Seating(32, 2, 2, 8, 0)
    resumed.load(saved)
    resumed.draw(np.arange(16))
    assert (one.lanes == resumed.lanes).all()
    assert (one.seat == resumed.seat).all()


@pytest.mark.parametrize(
    ("lanes", "seats", "agents", "says"),
    [
        (7, 2, 1, "--lanes 7 is no multiple of the 2 seats of a match: make it one"),
        (8, 4, 3, "--players 3 given; allowed: divisors and multiples of the 4 seats of a match"),
        (6, 2, 4, "--lanes 6 given; allowed: multiples of --players 4"),
        (4, 8, 2, "--lanes 4 is no multiple of the 8 seats of a match"),
    ],
)
def test_lanes_that_make_no_matches_are_refused(lanes, seats, agents, says):
    with pytest.raises(UserError) as caught:
        check_seats(lanes, seats, agents)
    assert says in str(caught.value)
