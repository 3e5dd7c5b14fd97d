"""Tables: every row says who chose, with which weights, also where players change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyplay.acting.worker import act_at_table
from polyplay.buffers.league import League
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.files import read_lines
from polyplay.core.worker import Hyperparameters
from polyplay.envs import Envs
from polyplay.envs.lane import StateBot
from polyplay.games.toys import Skirmish
from polyplay.learning import agents as learning
from polyplay.learning import losses
from polyplay.learning.agents import AgentRollouts
from polyplay.learning.learner import LearnerSpec
from polyplay.nets import factory
from polyplay.population import rules
from polyplay.population.referee import NO_COPIES, Opponents, referee
from polyplay.population.rules import Evolution, around
from polyplay.weights.params import AgentParams
from polyplay.weights.update import Local, OptimizerSpec
from polyplay.workers.crew import Crew
from tests.acting.test_worker import Compared, _run


def _crew(
    env: str,
    loss: Any,
    agents: int,
    players: int,
    steps: int,
    actors: int = 1,
    lag: int = 0,
    league: bool = False,
    opponents: str = "past:0.4",
    snapshots: int = 4,
    directory: Any = None,
    learners: int = 1,
    copies: Evolution = NO_COPIES,
    **net: Any,
) -> tuple[Crew, League]:
    envs = Envs(env, lanes=4 * players, groups=players, agents=players)
    policy = factory.NetworkFactory("mlp", envs.spec, {"hidden": (16,), **net})
    made = policy()
    params = AgentParams(made, agents, actors, ("exp_avg", "exp_avg_sq") if copies.every else None)
    queue = RolloutQueue.of(envs, made, 5, actors, 2, agents, per_agent=True)
    hyper = Hyperparameters(learning_rate=1e-2, entropy_cost=0.01)
    spec = LearnerSpec(policy, loss, Local(OptimizerSpec("adam", clip=0.5)), hyper, steps)
    tables = League(agents, actors, envs.spec.sides, players, bots=tuple(envs.spec.bots), varied=tuple(copies.priors))
    crew = Crew(seed=3, serial=True, directory=directory)
    own = {"league": tables} if league else {}
    crew.add(act_at_table, n=actors, envs=envs, policy=policy, out=queue, params=params, lag=lag, **own)
    source = AgentRollouts(queue, 1, tables if league else None, snapshots)
    crew.add(learning.learn_agents, n=learners, name="learn", source=source, spec=spec, publish=params)
    if league:
        crew.add(referee, rates=tables, opponents=Opponents.parse(opponents), matches=20, evolution=copies)
    return crew, tables


@pytest.mark.parametrize("core", ["none", pytest.param("lstm", marks=pytest.mark.long)])
def test_of_four_agents_at_a_table_at_lag_0_each_learns_what_it_stored_to_the_bit(core):
    loss = Compared(losses.VTrace(reduction="mean"))
    crew, _ = _crew("toy:skirmish", loss, agents=4, players=4, steps=2000, core=core)
    _run(crew)
    updates = crew.counters.column("updates")[crew.agent_rows(crew.roles[1])]
    assert (updates >= 20).all()
    assert len(loss.seen) == updates.sum()
    assert max(loss.seen) == 0.0, "the approximate KL divergence is exactly 0"
    assert crew.counters.column("lag_max").max() == 0


OFTEN = Evolution(15, priors=around({"learning_rate": 1e-2, "entropy_cost": 0.01}))


def test_at_lag_0_agents_that_copy_each_other_learn_only_what_their_own_weights_acted(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "SURE", 0.5)
    loss = Compared(losses.VTrace(reduction="mean"))
    more = {"league": True, "directory": tmp_path, "learners": 2, "copies": OFTEN}
    crew, tables = _crew("toy:skirmish", loss, agents=4, players=2, steps=3000, **more)
    _run(crew)
    copied = [line for line in read_lines(tmp_path / "matches.jsonl") if "copied" in line]
    assert len(copied) >= 3
    assert len(loss.seen) > 50
    assert max(loss.seen) == 0.0, "the approximate KL divergence is exactly 0"
    assert crew.counters.column("lag_max").max() == 0
    assert (tables.hyper != 1e-2).any(), "hyperparameters have moved"


def test_bots_sit_at_tables_play_by_their_script_and_nothing_is_learnt_from_them(tmp_path, monkeypatch):
    learnt, asked = set[int](), list[int]()
    sat = set[tuple[int, ...]]()
    step, scripted = learning.AgentFeed.learn, Skirmish.focus

    def checked_step(self, batch):
        assert (batch[0]["agent"] == self.agent).all()
        learnt.add(self.agent)
        return step(self, batch)

    def counted(obs, mask=None):
        asked.append(len(obs))
        return scripted(obs)

    class ByState(StateBot):
        def __call__(self, obs, mask, seats):
            if obs.any():  # not tried
                assert (seats.game.see(seats.states)[seats.match, seats.seat] == obs).all()
                sat.add(tuple(seats.seat.tolist()))
            return np.zeros(len(obs), np.int64)

    monkeypatch.setattr(learning.AgentFeed, "learn", checked_step)
    monkeypatch.setattr(Skirmish, "focus", staticmethod(counted))
    monkeypatch.setattr(Skirmish, "opposite", ByState())
    loss = losses.VTrace(reduction="mean")
    more = {"lag": -1, "league": True, "opponents": "uniform", "snapshots": 1000, "directory": tmp_path}
    crew, _ = _crew("toy:skirmish", loss, 2, 2, 16_000, **more)
    _run(crew)
    lines = list(read_lines(tmp_path / "matches.jsonl"))
    bots = {name for line in lines for name in line.get("table", []) if name.startswith("bot:")}
    assert bots == {"bot:opposite", "bot:focus"}
    assert learnt == {0, 1}
    assert set(asked) == {2, 4}, "once to try it; then all lanes of its group at once"
    assert len(sat) > 1, "seats are drawn anew"
