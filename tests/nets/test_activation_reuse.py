"""polyplay/nets/layers.py: what acting computed is what learning would have computed again, gradients too."""

from __future__ import annotations

import pytest
import torch

from polyplay.learning.learner import unroll_before_last
from polyplay.nets import device, factory, layers
from tests.nets.helpers import arrivals, discrete, image

SPEC = discrete(image())
T, B = 4, 8


def played(policy, rows):
    """Act row by row, a tape each."""
    outs, tapes = [], []
    state = policy.initial(B)
    for t in range(T):
        tapes.append([])
        with torch.no_grad():
            out, state = policy.act({k: v[t] for k, v in rows.items()}, state, tapes[-1])
        outs.append(out)
    return {k: torch.stack([out[k] for out in outs]) for k in outs[0]}, tapes


def learnt(policy, rows, tape):
    policy.zero_grad()
    out = policy.unroll(rows, policy.initial(B), tape=tape)
    (out["logp"].square() + out["value"].square() - 0.1 * out["entropy"]).sum().backward()
    return out, torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("how", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("a3c", {"inputs": "centre"}),
        ("ga3c", {"inputs": "signed"}),
        ("nature", {}),
        ("accel_large", {}),
        ("a3c", {"core": "lstm", "core_size": 16, "previous": True}),
    ],
)
def test_outputs_and_gradients_are_those_of_computing_again(name, more, how):
    torch.manual_seed(0)
    policy = device.set_precision(factory.make(name, SPEC, **more), how)
    rows = arrivals(SPEC.obs, T, B, policy.noise)
    said, tapes = played(policy, rows)
    rows["action"] = said["action"]
    (again, full), (kept, recalled) = (learnt(policy, rows, tape) for tape in (None, layers.join_tapes(tapes)))
    for key in ("logp", "value"):
        torch.testing.assert_close(kept[key].detach(), said[key], atol=1e-6, rtol=0)
        torch.testing.assert_close(kept[key], again[key], atol=1e-5 if how == "float32" else 2e-2, rtol=0)
    assert float(full.norm()) > 0.0
    tolerance = 1e-5 if how == "float32" else 2e-2
    assert float((recalled - full).norm() / full.norm()) <= tolerance


def test_gradients_are_of_the_outputs_on_the_tape():
    """A tape of other weights' outputs gives other gradients: nothing is computed behind its back."""
    torch.manual_seed(0)
    policy = factory.make("a3c", SPEC)
    rows = arrivals(SPEC.obs, T, B, policy.noise)
    said, tapes = played(policy, rows)
    rows["action"] = said["action"]
    tape = layers.join_tapes(tapes)
    _, right = learnt(policy, rows, tape)
    out, wrong = learnt(policy, rows, [torch.zeros_like(y) for y in tape])
    assert float((wrong - right).norm() / right.norm()) > 0.1
    assert len(out["value"].detach().unique()) == 1, "all features are 0"


def test_who_recalls():
    assert factory.make("nature", SPEC).recalls
    assert not factory.make("impala", SPEC).recalls


def test_a_rollouts_rows_without_its_last_one():
    torch.manual_seed(0)
    policy = factory.make("a3c", SPEC)
    rows = arrivals(SPEC.obs, T, B, policy.noise)
    said, tapes = played(policy, rows)
    out = unroll_before_last(policy, {**rows, **said}, {}, layers.join_tapes(tapes[:-1]))
    assert torch.equal(out["value"][-1], said["value"][-1])
    torch.testing.assert_close(out["logp"][:-1].detach(), said["logp"][:-1], atol=1e-6, rtol=0)


def test_pictures_of_one_plane_in_bfloat16():
    """They stay float32 until the first layer: its gradient needs both in the same numbers."""
    torch.manual_seed(0)
    spec = discrete(image(1, 42))
    policy = device.set_precision(factory.make("a3c", spec), "bfloat16")
    rows = arrivals(spec.obs, T, B, policy.noise)
    said, tapes = played(policy, rows)
    rows["action"] = said["action"]
    (_, full), (_, recalled) = (learnt(policy, rows, tape) for tape in (None, layers.join_tapes(tapes)))
    assert float((recalled - full).norm() / full.norm()) <= 2e-2
