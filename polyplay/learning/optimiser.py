"""The worker that learns from windows of rollouts: OpenAI Five's optimiser (Berner et al. 2019, figure 2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from polyplay.buffers.actor_checkpoint import between_rounds
from polyplay.buffers.experience import Experience, ExperienceBuffer
from polyplay.common import tree
from polyplay.common.checkpoint import CheckpointPart, OpenCheckpoint, open_checkpoint
from polyplay.common.context import WorkerContext, seed_of
from polyplay.common.files import Row
from polyplay.common.tree import Batch, Field, Spec
from polyplay.learning.epochs import COLUMNS
from polyplay.learning.learner import Learner
from polyplay.learning.losses.ppo import PPO
from polyplay.learning.past_selves import PastSelves, Posts
from polyplay.learning.sources import Nothing, Rollout
from polyplay.learning.spec import LearnerSpec
from polyplay.learning.worker import learn_from
from polyplay.nets.device import to_device, to_host
from polyplay.weights.agent_params import AgentParams

TARGETS: Spec = {
    "advantage": Field((), "float32"),
    "target": Field((), "float32"),
    "valid": Field((), "bool"),
    "version": Field((), "int64"),
}
SMALL = ("reward", "events", "first", "terminated", "truncated", "value")  # columns that targets are made of
LEFT = ("events", "terminated")  # of COLUMNS, what no window has: its reward is the agent's own, its targets are made
MOST_REUSE, MOST_STALENESS = 2.0, 8.0  # beyond which learning suffers (Berner et al. 2019, figure 5)
LOOK = 200  # updates from one look at both to the next
METRICS = ("reuse", "staleness")


def optimise(
    ctx: WorkerContext,
    *,
    source: Experience,
    spec: LearnerSpec,
    params: AgentParams,
    league: Posts | None = None,
    selves: int = 0,
) -> Iterator[None]:
    """Learn from windows, and publish the weights now and then. selves: updates from one past self to the next."""
    learner = Learner(ctx, spec)
    feed = ExperienceSource(source, ctx, learner, params)
    if league is not None and selves and ctx.index == 0:
        feed.past = PastSelves(ctx, learner, league, selves)
    if (found := between_rounds(ctx)) is not None:
        feed.take_up(found)
    if ctx.directory is not None:
        ctx.write_part, ctx.number = feed.write_part, lambda: learner.version
    yield from learn_from(feed, ctx, learner)


@dataclass
class PublishedWeights:
    """A vector as it was."""

    flat: torch.Tensor
    version: int


class ExperienceSource:
    """An optimiser's end of the rollouts: they go into its buffer with their targets, and batches are drawn from it."""

    def __init__(self, source: Experience, ctx: WorkerContext, learner: Learner, params: AgentParams):
        self.ctx, self.learner, self.source, self.params = ctx, learner, source, params.each[0]
        self.queue, self.first = source.queue, ctx.index == 0
        self.alone = self.queue.consumers == 1
        self.past: PastSelves | None = None
        columns = {k: v for k, v in _columns(self.queue.rows).items() if k not in LEFT} | TARGETS
        seed = seed_of(ctx.seed, ctx.incarnation % 1000) + ctx.index
        window, state = self.queue.window, _fields(self.queue.state, 3)
        self.buffer = ExperienceBuffer(columns, state, window, source.capacity, source.reuse, seed)
        self.fresh, self.since = 0.0, 0  # agent steps, and windows, that came since the last update
        self.versions: deque[PublishedWeights] = deque(maxlen=source.stale + 1)
        self.looked = np.zeros(4)  # drawn, arrived, lags and rows since the last look
        self.warned = dict.fromkeys(METRICS, False)
        learner.extra_parts = self._write
        if ctx.resume is not None:
            self._load()
        if self.first:
            self._publish()

    def batches(self) -> Iterator[Rollout | Nothing | None]:
        """Rollouts that came; (): a batch is due; None: nothing came for a while."""
        rollouts = self.queue.batches(1).consumer(self.ctx.index, wait=bool(self.source.reuse))
        while True:
            if self.source.reuse and self.buffer.due(self.source.batch):
                yield ()
                continue
            rollout = next(rollouts)
            if rollout is None and not self.source.reuse and self.buffer.due(self.source.batch):
                yield ()
            else:
                if rollout is None:
                    self._release()
                yield rollout

    def _release(self) -> None:
        """Nothing came and no batch is due: actors that all wait for weights act with those that there are. So it is
        until the buffer is full, and where the windows of a round make no whole number of batches.
        """
        own, queue = slice(self.ctx.index, self.queue.producers, self.queue.consumers), self.queue
        if self.ctx.serial or self.params.waits(own):
            self.params.stay(own, queue.ends[own, 0])

    def step(self, batch: Rollout | Nothing) -> Iterator[None]:
        if batch:
            self._add(*batch)
            self.ctx.counters.depth(self.queue.depth)
        else:
            yield from self._update()

    def _add(self, rows: Batch, state: Batch) -> None:
        """A rollout [T+1, lanes] with the states [windows, lanes] before its windows."""
        with self.ctx.counters.timed("replay"):
            made = self._targets(rows)
            kept = {k: tree.map(lambda x: x[:-1], v) for k, v in rows.items() if k in self.buffer.rows}
            kept |= {k: to_host(v) for k, v in made.items()} | {"reward": to_host(made["reward"])[:-1]}
            self.buffer.add(kept, state)
        self.fresh += float(np.count_nonzero(~rows["first"][1:]))
        self.since += rows["first"].shape[1] * (self.queue.T // self.queue.window)

    def _targets(self, rows: Batch) -> Batch:
        """Advantage, target, valid [T, lanes], made once, by the values as acted; and the agent's own reward [T+1]."""
        learner, policy = self.learner, cast("Any", self.learner.policy)
        learner.adjust()  # what is scheduled holds for the first of them too
        small = to_device({k: rows[k] for k in SMALL if k in rows}, learner.device)
        small = policy.rewarded(small)
        if policy.inputs is not None or policy.returns is not None:
            seen = {"obs": rows["obs"]} if policy.inputs is not None else {}
            policy.observe(small | to_device(seen, learner.device))
        scale = policy.returns.scale() if policy.returns is not None else 1.0
        return {**self._loss().prepare(small, scale), "reward": small["reward"]}

    def _loss(self) -> PPO:
        """With the discount as it is now, where that is a hyperparameter."""
        loss, hyper = cast("PPO", self.learner.spec.loss), self.learner.spec.hyperparameters.all()
        return replace(loss, gamma=discount_of(hyper["horizon"], hyper["step_time"])) if "horizon" in hyper else loss

    def _update(self) -> Iterator[None]:
        learner, source = self.learner, self.source
        with self.ctx.counters.timed("replay"):
            drawn, state = self.buffer.draw(source.batch)
        item, before = to_device(drawn, learner.device), to_device(state, learner.device)
        learner.adjust()
        versions = drawn["version"][drawn["valid"]]
        lags = learner.counts.newest() - versions
        yield from learner.apply_gradient(learner.score(item, before), item, versions, self.fresh, None)
        self.fresh = 0.0
        self._measure(lags)
        if self.first and learner.version % source.publish == 0:
            self._publish()
        if self.past is not None:
            self.past.look()

    def _measure(self, lags: np.ndarray) -> None:
        """Reuse and staleness, in versions, for reports; a warning once where one is beyond what learning bears."""
        counters, source = self.ctx.counters, self.source
        arrived, self.since = self.since, 0
        counters.tally("reuse", source.batch, arrived)
        counters.tally("staleness", lags.sum() / source.publish, lags.size)
        self.looked += source.batch, arrived, lags.sum() / source.publish, lags.size
        if self.learner.version % LOOK == 0:
            drawn, came, lag, rows = self.looked.tolist()
            self._warn("reuse", drawn / max(came, 1), MOST_REUSE, "raise --actors or --lanes, or set --sample-reuse")
            self._warn("staleness", lag / max(rows, 1), MOST_STALENESS, "lower --capacity, --publish or --slots")
            self.looked[:] = 0

    def _warn(self, name: str, value: float, most: float, fix: str) -> None:
        if value > most and not self.warned[name] and self.first:
            self.warned[name] = True
            self.ctx.say("warning", f"{name} is {value:.1f}, above {most:g}, which slows learning: {fix}")

    def _publish(self) -> None:
        taken, params = np.zeros(self.params.readers, np.int64), self.params
        taken[: self.queue.producers] = self.queue.ends[:, 0]
        self.versions.append(PublishedWeights(self.learner.vector.flat.detach().clone(), self.learner.version))
        params.publish(self.versions[0], self.versions[0].version, 0, taken)

    def save(self) -> Iterator[None]:
        """The optimiser with its buffer. Actors begin new matches in a run that goes on from it, but for one that is
        made between two rounds of turns.
        """
        if not self.ctx.serial and self.learner.saved != self.learner.version:
            self.learner.save(self._write)
        yield from ()

    def write_part(self, number: int) -> None:
        """Its part of a checkpoint between two rounds of turns."""

        def write(part: CheckpointPart) -> None:
            self._write(part)
            own = {"statistics": to_host(self._statistics), "turn": np.array(self.queue.turns[self.ctx.index])}
            part.arrays(f"{self._name}_turn", own)
            if self.first:
                part.json("league/published", {"versions": [x.version for x in self.versions], **self._past()})
                vectors = np.stack([to_host(x.flat) for x in self.versions])
                part.arrays("league/published", {"vectors": vectors, "learnt": self.params.learnt.copy()})

        self.learner.save(write)

    @property
    def _statistics(self) -> torch.Tensor:
        """Running statistics, which each learner has for itself from one update to the next."""
        vector = self.learner.vector
        return vector.flat[vector.weights :].detach()

    def _past(self) -> Row:
        return {} if self.past is None else {"past": self.past.save()}

    def take_up(self, found: OpenCheckpoint) -> None:
        """Go on from such a part."""
        own = found.arrays(f"{self._name}_turn")
        self.queue.turns[self.ctx.index] = own["turn"]
        self._statistics.copy_(torch.from_numpy(own["statistics"]))
        if not self.first:
            return
        counts, arrays = found.json("league/published"), found.arrays("league/published")
        vectors = torch.from_numpy(arrays["vectors"])
        self.versions.clear()
        self.versions.extend(map(PublishedWeights, vectors, counts["versions"]))
        self.params.publish(self.versions[0], self.versions[0].version, 0, arrays["learnt"])
        if self.past is not None and "past" in counts:
            self.past.load(counts["past"])

    def _write(self, part: CheckpointPart) -> None:
        arrays, counts = self.buffer.save()
        part.arrays(self._name, {path: np.ascontiguousarray(x) for path, x in tree.leaves(arrays)})
        part.json(f"{self._name}_counts", counts | {"fresh": self.fresh})

    @property
    def _name(self) -> str:
        return f"learners/{self.ctx.index}/experience"

    def _load(self) -> None:
        found = open_checkpoint(self.ctx.resume)
        if not (found.path / f"{self._name}_counts.json").exists():  # another learner saved where this one was lost
            self.ctx.say("warning", f"learner {self.ctx.index}: its experience was not saved: it begins empty")
            return
        counts = found.json(f"{self._name}_counts")
        try:
            self.buffer.load(tree.nest(found.arrays(self._name)), counts)
            self.fresh = float(counts.get("fresh", 0.0))
        except ValueError as e:
            self.ctx.say("warning", f"experience of the checkpoint does not fit and is left out: {e}")


def discount_of(horizon: float, step_time: float) -> float:
    """γ = 1 − T/H of a horizon of H seconds, where a step takes T (Berner et al. 2019, appendix C)."""
    return 1.0 - step_time / horizon


def _columns(rows: Batch) -> Spec:
    return {k: _fields(v, 3) for k, v in rows.items() if k in COLUMNS}


def _fields(arrays: Batch, lead: int) -> Spec:
    """The specs of arrays, without their first dimensions."""
    return tree.map(lambda x: Field(x.shape[lead:], x.dtype.name), arrays)
