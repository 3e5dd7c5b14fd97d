"""Policies, pools and batches where the network is on a device: what acting and learning see of it there.

On a CPU every function here gives back what it was given.
"""

from __future__ import annotations

from typing import cast

import torch

from polyplay.buffers.rollout_slots import RolloutSlots
from polyplay.common import tree
from polyplay.common.tree import Batch
from polyplay.envs.pool import Lanes, Pool
from polyplay.nets.activation_reuse import Tape
from polyplay.nets.device import fetch_outputs, to_device
from polyplay.nets.policy import Policy, TapedPolicy


def policy_from_cpu(policy: Policy) -> Policy:
    """A policy whose inputs and outputs are on the CPU, wherever its weights are."""
    device = next(policy.parameters()).device
    return policy if device.type == "cpu" else cast("Policy", PolicyOnDevice(policy, device))


class PolicyOnDevice:
    """One copy there (observations that are there already stay), one copy back per call."""

    def __init__(self, policy: Policy, device: torch.device):
        self.policy, self.device = policy, device

    def __getattr__(self, name: str) -> object:
        return getattr(self.policy, name)

    def initial(self, lanes: int) -> Batch:
        return tree.map(lambda x: x.cpu(), self.policy.initial(lanes))

    def act(self, step: Batch, state: Batch, *tape: Tape) -> tuple[Batch, Batch]:
        """See Policy.act. What goes on a tape stays on the device."""
        out, after = cast("TapedPolicy", self.policy).act(
            to_device(step, self.device), to_device(state, self.device), *tape
        )
        both = fetch_outputs({"out": out, "after": after} if after else {"out": out})
        return both["out"], both.get("after", {})


def pool_to_device(pool: Pool, slots: RolloutSlots, device: torch.device) -> Pool:
    """A replica's pool, whose observations go to the device as they arrive, once; the slots' rows are there too,
    and both acting and learning read them.
    """
    if device.type == "cpu":
        return pool
    slots.rows["obs"] = tree.map(lambda x: torch.zeros_like(torch.from_numpy(x), device=device), slots.rows["obs"])
    return cast("Pool", PoolOnDevice(pool, device))


class PoolOnDevice:
    def __init__(self, pool: Pool, device: torch.device):
        self.pool, self.device = pool, device

    def __getattr__(self, name: str) -> object:
        return getattr(self.pool, name)

    def arrive(self, step: Batch) -> Batch:
        return {**step, "obs": to_device(step["obs"], self.device)}

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool."""
        lanes, step = self.pool.recv(timeout)
        return lanes, self.arrive(step)


def row_to_device(pool: Pool, step: Batch) -> Batch:
    """A row that was saved, as such a pool gave it."""
    return pool.arrive(step) if isinstance(pool, PoolOnDevice) else step
