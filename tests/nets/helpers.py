"""Environments' specs, random rollouts, and a module's parameters as views of one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.tree import Batch, Field, Spec
from polyplay.envs.pool import EnvSpec, space_to_json
from polyplay.envs.spaces import Box, Conditional, Discrete, MultiBinary, MultiDiscrete
from polyplay.nets import ActorCritic


def discrete(obs: Spec, n: int = 6, **more: Any) -> EnvSpec:
    return EnvSpec(obs, Discrete(n), **more)


def declared(shown: gym.Space, obs: Spec) -> EnvSpec:
    """Of an environment whose space of observations is `shown`."""
    spaces = {"observation": space_to_json(shown), "action": space_to_json(gym.Discrete(2))}
    return discrete(obs, 2, spaces=spaces)


def continuous(obs: Spec, *shape: int) -> EnvSpec:
    return EnvSpec(obs, Box(shape, np.full(shape, -1, np.float32), np.full(shape, 1, np.float32)))


def hybrid(obs: Spec) -> EnvSpec:
    """Every kind of action at once, some with masks."""
    box = continuous(obs, 2).action
    action = {"a": MultiDiscrete((2, 2), (2, 3, 1, 4)), "b": {"0": MultiBinary((3,)), "1": box}, "c": Discrete(5)}
    mask = {"a": Field((10,), "bool"), "b": {"0": Field((6,), "bool")}, "c": Field((5,), "bool")}
    return EnvSpec(obs, action, mask=mask)


def conditional(obs: Spec) -> EnvSpec:
    """A first part and others that only some of its values use, with masks in either form."""
    box = continuous(obs, 2).action
    parts = {"a": Discrete(4), "b": Discrete(5), "c": MultiDiscrete((2,), (2, 3)), "d": box}
    mask = {"a": Field((4,), "bool"), "b": Field((4, 5), "bool"), "c": Field((5,), "bool")}
    return EnvSpec(obs, Conditional(parts, {"b": (1, 3), "c": (0, 1, 2, 3), "d": (2,)}), mask=mask)


def masks(spec: EnvSpec, *lead: int) -> Any:
    """Random masks that leave something for each number."""

    def draw(leaf: Any, field: Field) -> Tensor:
        sizes, front = leaf.classes, (*lead, *field.shape[:-1])
        parts = [(torch.rand(*front, n) < 0.5).scatter(-1, torch.randint(n, (*front, 1)), True) for n in sizes]
        return torch.cat(parts, -1)

    leaves, wanted = dict(tree.leaves(spec.action)), dict(tree.leaves(spec.mask))
    return tree.nest({path: draw(leaves[path], field) for path, field in wanted.items()})


def every_action(action: Any) -> tuple[Any, Tensor, list[int]]:
    """All actions of whole numbers, [number of them, …]; the same as rows of numbers; how many values each has."""
    leaves = list(tree.leaves(action))
    sizes = [n for _, leaf in leaves for n in leaf.classes]
    values = torch.cartesian_prod(*(torch.arange(n) for n in sizes)).reshape(-1, len(sizes))
    parts = values.split([len(leaf.classes) for _, leaf in leaves], 1)
    shaped = {
        path: v.reshape(len(v), *leaf.field.shape).to(getattr(torch, leaf.field.dtype))
        for (path, leaf), v in zip(leaves, parts, strict=True)
    }
    return tree.nest(shaped), values, sizes


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


def play(policy: ActorCritic, batch: Batch, state: Batch) -> tuple[Batch, Batch]:
    """Act row by row: outputs [T+1, B] and the state behind the last row."""
    said = []
    for t in range(len(batch["first"])):
        with torch.no_grad():
            out, state = policy.act(tree.map(lambda x, t=t: x[t], batch), state)
        said.append(out)
    return tree.map(lambda *rows: torch.stack(rows), *said), state


def unroll_in_pieces(policy: Any, batch: Batch, state: Batch, n: int) -> Batch:
    """policy.unroll with n rows at once in a torso: as many as act together."""
    whole = policy._features

    def features(torso: nn.Module, obs: Any) -> Tensor:
        rows = len(next(tree.leaves(obs))[1])
        pieces = (tree.map(lambda x, at=at: x[at : at + n], obs) for at in range(0, rows, n))
        return torch.cat([whole(torso, piece) for piece in pieces])

    policy._features = features
    try:
        return policy.unroll(batch, state)
    finally:
        del policy._features


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
