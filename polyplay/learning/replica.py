"""Act and learn in one loop with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from polyplay.acting.actor import Actor, TapeRecorder
from polyplay.acting.exploration import Exploration
from polyplay.acting.on_device import policy_from_cpu, pool_to_device
from polyplay.acting.predictor import AgentTable, Predictor
from polyplay.acting.worker import open_pool, report_faults
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_slots import RolloutSlots, rows_of
from polyplay.buffers.training_queue import TrainingQueue
from polyplay.common.checkpoint import CheckpointPart
from polyplay.common.context import WorkerContext
from polyplay.common.errors import Leaving
from polyplay.common.tree import Batch, Spec
from polyplay.envs.pool import Envs
from polyplay.learning.collate import collator_for
from polyplay.learning.learner import Learner
from polyplay.learning.replay_learner import ReplayLearner
from polyplay.learning.spec import LearnerSpec
from polyplay.nets.policy import Policy


def replica(
    ctx: WorkerContext,
    *,
    envs: Envs,
    T: int,
    spec: LearnerSpec,
    replay: Replay | None = None,
    explore: Exploration | None = None,
) -> Iterator[None]:
    """Act, and learn from each rollout before the next: lag 0, but for what others changed meanwhile where replicas
    don't wait for each other. replay: rollouts go into it, and batches drawn from it are learnt from (DQN).
    """
    learner = Learner(ctx, spec)
    replay_learner = None if replay is None else ReplayLearner(ctx, learner, replay)
    saved = actor_checkpoint.load_actor(ctx)
    pool = open_pool(ctx, envs, saved)
    try:
        slots_of = RolloutSlots(*_rows(learner, envs), T, envs.lanes // envs.groups, envs.groups)
        policy = policy_from_cpu(learner.policy)
        place = learner.device if replay is None else torch.device("cpu")  # a replay is in the machine's own memory
        pool = pool_to_device(pool, slots_of, place)
        collate = collator_for(slots_of, envs.groups, place)
        recorder = None
        if ctx.reuse and spec.acted and getattr(learner.policy, "recalls", False):
            recorder = TapeRecorder(policy, envs.groups, T)
            policy = cast("Policy", recorder)
        actor = Actor(ctx, pool, policy, slots_of, ctx.index * envs.lanes)
        actor.explore, actor.bootstrap = explore, replay is None  # a replay keeps no last rows
        if "pool" in saved:
            actor.load(saved)
        elif explore is not None:  # ε is where the run is
            actor.acts[:] = int(learner.learnt) // explore.lanes

        def save(part: CheckpointPart) -> None:
            actor_checkpoint.save_actor(ctx, part, actor, {})
            if replay_learner is not None:
                replay_learner.save(part)

        def step(batch: tuple[Batch, Batch]) -> Iterator[None]:
            if replay_learner is not None:
                yield from replay_learner.step(*batch)
            else:
                yield from learner.step(*batch, recorder.take() if recorder else None)

        if replay_learner is not None:
            replay_learner.draw_ahead(T * envs.lanes)
        for slots in actor.rollouts(lambda k: learner.counts.newest()):
            if slots is not None:
                yield from step(collate(slots))
                collate.done()
                report_faults(ctx, pool)
                if learner.saving or learner.done:  # apart: the other workers' lanes are in mid-rollout now
                    learner.save() if spec.update.apart else learner.save(save)
                if learner.done:
                    return
                if replay_learner is not None:
                    replay_learner.draw_ahead(T * envs.lanes)
            elif actor.late():
                yield from learner.leave()
            yield
    except Leaving:
        save_leaving(learner, replay_learner)
    finally:
        pool.close()


def save_leaving(learner: Learner, replay_learner: ReplayLearner | None = None) -> None:
    """Save the weights as of the last update, without lanes, which are in the middle of a rollout. Nothing to do where
    the last checkpoint has that, and lanes too.
    """
    if learner.spec.update.apart or replay_learner is None:
        if learner.counts.newest() not in (learner.saved, learner.counts.begun):
            learner.save()
    else:
        learner.save(replay_learner.save)


def _rows(learner: Learner, envs: Envs) -> tuple[Spec, Spec]:
    """What a row holds, and the state before a rollout."""
    return rows_of(envs.spec, learner.policy.spec()), learner.policy.state_spec()


def episodic_replica(ctx: WorkerContext, *, envs: Envs, T: int, spec: LearnerSpec) -> Iterator[None]:
    """One lane, or match, that acts and learns: a rollout ends after T steps or with an episode (A3C's workers)."""
    learner = Learner(ctx, spec)
    slots = TrainingQueue(*_rows(learner, envs), T, envs.lanes, envs.lanes)
    slots.patience = ctx.patience
    table = AgentTable(envs, slots, ctx.index * envs.lanes).open(ctx, learner.policy)
    predictor = Predictor(ctx, table, learner.policy, learner.counts.newest)
    try:
        for chunks in predictor.chunks(renew=learner.counts.newest):
            full = [slot for slot, length in chunks if length]
            if full:
                yield from learner.step(*slots.batch(full))
            for slot, _ in chunks:
                slots.commit(slot, 0)  # empty again
            if full:
                report_faults(ctx, table.pool)
                if learner.saving or learner.done:
                    learner.save()
                if learner.done:
                    return
            elif ctx.late():
                yield from learner.leave()
            yield
    except Leaving:
        save_leaving(learner)
    finally:
        table.close()
