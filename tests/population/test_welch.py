"""Welch's t-test against sums and an integral, SciPy's answers, and by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.population.rules import Welch, welch_test


def density(x: float, freedom: float) -> float:
    front = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(math.pi * freedom)
    return front * (1 + x * x / freedom) ** (-(freedom + 1) / 2)


def welch(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Sums as in a textbook, and Student's density integrated by Simpson's rule."""
    means = [math.fsum(x) / len(x) for x in (a, b)]
    errors = [math.fsum((v - m) ** 2 for v in x) / (len(x) - 1) / len(x) for x, m in zip((a, b), means, strict=True)]
    t = (means[0] - means[1]) / math.sqrt(sum(errors))
    freedom = sum(errors) ** 2 / sum(e**2 / (len(x) - 1) for x, e in zip((a, b), errors, strict=True))
    n, h = 2_000, abs(t) / 2_000
    inner = sum((4 if k % 2 else 2) * density(k * h, freedom) for k in range(1, n))
    return t, freedom, 1 - 2 * h / 3 * (density(0, freedom) + inner + density(t, freedom))


GAMES = st.lists(st.integers(-20, 20).map(float), min_size=2, max_size=10)


@given(GAMES, GAMES)
@settings(deadline=None)
def test_welch_is_the_twin_s(a, b):
    if len(set(a)) == len(set(b)) == 1:
        return
    t, freedom, p = welch(a, b)
    found = welch_test(a, b)
    assert (found.t, found.freedom) == (pytest.approx(t, rel=1e-9, abs=1e-12), pytest.approx(freedom, rel=1e-9))
    assert found.p == pytest.approx(p, abs=1e-4 if abs(t) > 30 else 1e-9)
    assert welch_test(b, a).t == pytest.approx(-found.t)
    assert 0 <= found.p <= 1


# scipy 1.17.1: ttest_ind(a, b, equal_var=False), its statistic, df and pvalue
SCIPY = [
    ([-1.179, -1.148], [0.669, -2.294], -0.23690907265721947, 1.0002189223367843, 0.8519027395773883),
    (
        [1.697, 1.058, 0.59, 3.189, 1.058, 0.413, 1.16, 0.477, 0.615, 0.65],
        [2.025, 0.023, 0.176, 0.674, 2.017, -0.224, -0.624, 2.475, -1.46, -0.367],
        1.265473943900443,
        15.337088752597495,
        0.22458932284209113,
    ),
    (
        [4.904, 4.671, 5.212, 4.966, 4.998, 3.069, 6.749, 5.199, 4.123, 5.98],
        [0.154, 0.009, 0.524, 1.13, 0.277, 0.793, 1.079, -0.51, -0.262, 0.388],
        13.028908769105206,
        13.994615648865233,
        3.24631278379691e-09,
    ),
    (
        [-3.708, -2.267, -0.707, -0.957, -1.421, -3.895, 0.351, -1.449, -1.233, -1.505],
        [-6.865, -5.739, -4.866, 7.672, -3.324, -0.969, -1.019],
        0.2535803455572809,
        6.603444013937175,
        0.8075324980047751,
    ),
    (
        [-0.429, -0.499, -0.732],
        [-0.126, -0.314, 0.017, 0.027, 0.123, -0.01, -0.061, 0.041, -0.155, -0.104],
        -4.986962584577289,
        2.7854990697102666,
        0.018454592523795523,
    ),
    (
        [18.994, 20.288, 22.091, 20.763, 21.142, 20.238, 20.279, 19.551, 19.719, 17.57],
        [-36.075, -38.61],
        43.29555870745567,
        1.196286188083162,
        0.007377268639382546,
    ),
]


@pytest.mark.parametrize(("a", "b", "t", "freedom", "p"), SCIPY)
def test_welch_is_scipy_s(a, b, t, freedom, p):
    found = welch_test(a, b)
    assert (found.t, found.freedom, found.p) == tuple(pytest.approx(x, rel=1e-9) for x in (t, freedom, p))


def test_samples_that_do_not_vary():
    assert welch_test([0.1] * 10, [0.1] * 9) == Welch(0.0, 17.0, 1.0)
    assert welch_test([2.0] * 10, [1.0] * 5) == Welch(math.inf, 13.0, 0.0)
    assert welch_test([1.0] * 2, [2.0] * 2) == Welch(-math.inf, 2.0, 0.0)
    one = welch_test([1.0, 2.0, 3.0], [5.0] * 4)  # one of them varies: its degrees of freedom
    assert one.freedom == pytest.approx(2.0)
    assert one.p == pytest.approx(1 - 3 * math.sqrt(3) / math.sqrt(2 + 27))  # t = -3 √3; for ν = 2 1 − t / √(2 + t²)
