"""How runs end: by signals, a closed terminal, and kills of what they are made of."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from polyplay.cli import main
from polyplay.core import checkpoint
from tests import leftovers
from tests.reports import rows
from tests.runs.test_run import ENDLESS, end, family, gone, meanwhile, reported, start, stopped, training, wait_for


def _role(p: psutil.Process) -> str:
    """The first word of its title."""
    try:
        return Path(f"/proc/{p.pid}/cmdline").read_text().removeprefix("polyplay: ").split()[0]
    except (OSError, IndexError):
        return ""


def test_ctrl_c_saves_and_ends_and_two_at_once_are_one(tmp_path):
    run = tmp_path / "run"
    assert stopped(training("impala", run, *ENDLESS, "--trace"), run, 60, signal.SIGINT) == 130
    assert not family(also="act") + family(also="learn")
    assert len(checkpoint.everything(run)) == 1
    updates = rows(run / "metrics.jsonl")[-1]["updates"]
    again = start(["resume", str(run)])
    wait_for(lambda: rows(run / "metrics.jsonl")[-1]["updates"] > updates)
    workers = family(again.pid)
    os.kill(again.pid, signal.SIGINT)
    os.kill(again.pid, signal.SIGINT)
    assert end(again)[0] == 130
    assert len(checkpoint.everything(run)) == 2
    assert gone(workers)


@pytest.mark.parametrize("system", ["a2c", pytest.param("impala", marks=pytest.mark.long)])
def test_a_sigterm_for_the_whole_group_saves_too(system, tmp_path):
    """As timeout, systemd and Slurm send it: to the fork server and to every worker as well."""
    run = tmp_path / "run"
    process = start(training(system, run, *ENDLESS, "--env", "CartPole-v1"), start_new_session=True)
    wait_for(lambda: any(row["updates"] for row in rows(run / "metrics.jsonl")))
    workers = family(process.pid)
    os.killpg(process.pid, signal.SIGTERM)
    code, _, err = end(process)
    assert code == 143, err
    assert gone(workers)
    assert len(checkpoint.everything(run)) == 1


def test_a_closed_terminal_ends_a_run_that_saves(tmp_path):
    run = tmp_path / "run"
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, "-m", "polyplay", *training("a2c", run, *ENDLESS)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)

    def learnt() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 1 << 16)  # the panel goes on
        return run.exists() and any(row["updates"] for row in rows(run / "metrics.jsonl"))

    wait_for(learnt)
    everybody = family(process.pid)
    os.close(ours)
    assert process.wait(150) == 129
    assert len(checkpoint.everything(run)) == 1
    assert gone(everybody)


def test_nothing_is_left_once_a_run_has_returned_whose_learner_was_killed(tmp_path):
    run, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    more = {"env": {**os.environ, "TMPDIR": str(temporary)}}
    process = start(training("impala", run, *ENDLESS, "--env", "CartPole-v1"), **more)
    wait_for(lambda: any(row["updates"] for row in rows(run / "metrics.jsonl")))
    everybody = family(process.pid)
    next(p for p in everybody if _role(p) == "learn").kill()
    code, _, err = end(process)
    left = [p for p in everybody if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]  # init reaps them
    assert (code, left, list(temporary.iterdir())) == (1, [], [])
    assert err == (
        "polyplay: failed: worker learn 0 was killed by SIGKILL; the run cannot go on without it\n"
        f"`polyplay resume {run}` goes on from the last checkpoint\n"
    )


def test_a_killed_actor_is_replaced_and_a_killed_learner_ends_the_run(tmp_path, capfd):
    run, workers = tmp_path / "run", []

    def kill() -> None:
        wait_for(lambda: family(also="act"))[0].kill()  # either: they come up in any order
        wait_for(lambda: any(row["restarts"] >= 1 for row in rows(run / "metrics.jsonl")))
        steps = rows(run / "metrics.jsonl")[-1]["steps"]
        wait_for(lambda: rows(run / "metrics.jsonl")[-1]["steps"] > steps + 2000)
        workers.extend(wait_for(lambda: len(family(also="act")) == 2 and family(also="act") + family(also="learn")))
        family(also="learn")[0].kill()

    with meanwhile(kill):
        assert main.main(training("impala", run, *ENDLESS)) == 1
    out, err = capfd.readouterr()
    assert "worker learn 0 was killed by SIGKILL" in err
    assert re.search("worker act [01] was killed by SIGKILL; a new one takes its place", out + err)
    assert len(workers) == 3
    assert gone(workers)
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 1


def test_nothing_outlives_a_killed_main_process(tmp_path):
    """Neither workers nor, below them, environment processes."""
    run, shared = tmp_path / "run", leftovers.names()
    process = start(training("a2c", run, *ENDLESS, "--env", "CartPole-v1"))
    reported(run)
    workers = family(process.pid)
    assert len(workers) >= 4
    process.kill()
    process.communicate()
    assert gone(workers), [p.cmdline() for p in workers if p.is_running()]
    assert not leftovers.since(shared)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        text = (run / name).read_text()
        assert text == "" or text.endswith("\n")
