"""Learning from what is kept: remember rollouts, then make as many updates as the replay's ratio asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polyplay import tree
from polyplay.checkpoint import Part, open_checkpoint
from polyplay.device import host
from polyplay.learning import Learner
from polyplay.replay import Replay
from polyplay.tree import Batch
from polyplay.worker import Me

REPORT = 100  # updates between two looks at the memory, of whose metrics these are reported
METRICS = ("ratio", "size", "age", "bytes", "never_sampled", "late", "priority_p50", "priority_max", "beta")
NAMES = tuple(f"replay_{name}" for name in METRICS)


class Rehearsal:
    """A learner's memory, and how many updates it owes: ratio × rows remembered after `start` ÷ rows learnt in a batch.

    Rows are counted and not transitions, which are fewer by one a game, so that equal replicas owe the same at the same
    time.
    """

    def __init__(self, me: Me, learner: Learner, replay: Replay):
        self.me, self.learner, self.replay = me, learner, replay
        if replay.ratio is None:
            raise ValueError("a replay that is learnt from has a ratio")
        self.ratio = replay.ratio
        self.memory = replay.open(me.seed + me.index)
        self.rows, self.updates = 0, 0
        if me.resume is not None:
            self._load()

    def remember(self, rows: Batch, state: Batch, lane: int = 0) -> float:
        """Keep a rollout [T+1, B] of lanes from `lane` on, but for its last row, which is the next one's first; how
        many agent steps it has.
        """
        first = rows["first"]
        kept = {k: tree.map(lambda x: x[:-1], rows[k]) for k in self.replay.spec}
        self.learner.observe({"obs": rows["obs"]})
        self.memory.add(kept, slice(lane, lane + first.shape[1]), state)
        self.rows += first[:-1].size
        return float(np.count_nonzero(~first[1:]))

    @property
    def owed(self) -> int:
        """Updates to make before more is remembered."""
        replay = self.replay
        if self.rows < replay.start or not self.memory.inserted:
            return 0
        each = replay.batch * max(replay.sequence, 1)
        return int((self.rows - replay.start) * self.ratio / each) - self.updates

    def update(self, fresh: float) -> Iterator[None]:
        """One update. fresh: agent steps to count with it, see Learner.revise."""
        item = self.memory.sample(self._beta())
        yield from self.learner.revise(item, fresh)
        if self.learner.priority is not None:
            self.memory.feedback(item["id"], host(self.learner.priority))
        self.updates += 1
        if self.updates % REPORT == 0:
            told = self.memory.metrics()
            self.me.meter.losses({f"replay_{name}": told[name] for name in METRICS if name in told})

    def _beta(self) -> float | None:
        """The exponent of importance weights: from the sampler's β to its last one, over the run."""
        sampler: Any = self.replay.sampler
        last = getattr(sampler, "last", None)
        return None if last is None else last + (sampler.beta - last) * self.learner.left()

    def step(self, rows: Batch, state: Batch) -> Iterator[None]:
        """Remember a rollout, and make what is owed; where nothing is, only its agent steps are counted."""
        fresh = self.remember(rows, state)
        owed = self.owed
        if owed <= 0:
            yield from self.learner.rest(fresh)
        for i in range(owed):
            yield from self.update(fresh if i == 0 else 0.0)

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, part: Part) -> None:
        """Raises OSError."""
        self.memory.save(part.folder(self._name))
        part.json(f"{self._name}/rehearsal", {"rows": self.rows, "updates": self.updates})

    def _load(self) -> None:
        found = open_checkpoint(self.me.resume)
        if not (found.path / self._name).is_dir():  # replicas that don't wait for each other save no memories
            self.me.say("warning", f"{self.me.role} {self.me.index}: nothing was saved of its replay: it begins empty")
            return
        kept = found.json(f"{self._name}/rehearsal")
        self.rows, self.updates = int(kept["rows"]), int(kept["updates"])
        self.memory.load(found.path / self._name)

    @property
    def _name(self) -> str:
        return f"replay/{self.me.role}-{self.me.index}"
