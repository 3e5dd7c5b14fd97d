from __future__ import annotations

import pytest
import torch
from torch import nn

from polyplay.core.errors import UserError
from polyplay.nets import recurrent
from tests.nets.helpers import parameters


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
    for seed in range(30):
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


def test_an_lstm_has_one_bias_and_remembers_at_first():
    core = recurrent.make_core("lstm", 10, 4)
    assert parameters(core) == 4 * 4 * (10 + 4 + 1)
    assert core.input.bias.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


def test_gradients_flow_back_through_time_but_not_past_a_first_row():
    core = recurrent.make_core("gru", 3, 8)
    x, first = torch.randn(5, 2, 3, requires_grad=True), torch.zeros(5, 2, dtype=torch.bool)
    first[3, 1] = True
    core.unroll(x, first, {"h": torch.zeros(2, 8)})[0][4].sum().backward()
    assert (x.grad[:, 0].abs().sum(1) > 0).all()
    assert (x.grad[:, 1].abs().sum(1) > 0).tolist() == [False, False, False, True, True]


def test_names_are_checked():
    assert recurrent.make_core("none", 3, 8) is None
    with pytest.raises(UserError, match="core: 'rnn' is not one of none, lstm, gru"):
        recurrent.make_core("rnn", 3, 8)
