"""Log of the rollouts that each update of an asynchronous run was trained on. With this log, the run can be reproduced.

Learner C writes the log `deliveries-C.jsonl`, with a line [update, rollout, …] for each batch, where `update` is the
number of the last update on the batch. A rollout is [actor, version of the weights that acted]. The actor's incarnation
follows if it is not 0. This number changes when the actor is replaced.

A learner process begins with the line {"from": number of updates so far, "threads": threads per worker, "length": agent
steps over which the learning rate decays (0: no decay)}. The line {"compiled": update} gives the first compiled update.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.errors import UserError
from polyplay.core.files import AppendFile, LogWrites
from polyplay.core.worker import WorkerContext

LOG = "deliveries-{}.jsonl"


def log_writer(
    ctx: WorkerContext, queue: RolloutQueue, update: int, threads: int, length: float, each: int = 1
) -> Callable[[list[int]], None]:
    """Return a function that logs the slots of a batch. `update`: updates so far. `each`: updates per batch."""
    if ctx.directory is None:
        return lambda slots: None
    path = ctx.directory / LOG.format(ctx.index)
    file, writes = AppendFile(path), LogWrites(lambda text: ctx.log("warning", text))

    def write(line: Any) -> None:
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        writes.attempt(path.name, lambda: file.write(data))

    write({"from": update, "threads": threads, "length": length})
    ctx.hooks.compiled = lambda update: write({"compiled": update})

    def log(slots: list[int]) -> None:
        nonlocal update
        update += each
        line: list[Any] = [update]
        for slot in slots:
            by = int(queue.by[slot])
            line.append([slot // queue.share, int(queue.rows["version"][slot, 0, 0]), *([by] if by else [])])
        write(line)

    return log


@dataclass(frozen=True)
class DeliveredRollout:
    actor: int
    version: int
    by: int = 0


@dataclass(frozen=True)
class DeliveryLog:
    """Log of one learner: the rollouts of each batch, in order, and the number of threads per worker."""

    batches: list[list[DeliveredRollout]]
    threads: int
    changes: dict[int, bool]  # update → whether updates from this one were compiled; ascending

    def compiled(self, update: int) -> bool:
        """Tell whether this update ran as compiled code."""
        return [False, *(on for at, on in self.changes.items() if at <= update)][-1]


def read_log(directory: Path, c: int, actors: int, n: int, each: int = 1) -> DeliveryLog:
    """Read the log of learner `c`. Raises UserError if the log is missing, damaged or incomplete, or if a setting was
    changed when the run was resumed.

    `actors`: number of actors in the run. `n`: number of rollouts per batch. `each`: number of updates per batch.
    """
    path = directory / LOG.format(c)
    if not path.exists():
        raise UserError(
            f"RUN: {directory} has no {path.name}: only runs of asynchronous systems (impala, appo) can be reproduced"
        )
    heads: list[dict[str, float]] = []
    batches: list[list[DeliveredRollout]] = []
    changes: dict[int, bool] = {}
    for number, text in enumerate(path.read_text("utf-8", errors="replace").splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            break  # a killed process cut the line off
        try:
            line = json.loads(text)
            if isinstance(line, dict) and "compiled" in line:
                changes[int(line["compiled"])] = True
            elif isinstance(line, dict):
                changes[int(line["from"]) + 1] = False
                heads.append({name: line[name] for name in ("from", "threads", "length")})
            else:
                batches.append(_batch(line, (len(batches) + 1) * each, actors, n, each))
        except (ArithmeticError, ValueError, LookupError, TypeError, RecursionError) as e:
            raise UserError(f"{path}, line {number}: {e or 'damaged'}; no run wrote this") from None
    if not heads or heads[0]["from"] != 0:
        raise UserError(f"{path} does not start with the run's first update; only complete runs can be reproduced")
    fixed = {"threads": "compute threads", "length": "the run's length, over which the learning rate decays,"}
    for name, words in fixed.items():
        values = list(dict.fromkeys(head[name] for head in heads))
        if len(values) > 1:
            raise UserError(f"RUN: {words} changed from {values[0]:g} to {values[1]:g} on resume: not reproducible")
    return DeliveryLog(batches, int(heads[0]["threads"]), changes)


def _batch(line: list[Any], update: int, actors: int, n: int, each: int) -> list[DeliveredRollout]:
    number, *rollouts = line
    if number != update:
        raise ValueError(f"update {number}, expected update {update}")
    if len(rollouts) != n:
        raise ValueError(f"{len(rollouts)} rollouts, expected {n} per batch")
    batch = [DeliveredRollout(*map(int, r)) for r in rollouts]
    for r in batch:
        if not 0 <= r.actor < actors:
            raise ValueError(f"actor {r.actor}, but the run has {actors} actors")
        if not 0 <= r.version <= update - each:
            raise ValueError(f"a rollout of later version {r.version} in update {update}")
    return batch
