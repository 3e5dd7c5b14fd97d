"""Whole runs as a person starts them: what they leave behind, how they end, how they go on. Each is a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from reports import KEYS, rows

import polyplay
from polyplay import checkpoint, config, record, systems
from polyplay.errors import UserError
from polyplay.run import read

TOY = [
    "--env",
    "toy:catch",
    "--optimizer",
    "adam",
    "--learning-rate",
    "2e-3",
    "--network",
    "mlp",
    "--report-every",
    "0.2",
]
SMALL = {"a2c": ["--lanes", "8"], "impala": ["--lanes", "4", "--batch", "8", "--unroll", "5"]}


def start(*words: str | Path, **more) -> subprocess.Popen:
    command = [sys.executable, "-m", "polyplay", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def train(system: str, run: Path, *words: str | Path) -> subprocess.Popen:
    return start("train", system, *TOY, *SMALL[system], "--run", run, *words)


def end(process: subprocess.Popen, seconds: float = 150.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def wait_for(condition, seconds: float = 150.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come to that in time")


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
            return True
        time.sleep(0.02)
    return False


def worker(process: subprocess.Popen, run: Path, role: str) -> psutil.Process:
    """The process of a role's worker 0: the meter does not tell pids, so workers are told apart by what they do."""
    wait_for(lambda: len(rows(run / "metrics.jsonl")) > 1)
    found = [p for p in family(process) if p.threads and _role(p) == role]
    assert found, [(_role(p), p.cmdline()) for p in family(process)]
    return found[0]


def _role(p: psutil.Process) -> str:
    try:
        return Path(f"/proc/{p.pid}/comm").read_text().strip().removeprefix("pp-")
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------- what is left


@pytest.mark.parametrize("system", ["a2c", "impala"])
def test_a_run_leaves_what_was_promised_and_can_be_evaluated(system, tmp_path):
    run = tmp_path / "run"
    code, out, err = end(train(system, run, "--steps", "12000", "--seed", "3"))
    assert code == 0, err
    assert "\x1b" not in out  # not a terminal: no escape codes
    reports = rows(run / "metrics.jsonl")
    assert all(set(KEYS) <= set(r) for r in reports)
    assert reports[-1]["steps"] >= 12000
    assert all(a["steps"] <= b["steps"] for a, b in pairwise(reports))
    if system == "a2c":
        assert {r["lag_max"] for r in reports} <= {0, None}  # None: nothing was learnt since the report before
        assert any(r["lag_max"] == 0 for r in reports)
    config = json.loads((run / "config.json").read_text())
    assert config["seed"] == 3
    assert config["sources"]["lanes"] == "command line"
    assert config["sources"]["gamma"] == "default"
    assert json.loads((run / "summary.json").read_text())["reason"] == "done"
    games = rows(run / "episodes.jsonl")
    assert len(games) == reports[-1]["episodes"]
    assert {g["episodic_return"] for g in games} <= {-1.0, 1.0}
    assert len(checkpoint.everything(run)) == 1
    assert list((run / "tensorboard").iterdir())
    code, out, err = end(start("evaluate", run, "--episodes", "12"))
    assert code == 0, err
    result = json.loads(next(run.glob("evaluation-*.json")).read_text())
    assert result["episodes"] == len(result["returns"]) == 12


def test_python_does_the_same(tmp_path):
    run = polyplay.train(
        "a2c",
        env="toy:catch",
        steps=4000,
        serial=True,
        run=str(tmp_path / "x"),
        learning_rate=2e-3,
        report_every=0.5,
    )
    assert run.exit_code == 0
    assert run.summary["steps"] >= 4000
    assert run.evaluate(episodes=5)["episodes"] == 5
    with pytest.raises(UserError, match="holds a run already"):
        polyplay.train("a2c", env="toy:catch", run=str(tmp_path / "x"))
    with pytest.raises(UserError, match="did you mean learning_rate"):
        polyplay.train("a2c", learning_rat=1.0)


# ---------------------------------------------------------------------------------------------- going on exactly


@pytest.mark.parametrize(
    "how",
    [
        ["--serial"],
        ["--on", "thread", "--replicas", "2", "--groups", "2"],
        ["--env", "CartPole-v1", "--replicas", "2"],
        ["--env", "CartPole-v1", "--replicas", "1", "--core", "gru", "--core-size", "16"],
    ],
    ids=["serial", "threads", "CartPole, replicas", "CartPole, gru"],
)
def test_sigterm_and_resume_give_the_uninterrupted_losses_to_the_bit(how, tmp_path):
    limit = ["--steps", "16000", "--trace", "--seed", "11", *how]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert end(train("a2c", whole, *limit))[0] == 0
    process = train("a2c", cut, *limit)
    wait_for(lambda: len(rows(cut / "updates.jsonl")) > 60)
    process.send_signal(signal.SIGTERM)
    code, _, err = end(process)
    assert code == 143
    before = len(rows(cut / "updates.jsonl"))
    assert before < len(rows(whole / "updates.jsonl")), "it was over before the signal came"
    assert json.loads((cut / "summary.json").read_text())["exit_code"] == 143
    code, _, err = end(start("resume", cut))
    assert code == 0, err
    assert rows(cut / "updates.jsonl") == rows(whole / "updates.jsonl")
    steps = [r["steps"] for r in rows(cut / "metrics.jsonl")]
    assert steps == sorted(steps)
    assert rows(cut / "metrics.jsonl")[-1]["steps"] == rows(whole / "metrics.jsonl")[-1]["steps"]


def test_impala_goes_on_from_its_counters(tmp_path):
    run = tmp_path / "run"
    assert end(train("impala", run, "--steps", "8000"))[0] == 0
    first = json.loads((run / "summary.json").read_text())
    code, _, err = end(start("resume", run, "--steps", "16000"))
    assert code == 0, err
    second = json.loads((run / "summary.json").read_text())
    assert second["updates"] > first["updates"]
    assert second["steps"] >= 16000
    assert second["episodes"] > first["episodes"]


def test_a_run_that_is_older_than_an_option_has_its_default(tmp_path):
    options = config.to_json(config.RunOptions(keep=7))
    del options["step_timeout"]
    record.write_config(tmp_path, "a2c", config.to_json(systems.load("a2c").Config()), options, {}, {})
    assert read(tmp_path)[2] == config.RunOptions(keep=7)


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    run = tmp_path / "run"
    end(train("a2c", run, "--steps", "30000", "--checkpoint-every", "0.4", "--serial"))
    saved = checkpoint.everything(run)
    assert len(saved) > 1
    file = saved[-1] / "agents/0/policy.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    code, _, err = end(start("resume", run, "--steps", "34000"))
    assert code == 0, err
    assert f"checkpoint {saved[-1].name}: agents/0/policy.safetensors is damaged" in err
    assert "going back to the one before" in err


# ------------------------------------------------------------------------------------------------------- ending


def test_ctrl_c_saves_and_ends_and_twice_drops_everything(tmp_path):
    run = tmp_path / "run"
    process = train("impala", run, "--steps", "100000000")
    wait_for(lambda: len(rows(run / "metrics.jsonl")) > 1)
    workers = family(process)
    process.send_signal(signal.SIGINT)
    code, _, _ = end(process)
    assert code == 130
    assert gone(workers)
    assert len(checkpoint.everything(run)) == 1
    again = start("resume", run)
    done = len(rows(run / "metrics.jsonl"))
    wait_for(lambda: len(rows(run / "metrics.jsonl")) > done + 1)
    workers = family(again)
    os.kill(again.pid, signal.SIGINT)
    os.kill(again.pid, signal.SIGINT)
    assert end(again)[0] == 130
    assert gone(workers)


@pytest.mark.parametrize("system", ["a2c", "impala"])
def test_a_sigterm_for_the_whole_group_saves_too(system, tmp_path):
    """As timeout, systemd and Slurm send it: to the fork server and to every worker as well."""
    run = tmp_path / "run"
    process = start(
        "train",
        system,
        *TOY,
        *SMALL[system],
        "--run",
        run,
        "--steps",
        "100000000",
        "--env",
        "CartPole-v1",
        start_new_session=True,
    )
    wait_for(lambda: len(rows(run / "metrics.jsonl")) > 1)
    workers = family(process)
    os.killpg(process.pid, signal.SIGTERM)
    code, _, err = end(process)
    assert code == 143, err
    assert gone(workers)
    assert len(checkpoint.everything(run)) == 1


def test_a_killed_actor_is_replaced_and_a_killed_learner_ends_the_run(tmp_path):
    run = tmp_path / "run"
    process = train("impala", run, "--steps", "100000000")
    worker(process, run, "act").kill()
    wait_for(lambda: rows(run / "metrics.jsonl")[-1]["restarts"] >= 1)
    steps = rows(run / "metrics.jsonl")[-1]["steps"]
    wait_for(lambda: rows(run / "metrics.jsonl")[-1]["steps"] > steps + 2000)
    workers = family(process)
    worker(process, run, "learn").kill()
    code, out, err = end(process)
    assert code == 1
    assert "worker learn 0 was killed by SIGKILL" in err
    assert "worker act 0 was killed by SIGKILL; a new one takes its place" in out + err
    assert gone(workers)
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 1


@pytest.mark.parametrize("env", ["toy:catch", "CartPole-v1"])
def test_nothing_outlives_a_killed_main_process(env, tmp_path):
    run, shared = tmp_path / "run", set(os.listdir("/dev/shm"))
    process = train("a2c", run, "--steps", "100000000", "--env", env)
    wait_for(lambda: len(rows(run / "metrics.jsonl")) > 1)
    workers = family(process)
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    assert gone(workers), [p.cmdline() for p in workers if p.is_running()]
    assert set(os.listdir("/dev/shm")) <= shared
    for name in ("metrics.jsonl", "episodes.jsonl"):
        text = (run / name).read_text()
        assert text == "" or text.endswith("\n")


FULL = """
import errno, os, sys
real = os.fsync
def full(fd):
    if "optimizer" in os.readlink(f"/proc/self/fd/{fd}"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real(fd)
os.fsync = full
from polyplay.cli import main
sys.exit(main())
"""


def test_a_full_disk_during_a_checkpoint_is_said_and_leaves_nothing_half_written(tmp_path):
    """The disk fills up at the second file of a checkpoint (as the system reports it when data is written out)."""
    run = tmp_path / "run"
    words = ["train", "a2c", *TOY, *SMALL["a2c"], "--run", str(run), "--steps", "6000", "--serial"]
    process = subprocess.Popen(
        [sys.executable, "-c", FULL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    code, out, err = end(process)
    assert code == 1, err
    assert "No space left on device; the checkpoint before it stands" in out + err
    assert checkpoint.everything(run) == []
    assert not [p for p in (run / "checkpoints").rglob("*") if p.is_file()]
    assert "not saved" in json.loads((run / "summary.json").read_text())["reason"]


# ---------------------------------------------------------------------------------------------- users' mistakes

LINES = [
    (["train", "a2c", "--env", "ALE/Pogn-v5"], "Pong"),
    (["train", "a2c", "--env", "CartPol-v1"], "CartPole"),
    (["train", "a2c", "--lanse", "4"], "--lanes"),
    (["train", "a2c", "--lanes", "four"], "--lanes"),
    (["train", "a2c", "--lanes", "15", "--replicas", "2"], "--lanes 15"),
    (["train", "a2x"], "a2c"),
    (["train", "gorila"], "not in this version"),
    (["train", "impala", "--batch", "33"], "--batch 33"),
    (["train", "a2c", "--env", "toy:catch", "--network", "natur"], "nature"),
    (["train", "impala", "--lag", "0", "--actors", "1", "--lanes", "4", "--batch", "8"], "--lag 0"),
    (["evaluate", "no-such-run"], "no-such-run"),
    (["trian", "a2c"], "train"),
]


@pytest.mark.parametrize(("words", "hint"), LINES, ids=[" ".join(w) for w, _ in LINES])
def test_a_users_mistake_is_one_clear_line_and_leaves_nothing(words, hint, tmp_path):
    code, out, err = end(start(*words, cwd=tmp_path))
    assert code == 2, out + err
    assert err.startswith("polyplay: error: ")
    assert err.count("\n") == 1
    assert hint in err
    assert list(tmp_path.iterdir()) == []


BROKEN = """
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.steps += 1
        return WHAT
def make():
    return Env()
"""


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("(np.zeros(3, np.float32), 1 / (self.steps < 30), False, False, {})", 1, "ZeroDivisionError"),
        ("(np.zeros(4, np.float32), 0.0, False, False, {})", 1, "given float32 [4]"),
        ("(np.full(3, np.nan, np.float32), 0.0, False, False, {})", 1, "(rule finite;"),
    ],
)
def test_an_environment_that_breaks_its_word_is_named(what, code, said, tmp_path):
    (tmp_path / "broken_env.py").write_text(BROKEN.replace("WHAT", what))
    run = tmp_path / "run"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [
        "train",
        "a2c",
        "--env",
        "broken_env:make",
        "--lanes",
        "4",
        "--replicas",
        "1",
        "--steps",
        "100000",
        "--run",
        run,
    ]
    process = start(*words, env=environ)
    status, out, err = end(process)
    assert status == code, out + err
    assert err.startswith("polyplay: failed: ")
    assert said in err
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 1
