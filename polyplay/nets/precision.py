"""The numbers a network's torso is computed in. Weights, cores, heads, losses and optimisers are float32 always; but in
networks of action values the core's input and the head's hidden layers, being as large, go with the torso.
"""

from __future__ import annotations

import contextlib
import functools
import time
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from polyplay.common.errors import UserError
from polyplay.nets.policy import Policy


def is_half(how: str, device: str = "cpu") -> bool:
    """Whether `how` is bfloat16 on this device: auto says yes where the processor multiplies such numbers itself."""
    if how != "auto":
        return how == "bfloat16"
    if device != "cpu":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return any(bool(has.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def choose_precision(how: str) -> str:
    """`how`, but float32 for auto where the processor multiplies bfloat16 itself without gain: some take 1.6 times as
    long. For CPUs; decided once for all processes of a run.
    """
    return "float32" if how == "auto" and is_half(how) and _product(torch.bfloat16) > _product(torch.float32) else how


@functools.cache
def _product(dtype: torch.dtype) -> float:
    """Seconds for a product of two matrices: the least of several."""
    a, b = torch.ones(256, 1024, dtype=dtype), torch.ones(1024, 256, dtype=dtype)
    seconds = []
    for _ in range(10):
        begun = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


@runtime_checkable
class HasPrecision(Protocol):
    """A network that computes in bfloat16 where it is asked to."""

    bf16: bool


def set_precision(policy: Policy, how: str) -> Policy:
    """The policy, from now on in `how`. Raises UserError: it is a user's own, which decides on its precision itself."""
    if isinstance(policy, HasPrecision):
        policy.bf16 = is_half(how, next(policy.parameters()).device.type)
    elif how == "bfloat16":
        raise UserError("--precision bfloat16: this --network is a whole policy, with numbers of its own; leave it out")
    return policy


def precision_of(net: nn.Module, bf16: bool) -> AbstractContextManager[object]:
    """The context to compute in, where `net` lies: with bf16, convolutions and products of such numbers, added up in
    float32.
    """
    if not bf16:
        return contextlib.nullcontext()
    return torch.autocast(next(net.parameters()).device.type, torch.bfloat16)
