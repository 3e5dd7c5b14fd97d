"""A parameter server while learners and shards really are at it, as threads and processes, and one is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from polyplay.acting.worker import act
from polyplay.buffers.rollout_queue import RolloutQueue, row_spec
from polyplay.core import shared_memory
from polyplay.core.errors import Closed
from polyplay.core.worker import Hyperparameters
from polyplay.envs import Envs
from polyplay.learning import policy_losses
from polyplay.learning.learner import LearnerSpec
from polyplay.learning.loop import learn
from polyplay.nets import factory
from polyplay.weights.parameter_server import TAKEN, WRITTEN, ParameterServer, serve_parameters
from polyplay.weights.params import param_sizes
from polyplay.weights.update import OptimizerSpec
from polyplay.workers.crew import Crew
from tests.weights.ends import FORK, PLAIN, Wide, me
from tests.weights.test_parameter_server import whole


def _serve(server: ParameterServer, k: int) -> None:
    """A shard until the server is closed."""
    try:
        for _ in serve_parameters(me(k, server.shards), server=server):
            pass
    except Closed:
        pass


def _end(server: ParameterServer, index: int) -> Any:
    ctx = me(index, server.workers)
    bound: Any = server.bind(ctx, server.vector(ctx, Wide()))
    bound.counts.begin(0, 0.0)
    while not bound.counts.ready:
        time.sleep(0.001)
    return bound


def _work(server: ParameterServer, index: int, times: int) -> None:
    """`times` gradients, each of which adds (index + 1)/ε to every weight."""
    bound = _end(server, index)
    for _ in range(times):
        bound.counts.newest()
        bound.vector.grad.fill_(-(index + 1.0))
        for _ in bound(1.0, np.zeros(3)):
            pass
        bound.counts.add(2)


def _all_there(server: ParameterServer, times: list[int]) -> None:
    until = time.monotonic() + 300
    while (server.slot[:, :, WRITTEN] != server.slot[:, :, TAKEN]).any():
        assert time.monotonic() < until
        time.sleep(0.002)
    assert server.shard[:, 0].tolist() == [sum(times)] * server.shards, "every part had every gradient"
    assert server.counters[:, 0].tolist() == times
    want = sum((i + 1.0) * n for i, n in enumerate(times)) / 1e6
    np.testing.assert_allclose(whole(server), want, rtol=2e-3)
    assert int(server.lags.sum()) == sum(times) * server.shards


def _run(server: ParameterServer, kind: Any, times: list[int]) -> None:
    shards = [kind(target=_serve, args=(server, k), daemon=True) for k in range(server.shards)]
    works = [kind(target=_work, args=(server, i, n), daemon=True) for i, n in enumerate(times)]
    for worker in (*shards, *works):
        worker.start()
    try:
        for worker in works:
            worker.join(300)
            assert not worker.is_alive()
        _all_there(server, times)
    finally:
        server.close()
        for worker in shards:
            worker.join(60)
    assert not any(worker.is_alive() for worker in shards)


@pytest.mark.parametrize("kind", [threading.Thread, FORK.Process], ids=["threads", "processes"])
def test_no_gradient_is_lost_and_none_comes_twice(kind):
    server = ParameterServer(PLAIN, *param_sizes(Wide()), 2, shards=2)
    _run(server, kind, [40, 40])
    assert server.shard[:, 0].tolist() == [80, 80]


def _die(server: ParameterServer) -> None:
    """Writes a slice, and is killed before it says so."""
    bound = _end(server, 1)
    bound.vector.grad.fill_(7e9)
    left = iter((lambda: None, lambda: time.sleep(600)))
    shared_memory.memory_barrier = lambda: next(left)()
    for _ in bound(1.0, np.zeros(3)):
        pass


def test_what_a_learner_that_is_killed_was_writing_is_never_applied():
    server = ParameterServer(PLAIN, *param_sizes(Wide()), 2, shards=2)
    _end(server, 0)
    worker = FORK.Process(target=_die, args=(server,), daemon=True)
    worker.start()
    try:
        until = time.monotonic() + 300
        while not server.gradient[1].any():
            assert time.monotonic() < until
            time.sleep(0.005)
    finally:
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join(60)
    assert server.gradient[1].max() > 1e9, "it was in the middle of it"
    _run(server, threading.Thread, [20, 20])  # one takes its place


def test_impalas_actors_and_learner_take_it_for_params():
    """Any system may learn so: the server is the update, and who acts pulls from it."""
    envs = Envs("toy:catch", lanes=4)
    policy = factory.NetworkFactory("mlp", envs.spec, {"hidden": (16,)})
    net = policy()
    server = ParameterServer(OptimizerSpec("adam", eps=1e-5), *param_sizes(net), workers=1, shards=2)
    spec = LearnerSpec(
        policy,
        policy_losses.VTrace(gamma=0.99),
        server,
        Hyperparameters(learning_rate=1e-3, entropy_cost=0.01),
        2_000,
    )
    queue = RolloutQueue(
        row_spec(envs.spec.obs, net.spec(), envs.spec.mask), net.state_spec(), 4, 4, slots=4, producers=2
    )
    crew = Crew(0, serial=True, steps=2_000)
    crew.add(act, n=2, envs=envs, policy=policy, out=queue, params=server)
    crew.add(learn, learner=True, source=queue.batches(2), spec=spec, params=server)
    crew.add(serve_parameters, n=2, server=server)
    assert "serve_parameters ──► " in crew.diagram()
    crew.start(spec.loss.metrics)
    while not crew.poll(0.5):
        pass
    updates = int(crew.counters.column("updates").max())
    assert updates >= 2_000 // 32
    assert server.totals()["applied"].tolist() == [server.version] * 2
    assert server.version in (updates, updates + 1)
    assert 0 <= crew.counters.column("lag_sum").sum() / crew.counters.column("lag_count").sum() <= 3
    crew.stop()
