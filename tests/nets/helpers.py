"""Environments' specs, random rollouts, and a module's parameters as views of one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyplay import tree
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Box, Discrete
from polyplay.nets import Policy
from polyplay.tree import Batch, Field, Spec


def discrete(obs: Spec, n: int = 6, **more: Any) -> EnvSpec:
    return EnvSpec(obs, Discrete(n), **more)


def continuous(obs: Spec, *shape: int) -> EnvSpec:
    return EnvSpec(obs, Box(shape, np.full(shape, -1, np.float32), np.full(shape, 1, np.float32)))


def vector(n: int) -> Field:
    return Field((n,), "float32")


def image(channels: int = 4, side: int = 84) -> Field:
    return Field((channels, side, side), "uint8")


def observations(spec: Spec, *lead: int) -> Any:
    """Random observations from torch's global generator."""

    def draw(field: Field) -> Tensor:
        if field.dtype == "float32":
            return torch.randn(*lead, *field.shape)
        return torch.randint(0, 256 if field.dtype == "uint8" else 3, (*lead, *field.shape)).to(
            getattr(torch, field.dtype)
        )

    return tree.map(draw, spec)


def arrivals(spec: Spec, rows: int, lanes: int, noise: int) -> Batch:
    """Rows as they come from a pool, with noise."""
    first = torch.rand(rows, lanes) < 0.2
    first[0] |= torch.rand(lanes) < 0.5
    return {
        "obs": observations(spec, rows, lanes),
        "reward": torch.randn(rows, lanes) * 2,
        "first": first,
        "noise": torch.rand(rows, lanes, noise),
    }


def play(policy: Policy, batch: Batch, state: Batch) -> tuple[Batch, Batch]:
    """Act row by row: outputs [T+1, B] and the state behind the last row."""
    said = []
    for t in range(len(batch["first"])):
        with torch.no_grad():
            out, state = policy.act(tree.map(lambda x, t=t: x[t], batch), state)
        said.append(out)
    return {k: torch.stack([out[k] for out in said]) for k in said[0]}, state


def bind(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Make all parameters and gradients views of one vector each, both returned."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    grad = torch.zeros_like(flat)
    at = 0
    for p in parameters:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grad[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grad


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
