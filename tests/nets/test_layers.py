"""Layers to the bit, images as numbers, activations that are used again, axes of tensors."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyplay.core.tree import Field
from polyplay.nets import device, factory, layers
from polyplay.nets.layers import (
    CenteredImages,
    Linear,
    RepeatedLinear,
    SignedImages,
    pixels,
)
from tests.nets.helpers import arrivals, declared, discrete, image


def test_linear_is_linear_and_its_rows_are_independent_to_the_bit():
    for seed in range(100):
        torch.manual_seed(seed)
        rows, inputs, outputs, part = (int(torch.randint(1, n, ())) for n in (300, 80, 24, 12))
        layer, x = Linear(inputs, outputs), torch.randn(rows, inputs)
        whole = layer(x)
        torch.testing.assert_close(whole, F.linear(x, layer.weight, layer.bias))
        start = int(torch.randint(0, rows, ()))
        assert torch.equal(layer(x[start : start + part]), whole[start : start + part]), seed


def test_rows_need_not_be_padded():
    layer, x = Linear(2592, 256), torch.randn(1, 2592)
    exact = layer(x)
    layer.exact = False
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x), exact)


def test_center_takes_away_the_mean_picture_and_then_keeps_it():
    torch.manual_seed(0)
    center = CenteredImages((2, 3, 4))
    rows = torch.randint(0, 255, (7, 5, 2, 3, 4), dtype=torch.uint8)
    center.observe(rows[:3])
    center.observe(rows[3:])
    flat = rows.flatten(0, 1).float()
    assert torch.allclose(center.mean.permute(2, 0, 1), flat.mean(0), atol=1e-3)
    assert torch.allclose(center(rows[0]), (rows[0].float() - flat.mean(0)) * CenteredImages.GAIN / 255, atol=1e-4)
    center.count.fill_(CenteredImages.ROWS)
    kept = center.mean.clone()
    center.observe(torch.zeros_like(rows))
    assert torch.equal(center.mean, kept)
    assert {k for k, _ in center.named_buffers()} == {"mean", "count"}


@pytest.mark.parametrize("half", [False, True])
def test_images_become_numbers_in_one_pass_as_torch_does_it_to_the_bit(half):
    torch.manual_seed(0)
    obs = torch.randint(0, 256, (5, 4, 36, 28), dtype=torch.uint8)
    center, signed = CenteredImages((4, 36, 28)), SignedImages()
    center.mean.uniform_(0.0, 255.0)
    for make in (pixels, center, signed):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            fast = make(obs)
        slow = make(obs.contiguous(memory_format=torch.channels_last))
        assert fast.dtype == (torch.bfloat16 if half else torch.float32)
        assert torch.equal(fast, slow.to(fast.dtype))
        assert fast.is_contiguous(memory_format=torch.channels_last)


def gradients(layer, plain, scored):
    """Of the layer and of a plain one with its weights, by score(layer)."""
    found = []
    plain.load_state_dict(layer.state_dict())
    for one in (layer, plain):
        one.zero_grad()
        inputs = scored(one)
        found.append([*inputs, *(p.grad for p in one.parameters())])
    return zip(*found, strict=True)


SIZES = st.integers(1, 20)


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.booleans(), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 999))
def test_one_product_for_all_uses_gives_the_gradient_of_each(inputs, outputs, bias, counts, seed):
    """Uses of random numbers of rows, some of which nobody asks for."""
    torch.manual_seed(seed)
    layer, plain = RepeatedLinear(inputs, outputs, bias=bias).double(), nn.Linear(inputs, outputs, bias=bias).double()
    rows = [torch.randn(n, inputs, dtype=torch.float64) for n in counts]
    asked = [True, *(torch.rand(len(counts) - 1) < 0.7).tolist()]

    def scored(one):
        mine = [x.clone().requires_grad_() for x in rows]
        with one.repeated() if one is layer else contextlib.nullcontext():
            made = [one(x) for x in mine]
        sum(y.sin().sum() for y, wanted in zip(made, asked, strict=True) if wanted).backward()
        return [torch.zeros(()) if x.grad is None else x.grad for x in mine]

    for ours, theirs in gradients(layer, plain, scored):
        torch.testing.assert_close(ours, theirs)


RANGES = {  # declared bounds of an image, bytes in it, and these as signed inputs
    "pixels": (0, 255, [0, 128, 255], [-1.0, 0.0, 127 / 128]),
    "flags": (0, 1, [0, 1, 1], [-1.0, 1.0, 1.0]),
    "planes of kinds": (0, 10, [0, 5, 10], [-1.0, 0.0, 1.0]),
    "from 100 on": (100, 180, [100, 140, 160], [-1.0, 0.0, 0.5]),
    "always the same": (7, 7, [7, 7, 7], [-1.0, -1.0, -1.0]),
}


@pytest.mark.parametrize(("low", "high", "given", "signed"), RANGES.values(), ids=RANGES)
@pytest.mark.parametrize("planes", [3, 4])
def test_inputs_of_images_are_by_their_declared_bounds(planes, low, high, given, signed):
    shape = planes, 84, 84
    spec = declared(gym.Box(low, high, shape, np.uint8), Field(shape, "uint8"))
    row = torch.tensor(given, dtype=torch.uint8).repeat(28).expand(2, *shape).contiguous()
    as_signed, as_center, raw = (factory.make("a3c", spec, inputs=how) for how in ("signed", "center", "raw"))
    torch.testing.assert_close(as_signed.inputs(row)[0, 0, 0, :3], torch.tensor(signed))
    span = max(high - low, 1)
    as_center.inputs.mean.fill_(float(low))
    expected = CenteredImages.GAIN * (row.float() - low) / span
    torch.testing.assert_close(as_center.inputs(row), expected)
    heard = []
    raw.torso.convs[0].register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    raw.torso(row)
    torch.testing.assert_close(heard[0], (row.float() - low) / span)


# polyplay/nets/layers.py: what acting computed is what learning would have computed again, gradients too.

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
    ("name", "more", "obs"),
    [
        ("a3c", {"inputs": "center"}, image()),
        ("ga3c", {"inputs": "signed"}, image()),
        ("accel_large", {}, image()),
        ("a3c", {"core": "lstm", "core_size": 16, "previous": True}, image()),
        ("a3c", {}, image(1, 42)),  # of one plane: float32 until the first layer, whose gradient needs the same numbers
    ],
)
def test_outputs_and_gradients_are_those_of_computing_again(name, more, obs, how):
    torch.manual_seed(0)
    policy = device.set_precision(factory.make(name, discrete(obs), **more), how)
    rows = arrivals(obs, T, B, policy.noise)
    said, tapes = played(policy, rows)
    rows["action"] = said["action"]
    (again, full), (kept, recalled) = (learnt(policy, rows, tape) for tape in (None, layers.join_tapes(tapes)))
    for key in ("logp", "value"):
        torch.testing.assert_close(kept[key].detach(), said[key], atol=1e-6, rtol=0)
        torch.testing.assert_close(kept[key], again[key], atol=1e-5 if how == "float32" else 2e-2, rtol=0)
    assert float(full.norm()) > 0.0
    tolerance = 1e-5 if how == "float32" else 2e-2
    assert float((recalled - full).norm() / full.norm()) <= tolerance


def test_a_frozen_module_has_gradients_of_its_inputs_alone():
    net, x = layers.mlp(3, 8, 2), torch.randn(5, 3, requires_grad=True)
    assert [type(layer).__name__ for layer in net] == ["Linear", "ReLU", "Linear"]
    out = layers.frozen(net)(x)
    assert torch.equal(out, net(x))
    out.sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in net.parameters())
