"""Rewards of the lane game against plain loops; team algebra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.games.moba_views import EVENTS, REWARDS, make_zero_sum, share_in_team, time_weights, weigh_events

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))


def drawn(n: int, team: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (n, 2 * team))


@given(SIZES, st.integers(0, 9000))
def test_events_are_weighed_by_the_table_and_all_but_the_win_by_time(size, age):
    n, team, seed = size
    events = np.random.default_rng(seed).normal(0, 2, (n, 2 * team, len(EVENTS)))
    found = weigh_events(events, np.repeat(time_weights(9000)[age], n))
    for m, p in np.ndindex(n, 2 * team):
        want = 0.0
        for name, number in zip(EVENTS, events[m, p].tolist(), strict=True):
            want += REWARDS[name] * number * (1.0 if name == "win" else 0.6 ** (age / 30 / 600))
        assert found[m, p] == pytest.approx(want, abs=1e-9)


@given(SIZES)
def test_zero_sum_takes_off_the_mean_of_the_enemies(size):
    reward = drawn(*size)
    n, team = len(reward), size[1]
    found = make_zero_sum(reward)
    for m, p in np.ndindex(n, 2 * team):
        enemies = [reward[m, q] for q in range(2 * team) if (q < team) != (p < team)]
        assert found[m, p] == pytest.approx(reward[m, p] - sum(enemies) / team)
    np.testing.assert_allclose(found.sum(1), 0.0, atol=1e-12)


@given(SIZES, st.floats(0, 1))
def test_team_spirit_mixes_in_the_mean_of_the_team_and_keeps_the_sum(size, spirit):
    reward = drawn(*size)
    n, team = len(reward), size[1]
    found = share_in_team(reward, spirit)
    for m, p in np.ndindex(n, 2 * team):
        mates = [reward[m, q] for q in range(2 * team) if (q < team) == (p < team)]
        assert found[m, p] == pytest.approx((1 - spirit) * reward[m, p] + spirit * sum(mates) / team)
    np.testing.assert_allclose(found.reshape(n, 2, team).sum(2), reward.reshape(n, 2, team).sum(2), atol=1e-9)
    np.testing.assert_allclose(share_in_team(make_zero_sum(reward), spirit).sum(1), 0.0, atol=1e-12)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"events \[2, 4, 3\], weight \[2\]: want \[n, P, 11\], \[n\]"):
        weigh_events(np.zeros((2, 4, 3)), np.ones(2))
    for call in (make_zero_sum, lambda reward: share_in_team(reward, 0.5)):
        with pytest.raises(ValueError, match=r"reward \[2, 3\]: want \[n, P\] of two teams"):
            call(np.zeros((2, 3)))
