"""polyplay/learning/value_losses.py against
the worked numbers of its sources, slow plain twins, and what must always hold.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyplay.core import numbers
from polyplay.learning import value_losses
from polyplay.nets import q_heads
from tests import twins

QUICK = settings(max_examples=80, deadline=None)
NAN = float("nan")


def t(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ------------------------------------------------------------------------------------------------ scalar


def test_the_best_value_ahead_and_for_double_the_value_of_the_others_best() -> None:
    target, online = torch.tensor([[1.0, 5.0, 3.0]]), torch.tensor([[0.0, -1.0, 2.0]])
    assert value_losses.scalar(t(0.5), t(0.9), target).tolist() == pytest.approx([0.5 + 0.9 * 5.0])
    assert value_losses.scalar(t(0.5), t(0.9), target, online).tolist() == pytest.approx([0.5 + 0.9 * 3.0])
    mask = torch.tensor([[True, False, False]])
    for judge in (None, online):
        assert value_losses.scalar(t(0.5), t(0.9), target, judge, mask).tolist() == pytest.approx([0.5 + 0.9 * 1.0])


@QUICK
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_scalar_targets_equal_the_plain_twin(lanes: int, n: int, seed: int, double: bool, masked: bool) -> None:
    rng = np.random.default_rng(seed)
    ret, q, other = rng.normal(size=lanes), rng.normal(size=(lanes, n)), rng.normal(size=(lanes, n))
    discount = rng.choice([0.0, 0.99, 0.97], size=lanes)
    mask = rng.random((lanes, n)) < 0.5
    mask[np.arange(lanes), rng.integers(n, size=lanes)] = True
    expected = []
    for b in range(lanes):
        judge = other[b] if double else q[b]
        legal = [a for a in range(n) if mask[b, a] or not masked]
        best = max(legal, key=lambda a: judge[a])
        expected.append(ret[b] + discount[b] * q[b, best])
    online = torch.tensor(other) if double else None
    legal = torch.tensor(mask) if masked else None
    made = value_losses.scalar(torch.tensor(ret), torch.tensor(discount), torch.tensor(q), online, legal)
    assert made.tolist() == pytest.approx(expected, rel=1e-12)


@QUICK
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_double_of_equal_networks_is_the_maximum(lanes: int, n: int, seed: int) -> None:
    q = randn(lanes, n, seed=seed)
    ret, discount = randn(lanes, seed=seed + 1), torch.full((lanes,), 0.9)
    assert torch.equal(value_losses.scalar(ret, discount, q, q), value_losses.scalar(ret, discount, q))
    logits = randn(lanes, n, 7, seed=seed)
    pair = [value_losses.categorical(ret, discount, logits, -2.0, 2.0, online) for online in (None, logits)]
    assert torch.equal(*pair)


def test_nothing_is_heard_of_what_follows_a_termination() -> None:
    q = torch.tensor([[NAN, NAN], [1.0, 2.0]])
    assert value_losses.scalar(t(3.0, 3.0), t(0.0, 0.5), q).tolist() == [3.0, 4.0]
    logits = torch.tensor([[[NAN] * 3] * 2, [[0.0] * 3] * 2])
    made = value_losses.categorical(t(0.8, 0.8), t(0.0, 0.0), logits, 0.5, 1.5)
    torch.testing.assert_close(made[0], made[1])


def test_targets_have_no_gradient() -> None:
    q = randn(2, 3).requires_grad_()
    assert not value_losses.scalar(t(0.0, 0.0), t(1.0, 1.0), q).requires_grad
    assert not value_losses.categorical(
        t(0.0, 0.0), t(1.0, 1.0), randn(2, 3, 5).requires_grad_(), -1.0, 1.0
    ).requires_grad


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"ret and discount must be \[B\], target and online \[B, A\]; got \[2\]"):
        value_losses.scalar(t(1.0, 2.0), t(1.0, 1.0), torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"target and online \[B, A, K\].*\[2, 4\]"):
        value_losses.categorical(t(1.0, 2.0), t(1.0, 1.0), torch.zeros(2, 4), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"mask must be q's \[2, 4\]"):
        q_heads.greedy_action(torch.zeros(2, 4), torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"scores must be \[2\] and \[A\] or \[A, K\] behind; got \[3, 4\]"):
        q_heads.take_action(torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))


def test_chosen_takes_numbers_and_distributions_of_batches_and_sequences() -> None:
    action = torch.tensor([[1, 0], [2, 1], [0, 0]])
    q = randn(3, 2, 4).requires_grad_()
    picked = torch.stack([q[i, j, action[i, j]] for i in range(3) for j in range(2)]).view(3, 2)
    assert torch.equal(q_heads.take_action(q, action), picked)
    logits = randn(2, 4, 5)
    assert torch.equal(q_heads.take_action(logits, action[0]), torch.stack([logits[0, 1], logits[1, 0]]))
    q_heads.take_action(q, action).sum().backward()
    assert q.grad.sum() == 6.0


# ------------------------------------------------------------------------------------------------ categorical


def test_the_worked_projection() -> None:
    """Support {.5, 1, 1.5}, G = .5, D = .8: Tz = {.9, 1.3, 1.7 → 1.5}."""
    made = value_losses.project(torch.tensor([[0.2, 0.3, 0.5]]), t(0.5), t(0.8), 0.5, 1.5)
    torch.testing.assert_close(made, torch.tensor([[0.04, 0.28, 0.68]]))


def test_a_terminal_puts_all_mass_around_its_return() -> None:
    made = value_losses.project(torch.tensor([[0.2, 0.3, 0.5]] * 3), t(0.8, -7.0, 7.0), t(0.0, 0.0, 0.0), 0.5, 1.5)
    torch.testing.assert_close(made, torch.tensor([[0.4, 0.6, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))


@QUICK
@given(st.integers(2, 25), st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 30.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_projections_equal_the_plain_twin_and_conserve_mass(size: int, seed: int, spread: float, again: float) -> None:
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.ones(size), size=4)
    chances[0] = np.eye(size)[rng.integers(size)]  # all on one atom
    ret = rng.normal(size=4) * spread
    ret[1] = round(ret[1])  # perhaps on an atom
    discount = np.array([again, 1.0, 0.0, 0.99])
    made = value_losses.project(*(torch.tensor(x).float() for x in (chances, ret, discount)), -10.0, 10.0)
    each = zip(chances.tolist(), ret, discount, strict=True)
    expected = torch.tensor([twins.project(p, g, d, -10.0, 10.0) for p, g, d in each], dtype=torch.float32)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(made.sum(1), torch.ones(4))
    assert (made >= 0).all()


def test_an_unmoved_distribution_stays_and_its_mean_moves_with_the_target() -> None:
    chances = randn(5, 51).softmax(1)
    same = value_losses.project(chances, torch.zeros(5), torch.ones(5), -10.0, 10.0)
    torch.testing.assert_close(same, chances, atol=1e-5, rtol=1e-4)
    z = q_heads.support(-10.0, 10.0, chances)
    moved = value_losses.project(chances, torch.full((5,), 0.37), torch.full((5,), 0.8), -10.0, 10.0)
    torch.testing.assert_close(moved @ z, 0.37 + 0.8 * (chances @ z), atol=1e-4, rtol=1e-4)  # nothing was clipped


def test_a_distribution_is_taken_of_the_action_with_the_best_mean() -> None:
    logits = torch.full((1, 2, 3), -20.0)
    logits[0, 0, 0] = logits[0, 1, 2] = 20.0  # action 0 is worth low, action 1 high
    torch.testing.assert_close(q_heads.expected_value(logits, -1.0, 1.0), torch.tensor([[-1.0, 1.0]]))
    made = value_losses.categorical(t(0.0), t(1.0), logits, -1.0, 1.0)
    torch.testing.assert_close(made, torch.tensor([[0.0, 0.0, 1.0]]))
    made = value_losses.categorical(t(0.0), t(1.0), logits, -1.0, 1.0, -logits)  # the other network prefers action 0
    torch.testing.assert_close(made, torch.tensor([[1.0, 0.0, 0.0]]))
    made = value_losses.categorical(t(0.0), t(1.0), logits, -1.0, 1.0, mask=torch.tensor([[True, False]]))
    torch.testing.assert_close(made, torch.tensor([[1.0, 0.0, 0.0]]))


def test_what_is_not_a_number_stays_visible() -> None:
    made = value_losses.project(torch.full((2, 3), 1 / 3), t(NAN, 0.0), t(0.5, 0.5), -1.0, 1.0)
    assert made[0].isnan().any()
    torch.testing.assert_close(made[1].sum(), torch.tensor(1.0))
    assert value_losses.scalar(t(NAN), t(0.0), torch.zeros(1, 2)).isnan().all()


def test_supports_and_shapes_of_projections_are_checked() -> None:
    with pytest.raises(ValueError, match=r"K >= 2.*got \[2, 1\]"):
        value_losses.project(torch.ones(2, 1), t(0.0, 0.0), t(1.0, 1.0), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"ret and discount \[B\]; got \[2, 3\], \[1\], \[2\]"):
        value_losses.project(torch.ones(2, 3), t(0.0), t(1.0, 1.0), 0.0, 1.0)
    with pytest.raises(ValueError, match="the support must rise; got"):
        value_losses.project(torch.ones(1, 3), t(0.0), t(1.0), 1.0, 1.0)


# ------------------------------------------------------------------------------------------------ rescaling


@QUICK
@given(st.floats(-1e6, 1e6, allow_subnormal=False), st.sampled_from([1e-3, 1e-2, 1.0]))
def test_rescaling_equals_its_plain_twin_and_its_inverse_undoes_it(x: float, eps: float) -> None:
    value = torch.tensor(x, dtype=torch.float64)
    assert numbers.rescale(value, eps).item() == pytest.approx(twins.rescale(x, eps), rel=1e-9, abs=1e-12)
    assert numbers.unscale(value, eps).item() == pytest.approx(twins.unscale(x, eps), rel=1e-6, abs=1e-9)
    assert numbers.unscale(numbers.rescale(value, eps), eps).item() == pytest.approx(x, rel=1e-12)
    assert numbers.rescale(numbers.unscale(value, eps), eps).item() == pytest.approx(x, rel=1e-12)


def test_the_inverse_keeps_float32s_digits_where_the_closed_form_loses_them() -> None:
    x = torch.cat([torch.logspace(-6, 6, 400), -torch.logspace(-6, 6, 400)])
    exact = torch.tensor([_inverse(float(v)) for v in x], dtype=torch.float64)
    relative = ((numbers.unscale(x).double() - exact) / exact).abs()
    assert relative.max() < 1e-6
    eps = torch.tensor(1e-3)
    root = ((1 + 4 * eps * (x.abs() + 1 + eps)).sqrt() - 1) / (2 * eps)
    naive = x.sign() * (root.square() - 1)
    near = (x.abs() > 0.5) & (x.abs() < 2)
    assert ((naive.double() - exact) / exact).abs()[near].max() > 1e-5
    there = numbers.rescale(x).double()
    assert ((there - torch.tensor([twins.rescale(float(v), 1e-3) for v in x])) / there).abs().max() < 1e-6


def _inverse(y: float) -> float:
    """Bisection of h in float64: no formula shared with what is tested."""
    low, high = 0.0, 1e10
    for _ in range(200):
        middle = (low + high) / 2
        if middle / (math.sqrt(middle + 1) + 1) + 1e-3 * middle < abs(y):
            low = middle
        else:
            high = middle
    return math.copysign(low, y)


def test_rescaling_is_odd_and_rises_and_knows_zero() -> None:
    x = torch.linspace(-50, 50, 1001, dtype=torch.float64)
    for f in (numbers.rescale, numbers.unscale):
        assert torch.equal(f(-x), -f(x))
        assert (f(x).diff() > 0).all()
        assert f(torch.tensor(0.0)) == 0.0
        assert f(torch.tensor(NAN)).isnan()


# ------------------------------------------------------------------------------------------------ sequences


@st.composite
def lanes(draw: Any) -> tuple[list[dict], int, int]:
    """Rows of several lanes with all kinds of ends, perhaps without transitions from some row on; n; seed."""
    rows, width, n = draw(st.integers(2, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    made = []
    for _ in range(width):
        events = draw(st.lists(st.sampled_from(twins.EVENTS), min_size=rows - 1, max_size=rows - 1))
        flags: dict[str, Any] = twins.lane_flags(events, draw(st.sampled_from(["first", "go"])))
        real = draw(st.integers(1, rows))
        made.append({**flags, "valid": [i < real for i in range(rows)]})
    return made, n, draw(st.integers(0, 10**6))


@QUICK
@given(lanes(), st.sampled_from([None, 1e-3]), st.sampled_from(["extra", "short"]), st.booleans())
def test_sequence_targets_equal_the_plain_twin(case: Any, eps: float | None, tail: str, double: bool) -> None:
    flags, n, seed = case
    rows, width = len(flags[0]["first"]), len(flags)
    n = min(n, rows - 1)
    rng = np.random.default_rng(seed)
    reward, q, other = rng.normal(size=(rows, width)) * 3, *rng.normal(size=(2, rows, width, 3)) * 2
    batch = {k: torch.tensor([f[k] for f in flags]).t() for k in ("terminated", "first", "valid")}
    batch["reward"] = torch.tensor(reward)
    online = torch.tensor(other) if double else None
    made = value_losses.sequence_targets(batch, torch.tensor(q), 0.9, n, online, eps, tail)
    best = (other if double else q).argmax(-1)
    for b in range(width):
        lane = {**flags[b], "reward": reward[:, b], "ahead": [q[i, b, best[i, b]] for i in range(rows)]}
        goal, learnt = twins.sequence(lane, 0.9, n, eps, tail)
        assert made.valid[:, b].tolist() == learnt
        for i in range(rows - 1):
            if learnt[i]:
                assert made.target[i, b].item() == pytest.approx(goal[i], rel=1e-6, abs=1e-8)


def plain(rows: int, **more: Any) -> dict[str, Tensor]:
    zeros = torch.zeros(rows, 1, dtype=torch.bool)
    return {"reward": torch.ones(rows, 1), "terminated": zeros, "first": zeros, **more}


def test_tails_by_name() -> None:
    q = torch.full((6, 1, 2), 10.0)
    extra, short = (
        value_losses.sequence_targets(plain(6), q, 0.5, 3, eps=None, tail=tail) for tail in ("extra", "short")
    )
    three = 1 + 0.5 + 0.25 + 0.125 * 10
    assert extra.valid[:, 0].tolist() == [True, True, True, False, False]
    assert extra.target[:3, 0].tolist() == [three] * 3
    assert short.valid.all()
    assert short.target[:, 0].tolist() == [three] * 3 + [1 + 0.5 + 0.25 * 10, 1 + 0.5 * 10]
    with pytest.raises(ValueError, match=r"3 rows are too few for n = 3, tail = 'extra' \(of extra, short\)"):
        value_losses.sequence_targets(plain(3), q[:3], 0.5, 3)
    with pytest.raises(ValueError, match="tail = 'repeat'"):
        value_losses.sequence_targets(plain(6), q, 0.5, 3, tail="repeat")
    with pytest.raises(ValueError, match=r"must be \[R, B, A\] with \[R, B\] = \[6, 1\]; got \[5, 1, 2\], None"):
        value_losses.sequence_targets(plain(6), q[:5], 0.5, 3)


def test_a_truncated_window_ends_in_its_real_last_row_and_a_terminated_one_in_nothing() -> None:
    flag = torch.tensor([[False]] * 3 + [[True]] + [[False]] * 3)
    first = flag.roll(1, 0)
    q = torch.arange(7.0).view(7, 1, 1).repeat(1, 1, 2) * 100
    cut = value_losses.sequence_targets(plain(7, first=first), q, 0.5, 3, eps=None, tail="short")
    assert cut.valid[:, 0].tolist() == [True, True, True, False, True, True]
    assert cut.target[2].item() == 1 + 0.5 * 300
    done = value_losses.sequence_targets(plain(7, first=first, terminated=flag), q, 0.5, 3, eps=None, tail="short")
    assert done.target[:3, 0].tolist() == [1.75, 1.5, 1.0]
    q[3] = NAN
    assert not value_losses.sequence_targets(plain(7, first=first, terminated=flag), q, 0.5, 3).target[:3].isnan().any()


def test_rows_that_fill_up_behind_a_last_row_change_nothing() -> None:
    """As a replay gives them: behind row 3, terminated, copies that are first, and no transition out of row 3."""
    flag, rest = torch.zeros(7, 1, dtype=torch.bool), torch.arange(7).unsqueeze(1)
    batch = plain(7, terminated=rest == 3, first=rest > 3, valid=rest < 3)
    made = value_losses.sequence_targets(batch, torch.full((7, 1, 2), 10.0), 0.5, 3, eps=None)
    assert made.valid[:, 0].tolist() == [True, True, True, False, False, False]
    assert made.target[:3, 0].tolist() == [1.75, 1.5, 1.0]
    cut = value_losses.sequence_targets({**batch, "terminated": flag}, torch.full((7, 1, 2), 10.0), 0.5, 3, eps=None)
    assert cut.valid.equal(made.valid)
    assert cut.target[:3, 0].tolist() == [3.0, 4.0, 6.0]


# ------------------------------------------------------------------------------------------------ priorities


@QUICK
@given(st.integers(2, 20), st.integers(0, 10**6))
def test_divergences_equal_plain_sums(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, p = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    m[0] = 0.0
    m /= m.sum()
    target, logits = torch.tensor(m)[None], torch.tensor(p).log()[None] + 3.0
    ce = -sum(a * math.log(b) for a, b in zip(m, p, strict=True))
    own = -sum(a * math.log(a) for a in m if a)
    assert value_losses.cross_entropy(target, logits).item() == pytest.approx(ce, rel=1e-9)
    assert value_losses.entropy(target).item() == pytest.approx(own, rel=1e-9)


def test_the_mix_of_largest_and_mean_error_counts_valid_rows_only() -> None:
    error = torch.tensor([[1.0, 9.0, 2.0], [-4.0, 9.0, 0.0], [NAN, 9.0, 1.0]])
    valid = torch.tensor([[True, False, True], [True, False, True], [False, False, True]])
    made = value_losses.sequence_priority(error, valid, 0.9)
    assert made.tolist() == pytest.approx([0.9 * 4 + 0.1 * 2.5, 0.0, 0.9 * 2 + 0.1 * 1])
    with pytest.raises(ValueError, match=r"one \[T, B\] shape; got \[3\], \[3\]"):
        value_losses.sequence_priority(error[0], valid[0], 0.9)
