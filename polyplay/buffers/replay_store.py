"""A replay in a worker: insert rollouts, report, save and load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyplay.buffers.replay import Replay, ReplayBuffer
from polyplay.common import tree
from polyplay.common.checkpoint import open_checkpoint
from polyplay.common.context import WorkerContext
from polyplay.common.tree import Batch

if TYPE_CHECKING:
    pass

REPORT = 100  # updates between two looks at a memory, of whose metrics these are reported

METRICS = (
    *("ratio", "ratio_target", "inserted", "sampled", "size", "age", "bytes", "never_sampled", "late"),
    *("priority_p10", "priority_p50", "priority_p90", "priority_max", "priority_new", "beta"),
)

NAMES = tuple(f"replay_{name}" for name in METRICS)


def importance_exponent(replay: Replay, left: float) -> float | None:
    """The exponent of importance weights: from the sampler's β to its last one over the run, which has `left` to go."""
    sampler: Any = replay.sampler
    last = getattr(sampler, "last", None)
    return None if last is None else last + (sampler.beta - last) * left


def insert_rollout(memory: ReplayBuffer, rows: Batch, state: Batch, lane: int = 0) -> float:
    """Keep a rollout [T+1, B] of lanes from `lane` on, but for its last row, which is the next one's first; how many
    agent steps it has.
    """
    first = rows["first"]
    kept = {k: tree.map(lambda x: x[:-1], rows[k]) for k in memory.replay.spec}
    memory.add(kept, slice(lane, lane + first.shape[1]), state)
    return float(np.count_nonzero(~first[1:]))


def report_replay(ctx: WorkerContext, memory: ReplayBuffer) -> None:
    """Report how a memory stands."""
    told = memory.metrics()
    ctx.counters.losses({f"replay_{name}": told[name] for name in METRICS if name in told})


def replay_folder(ctx: WorkerContext) -> str:
    """Where in a checkpoint a worker's memory is."""
    return f"replay/{ctx.role}-{ctx.index}"


def restore_replay(ctx: WorkerContext, memory: ReplayBuffer) -> bool:
    """Go on with what this worker's memory was in the checkpoint; False: nothing was saved of it. Raises UserError."""
    path = open_checkpoint(ctx.resume).path / replay_folder(ctx)
    if not path.is_dir():  # replicas that don't wait for each other save no memories
        ctx.say("warning", f"{ctx.role} {ctx.index}: nothing was saved of its replay: it begins empty")
        return False
    memory.load(path)
    return True
