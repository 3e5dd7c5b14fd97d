"""Replay: what a RolloutQueue becomes when samples are drawn more than once. Imports no torch.

`Replay` describes one, `Replay.open` makes its `ReplayBuffer`; docs/concepts/replay.md.
"""

from typing import TYPE_CHECKING

from polyplay.buffers.replay.spec import Proportional, Replay, Sampler, Uniform

if TYPE_CHECKING:
    from polyplay.buffers.replay.buffer import ReplayBuffer

__all__ = ["Proportional", "Replay", "ReplayBuffer", "Sampler", "Uniform"]


def __getattr__(name: str) -> object:
    """ReplayBuffer is loaded on first use: it brings numba, 0.4 s, and who only describes a replay needs none."""
    if name != "ReplayBuffer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from polyplay.buffers.replay.buffer import ReplayBuffer

    return ReplayBuffer
