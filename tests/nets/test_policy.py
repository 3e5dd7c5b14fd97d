"""Every network is a Policy; running statistics of observations and returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.nets import factory
from polyplay.nets.policy import BOUND, MOST, Normalize, ReturnScale, RunningMoments
from polyplay.weights.params import FlatParams, Params
from tests.nets.helpers import arrivals, discrete, image, play, vector

# running stats


def averaged(replicas: list) -> None:
    """What AllReduce does to floating buffers after every update."""
    for buffers in zip(*(m.buffers() for m in replicas), strict=True):
        mean = torch.stack([b.clone() for b in buffers]).mean(0)
        for b in buffers:
            b.copy_(mean)


def test_replicas_that_average_their_buffers_hold_the_variance_of_all_their_rows():
    """Two replicas see different worlds: most of the variance lies between them, averaged variances would lack it."""
    generator = np.random.default_rng(1)
    worlds = [torch.from_numpy(generator.normal(m, 0.1, (40, 32, 2)).astype(np.float32)) for m in (-3.0, 3.0)]
    replicas, alone = [RunningMoments((2,)) for _ in worlds], RunningMoments((2,))
    for batches in zip(*worlds, strict=True):
        for moments, rows in zip(replicas, batches, strict=True):
            moments.observe(rows)
        averaged(replicas)
        alone.observe(torch.cat(batches))
    for moments in replicas:
        torch.testing.assert_close(moments.mean, alone.mean, atol=1e-3, rtol=0.0)
        torch.testing.assert_close(moments.variance(), alone.variance(), rtol=0.02, atol=0.0)
    assert float(alone.variance()[0]) == pytest.approx(9.0, rel=0.05)


def test_what_leaves_is_bounded_and_what_never_changes_is_nothing():
    moments = RunningMoments((2,))
    rows = torch.cat([torch.full((30, 1), 1000.1), torch.linspace(0, 1, 30)[:, None]], 1)
    torch.testing.assert_close(moments(rows[:1]), torch.tensor([[BOUND, 0.0]]))
    for _ in range(50):
        moments.observe(rows)
    seen = moments(torch.tensor([[1000.1, 1e9], [1000.1, -1e9]]))
    assert seen[:, 1].tolist() == [BOUND, -BOUND]
    assert seen[:, 0].abs().max() < 0.1


def test_old_rows_fade_when_there_are_very_many():
    moments = RunningMoments((1,))
    for _ in range(2):
        moments.observe(torch.zeros(100, 1))
    moments.count.fill_(MOST)
    moments.observe(torch.ones(100, 1))
    assert float(moments.count) == MOST
    assert 0 < float(moments.mean) < 1e-3


OFFSETS = {  # numbers in which one of 8 flags is on, far from 0 and near it
    "time stamps": (1.7e9, 10.0, torch.float64),
    "amounts of money in cents": (1e12, 3.0, torch.float64),
    "identifiers": (900_000_000, 1, torch.int64),
    "tiny": (0.0, 1e-9, torch.float32),
    "tiny about something": (1e-3, 1e-9, torch.float64),
    "huge": (0.0, 1e18, torch.float32),
}


@pytest.mark.parametrize(("offset", "size", "dtype"), OFFSETS.values(), ids=OFFSETS)
def test_numbers_of_any_offset_and_scale_are_what_float64_makes_of_them(offset, size, dtype):
    torch.manual_seed(4)
    flags = torch.nn.functional.one_hot(torch.randint(8, (40, 16)), 8)
    rows = (offset + size * flags.double()).to(dtype)
    moments = RunningMoments((8,))
    for batch in rows:
        moments.observe(batch)
    exact = rows[1:].double().flatten(0, 1)
    exact = torch.cat([rows[:1].double().mean(1), exact])  # of the first batch the mean counts, as one row
    want = (rows[7].double() - exact.mean(0)) / exact.std(0, correction=0)
    torch.testing.assert_close(moments(rows[7]), want.float(), rtol=1e-3, atol=1e-3)


def test_every_numeric_leaf_is_scaled_but_no_image_and_no_classes():
    spec = {"flags": Field((3,), "uint8"), "on": Field((2,), "bool"), "n": Field((), "int64"), "seen": image(1, 4)}
    net = Normalize({**spec, "kind": Field((), "int64")}, classes=("kind",))
    torch.manual_seed(5)
    rows = {path: torch.randint(0, 2, (9, 6, *field.shape)) for path, field in spec.items()}
    rows = {path: rows[path].to(getattr(torch, field.dtype)) for path, field in spec.items()}
    rows["kind"] = torch.randint(0, 5, (9, 6))
    for _ in range(9):
        net.observe(rows)
    out = net({path: x[:-1].flatten(0, 1) for path, x in rows.items()})
    for path in ("flags", "on", "n"):
        assert out[path].dtype == torch.float32
        torch.testing.assert_close(out[path].mean(0), torch.zeros(spec[path].shape), rtol=0.0, atol=0.02)
        torch.testing.assert_close(out[path].std(0), torch.ones(spec[path].shape), rtol=0.05, atol=0.0)
    assert torch.equal(out["seen"], rows["seen"][:-1].flatten(0, 1))
    assert torch.equal(out["kind"], rows["kind"][:-1].flatten(0, 1))


def test_returns_are_summed_within_rollouts_and_begin_anew_at_first_rows():
    rng = np.random.default_rng(3)
    returns, squares, n = ReturnScale(0.9), 0.0, 0
    for _ in range(5):
        reward, first = rng.normal(size=(9, 4)), rng.random((9, 4)) < 0.25
        reward[first] = 0.0
        returns.observe(torch.from_numpy(reward).float(), torch.from_numpy(first))
        for lane in range(4):
            g = 0.0
            for t in range(1, 9):
                g = 0.0 if first[t, lane] else reward[t, lane] + 0.9 * g
                squares, n = squares + g * g, n + (not first[t, lane])
    assert float(returns.count) == n
    assert float(returns.scale()) == pytest.approx((n / squares) ** 0.5, rel=1e-5)


def test_a_policy_learns_them_publishes_them_and_acts_with_them_unchanged():
    spec = discrete(vector(3), 5)
    net, other = (factory.make("mlp", spec, inputs="normalize", returns=0.9) for _ in range(2))
    vectors = [FlatParams(n) for n in (net, other)]
    torch.manual_seed(2)
    batch = arrivals(spec.obs, 5, 8, 1)
    batch["obs"] = batch["obs"] * 20 + 100
    for _ in range(3):
        net.observe(batch)
    params = Params(vectors[0].size)
    params.publish(vectors[0], 1, 1)
    params.pull(vectors[1])
    kept = {k: v.clone() for k, v in other.named_buffers()}
    assert float(kept["inputs.moments.0.count"]) == 1 + 2 * 4 * 8
    assert float(kept["returns.count"]) > 0
    said, _ = play(other, batch, {})
    assert all(torch.equal(v, kept[k]) for k, v in other.named_buffers()), "acting learns nothing"
    out = net.unroll({**batch, "action": said["action"]}, {})
    assert torch.equal(out["value"], said["value"]), "acting and unrolling agree to the bit"
    assert float(out["reward_scale"]) == float(net.returns.scale()) != 1.0


def test_observations_without_numbers_to_scale_are_refused():
    with pytest.raises(UserError, match=r"^--inputs normalize: takes numbers that are not images or classes, but"):
        factory.make("nature", discrete(image()), inputs="normalize")
    with pytest.raises(UserError, match=r"the observations are int64 \[\]; use raw or"):
        factory.make("mlp", discrete(Field((), "int64"), classes={"": 4}), inputs="normalize")
    with pytest.raises(UserError, match=r"^--inputs center: takes one image of bytes"):
        factory.make("mlp", discrete(vector(3)), inputs="center")
