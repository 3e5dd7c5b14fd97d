"""Copies between living agents: one answer of the donor's learner, taken as a whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay.buffers.rollout_queue import AgentBatches, RolloutQueue
from polyplay.core import checkpoint
from polyplay.core.files import read_lines, read_object
from polyplay.core.worker import Hyperparameters
from polyplay.envs import Envs
from polyplay.learning import agents, policy_losses
from polyplay.learning.agents import AgentCopies, learn_agents
from polyplay.learning.learner import Learner, LearnerSpec
from polyplay.nets import factory
from polyplay.nets.factory import build_network
from polyplay.population.league import CopyOrder, League
from polyplay.population.league_log import CopyRule
from polyplay.population.rules import Prior, initial
from polyplay.population.store import LINEAGE
from polyplay.systems import league as league_page
from polyplay.weights.params import AgentParams, AgentSnapshot, FlatParams
from polyplay.weights.update import Local, OptimizerSpec
from polyplay.workers.crew import Crew

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
    queue = RolloutQueue.of(envs, policy(), 5, 1, 2, 2, apart=True)
    spec = LearnerSpec(policy, policy_losses.VTrace(reduction="mean"), update, hyper, 1e9, initial=initial)
    crew = Crew(seed=3, serial=not processes, directory=directory, resume=saved)
    own = {"source": AgentBatches(queue, 1), "spec": spec, "params": params, "league": league, "selves": 10**6}
    crew.add(learn_agents, n=processes or 1, name="learn", learner=True, serves=2, **own)
    crew.start(("loss", "grad_norm", "delta"))
    try:
        yield Learners(crew, league, params, policy)
    finally:
        crew.stop()


def agent_of(path: Path, agent: int) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What is saved of its learner, its weights, its optimiser."""
    folder = checkpoint.OpenCheckpoint(path)
    arrays = (folder.arrays(f"agents/{agent}/{name}") for name in ("policy", "optimizer"))
    return (folder.json(f"agents/{agent}/learner"), *arrays)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(x.tobytes() == b[k].tobytes() for k, x in a.items())


@pytest.mark.parametrize("processes", [0, 2])
def test_the_agent_goes_on_with_weights_and_optimiser_of_one_version_of_the_donor(processes, saved, tmp_path):
    before = [agent_of(saved, agent)[0]["version"] for agent in (0, 1)]
    for run in learners(saved, tmp_path, processes):
        run.until(lambda run=run: not np.isnan(run.league.hyper).any())
        assert run.published(0)[1] != run.published(1)[1]
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        run.until(lambda run=run: run.league.answer(1))
        assert run.league.answer(1) == (before[1] + 1, before[0])
        assert run.published(1) == (before[1] + 1, run.published(0)[1])
        assert run.published(0)[0] == before[0]
        assert run.league.hyper.tolist() == [[1e-3, 0.01], VALUES]
        run.crew.control.finish()
        run.until(lambda run=run: (run.crew.counters.column("saved")[list(run.crew.roles[0].served)] >= 1).all())
    (number,) = checkpoint.partial_versions(tmp_path)
    path = checkpoint.partial(tmp_path, number)
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
        run.until(lambda run=run: not np.isnan(run.league.hyper).any())
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


@pytest.mark.parametrize("lost", [0, 1])
def test_nobody_waits_for_an_agent_that_does_not_answer(lost, saved, tmp_path, monkeypatch):
    look = AgentCopies.look
    monkeypatch.setattr(AgentCopies, "look", lambda self: None if self.agent == lost else look(self))
    for run in learners(saved, tmp_path, 0):
        run.until(lambda run=run: not np.isnan(run.league.hyper).any())
        before = run.published(1)
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        for _ in range(50):
            run.crew.poll(0.0)
        assert run.published(1) == before
        run.crew.control.finish()
        run.until(lambda run=run: (run.crew.counters.column("saved")[list(run.crew.roles[0].served)] >= 1).all())


OWN = [{"learning_rate": 3e-3}, {"learning_rate": 4e-3, "entropy_cost": 0.04}]


def save(run: Learners, directory: Path) -> Path:
    """A whole checkpoint of its learners, which end."""
    run.crew.control.finish()
    run.until(lambda: (run.crew.counters.column("saved")[list(run.crew.roles[0].served)] >= 1).all())
    (number,) = checkpoint.partial_versions(directory)
    return checkpoint.complete(directory, number, {})


@pytest.mark.parametrize("processes", [0, 2])
def test_agents_begin_with_values_of_their_own_and_go_on_with_those_that_evolved(processes, saved, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for run in learners(saved, first, processes, OWN):
        run.until(lambda run=run: not np.isnan(run.league.hyper).any())
        assert run.league.hyper.tolist() == [[3e-3, 0.01], [4e-3, 0.04]], "not those of a run that had others"
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        run.until(lambda run=run: run.league.answer(1))
        path = save(run, first)
    for own, found in {
        (3e-3, 4e-3): [[3e-3, 0.01], VALUES],
        (3e-3, 5e-3): [[3e-3, 0.01], [5e-3, VALUES[1]]],  # what is configured anew is not what it was drawn as
    }.items():
        given = [{**values, "learning_rate": rate} for values, rate in zip(OWN, own, strict=True)]
        for run in learners(path, second, processes, given):
            run.until(lambda run=run: not np.isnan(run.league.hyper).any())
            assert run.league.hyper.tolist() == found


def test_a_league_that_goes_on_keeps_what_evolved_from_first_values_that_were_drawn(tmp_path, monkeypatch):
    priors = {"learning_rate": Prior("learning_rate", "log", 1e-4, 1e-2), "entropy_cost": Prior("e", "log", 1e-3, 0.1)}
    drawn = initial(priors, 3, seed=0)
    monkeypatch.setattr(league_page, "LearnerSpec", partial(LearnerSpec, initial=drawn))
    monkeypatch.setattr(league_page, "CopyRule", partial(CopyRule, sure=0.5, priors=priors, chance=0.5))
    given: dict[str, Any] = {"env": "toy:rps", "serial": True, "tensorboard": False, "network": "mlp", "hidden": (16,)}
    more = {"agents": 3, "lanes": 8, "batch": 4, "matches": 10, "copies": 40}
    run = polyplay.train("league", run=str(tmp_path / "run"), steps=1500, **given, **more)
    evolved = with_what(run.directory, drawn)
    assert [evolved[a] for a in range(3)] != drawn
    copies = read_object(run.directory / "league.json")["copies"]
    run = polyplay.resume(run.directory, steps=3000)
    rows = [*read_lines(run.directory / LINEAGE)]
    assert [row["copy"] for row in rows[: len(copies)]] == [copy["copy"] for copy in copies]
    assert len(rows) > len(copies)
    assert rows[len(copies)]["old"] == evolved[rows[len(copies)]["agent"]], "it had that when it went on"
    with_what(run.directory, drawn)


def with_what(directory: Path, drawn: list[dict[str, float]]) -> dict[int, dict[str, float]]:
    """What each agent of the newest checkpoint learns with: by lineage.jsonl, and as it is saved."""
    values = dict(enumerate(drawn))
    for row in read_lines(directory / LINEAGE):
        assert row["old"] == values[row["agent"]]
        values[row["agent"]] = row["new"]
    for agent, own in values.items():
        learner = agent_of(checkpoint.everything(directory)[-1], agent)[0]
        assert (learner["hyperparameters"], learner["configured"]) == (own, drawn[agent])
    return values


def test_one_copy_after_the_other(saved, tmp_path):
    for run in learners(saved, tmp_path, 0):
        run.until(lambda run=run: not np.isnan(run.league.hyper).any())
        first = run.published(0)
        for number in range(1, 6):
            run.league.ask(CopyOrder(number, agent=number % 2, donor=(number + 1) % 2), [number * 1e-3, 0.01])
            run.until(lambda run=run, number=number: run.league.answer(number))
            assert run.league.hyper[number % 2, 0] == number * 1e-3
        assert run.published(0)[1] == run.published(1)[1] == first[1]
        assert run.published(0)[0] == first[0] + 2


def test_rows_from_before_the_copy_count_as_learnt_but_are_not_learnt_from(saved, tmp_path, monkeypatch):
    feeds, learnt = list[agents.AgentSource](), list[int]()

    class Seen(agents.AgentSource):
        def __init__(self, *args: Any):
            feeds.append(self)
            super().__init__(*args)

    def step(learner: Learner, rows: Any, state: Any) -> Iterator[None]:
        learnt.append(int(rows["version"].max()))
        yield

    monkeypatch.setattr(agents, "AgentSource", Seen)
    monkeypatch.setattr(Learner, "step", step)
    for run in learners(saved, tmp_path, 0):
        run.until(lambda run=run: not np.isnan(run.league.hyper).any())
        run.league.ask(CopyOrder(1, agent=1, donor=0), VALUES)
        run.until(lambda run=run: run.league.answer(1))
        new, feed = run.published(1)[0], feeds[1]
        batches = {(new,) * 4: 0, (new - 1,) * 4: 19, (new, new, new - 1, new): 19, (new + 1,) * 4: 0}
        for versions, counted in batches.items():
            rows = {"version": np.tile(versions, (6, 1)), "first": np.zeros((6, 4), bool)}
            rows["first"][3, 1] = True
            steps, rounds = run.params.learnt[1], run.params.each[1].round
            for _ in feed.step((rows, {})):
                pass
            assert run.params.each[1].round == rounds + 1, "an actor that waits for it goes on"
            assert run.published(1)[0] == new
            assert run.params.learnt[1] == steps + counted
        assert learnt == [new, new + 1]
