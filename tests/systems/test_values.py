"""Systems that learn values: ratios, memories, targets, who is lost and replaced, and how runs go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import read_lines
from polyplay.envs import Envs
from polyplay.nets.factory import build_network
from polyplay.workers import sizing
from polyplay.workers.crew import Crew
from tests.games.traits import NAME as TRAITS
from tests.systems import settings as of
from tests.systems.trained import until, updates, wired
from tests.weights.test_parameter_server import whole

OF: Any = {
    "dqn": {**of.DQN, "serial": True, "trace": True},
    "r2d2": of.R2D2,
    "apex": of.APEX,
    "apex_dpg": {"tensorboard": False, "report_every": 0.5, **of.AIM},
    "gorila": of.GORILA,
    "sac": of.SAC,
    "apex_sac": of.APEX_SAC,
    "td3": of.SAC,
}


def trained(system: str, path: Any, **settings: Any) -> Any:
    return polyplay.train(system, run=str(path), **{**OF[system], **settings})


def losses(path) -> list[float]:
    return [row["loss"] for row in read_lines(path / "updates.jsonl")]


def test_both_networks_see_inputs_by_the_statistics_of_what_was_acted(tmp_path):
    run = trained("dqn", tmp_path / "run", steps=1_000, inputs="normalize", target_update=10_000)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    policy, target = (found.arrays(f"agents/0/{name}") for name in ("policy", "target"))
    learnt = [name for name in policy if name.startswith("inputs.")]
    assert any(policy[name].any() for name in learnt)
    assert all((policy[name] == target[name]).all() for name in learnt)
    assert any((policy[name] != target[name]).any() for name in policy), "the weights are those of the start"


@pytest.mark.long
def test_a_process_whose_threads_divide_the_batches_goes_on_to_the_bit(tmp_path):
    """With samples drawn ahead, at a ratio at which an update is due now and then."""
    given: Any = {**of.QUIET, "env": "ALE/Pong-v5", "network": "a3c", "batch": 16, "ratio": 3.0, "target_update": 20}
    given |= {"learning_starts": 60, "capacity": 1_000, "on": "process", "seed": 3}
    polyplay.train("dqn", run=str(tmp_path / "whole"), steps=300, **given)
    polyplay.train("dqn", run=str(tmp_path / "parts"), steps=170, **given)
    polyplay.resume(str(tmp_path / "parts"), steps=300)
    ends = [checkpoint.open_checkpoint(checkpoint.everything(tmp_path / name)[-1]) for name in ("whole", "parts")]
    for name in ("policy", "optimizer", "target"):
        mine, theirs = (end.arrays(f"agents/0/{name}") for end in ends)
        assert all(np.array_equal(mine[k], theirs[k]) for k in mine)
    assert ends[0].json("agents/0/learner")["version"] == ends[1].json("agents/0/learner")["version"] == 45


def test_a_replay_of_another_version_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    trained("dqn", tmp_path / "run", steps=700)
    before = (tmp_path / "run" / "config.json").read_text()
    monkeypatch.setattr("polyplay.buffers.replay.SCHEMA", 1_000)
    with pytest.raises(UserError, match="this version reads 1000"):
        polyplay.resume(str(tmp_path / "run"), steps=900)
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_two_replicas_stay_equal_and_draw_from_memories_of_their_own(tmp_path):
    run = trained("dqn", tmp_path / "run", steps=1_500, replicas=2)
    last = checkpoint.everything(run.directory)[-1]
    kept = sorted(p.name for p in (last / "replay").iterdir())
    assert kept == ["replica-0", "replica-1"]
    made = [json.loads((last / "replay" / name / "replay_learner.json").read_text())["updates"] for name in kept]
    steps = [json.loads((last / "replay" / name / "replay.json").read_text())["numbers"]["steps"] for name in kept]
    assert (made[0], steps[0]) == (made[1], steps[1])
    assert made[0] == (steps[0] - 250) * 8.0 // 32


@pytest.mark.parametrize("system", ["dqn", "gorila"])
def test_the_target_network_is_a_copy_of_every_so_many_updates(system, tmp_path):
    settings = {"dqn": of.DQN, "gorila": of.GORILA}[system] | {"serial": True, "target_update": 10_000}
    for name, steps in (("run", 800), ("first", 8)):  # saved before any update
        polyplay.train(system, run=str(tmp_path / name), steps=steps, **settings)
    found, start = (checkpoint.open_checkpoint(checkpoint.newest(tmp_path / n, print)) for n in ("run", "first"))
    old, new = start.arrays("agents/0/target"), found.arrays("agents/0/target")
    assert all(np.array_equal(old[k], new[k]) for k in old)
    assert any(not np.array_equal(new[k], found.arrays("agents/0/policy")[k]) for k in new)


def test_a_run_that_ends_in_its_warm_up_is_saved_and_goes_on(tmp_path):
    run = trained("dqn", tmp_path / "run", steps=200)
    assert run.exit_code == 0
    assert run.summary["updates"] == 0
    polyplay.resume(str(run.directory), steps=800)
    assert len(losses(run.directory)) > 0


def test_the_ratio_of_rows_is_kept_on_both_sides(tmp_path):
    run = trained("r2d2", tmp_path / "run", steps=4_000, on="thread", actors=2)
    assert run.summary["updates"] == pytest.approx((4_000 - 2_000) * 2.0 / (16 * 8), rel=0.15)


def test_the_last_checkpoint_has_every_step(tmp_path):
    run = trained("r2d2", tmp_path / "run", steps=600, learning_starts=200, on="thread", quiet=True)
    counters = checkpoint.manifest(checkpoint.newest(run.directory, print))["counters"]
    assert (counters["steps"], counters["episodes"]) == (run.summary["steps"], run.summary["episodes"])


def test_actors_pull_after_so_many_steps_in_whole_rollouts():
    page = systems.load("r2d2")
    for pull, rollouts in ((400, 50), (8, 1), (30, 3), (4, 1)):
        crew = Crew(0)
        page.build(page.Config(env="toy:memory", network="mlp", unroll=8, pull=pull), crew)
        assert crew.roles[0].holds["keep"] == rollouts


def test_the_ratio_is_kept_over_all_memories_and_a_resumed_run_goes_on_with_them(tmp_path):
    run = trained("apex", tmp_path / "run", steps=1_200, serial=True, trace=True)
    owed = (1_200 - 500) * 8.0 / 64  # but for what is under way
    assert run.summary["updates"] == pytest.approx(owed, rel=0.25)
    last = checkpoint.everything(run.directory)[-1]
    assert sorted(p.name for p in (last / "replay").iterdir()) == ["serve_replay-0", "serve_replay-1"]
    assert sorted(p.name for p in (last / "workers").glob("stream-*")) == ["stream-0.json", "stream-1.json"]
    more = polyplay.resume(str(run.directory), steps=2_000)
    assert more.exit_code == 0
    assert more.summary["steps"] >= 2_000
    assert more.summary["updates"] == pytest.approx((2_000 - 500) * 8.0 / 64, rel=0.25)
    assert [row["update"] for row in updates(more)] == list(range(1, more.summary["updates"] + 1))
    told = [r["replay_ratio"] for r in read_lines(run.directory / "metrics.jsonl") if "replay_ratio" in r]
    assert not told or told[-1] == pytest.approx(8.0, rel=0.25)


def test_learners_that_average_their_gradients_share_the_memories(tmp_path):
    run = trained("apex", tmp_path / "run", steps=800, serial=True, trace=True, learners=2)
    assert (run.exit_code, run.summary["updates"]) == (0, pytest.approx((800 - 500) * 8.0 / 64, rel=0.4))
    assert checkpoint.everything(run.directory)


@pytest.mark.parametrize(
    ("actors", "learners", "cores", "nice"), [(2, 1, 2, 3), (8, 1, 8, 1), (1, 1, 8, 0), (8, 1, 2, 9), (4, 2, 4, 3)]
)
def test_actors_are_as_nice_as_leaves_each_learner_a_core(actors, learners, cores, nice, monkeypatch):
    """At nice n a process has 1.25⁻ⁿ of the weight of others: together they weigh one learner on each core."""
    monkeypatch.setattr(sizing, "cores", lambda: cores)
    assert sizing.niceness(actors, learners) == nice
    assert actors * 1.25**-nice / max(cores - learners, 1) == pytest.approx(1.0, abs=0.15) or nice == 0


FEW: Any = {**of.AIM, "steps": 600, "batch": 16, "ratio": 4.0, "serial": True}


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}])
def test_it_learns_to_aim(how, tmp_path):
    run = trained("apex_dpg", tmp_path / "run", steps=2_000, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.45  # noise around 0 has 0.42, and 0.65 around the answers
    # without noise; always 0, or each time the end on the right side, has 0.5
    assert run.evaluate(episodes=64)["episodic_return_mean"] >= 0.7


@pytest.mark.parametrize(
    ("system", "given"),
    [
        ("sac", {"on": "thread"}),
        ("sac", {"on": "process", "critic_rate": 2.0, "alpha": 0.6, "n_step": 2}),
        ("sac", {"on": "thread", "normalization": "batch", "critic_width": 64, "delay": 2, "learning_rate": 2e-3}),
        pytest.param("sac", {"on": "thread", "normalization": "layer", "dropout": 0.01}, marks=pytest.mark.long),
        pytest.param("apex_sac", {"on": "process"}, marks=pytest.mark.long),
        ("td3", {"on": "thread", "noise": 0.3}),
        ("td3", {"on": "process", "preset": "ddpg", "noise": 0.3}),
    ],
)
def test_an_actor_and_critics_learn_to_aim(system, given, tmp_path):
    run = trained(system, tmp_path / "run", steps=2_500, **given)
    about = 20 if system != "apex_sac" else 400  # whose learner is behind its actors
    assert (run.exit_code, run.summary["updates"]) == (0, pytest.approx(2_500 - 300, abs=about))
    assert run.evaluate(episodes=64, greedy=True)["episodic_return_mean"] >= 0.7  # always 0 has 0.5


@pytest.mark.parametrize(("system", "ratio"), [("sac", 0.25), ("td3", 3.0)])
def test_updates_are_exactly_as_many_as_the_ratio_says(system, ratio, tmp_path):
    """64 transitions each. Rows that begin a game are no steps, so the first update comes when 64 are there."""
    run = trained(system, tmp_path / "run", steps=400, serial=True, lanes=1, learning_starts=100, ratio=64.0 * ratio)
    assert run.summary["updates"] == int((run.summary["steps"] - 100) * ratio)


@pytest.mark.parametrize("system", ["sac", pytest.param("apex_sac", marks=pytest.mark.long)])
def test_sac_learns_actions_with_real_and_discrete_parts(system, tmp_path):
    given = {**OF[system], "env": f"{TRAITS}+hybrid+continuous+mask+questions=2"}
    run = polyplay.train(system, run=str(tmp_path / "run"), steps=4_000, **given)
    assert run.evaluate(episodes=64, greedy=True)["episodic_return_mean"] >= 0.8


def test_sac_learns_discrete_actions(tmp_path):
    given = {**of.SAC, "env": "toy:catch", "gamma": 0.97, "ratio": 32.0, "learning_rate": 2e-3}
    run = polyplay.train("sac", run=str(tmp_path / "run"), steps=4_000, **given)
    assert run.evaluate(episodes=64, greedy=True)["episodic_return_mean"] >= 0.8


@pytest.mark.long
def test_sac_solves_cartpole(tmp_path):
    """By its preset; seed 5 had 500 of 500 in 30 games, drawn and greedy."""
    run = polyplay.train("sac", env="CartPole-v1", seed=5, run=str(tmp_path / "run"), tensorboard=False, quiet=True)
    assert run.evaluate(episodes=30, greedy=True)["episodic_return_mean"] >= 475.0


@pytest.mark.parametrize(("system", "more"), [("sac", {}), ("sac", {"normalization": "batch"}), ("td3", {})])
def test_actor_and_critics_go_on_to_the_bit(system, more, tmp_path):
    """The parts' own steps of Adam, which update changes the actor, and running statistics, too."""
    given: Any = {"serial": True, "trace": True, "seed": 2, "critic_rate": 2.0, **more}
    whole = trained(system, tmp_path / "whole", steps=800, **given)
    trained(system, tmp_path / "parts", steps=501, **given)
    polyplay.resume(str(tmp_path / "parts"), steps=800)
    assert losses(tmp_path / "parts") == losses(whole.directory)


def updates_saved(run: Path) -> int:
    """Updates in the newest checkpoint of a run that may not have begun."""
    return max((int(place.name.split("-")[0]) for place in run.glob("checkpoints/0*-steps-*")), default=0)


@pytest.mark.long
@pytest.mark.parametrize("system", ["sac", "td3"])
def test_actor_and_critics_that_are_killed_go_on_to_the_bit(system, tmp_path):
    given: Any = {**OF[system], "serial": True, "trace": True, "seed": 2, "checkpoint_every": 0.1}
    whole = polyplay.train(system, run=str(tmp_path / "whole"), steps=1_500, **given)
    parts = tmp_path / "parts"
    code = f"import polyplay; polyplay.train({system!r}, run={str(parts)!r}, steps=100_000, **{given!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and updates_saved(parts) < 50:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    steps = checkpoint.manifest(checkpoint.newest(parts, print))["counters"]["steps"]
    assert steps < 1_500, "killed in time to go on"
    polyplay.resume(str(parts), steps=1_500)
    assert losses(parts) == losses(whole.directory)


@pytest.mark.long
def test_quick_learns_to_swing_a_pendulum_up(tmp_path):
    """Torque of one sign for ever, where it ended without a rein, has about -1400, -1500 or -700."""
    given = {"env": "toy:tests.toys:Pendulum", "steps": 20_000, "tensorboard": False}
    run = polyplay.train("apex_dpg", preset="quick", run=str(tmp_path / "run"), **given)
    assert run.exit_code == 0
    assert run.evaluate(episodes=30)["episodic_return_mean"] >= -300.0


def test_it_learns_with_dict_observations_and_goes_on_with_its_memories(tmp_path):
    run = trained("apex_dpg", tmp_path / "run", **{**FEW, "env": f"{TRAITS}+dict+continuous", "trace": True})
    assert (run.exit_code, run.summary["updates"]) == (0, pytest.approx((600 - 300) * 4.0 / 16, rel=0.3))
    kept = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")
    page = systems.load("apex_dpg")
    fresh = build_network(page.build(run.settings, Crew()).policy, 0).state_dict()
    assert all(np.isfinite(v).all() and (v != fresh[k].numpy()).any() for k, v in kept.items())
    more = polyplay.resume(str(run.directory), steps=800)
    assert more.exit_code == 0
    updates = [row["update"] for row in read_lines(run.directory / "updates.jsonl")]
    assert updates == list(range(1, more.summary["updates"] + 1))


def test_evaluation_plays_without_noise(tmp_path):
    run = trained("apex_dpg", tmp_path / "run", **{**FEW, "steps": 400})
    system = wired("apex_dpg", Crew(), **of.AIM)
    policy = play.load_policy(system, checkpoint.newest(run.directory, print))
    assert system.epsilon == 0.0
    envs = Envs(of.AIM["env"], 1)
    games = [play.play_games(envs, policy, play.PlayOptions(4, 1, greedy)) for greedy in (False, True)]
    assert games[0] == games[1], "whether noise is offered or not"


PAPER: Any = {"optimizer": "adagrad", "learning_rate": 0.03, "optimizer_eps": 0.01}


class Seen:
    """Around a schedule of ε: how often the first lane was said to have acted, and all that it told."""

    def __init__(self, schedule: Any):
        self.schedule, self.lanes = schedule, schedule.lanes
        self.acts, self.told = list[int](), list[float]()

    def at(self, acts, lanes):
        found = self.schedule.at(acts, lanes)
        self.acts.append(int(acts[0]))
        self.told += np.unique(found).tolist()
        return found


def test_a_resumed_run_goes_on_with_weights_accumulators_and_counts(tmp_path, capfd):
    run = trained("gorila", tmp_path / "run", steps=600, serial=True, **PAPER)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    first = found.json("agents/0/learner")
    kept = [found.arrays(f"agents/0/{part}") for part in ("policy", "optimizer", "target")]
    assert first["shards"] == [first["version"]] * 2
    assert kept[1]["square"].any()
    crew = Crew(0, serial=True, steps=10**9, resume=found.path, resumes=1)
    wired("gorila", crew, **{**of.GORILA, **PAPER})
    server = crew.roles[1].holds["server"]
    crew.start(())
    while not server.counts.ready:
        crew.poll(0.0)
        for worker in crew._seats["bundle"].workers.values():
            worker.runs.turn()
    assert np.array_equal(server.statistics[0], kept[1]["square"])
    flat = np.concatenate([v.ravel() for v in kept[0].values()])
    assert np.array_equal(np.sort(whole(server)), np.sort(flat))
    crew.stop()
    capfd.readouterr()
    again = polyplay.resume(str(run.directory), steps=1_400)
    assert "its replay was not saved: it starts empty" in "".join(capfd.readouterr())
    assert again.summary["steps"] >= 1_400
    last = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    assert last.json("agents/0/learner")["version"] > first["version"] + 15
    assert (last.arrays("agents/0/optimizer")["square"] >= kept[1]["square"]).all(), "AdaGrad's only grow"
    assert polyplay.evaluate(run.directory, episodes=5)["episodes"] == 5


def roles(crew: Crew) -> dict[str, Any]:
    return {role.name: role for role in crew.roles}


def told(run: Any, key: str) -> list[float]:
    """What reports had of it: a busy machine may have several, and the last one little."""
    rows = read_lines(run.directory / "metrics.jsonl")
    return [row[key] for row in rows if row.get(key) is not None]


def test_in_one_thread_learners_share_the_ratios_updates_and_a_resumed_run_has_its_memories(tmp_path, capfd):
    run = trained("gorila", tmp_path / "run", **of.FREE, steps=900, serial=True)
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
    run = trained(
        "gorila", tmp_path / "run", **{**of.FREE, "learners": 3, "learning_starts": 10_000}, steps=60, serial=True
    )
    assert run.exit_code == 0
    assert run.summary["updates"] == 0
    assert run.summary["steps"] < 400


def _begun(**more: Any) -> tuple[Crew, Any, Seen]:
    """A crew in one thread, its server, and the ε of its actors."""
    crew = Crew(0, serial=True, steps=10**9, **more)
    system = wired("gorila", crew, **of.FREE)
    actors, seen = crew.roles[0], Seen(crew.roles[0].holds["explore"])
    crew.roles[0] = actors.holding(explore=seen)
    crew.start(system.metrics)
    return crew, actors.holds["params"], seen


def test_epsilon_goes_on_where_the_run_is_for_a_lost_actors_successor_and_in_a_resumed_run(tmp_path):
    crew, server, seen = _begun(directory=tmp_path)
    actors = crew._seats["act"]
    until(crew, lambda: server.counts.learnt > 900)
    crew._start(crew.roles[0], 1)  # in a lost one's place
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
    by, server = crew._seats, crew.roles[-1].holds["server"]
    crew.start(system.metrics)
    pushed = server.counters[:, 0]
    try:
        until(crew, lambda: pushed.min() > 10)
        for name in ("learn", "act", "serve_replay"):
            os.kill(by[name].workers[0].runs.pid, signal.SIGKILL)
        until(crew, lambda: all(by[name].lost == 1 for name in ("learn", "act", "serve_replay")))
        before, steps = pushed.copy(), server.counts.learnt
        until(crew, lambda: (pushed > before + 10).all() and server.counts.learnt > steps)
        assert np.isfinite(server.copies).all()
        assert np.abs(server.copies).max() < 10
        os.kill(by["serve_parameters"].workers[1].runs.pid, signal.SIGKILL)
        with pytest.raises(WorkerLost, match="serve_parameters 1 was killed by SIGKILL; the run cannot continue"):
            until(crew, lambda: False)
    finally:
        crew.stop()
    assert sum("a new worker replaces it" in text for text in said) == 3
    assert sum("starts empty" in text for text in said) == 1
