from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyplay.common.errors import UserError
from polyplay.nets import layers
from polyplay.nets.layers import INITS, CentredImages, Linear, SignedImages, initialise, pixels


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
