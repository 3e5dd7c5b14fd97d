"""A network as one flat vector: parameters first, floating buffers behind them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from polyplay.common.errors import UserError
from polyplay.nets.policy import Network


def param_sizes(module: Network) -> tuple[int, int]:
    """(parameters, parameters and floating buffers): the lengths of a module's gradient and of its vector."""
    weights = sum(p.numel() for p in module.parameters())
    return weights, weights + sum(b.numel() for b in module.buffers() if b.is_floating_point())


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
        buffers = [b for b in module.buffers() if b.is_floating_point()]
        for name, x in list(module.named_parameters()) + list(module.named_buffers()):
            if x.is_floating_point() and (x.dtype != torch.float32 or x.layout != torch.strided):
                raise UserError(f"network: {name} is {x.dtype}, {x.layout}; every weight must be dense float32")
        self.weights, self.size = param_sizes(module)
        device = parameters[0].device
        self.flat = torch.empty(self.size, device=device) if memory is None else torch.as_tensor(memory)
        given = None if grad is None or device.type != "cpu" else torch.from_numpy(grad[: self.weights])
        self.grad = torch.zeros(self.weights, device=device) if given is None else given.zero_()
        at = 0
        for x in [*parameters, *buffers]:
            view = self.flat[at : at + x.numel()].view(x.shape)
            if write:
                view.copy_(x.detach())
            x.data = view
            if at < self.weights:
                x.grad = self.grad[at : at + x.numel()].view(x.shape)
            at += x.numel()
        self.parameter = nn.Parameter(self.flat[: self.weights])
        self.parameter.grad = self.grad
        self._host = self.flat.numpy() if device.type == "cpu" else None

    def zero_grad(self) -> None:
        self.grad.zero_()

    def read(self) -> np.ndarray:
        """float32 [size]: the vector itself on a CPU, a copy of it elsewhere."""
        return self._host if self._host is not None else self.flat.cpu().numpy()

    def write(self, vector: np.ndarray) -> None:
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(vector))
