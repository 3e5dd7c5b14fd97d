from __future__ import annotations

import numpy as np

from polyplay.runs.reporter import Growth


def test_growth_is_since_the_last_reading_of_that_name():
    growth = Growth()
    assert [growth.number("a", total) for total in (3.0, 5.0, 5.0)] == [3.0, 2.0, 0.0]
    assert growth.number("b", 7.0) == 7.0
    assert growth.array("a", np.array([1, 2])).tolist() == [1, 2]
    assert growth.array("a", np.array([1, 5])).tolist() == [0, 3]


def test_a_total_that_fell_has_begun_anew():
    growth = Growth()
    assert [growth.number("a", total) for total in (9.0, 2.0, 3.0)] == [9.0, 0.0, 1.0]
