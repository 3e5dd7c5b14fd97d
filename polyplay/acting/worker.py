"""The worker that acts: rollouts into a queue, or as a predictor for lanes that several serve."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator

from polyplay.acting.actor import Actor
from polyplay.acting.exploration import Exploration
from polyplay.acting.on_device import policy_from_cpu
from polyplay.acting.predictor import AgentTable, Predictor
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.buffers.training_queue import TrainingQueue
from polyplay.common.context import WorkerContext
from polyplay.common.tree import Batch
from polyplay.envs.pool import Envs, Pool
from polyplay.nets.device import enter_device
from polyplay.nets.factory import build_network
from polyplay.nets.policy import PolicyFactory
from polyplay.weights.flat import FlatParams
from polyplay.weights.hogwild import Hogwild
from polyplay.weights.parameter_server import ParameterServer
from polyplay.weights.params import HeldWeights, Params


def act(
    ctx: WorkerContext,
    *,
    policy: PolicyFactory,
    out: RolloutQueue | TrainingQueue,
    params: Params | ParameterServer | Hogwild,
    envs: Envs | None = None,
    agents: AgentTable | None = None,
    lag: int | None = None,
    explore: Exploration | None = None,
    nice: int = 0,
    keep: int = 1,
) -> Iterator[None]:
    """An actor: its own environments, its own copy of the weights, rollouts into a queue. With `agents` a predictor:
    one of those that serve these lanes, with the weights that the trainers change. nice: how far other processes of
    the machine go first, as os.nice has it. keep: rollouts between two pulls of the weights.
    """
    if nice and multiprocessing.parent_process() is not None:
        os.nice(nice)
    if agents is not None:
        assert isinstance(params, Hogwild)
        yield from _serve(ctx, agents, policy, params)
        return
    assert envs is not None
    assert isinstance(out, RolloutQueue)
    assert not isinstance(params, Hogwild)
    net = build_network(policy, ctx.seed, ctx.precision, enter_device(ctx.device))
    held = HeldWeights(FlatParams(net), keep)
    saved = actor_checkpoint.load_actor(ctx, out.consumers)
    with contextlib.closing(open_pool(ctx, envs, saved)) as pool:
        producer = out.producer(ctx.index)
        producer.give(saved.get("flight", {}), actor_checkpoint.slots_read(ctx, out))
        actor = Actor(ctx, pool, policy_from_cpu(net), producer, ctx.index * envs.lanes)
        actor.explore, actor.held = explore, held
        if "pool" in saved:
            actor.load(saved)

        def pull(k: int) -> int | None:
            """The weights of round k - lag or later ones, the newest where acting runs free."""
            if held.age:
                return held.version
            if not params.wait(0 if lag is None else max(k - lag, 0), ctx.index, out.patience):
                return None
            held.version = params.pull(held.vector, held.version)
            return held.version

        for slots in actor.rollouts(pull):
            if slots:
                held.used()
            for slot in slots or []:
                producer.commit(slot, ctx.incarnation)
                ctx.counters.add("rollouts", 1)
            report_faults(ctx, pool)
            yield
            while actor_checkpoint.answer_save(ctx, actor, producer) and ctx.serial:
                yield
            yield from actor_checkpoint.rest_at_end(ctx, producer)


def _serve(ctx: WorkerContext, agents: AgentTable, policy: PolicyFactory, weights: Hogwild) -> Iterator[None]:
    while not weights.ready:
        time.sleep(min(ctx.patience, 0.005))
        yield
    net = build_network(policy, ctx.seed, ctx.precision, enter_device(ctx.device))
    weights.reader(net)
    net = policy_from_cpu(net)
    agents.open(ctx, net)
    for chunks in Predictor(ctx, agents, net, lambda: weights.version).chunks():
        for slot, length in chunks:
            agents.out.commit(slot, length)
            ctx.counters.add("rollouts", 1)
        ctx.counters.depth(agents.queued)
        report_faults(ctx, agents.pool, counts=ctx.index == 0)
        yield


def open_pool(ctx: WorkerContext, envs: Envs, saved: Batch) -> Pool:
    """The worker's lanes: with the seeds they had, if it goes on exactly."""
    if "pool" in saved:
        ctx.incarnation = int(saved["incarnation"])
    return envs.open(ctx.env_seed, lane=ctx.index * envs.lanes)


def report_faults(ctx: WorkerContext, pool: Pool, counts: bool = True) -> None:
    """Count what a pool repaired, and pass each on once."""
    ctx.counters.set("restarts", pool.restarts if counts else 0)
    with contextlib.suppress(IndexError):  # another thread was faster
        while pool.faults:
            ctx.say("warning", pool.faults.pop(0))
        while pool.remarks:
            ctx.say("remark", pool.remarks.pop(0))
