"""Replay: what a RolloutQueue becomes when samples are drawn more than once. Imports no torch.

`Replay` describes one, `Replay.open` makes its `ReplayBuffer`; docs/replay.md.
"""

from collections.abc import Mapping
from typing import Any

from polyplay.buffers.replay.buffer import ReplayBuffer
from polyplay.buffers.replay.spec import Proportional, Replay, Sampler, Uniform

__all__ = ["Proportional", "Replay", "ReplayBuffer", "Sampler", "Uniform", "replay_of"]


def replay_of(kw: Mapping[str, Any]) -> Replay | None:
    """What a role that was wired with `kw` stores or draws from, or None."""
    return kw.get("replay") or getattr(kw.get("source"), "replay", None) or getattr(kw.get("out"), "replay", None)
