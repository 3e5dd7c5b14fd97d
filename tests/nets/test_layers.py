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

from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.nets import factory, layers
from polyplay.nets.layers import INITS, CentredImages, Linear, RepeatedLinear, SignedImages, initialise, pixels
from tests.nets.helpers import declared


def test_linear_is_linear_and_its_rows_are_independent_to_the_bit():
    for seed in range(200):
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


def test_linear_passes_gradients_through_its_padding():
    layer, x = Linear(5, 3), torch.randn(7, 5, requires_grad=True)
    layer(x).square().sum().backward()
    mine = x.grad.clone(), layer.weight.grad.clone(), layer.bias.grad.clone()
    x.grad = layer.weight.grad = layer.bias.grad = None
    F.linear(x, layer.weight, layer.bias).square().sum().backward()
    for got, want in zip(mine, (x.grad, layer.weight.grad, layer.bias.grad), strict=True):
        torch.testing.assert_close(got, want)


def test_initialisation_is_by_torchs_seed():
    def filled(style: str) -> torch.Tensor:
        torch.manual_seed(3)
        initialise(net := nn.Sequential(nn.Conv2d(2, 4, 3), nn.Linear(5, 6)), style)
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    for style in INITS:
        assert torch.equal(filled(style), filled(style))
    with pytest.raises(UserError, match="init: 'xavier' is not one of orthogonal, torch, sonnet, dopamine"):
        filled("xavier")


def test_pixels_are_scaled_bytes_and_floats_as_they_are():
    image = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
    kept = image.clone()
    torch.testing.assert_close(pixels(image), image / 255)
    assert torch.equal(image, kept)
    assert pixels(image).is_contiguous(memory_format=torch.channels_last)
    floats = torch.randn(2, 3, 4, 5)
    assert torch.equal(pixels(floats), floats)


def test_centre_takes_away_the_mean_picture_and_then_keeps_it():
    from polyplay.nets.layers import CentredImages

    torch.manual_seed(0)
    centre = CentredImages((2, 3, 4))
    rows = torch.randint(0, 255, (7, 5, 2, 3, 4), dtype=torch.uint8)
    centre.observe(rows[:3])
    centre.observe(rows[3:])
    flat = rows.flatten(0, 1).float()
    assert torch.allclose(centre.mean.permute(2, 0, 1), flat.mean(0), atol=1e-3)
    assert torch.allclose(centre(rows[0]), (rows[0].float() - flat.mean(0)) * CentredImages.GAIN / 255, atol=1e-4)
    centre.count.fill_(CentredImages.ROWS)
    kept = centre.mean.clone()
    centre.observe(torch.zeros_like(rows))
    assert torch.equal(centre.mean, kept)
    assert {k for k, _ in centre.named_buffers()} == {"mean", "count"}


@pytest.mark.parametrize("half", [False, True])
def test_images_become_numbers_in_one_pass_as_torch_does_it_to_the_bit(half, monkeypatch):
    torch.manual_seed(0)
    obs = torch.randint(0, 256, (5, 4, 36, 28), dtype=torch.uint8)
    centre, signed = CentredImages((4, 36, 28)), SignedImages()
    centre.mean.uniform_(0.0, 255.0)
    for make in (pixels, centre, signed):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            fast = make(obs)
        with monkeypatch.context() as patch:
            patch.setattr(layers, "_four_planes", lambda obs: False)
            slow = make(obs)
        assert fast.dtype == (torch.bfloat16 if half else torch.float32)
        assert torch.equal(fast, slow.to(fast.dtype))
        assert fast.is_contiguous(memory_format=torch.channels_last)


def test_the_one_pass_is_taken_where_it_knows_the_layout():
    obs = torch.zeros(5, 4, 36, 28, dtype=torch.uint8)
    assert layers._four_planes(obs)
    assert not layers._four_planes(obs[:, :3])
    assert not layers._four_planes(obs.permute(0, 1, 3, 2))
    assert not layers._four_planes(obs.float())


def test_other_numbers_of_planes_go_torchs_way():
    obs = torch.randint(0, 256, (5, 3, 36, 28), dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        assert pixels(obs).dtype == torch.float32
        assert pixels(obs.expand(5, 3, 36, 28)[:, [0, 1, 2, 0]]).dtype == torch.bfloat16


def test_floats_that_came_through_something_stay_in_their_numbers():
    x = torch.rand(2, 4, 8, 8, dtype=torch.bfloat16)
    assert pixels(x).dtype == torch.bfloat16
    assert torch.equal(pixels(x), x)


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


def test_two_unrolls_in_one_graph():
    """One loss of both, and one of each with its own backward pass."""
    torch.manual_seed(0)
    layer, plain = RepeatedLinear(5, 5), Linear(5, 5)
    x = torch.randn(3, 5)

    def unrolled(one, h):
        with one.repeated() if one is layer else contextlib.nullcontext():
            for _ in range(4):
                h = one(h).tanh() + x
        return h

    def together(one):
        mine = x.clone().requires_grad_()
        second = unrolled(one, unrolled(one, mine))
        (second.square().sum() + one(mine).sum()).backward()
        return [mine.grad]

    def apart(one):
        mine = x.clone().requires_grad_()
        first, second = unrolled(one, mine), unrolled(one, 2 * mine)
        second.square().sum().backward()
        first.sum().backward()
        return [mine.grad]

    def twice(one):
        mine = x.clone().requires_grad_()
        score = unrolled(one, mine).square().sum()
        score.backward(retain_graph=True)
        score.backward()
        return [mine.grad]

    for scored in (together, apart, twice):
        for ours, theirs in gradients(layer, plain, scored):
            torch.testing.assert_close(ours, theirs)


def test_after_an_error_in_an_unroll_it_is_a_plain_layer_again():
    torch.manual_seed(0)
    layer, plain, x = RepeatedLinear(5, 3), Linear(5, 3), torch.randn(4, 5)

    def broken(one):
        with one.repeated():
            one(x)
            one(x[:, :4])

    def scored(one):
        if one is layer:
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                broken(one)
        out = one(x)
        with one.repeated() if one is layer else contextlib.nullcontext():
            out = out + one(2 * x)
        out.square().sum().backward()
        return [out.detach()]

    for ours, theirs in gradients(layer, plain, scored):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(layer(x), plain(x))


def test_without_gradients_an_unroll_is_the_plain_layer_to_the_bit():
    layer, plain, x = RepeatedLinear(5, 3), Linear(5, 3), torch.randn(4, 5)
    plain.load_state_dict(layer.state_dict())
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    with layer.repeated():
        assert torch.equal(layer(x), plain(x))
    mine = x.clone().requires_grad_()
    with layer.repeated():
        layer(mine).sum().backward()
    assert layer.weight.grad is None
    assert torch.equal(mine.grad, layer.weight.sum(0).expand(4, 5))


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
    as_signed, as_centre, raw = (factory.make("a3c", spec, inputs=how) for how in ("signed", "centre", "raw"))
    torch.testing.assert_close(as_signed.inputs(row)[0, 0, 0, :3], torch.tensor(signed))
    span = max(high - low, 1)
    as_centre.inputs.mean.fill_(float(low))
    expected = CentredImages.GAIN * (row.float() - low) / span
    torch.testing.assert_close(as_centre.inputs(row), expected)
    heard = []
    raw.torso.convs[0].register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    raw.torso(row)
    torch.testing.assert_close(heard[0], (row.float() - low) / span)
