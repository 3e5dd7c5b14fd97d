"""A replay in a worker: insert rollouts, report, save and load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyplay.buffers.replay import Replay, Uniform
from polyplay.common.checkpoint import open_checkpoint
from polyplay.common.context import WorkerContext

if TYPE_CHECKING:
    from polyplay.buffers.replay import ReplayBuffer

REPORT = 100  # updates between two reports of a buffer's metrics

METRICS = (
    *("ratio", "ratio_target", "inserted", "sampled", "size", "age", "bytes", "never_sampled", "late"),
    *("priority_p10", "priority_p50", "priority_p90", "priority_max", "priority_new", "beta"),
)

NAMES = tuple(f"replay_{name}" for name in METRICS)


def importance_exponent(replay: Replay, left: float) -> float | None:
    """The exponent of importance weights: from the sampler's β to its last one over the run, which has `left` to go."""
    sampler = replay.sampler
    if isinstance(sampler, Uniform) or sampler.last is None:
        return None
    return sampler.last + (sampler.beta - sampler.last) * left


def report_replay(ctx: WorkerContext, buffer: ReplayBuffer) -> None:
    """Report a buffer's metrics."""
    metrics = buffer.metrics()
    ctx.counters.losses({f"replay_{name}": metrics[name] for name in METRICS if name in metrics})


def replay_folder(ctx: WorkerContext, index: int | None = None) -> str:
    """Where in a checkpoint a worker's replay is. index: of another one of its role."""
    return f"replay/{ctx.role}-{ctx.index if index is None else index}"


def restore_replay(ctx: WorkerContext, buffer: ReplayBuffer, replicas: int = 1) -> bool:
    """Load what this worker's buffer was in the checkpoint; False: nothing was saved of it. replicas: of the role,
    which owe the same number of updates: where the replay of one is missing, all begin empty. Raises UserError.
    """
    root = open_checkpoint(ctx.resume).path
    path = root / replay_folder(ctx)
    if not path.is_dir():  # replicas that don't wait for each other save no replay
        ctx.say("warning", f"{ctx.role} {ctx.index}: its replay was not saved: it starts empty")
        return False
    if not all((root / replay_folder(ctx, i)).is_dir() for i in range(replicas)):
        ctx.say("warning", f"{ctx.role} {ctx.index}: another worker's replay was not saved: all start empty")
        return False
    buffer.load(path)
    return True
