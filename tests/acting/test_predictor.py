"""Lanes at their own pace: chunks end with their episodes, and every transition is learnt exactly once, whatever comes,
goes, is killed or waits.
"""

from __future__ import annotations

import collections
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from polyplay.acting.predictor import LaneTable
from polyplay.acting.worker import predict
from polyplay.buffers.rollout_queue import TrainingQueue, row_spec
from polyplay.core.worker import Hyperparameters
from polyplay.envs import Envs
from polyplay.learning import losses
from polyplay.learning.learner import LearnerSpec
from polyplay.learning.loop import Chunks, learn
from polyplay.nets import factory
from polyplay.weights.params import param_sizes
from polyplay.weights.update import Hogwild, OptimizerSpec
from polyplay.workers.crew import Crew
from tests.census import census

ROOM = 6


@dataclass(frozen=True)
class Register(losses.Loss):
    """A loss that writes down every transition it is given."""

    inner: Any = field(default_factory=losses.A2C)
    seen: list = field(default_factory=list, hash=False, compare=False)
    off: list = field(default_factory=list, hash=False, compare=False)  # what acting said, from what learning says

    def __call__(self, policy, target, batch, state, hyper):
        out = policy.unroll(batch, state)
        obs, valid = batch["obs"], ~batch["first"][1:]
        self.seen.append(torch.cat([obs[:-1][valid], obs[1:][valid]], 1).clone())
        for k in ("value", "logp"):
            self.off.append(float((out[k].detach()[:-1] - batch[k][:-1])[valid].abs().max()))
        self.inner.score(out, batch, hyper)
        return losses.LossOutput(sum(v.sum() for v in out.values()) * 0.0, {"loss": torch.tensor(0.0)})

    def transitions(self) -> list[tuple]:
        return [tuple(map(int, row)) for row in torch.cat(self.seen).tolist()]


def service(crew: Crew, envs: Envs, T: int = 5, capacity: int = 10, rows: int = 0, total: float = 1e9, **net: Any):
    policy = factory.NetworkFactory("mlp", envs.spec, {"hidden": (8,), **net})
    module = policy()
    weights = Hogwild(OptimizerSpec("adam"), *param_sizes(module), workers=4, copy=False)
    loss = Register()
    spec = LearnerSpec(policy, loss, weights, Hyperparameters(learning_rate=0.0, entropy_cost=0.0), total=total)
    queue = TrainingQueue(row_spec(envs.spec.obs, module.spec()), module.state_spec(), T, envs.lanes, capacity)
    agents = LaneTable(envs, queue)
    batches = Chunks(queue, rows)
    served: Any = {"agents": agents, "policy": policy, "out": queue, "params": weights}
    predictors = crew.add(predict, n=2, name="act", on="thread", drain=True, **served)
    trainers = crew.add(learn, n=2, on="thread", drain=True, source=batches, spec=spec)
    for role in (predictors, trainers):
        crew.dial(role, 1, 4)
    return agents, predictors, trainers, loss, batches


def poll(crew: Crew, until, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        crew.poll(0.01)
        assert time.monotonic() < end, "the service stands still"


def steps(crew: Crew) -> int:
    return int(crew.counters.column("steps").sum())


def drain(crew: Crew, agents: LaneTable, loss: Register, batches: Any) -> list[tuple]:
    """Let every agent leave, and everything be learnt."""
    agents.pool.scale(0)
    batches.rows = 0
    poll(crew, lambda: agents.pool.present == 0 and sum(map(len, loss.seen)) == steps(crew))
    return loss.transitions()


def check(crew: Crew, seen: list[tuple]) -> None:
    """Every transition once, and of each episode all from its first step on."""
    assert len(seen) == len(set(seen)) == steps(crew)
    last: dict[tuple, int] = collections.Counter()
    for *before, age, process, env, episode, after in seen:
        assert before == [process, env, episode]
        assert after == age + 1
        last[process, env, episode] += 1
    ages = collections.defaultdict(set)
    for a in seen:
        ages[a[:3]].add(a[3])
    assert all(found == set(range(len(found))) for found in ages.values())


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_every_transition_is_learnt_exactly_once(core):
    envs = Envs(census, ROOM, workers=ROOM, at_once=4)
    crew = Crew(seed=1)
    agents, _, _, loss, batches = service(crew, envs, rows=7, core=core)
    crew.start(("loss",))
    try:
        poll(crew, lambda: steps(crew) > 600)
        check(crew, drain(crew, agents, loss, batches))
        assert max(loss.off) < 1e-4, "a chunk begins with the state that its lane had there"
    finally:
        crew.stop()


def test_a_killed_agent_is_replaced_and_told_and_nothing_is_lost_or_learnt_twice():
    envs = Envs(census, 3, workers=3, at_once=3)
    told = []
    crew = Crew(seed=1, log=lambda kind, text: told.append(text))
    agents, _, _, loss, batches = service(crew, envs)
    crew.start(("loss",))
    try:
        for _ in range(3):
            now = steps(crew)
            poll(crew, lambda now=now: steps(crew) > now + 100)
            os.kill(agents.pool._workers[1].process.pid, signal.SIGKILL)
            poll(crew, lambda now=len(told): len(told) > now)
        seen = drain(crew, agents, loss, batches)
        assert len(seen) == len(set(seen)) == steps(crew)
        assert "SIGKILL" in told[0]
        assert "restarted" in told[0]
    finally:
        crew.stop()
