"""Act and learn in one loop with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from polyplay.acting.actor import Actor
from polyplay.acting.exploration import Exploration
from polyplay.acting.on_device import policy_from_cpu, pool_to_device
from polyplay.acting.predictor import AgentTable, Predictor
from polyplay.acting.worker import _open, _tell_faults
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import RolloutQueue, row_spec
from polyplay.buffers.training_queue import TrainingQueue
from polyplay.common.checkpoint import CheckpointPart
from polyplay.common.context import WorkerContext
from polyplay.envs.pool import Envs
from polyplay.learning.collate import collator_for
from polyplay.learning.learner import Learner
from polyplay.learning.replay_learner import ReplayLearner


def replica(
    ctx: WorkerContext,
    *,
    envs: Envs,
    T: int,
    spec: Any,
    episodic: bool = False,
    replay: Replay | None = None,
    explore: Exploration | None = None,
) -> Iterator[None]:
    """Act and learn in one loop with the same weights: lag 0, but for what others changed meanwhile where replicas
    don't wait for each other. episodic: one lane, whose rollout ends with its episode too (A3C's workers). replay: what
    is learnt from is drawn from it (DQN).
    """
    learner = Learner(ctx, spec)
    replay_learner = None if replay is None else ReplayLearner(ctx, learner, replay)
    if episodic:
        yield from _alone(ctx, learner, envs, T)
        return
    kept = actor_checkpoint.load_actor(ctx)
    pool = _open(ctx, envs, kept)
    try:
        width = envs.lanes // envs.groups
        rows = row_spec(envs.spec.obs, learner.policy.spec(), envs.spec.mask)
        queue = RolloutQueue(rows, learner.policy.state_spec(), T, width, slots=2 * envs.groups)
        queue.patience = ctx.patience
        place = learner.device if replay_learner is None else torch.device("cpu")  # a memory is the machine's own
        pool = pool_to_device(pool, queue, place)
        join = collator_for(queue, envs.groups, place)
        producer, batches = queue.producer(0), queue.batches(envs.groups).consumer(0, join=join)
        actor = Actor(ctx, pool, policy_from_cpu(learner.policy), producer, ctx.index * envs.lanes)
        actor.explore = explore
        actor.keeps = ctx.reuse and spec.acted and pool.fixed and getattr(learner.policy, "recalls", False)
        if "pool" in kept:
            actor.load(kept)
        elif explore is not None:  # ε is where the run is
            actor.acts[:] = int(learner.learnt) // explore.lanes
        for slots in actor.rollouts(version=learner.counts.newest):
            if slots is None:
                yield
                continue
            for slot in slots:
                producer.commit(slot)
            taken = next(batches)
            assert taken is not None  # its slots were committed a line ago
            yield from learner.step(*taken, actor.tape()) if replay_learner is None else replay_learner.step(*taken)
            ctx.counters.set("restarts", pool.restarts)
            _tell_faults(ctx, pool)
            if learner.saving or learner.done:
                if spec.update.apart:
                    learner.save()  # the other workers' lanes are in mid-rollout now
                else:
                    learner.save(lambda part: _keep(ctx, part, actor, replay_learner))
            if learner.done:
                return
            yield
    finally:
        pool.close()


def _keep(ctx: WorkerContext, part: CheckpointPart, actor: Actor, replay_learner: ReplayLearner | None) -> None:
    actor_checkpoint.save_actor(ctx, part, actor, {})
    if replay_learner is not None:
        replay_learner.save(part)


def _alone(ctx: WorkerContext, learner: Learner, envs: Envs, T: int) -> Iterator[None]:
    rows = row_spec(envs.spec.obs, learner.policy.spec(), envs.spec.mask)
    queue = TrainingQueue(rows, learner.policy.state_spec(), T, envs.lanes, envs.lanes)
    queue.patience = ctx.patience
    batches = queue.batches(0).consumer()
    desk = AgentTable(envs, queue, ctx.index * envs.lanes).open(ctx, learner.policy)
    server = Predictor(ctx, desk, learner.policy, learner.counts.newest)
    try:
        for chunks in server.chunks(renew=learner.counts.newest):
            for slot, length in chunks:
                queue.commit(slot, length)
            if not queue.depth:
                yield
                continue
            taken = next(batches)
            assert taken is not None  # it was committed a line ago
            yield from learner.step(*taken)
            ctx.counters.set("restarts", desk.pool.restarts)
            _tell_faults(ctx, desk.pool)
            if learner.saving or learner.done:
                learner.save()
            if learner.done:
                return
            yield
    finally:
        desk.close()
