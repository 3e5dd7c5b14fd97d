"""Layers whose outputs are at hand from acting: nothing is computed again, only gradients go back through them.

At lag 0 the weights that learn are those that acted, so the learner's forward pass would repeat the actor's. `act`
fills a tape with each layer's output; `join_tapes` puts the tapes of a rollout together; in `unroll` each layer takes
its output from there. What lies between them (padding, flattening, heads, cores) is computed anew: it is cheap.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

Pair = tuple[int, ...]
Tape = list[Tensor]  # a layer's output each, [N, …], after its ReLU


def join_tapes(tapes: list[Tape]) -> Tape:
    """Tapes of n acts as one, in their order: rows are laid end to end."""
    return [torch.cat(outputs) for outputs in zip(*tapes, strict=True)]


def recall(layer: nn.Conv2d | nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """relu(layer(x)), known to be y."""
    assert layer.bias is not None
    arguments = x.to(y.dtype), layer.weight.to(y.dtype), layer.bias.to(y.dtype), y
    if isinstance(layer, nn.Conv2d):
        return _Conv.apply(*arguments, layer.stride, layer.padding)
    return _Linear.apply(*arguments)


class Context(FunctionCtx):
    """What a forward pass leaves for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    stride: Pair
    padding: Pair
    biases: list[int]


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor, stride: Pair, padding: Pair
    ) -> Tensor:
        ctx.save_for_backward(x, weight, y)
        ctx.stride, ctx.padding, ctx.biases = stride, padding, list(bias.shape)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        back = torch.ops.aten.threshold_backward(grad, y, 0)
        wanted = [ctx.needs_input_grad[0], True, True]
        grads = torch.ops.aten.convolution_backward(
            back, x, weight, ctx.biases, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1, wanted
        )
        return *grads, None, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, y)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        back = torch.ops.aten.threshold_backward(grad, y, 0)
        return back @ weight, back.t() @ x, back.sum(0), None
