"""Policies, pools and batches where the network is on a device: what acting and learning see of it there.

On a CPU every function here gives back what it was given.
"""

from __future__ import annotations

from typing import Any

import torch

from polyplay.buffers.rollout_queue import Stream
from polyplay.common import tree
from polyplay.common.tree import Batch
from polyplay.nets.device import fetch, put


def near(policy: Any) -> Any:
    """A policy that hears and answers on the CPU, wherever its weights are."""
    device = next(policy.parameters()).device
    return policy if device.type == "cpu" else Near(policy, device)


class Near:
    """One copy there (observations that are there already stay), one copy back per call."""

    def __init__(self, policy: Any, device: torch.device):
        self.policy, self.device = policy, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def initial(self, lanes: int) -> Batch:
        return tree.map(lambda x: x.cpu(), self.policy.initial(lanes))

    def act(self, step: Batch, state: Batch, *tape: Any) -> tuple[Batch, Batch]:
        """See Policy.act. What goes on a tape stays on the device."""
        out, after = self.policy.act(put(step, self.device), put(state, self.device), *tape)
        both = fetch({"out": out, "after": after} if after else {"out": out})
        return both["out"], both.get("after", {})


def arriving(pool: Any, stream: Stream, device: torch.device) -> Any:
    """A replica's pool, whose observations go to the device as they arrive, once; there the stream's rows keep them,
    and both acting and learning read them. (Those of pools that answer whoever is ready stay on the CPU until learnt.)
    """
    if device.type == "cpu" or not pool.fixed:
        return pool
    stream.rows["obs"] = tree.map(lambda x: torch.zeros_like(torch.from_numpy(x), device=device), stream.rows["obs"])
    return Arriving(pool, device)


class Arriving:
    def __init__(self, pool: Any, device: torch.device):
        self.pool, self.device = pool, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def arrive(self, step: Batch) -> Batch:
        return {**step, "obs": put(step["obs"], self.device)}

    def recv(self, timeout: float | None = None) -> tuple[Any, Batch]:
        """See Pool."""
        lanes, step = self.pool.recv(timeout)
        return lanes, self.arrive(step)


def arrived(pool: Any, step: Batch) -> Batch:
    """A row that was saved, as such a pool gave it."""
    return pool.arrive(step) if isinstance(pool, Arriving) else step
