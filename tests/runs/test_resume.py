"""Runs that were stopped or killed go on: the same losses to the bit, or one line about what is lost."""

from __future__ import annotations

import json
import random
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

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
from polyplay.nets.torsos import MLP
from polyplay.runs import load, session
from polyplay.runs import run as run_module
from polyplay.runs.directory import SAVE
from polyplay.runs.load import crew_of, sizes_changed
from polyplay.runs.options import CHANGEABLE, RunOptions, adjust, resolve
from polyplay.runs.plan import Plan
from tests.envs.drawn import Drawn
from tests.reports import rows
from tests.runs.test_run import start, wait_for
from tests.verbs import refused

BASE = {"trace": True, "seed": 5, "anneal": "constant", "network": "mlp", "tensorboard": False, "report_every": 0.5}
CARTPOLE = {**BASE, "env": "CartPole-v1", "lanes": 4, "unroll": 5}


def train(system: str, directory: Path, **kw: Any) -> Path:
    return polyplay.train(system, run=str(directory), **kw).directory


def newest(run: Path) -> Path:
    return checkpoint.everything(run)[-1]


def counters(run: Path) -> dict[str, Any]:
    """Of its newest checkpoint."""
    return checkpoint.manifest(newest(run))["counters"]


def config_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


def games(run: Path) -> list:
    return sorted((g["lane"], g["episodic_return"]) for g in rows(run / "episodes.jsonl"))


class Shared(Drawn):
    """Draws from the generators that all of a process share, as much older code does; its own state can be saved."""

    def __init__(self):
        super().__init__(spaces.Box(-10.0, 10.0, (3,)), spaces.Discrete(2))

    def see(self):
        drawn = random.random(), np.random.normal(), float(torch.rand(()))
        return np.clip(np.array(drawn, np.float32), -10.0, 10.0)

    def reset(self, **given):
        super().reset(**given)
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        return self.see(), random.gauss(0.0, 1.0) * action, self.steps >= 3 and np.random.random() < 0.2, False, {}

    def get_state(self):
        return {"steps": np.array(self.steps)}

    def set_state(self, state):
        self.steps = int(state["steps"])


LONG, DRAWS = pytest.mark.long, {"env": Shared, "serial": True, "preset": "paper"}
PONG = {"env": "ALE/Pong-v5", "atari": "auto:plain", "network": "a3c", "core": "gru", "core_size": 16}
PONG |= {"unroll": 4, "replicas": 1, "on": "thread", "env_workers": 1}


@pytest.mark.parametrize(
    ("system", "kw"),
    [
        pytest.param("a2c", {"replicas": 1, "serial": True, "core": "lstm", "core_size": 16}, id="a2c, lstm"),
        pytest.param("a2c", {"replicas": 2, "groups": 2, "on": "thread"}, id="a2c, 2 replicas, 2 groups", marks=LONG),
        pytest.param("impala", {"actors": 2, "batch": 4, "lag": 0, "serial": True}, id="impala at lag 0"),
        pytest.param("impala", {"actors": 2, "batch": 8, "lag": 0, "core": "gru"}, id="impala, processes", marks=LONG),
        pytest.param("a2c", PONG, id="a2c, environment processes", marks=LONG),
        pytest.param("a2c", {"replicas": 1, **DRAWS}, id="a2c, global generators"),
        pytest.param("ppo", {"replicas": 1, "unroll": 10, "minibatches": 2, "epochs": 2, **DRAWS}, marks=LONG),
        pytest.param("appo", {"actors": 3, "batch": 4, **DRAWS}, marks=LONG),
    ],
)
def test_a_run_in_two_parts_is_the_same_to_the_bit(system, kw, tmp_path, capfd):
    given = {**CARTPOLE, **kw}
    whole = train(system, tmp_path / "whole", steps=400, **given)
    cut = train(system, tmp_path / "cut", steps=200, **given)
    assert 2 < len(rows(cut / "updates.jsonl")) < len(rows(whole / "updates.jsonl")) - 2
    capfd.readouterr()
    polyplay.resume(str(cut), steps=400)
    assert "lanes restart" not in capfd.readouterr().err
    assert rows(cut / "updates.jsonl") == rows(whole / "updates.jsonl")
    assert games(cut) == games(whole)
    assert len(games(cut)) > 3 or kw is PONG
    last = [rows(run / "metrics.jsonl")[-1] for run in (cut, whole)]
    assert last[0]["episodes"] == len(games(cut))
    assert last[0]["steps"] == last[1]["steps"]


def test_nothing_in_flight_is_lost_where_acting_runs_free(tmp_path):
    kw = {**CARTPOLE, "env": "toy:catch", "actors": 2, "batch": 4, "slots": 3, "on": "thread"}
    cut = train("impala", tmp_path / "cut", steps=600, **kw)
    assert json.loads((newest(cut) / "workers/stream-0.json").read_text())["lost"] == []
    parts, saved = actor_checkpoint.saved_counters(newest(cut)), counters(cut)
    assert [part["why"] for part in parts] == ["", ""]
    assert saved["steps"] == sum(part["steps"] for part in parts)
    assert saved["games"] == {"0+4": parts[0]["episodes"], "4+4": parts[1]["episodes"]}
    polyplay.resume(str(cut), steps=1200)
    later, updates = json.loads((newest(cut) / "workers/stream-0.json").read_text()), rows(cut / "updates.jsonl")
    assert sum(later["taken"].values()) == len(updates)
    assert [r["update"] for r in updates] == list(range(1, len(updates) + 1))


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
    run = train(system, tmp_path / "run", steps=600, **kw, **before)
    saved, games_then = counters(run), len(games(run))
    capfd.readouterr()
    polyplay.resume(str(run), steps=1200, **now)
    said, warned = capfd.readouterr()
    changed = ", ".join(f"{name} {before[name]} → {now[name]}" for name in sorted(now))
    assert f"{changed}: not bitwise, all lanes restart" in " ".join(said.split())
    assert "all lanes restart, from seed" in warned
    assert (counters(run)["steps"] >= 1200, counters(run)["updates"] > saved["updates"]) == (True, True)
    updates = [row["update"] for row in rows(run / "updates.jsonl")]
    assert updates == sorted(set(updates)), "it goes on where it was"
    assert len(games(run)) > games_then
    assert config_of(run)["config"].items() >= now.items()
    polyplay.resume(str(run), steps=1500)
    assert "their number differs" not in capfd.readouterr().err


@pytest.mark.parametrize("left", ["unlearnt", "damaged"])
def test_a_checkpoint_of_before_another_number_of_lanes_is_gone_on_from(left, whole, tmp_path, capfd, monkeypatch):
    """Its lanes are as many as it says, not as the run had since."""
    run = shutil.copytree(whole, tmp_path / "run")
    with monkeypatch.context() as patch:
        if left == "unlearnt":  # a kill before its first checkpoint
            patch.setattr(run_module, "_go", lambda setup: run_module.RunResult(setup.directory))
        polyplay.resume(run, steps=800, lanes=8)
    if left == "damaged":
        (newest(run) / "manifest.json").write_text("damaged")
    capfd.readouterr()
    for steps, anew in ((1200, 1), (1600, 0)):
        polyplay.resume(run, steps=steps)
        assert capfd.readouterr().err.count("their number differs from the checkpoint's") == anew
        assert counters(run)["steps"] >= steps


@pytest.mark.parametrize("name", ["lanes", "actors"])
def test_where_a_replay_has_the_rows_of_lanes_their_number_stays(name):
    kw = {"env": "toy:catch", "network": "mlp", "actors": 1, "lanes": 2, "capacity": 2000, "learning_starts": 50}
    page, (before, options, _) = systems.load("apex"), resolve(systems.load("apex"), serial=True, **kw)
    now, _ = adjust(page, before, {name: 4})
    crew = crew_of(options)
    page.build(now, crew)
    with pytest.raises(UserError, match=f"--{name}: 4 given, but the replay holds the rows of each lane"):
        sizes_changed({"resumed": []}, before, now, crew, 0)
    assert sizes_changed({"resumed": []}, before, before, crew, 0) == ""


KW: dict[str, Any] = {**BASE, "env": "toy:catch", "lanes": 4, "seed": 3, "steps": 400, "serial": True}
KW["report_every"] = 5.0
WORDS = "train a2c --env toy:catch --network mlp --lanes 4 --seed 3 --serial --trace --no-tensorboard --anneal constant"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train("a2c", tmp_path_factory.mktemp("whole") / "run", **KW)


def test_a_run_that_is_killed_before_its_first_update_goes_on(whole: Path, tmp_path: Path):
    run = tmp_path / "run"
    process = start([*WORDS.split(), "--steps", "400M", "--resume", "auto", "--run", str(run)])
    found = wait_for(lambda: checkpoint.everything(run))
    process.kill()
    process.communicate()
    assert [path.name for path in found] == ["000000000000-steps-0"]
    assert counters(run)["steps"] == 0
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
    assert [p.name for p in checkpoint.everything(run)] == [newest(whole).name]


LOST = ["checkpoints", "checkpoints/* summary.json parts", "checkpoints metrics.jsonl", "checkpoints/*"]


@pytest.mark.parametrize("gone", [*LOST, "checkpoints metrics.jsonl summary.json"])
def test_a_run_that_lost_its_checkpoints_is_refused_and_keeps_its_lines(gone, whole, tmp_path, capfd):
    run = shutil.copytree(whole, tmp_path / "run")
    remove(run, gone)
    if gone.endswith("parts"):
        checkpoint.CheckpointPart(run, 0).json("agents/0/learner", {"version": 0})
    before = {p: p.read_bytes() for p in run.rglob("*.json*")}
    lost = f"{run} has no checkpoint, but its files record updates: put back {run / 'checkpoints'}; to start again"
    for verb in (["resume", str(run), "--steps", "900"], [*WORDS.split(), "--resume", "auto", "--run", str(run)]):
        assert refused(capfd, *verb).startswith(f"polyplay: error: RUN: {lost}, name another --run")
    assert {p: p.read_bytes() for p in run.rglob("*.json*")} == before


@pytest.mark.parametrize("agents", [1, 3])
def test_what_was_acted_and_not_learnt_from_is_left_to_do(agents: int, tmp_path: Path):
    """Of several agents the sum counts."""
    directory = tmp_path / "run"
    for learnt, done in ((999.0, False), (1000.0, True)):
        part = checkpoint.CheckpointPart(directory, 7)
        for agent in range(agents):
            part.arrays(checkpoint.policy_name(agent), {})
            part.json(f"agents/{agent}/learner", {"learnt": learnt / agents})
        told = {"steps": 1020, "frames": 4080, "updates": 7}
        found = checkpoint.complete(directory, 7, told)
        checkpoint.write_json(directory / "summary.json", {"exit_code": 0, "reason": "done"})
        plan = Plan({}, 0, 0, 4000, 0.0)
        why = load.finished(directory, found, plan, told, RunOptions(), {})
        assert bool(why) == done
        assert not done or "4,080 of 4,000 frames are done" in why


def test_what_is_given_wins_where_resume_may_change_it_and_has_to_agree_elsewhere(whole: Path, tmp_path: Path):
    run = shutil.copytree(whole, tmp_path / "run")
    kw = {**KW, "run": str(run), "resume": "auto"}
    polyplay.train("a2c", **{**kw, "steps": 600})
    assert (counters(run)["steps"] >= 600, config_of(run)["options"]["steps"]) == (True, 600)
    for steps, given in ((800, {"learning_rate": 5e-5}), (1000, {})):
        polyplay.resume(run, steps=steps, **given)
        assert rows(run / "metrics.jsonl")[-1]["learning_rate"] == pytest.approx(5e-5)
    config = config_of(run)
    assert (config["config"]["learning_rate"], config["sources"]["learning_rate"]) == (5e-5, "resume")
    with pytest.raises(UserError, match="unroll: cannot change when a run of a2c resumes; these can: learning_rate"):
        polyplay.resume(run, unroll=8)
    toy: dict[str, Any] = {"env": "toy:catch", "resume": "auto"}
    for system, other, says in (
        ("a2c", {**kw, "unroll": 8}, r"--unroll: 8 given, but .* was started with"),
        ("a2c", {**kw, "seed": 4}, "--seed: 4 given"),
        ("impala", {**toy, "run": str(run)}, "SYSTEM: impala given"),
        ("a2c", toy, "--resume auto: needs"),
    ):
        with pytest.raises(UserError, match=says):
            polyplay.train(system, **other)


def test_the_very_command_that_began_a_run_goes_on_with_it(tmp_path: Path, capfd: pytest.CaptureFixture):
    words = "train A2C --env toy:catch --network mlp --lanes 8 --on thread --no-tensorboard --replicas 0 --resume auto"
    for steps in ("100", "1000"):
        assert main.main([*words.split(), "--run", str(tmp_path / "run"), "--steps", steps]) == 0
        config = config_of(tmp_path / "run")
        assert (config["sources"]["replicas"], config["config"]["replicas"] > 0) == ("chosen", True)
    same = {"env": "toy:catch", "replicas": 0, "run": str(tmp_path / "run"), "resume": "auto", "steps": 2000}
    assert polyplay.train("A2C", **same).summary["steps"] >= 2000
    assert "given, but" not in capfd.readouterr().err


def test_what_may_change_is_what_resume_takes():
    own = {"dry_run", "quiet", "verbose", "trust"}  # none is of the run
    assert set(CHANGEABLE) == set(ResumeOptions.__dataclass_fields__) - own


def test_a_finished_run_says_so_and_what_lengthens_it(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    run, timed = shutil.copytree(whole, tmp_path / "run"), tmp_path / "timed"
    before = (run / "config.json").read_bytes()
    assert main.main([*WORDS.split(), "--minutes", "0.0001", "--steps", "10M", "--run", str(timed)]) == 0
    for words, says in (
        ((run,), f"{run} is finished: 416 of 400 frames are done; `polyplay resume {run} --frames N"),
        ((run, "--steps", "300"), f"{run} is finished: 416 of 300 frames are done"),
        ((timed,), "0.0001 minutes are over; `polyplay resume"),
    ):
        capfd.readouterr()
        assert main.main(["resume", *map(str, words)]) == 0
        assert says in capfd.readouterr().out
    assert (run / "config.json").read_bytes() == before
    assert polyplay.train("a2c", run=str(run), resume="auto", **KW).exit_code == 0
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
    assert newest(run).name > new.name
    for path in checkpoint.everything(run):
        spoil(path, damage)
    for verb in (["resume", str(run), "--steps", "9000"], ["evaluate", str(run)]):
        capfd.readouterr()
        assert main.main(verb) == 2
        assert "no usable checkpoint" in capfd.readouterr().err.splitlines()[-1]


def spoil(path: Path, damage: str) -> None:
    """What a checkpoint holds, under a manifest that knows it so."""
    name = f"agents/0/{'policy' if damage == 'weights' else 'optimizer'}"
    arrays, file = checkpoint.OpenCheckpoint(path).arrays(name), path / f"{name}.safetensors"
    if damage == "weights":
        next(iter(arrays.values())).flat[0] = float("nan")
    checkpoint.write_arrays(file, arrays if damage == "weights" else {})
    if damage == "parts":
        file.write_bytes(b"")
    manifest = checkpoint.manifest(path)
    manifest["files"][f"{name}.safetensors"] = checkpoint.describe_file(file)
    checkpoint.write_json(path / "manifest.json", manifest)


GIVEN_KW: dict[str, Any] = {"network": "mlp(8)", "lanes": 4, "serial": True, "steps": 100, "quiet": True}
GIVEN_KW |= {"preset": "paper", "tensorboard": False}  # auto would look at the environment, in a process


class Shows(Drawn):
    """Shows and takes so much."""

    def __init__(self, seen: int = 3, kind: str = "float32", action: spaces.Space | None = None):
        super().__init__(spaces.Box(0, 1, (seen,), np.dtype(kind).type), action or spaces.Discrete(2))


def train_shows(directory: Path, env: Any, **more: Any) -> Path:
    return train("a2c", directory, env=env, **GIVEN_KW | more)


def steps(directory: Path) -> int:
    return checkpoint.steps_of(newest(directory)) // 100 * 100  # the end of a rollout


@pytest.mark.parametrize("env", [lambda: Shows(), partial(Shows, seen=4)], ids=["lambda", "partial"])
def test_an_object_is_found_in_the_process_that_gave_it_and_given_again_elsewhere(env, tmp_path, monkeypatch, capfd):
    run, network = train_shows(tmp_path / "run", env), partial(MLP, hidden=(8,))
    polyplay.resume(run, steps=200)
    assert "4 lanes restart, from seed 1000003000: " in capfd.readouterr().err, "it cannot save its state"
    monkeypatch.setattr(load, "_given", {})  # another process
    with pytest.raises(UserError, match=r"env=.*, which is not here: pass it to polyplay\.resume\('.*', env=…\)"):
        polyplay.resume(run, steps=300)
    assert polyplay.load(run).observation_space.shape == env().observation_space.shape
    polyplay.resume(run, steps=300, env=env)
    assert (steps(run), config_of(run)["sources"]["env"]) == (300, "keyword")
    for most in (100, 200):
        monkeypatch.setattr(load, "_given", {})
        train_shows(tmp_path / "auto", env, network=network, resume="auto", steps=most)
    assert steps(tmp_path / "auto") == 200


def test_a_program_finds_what_it_defines_by_its_name(tmp_path: Path, monkeypatch):
    """The class of a script or a notebook, in another process of it."""
    here = type("Here", (Shows,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Here", here, raising=False)
    run = train_shows(tmp_path / "run", here)
    monkeypatch.setattr(load, "_given", {})
    polyplay.resume(run, steps=200)
    assert (steps(run), polyplay.evaluate(run, episodes=1)["episodes"]) == (200, 1)
    monkeypatch.delattr(sys.modules["__main__"], "Here")
    monkeypatch.setattr(load, "_given", {})
    with pytest.raises(UserError, match="started by a program with env=__main__:Here, which is not here"):
        polyplay.evaluate(run, episodes=1)
    polyplay.resume(run, steps=300, env=type("Moved", (Shows,), {"__module__": "strange_module"}))
    assert config_of(run)["config"]["env"] == "strange_module:Moved"
    polyplay.resume(run, steps=400)


def test_an_environment_that_has_changed_is_refused_before_anything_starts(tmp_path: Path):
    def files() -> list[tuple[str, int]]:
        return sorted((p.name, p.stat().st_mtime_ns) for p in run.iterdir() if p.name != ".lock")

    run = train_shows(tmp_path / "run", Shows)
    before = files()
    for now, says in (
        ({"seen": 5}, r"shows float32 \[5\], but .* was trained on float32 \[3\] \(spaces\.json\)"),
        ({"kind": "float64"}, r"shows float64 \[3\], but .* was trained on float32 \[3\]"),
        ({"action": spaces.Discrete(4)}, r"takes .*4.*, but .* was trained on .*2"),
        ({"action": spaces.Box(-1, 1, (2,))}, r"takes .*, but .* was trained on "),
    ):
        with pytest.raises(UserError, match=says):
            polyplay.resume(run, steps=200, env=partial(Shows, **now))
    assert files() == before


CATCH_KW: dict[str, Any] = {**KW, "replicas": 1, "unroll": 5, "report_every": 1e-4, "steps": 1_100, "quiet": True}


class Copied(polyplay.Callback):
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


def test_a_run_without_a_log_of_games_is_killed_and_goes_on(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(session, "TICK", 1e-3)  # a look after every round
    whole = polyplay.train("a2c", run=tmp_path / "whole", **CATCH_KW)
    copied = Copied(tmp_path / "cut")
    short = polyplay.train("a2c", run=tmp_path / "short", callbacks=[copied], log_episodes=False, **CATCH_KW)
    assert 300 < copied.saved < 900
    again = polyplay.resume(copied.to)
    assert rows(again.directory / "updates.jsonl") == rows(whole.directory / "updates.jsonl")
    played = whole.summary["episodes"]
    assert again.summary["episodes"] == short.summary["episodes"] == played > 100
    for key in ("episodic_return_mean", "episodic_length_mean", "episodic_return_mean_best"):
        assert short.summary[key] == whole.summary[key], "reports have every game"
    assert [len(rows(run.directory / "episodes.jsonl")) for run in (whole, short, again)] == [played, 0, 0]
    games = [counters(run.directory)["games"] for run in (whole, short, again)]
    assert games[0] == games[1] == games[2]
