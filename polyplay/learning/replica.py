"""Act and learn in one loop with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from polyplay.acting.actor import Actor
from polyplay.acting.exploration import Explore
from polyplay.acting.on_device import arriving, near
from polyplay.acting.predictor import Desk, Server
from polyplay.acting.worker import _open, _tell_faults
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay import Replay
from polyplay.buffers.rollout_queue import Stream, row_spec
from polyplay.buffers.training_queue import Queue
from polyplay.common.checkpoint import Part
from polyplay.common.context import Me
from polyplay.envs.pool import Envs
from polyplay.learning.collate import joiner
from polyplay.learning.learner import Learner
from polyplay.learning.replay_learner import Rehearsal


def replica(
    me: Me,
    *,
    envs: Envs,
    T: int,
    task: Any,
    episodic: bool = False,
    replay: Replay | None = None,
    explore: Explore | None = None,
) -> Iterator[None]:
    """Act and learn in one loop with the same weights: lag 0, but for what others changed meanwhile where replicas
    don't wait for each other. episodic: one lane, whose rollout ends with its episode too (A3C's workers). replay: what
    is learnt from is drawn from it (DQN).
    """
    learner = Learner(me, task)
    rehearsal = None if replay is None else Rehearsal(me, learner, replay)
    if episodic:
        yield from _alone(me, learner, envs, T)
        return
    kept = actor_checkpoint.read(me)
    pool = _open(me, envs, kept)
    try:
        width = envs.lanes // envs.groups
        rows = row_spec(envs.spec.obs, learner.policy.spec(), envs.spec.mask)
        stream = Stream(rows, learner.policy.state_spec(), T, width, slots=2 * envs.groups)
        stream.patience = me.patience
        place = learner.device if rehearsal is None else torch.device("cpu")  # a memory is the machine's own
        pool = arriving(pool, stream, place)
        join = joiner(stream, envs.groups, place)
        producer, batches = stream.producer(0), stream.batches(envs.groups).consumer(0, join=join)
        actor = Actor(me, pool, near(learner.policy), producer, me.index * envs.lanes)
        actor.explore = explore
        actor.keeps = me.reuse and task.acted and pool.fixed and getattr(learner.policy, "recalls", False)
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
            yield from learner.step(*taken, actor.tape()) if rehearsal is None else rehearsal.step(*taken)
            me.meter.set("restarts", pool.restarts)
            _tell_faults(me, pool)
            if learner.saving or learner.done:
                if task.update.apart:
                    learner.save()  # the other workers' lanes are in mid-rollout now
                else:
                    learner.save(lambda part: _keep(me, part, actor, rehearsal))
            if learner.done:
                return
            yield
    finally:
        pool.close()


def _keep(me: Me, part: Part, actor: Actor, rehearsal: Rehearsal | None) -> None:
    actor_checkpoint.write(me, part, actor, {})
    if rehearsal is not None:
        rehearsal.save(part)


def _alone(me: Me, learner: Learner, envs: Envs, T: int) -> Iterator[None]:
    rows = row_spec(envs.spec.obs, learner.policy.spec(), envs.spec.mask)
    queue = Queue(rows, learner.policy.state_spec(), T, envs.lanes, envs.lanes)
    queue.patience = me.patience
    batches = queue.batches(0).consumer()
    desk = Desk(envs, queue, me.index * envs.lanes).open(me, learner.policy)
    server = Server(me, desk, learner.policy, learner.counts.newest)
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
            me.meter.set("restarts", desk.pool.restarts)
            _tell_faults(me, desk.pool)
            if learner.saving or learner.done:
                learner.save()
            if learner.done:
                return
            yield
    finally:
        desk.close()
