"""Replay: what a RolloutQueue becomes when samples are drawn more than once. Imports no torch.

`Replay` describes one, `Replay.open` makes its `Memory`; docs/concepts/replay.md.
"""

from typing import Any

from polyplay.buffers.replay.buffer import ReplayBuffer
from polyplay.buffers.replay.spec import Proportional, Rank, Replay, Sampler, Uniform
from polyplay.buffers.replay.storage import codec

__all__ = ["Proportional", "Rank", "Replay", "ReplayBuffer", "Sampler", "Uniform", "codec", "replay_of"]


def replay_of(kw: Any) -> Replay | None:
    """What a role that was wired with `kw` keeps or draws from, or None."""
    return kw.get("replay") or getattr(kw.get("source"), "replay", None) or getattr(kw.get("out"), "replay", None)
