"""Uniform actions are uniform, legal, and the same for the same uniforms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.core.errors import UserError
from polyplay.core.numbers import uniform
from polyplay.envs import Box, Discrete, MultiBinary, MultiDiscrete, spaces
from polyplay.envs.spaces import check_action

UNIT = Box((2,), np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
SPACES = {
    "discrete": Discrete(5),
    "several": MultiDiscrete((2, 2), (3, 2, 4, 1)),
    "binary": MultiBinary((3,)),
    "box": UNIT,
    "dict": {"pick": Discrete(3), "aim": UNIT, "deep": {"on": MultiBinary((2,))}},
}


def uniforms(space, n, seed=0):
    return uniform(seed, np.arange(n), np.zeros(n), spaces.action_width(space))


@pytest.mark.parametrize("name", SPACES)
def test_what_is_drawn_are_actions_of_the_space(name):
    space = SPACES[name]
    made = spaces.random_actions(space, uniforms(space, 50))
    checked = check_action(space, made, 50)  # raises ValueError
    assert np.array_equal(checked["pick"], made["pick"]) if name == "dict" else np.array_equal(checked, made)


def test_every_value_has_the_same_chance():
    counts = np.bincount(spaces.random_actions(Discrete(5), uniforms(Discrete(5), 20_000)), minlength=5)
    assert np.abs(counts / 20_000 - 0.2).max() < 0.01
    real = spaces.random_actions(UNIT, uniforms(UNIT, 20_000))
    assert np.allclose(real.mean(0), [0.0, 2.0], atol=0.05)
    assert (real >= UNIT.low).all()
    assert (real <= UNIT.high).all()


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.floats(0.001, 0.999))
    )
)
def test_a_masked_draw_is_the_legal_value_that_a_plain_count_finds(drawn):
    legal, u = drawn
    allowed = [i for i, yes in enumerate(legal) if yes]
    if not allowed:
        return
    given_ = np.array([[u]], np.float32)
    plain = allowed[int(float(given_[0, 0]) * len(allowed))]
    assert spaces.random_actions(Discrete(len(legal)), given_, np.array([legal])).tolist() == [plain]


def test_masks_of_several_numbers_are_read_number_by_number():
    space = MultiDiscrete((2,), (2, 3))
    mask = np.array([[False, True, True, False, True]])
    seen = {tuple(spaces.random_actions(space, uniforms(space, 1, s), mask)[0].tolist()) for s in range(64)}
    assert seen == {(1, 0), (1, 2)}


def test_real_numbers_without_bounds_are_refused():
    free = Box((1,), np.array([-np.inf], np.float32), np.array([np.inf], np.float32))
    with pytest.raises(UserError, match=r"--epsilon: actions of \[1\] real, .* have no uniform draw; allowed here: 0"):
        spaces.action_width({"x": free})


def test_mixed_takes_the_other_where_it_says():
    own, other = {"a": np.zeros((3, 2)), "b": np.zeros(3, np.int64)}, {"a": np.ones((3, 2)), "b": np.ones(3, np.int64)}
    made = spaces.mix_random(own, other, np.array([True, False, True]))
    assert made["a"].tolist() == [[1, 1], [0, 0], [1, 1]]
    assert made["b"].tolist() == [1, 0, 1]
    assert made["b"].dtype == np.int64
