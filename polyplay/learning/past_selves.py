"""Past selves: weights of an agent as they were, each written once, for actors to load when they come to a table."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from polyplay.common.context import WorkerContext
from polyplay.common.files import Row, refusal_text
from polyplay.common.past_selves import self_path, write_self
from polyplay.learning.learner import Learner
from polyplay.nets.device import to_host


class Posts(Protocol):
    """What a learner asks of a league (population.league)."""

    def post(self, agent: int, version: int) -> int | None: ...


class PastSelves:
    """Makes one of a learner's weights every `every` updates."""

    def __init__(self, ctx: WorkerContext, learner: Learner, league: Posts, every: int):
        self.ctx, self.learner, self.league, self.every = ctx, learner, league, every
        self.agent = learner.spec.agent
        self.due = learner.version + every
        self.written: int | None = None  # a version that the league does not know of yet
        self.again = False  # all goes on as it was: what comes after is as it was made before

    def save(self) -> Row:
        """When the next is due, and what the league does not know of yet."""
        return {"due": self.due, "written": self.written}

    def load(self, saved: Row) -> None:
        """The inverse."""
        self.due, self.written, self.again = saved["due"], saved["written"], True

    def look(self) -> None:
        """After an update: write what is due, and tell the league."""
        if self.written is None and self.learner.version >= self.due:
            self.due = self.learner.version + self.every
            self._write(self.learner.version)
        if self.written is not None and self.league.post(self.agent, self.written) is not None:
            self.written = None

    def _write(self, version: int) -> None:
        if self.ctx.directory is None:
            return
        path = self_path(self.ctx.directory, self.agent, version)
        if path.exists() and not self.again:  # of updates after the checkpoint that this run goes on from; it plays on
            self.due = version + 1
            return
        try:
            path.parent.mkdir(exist_ok=True)
            arrays = {k: np.asarray(to_host(v)) for k, v in self.learner.policy.state_dict().items()}
            write_self(path, arrays)
            self.written = version
        except OSError as e:
            self.ctx.say("warning", f"past self {path.name} was not written: {refusal_text(e)}")
