"""Replay: what a RolloutQueue becomes when samples are drawn more than once. Imports no torch.

`Replay` describes one, `Replay.open` makes its `ReplayBuffer`; docs/concepts/replay.md.
"""

from polyplay.buffers.replay.buffer import ReplayBuffer
from polyplay.buffers.replay.spec import Proportional, Replay, Sampler, Uniform

__all__ = ["Proportional", "Replay", "ReplayBuffer", "Sampler", "Uniform"]
