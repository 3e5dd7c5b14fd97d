"""Which numbers of a tensor are the old ones, where another network has more of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.nets.layers import AxisSegment, match_axes, observed_axis

SHAPES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=0, max_size=3)


def numbered(name: str, shape: tuple[int, ...]) -> list[tuple]:
    """A name for each number, in the order in which they are flattened."""
    return [(name, *at) for at in np.ndindex(*shape)]


@settings(deadline=None, max_examples=50)
@given(st.lists(SHAPES, min_size=1, max_size=3), st.permutations(range(3)))
def test_every_old_number_stands_where_it_has_its_name(segments: list, order: list[int]):
    before = [AxisSegment(f"s{i}", tuple(n for n, _ in dims)) for i, dims in enumerate(segments)]
    after = [AxisSegment(f"s{i}", tuple(n + more for n, more in dims), silent=True) for i, dims in enumerate(segments)]
    after = [after[i] for i in order if i < len(after)]
    match = match_axes(tuple(before), tuple(after))
    old = [x for s in before for x in numbered(s.name, s.shape)]
    new = [x for s in after for x in numbered(s.name, s.shape)]
    assert [old[i] for i in match.old] == [new[i] for i in match.new]
    assert sorted(match.old) == list(range(len(old)))
    assert sorted([*match.new, *match.silent]) == list(range(len(new)))


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ([AxisSegment("a", (2,)), AxisSegment("b", (4,))], "the a would go from [3] to [2]"),
        ([AxisSegment("a", (3, 1)), AxisSegment("b", (4,))], "the a would go from [3] to [3, 1]"),
        ([AxisSegment("a", (3,)), AxisSegment("b", (5,))], "the b would go from [4] to [5]"),
        ([AxisSegment("b", (4,))], "the a would be missing"),
    ],
)
def test_what_would_be_lost_is_refused(after: list[AxisSegment], says: str):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        match_axes((AxisSegment("a", (3,)), AxisSegment("b", (4,), fixed=True)), tuple(after))


def test_a_part_may_be_missing_as_a_whole():
    before = AxisSegment("x[0]", (2,), part="x"), AxisSegment("x[1]", (3,), part="x"), AxisSegment("y", (1,), part="y")
    match = match_axes(before, (AxisSegment("y", (2,), part="y"),))
    assert (match.old.tolist(), match.new.tolist(), match.missing) == ([5], [0], ("x",))
    with pytest.raises(ValueError, match=r"the x\[1\] would be missing"):
        match_axes(before, (AxisSegment("x[0]", (2,), part="x"), AxisSegment("y", (2,), part="y")))


def test_observations_are_named_by_their_leaves_and_classes():
    obs = {"a": Field((2, 3), "float32"), "b": Field((), "int64"), "c": Field((2,), "int64")}
    spec = EnvSpec(obs, Discrete(2), classes={"b": 4, "c": (2, 5)})
    found = {s.name: s.shape for s in observed_axis(spec)}
    assert found == {"observation a": (2, 3), "observation b": (4,), "observation c[0]": (2,), "observation c[1]": (5,)}
    assert [s.size for s in observed_axis(spec, one_hot=False, without=("a",))] == [1, 2]
