from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError
from polyplay.envs import Envs, build
from polyplay.envs.base_pool import HOUR, READY, STEPPING, STEPS, BasePool, Faults
from polyplay.envs.shared_rows import BROKEN, FAILED, NOTE, ROUNDED, Seating, SharedRows, check_seats
from tests.envs import faulty


class Waiting(BasePool):
    """Its lanes step until a test says that they have rows."""

    def __init__(self, envs: Envs):
        super().__init__(envs)
        self._asynchronous = True
        self._where[:] = STEPPING

    def _step(self, numbers, action):
        pass

    def arrive(self, *lanes: int) -> None:
        self._where[list(lanes)] = READY

    def take(self):
        """The lanes that come, None: none."""
        try:
            return self.recv()[0]
        except RuntimeError:
            return None

    def answer(self, lanes) -> None:
        self.send(lanes, np.zeros(len(np.arange(self.lanes)[lanes]), np.int64))


def waiting(lanes: int, groups: int = 1, at_once: int = 0) -> Waiting:
    return Waiting(Envs("toy:catch", lanes, groups, at_once))


def test_groups_in_turn_but_not_behind_a_held_one():
    pool = waiting(4, 2)
    pool.arrive(2, 3)
    assert pool.take() is None, "group 0 is due, so that runs repeat"
    pool.arrive(0, 1)
    assert pool.take() == slice(0, 2)
    assert pool.take() == slice(2, 4)
    pool.answer(slice(2, 4))
    pool.arrive(3, 2)
    assert pool.take() == slice(2, 4)


def test_only_held_groups_can_be_answered():
    pool = waiting(4, 2)
    pool.arrive(0, 1)
    pool.take()
    for wrong in (slice(0, 1), slice(1, 3), slice(2, 4), np.array([0]), np.array([], int)):
        with pytest.raises(ValueError, match="answers"):
            pool.answer(wrong)
    pool.answer(np.array([0, 1]))


def test_whoever_is_ready_comes_in_turn():
    pool = waiting(6, at_once=2)
    pool.arrive(1, 4, 5)
    assert pool.take().tolist() == [1, 4]
    pool.answer(np.array([1, 4]))
    pool.arrive(1, 0)
    assert pool.ready == 3
    assert pool.take().tolist() == [5, 0], "not behind lane 1, which came before"
    assert pool.take().tolist() == [1]
    assert pool.take() is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 2, 6]), st.booleans())
def test_no_lane_is_lost_or_given_twice(seed, at_once, reload):
    """Random arrivals, answers in random parts (where the rule allows), saving and loading in between."""
    rng, lanes = np.random.default_rng(seed), 6
    pool = waiting(lanes, 1 if at_once else 3, at_once)
    out, held, given_away = set(range(lanes)), [], 0
    for _ in range(60):
        if reload:
            saved, pool = pool._arrays, waiting(lanes, pool.groups, at_once)
            tree.write(pool._arrays, ..., saved)
        come = [i for i in sorted(out) if rng.random() < 0.5]
        pool.arrive(*come)
        out -= set(come)
        got = pool.take()
        if got is not None:
            numbers = np.arange(lanes)[got].tolist()
            assert not set(numbers) & (out | {i for h in held for i in h})
            held.append(numbers)
            given_away += 1
        if held and rng.random() < 0.7:
            some = held.pop(int(rng.integers(len(held))))
            pool.answer(np.array(some))
            out |= set(some)
    assert given_away > 5


def board(lanes=4) -> SharedRows:
    return SharedRows(build.describe(faulty.Obedient, {}), lanes, 1)


def test_faults_are_forgotten_after_so_many_steps_and_after_an_hour():
    now = [0.0]
    faults = Faults(board(), limit=2, clock=lambda: now[0])
    for _ in range(50):  # a rare one ends no run, however long that is
        faults.steps += STEPS // 2 + 1
        faults.of_process("gone", [0])
    now[0] += HOUR + 1
    for _ in range(50):
        now[0] += HOUR / 2 + 1
        faults.of_process("gone", [0])
    faults.steps += 7
    with pytest.raises(EnvFailure, match=r"failed 3 times within 7 steps, more than --max-restarts 2"):
        faults.of_process("gone", [0])


def test_a_remark_is_no_fault_and_is_made_once():
    b = board()
    faults = Faults(b, limit=0)
    b.note(2, ROUNDED, "almost")
    assert not faults.of_lane(2)
    assert not faults.of_lane(2)
    assert (faults.remarks, faults.restarts, b.faults.tolist()) == (["almost"], 0, [0] * 4)


def test_notes_are_cut_to_their_place():
    b = board()
    b.note(0, BROKEN, "ä" * NOTE)
    kind, text = b.read(0)
    assert (kind, 0 < len(text) < NOTE) == (BROKEN, True)
    b.note(0, FAILED, "short")
    assert b.read(0) == (FAILED, "short")


# Who sits where: every lane has one seat, agents share matches as said, draws repeat themselves.


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
        share = max(seats // agents, 1)
        for row in of:
            counts = np.bincount(row, minlength=agents)
            assert set(counts[counts > 0]) == {share}
            assert (row.reshape(-1, share) == row[::share, None]).all(), "next to each other"
        seating.draw(np.arange(0, seating.matches, 2))


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
    saved = tree.map(np.copy, one.arrays)
    one.draw(np.arange(16))
    resumed = Seating(32, 2, 2, 8, 0)
    tree.write(resumed.arrays, ..., saved)
    resumed.draw(np.arange(16))
    assert (one.lanes == resumed.lanes).all()
    assert (one.seat == resumed.seat).all()


def test_lanes_that_make_no_matches_are_refused():
    for lanes, seats, agents, says in (
        (7, 2, 1, "--lanes 7: must be a multiple of the 2 seats of a match"),
        (8, 4, 3, "--players 3 given; allowed: divisors and multiples of the 4 seats of a match"),
        (6, 2, 4, "--lanes 6 given; allowed: multiples of --players 4"),
        (4, 8, 2, "--lanes 4: must be a multiple of the 8 seats of a match"),
    ):
        with pytest.raises(UserError, match=says):
            check_seats(lanes, seats, agents)
