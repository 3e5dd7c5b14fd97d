"""Cores: cells are torch's, and two clocks are the publication's recursion."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core import tree
from polyplay.nets import dnc, recurrent
from polyplay.nets.dnc import Memory
from polyplay.nets.layers import Linear
from polyplay.nets.recurrent import Temporal, kl_terms
from tests.nets.test_dnc import PlainLinks


def zeros(core: Temporal | recurrent.Core, lanes: int) -> dict:
    return tree.map(torch.from_numpy, tree.zeros(core.state_spec(), (lanes,)))


def theirs(name: str, core: recurrent.Core) -> nn.Module:
    """torch's cell with the core's weights; its LSTM has gates i, f, g, o and a second bias."""
    size = core.features
    cell = (nn.LSTMCell if name == "lstm" else nn.GRUCell)(core.inputs, size)
    order = torch.arange(core.cell.gates * size)
    if name == "lstm":
        order = order.view(4, size)[[0, 1, 3, 2]].flatten()
    with torch.no_grad():
        cell.weight_ih.copy_(core.input.weight[order])
        cell.bias_ih.copy_(core.input.bias[order])
        cell.weight_hh.copy_(core.cell.recurrent.weight[order])
        cell.bias_hh.zero_() if name == "lstm" else cell.bias_hh.copy_(core.cell.recurrent.bias)
    return cell


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("init", ["orthogonal", "torch"])
def test_cells_are_torchs(name, init):
    core = recurrent.make_core(name, 7, 20, init)
    cell = theirs(name, core)
    x, first = torch.randn(6, 3, 7), torch.rand(6, 3) < 0.3
    state = {k: torch.randn(3, 20) for k in core.state_spec()}
    now = tuple(state[k] for k in core.cell.names)
    y, after, _ = core.unroll(x, first, state)
    for t in range(6):
        now = tuple(v * ~first[t].unsqueeze(1) for v in now)
        now = cell(x[t], now) if name == "lstm" else (cell(x[t], now[0]),)
        torch.testing.assert_close(y[t], now[0])
    torch.testing.assert_close(after, dict(zip(core.cell.names, now, strict=True)))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_steps_are_to_the_bit_an_unroll(name):
    for seed in range(10):
        torch.manual_seed(seed)
        inputs, size, lanes, rows = (int(torch.randint(1, n, ())) for n in (300, 130, 20, 30))
        core = recurrent.make_core(name, inputs, size)
        x, first = torch.randn(rows, lanes, inputs), torch.rand(rows, lanes) < 0.2
        state = {k: torch.randn(lanes, size) for k in core.state_spec()}
        y, after, _ = core.unroll(x, first, state)
        for t in range(rows):
            step, state, _ = core.unroll(x[t : t + 1], first[t : t + 1], state)
            assert torch.equal(step[0], y[t]), (seed, t)
        assert all(torch.equal(state[k], after[k]) for k in after)


# The core of two clocks: acting is learning to the bit, its recursion and its KL terms are those of a plain twin.


def core_of(inputs: int = 9, size: int = 8, period: int = 3, seed: int = 0, memory: bool = False) -> Temporal:
    torch.manual_seed(seed)
    core = Temporal(inputs, size, memory=Memory(slots=6, word=4, reads=2) if memory else None)
    core.apply_hyperparameters({"period": period})
    return core


def rows_of(core: Temporal, rows: int, lanes: int, chance: float = 0.2) -> tuple[torch.Tensor, ...]:
    first = torch.rand(rows, lanes) < chance
    return torch.randn(rows, lanes, core.inputs), first, torch.randn(rows, lanes, core.noise)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("period", [1, 5, 19])
def test_temporal_steps_are_to_the_bit_an_unroll(period, memory):
    """With resets in mid-cycle; and of rollouts that begin between ticks."""
    for seed in (0, 2):
        core = core_of(int(np.random.default_rng(seed).integers(1, 80)), 24, period, seed, memory)
        x, first, noise = rows_of(core, 40, 1 + 7 * seed, 0.05)
        before = zeros(core, x.shape[1])
        whole, after, latent = core.unroll(x, first, before, noise=noise)
        state = before
        for t in range(len(x)):
            with torch.no_grad():
                z, state, step = core.unroll(x[t : t + 1], first[t : t + 1], state, noise=noise[t : t + 1])
            assert torch.equal(z[0], whole[t]), (seed, t)
            assert all(torch.equal(one[0], many[t]) for one, many in zip(step, latent, strict=True))
            if t == 16:
                rest, end, _ = core.unroll(x[17:], first[17:], state, noise=noise[17:])
                assert torch.equal(rest, whole[17:])
                tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), end, after)
        tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), state, after)


class Twin:
    """One lane in float64, one step after the other, with names as in the publication."""

    def __init__(self, core: Temporal):
        self.core, self.n = core, core.features
        self.clear()

    def clear(self) -> None:
        self.h = self.c = self.z = self.s = self.cs = self.mu = self.sigma = np.zeros(self.n)
        self.age = 0

    def product(self, layer: Linear, *x: np.ndarray) -> np.ndarray:
        bias = 0.0 if layer.bias is None else layer.bias.detach().double().numpy()
        return layer.weight.detach().double().numpy() @ np.concatenate(x) + bias

    def lstm(self, gates: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        i, f, o, g = np.split(gates, 4)
        i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
        c = f * c + i * np.tanh(g)
        return o * np.tanh(c), c

    def normal(self, params: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, scale = np.split(params, 2)
        return mean, np.log1p(np.exp(scale)) * 0.1 / np.log(2.0) + 1e-6

    def step(self, x: np.ndarray, first: bool, noise: np.ndarray) -> tuple[float, float]:
        """Both KL terms; z and the rest are kept."""
        if first:
            self.clear()
        core, tick = self.core, self.age % int(self.core.period) == 0
        if tick:
            self.s, self.cs = self.lstm(self.product(core.slow, self.h, self.s), self.cs)
            self.mu, self.sigma = self.normal(self.product(core.prior, self.s))
        gates = self.product(core.input, x) + self.product(core.down, self.s, self.mu, self.sigma)
        self.h, self.c = self.lstm(gates + self.product(core.fast, self.h, self.z), self.c)
        mean, scale = self.normal(self.product(core.posterior, self.h))
        self.z, self.age = mean + scale * noise, self.age + 1
        posterior = sum(map(kl, mean, scale, self.mu, self.sigma))
        prior = sum(map(kl, self.mu, self.sigma, [0.0] * self.n, [0.1] * self.n)) if tick else 0.0
        return posterior, prior


def kl(m1: float, s1: float, m2: float, s2: float) -> float:
    return math.log(s2 / s1) + (s1 * s1 + (m1 - m2) ** 2) / (2 * s2 * s2) - 0.5


@pytest.mark.parametrize("period", [1, 4])
def test_it_is_the_publications_recursion(period):
    core = core_of(period=period)
    x, first, noise = rows_of(core, 23, 3)
    z, _, latent = core.unroll(x, first, zeros(core, 3), noise=noise)
    terms = {k: v.detach() for k, v in kl_terms(latent).items()}
    for lane in range(3):
        twin = Twin(core)
        for t in range(23):
            posterior, prior = twin.step(x[t, lane].numpy(), bool(first[t, lane]), noise[t, lane].numpy())
            np.testing.assert_allclose(z[t, lane].detach().numpy(), twin.z, atol=1e-5)
            assert float(terms["kl_posterior"][t, lane]) == pytest.approx(posterior, rel=1e-4, abs=1e-4)
            assert float(terms["kl_prior"][t, lane]) == pytest.approx(prior, rel=1e-4, abs=1e-4)
            assert bool(latent.ticks[t, lane]) == (prior != 0.0)


def test_the_gradient_from_the_fast_clock_into_the_slow_one_is_scaled():
    """Of the slow clock's own layer; that of the KL terms is not."""
    found = {}
    for scale in (0.0, 0.5, 1.0):
        core = core_of(period=3)
        core.apply_hyperparameters({"gradient_scale": scale})
        x, first, noise = rows_of(core, 3, 4)
        first[:] = False
        first[0] = True
        z, _, latent = core.unroll(x, first, zeros(core, 4), noise=noise)
        (direct,) = torch.autograd.grad(kl_terms(latent)["kl_prior"].sum(), core.prior.bias, retain_graph=True)
        found[scale] = torch.autograd.grad(z.sum(), core.slow.bias)[0], direct
    assert found[0.0][0].abs().max() == 0.0 < found[1.0][0].abs().max()
    torch.testing.assert_close(found[0.5][0], found[1.0][0] / 2)
    assert found[0.0][1].abs().max() > 0.0


@pytest.mark.parametrize("period", [1, 4])
def test_gradients_of_a_memory_are_those_of_plain_links(period, monkeypatch):
    """With episodes that begin in mid-rollout, and lanes that tick at different rows."""
    core = core_of(period=period, memory=True)
    x, first, noise = rows_of(core, 15, 5)
    found = []
    for links in (dnc.TemporalLinks, PlainLinks):
        monkeypatch.setattr(recurrent, "TemporalLinks", links)
        before = zeros(core, 5) | {"count": torch.arange(5), "prior_scale": torch.ones(5, 8)}
        before["memory"]["link"].requires_grad_()
        z, after, latent = core.unroll(x, first, before, noise=noise)
        loss = z.square().sum() + sum(term.sum() for term in kl_terms(latent).values())
        loss = loss + after["memory"]["link"].square().sum()
        found.append(torch.autograd.grad(loss, [*core.parameters(), before["memory"]["link"]]))
    assert len(found[0]) == 1 + len(list(core.parameters()))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))
