"""Cores: cells are torch's, two clocks are the publication's recursion, a memory is loops over numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.nets import recurrent
from polyplay.nets.layers import Linear
from polyplay.nets.recurrent import Memory, Temporal, kl_terms


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


# The memory of the differentiable neural computer.


QUICK = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**31)
LANES, SLOTS, READS, WORD = st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.integers(1, 6)


def weights(*shape: int) -> Tensor:
    """Random, some of them 0, with a sum of at most 1, exactly 1 now and then; float64."""
    raw = torch.rand(*shape, dtype=torch.float64) * (torch.rand(*shape) < 0.7)
    total = raw.sum(-1, keepdim=True).clamp_min(1e-3)
    return raw / total * torch.rand(*shape[:-1], 1, dtype=torch.float64).mul(1.3).clamp_max(1.0)


# Links along the order of writing: values and gradients are those of plain operations, and few rows are kept.


def plain_links(link: Tensor, precedence: Tensor, write: Tensor, read: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As _FollowLinks, one lane after the other."""
    found, others = [], 1.0 - torch.eye(precedence.shape[1], dtype=precedence.dtype)
    for old, p, w, r in zip(link, precedence, write, read, strict=True):
        new = ((1.0 - w[:, None] - w[None, :]) * old + torch.outer(w, p)) * others
        found.append((new, r @ new.T, r @ new))
    return tuple(torch.stack(x) for x in zip(*found, strict=True))


@settings(QUICK, max_examples=20)
@given(SEEDS, LANES, SLOTS, READS)
def test_links_and_their_gradients_are_those_of_plain_operations(seed, lanes, slots, reads):
    torch.manual_seed(seed)
    given = torch.rand(lanes, slots, slots).double() / slots, weights(lanes, slots), weights(lanes, slots)
    given = [x.requires_grad_() for x in (*given, weights(lanes, reads, slots))]
    shares, found = [], []
    for follow in (recurrent._FollowLinks.apply, plain_links):
        out = follow(*given)
        shares = shares or [torch.randn_like(x) for x in out]
        total = sum((x.square() * share).sum() for x, share in zip(out, shares, strict=True))
        found.append([*out, *torch.autograd.grad(total, given)])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("most", [2, 5, 10**9])  # rows at once of 12
def test_an_unroll_is_the_same_whatever_it_computes_anew(monkeypatch, most):
    torch.manual_seed(0)
    core, (rows, lanes) = Temporal(5, 8, memory=Memory(6, 4, 2)), (12, 3)
    core.apply_hyperparameters({"period": 2.0})
    x, first, noise = torch.randn(rows, lanes, 5), torch.rand(rows, lanes) < 0.2, torch.randn(rows, lanes, 8)
    found, computed = [], []
    step = core._step
    monkeypatch.setattr(core, "_step", lambda *given: (computed.append(1), step(*given))[1])
    for limit in (10**9, most):
        monkeypatch.setattr(recurrent, "LINKS", limit * 2 * lanes * 36)
        computed.clear()
        z, after, latent = core.unroll(x, first, zeros(core, lanes), noise=noise)
        grads = torch.autograd.grad(z.square().sum() + kl_terms(latent)["kl_prior"].sum(), [*core.parameters()])
        found.append([z, *latent[:4], *(leaf for _, leaf in tree.leaves(after)), *grads])
        assert len(computed) == (rows if limit >= rows else 2 * rows)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


# The memory as a whole: against loops over numbers, to the bit in every batch, and learning to copy with it.


def blank(memory: Memory, lanes: int) -> dict[str, Tensor]:
    return tree.map(torch.from_numpy, tree.zeros(memory.state_spec(), (lanes,)))


def used(memory: Memory, lanes: int) -> dict[str, Tensor]:
    """A random state that an access could have left, float64."""
    n, state = memory.slots, tree.map(lambda x: x.double(), blank(memory, lanes))
    link = torch.rand(lanes, n, n).double() / n * (1 - torch.eye(n))
    state |= {"memory": torch.randn(lanes, n, memory.word).double(), "usage": torch.rand(lanes, n).double()}
    state |= {"link": link, "precedence": weights(lanes, n), "write_weights": weights(lanes, n)}
    return state | {"read_weights": weights(lanes, memory.reads, n)}


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + np.exp(-x))


def look_up(memory: np.ndarray, key: np.ndarray, strength: float) -> np.ndarray:
    scores = []
    for word in memory:
        lengths = np.sqrt(sum(x * x for x in key) + 1e-6) * np.sqrt(sum(x * x for x in word) + 1e-6)
        scores.append(
            np.log1p(np.exp(strength)) * sum(x * y for x, y in zip(key, word, strict=True)) / (lengths + 1e-6)
        )
    powers = [np.exp(s) for s in scores]
    return np.array([p / sum(powers) for p in powers])


def access_twin(x: np.ndarray, s: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """One lane's access, loops over slots and numbers; `s` is written to."""
    (slots, word), reads = s["memory"].shape, len(s["read_weights"])
    x = list(x)[::-1]
    take = lambda n: np.array([x.pop() for _ in range(n)])  # noqa: E731
    vector, erase, free = take(word), sigmoid(take(word)), sigmoid(take(reads))
    (allocate,), (write_gate,) = sigmoid(take(1)), sigmoid(take(1))
    modes = [np.exp(m) / np.exp(m).sum() for m in (take(3) for _ in range(reads))]
    write_key, read_keys = take(word), [take(word) for _ in range(reads)]
    (write_strength,), read_strengths = take(1), take(reads)
    before = {k: v.copy() for k, v in s.items()}
    for i in range(slots):
        s["usage"][i] = 1 - (1 - s["usage"][i]) * (1 - s["write_weights"][i])
        for r in range(reads):
            s["usage"][i] *= 1 - free[r] * s["read_weights"][r, i]
    allocation, left = np.zeros(slots), 1.0
    for i in sorted(range(slots), key=lambda i: s["usage"][i]):
        level = 1e-6 + (1 - 1e-6) * s["usage"][i]
        allocation[i], left = (1 - level) * left, left * level
    content = look_up(s["memory"], write_key, write_strength)
    w = s["write_weights"] = write_gate * (allocate * allocation + (1 - allocate) * content)
    for i in range(slots):
        for k in range(word):
            s["memory"][i, k] = s["memory"][i, k] * (1 - w[i] * erase[k]) + w[i] * vector[k]
        for j in range(slots):
            kept = (1 - w[i] - w[j]) * s["link"][i, j] + w[i] * before["precedence"][j]
            s["link"][i, j] = 0.0 if i == j else kept
        s["precedence"][i] = (1 - sum(w)) * before["precedence"][i] + w[i]
    words = []
    for r in range(reads):
        content = look_up(s["memory"], read_keys[r], read_strengths[r])
        for i in range(slots):
            back = sum(s["link"][j, i] * before["read_weights"][r, j] for j in range(slots))
            ahead = sum(s["link"][i, j] * before["read_weights"][r, j] for j in range(slots))
            s["read_weights"][r, i] = modes[r] @ [back, content[i], ahead]
        words += [sum(s["read_weights"][r, i] * s["memory"][i, k] for i in range(slots)) for k in range(word)]
    return np.array(words), s


@pytest.mark.parametrize("dims", [(4, 3, 2), (6, 5, 1), (7, 2, 4)])
def test_an_access_is_loops_over_numbers(dims):
    memory = Memory(*dims)
    state, x = used(memory, 3), torch.randn(4, 3, memory.interface).double()
    lanes = [{k: v[b].numpy().copy() for k, v in state.items()} for b in range(3)]
    for row in x:
        words, state = memory(row, state)
        for b in range(3):
            expected, lanes[b] = access_twin(row[b].numpy(), lanes[b])
            np.testing.assert_allclose(words[b], expected, rtol=1e-9, atol=1e-12)
            for name in state:
                np.testing.assert_allclose(state[name][b], lanes[b][name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("dims", [(450, 32, 4), (37, 9, 2), (16, 8, 1)])
def test_a_lane_is_to_the_bit_the_same_in_every_batch(dims):
    memory = Memory(*dims)
    rows = torch.randn(4, 33, memory.interface) * 2

    def play(lanes: slice) -> dict[str, Tensor]:
        state = blank(memory, len(range(33)[lanes]))
        for x in rows:
            words, state = memory(x[lanes], state)
        return {**state, "words": words}

    batches = [(n, play(slice(0, n))) for n in (5, 16, 33)]
    for i in range(0, 33, 3):
        alone = play(slice(i, i + 1))
        for n, batch in batches:
            assert i >= n or all(torch.equal(batch[k][i], alone[k][0]) for k in alone), (n, i)


def test_gradients_of_an_access():
    """Not to the last write's weights: usage takes none, as released."""
    memory = Memory(3, 2, 2)
    state = used(memory, 2)
    written = state.pop("write_weights")

    def numbers(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        words, after = memory(x, {**dict(zip(state, given, strict=True)), "write_weights": written})
        return (words, *after.values())

    inputs = [torch.randn(2, memory.interface).double(), *state.values()]
    assert torch.autograd.gradcheck(numbers, [x.requires_grad_() for x in inputs])
