"""Runs that were stopped or killed go on: the same losses to the bit, or one line about what is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import polyplay
from polyplay import systems
from polyplay.buffers import actor_checkpoint
from polyplay.cli import main
from polyplay.cli.train import ResumeOptions
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import write_json
from polyplay.nets.torsos import MLP
from polyplay.runs import load, session
from polyplay.runs import run as run_module
from polyplay.runs.directory import games_of, read_config
from polyplay.runs.load import crew_of, load_run, sizes_changed
from polyplay.runs.options import CHANGEABLE, RunOptions, adjust, resolve
from polyplay.runs.plan import Plan
from polyplay.runs.session import SAVE
from tests.reports import rows
from tests.verbs import refused

BASE = {"trace": True, "seed": 5, "anneal": "constant", "network": "mlp", "tensorboard": False, "report_every": 0.5}
CARTPOLE = {**BASE, "env": "CartPole-v1", "lanes": 4, "unroll": 5}


def games(run: Path) -> list:
    return sorted((g["lane"], g["episodic_return"]) for g in rows(run / "episodes.jsonl"))


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


LONG, DRAWS = pytest.mark.long, {"env": Shared, "serial": True, "preset": "paper"}


@pytest.mark.parametrize(
    ("system", "kw"),
    [
        pytest.param("a2c", {"replicas": 1, "serial": True, "core": "lstm", "core_size": 16}, id="a2c, lstm"),
        pytest.param("a2c", {"replicas": 2, "groups": 2, "on": "thread"}, id="a2c, 2 replicas, 2 groups", marks=LONG),
        pytest.param("impala", {"actors": 2, "batch": 4, "lag": 0, "serial": True}, id="impala at lag 0"),
        pytest.param("impala", {"actors": 2, "batch": 8, "lag": 0, "core": "gru"}, id="impala, processes", marks=LONG),
        pytest.param("a2c", {"replicas": 1, **DRAWS}, id="a2c, global generators"),
        pytest.param("impala", {"actors": 2, "batch": 4, **DRAWS}, id="impala, global generators", marks=LONG),
        pytest.param("ppo", {"replicas": 1, "unroll": 10, "minibatches": 2, "epochs": 2, **DRAWS}, marks=LONG),
        pytest.param("appo", {"actors": 3, "batch": 4, **DRAWS}, marks=LONG),
    ],
)
def test_a_run_in_two_parts_is_the_same_to_the_bit(system, kw, tmp_path, capfd):
    given = {**CARTPOLE, **kw}
    whole = polyplay.train(system, run=str(tmp_path / "whole"), steps=400, **given).directory
    cut = polyplay.train(system, run=str(tmp_path / "cut"), steps=200, **given).directory
    assert 2 < len(rows(cut / "updates.jsonl")) < len(rows(whole / "updates.jsonl")) - 2
    capfd.readouterr()
    polyplay.resume(str(cut), steps=400)
    assert "begin anew" not in capfd.readouterr().err
    assert rows(cut / "updates.jsonl") == rows(whole / "updates.jsonl")
    assert games(cut) == games(whole)
    assert len(games(cut)) > 3
    assert rows(cut / "metrics.jsonl")[-1]["episodes"] == len(games(cut))
    assert rows(cut / "metrics.jsonl")[-1]["steps"] == rows(whole / "metrics.jsonl")[-1]["steps"]


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a2c_on_pong_in_environment_processes_goes_on_to_the_bit(core, tmp_path):
    kw = {**BASE, "env": "ALE/Pong-v5", "atari": "auto:plain", "network": "a3c", "core": core, "core_size": 16}
    kw |= {"lanes": 4, "unroll": 4, "replicas": 1, "on": "thread", "env_workers": 1}
    whole = polyplay.train("a2c", run=str(tmp_path / "whole"), steps=96, **kw).directory
    cut = polyplay.train("a2c", run=str(tmp_path / "cut"), steps=48, **kw).directory
    polyplay.resume(str(cut), steps=96)
    assert len(rows(whole / "updates.jsonl")) == 6
    assert rows(cut / "updates.jsonl") == rows(whole / "updates.jsonl")


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
    kw = {**BASE, "env": "ALE/Pong-v5", "lanes": 4, "unroll": 4, "network": "a3c", "replicas": 1, "on": "thread"}
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
            patch.setattr(run_module, "_go", lambda setup: run_module.RunResult(setup.directory))
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
    kw = {"env": "toy:catch", "network": "mlp", "actors": 1, "lanes": 2, "capacity": 2000, "learning_starts": 50}
    page, (before, options, _) = systems.load("apex"), resolve(systems.load("apex"), serial=True, **kw)
    now, _ = adjust(page, before, {name: 4})
    crew = crew_of(options)
    page.build(now, crew)
    with pytest.raises(UserError, match=f"--{name}: 4 given, but the replay holds the rows of each lane"):
        sizes_changed(before, now, crew)
    assert sizes_changed(before, before, crew) == ""


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


KW: dict[str, Any] = {**BASE, "env": "toy:catch", "lanes": 4, "seed": 3, "steps": 400, "serial": True}
KW["report_every"] = 5.0
WORDS = "train a2c --env toy:catch --network mlp --lanes 4 --seed 3 --serial --trace --no-tensorboard --anneal constant"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return polyplay.train("a2c", run=str(tmp_path_factory.mktemp("whole") / "run"), **KW).directory


def newest(run: Path) -> str:
    return checkpoint.everything(run)[-1].name


def test_a_run_that_is_killed_before_its_first_update_goes_on(whole: Path, tmp_path: Path):
    run, words = tmp_path / "run", f"{WORDS} --steps 400M --resume auto"
    command = [sys.executable, "-m", "polyplay", *words.split(), "--run", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while not (found := checkpoint.everything(run)) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert found[0].name == "000000000000-steps-0"
    assert checkpoint.flaw(found[0]) is None
    assert checkpoint.manifest(found[0])["counters"]["steps"] == 0
    assert polyplay.evaluate(run, episodes=1)["checkpoint"] == "000000000000-steps-0"
    assert polyplay.train("a2c", run=str(run), resume="auto", **KW).exit_code == 0
    assert rows(run / "updates.jsonl") == rows(whole / "updates.jsonl")


def remove(run: Path, patterns: str) -> None:
    for path in [path for pattern in patterns.split() for path in run.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("gone", ["*", "[!c]* checkpoints"], ids=["all", "all but config.json"])
def test_from_whatever_is_left_a_run_begins_or_goes_on(gone: str, whole: Path, tmp_path: Path):
    run = shutil.copytree(whole, tmp_path / "run")
    remove(run, gone)
    assert polyplay.train("a2c", run=str(run), resume="auto", **KW).exit_code == 0
    assert rows(run / "updates.jsonl") == rows(whole / "updates.jsonl")
    assert [p.name for p in checkpoint.everything(run)] == [newest(whole)]


@pytest.mark.parametrize(
    "gone",
    [
        *("checkpoints", "checkpoints/* summary.json parts", "checkpoints metrics.jsonl", "checkpoints/*"),
        "checkpoints metrics.jsonl summary.json",
    ],
)
def test_a_run_that_lost_its_checkpoints_is_refused_and_keeps_its_lines(gone, whole, tmp_path, capfd):
    run = shutil.copytree(whole, tmp_path / "run")
    remove(run, gone)
    if gone.endswith("parts"):
        checkpoint.CheckpointPart(run, 0).json("agents/0/learner", {"version": 0})
    before = {p: p.read_bytes() for p in run.rglob("*.json*")}
    for verb in (["resume", str(run), "--steps", "900"], [*WORDS.split(), "--resume", "auto", "--run", str(run)]):
        line = refused(capfd, *verb)
        assert line.startswith(f"polyplay: error: RUN: {run} has no checkpoint, but its ")
        assert f"put back {run / 'checkpoints'}; to begin it again, name another --run" in line
    assert {p: p.read_bytes() for p in run.rglob("*.json*")} == before


@pytest.mark.parametrize("agents", [1, 3])
def test_what_was_acted_and_not_learnt_from_is_left_to_do(agents: int, tmp_path: Path):
    """Of several agents the sum counts."""
    directory = tmp_path / "run"
    for learnt, done in ((900.0, False), (999.0, False), (1000.0, True), (1010.0, True)):
        part = checkpoint.CheckpointPart(directory, 7)
        for agent in range(agents):
            part.arrays(checkpoint.policy_name(agent), {})
            part.json(f"agents/{agent}/learner", {"learnt": learnt / agents})
        counters = {"steps": 1020, "frames": 4080, "updates": 7}
        found = checkpoint.complete(directory, 7, counters)
        checkpoint.write_json(directory / "summary.json", {"exit_code": 0, "reason": "done"})
        plan = Plan({}, 0, 0, 4000, 0.0)
        why = load.finished(directory, found, plan, counters, RunOptions(), {})
        assert bool(why) == done
        assert not done or "4,080 of 4,000 frames are done" in why


def test_what_is_given_wins_where_resume_may_change_it_and_has_to_agree_elsewhere(whole: Path, tmp_path: Path):
    run = shutil.copytree(whole, tmp_path / "run")
    kw = {**KW, "run": str(run), "resume": "auto"}
    longer = polyplay.train("a2c", **{**kw, "steps": 600})
    assert longer.summary["steps"] >= 600
    assert json.loads((run / "config.json").read_text())["options"]["steps"] == 600
    with pytest.raises(UserError, match=r"--unroll: 8 given, but .* was begun with"):
        polyplay.train("a2c", **{**kw, "unroll": 8})
    with pytest.raises(UserError, match="--seed: 4 given"):
        polyplay.train("a2c", **{**kw, "seed": 4})
    with pytest.raises(UserError, match="SYSTEM: impala given"):
        polyplay.train("impala", env="toy:catch", run=str(run), resume="auto")
    with pytest.raises(UserError, match="--resume: auto given"):
        polyplay.train("a2c", env="toy:catch", resume="auto")


@pytest.mark.parametrize("word", ["replicas", "actors"])
def test_the_very_command_that_began_a_run_goes_on_with_it(word: str, tmp_path: Path, capfd: pytest.CaptureFixture):
    system = {"replicas": "a2c", "actors": "impala"}[word]
    words = f"--env toy:catch --network mlp --lanes 8 --on thread --no-tensorboard --{word} 0 --resume auto --run"
    words = [system.upper(), *words.split(), str(tmp_path / "run")]
    assert main.main(["train", *words, "--steps", "100"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["sources"][word], config["config"][word] > 0) == ("chosen", True)
    assert main.main(["train", *words, "--steps", "1000"]) == 0
    same = {"env": "toy:catch", word: 0, "run": str(tmp_path / "run"), "resume": "auto", "steps": 2000}
    assert polyplay.train(system.upper(), **same).summary["steps"] >= 2000
    with pytest.raises(UserError, match="--unroll: 9 given"):
        polyplay.train(system, **{**same, "unroll": 9})
    assert "given, but" not in capfd.readouterr().err


def test_what_may_change_is_what_resume_takes():
    own = {"dry_run", "quiet", "verbose", "trust"}  # none is of the run
    assert set(CHANGEABLE) == set(ResumeOptions.__dataclass_fields__) - own


def test_a_finished_run_says_so_and_what_lengthens_it(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    run = shutil.copytree(whole, tmp_path / "run")
    before = (run / "config.json").read_bytes()
    for more in ([], ["--steps", "300"], ["--keep", "2"]):
        assert main.main(["resume", str(run), *more]) == 0
        out = capfd.readouterr().out
        assert f"{run} is finished: 416 of {300 if '300' in more else 400} frames are done" in out
        assert f"`polyplay resume {run} --frames N" in out
    assert (run / "config.json").read_bytes() == before
    assert polyplay.train("a2c", run=str(run), resume="auto", **KW).exit_code == 0
    timed = tmp_path / "timed"
    assert main.main([*WORDS.split(), "--minutes", "0.0001", "--steps", "10M", "--run", str(timed)]) == 0
    capfd.readouterr()
    assert main.main(["resume", str(timed)]) == 0
    assert "0.0001 minutes are over; `polyplay resume" in capfd.readouterr().out
    assert main.main(["resume", str(timed), "--minutes", "100", "--steps", "100"]) == 0


@pytest.mark.parametrize("damage", ["weights", "optimizer", "parts"])
def test_weights_that_are_none_are_neither_scored_nor_resumed(damage: str, whole: Path, tmp_path: Path, capfd):
    run = shutil.copytree(whole, tmp_path / "run")
    polyplay.resume(run, steps=800)
    old, new = checkpoint.everything(run)
    spoil(new, damage)
    capfd.readouterr()
    assert polyplay.evaluate(run, episodes=1)["checkpoint"] == old.name
    assert f"checkpoint {new.name}: agents/0/" in capfd.readouterr().err
    with pytest.raises(UserError, match=f"{new.name} cannot be used: agents/0/"):
        polyplay.evaluate(run, episodes=1, checkpoint=new.name)
    assert polyplay.resume(run, steps=1200).exit_code == 0
    assert f"checkpoint {new.name}: agents/0/" in capfd.readouterr().err
    assert (run / "checkpoints" / f"unused-{new.name}").is_dir()
    assert newest(run) > new.name
    for path in checkpoint.everything(run):
        spoil(path, damage)
    for verb in (["resume", str(run), "--steps", "9000"], ["evaluate", str(run)]):
        capfd.readouterr()
        assert main.main(verb) == 2
        assert "no usable checkpoint" in capfd.readouterr().err.splitlines()[-1]


def spoil(path: Path, damage: str) -> None:
    """What a checkpoint holds, under a manifest that knows it so."""
    name = "policy" if damage == "weights" else "optimizer"
    arrays = checkpoint.OpenCheckpoint(path).arrays(f"agents/0/{name}")
    file = path / f"agents/0/{name}.safetensors"
    if damage == "weights":
        next(iter(arrays.values())).flat[0] = float("nan")
        checkpoint.write_arrays(file, arrays)
    elif damage == "optimizer":
        checkpoint.write_arrays(file, {})
    else:
        file.write_bytes(b"")
    manifest = checkpoint.manifest(path)
    manifest["files"][f"agents/0/{name}.safetensors"] = {
        "sha256": checkpoint._digest(file),
        "bytes": os.stat(file).st_size,
    }
    checkpoint.write_json(path / "manifest.json", manifest)


GIVEN_KW: dict[str, Any] = {"network": "mlp(8)", "lanes": 4, "serial": True, "steps": 100, "quiet": True}
GIVEN_KW["preset"] = "paper"  # auto would look at the environment, in a process
GIVEN_KW["tensorboard"] = False


class Walk(gymnasium.Env):
    """Ten steps; shows and takes so much."""

    def __init__(self, seen: int = 3, actions: int = 2, kind: str = "float32", box: bool = False):
        self.observation_space = gymnasium.spaces.Box(0, 1, (seen,), np.dtype(kind).type)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,)) if box else gymnasium.spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation_space.low, 1.0, self.t >= 10, False, {}


def train_walk(directory: Path, env: Any, **more: Any) -> Path:
    return polyplay.train("a2c", env=env, run=str(directory), **GIVEN_KW | more).directory


def steps(directory: Path) -> int:
    return checkpoint.steps_of(checkpoint.everything(directory)[-1]) // 100 * 100  # the end of a rollout


@pytest.mark.parametrize("env", [lambda: Walk(), partial(Walk, seen=4)], ids=["lambda", "partial"])
def test_an_object_is_found_in_the_process_that_gave_it_and_given_again_elsewhere(
    env: Any, tmp_path: Path, monkeypatch
):
    run = train_walk(tmp_path / "run", env)
    polyplay.resume(run, steps=200)
    assert steps(run) == 200
    monkeypatch.setattr(load, "_given", {})  # another process
    with pytest.raises(
        UserError, match=r"begun by a program with env=.*, which is not here: polyplay\.resume\('.*', env=…\)"
    ):
        polyplay.resume(run, steps=300)
    assert polyplay.load(run).observation_space.shape == env().observation_space.shape
    polyplay.resume(run, steps=300, env=env)
    assert steps(run) == 300
    assert json.loads((run / "config.json").read_text())["sources"]["env"] == "keyword"


def test_a_program_finds_what_it_defines_by_its_name(tmp_path: Path, monkeypatch):
    """The class of a script or a notebook, in another process of it."""
    here = type("Here", (Walk,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Here", here, raising=False)
    run = train_walk(tmp_path / "run", here)
    monkeypatch.setattr(load, "_given", {})
    polyplay.resume(run, steps=200)
    assert steps(run) == 200
    assert polyplay.evaluate(run, episodes=1)["episodic_return_mean"] == 10.0
    monkeypatch.delattr(sys.modules["__main__"], "Here")
    monkeypatch.setattr(load, "_given", {})
    with pytest.raises(UserError, match="begun by a program with env=__main__:Here, which is not here"):
        polyplay.evaluate(run, episodes=1)
    moved = type("Moved", (Walk,), {"__module__": "strange_module"})
    polyplay.resume(run, steps=300, env=moved)
    assert json.loads((run / "config.json").read_text())["config"]["env"] == "strange_module:Moved"
    polyplay.resume(run, steps=400)


def test_the_same_call_goes_on_with_its_own_objects(tmp_path: Path, monkeypatch):
    env, network = partial(Walk, 3), partial(MLP, hidden=(8,))
    for steps_ in (100, 200):
        monkeypatch.setattr(load, "_given", {})
        train_walk(tmp_path / "run", env, network=network, resume="auto", steps=steps_)
    assert steps(tmp_path / "run") == 200


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"seen": 5}, r"shows float32 \[5\], but .* was trained on float32 \[3\] \(spaces\.json\)"),
        ({"kind": "float64"}, r"shows float64 \[3\], but .* was trained on float32 \[3\]"),
        ({"actions": 4}, r"takes .*4.*, but .* was trained on .*2"),
        ({"box": True}, r"takes .*, but .* was trained on "),
    ],
)
def test_an_environment_that_has_changed_is_refused_before_anything_starts(
    now: dict[str, Any], says: str, tmp_path: Path
):
    run = train_walk(tmp_path / "run", Walk)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in run.iterdir() if p.name != ".lock")
    with pytest.raises(UserError, match=says):
        polyplay.resume(run, steps=200, env=partial(Walk, **now))
    assert sorted((p.name, p.stat().st_mtime_ns) for p in run.iterdir() if p.name != ".lock") == before


CATCH_KW: dict[str, Any] = {**KW, "replicas": 1, "unroll": 5, "report_every": 1e-4, "steps": 1_100, "quiet": True}


def games_told(run: Path) -> int:
    return sum(map(games_of, rows(run / "episodes.jsonl")))


class Copied:
    """Copies the run's directory some games after a checkpoint that it asks for, as a kill would leave it."""

    def __init__(self, to: Path) -> None:
        self.to, self.asked, self.saved = to, False, 0

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self.saved = self.saved or int(checkpoint.manifest(path)["counters"]["steps"])

    def on_report(self, run: Any, row: dict[str, Any]) -> None:
        if row["steps"] > 300 and not self.asked:
            self.asked = True
            (run.directory / SAVE).touch()
        if self.saved and row["steps"] > self.saved + 200 and not self.to.exists():
            shutil.copytree(run.directory, self.to, ignore=shutil.ignore_patterns(".lock"))


@pytest.mark.parametrize("bound", [20, pytest.param(0, marks=pytest.mark.long)])
def test_a_run_with_a_thinned_log_is_killed_and_goes_on(bound, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(session, "TICK", 1e-3)  # a look after every round
    whole = polyplay.train("a2c", run=tmp_path / "whole", **CATCH_KW)
    copied = Copied(tmp_path / "cut")
    thin = polyplay.train("a2c", run=tmp_path / "thin", callbacks=[copied], log_games=bound, **CATCH_KW)
    assert 300 < copied.saved < 900
    killed = len(rows(copied.to / "episodes.jsonl"))
    again = polyplay.resume(copied.to)
    assert rows(again.directory / "updates.jsonl") == rows(whole.directory / "updates.jsonl")
    played = whole.summary["episodes"]
    assert again.summary["episodes"] == thin.summary["episodes"] == played > 5 * bound
    for key in ("episodic_return_mean", "episodic_length_mean", "episodic_return_mean_best"):
        assert thin.summary[key] == whole.summary[key], "reports have every game"
    assert games_told(whole.directory) == len(rows(whole.directory / "episodes.jsonl")) == played
    for run in (thin, again):
        assert games_told(run.directory) == (played if bound else 0)
        assert len(rows(run.directory / "episodes.jsonl")) < 0.5 * played
    assert killed <= len(rows(again.directory / "episodes.jsonl"))
    counters = [checkpoint.manifest(checkpoint.everything(r.directory)[-1])["counters"] for r in (whole, thin, again)]
    assert counters[0]["games"] == counters[1]["games"] == counters[2]["games"]
