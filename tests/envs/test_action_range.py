"""What is told of real actions' ranges."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.envs.spaces import ActionRange, Box, Discrete, describe_scaling


def box(low: float, high: float) -> Box:
    return Box((2,), np.full(2, low, np.float32), np.full(2, high, np.float32))


LINES = [
    (box(900, 1100), True, "a policy's −1 … 1 is scaled to [900, 1100]"),
    (box(-1, 1), True, "a policy's numbers are clipped to [-1, 1]"),
    (box(-2, 2), False, "a policy's numbers are clipped to [-2, 2]"),
    (
        box(900, 1100),
        False,
        "clipped to [900, 1100], of which a new policy reaches next to nothing: give --actions scale",
    ),
    (box(-1e-3, 1e-3), False, "of which a new policy reaches next to nothing"),
    (box(-np.inf, np.inf), True, "without bounds: a policy's numbers, at first of mean 0 and deviation 1, are taken"),
    ({"a": Discrete(2), "b": box(0, 4)}, True, "b: a policy's −1 … 1 is scaled to [0, 4]"),
]


@pytest.mark.parametrize(("action", "scaled", "line"), LINES)
def test_a_line_says_what_becomes_of_a_policy_s_numbers(action, scaled, line):
    assert line in describe_scaling(action, scaled)
    assert "\n" not in describe_scaling(action, scaled)


def test_of_others_nothing_is_said():
    assert describe_scaling({"a": Discrete(2)}, True) == describe_scaling(Discrete(3), False) == ""


def test_the_middle_of_large_bounds_is_found_without_overflow():
    found = ActionRange.of(box(-9e29, 9e29))
    assert found.half.tolist() == pytest.approx([9e29, 9e29])
    assert found.middle.tolist() == [0.0, 0.0]
