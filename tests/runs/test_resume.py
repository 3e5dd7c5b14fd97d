"""Runs that were stopped and go on: the same losses to the bit, or one line about what is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import polyplay
from polyplay import systems
from polyplay.buffers import actor_checkpoint
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import write_json
from polyplay.runs import run as runs
from polyplay.runs.directory import read_config
from polyplay.runs.load import crew_of, load_run, sizes_changed
from polyplay.runs.options import adjust, resolve
from polyplay.workers.crew import Crew
from tests.reports import rows

BASE = {"trace": True, "seed": 5, "anneal": "constant", "network": "mlp", "tensorboard": False, "report_every": 0.5}
CARTPOLE = {**BASE, "env": "CartPole-v1", "lanes": 4, "unroll": 5}


def games(run: Path) -> list:
    return sorted((g["lane"], g["episodic_return"]) for g in rows(run / "episodes.jsonl"))


def compare(system: str, tmp_path: Path, capfd, **kw) -> int:
    """A run in two parts, and the same in one; the updates of each."""
    whole = polyplay.train(system, run=str(tmp_path / "whole"), steps=800, **kw).directory
    cut = polyplay.train(system, run=str(tmp_path / "cut"), steps=400, **kw).directory
    assert 5 < len(rows(cut / "updates.jsonl")) < len(rows(whole / "updates.jsonl")) - 5
    capfd.readouterr()
    polyplay.resume(str(cut), steps=800)
    assert "begin anew" not in capfd.readouterr().err
    assert rows(cut / "updates.jsonl") == rows(whole / "updates.jsonl")
    assert games(cut) == games(whole)
    assert len(games(cut)) > 10
    assert rows(cut / "metrics.jsonl")[-1]["episodes"] == len(games(cut))
    assert rows(cut / "metrics.jsonl")[-1]["steps"] == rows(whole / "metrics.jsonl")[-1]["steps"]
    return len(rows(cut / "updates.jsonl"))


@pytest.mark.parametrize(
    "kw",
    [
        {"replicas": 2, "groups": 2, "on": "thread"},
        {"replicas": 1, "serial": True, "core": "lstm", "core_size": 16},
    ],
    ids=["2 replicas, 2 groups", "lstm, inline"],
)
def test_a2c_on_cartpole_goes_on_to_the_bit(kw, tmp_path, capfd):
    assert compare("a2c", tmp_path, capfd, **CARTPOLE, **kw) > 10


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a2c_on_pong_in_environment_processes_goes_on_to_the_bit(core, tmp_path):
    kw = {**BASE, "env": "ALE/Pong-v5", "atari": "auto:plain", "network": "a3c", "core": core, "core_size": 16}
    kw |= {"lanes": 4, "unroll": 4, "replicas": 1, "on": "thread"}
    whole = polyplay.train("a2c", run=str(tmp_path / "whole"), steps=192, **kw).directory
    cut = polyplay.train("a2c", run=str(tmp_path / "cut"), steps=96, **kw).directory
    polyplay.resume(str(cut), steps=192)
    assert len(rows(whole / "updates.jsonl")) == 12
    assert rows(cut / "updates.jsonl") == rows(whole / "updates.jsonl")


@pytest.mark.parametrize("kw", [{"core": "gru"}, {"serial": True, "batch": 4}], ids=["processes, gru", "serial"])
def test_impala_at_lag_0_goes_on_to_the_bit(kw, tmp_path, capfd):
    assert compare("impala", tmp_path, capfd, **{**CARTPOLE, "actors": 2, "batch": 8, "lag": 0, **kw}) > 10


class Shared(gymnasium.Env):
    """Draws from the generators that all of a process share, as much older code does; its own state can be saved."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def see(self):
        drawn = random.random(), np.random.normal(), float(torch.rand(()))
        return np.clip(np.array(drawn, np.float32), -10.0, 10.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        reward = random.gauss(0.0, 1.0) * action
        return self.see(), reward, self.steps >= 3 and np.random.random() < 0.2, False, {}

    def get_state(self):
        return {"steps": np.array(self.steps)}

    def set_state(self, state):
        self.steps = int(state["steps"])


@pytest.mark.parametrize(
    ("system", "more"),
    [
        ("a2c", {"replicas": 1}),
        ("impala", {"actors": 2, "batch": 4}),
        pytest.param("ppo", {"replicas": 1, "unroll": 10, "minibatches": 2, "epochs": 2}, marks=pytest.mark.long),
        pytest.param("appo", {"actors": 3, "batch": 4}, marks=pytest.mark.long),
    ],
)
def test_environments_that_draw_from_global_generators_go_on_to_the_bit(system, more, tmp_path, capfd):
    assert compare(system, tmp_path, capfd, **{**CARTPOLE, "env": Shared, "serial": True, **more}) > 10


def test_nothing_in_flight_is_lost_where_acting_runs_free(tmp_path):
    kw = {**CARTPOLE, "env": "toy:catch", "actors": 2, "batch": 4, "slots": 3, "on": "thread"}
    cut = polyplay.train("impala", run=str(tmp_path / "cut"), steps=600, **kw).directory
    found = checkpoint.everything(cut)[-1]
    queue = json.loads((found / "workers/stream-0.json").read_text())
    assert queue["lost"] == []
    parts = actor_checkpoint.saved_counters(found)
    assert [part["why"] for part in parts] == ["", ""]
    counters = checkpoint.manifest(found)["counters"]
    assert counters["steps"] == sum(part["steps"] for part in parts)
    assert counters["games"] == {"0+4": parts[0]["episodes"], "4+4": parts[1]["episodes"]}
    polyplay.resume(str(cut), steps=1200)
    later = json.loads((checkpoint.everything(cut)[-1] / "workers/stream-0.json").read_text())
    assert sum(later["taken"].values()) == len(rows(cut / "updates.jsonl"))
    assert [r["update"] for r in rows(cut / "updates.jsonl")] == list(range(1, len(rows(cut / "updates.jsonl")) + 1))


def test_what_cannot_be_saved_begins_anew_and_is_counted(tmp_path, capfd):
    kw = {**BASE, "env": "ALE/Pong-v5", "lanes": 4, "unroll": 4, "network": "a3c", "replicas": 1}
    run = polyplay.train("a2c", run=str(tmp_path / "pong"), steps=64, **kw).directory
    capfd.readouterr()
    polyplay.resume(str(run), steps=96)
    err = capfd.readouterr().err
    assert (
        "polyplay: 4 lanes begin anew, from seed 1000003005: 4 partial episodes (64 agent steps) are lost, "
        "since ale-py's vector environment cannot save a game\n"
    ) in err
    (part,) = actor_checkpoint.saved_counters(checkpoint.everything(run)[-1])
    assert part["partial_steps"] == 32  # since the resumption


def test_what_is_asked_for_wins_over_the_checkpoint(tmp_path):
    kw = {**BASE, "env": "toy:catch", "lanes": 4, "unroll": 5, "replicas": 1, "serial": True, "learning_rate": 1e-3}
    run = polyplay.train("a2c", run=str(tmp_path / "run"), steps=200, **kw).directory
    assert rows(run / "metrics.jsonl")[-1]["learning_rate"] == pytest.approx(1e-3)
    polyplay.resume(str(run), steps=400, learning_rate=5e-5)
    assert rows(run / "metrics.jsonl")[-1]["learning_rate"] == pytest.approx(5e-5)
    config = json.loads((run / "config.json").read_text())
    assert (config["config"]["learning_rate"], config["sources"]["learning_rate"]) == (5e-5, "resume")
    polyplay.resume(str(run), steps=600)
    assert rows(run / "metrics.jsonl")[-1]["learning_rate"] == pytest.approx(5e-5)
    with pytest.raises(UserError, match="unroll: it cannot change when a run goes on; what can: learning_rate"):
        polyplay.resume(str(run), unroll=8)


@pytest.mark.parametrize(
    ("system", "before", "now"),
    [
        ("ppo", {"replicas": 1, "lanes": 4, "unroll": 8}, {"lanes": 16}),
        ("impala", {"actors": 2, "learners": 1, "lanes": 2, "batch": 4}, {"actors": 3, "lanes": 4}),
        ("impala", {"actors": 2, "learners": 2, "lanes": 2, "batch": 4}, {"learners": 1}),
    ],
)
def test_a_run_goes_on_with_more_lanes_or_workers_and_says_what_that_costs(system, before, now, tmp_path, capfd):
    kw = {**BASE, "env": "toy:catch", "serial": True, "checkpoint_every": 0.01}
    run = polyplay.train(system, run=str(tmp_path / "run"), steps=600, **kw, **before).directory
    saved, games_then = checkpoint.manifest(checkpoint.everything(run)[-1])["counters"], len(games(run))
    capfd.readouterr()
    polyplay.resume(str(run), steps=1200, **now)
    said, warned = capfd.readouterr()
    changed = ", ".join(
        f"{name} {before[name]} → {now[name]}" for name in ("actors", "lanes", "learners") if name in now
    )
    assert f"{changed}: not bitwise, all lanes begin anew" in " ".join(said.split())
    assert "all lanes begin anew, from seed" in warned
    after = checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]
    assert after["steps"] >= 1200
    assert after["updates"] > saved["updates"]
    updates = [row["update"] for row in rows(run / "updates.jsonl")]
    assert updates == sorted(set(updates)), "it goes on where it was"
    assert len(games(run)) > games_then
    config = json.loads((run / "config.json").read_text())
    assert {name: config["config"][name] for name in now} == now
    polyplay.resume(str(run), steps=1500)
    assert "another number" not in capfd.readouterr().err


@pytest.mark.parametrize("left", ["unlearnt", "damaged"])
def test_a_checkpoint_of_before_another_number_of_lanes_is_gone_on_from(left, tmp_path, capfd, monkeypatch):
    """Its lanes are as many as it says, not as the run had since."""
    kw = {**BASE, "env": "toy:catch", "lanes": 4, "unroll": 5, "replicas": 1, "serial": True}
    run = polyplay.train("a2c", run=str(tmp_path / "run"), steps=200, **kw).directory
    if left == "unlearnt":  # a kill before its first checkpoint
        with monkeypatch.context() as patch:
            patch.setattr(runs, "_go", lambda setup: runs.RunResult(setup.directory))
            polyplay.resume(run, steps=400, lanes=8)
    else:
        polyplay.resume(run, steps=400, lanes=8)
        (checkpoint.everything(run)[-1] / "manifest.json").write_text("damaged")
    capfd.readouterr()
    polyplay.resume(run, steps=600)
    assert "another number of them than in the checkpoint" in capfd.readouterr().err
    polyplay.resume(run, steps=800)
    assert "another number" not in capfd.readouterr().err
    assert checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]["steps"] >= 800


@pytest.mark.parametrize("name", ["lanes", "actors"])
def test_where_a_replay_has_the_rows_of_lanes_their_number_stays(name):
    kw = {"env": "toy:catch", "network": "mlp", "actors": 1, "lanes": 2, "capacity": 2000, "start": 50, "serial": True}
    page, (before, options, _) = systems.load("apex"), resolve(systems.load("apex"), **kw)
    now, _ = adjust(page, before, {name: 4})
    crew = crew_of(options)
    page.build(now, crew)
    with pytest.raises(UserError, match=f"--{name}: 4 given, but the replay holds the rows of each lane"):
        sizes_changed(before, now, crew)
    assert sizes_changed(before, before, crew) == ""


def test_what_was_scheduled_goes_on(tmp_path):
    """A hyperparameter that the run itself changed comes from the checkpoint."""
    kw = {**BASE, "env": "toy:catch", "lanes": 4, "unroll": 5, "replicas": 1, "serial": True, "learning_rate": 1e-3}
    run = polyplay.train("a2c", run=str(tmp_path / "run"), steps=200, **kw).directory
    found = checkpoint.everything(run)[-1]
    saved = json.loads((found / "agents/0/learner.json").read_text())
    for asked, rate in ((2e-3, 1e-3), (1e-3, 7e-4)):
        page = systems.load("a2c")
        crew = Crew(0, steps=400, serial=True)
        page.build(page.Config(**{k: v for k, v in kw.items() if k in page.Config.__dataclass_fields__}), crew)
        hyper = next(r.spec.hyperparameters for r in crew.roles if r.spec)
        hyper.restore({"learning_rate": 7e-4}, {"learning_rate": asked})
        assert hyper.learning_rate == rate
    assert saved["configured"]["learning_rate"] == 1e-3


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(UserError, match="no run at"):
        polyplay.resume(str(tmp_path / "nothing"))


def test_a_run_of_before_actions_were_scaled_goes_on_clipping_them(tmp_path):
    """As an earlier version wrote it: without the setting, and with statistics of float32."""
    given = {**BASE, "env": "toy:pendulum", "lanes": 4, "unroll": 5, "replicas": 1, "serial": True, "preset": "paper"}
    run = polyplay.train(
        "a2c", **given, actions="clip", inputs="normalize", steps=100, run=str(tmp_path / "r")
    ).directory
    saved = read_config(run)
    del saved["config"]["actions"]
    write_json(run / "config.json", saved)
    (found,) = checkpoint.everything(run)[-1:]
    arrays = checkpoint.read_arrays(found / "agents/0/policy.safetensors")
    assert {str(x.dtype) for x in arrays.values()} == {"float32", "float64"}
    checkpoint.write_arrays(found / "agents/0/policy.safetensors", {k: x.astype(np.float32) for k, x in arrays.items()})
    manifest = json.loads((found / "manifest.json").read_text())
    manifest["files"]["agents/0/policy.safetensors"] = checkpoint.describe_file(found / "agents/0/policy.safetensors")
    write_json(found / "manifest.json", manifest)
    assert load_run(run)[1].actions == "clip"
    again = polyplay.resume(run, steps=200)
    assert again.exit_code == 0
    after = checkpoint.read_arrays(checkpoint.everything(run)[-1] / "agents/0/policy.safetensors")
    assert float(after["inputs.moments.0.count"]) > float(arrays["inputs.moments.0.count"]) > 1
