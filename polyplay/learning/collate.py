"""Slots side by side as one batch on a device."""

from __future__ import annotations

import torch

from polyplay.buffers.rollout_queue import Collator, RolloutQueue
from polyplay.buffers.rollout_slots import RolloutSlots
from polyplay.common import tree
from polyplay.common.tree import Batch
from polyplay.nets.device import page_lock, synchronize, to_device


def collator_for(queue: RolloutQueue | RolloutSlots, n: int, device: torch.device) -> Collator:
    """What puts `n` slots side by side on the device."""
    if device.type == "cpu":
        return Collator(queue.rows, queue.state, queue.lanes, n)
    return DeviceCollator(queue, n, device)


class DeviceCollator(Collator):
    """Observations go from each slot straight into its columns of a batch on the device, beside this thread where
    memory is page-locked; everything else is small, and joined on the CPU. A slot is read until `done`.
    """

    def __init__(self, queue: RolloutQueue | RolloutSlots, n: int, device: torch.device):
        super().__init__({k: v for k, v in queue.rows.items() if k != "obs"}, queue.state, queue.lanes, n)
        self.device, self.source = device, tree.map(torch.as_tensor, queue.rows["obs"])
        if isinstance(queue, RolloutQueue):  # a replica's are on the device
            page_lock(queue.block, device)
        self.obs: Batch | None = None

    def __call__(self, slots: list[int]) -> tuple[Batch, Batch]:
        """rows [T+1, n·lanes, …], of which "obs" is tensors of the device, and state [n·lanes, …]."""
        rows, state = super().__call__(slots)
        if self.n == 1:
            return {**rows, "obs": to_device(tree.map(lambda x: x[slots[0]], self.source), self.device)}, state
        return rows, state

    def put(self, i: int, slot: int) -> None:
        """See Collator."""
        super().put(i, slot)
        if self.obs is None:
            wide = self.n * self.lanes
            self.obs = tree.map(
                lambda x: torch.empty((x.shape[1], wide, *x.shape[3:]), dtype=x.dtype, device=self.device), self.source
            )
        at = slice(i * self.lanes, (i + 1) * self.lanes)
        tree.map(lambda into, x: into[:, at].copy_(x[slot], non_blocking=True), self.obs, self.source)

    @property
    def joined(self) -> tuple[Batch, Batch]:
        """See Collator."""
        rows, state = super().joined
        return {**rows, "obs": self.obs}, state

    def done(self) -> None:
        synchronize(self.device)
