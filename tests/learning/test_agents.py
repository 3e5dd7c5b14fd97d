"""Learners of several agents: copies, windows of rollouts, past agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polyplay
from polyplay.buffers.league import CopyOrder, League
from polyplay.buffers.rollout_queue import ROWS, RolloutQueue
from polyplay.core import checkpoint
from polyplay.core.checkpoint import read_self, self_path
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, Hyperparameters
from polyplay.envs import Envs
from polyplay.learning import agents, losses
from polyplay.learning.agents import (
    WINDOW_METRICS,
    AgentRollouts,
    PastAgents,
    WindowFeed,
    Windows,
    discount_of,
    learn_agents,
)
from polyplay.learning.learner import Learner, LearnerSpec
from polyplay.learning.losses import PPO
from polyplay.nets import factory
from polyplay.nets.factory import build_network
from polyplay.nets.policy import Policy
from polyplay.weights.params import AgentParams, AgentSnapshot, FlatParams
from polyplay.weights.update import Local, OptimizerSpec
from polyplay.workers.crew import Crew
from tests import twins

VALUES = [2e-3, 0.005]  # learning rate, entropy cost


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two agents that have learnt different things."""
    given: dict[str, Any] = {"env": "toy:rps", "serial": True, "tensorboard": False, "network": "mlp", "hidden": (16,)}
    directory = tmp_path_factory.mktemp("runs") / "run"
    polyplay.train("league", run=str(directory), steps=1500, lanes=8, batch=4, **given)
    return checkpoint.everything(directory)[-1]


@dataclass
class Learners:
    """Of two agents that nobody acts for, and what they share."""

    crew: Crew
    league: League
    params: AgentParams
    policy: factory.NetworkFactory

    def published(self, agent: int) -> tuple[int, bytes]:
        vector = FlatParams(build_network(self.policy, 0, "float32", torch.device("cpu")))
        version = self.params.each[agent].pull(vector)
        return version, vector.flat.numpy().tobytes()

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + 150
        while not condition():
            assert time.monotonic() < end, "it did not come to that"
            self.crew.poll(0.01)


def learners(
    saved: Path, directory: Path, processes: int, initial: Sequence[Mapping[str, float]] = ()
) -> Iterator[Learners]:
    envs = Envs("toy:rps", lanes=8, groups=2, agents=2)
    policy = factory.NetworkFactory("mlp", envs.spec, {"hidden": (16,)})
    update = Local(OptimizerSpec("adam", 1e-5, clip=0.5))
    hyper = Hyperparameters(learning_rate=1e-3, entropy_cost=0.01)
    league = League(2, 1, envs.spec.sides, varied=tuple(hyper.configured))
    params = AgentParams(policy(), 2, statistics=update.optim.statistics)
    queue = RolloutQueue.of(envs, policy(), 5, 1, 2, 2, per_agent=True)
    spec = LearnerSpec(policy, losses.VTrace(reduction="mean"), update, hyper, 1e9)
    crew = Crew(seed=3, serial=not processes, directory=directory, resume=saved)
    source = AgentRollouts(queue, 1, league, 10**6, initial)
    crew.add(learn_agents, n=processes or 1, name="learn", source=source, spec=spec, publish=params)
    crew.start(("loss", "grad_norm", "delta"))
    run = Learners(crew, league, params, policy)
    try:
        run.until(lambda: not np.isnan(league.hyper).any())
        yield run
    finally:
        crew.stop()


def agent_of(path: Path, agent: int) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What is saved of its learner, its weights, its optimizer."""
    folder = checkpoint.OpenCheckpoint(path)
    arrays = (folder.arrays(f"agents/{agent}/{name}") for name in ("policy", "optimizer"))
    return (folder.json(f"agents/{agent}/learner"), *arrays)


def save(run: Learners, directory: Path) -> Path:
    """A whole checkpoint of its learners, which end."""
    run.crew.control.finish()
    run.until(lambda: (run.crew.counters.column("saved")[run.crew.agent_rows(run.crew.roles[0])] >= 1).all())
    (number,) = checkpoint.partial_versions(directory)
    return checkpoint.complete(directory, number, {})


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(x.tobytes() == b[k].tobytes() for k, x in a.items())


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.long)])
def test_the_agent_goes_on_with_weights_and_optimizer_of_one_version_of_the_donor(processes, saved, tmp_path):
    before = [agent_of(saved, agent)[0]["version"] for agent in (0, 1)]
    for run in learners(saved, tmp_path, processes):
        assert run.published(0)[1] != run.published(1)[1]
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        run.until(lambda run=run: run.league.answer(1))
        assert run.league.answer(1) == (before[1] + 1, before[0])
        assert run.published(1) == (before[1] + 1, run.published(0)[1])
        assert run.published(0)[0] == before[0]
        assert run.league.hyper.tolist() == [[1e-3, 0.01], VALUES]
        path = save(run, tmp_path)
    donor, receiver = (agent_of(path, agent) for agent in (0, 1))
    assert same(donor[1], receiver[1])
    assert same(donor[2], receiver[2])
    assert set(donor[2]) == {"step", "exp_avg", "exp_avg_sq"}
    assert same(donor[1], agent_of(saved, 0)[1])
    assert (receiver[0]["version"], receiver[0]["hyperparameters"]["learning_rate"]) == (before[1] + 1, VALUES[0])
    assert receiver[0]["learnt"] == agent_of(saved, 1)[0]["learnt"], "it has learnt from its own rows"


class Killed(BaseException):
    """The process of a learner ends here."""


def killed(*args: Any, **more: Any) -> Any:
    raise Killed


MOMENTS = {  # what is never done → whether the whole new agent is there
    "the donor has not answered": (AgentSnapshot, "write", False),
    "the answer is not read": (AgentSnapshot, "read", False),
    "the agent's hyperparameters are not set": (Hyperparameters, "set", False),
    "it is not said that it was made": (League, "copied", True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_who_is_killed_in_the_middle_leaves_the_old_agent_or_the_new_one(moment, saved, tmp_path, monkeypatch):
    """What is left of a process that was killed is what it shared, and the files."""
    where, what, new = MOMENTS[moment]
    for run in learners(saved, tmp_path, 0):
        before, donor = run.published(1), run.published(0)
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        with monkeypatch.context() as m:
            m.setattr(where, what, killed)
            with pytest.raises(Killed):
                run.until(lambda: False)
        assert run.league.answer(1) is None
        assert run.published(1) == ((before[0] + 1, donor[1]) if new else before)
        assert run.published(0) == donor
    assert not list(tmp_path.glob("checkpoints/*"))


OWN = [{"learning_rate": 3e-3}, {"learning_rate": 4e-3, "entropy_cost": 0.04}]


def test_agents_begin_with_values_of_their_own_and_go_on_with_those_that_evolved(saved, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for run in learners(saved, first, 0, OWN):
        assert run.league.hyper.tolist() == [[3e-3, 0.01], [4e-3, 0.04]], "not those of a run that had others"
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        run.until(lambda run=run: run.league.answer(1))
        path = save(run, first)
    for own, found in {
        (3e-3, 4e-3): [[3e-3, 0.01], VALUES],
        (3e-3, 5e-3): [[3e-3, 0.01], [5e-3, VALUES[1]]],  # what is configured anew is not what it was drawn as
    }.items():
        given = [{**values, "learning_rate": rate} for values, rate in zip(OWN, own, strict=True)]
        for run in learners(path, second, 0, given):
            assert run.league.hyper.tolist() == found


def test_rows_from_before_the_copy_count_as_learnt_but_are_not_learnt_from(saved, tmp_path, monkeypatch):
    feeds, learnt = list[agents.AgentFeed](), list[int]()

    class Seen(agents.AgentFeed):
        def __init__(self, *args: Any):
            feeds.append(self)
            super().__init__(*args)

    def step(learner: Learner, rows: Any, state: Any) -> Iterator[None]:
        learnt.append(int(rows["version"].max()))
        yield

    monkeypatch.setattr(agents, "AgentFeed", Seen)
    monkeypatch.setattr(Learner, "step", step)
    for run in learners(saved, tmp_path, 0):
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        run.until(lambda run=run: run.league.answer(1))
        new, feed = run.published(1)[0], feeds[1]
        batches = {(new,) * 4: 0, (new - 1,) * 4: 19, (new, new, new - 1, new): 19, (new + 1,) * 4: 0}
        for versions, counted in batches.items():
            rows = {"version": np.tile(versions, (6, 1)), "first": np.zeros((6, 4), bool)}
            rows["first"][3, 1] = True
            steps, rounds = run.params.learnt[1], run.params.each[1].round
            for _ in feed.learn((rows, {})):
                pass
            feed.finish((rows, {}))
            assert run.params.each[1].round == rounds + 1, "an actor that waits for it goes on"
            assert run.published(1)[0] == new
            assert run.params.learnt[1] == steps + counted
        assert learnt == [new, new + 1]


# Windows of rollouts: their targets against a plain twin, and what is said where data is too old or used too often.

T, LANES, WINDOW = 12, 3, 4
POLICY = {"action": Field((), "int64"), "logp": Field((), "float32"), "value": Field((), "float32")}


def source(horizon: float) -> WindowFeed:
    queue = RolloutQueue({"obs": Field((), "float32"), **ROWS, **POLICY}, {"h": Field((2,), "float32")}, T, LANES, 2,
                         window=WINDOW)  # fmt: skip
    hyper = Hyperparameters(learning_rate=0.1, entropy_cost=0.0, horizon=horizon, step_time=0.5)
    spec = SimpleNamespace(loss=PPO(0.5, 0.9, reward="none"), hyperparameters=hyper)
    learner = SimpleNamespace(policy=Policy(), spec=spec, device=torch.device("cpu"), adjust=lambda: None)
    learner.checkpoints = SimpleNamespace(more=None)
    counters = Counters(1, WINDOW_METRICS).row(0)
    ctx = SimpleNamespace(index=1, seed=0, incarnation=0, resume=None, directory=None, counters=counters)
    params: Any = SimpleNamespace(each=[None])
    return WindowFeed(Windows(queue, 9, 3), ctx, learner, params)  # type: ignore[arg-type]


def rollout(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    ended = rng.random((T + 1, LANES)) < 0.2
    first = np.concatenate([rng.random((1, LANES)) < 0.5, ended[:-1]])
    rows = {
        "obs": rng.random((T + 1, LANES), np.float32),
        "action": rng.integers(0, 3, (T + 1, LANES)),
        "logp": rng.normal(size=(T + 1, LANES)).astype(np.float32),
        "value": rng.normal(size=(T + 1, LANES)).astype(np.float32),
        "reward": np.where(first, 0, rng.normal(size=(T + 1, LANES))).astype(np.float32),
        "terminated": ended & (rng.random((T + 1, LANES)) < 0.5) & ~first,
        "truncated": np.zeros((T + 1, LANES), bool),
        "first": first,
        "version": np.full((T + 1, LANES), 7),
        "agent": np.zeros((T + 1, LANES), np.int32),
    }
    return rows, {"h": rng.random((T // WINDOW, LANES, 2), np.float32)}


def plain_gae(rows: dict[str, np.ndarray], lane: int, gamma: float, lam: float) -> list[float]:
    """Advantages of one lane of the whole rollout."""
    of_lane = {k: rows[k][:, lane].tolist() for k in ("value", "reward", "first", "terminated")}
    goal = twins.lambda_return(of_lane, gamma, lam)
    return [target - value for target, value in zip(goal, of_lane["value"], strict=False)]


@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_windows_know_the_whole_rollout_behind_them(seed):
    feed = source(horizon=8.0)
    rows, state = rollout(seed)
    feed._add(rows, state)
    assert feed.buffer.arrived == 9
    for lane in range(LANES):
        want = plain_gae(rows, lane, discount_of(8.0, 0.5), 0.9)
        for w in range(T // WINDOW):
            at, steps = w * LANES + lane, slice(w * WINDOW, (w + 1) * WINDOW)
            found = {k: v[:, at] for k, v in feed.buffer.rows.items()}
            np.testing.assert_allclose(found["advantage"], want[steps], atol=1e-5)
            valid = ~rows["first"][1:][steps, lane]
            assert (found["valid"] == valid).all()
            np.testing.assert_allclose(found["target"], np.add(want[steps], rows["value"][steps, lane]), atol=1e-5)
            for name in ("obs", "action", "logp", "first", "reward", "version"):
                assert (found[name] == rows[name][steps, lane]).all(), name
            assert (feed.buffer.state["h"][at] == state["h"][w, lane]).all()
    assert feed.fresh == np.count_nonzero(~rows["first"][1:])


def test_a_horizon_changes_what_comes_next():
    feed = source(horizon=8.0)
    rows, state = rollout(0)
    feed._add(rows, state)
    before = feed.buffer.rows["advantage"].copy()
    feed.learner.spec.hyperparameters.set("horizon", 2.0)
    feed._add(rows, state)
    after = feed.buffer.rows["advantage"][:, 0]
    np.testing.assert_allclose(after, plain_gae(rows, 0, 0.75, 0.9)[:WINDOW], atol=1e-5)
    assert not np.allclose(after, before[:, 0])


# Past agents: when they are made, and what a run that goes on leaves alone.


class Posted:
    """What past agents ask of a League."""

    def __init__(self) -> None:
        self.busy, self.versions = False, list[int]()

    def post(self, agent: int, version: int) -> int | None:
        if self.busy:
            return None
        self.versions.append(version)
        return len(self.versions)


def made(directory: Any, league: Any, version: int = 0) -> tuple[PastAgents, Any]:
    learner = SimpleNamespace(spec=SimpleNamespace(agent=1), version=version, policy=nn.Linear(1, 1, bias=False))
    ctx: Any = SimpleNamespace(directory=directory, log=lambda *words: None)
    return PastAgents(ctx, learner, league, 3), learner


def updates(past: PastAgents, learner: Any, until: int) -> None:
    while learner.version < until:
        learner.version += 1
        with torch.no_grad():
            learner.policy.weight.fill_(learner.version)
        past.look()


def test_one_is_made_every_so_many_updates_and_posted_once_there_is_room(tmp_path):
    league = Posted()
    past, learner = made(tmp_path, league)
    updates(past, learner, 3)
    league.busy = True
    updates(past, learner, 10)
    assert league.versions == [3]
    league.busy = False
    updates(past, learner, 13)
    assert league.versions == [3, 6, 12], "6 waited; what was due meanwhile was made as soon as it was known"
    assert read_self(self_path(tmp_path, 1, 6))["weight"].item() == 6


def test_a_run_that_goes_on_leaves_past_selves_of_the_time_that_was_lost_as_they_were(tmp_path):
    league = Posted()
    past, learner = made(tmp_path, league)
    updates(past, learner, 9)
    before = {v: read_self(self_path(tmp_path, 1, v))["weight"] for v in (3, 6, 9)}
    past, learner = made(tmp_path, league, version=3)
    updates(past, learner, 13)
    assert league.versions == [3, 6, 9, 7, 10, 13]
    for version, weight in before.items():
        np.testing.assert_array_equal(read_self(self_path(tmp_path, 1, version))["weight"], weight)
