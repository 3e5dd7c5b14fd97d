"""The tree: every leaf in proportion, none that is 0, sums that do not depend on the past. Random numbers of loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers.sum_tree import SumTree, below, counter_rng, uniforms
from polyplay.core.compiled import bits, compiled

QUICK = settings(max_examples=100, deadline=None)
VALUES = st.one_of(st.just(0.0), st.floats(1e-280, 1e280), st.sampled_from([1.0, 1e-12, 1e12]))


def filled(values: list[float]) -> SumTree:
    tree = SumTree(len(values))
    tree.load(np.array(values))
    return tree


@QUICK
@given(st.lists(VALUES, min_size=1, max_size=700), st.integers(0, 2**32), st.booleans())
def test_no_leaf_of_zero_is_ever_drawn(values, seed, stratified):
    tree = filled(values)
    if not any(values):
        assert tree.total == 0
        return
    draws = counter_rng(seed)
    at = tree.draw(draws, 64, stratified)
    assert (tree.leaves[at] > 0).all()
    edge = np.array([0.0, np.nextafter(tree.total, 0), tree.total, tree.total * 2])  # beyond the end, too
    assert (tree.leaves[tree.find(edge)] > 0).all()


@QUICK
@given(st.lists(st.integers(0, 50), min_size=1, max_size=300))
def test_every_leaf_has_its_share(values):
    """Whole numbers are exact: the leaf of mass x + ½ is the one in whose part of Σ it lies."""
    tree = filled([float(v) for v in values])
    assert tree.total == sum(values)
    if tree.total:
        masses = np.arange(sum(values)) + 0.5
        want = np.searchsorted(np.cumsum(values), masses, side="right")
        assert np.array_equal(tree.find(masses), want)


@QUICK
@given(st.integers(1, 600), st.integers(0, 2**32 - 1))
def test_sums_are_the_same_bits_whatever_was_written_before(n, seed):
    rng = np.random.default_rng(seed)
    tree, last = SumTree(n), np.zeros(n)
    for _ in range(20):
        at = rng.integers(0, n, rng.integers(1, 80))
        values = rng.random(len(at)) ** 8
        tree.put(at, values)
        for i, v in zip(at, values, strict=True):
            last[i] = v
    assert np.array_equal(tree.leaves, last)
    assert np.array_equal(tree.nodes, filled(last.tolist()).nodes)


def test_draws_follow_the_distribution():
    values = [0.0, 1.0, 2.0, 0.0, 4.0, 0.5, 8.0, 0.0, 0.25, 3.0] + [0.0] * 60 + [1.25]
    tree, draws, n = filled(values), counter_rng(3), 200_000
    for stratified in (False, True):
        counts = np.bincount(tree.draw(draws, n, stratified), minlength=len(values))
        expected = n * np.array(values) / sum(values)
        some = expected > 0
        assert counts[~some].sum() == 0
        assert ((counts[some] - expected[some]) ** 2 / expected[some]).sum() < 30  # χ² of 7 degrees
    assert np.abs(counts - expected).max() <= 2  # stratified: all but exact


# Random numbers of compiled loops.


@compiled
def many(rng, n, limit):
    out = np.empty(n, np.uint64)
    for i in range(n):
        out[i] = below(rng, limit)
    return out


def test_numbers_are_splitmix64s():
    """The published sequence for seed 1234567: number n is the hash of seed + n·golden."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    with np.errstate(over="ignore"):
        assert [int(bits(np.uint64(1234567), np.uint64(n))) for n in (1, 2, 3)] == wanted


def test_every_number_below_a_limit_is_as_likely():
    n, limit = 120_000, 6
    found = many(np.array([5, 0], np.uint64), n, np.uint64(limit))
    counts = np.bincount(found.astype(np.int64), minlength=limit)
    assert len(counts) == limit
    assert ((counts - n / limit) ** 2 / (n / limit)).sum() < 20


def test_fractions_go_on_where_they_were():
    rng, again = counter_rng(4), counter_rng(4)
    x = uniforms(rng, 1000)
    assert ((x >= 0) & (x < 1)).all()
    assert abs(x.mean() - 0.5) < 0.05
    assert np.array_equal(x, np.concatenate([uniforms(again, 600), uniforms(again, 400)]))
    assert rng.tolist() == again.tolist() == [rng[0], 1000]
    assert counter_rng(1)[0] != counter_rng(2)[0]
