"""The acting loop: what was stored is what the learner computes, the lag is what was asked for, nothing deadlocks."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from polyplay.acting import actor
from polyplay.acting.actor import (
    Actor,
    EpsilonLadder,
    GaussianNoise,
    LanePlayer,
    LinearEpsilon,
    RunSchedule,
    act_rows,
)
from polyplay.acting.worker import act
from polyplay.buffers.rollout_queue import RolloutQueue, RolloutSlots, rows_of
from polyplay.core import tree
from polyplay.core.worker import Counters, Hyperparameters, RunControl, WorkerContext
from polyplay.envs import Envs
from polyplay.learning import losses
from polyplay.learning.learner import LearnerSpec
from polyplay.learning.loop import Inline, Rollouts, learn
from polyplay.nets import factory as nets
from polyplay.nets import layers
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.factory import build_network
from polyplay.weights.params import FlatParams, Params, WeightCache, param_sizes
from polyplay.weights.update import AllReduce, Local, OptimizerSpec
from polyplay.workers.crew import Crew
from tests.games.traits import NAME as TRAITS


@dataclass(frozen=True)
class Compared(losses.Loss):
    """A loss that also reports how far what was stored while acting is from the learner's own, and the lags it saw."""

    inner: Any
    seen: list = field(default_factory=list, hash=False, compare=False)
    losses: list = field(default_factory=list, hash=False, compare=False)
    metrics = ("delta",)

    @property
    def recalls(self):
        return self.inner.recalls

    def __call__(self, policy, target, batch, state, hyper):
        out = policy.unroll(tree.at(batch, slice(-1)) if self.recalls else batch, state)
        scored = self.inner.score(out, batch, hyper)
        delta = max(float((x.detach() - batch[k][: len(x)]).abs().max()) for k, x in out.items() if k != "entropy")
        self.seen.append(delta)
        self.losses.append(float(scored.loss.detach()))
        return scored._replace(metrics={**scored.metrics, "delta": torch.tensor(delta)})


class Screens(gymnasium.Env):
    """Random pictures; the first action pays where the picture is bright."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 36, 36), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def _look(self) -> np.ndarray:
        self.bright = bool(self.np_random.integers(2))
        return self.np_random.integers(0, 128, (4, 36, 36), np.uint8) + np.uint8(127 * self.bright)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 7
        return self._look(), {}

    def step(self, action):
        reward, self.left = float(self.bright == (action == 0)), self.left - 1
        return self._look(), reward, self.left == 0, False, {}


def _task(envs: Envs, steps: int, loss: Any = None, update: Any = None, **net: Any) -> LearnerSpec:
    policy = nets.NetworkFactory("mlp", envs.spec, {"hidden": (32,), **net})
    return LearnerSpec(
        policy=policy,
        loss=loss or Compared(losses.A2C()),
        update=update or Local(OptimizerSpec("adam", clip=0.5)),
        hyperparameters=Hyperparameters(learning_rate=2e-3, entropy_cost=0.01),
        total=steps,
    )


def _run(crew: Crew, seconds: float = 150.0) -> Crew:
    crew.start(("loss", "entropy", "grad_norm"))
    until = time.monotonic() + seconds
    try:
        while not crew.poll(0.05):
            assert time.monotonic() < until, "the graph stands still"
    finally:
        crew.stop()
    return crew


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("env", "net", "groups"),
    [
        ("toy:catch", {}, 2),
        ("toy:memory", {"core": "gru", "core_size": 16, "previous": True}, 1),
        (f"{TRAITS}+memory+mask+dict+hybrid", {"core": "gru", "core_size": 16, "previous": True}, 2),
        pytest.param("toy:memory", {"core": "lstm", "core_size": 16}, 2, marks=LONG),
        pytest.param(f"{TRAITS}+mask+dict+hybrid+continuous", {}, 2, marks=LONG),
    ],
)
def test_at_lag_0_what_was_stored_is_what_the_learner_computes_to_the_bit(env, net, groups):
    envs = Envs(env, lanes=8, groups=groups)
    spec = _task(envs, steps=8 * 5 * 28, **net)
    crew = Crew(seed=3, serial=True)
    crew.add(learn, source=Inline(envs, 5), spec=spec)
    _run(crew)
    assert max(spec.loss.seen) == crew.counters.column("lag_max").max() == 0.0
    assert crew.counters.column("lag_count").sum() > 0
    assert len(spec.loss.seen) >= 25


@pytest.mark.parametrize(
    ("lag", "groups", "on", "learners"),
    [
        (0, 2, "thread", 1),
        (1, 1, "serial", 1),
        (0, 1, "thread", 2),
        *(pytest.param(*case, 1, marks=LONG) for case in ((1, 2, "thread"), (-1, 2, "thread"), (1, 2, "process"))),
    ],
)
def test_lag_is_what_was_asked_for_and_nothing_deadlocks(lag, groups, on, learners):
    """Two actors; learners stay equal."""
    envs, optim = Envs("toy:catch", lanes=4, groups=groups), OptimizerSpec("adam", clip=1.0)
    policy = nets.NetworkFactory("auto", envs.spec, {"hidden": (16,)})
    size = param_sizes(policy())[1]
    update = AllReduce(optim, learners, size) if learners > 1 else Local(optim)
    spec = replace(_task(envs, 2000, losses.VTrace(reduction="mean"), update), policy=policy)
    queue, params = RolloutQueue.of(envs, policy(), 5, 2, 2, learners), Params(size, readers=2)
    crew = Crew(seed=1, on="thread" if on == "serial" else on, serial=on == "serial")
    crew.add(act, n=2, envs=envs, policy=policy, out=queue, params=params, lag=lag)
    source = Rollouts(queue, groups * 2 // learners, in_turn=lag >= 0)
    crew.add(learn, n=learners, source=source, spec=spec, publish=params)
    _run(crew)
    updates = [n for n in crew.counters.column("updates") if n > 0]
    assert updates == updates[:1] * learners
    assert crew.counters.column("lag_count").sum() >= 2000
    assert lag < 0 or crew.counters.column("lag_max").max() <= lag


def test_replicas_start_equal_whatever_threads_do():
    factory = nets.NetworkFactory("auto", Envs("toy:catch", lanes=1).spec, {"hidden": (64, 64)})
    made: list = []
    threads = [threading.Thread(target=lambda: made.append(build_network(factory, 5))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    vectors = [torch.nn.utils.parameters_to_vector(m.parameters()) for m in made]
    assert all(torch.equal(v, vectors[0]) for v in vectors[1:])


@pytest.mark.parametrize(("precision", "groups"), [("float32", 2), ("bfloat16", 1)])
def test_what_acting_computed_is_learnt_from_as_if_computed_again(precision, groups, monkeypatch):
    """Losses of the first updates with tapes and without; every learner's row is what was said while acting."""
    found = {}
    for reuse in (True, False):
        envs = Envs(Screens, lanes=8, groups=groups, inline=True)
        policy = nets.NetworkFactory("a3c", envs.spec, {"init": "orthogonal"})
        loss = Compared(losses.A2C(recalls=True))
        spec = replace(_task(envs, 8 * 5 * 6, loss), policy=policy)
        spec.hyperparameters.set("learning_rate", 1e-3)
        crew = Crew(seed=3, serial=True, precision=precision, reuse=reuse)
        crew.add(learn, source=Inline(envs, 5), spec=spec)
        used = []
        with monkeypatch.context() as patched:
            patched.setattr(actor, "join_tapes", lambda tapes, used=used: used.append(0) or layers.join_tapes(tapes))
            _run(crew)
        assert len(loss.seen) >= 6
        assert len(used) == (len(loss.seen) if reuse else 0)
        assert max(loss.seen) <= (1e-6 if reuse else 1e-5 if precision == "float32" else 2e-2)
        found[reuse] = [float(x) for x in loss.losses]
    close = 1e-4 if precision == "float32" else 5e-2
    assert np.allclose(found[True][:6], found[False][:6], atol=close), "later, small differences may choose otherwise"


@pytest.mark.parametrize(("keep", "versions"), [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 0, 0, 3, 3, 3, 6])])
def test_weights_are_kept_for_so_many_rollouts(keep, versions):
    """A learner that publishes after every rollout; what an actor saves goes on with what it has."""
    envs = Envs("toy:catch", 2, inline=True)
    policy = nets.NetworkFactory("mlp", envs.spec)
    queue, params, seen = RolloutQueue.of(envs, policy(), 4, 1, slots=8), Params.of(policy), []
    vector = FlatParams(policy())
    params.publish(vector, 0, 0)
    ctx = WorkerContext("act", 0, 1, 0, 3, Counters(1), RunControl(), patience=0.0)
    for _ in act(ctx, policy=policy, out=queue, params=params, envs=envs, keep=keep):
        seen.append(int(queue.rows["version"][len(seen), 1, 0]))
        params.publish(vector, len(seen), len(seen))
        if len(seen) == len(versions):
            break
    assert seen == versions
    held = WeightCache(vector, 3)
    assert held.save() == {}
    held.tick()
    saved = held.save()
    other = WeightCache(FlatParams(policy()), 3)
    other.load(saved)
    assert (other.age, other.version) == (1, -1)
    assert torch.equal(other.vector.flat, vector.flat)


def at(explore, steps, lane=0):
    return float(explore.at(np.array([steps]), np.array([lane]))[0])


def test_a_policy_sees_of_a_row_what_it_may_noise_where_it_is_given_and_leaves_no_gradient():
    seen, weight = list[dict[str, Any]](), torch.ones(1, requires_grad=True)

    def policy_act(inputs, state):
        seen.append(inputs)
        return {"action": inputs["reward"] * weight}, state

    policy: Any = SimpleNamespace(noise=1, act=policy_act)
    step = {"obs": {"a": np.arange(2)}, "reward": np.ones(2, np.float32), "first": np.zeros(2, bool)}
    step |= {"terminated": np.zeros(2, bool), "over": np.zeros(2, bool), "team_reward": np.ones(2)}
    outputs, after = act_rows(policy, step, {"h": 3}, np.zeros((2, 1), np.float32), np.full(2, 0.5, np.float32))
    act_rows(policy, step, {})
    assert isinstance(outputs["action"], np.ndarray), "a tensor with a gradient cannot be one"
    assert after == {"h": 3}
    assert [sorted(inputs) for inputs in seen] == [
        ["epsilon", "first", "noise", "obs", "reward"],
        ["first", "obs", "reward"],
    ]
    assert torch.equal(seen[0]["obs"]["a"], torch.arange(2))


def test_dqns_falls_from_1_to_a_tenth_after_its_warm_up():
    dqn = LinearEpsilon(1.0, 0.1, 1_000_000, 50_000)
    told = [at(dqn, n) for n in (0, 50_000, 550_000, 1_050_000, 10_000_000)]
    assert told == pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])
    assert at(LinearEpsilon(1.0, 0.0, 1_000, 0, lanes=8), 50) == pytest.approx(1.0 - 8 * 50 / 1_000), "of all lanes"
    assert at(LinearEpsilon(1.0, 0.25, 0, 0), 1) == pytest.approx(0.25), "over nothing it is at its end"


def test_a_joint_schedule_is_at_what_all_did_together_whatever_a_lane_did():
    counts = SimpleNamespace()
    joint, alone = (
        RunSchedule(1.0, 0.1, 1_000, 50, 8, SimpleNamespace(counts=counts)),
        LinearEpsilon(1.0, 0.1, 1_000, 50),
    )
    assert joint.lanes == 8
    for steps in (0, 50, 333, 1_050, 10**7):
        counts.learnt = float(steps)
        told = joint.at(np.array([0, 10**6, 7]), np.arange(3))
        assert (told.shape, told.dtype) == ((3,), np.float32)
        assert told == pytest.approx([at(alone, steps)] * 3)


def test_the_ladder_has_the_fact_sheets_numbers():
    lanes = np.arange(8)
    found = EpsilonLadder(8).at(np.zeros(8), lanes)
    twin = [0.4 ** (1 + i / 7 * 7) for i in range(8)]
    assert found.dtype == np.float32
    assert found == pytest.approx(twin)
    assert (found[0], found[-1]) == pytest.approx((0.4, 6.5536e-4))
    published = EpsilonLadder(360).at(np.zeros(360), np.arange(360))
    assert float(published.mean()) == pytest.approx(0.0626, abs=1e-4)
    assert float(np.median(published)) == pytest.approx(0.01619, rel=2e-2)
    assert at(EpsilonLadder(1, 0.4), 0) == at(EpsilonLadder(1, 0.4), 10**9) == pytest.approx(0.4), "one lane alone"


def test_normal_noise_has_one_deviation_for_every_lane_and_step():
    found = GaussianNoise(0.3).at(np.array([0, 10**9, 5]), np.array([0, 1, 63]))
    assert found.dtype == np.float32
    assert found == pytest.approx([0.3, 0.3, 0.3])


@pytest.mark.parametrize("how", ["auto", "on", "off"])
def test_a_small_network_acts_without_torch_and_learns_unless_compile_is_off(how, monkeypatch):
    """Mean return of the last 200 games of Catch, −0.6 by random play."""
    acted, own = [], ActorCritic.act
    monkeypatch.setattr(ActorCritic, "act", lambda *given: acted.append(0) or own(*given))
    envs = Envs("toy:catch", lanes=8, inline=True)
    spec = _task(envs, 500 if how == "off" else 16_000, losses.A2C())
    spec.hyperparameters.set("learning_rate", 5e-3)
    crew = Crew(seed=3, on="thread", compile=how)
    crew.add(learn, source=Inline(envs, 8), spec=spec)
    _run(crew)
    assert bool(acted) == (how == "off")
    games = crew.counters.games[0, : int(crew.counters.column("episodes")[0]), 0]
    assert how == "off" or games[-200:].mean() > -0.1


@pytest.mark.parametrize("how", [{"serial": True}, {"trace": True}, {"serial": True, "compile": "on"}])
def test_what_can_be_repeated_to_the_bit_acts_by_torch(how, monkeypatch):
    acted, own = [], ActorCritic.act
    monkeypatch.setattr(ActorCritic, "act", lambda *given: acted.append(0) or own(*given))
    envs = Envs("toy:catch", lanes=2, inline=True)
    crew = Crew(seed=3, **{"on": "thread", **how})
    crew.add(learn, source=Inline(envs, 4), spec=_task(envs, 100, losses.A2C()))
    _run(crew)
    assert bool(acted) == (how.get("compile") != "on")


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_counters_move_within_a_slow_rollout_else_once_a_rollout_or_with_a_game(every, monkeypatch):
    monkeypatch.setattr(actor, "REPORTED", every)
    envs = Envs("toy:catch", 2, inline=True)
    policy = nets.NetworkFactory("mlp", envs.spec)()
    ctx, seen, rows = WorkerContext("act", 0, 1, 0, 3, Counters(1), RunControl()), [], 4
    with closing(envs.open(1)) as pool:
        slots = RolloutSlots(rows_of(envs.spec, policy.spec()), {}, rows, 2, 1)
        acting = Actor(ctx, pool, [LanePlayer(policy, slots)], 0)
        acting.watch = lambda lanes, step: seen.append((ctx.counters.get("steps"), step["first"] | step["over"]))
        rollouts = acting.rollouts(lambda k: 0)
        for n in range(1, 6):
            next(rollouts)
            assert ctx.counters.get("steps") == acting.games.length.sum() + sum(ctx.counters.games[:, 1])
            assert ctx.counters.get("served") == 2 * ctx.counters.get("calls") == 2 * (rows * n + 1)
            assert ctx.counters.get("infer") > 0 < ctx.counters.get("env")
    pairs = enumerate(pairwise(seen))
    moved = [y[0] > x[0] for t, (x, y) in pairs if t % rows and not y[1].any()]  # within rollouts and games
    assert len(moved) > 5
    assert all(moved) if every == 0.0 else not any(moved)
