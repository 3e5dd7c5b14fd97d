"""Replay: what a Stream becomes when samples are drawn more than once. Imports no torch.

`Replay` describes one, `Replay.open` makes its `Memory`; docs/replay.md.
"""

from polyplay.replay.description import Proportional, Rank, Replay, Sampler, Uniform
from polyplay.replay.memory import Memory

__all__ = ["Memory", "Proportional", "Rank", "Replay", "Sampler", "Uniform"]
