"""Gorila, bundled and free: what its server counts, who is lost and replaced, and how runs go on."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import WorkerLost
from polyplay.core.files import read_lines
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.weights.parameter_server import HOLD
from polyplay.workers.crew import Crew
from tests.systems import settings as of
from tests.systems.trained import until, wired
from tests.weights.test_parameter_server import whole

PAPER: Any = {"optimizer": "adagrad", "learning_rate": 0.03, "optimizer_eps": 0.01}


def trained(path, **settings: Any) -> Any:
    return polyplay.train("gorila", run=str(path), **{**of.GORILA, **settings})


class Seen:
    """Around a schedule of ε: how often the first lane was said to have acted, and all that it told."""

    def __init__(self, schedule: Any):
        self.schedule, self.lanes, self.acts, self.told = schedule, schedule.lanes, list[int](), list[float]()

    def at(self, acts, lanes):
        found = self.schedule.at(acts, lanes)
        self.acts.append(int(acts[0]))
        self.told += np.unique(found).tolist()
        return found


def test_a_resumed_run_goes_on_with_weights_accumulators_and_counts(tmp_path, capfd):
    run = trained(tmp_path / "run", steps=600, serial=True, **PAPER)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    first = found.json("agents/0/learner")
    kept = [found.arrays(f"agents/0/{part}") for part in ("policy", "optimizer", "target")]
    assert first["shards"] == [first["version"]] * 2
    assert kept[1]["square"].any()
    crew = Crew(0, serial=True, steps=10**9, resume=found.path, resumes=1)
    wired("gorila", crew, **{**of.GORILA, **PAPER})
    server, explore = crew.roles[1].server, Seen(crew.roles[0].explore)
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


def test_its_plan_and_memory_count_the_server_once():
    crew = Crew(0, steps=1_000)
    system = wired("gorila", crew, **{**of.GORILA, "optimizer": "adam"})
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


def roles(crew: Crew) -> dict[str, Any]:
    return {role.name: role for role in crew.roles}


def free_trained(path, **settings: Any) -> Any:
    return polyplay.train("gorila", run=str(path), **{**of.FREE, **settings})


def told(run: Any, key: str) -> list[float]:
    """What reports had of it: a busy machine may have several, and the last one little."""
    rows = read_lines(run.directory / "metrics.jsonl")
    return [row[key] for row in rows if row.get(key) is not None]


def test_in_one_thread_learners_share_the_ratios_updates_and_a_resumed_run_has_its_memories(tmp_path, capfd):
    run = free_trained(tmp_path / "run", steps=900, serial=True)
    owed = (900 - 2 * 250) * 8.0 / 64  # but for what is under way: two batches for each learner from each memory
    assert owed - 16 <= run.summary["updates"] <= owed + 1
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    first = found.json("agents/0/learner")
    assert first["version"] == sum(first["shards"]) // 2 == checkpoint.update_of(found.path), "the shards stood still"
    assert sorted(p.name for p in (found.path / "replay").iterdir()) == ["serve_replay-0", "serve_replay-1"]
    capfd.readouterr()
    more = polyplay.resume(str(run.directory), steps=1_300)
    assert "starts empty" not in "".join(capfd.readouterr())
    assert more.summary["updates"] == pytest.approx((1_300 - 2 * 250) * 8.0 / 64, rel=0.25)
    last = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).json("agents/0/learner")
    assert last["version"] > first["version"] + 25
    assert last["learnt"] >= 1_300
    assert polyplay.evaluate(run.directory, episodes=2)["episodes"] == 2


def test_a_run_that_is_over_before_anything_is_drawn_ends_for_every_learner(tmp_path):
    run = free_trained(tmp_path / "run", steps=60, serial=True, learners=3, learning_starts=10_000)
    assert run.exit_code == 0
    assert run.summary["updates"] == 0
    assert run.summary["steps"] < 400


def _begun(**more: Any) -> tuple[Crew, Any, Seen]:
    """A crew in one thread, its server, and the ε of its actors."""
    crew = Crew(0, serial=True, steps=10**9, **more)
    system = wired("gorila", crew, **of.FREE)
    role = roles(crew)["act"]
    role.explore = seen = Seen(role.explore)
    crew.start(system.metrics)
    return crew, role.params, seen


def test_epsilon_goes_on_where_the_run_is_for_a_lost_actors_successor_and_in_a_resumed_run(tmp_path):
    crew, server, seen = _begun(directory=tmp_path)
    actors = roles(crew)["act"]
    until(crew, lambda: server.learnt > 900)
    crew._start(actors, 1)  # in a lost one's place
    had = len(seen.told)
    until(crew, lambda: len(seen.told) > had + 50)
    crew.control.save()
    until(crew, lambda: crew.counters is not None and crew.counters.column("saved").max() >= 1)
    version = int(crew.counters.column("saved").max()) - 1  # type: ignore[union-attr]
    path = checkpoint.complete(tmp_path, version, {})
    learnt = checkpoint.open_checkpoint(path).json("agents/0/learner")["learnt"]
    crew.stop()
    assert actors.workers == {}
    assert actors.past[1].incarnation == 1
    found = np.array(seen.told)
    assert (np.diff(found) <= 0).all(), "never more often at random than before"
    assert found[0] == 1.0
    assert found[had:].max() <= 1.0 - 0.95 * (900 - 2 * 250) / 3_000 + 1e-6
    again, _, seen = _begun(resume=path, resumes=1)
    until(again, lambda: len(seen.told) > 50)
    again.stop()
    assert seen.told[0] == pytest.approx(1.0 - 0.95 * (learnt - 2 * 250) / 3_000, abs=1e-5)


def test_killed_actors_memories_and_learners_are_replaced_and_a_killed_shard_ends_the_run_in_one_line():
    said: list[str] = []
    crew = Crew(seed=1, steps=10**9, log=lambda kind, text: said.append(text))
    system = wired("gorila", crew, **{**of.FREE, "start": 100})
    by, server = roles(crew), roles(crew)["serve_parameters"].server
    crew.start(system.metrics)
    pushed = server.counters[:, 0]
    try:
        until(crew, lambda: pushed.min() > 10)
        for name in ("learn", "act", "serve_replay"):
            os.kill(by[name].workers[0].runs.pid, signal.SIGKILL)
        until(crew, lambda: all(by[name].lost == 1 for name in ("learn", "act", "serve_replay")))
        before, steps = pushed.copy(), server.learnt
        until(crew, lambda: (pushed > before + 10).all() and server.learnt > steps)
        assert np.isfinite(server.copies).all()
        assert np.abs(server.copies).max() < 10
        os.kill(by["serve_parameters"].workers[1].runs.pid, signal.SIGKILL)
        with pytest.raises(WorkerLost, match="worker serve_parameters 1 was killed by SIGKILL; the run cannot go on"):
            until(crew, lambda: False)
    finally:
        crew.stop()
    assert sum("a new one takes its place" in text for text in said) == 3
    assert sum("starts empty" in text for text in said) == 1


def test_a_killed_saver_leaves_no_shard_standing(tmp_path):
    """Learner 0 lets them stand still while memories write; who takes its place lets them go on."""
    crew, server, _ = _begun(directory=tmp_path)
    learners = roles(crew)["learn"]
    until(crew, lambda: server.version > 10)
    saver = learners.workers[0].runs  # held, lest it be closed as it should be
    crew.control.save()
    turns = 0
    while not server.head[HOLD] % 2:
        turns += 1
        assert turns < 100_000
        next(crew._workers()[turns % len(crew._workers())].runs)
    before = server.version
    crew._start(learners, 0)
    until(crew, lambda: server.version > before + 10)
    assert not server.head[HOLD] % 2
    crew.stop()
    saver.close()
