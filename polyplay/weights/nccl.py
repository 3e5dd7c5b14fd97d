"""Replicas with a GPU each: gradients and floating buffers are averaged by NCCL, from GPU to GPU, in its own order."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import uuid
from pathlib import Path

import torch

from polyplay.weights.flat import FlatParams, as_doubles


def meeting_place() -> str:
    """A file that doesn't exist yet, by which processes find each other; the last one removes it."""
    return str(Path(tempfile.gettempdir()) / f"polyplay-{uuid.uuid4().hex}")


def fits(device: torch.device, replicas: int) -> bool:
    """Whether this worker is one of several processes with a GPU each. NCCL takes no two on one."""
    if device.type != "cuda" or multiprocessing.parent_process() is None:
        return False
    return torch.cuda.device_count() >= replicas and torch.distributed.is_nccl_available()


class NcclGroup:
    """This process's end. Every replica makes one, with its own rank."""

    def __init__(self, place: str, rank: int, replicas: int, vector: FlatParams, backend: str = "nccl"):
        import torch.distributed as dist

        self.vector, self.n, self._all_reduce = vector, replicas, dist.all_reduce
        store = dist.FileStore(place, replicas)
        dist.init_process_group(backend, store=store, rank=rank, world_size=replicas)
        self.flat = torch.empty(vector.size, device=vector.flat.device)

    def average(self) -> float:
        """Gradients and buffers become means over the replicas. Gives the seconds waited."""
        at, flat = self.vector.weights, self.flat
        flat[:at], flat[at:] = self.vector.grad, self.vector.flat[at:]
        doubles = as_doubles(self.vector.flat[self.vector.doubles :])
        flat[self.vector.doubles :] = 0.0
        before = time.perf_counter()
        self._all_reduce(flat)
        if len(doubles):
            self._all_reduce(doubles)
            doubles.mul_(1.0 / self.n)
        flat.mul_(1.0 / self.n)
        self.vector.grad.copy_(flat[:at])
        self.vector.flat[at : self.vector.doubles] = flat[at : self.vector.doubles]
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)
        return time.perf_counter() - before
