"""Learning from what is kept: remember rollouts, then make as many updates as the replay's ratio asks for.

Imports no torch: memories in workers of their own (remembering) share the half of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_store import (
    REPORT,
    importance_exponent,
    insert_rollout,
    replay_folder,
    report_replay,
    restore_replay,
)
from polyplay.common.checkpoint import CheckpointPart, open_checkpoint
from polyplay.common.context import WorkerContext, seed_of
from polyplay.common.tree import Batch

if TYPE_CHECKING:
    from polyplay.learning.learner import Learner


class ReplayLearner:
    """A learner's own memory. It makes the updates that it owes (replay.pacing) before more is remembered."""

    def __init__(self, ctx: WorkerContext, learner: Learner, replay: Replay):
        self.ctx, self.learner, self.replay = ctx, learner, replay
        if replay.ratio is None:
            raise ValueError("a replay that its learner fills has a ratio")
        self.buffer = replay.open(seed_of(ctx.seed, ctx.incarnation % 1000) + ctx.index)
        self.updates = 0
        if ctx.resume is not None:
            self._load()

    def insert(self, rows: Batch, state: Batch, lane: int = 0) -> float:
        """See keep."""
        before = time.perf_counter()
        self.learner.observe({"obs": rows["obs"]})
        steps = insert_rollout(self.buffer, rows, state, lane)
        self.ctx.counters.add("replay", time.perf_counter() - before)
        return steps

    def update(self, steps: float) -> Iterator[None]:
        """One update. fresh: agent steps to count with it, see Learner.step_on_sample."""
        before = time.perf_counter()
        item = self.buffer.sample(importance_exponent(self.replay, self.learner.remaining()))
        self.ctx.counters.add("replay", time.perf_counter() - before)
        yield from self.learner.step_on_sample(item, steps)
        priority = self.learner.priorities()
        if priority is not None:
            before = time.perf_counter()
            self.buffer.update_priorities(item["id"], priority)
            self.ctx.counters.add("replay", time.perf_counter() - before)
        self.updates += 1
        if self.updates % REPORT == 0:
            report_replay(self.ctx, self.buffer)

    def step(self, rows: Batch, state: Batch) -> Iterator[None]:
        """Remember a rollout, and make what is owed; where nothing is, only its agent steps are counted."""
        steps = self.insert(rows, state)
        owed = self.buffer.due
        if not owed:
            yield from self.learner.rest(steps)
        for i in range(owed):
            yield from self.update(steps if i == 0 else 0.0)

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, part: CheckpointPart) -> None:
        """Raises OSError."""
        name = replay_folder(self.ctx)
        self.buffer.save(part.folder(name))
        part.json(f"{name}/replay_learner", {"rows": self.buffer.limiter.rows, "updates": self.updates})

    def _load(self) -> None:
        if restore_replay(self.ctx, self.buffer):
            saved = open_checkpoint(self.ctx.resume).json(f"{replay_folder(self.ctx)}/replay_learner")
            self.buffer.limiter.rows, self.updates = int(saved["rows"]), int(saved["updates"])
