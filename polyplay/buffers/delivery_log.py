"""The log of an asynchronous run that lets it be reproduced: which rollouts it learnt from in which update.

`deliveries-C.jsonl` of learner C has a line per batch: the last update it was learnt in, then for each rollout, in
order, its actor, the version of the weights it was made with, and, where it is not 0, the incarnation of the actor.
Whenever a process begins to write there is a line {"from": update, "threads": of a worker, "length": the
agent steps over which the learning rate falls, or 0}, and where updates begin to be compiled {"compiled": update}.
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
    """A function that logs a batch of slots, from the batch after `update` on. each: updates from a batch."""
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
    """Of one learner: the rollouts of each batch, the first one first, and the threads its workers had."""

    batches: list[list[DeliveredRollout]]
    threads: int
    changes: dict[int, bool]  # by update, in order: whether updates from it on were compiled

    def compiled(self, update: int) -> bool:
        """Whether this update was."""
        return [False, *(on for at, on in self.changes.items() if at <= update)][-1]


def read_log(directory: Path, c: int, actors: int, n: int, each: int = 1) -> DeliveryLog:
    """Learner `c`'s log of a run with so many actors, slots in a batch and updates from each. Raises UserError: what is
    wrong where.
    """
    path = directory / LOG.format(c)
    if not path.exists():
        raise UserError(
            f"RUN: {directory} has no {path.name}: only runs of asynchronous systems (impala, appo) can be replayed"
        )
    heads: list[dict[str, float]] = []
    batches: list[list[DeliveredRollout]] = []
    changes: dict[int, bool] = {}
    for number, text in enumerate(path.read_text("utf-8", errors="replace").splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            break  # torn off by a kill
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
            raise UserError(f"{path}, line {number}: {e or 'damaged'}; it is not what a run wrote") from None
    if not heads or heads[0]["from"] != 0:
        raise UserError(f"{path} does not begin with the run's first update; only whole runs can be replayed")
    fixed = {"threads": "compute threads", "length": "the run's length, with which the learning rate falls,"}
    for name, words in fixed.items():
        values = list(dict.fromkeys(head[name] for head in heads))
        if len(values) > 1:
            raise UserError(f"RUN: {words} changed from {values[0]:g} to {values[1]:g} when it went on: not replayable")
    return DeliveryLog(batches, int(heads[0]["threads"]), changes)


def _batch(line: list[Any], update: int, actors: int, n: int, each: int) -> list[DeliveredRollout]:
    number, *rollouts = line
    if number != update:
        raise ValueError(f"update {number} where update {update} was due")
    if len(rollouts) != n:
        raise ValueError(f"{len(rollouts)} rollouts, a batch has {n}")
    batch = [DeliveredRollout(*map(int, r)) for r in rollouts]
    for r in batch:
        if not 0 <= r.actor < actors:
            raise ValueError(f"actor {r.actor}, there are {actors}")
        if not 0 <= r.version <= update - each:
            raise ValueError(f"a rollout of version {r.version} in update {update}")
    return batch
