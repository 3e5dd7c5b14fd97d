"""Gorila learns however its workers run, goes on with its accumulators, outlives a learner, and ends with a shard."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import read_lines
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.workers.crew import Crew
from tests.systems.trained import until
from tests.weights.test_parameter_server import whole

NET: Any = {"env": "toy:catch", "network": "mlp", "optimizer": "adam", "learning_rate": 2e-3, "optimizer_eps": 1e-5}
PACE: Any = {"lanes": 4, "unroll": 1, "batch": 64, "ratio": 8.0, "capacity": 10_000, "start": 250, "target": 50}
PAPER: Any = {"optimizer": "adagrad", "learning_rate": 0.03, "optimizer_eps": 0.01}
CATCH: Any = {**NET, **PACE, "learners": 2, "shards": 2, "n_step": 3, "epsilon": 0.05, "epsilon_over": 3_000}
QUIET: Any = {"tensorboard": False, "report_every": 60.0}  # the last report is always there


def wired(crew: Crew, **settings: Any) -> Any:
    page = systems.load("gorila")
    return page.build(page.Config(**{**CATCH, **settings}), crew)


def trained(path, **settings: Any) -> Any:
    return polyplay.train("gorila", run=str(path), **{**CATCH, **QUIET, **settings})


SERIAL = pytest.param({"serial": True, "shards": 3, **PAPER}, marks=pytest.mark.long)


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}, SERIAL])
def test_it_learns_catch(how, tmp_path):
    run = trained(tmp_path / "run", steps=16_000, until_return=0.3, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.3  # random play: -0.6
    last = list(read_lines(run.directory / "metrics.jsonl"))[-1]
    assert last["grads_applied"] >= 100
    assert last["shard_updates_min"] - 4 <= last["updates"] <= last["shard_updates_max"]
    assert last["grads_discarded_stale"] >= 0
    assert last["grads_discarded_outlier"] >= 0


def test_with_one_learner_the_number_of_shards_changes_nothing(tmp_path):
    """In one thread nothing is stale then, so all are one optimiser."""
    ends = []
    for shards in (1, 3):
        run = trained(tmp_path / str(shards), steps=500, serial=True, learners=1, shards=shards, trace=True)
        last = list(read_lines(run.directory / "metrics.jsonl"))[-1]
        assert last["staleness_max"] in (0, None)
        found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
        ends.append((found.arrays("agents/0/policy"), [r["loss"] for r in read_lines(run.directory / "updates.jsonl")]))
    (one, few), (three, same) = ends
    assert len(few) >= 20
    np.testing.assert_allclose(same, few, rtol=1e-4)
    assert all(np.allclose(one[k], three[k], atol=1e-5) for k in one)


class Seen:
    """In the place of a schedule of ε: how often the first lane was said to have acted."""

    def __init__(self, lanes: int):
        self.lanes, self.acts = lanes, list[int]()

    def at(self, acts, lanes):
        self.acts.append(int(acts[0]))
        return np.zeros(len(acts), np.float32)


def test_a_resumed_run_goes_on_with_weights_accumulators_and_counts(tmp_path, capfd):
    run = trained(tmp_path / "run", steps=600, serial=True, **PAPER)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    first = found.json("agents/0/learner")
    kept = [found.arrays(f"agents/0/{part}") for part in ("policy", "optimizer", "target")]
    assert first["shards"] == [first["version"]] * 2
    assert kept[1]["square"].any()
    crew = Crew(0, serial=True, steps=10**9, resume=found.path, resumes=1)
    wired(crew, **PAPER)
    server, explore = crew.roles[1].server, Seen(8)
    crew.roles[0].explore = explore
    crew.start(())
    while not server.ready:
        crew.poll(0.0)
        for worker in crew.roles[0].workers.values():
            next(worker.runs)
    assert server.shard[:, 0].tolist() == first["shards"]
    assert np.array_equal(server.statistics[0], kept[1]["square"])
    flat = np.concatenate([v.ravel() for v in kept[0].values()])
    assert np.array_equal(np.sort(whole(server)), np.sort(flat))
    assert explore.acts[0] == int(first["learnt"]) // 8, "as often at random as it was then"
    crew.stop()
    capfd.readouterr()
    again = polyplay.resume(str(run.directory), steps=1_400)
    assert "its replay was not saved: it starts empty" in "".join(capfd.readouterr())
    assert again.summary["steps"] >= 1_400
    last = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    assert last.json("agents/0/learner")["version"] > first["version"] + 15
    assert (last.arrays("agents/0/optimizer")["square"] >= kept[1]["square"]).all(), "AdaGrad's only grow"
    assert polyplay.evaluate(run.directory, episodes=5)["episodes"] == 5


def test_the_target_network_is_the_servers_of_every_so_many_updates(tmp_path):
    run = trained(tmp_path / "run", steps=800, serial=True, target=10_000)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    first = trained(tmp_path / "first", steps=8, serial=True, target=10_000)  # saved before any update
    start = checkpoint.open_checkpoint(checkpoint.newest(first.directory, print))
    old, new = start.arrays("agents/0/target"), found.arrays("agents/0/target")
    assert all(np.array_equal(old[k], new[k]) for k in old)
    assert any(not np.array_equal(new[k], found.arrays("agents/0/policy")[k]) for k in new)


def test_a_killed_learner_is_replaced_and_a_killed_shard_ends_the_run_in_one_line():
    said: list[str] = []
    crew = Crew(seed=1, steps=10**9, say=lambda kind, text: said.append(text))
    wired(crew, start=64)
    bundle, shard = crew.roles
    server = shard.server
    crew.start(())
    try:
        until(crew, lambda: server.counters[:, 0].min() > 20)
        before = int(server.counters[0, 0])
        os.kill(bundle.workers[0].runs.pid, signal.SIGKILL)
        until(crew, lambda: bundle.lost == 1)
        until(crew, lambda: server.counters[0, 0] > before + 20)
        assert np.isfinite(whole(server)).all()
        assert np.abs(whole(server)).max() < 10
        os.kill(shard.workers[1].runs.pid, signal.SIGKILL)
        with pytest.raises(
            WorkerLost, match="worker serve_parameters 1 was killed by SIGKILL; the run cannot go on"
        ) as e:
            until(crew, lambda: False)
        assert "\n" not in str(e.value)
    finally:
        crew.stop()
    assert said == ["worker bundle 0 was killed by SIGKILL; a new one takes its place"]


FIGURE = """\
┌─ bundle × 2 ───────────────────────────────────────┐
│ envs    ALE/Pong-v5 × 1 lanes                      │
│ policy  nature                                     │
│ rollout 1 steps, free                              │
│ replay  1,000,000 agent steps                      │
│ draws   32 transitions: 32 per agent step, uniform │
│ ε       LinearEpsilon to 0.1                       │
│ loss    QLoss                                      │
│ update  ParameterServer(adagrad), 2 shards         │
│ drops   losses beyond mean + 4 deviations          │
│ target  copied every 60,000 updates                │
│ if lost replace                                    │
└────────────────────────────────────────────────────┘

┌─ serve_parameters × 2 ────────────────────────────┐
│ part    843,603 weights, adagrad's square         │
│ drops   gradients more than 20 of its updates old │
│ if lost fail                                      │
└───────────────────────────────────────────────────┘

bundle ──► gradients, a slice for each part, with the version it was made with ──► serve_parameters
serve_parameters ──► 1,687,206 weights, in 2 parts of a version each ──► bundle
"""


def test_its_figure_is_the_papers():
    page = systems.load("gorila")
    assert diagram("gorila", page.Config(learners=2), RunOptions()) == FIGURE


def test_its_plan_and_memory_count_the_server_once():
    crew = Crew(0, steps=1_000)
    system = wired(crew, optimizer="adam")
    told = plan.make_plan(crew, system, RunOptions(steps=1_000))
    lines = dict(told.lines)
    assert lines["workers"].startswith(
        "bundle ×2 with 4 lanes each (stepped by the worker itself), serve_parameters ×2"
    )
    assert lines["updates"] == "62 updates, one every 8 agent steps after the first 500"
    assert lines["repeat"].startswith("not bitwise")
    assert lines["resume"].endswith("replays start empty")
    assert system.resolved == {"learners": 2, "stale": 20}
    net = plan.bytes_of(system.policy())
    # a vector, gradient and target each; there a gradient each, two copies, two statistics
    assert told.memory["weights"] == pytest.approx((2 * 3 + 2 + 2 + 2) * net, rel=0.05)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shards": 0}, "--shards: 0 given"),
        ({"env": "toy:pendulum"}, "needs discrete actions, this has"),
        ({"optimizer": "adagrid"}, "did you mean 'adagrad'"),
    ],
)
def test_what_cannot_be_is_one_line(given: Any, said):
    with pytest.raises(UserError, match=said) as e:
        wired(Crew(), **given)
    assert "\n" not in str(e.value)
