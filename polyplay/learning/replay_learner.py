"""Learning from a replay: insert rollouts, then make as many updates as the replay's ratio asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_store import REPORT, importance_exponent, replay_folder, report_replay, restore_replay
from polyplay.common import tree
from polyplay.common.checkpoint import CheckpointPart, open_checkpoint
from polyplay.common.context import WorkerContext, seed_of
from polyplay.common.tree import Batch

if TYPE_CHECKING:
    from polyplay.learning.learner import Learner


class ReplayLearner:
    """A learner's own replay. It makes the updates that are due (replay.rate_limiter) before more is inserted."""

    def __init__(self, ctx: WorkerContext, learner: Learner, replay: Replay):
        self.ctx, self.learner, self.replay = ctx, learner, replay
        if replay.ratio is None:
            raise ValueError("a replay that its learner fills has a ratio")
        self.buffer = replay.open(seed_of(ctx.seed, ctx.incarnation % 1000) + ctx.index)
        self.updates = 0
        self.ahead: Batch | None = None  # the next update's sample, drawn before the steps that make it due
        # where others change the weights meanwhile, each update begins with the newest
        self.divided = learner.divide(replay.batch) is not None and not learner.spec.update.apart
        learner.extra_parts = self.save
        if ctx.resume is not None:
            self._load()

    def insert(self, rows: Batch, state: Batch, lane: int = 0) -> float:
        """See ReplayBuffer.add_rollout."""
        with self.ctx.counters.timed("replay"):
            self.learner.observe({"obs": rows["obs"]})
            return self.buffer.add_rollout(rows, state, lane)

    def draw_ahead(self, steps: int) -> None:
        """Draw the next sample and begin with it, if so many agent steps make an update due: other threads pass it
        through the target network while this one acts.
        """
        limiter = self.buffer.limiter
        credit = limiter.credit(self.buffer.sampled) + steps * (limiter.ratio or 0.0)
        if self.divided and self.ahead is None and self.buffer.ready and credit >= limiter.batch:
            self.ahead = self._draw()
            self.learner.begin(self.ahead)

    def _draw(self) -> Batch:
        with self.ctx.counters.timed("replay"):
            return self.buffer.sample(importance_exponent(self.replay, self.learner.remaining()))

    def _due(self) -> int:
        """Updates that may be made now."""
        drawn = 0 if self.ahead is None else self.replay.batch
        return self.buffer.limiter.due(self.buffer.sampled - drawn) if self.buffer.ready else 0

    def update(self) -> Iterator[None]:
        """One update."""
        item = self._draw() if self.ahead is None else self.ahead
        self.ahead = None
        yield from self.learner.step_on_sample(item)
        priority = self.learner.priorities()
        if priority is not None:
            with self.ctx.counters.timed("replay"):
                self.buffer.update_priorities(item["id"], priority)
        self.updates += 1
        if self.updates % REPORT == 0:
            report_replay(self.ctx, self.buffer)

    def step(self, rows: Batch, state: Batch) -> Iterator[None]:
        """Insert a rollout, count its agent steps, and make the updates that are due."""
        limiter, before = self.buffer.limiter, self.buffer.limiter.steps
        limiter.steps = before + (yield from self.learner.rest(self.insert(rows, state)))
        for _ in range(self._due()):
            yield from self.update()

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, part: CheckpointPart) -> None:
        """Raises OSError."""
        name = replay_folder(self.ctx)
        self.buffer.save(part.folder(name))
        part.json(f"{name}/replay_learner", {"updates": self.updates, "ahead": self.ahead is not None})
        if self.ahead is not None:
            part.arrays(f"{name}/ahead", {path: np.ascontiguousarray(x) for path, x in tree.leaves(self.ahead)})

    def _load(self) -> None:
        if restore_replay(self.ctx, self.buffer, getattr(self.learner.spec.update, "replicas", 1)):
            found, name = open_checkpoint(self.ctx.resume), replay_folder(self.ctx)
            saved = found.json(f"{name}/replay_learner")
            self.updates = int(saved["updates"])
            if saved.get("ahead"):
                self.ahead = tree.nest(found.arrays(f"{name}/ahead"))
                self.learner.begin(self.ahead)
