"""A run that was killed at any moment goes on, as a scheduler starts it again: `train … --run DIR --resume auto`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.cli import main
from polyplay.cli.train import ResumeOptions
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.runs import load
from polyplay.runs.options import CHANGEABLE, RunOptions
from polyplay.runs.plan import Plan
from tests.reports import rows

KW: dict[str, Any] = {
    "env": "toy:catch",
    "network": "mlp",
    "lanes": 4,
    "seed": 3,
    "steps": 400,
    "serial": True,
    "trace": True,
    "tensorboard": False,
    "anneal": "constant",
}
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


def nothing(run: Path) -> None:
    shutil.rmtree(run)


def no_config(run: Path) -> None:
    nothing(run)
    run.mkdir()


def no_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def only_parts(run: Path) -> None:
    no_checkpoint(run)
    checkpoint.CheckpointPart(run, 0).json("agents/0/learner", {"version": 0})
    (run / "summary.json").unlink()


def only_config(run: Path) -> None:
    for path in run.iterdir():
        if path.name != "config.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("left", [nothing, no_config, only_config])
def test_from_whatever_is_left_a_run_begins_or_goes_on(left: Callable[[Path], None], whole: Path, tmp_path: Path):
    run = shutil.copytree(whole, tmp_path / "run")
    left(run)
    assert polyplay.train("a2c", run=str(run), resume="auto", **KW).exit_code == 0
    assert rows(run / "updates.jsonl") == rows(whole / "updates.jsonl")
    assert newest(run) == newest(whole)
    assert [p.name for p in checkpoint.everything(run)] == [newest(whole)]


def no_metrics(run: Path) -> None:
    no_checkpoint(run)
    (run / "metrics.jsonl").unlink()


def only_episodes(run: Path) -> None:
    no_metrics(run)
    (run / "summary.json").unlink()


def not_mounted(run: Path) -> None:
    no_checkpoint(run)
    (run / "checkpoints").mkdir()


@pytest.mark.parametrize("left", [no_checkpoint, only_parts, no_metrics, only_episodes, not_mounted])
def test_a_run_that_lost_its_checkpoints_is_refused_and_keeps_its_lines(left, whole, tmp_path, capfd):
    run = shutil.copytree(whole, tmp_path / "run")
    left(run)
    before = {p: p.read_bytes() for p in run.rglob("*.json*")}
    for verb in (["resume", str(run), "--steps", "900"], [*WORDS.split(), "--resume", "auto", "--run", str(run)]):
        capfd.readouterr()
        assert main.main(verb) == 2
        (line,) = capfd.readouterr().err.splitlines()
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
