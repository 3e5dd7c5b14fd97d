"""Recurrent cores: our own LSTM and GRU, since cuDNN's packed weights can't be views of one vector.

The input's matrix product is done for all rows at once, the state's per step, with the state zeroed where an
episode begins, before that row is consumed. Acting is an unroll of one row, so both take the same path.
"""

from __future__ import annotations

import contextlib
import math
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Field, Spec
from polyplay.nets.layers import Linear, initialise, pad_lanes


class Cell(nn.Module):
    """One step: the input's share of the gates [B, gates·size] and the state → next state, output first."""

    names: tuple[str, ...]
    gates: int
    bias = False

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        self.recurrent = nn.Linear(size, self.gates * size, bias=self.bias)


class LSTMCell(Cell):
    """Hochreiter & Schmidhuber 1997 with forget gate, one bias; gates: input, forget, output, candidate."""

    names = ("h", "c")
    gates = 4

    def forward(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = state
        return lstm_step(torch.addmm(gates, h, self.recurrent.weight.t()), c)


def lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c behind gates [B, 4·size], as LSTMCell has them in order, and c [B, size]."""
    three = 3 * c.shape[1]
    i, f, o = torch.sigmoid(gates[:, :three]).chunk(3, 1)
    c = f * c + i * torch.tanh(gates[:, three:])
    return o * torch.tanh(c), c


class GRUCell(Cell):
    """Cho et al. 2014 as cuDNN has it (reset after the product); gates: reset, update, candidate."""

    names = ("h",)
    gates = 3
    bias = True  # of it only the candidate's share is not redundant

    def forward(self, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        gates_h = F.linear(h, self.recurrent.weight, self.recurrent.bias)
        two = 2 * self.size
        r, z = torch.sigmoid(gates[:, :two] + gates_h[:, :two]).chunk(2, 1)
        n = torch.tanh(gates[:, two:] + r * gates_h[:, two:])
        return (n + z * (h - n),)


class Core(nn.Module):
    """A cell and its input layer. `inputs` numbers in, `features` out."""

    exact = True  # see layers.Linear

    def __init__(self, cell: Cell, inputs: int, init: str = "orthogonal"):
        super().__init__()
        self.inputs, self.features = inputs, cell.size
        self.input = Linear(inputs, cell.gates * cell.size)
        self.cell = cell
        initialise(self, init, gain=1.0)
        if init == "sonnet":  # IMPALA's is TensorFlow's LSTM: one matrix of input and state, as Glorot & Bengio 2010
            bound = math.sqrt(6.0 / (inputs + cell.size + cell.gates * cell.size))
            for layer in (self.input, cell.recurrent):
                nn.init.uniform_(layer.weight, -bound, bound)
        if cell.gates == 4:  # remember at first: forget bias 1, as TensorFlow's BasicLSTMCell and so IMPALA
            with torch.no_grad():
                self.input.bias[cell.size : 2 * cell.size] += 1.0

    def state_spec(self) -> Spec:
        return {name: Field((self.features,), "float32") for name in self.cell.names}

    def unroll(
        self, x: Tensor, first: Tensor, state: Batch, context: AbstractContextManager[object] = contextlib.nullcontext()
    ) -> tuple[Tensor, Batch, None]:
        """x [T+1, B, inputs], first bool [T+1, B], state before row 0 → [T+1, B, features], state behind. context: what
        the input's product is computed in; all else is float32.
        """
        rows, lanes = first.shape
        with context:
            gates = self.input(x.reshape(rows * lanes, -1))
        gates = gates.view(rows, lanes, -1).float()
        keep = (~first).unsqueeze(-1).to(gates.dtype)
        now = tuple(state[name] for name in self.cell.names)
        if self.exact and (more := pad_lanes(lanes, x.device)):  # whole tiles, for the reason `Linear` has
            gates, keep = (F.pad(v, (0, 0, 0, more)) for v in (gates, keep))
            now = tuple(F.pad(v, (0, 0, 0, more)) for v in now)
        outputs = []
        for gate, alive in zip(gates.unbind(0), keep.unbind(0), strict=True):
            now = self.cell(gate, tuple(v * alive for v in now))
            outputs.append(now[0][:lanes])
        return torch.stack(outputs), {k: v[:lanes] for k, v in zip(self.cell.names, now, strict=True)}, None


CELLS = {"lstm": LSTMCell, "gru": GRUCell}


def make_core(name: str, inputs: int, size: int, init: str = "orthogonal") -> Core | None:
    """An LSTM, a GRU, or None for "none"."""
    if name not in ("none", *CELLS):
        raise UserError(f"core: {name!r} is not one of {', '.join(('none', *CELLS))}")
    return None if name == "none" else Core(CELLS[name](size), inputs, init)
