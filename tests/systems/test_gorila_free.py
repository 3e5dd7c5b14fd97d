"""Gorila's free mode: actors, memories and learners in any numbers around one server, whoever of them is lost."""

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
from polyplay.weights.parameter_server import HOLD
from polyplay.workers.crew import Crew
from tests.systems.trained import until

NET: Any = {"env": "toy:catch", "network": "mlp", "optimizer": "adam", "learning_rate": 2e-3, "optimizer_eps": 1e-5}
PACE: Any = {"lanes": 4, "unroll": 5, "batch": 64, "ratio": 8.0, "capacity": 10_000, "start": 250, "target": 50}
MANY: Any = {"actors": 2, "memories": 2, "learners": 2, "shards": 2}
CATCH: Any = {**NET, **PACE, **MANY, "n_step": 3, "epsilon": 0.05, "epsilon_over": 3_000}
FAST: Any = {"lanes": 8, "unroll": 10, "learning_rate": 4e-3, "epsilon_over": 1_500}
QUIET: Any = {"tensorboard": False, "report_every": 60.0}  # the last report is always there


def wired(crew: Crew, **settings: Any) -> Any:
    page = systems.load("gorila")
    return page.build(page.Config(**{**CATCH, **settings}), crew)


def roles(crew: Crew) -> dict[str, Any]:
    return {role.name: role for role in crew.roles}


def trained(path, **settings: Any) -> Any:
    return polyplay.train("gorila", run=str(path), **{**CATCH, **QUIET, **settings})


def told(run: Any, key: str) -> list[float]:
    """What reports had of it: a busy machine may have several, and the last one little."""
    rows = read_lines(run.directory / "metrics.jsonl")
    return [row[key] for row in rows if row.get(key) is not None]


@pytest.mark.parametrize(
    "how",
    [
        {"serial": True, "shards": 3},
        pytest.param({"on": "thread"}, marks=pytest.mark.long),
        pytest.param({"on": "process", "memories": 1}, marks=pytest.mark.long),
    ],
)
def test_it_learns_catch(how, tmp_path):
    run = trained(tmp_path / "run", steps=20_000, until_return=0.3, **FAST, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.3  # random play: -0.6
    assert told(run, "grads_applied")[-1] >= 100
    assert told(run, "shard_updates_min")[-1] - 4 <= run.summary["updates"] <= told(run, "shard_updates_max")[-1]
    assert max(told(run, "lag_mean")) > 0
    assert told(run, "staleness_max")
    assert max(told(run, "replay_size")) > 250


def test_in_one_thread_learners_share_the_ratios_updates_and_a_resumed_run_has_its_memories(tmp_path, capfd):
    run = trained(tmp_path / "run", steps=900, serial=True)
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
    run = trained(tmp_path / "run", steps=60, serial=True, learners=3, start=10_000)
    assert run.exit_code == 0
    assert run.summary["updates"] == 0
    assert run.summary["steps"] < 400


def test_with_one_learner_the_number_of_shards_changes_nothing(tmp_path):
    """In one thread nothing is stale then, so all are one optimiser."""
    ends = []
    for shards in (1, 3):
        run = trained(tmp_path / str(shards), steps=420, serial=True, learners=1, start=100, shards=shards, trace=True)
        assert set(told(run, "staleness_max")) == {0}
        ends.append([row["loss"] for row in read_lines(run.directory / "updates.jsonl")])
    assert len(ends[0]) >= 10
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-4)


class Seen:
    """Around a schedule of ε: all that it told."""

    def __init__(self, schedule: Any):
        self.schedule, self.lanes, self.told = schedule, schedule.lanes, list[float]()

    def at(self, acts, lanes):
        found = self.schedule.at(acts, lanes)
        self.told += np.unique(found).tolist()
        return found


def _begun(**more: Any) -> tuple[Crew, Any, Seen]:
    """A crew in one thread, its server, and the ε of its actors."""
    crew = Crew(0, serial=True, steps=10**9, **more)
    system = wired(crew)
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
    crew = Crew(seed=1, steps=10**9, say=lambda kind, text: said.append(text))
    system = wired(crew, start=100)
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


def test_a_global_memory_has_all_lanes_and_local_ones_each_their_actors():
    found = {}
    for memories in (1, 4):
        crew = Crew()
        wired(crew, actors=4, memories=memories, learners=3)
        samples = roles(crew)["learn"].source
        found[memories] = (samples.memories, samples.learners, samples.replay.lanes, samples.replay.capacity)
        assert roles(crew)["act"].explore.schedule.after == 250 * memories
    assert found == {1: (1, 3, 16, 10_000), 4: (4, 3, 4, 10_000)}


FIGURE = """\
┌─ act × 4 ─────────────────────┐
│ envs    ALE/Pong-v5 × 1 lanes │
│ policy  nature                │
│ ε       LinearEpsilon to 0.1  │
│ rollout 1 steps, free         │
│ if lost replace               │
└───────────────────────────────┘

┌─ serve_replay × 1 ─────────────────────────────────┐
│ replay  1,000,000 agent steps                      │
│ draws   32 transitions: 32 per agent step, uniform │
│ if lost replace                                    │
└────────────────────────────────────────────────────┘

┌─ learn × 3 ────────────────────────────────┐
│ policy  nature                             │
│ batch   32 transitions, 2 ready from each  │
│ loss    QLoss                              │
│ update  ParameterServer(adagrad), 2 shards │
│ drops   losses beyond mean + 4 deviations  │
│ target  copied every 60,000 updates        │
│ if lost replace                            │
└────────────────────────────────────────────┘

┌─ serve_parameters × 2 ────────────────────────────┐
│ part    843,603 weights, adagrad's square         │
│ drops   gradients more than 30 of its updates old │
│ if lost fail                                      │
└───────────────────────────────────────────────────┘

act ──► RolloutQueue: 16 slots × 2 rows × 1 lanes ──► serve_replay
learn ──► gradients, a slice for each part, with the version it was made with ──► serve_parameters
serve_parameters ──► 1,687,206 weights, in 2 parts of a version each ──► act + learn
serve_replay ──► SampleQueue: 6 batches of 32 ──► learn
"""


def test_its_figure_is_the_papers():
    page = systems.load("gorila")
    assert diagram("gorila", page.Config(actors=4, learners=3), RunOptions()) == FIGURE


def test_its_plan_says_that_memories_and_lanes_go_on():
    crew = Crew(0, steps=1_000)
    made = plan.make_plan(crew, wired(crew), RunOptions(steps=1_000))
    lines = dict(made.lines)
    assert lines["workers"].startswith(
        "act ×2 with 4 lanes each (stepped by the worker itself), serve_replay ×2, learn ×2, serve_parameters ×2"
    )
    assert lines["updates"] == "62 updates, one every 8 agent steps after the first 500"
    assert lines["repeat"].startswith("not bitwise")
    assert lines["resume"].endswith("batches drawn ahead are drawn again")
    samples = roles(crew)["learn"].source
    assert made.memory["replay"] == 2 * samples.replay.bytes(batches=False) + samples.block.nbytes
    assert made.checkpoint > made.memory["replay"]
    net = plan.bytes_of(wired(Crew()).policy())
    # vectors, gradients, targets of learners, vectors and gradients of actors; and the server's
    assert made.memory["weights"] == pytest.approx((2 * 3 + 2 * 2 + 2 + 2 + 2) * net, rel=0.05)
    crew = Crew(0, steps=1_000)
    free = plan.make_plan(crew, wired(crew, ratio=0.0), RunOptions(steps=1_000))
    assert dict(free.lines)["updates"] == "batches of 64, as many as there is time for"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"actors": 0}, "--memories 2 says nothing without --actors: give both, or leave it out"),
        ({"actors": 3}, "--actors 3 does not divide among --memories 2: make it a multiple of that"),
        ({"memories": 0}, "--actors 2 does not divide among --memories 0"),
        ({"actors": 0, "memories": 1, "ratio": 0.0}, "ratio=0.0 given, allowed: above 0"),
    ],
)
def test_what_cannot_be_is_one_line(given: Any, said):
    with pytest.raises(UserError, match=said) as e:
        wired(Crew(), **given)
    assert "\n" not in str(e.value)
