"""polyplay/nets/q_heads.py: what plain and dueling heads are, their biases, noise and the gradient they give back."""

from __future__ import annotations

import math

import pytest
import torch

from polyplay.core.errors import UserError
from polyplay.nets import q_heads
from polyplay.nets.q_heads import QHead
from tests.nets.helpers import parameters


@pytest.mark.parametrize("atoms", [0, 5])
@pytest.mark.parametrize("hidden", [0, 16])
@pytest.mark.parametrize("dueling", [False, True])
def test_shapes_and_numbers_of_weights(atoms: int, hidden: int, dueling: bool) -> None:
    head = QHead(7, 3, atoms, hidden, dueling)
    out = head(torch.randn(4, 7))
    assert out.shape == ((4, 3, atoms) if atoms else (4, 3))
    assert out.dtype == torch.float32

    def stream(outputs: int) -> int:
        return (7 * hidden + hidden if hidden else 0) + (hidden or 7) * outputs + outputs

    size = max(atoms, 1)
    assert parameters(head) == stream(3 * size) + (stream(size) if dueling else 0)


@pytest.mark.parametrize("atoms", [0, 5])
def test_dueling_streams_are_identifiable(atoms: int) -> None:
    """The mean over actions is V alone, differences between actions are A's alone."""
    head = QHead(7, 3, atoms, 8, dueling=True)
    x = torch.randn(6, 7)
    out = head(x)
    value = head.value(x, None, torch.enable_grad()).view(6, *([atoms] if atoms else []))
    advantage = head.advantage(x, None, torch.enable_grad()).view(out.shape)
    torch.testing.assert_close(out.mean(1), value)
    torch.testing.assert_close(out - out[:, :1], advantage - advantage[:, :1])
    with torch.no_grad():
        head.advantage.last.bias += 3.0 if not atoms else torch.randn(atoms).repeat(3)
    torch.testing.assert_close(head(x), out)  # what all actions' advantages share vanishes


def test_one_bias_for_all_actions_or_none() -> None:
    x = torch.zeros(2, 7)
    shared = QHead(7, 3, bias="shared")
    assert parameters(shared) == 7 * 3 + 1
    assert torch.equal(shared(x), shared.shared.expand(2, 3))
    shared(x).sum().backward()
    assert shared.shared.grad.item() == 6.0
    assert shared.shared.abs().item() <= 7**-0.5
    assert torch.equal(QHead(7, 3, 5, bias="none")(x), torch.zeros(2, 3, 5))
    assert torch.equal(QHead(7, 3, 5, dueling=True, bias="none")(x), torch.zeros(2, 3, 5))


def test_the_first_weights_are_uniform_in_one_over_the_root_of_the_inputs() -> None:
    head = QHead(400, 6, 0, 100, dueling=True)
    for stream in (head.advantage, head.value):
        for layer, inputs in ((stream.hidden, 400), (stream.last, 100)):
            for p in (layer.weight, layer.bias):
                assert p.abs().max().item() <= inputs**-0.5
            assert layer.weight.std().item() == pytest.approx(inputs**-0.5 / math.sqrt(3), rel=0.15)


def test_the_features_gradient_is_scaled_and_nothing_else() -> None:
    torch.manual_seed(1)
    plain = QHead(7, 3, 0, 8, dueling=True)
    scaled = QHead(7, 3, 0, 8, dueling=True, scale=2**-0.5)
    scaled.load_state_dict(plain.state_dict())
    grads = []
    for head in (plain, scaled):
        x = torch.linspace(-1, 1, 28).view(4, 7).requires_grad_()
        y = x * 1.0
        out = head(y)
        out.square().sum().backward()
        grads.append((out.detach(), x.grad, head.advantage.hidden.weight.grad, head.value.last.weight.grad))
    for i, factor in enumerate((1.0, 2**-0.5, 1.0, 1.0)):
        torch.testing.assert_close(grads[1][i], grads[0][i] * factor)
    assert scaled(torch.zeros(1, 7)).shape == (1, 3), "and without a gradient as well"


@pytest.mark.parametrize("dueling", [False, True])
def test_every_layer_has_noise_of_its_own(dueling: bool) -> None:
    head = QHead(7, 3, 5, 8, dueling, noisy="fortunato")
    assert head.noise == (7 + 8 + 8 + 15) + (7 + 8 + 8 + 5) * dueling
    x, eps = torch.randn(64, 7), q_heads.draw_noise(torch.arange(64), head.noise, "fortunato")
    base = head(x, eps)
    for at in range(0, head.noise, 6):
        other = eps.clone()
        other[:, at] += 1.0
        assert not torch.equal(head(x, other), base), at
    torch.testing.assert_close(head(x), head(x, torch.zeros(1, head.noise)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": "one"}, "bias: 'one' is not one of each, shared, none"),
        ({"atoms": 1}, "atoms: 1 given, allowed: 2 or more, or 0 for plain numbers"),
        ({"hidden": -1}, "width: -1 given, allowed: 1 or more, or 0 for no hidden layer"),
        ({"scale": 0.0}, "scale: 0.0 given, allowed: above 0 and at most 1"),
        ({"noisy": "zoo", "sigma": 0.0}, "sigma: 0.0 given, allowed: above 0"),
        ({"noisy": "yes"}, "noisy: 'yes' is not one of none, fortunato, zoo"),
    ],
)
def test_mistakes_are_one_clear_line(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        QHead(7, 3, **options)
