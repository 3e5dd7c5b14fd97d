"""The numbers a network's torso is computed in. Weights, cores, heads, losses and optimisers are float32 always; but in
networks of action values the core's input and the head's hidden layers, being as large, go with the torso.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyplay.common.errors import UserError


def is_half(how: str, device: str = "cpu") -> bool:
    """Whether `how` is bfloat16 on this device: auto says yes where the processor multiplies such numbers itself."""
    if how != "auto":
        return how == "bfloat16"
    if device != "cpu":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return any(bool(has.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def set_precision(policy: Any, how: str) -> Any:
    """The policy, from now on in `how`. Raises UserError: it is a user's own, which says itself what it computes in."""
    own = not hasattr(policy, "bf16")
    if own and how == "bfloat16":
        raise UserError("--precision bfloat16: this --network is a whole policy, with numbers of its own; leave it out")
    if not own:
        policy.bf16 = is_half(how, next(policy.parameters()).device.type)
    return policy


def is_mixed(like: Tensor) -> Any:
    """The context to compute in, where `like` lies: convolutions and products of bfloat16, added up in float32."""
    return torch.autocast(like.device.type, torch.bfloat16)
