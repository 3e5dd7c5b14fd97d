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
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import polyplay
from tests.workers.hosts.runs import command, events, learning, metrics, updates, wait_for

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]
WAIT = 240.0  # seconds, at most, also on a machine that is busy with other things
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
few = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={**few, "node_name": "first"})
for i in (2, 3):
    cluster.add_node(num_cpus=2, object_store_memory=80 * 2**20, node_name=f"machine-{i}")
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def cluster():
    """Its address. It has a token, as docs/guides/many_machines.md says."""
    with started() as address:
        yield address


@contextmanager
def started() -> Iterator[str]:
    """A cluster; its address."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", os.urandom(32).hex())
        patch.setenv("RAY_worker_niceness", "0")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        runs = subprocess.Popen([sys.executable, "-c", CLUSTER], **pipes)
        address = runs.stdout.readline().decode().strip()
        assert address
        try:
            yield address
        finally:
            runs.stdin.close()
            runs.wait(WAIT)


def ours(begin: str) -> list[int]:
    """Processes of this cluster whose command begins so."""
    token, found = f"RAY_AUTH_TOKEN={os.environ['RAY_AUTH_TOKEN']}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            program = Path(words.partition(" ")[0]).name + " " + words.partition(" ")[2]
            if program.startswith(begin) and token in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def raylet(name: str) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0") if path.exists() else [b""]
        if words[0].endswith(b"/raylet") and any(name.encode() in word for word in words):
            return int(path.parent.name)
    raise AssertionError(f"no raylet of {name}")


def finished(run: Path, hosts: str, *words: str) -> str:
    main = command(run, "--hosts", hosts, *words)
    said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 0, said
    return said


def test_actors_on_two_raylets_learn_the_same_to_the_bit(cluster, tmp_path):
    exact = ("--steps", "8000", "--lag", "0", "--trace")
    said = finished(tmp_path / "there", f"ray:{cluster}", *exact)
    places = [f"machine-{i} (2 cores): act 0; machine-{5 - i} (2 cores): act 1" for i in (2, 3)]
    assert any(place in " ".join(said.split()) for place in places), said
    finished(tmp_path / "here", "none", *exact)
    assert len(updates(tmp_path / "here")) > 40
    assert updates(tmp_path / "there") == updates(tmp_path / "here")
    assert {row["machine"] for row in events(tmp_path / "there")} == {"machine-2", "machine-3"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_head_ends_the_run_with_a_checkpoint_and_a_reason(number, tmp_path):
    run = tmp_path / "run"
    with started() as address:
        main = command(run, "--hosts", f"ray:{address}", "--steps", "100M")
        try:
            wait_for(lambda: learning(run), WAIT)
            (gcs,) = ours("gcs_server")
            os.kill(gcs, number)
            said = main.communicate(timeout=WAIT)[0].decode()
        finally:
            main.kill()
            for pid in ours("gcs_server"):
                os.kill(pid, signal.SIGCONT)
    assert main.returncode == 1, said
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit_code"] == 1
    assert f"the head of the Ray cluster, {address}, has given no answer for 20 s" in summary["reason"]
    assert summary["reason"] + ": saving a checkpoint" in " ".join(said.split())
    assert "Traceback" not in said
    last = metrics(run)[-1]
    manifest = json.loads((run / "checkpoints" / summary["checkpoint"] / "manifest.json").read_text())
    assert manifest["counters"]["updates"] == last["updates"]
    assert {f"workers/act-{i}.json" for i in range(2)} <= set(manifest["files"]), "the actors' parts are there"
    assert polyplay.resume(run, steps=last["steps"] + 2000, hosts="none").exit_code == 0


def test_a_killed_raylet_is_noticed_and_its_actors_begin_anew_elsewhere(cluster, tmp_path):
    """The last test: this raylet does not come back."""
    run = tmp_path / "run"
    main = command(run, "--hosts", f"ray:{cluster}", "--steps", "200k")
    wait_for(lambda: learning(run))
    os.kill(raylet("machine-2"), signal.SIGKILL)
    began = time.time()
    lost = wait_for(lambda: [row for row in events(run) if row["event"] == "lost"], 5.0)
    assert lost[0]["machine"] == "machine-2"
    assert lost[0]["time"] - began < 2.5
    said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 0, said
    assert "a new one takes its place" in said


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
