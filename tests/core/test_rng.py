"""Noise from a counter: the same key, the same number, whatever the grouping."""

from __future__ import annotations

import numpy as np

from polyplay.core.numbers import LaneUniforms, uniform


def test_a_number_depends_on_its_key_alone():
    whole = uniform(7, np.arange(10), np.arange(10) + 100, 3)
    part = uniform(7, np.array([4, 9]), np.array([104, 109]), 3)
    assert whole.dtype == np.float32
    assert np.array_equal(whole[[4, 9]], part)
    assert not np.array_equal(whole, uniform(8, np.arange(10), np.arange(10) + 100, 3))


def test_numbers_are_uniform_and_unrelated():
    x = uniform(0, np.arange(64)[None], np.arange(400)[:, None], 2).astype(np.float64)
    assert x.min() > 0.0
    assert x.max() < 1.0
    counts = np.histogram(x, 20, (0, 1))[0]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 45  # χ² of 19 degrees, p ≈ 0.001
    for a, b in ((x[:-1, :, 0], x[1:, :, 0]), (x[:, :-1, 0], x[:, 1:, 0]), (x[..., 0], x[..., 1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_no_number_is_ever_0_or_1():
    bits = np.array([0, 2**23 - 1], np.float32)
    ends = (bits + np.float32(0.5)) * np.float32(2.0**-23)
    assert 0.0 < ends[0] < ends[1] < 1.0


def test_rows_of_fixed_lanes_are_the_same_numbers():
    lanes = np.arange(5, 13)
    noise = LaneUniforms(3, lanes, 2)
    for step in (0, 1, 63, 64, 65, 63, 200, 10_000):
        assert np.array_equal(noise.row(step), uniform(3, lanes, np.full(8, step), 2))
