"""A network as one flat vector: parameters first, floating buffers behind them, those of float64 last.

A number of float64 takes the place of two of float32, bit by bit: whatever copies a vector copies it. Only what
averages or adds buffers has to know where they begin (`FlatParams.doubles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from polyplay.common.errors import UserError
from polyplay.nets.policy import Network


def param_sizes(module: Network) -> tuple[int, int]:
    """(parameters, parameters and floating buffers): the lengths of a module's gradient and of its vector."""
    weights = sum(p.numel() for p in module.parameters())
    singles, doubles = (sum(b.numel() for b in of) for of in _buffers(module))
    end = weights + singles
    return weights, end + (end % 2 + 2 * doubles if doubles else 0)  # numbers of float64 lie at even places


def _buffers(module: Network) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Floating buffers of float32, and those of float64."""
    floating = [b for b in module.buffers() if b.is_floating_point()]
    doubles = [b for b in floating if b.dtype == torch.float64]
    return [b for b in floating if b.dtype != torch.float64], doubles


def as_doubles(numbers: torch.Tensor | np.ndarray) -> Any:
    """The last numbers [2 · n] of float32 as those of float64 that they are, in the same memory."""
    if isinstance(numbers, np.ndarray):
        return numbers.view(np.float64)
    return numbers.view(torch.float64) if len(numbers) else numbers.double()  # none may lie at any place


def module_nbytes(module: Network) -> int:
    """Bytes of a module's parameters and buffers."""
    return sum(x.numel() * x.element_size() for x in (*module.parameters(), *module.buffers()))


class FlatParams:
    """Binds a module: all its parameters, gradients and floating buffers become views of flat tensors.

    Keep gradients zeroed in place (`zero_grad`), never None; don't move the module afterwards (`.to`).

    memory: float32 [size], an array or a tensor where the module is: there the weights shall lie; several may lie in
    one memory, each with its own gradient (a shared module would share `.grad` too, and trip autograd's version
    counter). write: put the module's weights there; otherwise it takes what is there. grad: float32 [weights or more],
    where the gradient of a module on a CPU shall lie.

    doubles: where in the vector the buffers of float64 begin; its length where there are none.
    """

    def __init__(
        self,
        module: Network,
        memory: np.ndarray | torch.Tensor | None = None,
        write: bool = True,
        grad: np.ndarray | None = None,
    ):
        self.module = module
        parameters = list(module.parameters())
        singles, doubles = _buffers(module)
        _check_dense(module)
        self.weights, self.size = param_sizes(module)
        self.doubles = self.size - 2 * sum(b.numel() for b in doubles)
        device = parameters[0].device
        self.flat = torch.zeros(self.size, device=device) if memory is None else torch.as_tensor(memory)
        given = None if grad is None or device.type != "cpu" else torch.from_numpy(grad[: self.weights])
        self.grad = torch.zeros(self.weights, device=device) if given is None else given.zero_()
        at = 0
        for x in [*parameters, *singles]:
            self._bind(x, self.flat[at : at + x.numel()], write)
            if at < self.weights:
                x.grad = self.grad[at : at + x.numel()].view(x.shape)
            at += x.numel()
        at, numbers = 0, as_doubles(self.flat[self.doubles :])
        for buffer in doubles:
            self._bind(buffer, numbers[at : at + buffer.numel()], write)
            at += buffer.numel()
        self.parameter = nn.Parameter(self.flat[: self.weights])
        self.parameter.grad = self.grad
        self._host = self.flat.numpy() if device.type == "cpu" else None

    @staticmethod
    def _bind(x: torch.Tensor, numbers: torch.Tensor, write: bool) -> None:
        """The tensor is a view of these from now on."""
        view = numbers.view(x.shape)
        if write:
            view.copy_(x.detach())
        x.data = view

    def buffers(self) -> list[torch.Tensor]:
        """The floating buffers: those of float32, and those of float64."""
        return buffers_in(self.flat, self.weights, self.doubles)

    def finite(self) -> bool:
        """Whether all its numbers are."""
        parts = [self.flat[: self.weights], *self.buffers()]
        return all(bool(part.isfinite().all()) for part in parts)

    def zero_grad(self) -> None:
        self.grad.zero_()

    def read(self) -> np.ndarray:
        """float32 [size]: the vector itself on a CPU, a copy of it elsewhere."""
        return self._host if self._host is not None else self.flat.cpu().numpy()

    def write(self, vector: np.ndarray) -> None:
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(vector))


def buffers_in(flat: Any, weights: int, doubles: int) -> list[Any]:
    """Of a vector, of which numbers of float64 begin at `doubles`: its floating buffers, views of either kind."""
    return [flat[weights:doubles], as_doubles(flat[doubles:])]


def _check_dense(module: Network) -> None:
    for name, x in module.named_parameters():
        if x.dtype != torch.float32 or x.layout != torch.strided:
            raise UserError(f"network: {name} is {x.dtype}, {x.layout}; every weight must be dense float32")
    for name, buffer in module.named_buffers():
        dense = buffer.dtype in (torch.float32, torch.float64) and buffer.layout == torch.strided
        if buffer.is_floating_point() and not dense:
            allowed = "every floating buffer must be dense float32 or float64"
            raise UserError(f"network: {name} is {buffer.dtype}, {buffer.layout}; {allowed}")
