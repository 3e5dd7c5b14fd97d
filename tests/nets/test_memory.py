"""The memory as a whole: against loops over numbers, to the bit in every batch, and learning to copy with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.nets.dnc import Memory
from tests.nets.test_addressing import weights

BITS = 4


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


def test_it_takes_and_gives_what_it_says():
    memory = Memory()
    assert (memory.interface, memory.features) == (32 * 4 + 3 * 32 + 5 * 4 + 3, 128)
    assert tree.nbytes(memory.state_spec()) == 4 * (450 * 32 + 450 * 450 + 7 * 450)
    assert not list(memory.parameters())
    words, after = memory(torch.randn(2, memory.interface), blank(memory, 2))
    assert words.shape == (2, 128)
    assert {k: v.shape for k, v in after.items()} == {k: v.shape for k, v in blank(memory, 2).items()}
    assert all(v.dtype == torch.float32 for v in after.values())
    with pytest.raises(ValueError, match=r"interface must be \[B, 247\]; got \[2, 246\]"):
        memory(torch.randn(2, 246), blank(memory, 2))


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
    memory = Memory(4, 3, 2)
    state = used(memory, 2)
    written = state.pop("write_weights")

    def access(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        words, after = memory(x, {**dict(zip(state, given, strict=True)), "write_weights": written})
        return (words, *after.values())

    inputs = [torch.randn(2, memory.interface).double(), *state.values()]
    assert torch.autograd.gradcheck(access, [x.requires_grad_() for x in inputs])


def test_gradients_through_many_accesses_are_finite():
    memory = Memory(20, 6, 2)
    x, state, total = (torch.randn(60, 3, memory.interface) * 5).requires_grad_(), blank(memory, 3), 0.0
    for row in x:
        words, state = memory(row, state)
        total = total + words.square().sum()
    total.backward()
    assert x.grad.isfinite().all()
    assert (x.grad[0] != 0).any()


class Copier(nn.Module):
    """An LSTM of 64 with a memory 16x8 of one read head, or without."""

    def __init__(self, memory: Memory | None):
        super().__init__()
        self.memory, words = memory, 0 if memory is None else memory.features
        self.cell = nn.LSTMCell(BITS + 2 + words, 64)
        self.interface = None if memory is None else nn.Linear(64, memory.interface)
        self.output = nn.Linear(64 + words, BITS)

    def forward(self, x: Tensor) -> Tensor:
        lanes, outputs = x.shape[1], []
        h = c = torch.zeros(lanes, 64)
        words = torch.zeros(lanes, self.output.in_features - 64)
        state = {} if self.memory is None else blank(self.memory, lanes)
        for row in x:
            h, c = self.cell(torch.cat([row, words], 1), (h, c))
            if self.memory is not None:
                words, state = self.memory(self.interface(h), state)
            outputs.append(self.output(torch.cat([h, words], 1)))
        return torch.stack(outputs)


def phrases(lanes: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Start, 1..longest words of random bits, stop, then the words are due: inputs, targets, where they count."""
    x, target = torch.zeros(2 * longest + 2, lanes, BITS + 2), torch.zeros(2 * longest + 2, lanes, BITS)
    due = torch.zeros(2 * longest + 2, lanes, 1)
    x[0, :, BITS] = 1.0
    for b, n in enumerate(torch.randint(1, longest + 1, (lanes,)).tolist()):
        words = torch.randint(0, 2, (n, BITS)).float()
        x[1 : n + 1, b, :BITS], target[n + 2 : 2 * n + 2, b], due[n + 2 : 2 * n + 2, b] = words, words, 1.0
        x[n + 1, b, BITS + 1] = 1.0
    return x, target, due


def learn(net: Copier, updates: int, longest: int) -> tuple[list[float], list[float]]:
    """The loss and the wrong bits, both per phrase, of every update."""
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    losses, wrong = [], []
    for _ in range(updates):
        x, target, due = phrases(16, longest)
        logits = net(x)
        loss = (F.binary_cross_entropy_with_logits(logits, target, reduction="none") * due).sum() / 16
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimiser.step()
        losses.append(loss.item())
        wrong.append((((logits > 0) != (target > 0)) * due).sum().item() / 16)
    return losses, wrong


def test_it_begins_to_copy():
    losses, _ = learn(Copier(Memory(16, 8, 1)), 150, longest=2)
    assert np.mean(losses[-10:]) < 0.4 * np.mean(losses[:10])


@pytest.mark.long
def test_it_learns_to_copy():
    """Before the same controller without the memory does."""
    _, wrong = learn(Copier(Memory(16, 8, 1)), 700, longest=4)
    torch.manual_seed(0)
    _, without = learn(Copier(None), 700, longest=4)
    assert np.mean(wrong[-100:]) < min(0.1, 0.5 * np.mean(without[-100:]))
