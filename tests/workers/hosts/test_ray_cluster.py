"""Real raylets: a cluster of three on this machine, started once for this file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import polyplay
from tests.workers.hosts.runs import (
    command,
    commands_with,
    events,
    learning,
    metrics,
    raylet,
    raylets,
    updates,
    wait_for,
)

pytestmark = pytest.mark.xdist_group("ray")
WAIT = 240.0  # seconds, at most, also on a machine that is busy with other things


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    """It has a token, as docs/guides/many_machines.md says."""
    with raylets(3) as found:
        yield found


def finished(run: Path, hosts: str, *words: str) -> str:
    main = command(run, "--hosts", hosts, *words)
    said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 0, said
    return said


def test_actors_on_two_raylets_learn_the_same_to_the_bit(hosts, tmp_path):
    exact = ("--steps", "4000", "--lag", "0", "--trace")
    said = finished(tmp_path / "there", hosts, *exact, "--verbose")
    assert "local-1 (2 cores): act 0; local-2 (2 cores): act 1" in " ".join(said.split()), said
    finished(tmp_path / "here", "none", *exact)
    assert len(updates(tmp_path / "here")) > 20
    assert updates(tmp_path / "there") == updates(tmp_path / "here")
    assert {row["machine"] for row in events(tmp_path / "there")} == {"local-1", "local-2", "local-3"}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_head_ends_the_run_with_a_checkpoint_and_a_reason(number, tmp_path):
    run = tmp_path / "run"
    with raylets(2) as hosts:
        main = command(run, "--hosts", hosts, "--steps", "100M")
        try:
            wait_for(lambda: learning(run), WAIT)
            mine = commands_with(f"RAY_AUTH_TOKEN={os.environ['RAY_AUTH_TOKEN']}")
            gcs = next(pid for pid, words in mine.items() if words.partition(" ")[0].endswith("/gcs_server"))
            os.kill(gcs, number)
            said = main.communicate(timeout=WAIT)[0].decode()
        finally:
            main.kill()
            with suppress(ProcessLookupError):
                os.kill(gcs, signal.SIGCONT)
    assert main.returncode == 1, said
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit_code"] == 1
    assert f"the head of the Ray cluster, {hosts[4:]}, has not answered for 4 s" in summary["reason"]
    assert summary["reason"] + ": saving a checkpoint" in " ".join(said.split())
    assert "Traceback" not in said
    last = metrics(run)[-1]
    manifest = json.loads((run / "checkpoints" / summary["checkpoint"] / "manifest.json").read_text())
    assert manifest["counters"]["updates"] == last["updates"]
    assert {f"workers/act-{i}.json" for i in range(2)} <= set(manifest["files"]), "the actors' parts are there"
    assert polyplay.resume(run, steps=last["steps"] + 2000, hosts="none").exit_code == 0


def test_another_token_is_one_line(hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    main = command(tmp_path / "run", "--hosts", hosts)
    said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 2
    assert re.fullmatch(r"polyplay: error: --hosts: no Ray cluster at .*; is RAY_AUTH_TOKEN the cluster's\?\n", said)


@pytest.mark.long
def test_a_killed_raylet_is_noticed_and_its_actors_begin_anew_elsewhere(hosts, tmp_path):
    """The last test: this raylet does not come back."""
    run = tmp_path / "run"
    main = command(run, "--hosts", hosts, "--steps", "200k")
    wait_for(lambda: learning(run))
    os.kill(raylet("local-2"), signal.SIGKILL)
    began = time.time()
    lost = wait_for(lambda: [row for row in events(run) if row["event"] == "lost"], 5.0)
    assert lost[0]["machine"] == "local-2"
    assert lost[0]["time"] - began < 2.5
    said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 0, said
    assert "a new worker replaces it" in said


@pytest.mark.long
def test_the_guides_commands_make_one_machine_two(tmp_path, monkeypatch):
    """As printed, but for what installs; both machines are this one, and the run is short."""
    own = tempfile.mkdtemp(dir="/tmp")  # of a cluster of its own; names of sockets are short
    monkeypatch.setenv("TMPDIR", own)
    text = (Path(__file__).parents[3] / "docs/guides/many_machines.md").read_text()
    install, token, head, join, train = (
        line.partition("#")[0].strip() for line in re.findall(r"^.+# \d\. .*$", text, re.MULTILINE)
    )
    assert install.startswith("pip install")
    first = f'$(grep -o -m1 "address=\'[0-9.]*" {tmp_path}/said | cut -d"\'" -f2)'
    bash = f"PATH={Path(sys.executable).parent}:$PATH; set -e; {token}; {head} > {tmp_path}/said; FIRST={first}; "
    bash += join.replace("FIRST", "$FIRST") + "; "
    short = f"--network mlp --atari a3c --steps 2000 --run {tmp_path}/run --no-tensorboard"
    try:
        done = subprocess.run(["bash", "-c", f"{bash}{train} {short}"], capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        assert [row["event"] for row in events(tmp_path / "run")] == ["opened"]
    finally:
        subprocess.run([Path(sys.executable).parent / "ray", "stop", "--force"], capture_output=True, check=False)
        shutil.rmtree(own, ignore_errors=True)
