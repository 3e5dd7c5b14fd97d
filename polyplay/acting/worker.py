"""The workers that act: `act` into a stream or at a desk, `replica` for itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any

from polyplay.acting.actor import Actor
from polyplay.acting.exploration import Explore
from polyplay.acting.on_device import near
from polyplay.acting.predictor import Desk, Server
from polyplay.buffers import actor_checkpoint
from polyplay.common.context import Me
from polyplay.common.tree import Batch
from polyplay.envs.pool import Envs, Pool
from polyplay.nets.device import enter
from polyplay.nets.factory import build
from polyplay.weights.flat import Vector
from polyplay.weights.hogwild import Hogwild


def act(
    me: Me,
    *,
    policy: Any,
    out: Any,
    params: Any,
    envs: Envs | None = None,
    desk: Desk | None = None,
    lag: int | None = None,
    explore: Explore | None = None,
    nice: int = 0,
) -> Iterator[None]:
    """An actor: its own environments, its own copy of the weights, rollouts into a stream. At a desk: a predictor, one
    of those that serve its lanes, with the weights that the trainers change. nice: how far other processes of the
    machine go first, as os.nice has it.
    """
    if nice and multiprocessing.parent_process() is not None:
        os.nice(nice)
    if desk is not None:
        yield from _serve(me, desk, policy, params)
        return
    assert envs is not None
    net = build(policy, me.seed, me.precision, enter(me.device))
    vector = Vector(net)
    kept = actor_checkpoint.read(me, out.consumers)
    pool = _open(me, envs, kept)
    try:
        producer = out.producer(me.index)
        producer.give(kept.get("flight", {}))
        actor = Actor(me, pool, near(net), producer, me.index * envs.lanes)
        actor.explore = explore
        if "pool" in kept:
            actor.load(kept)
        for slots in actor.rollouts(params, vector, lag):
            for slot in slots or []:
                producer.commit(slot, me.incarnation)
                me.meter.add("rollouts", 1)
            me.meter.set("restarts", pool.restarts)
            _tell_faults(me, pool)
            yield
            actor_checkpoint.answer(me, actor, producer)
    finally:
        pool.close()


def _serve(me: Me, desk: Desk, policy: Any, weights: Hogwild) -> Iterator[None]:
    while not weights.ready:
        time.sleep(min(me.patience, 0.005))
        yield
    net = build(policy, me.seed, me.precision, enter(me.device))
    weights.reader(net)
    net = near(net)
    desk.open(me, net)
    for chunks in Server(me, desk, net, lambda: weights.version).chunks():
        for slot, length in chunks:
            desk.out.commit(slot, length)
            me.meter.add("rollouts", 1)
        me.meter.add("depth_sum", desk.queued)
        me.meter.add("depth_count", 1)
        me.meter.set("restarts", desk.pool.restarts if me.index == 0 else 0)
        _tell_faults(me, desk.pool)
        yield


def _open(me: Me, envs: Envs, kept: Batch) -> Pool:
    """The worker's lanes: with the seeds they had, if it goes on exactly."""
    if "pool" in kept:
        me.incarnation = int(kept["incarnation"])
    return envs.open(me.env_seed, lane=me.index * envs.lanes)


def _tell_faults(me: Me, pool: Pool) -> None:
    """Pass on what a pool repaired, once each."""
    with contextlib.suppress(IndexError):  # another thread was faster
        while pool.faults:
            me.say("warning", pool.faults.pop(0))
