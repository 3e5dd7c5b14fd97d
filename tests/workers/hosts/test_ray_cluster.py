"""Real raylets: a cluster of three on this machine, started once for this file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workers.hosts.test_fleet import command, events, learning, updates, wait_for

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]
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
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", os.urandom(32).hex())
        patch.setenv("RAY_worker_niceness", "0")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        runs = subprocess.Popen([sys.executable, "-c", CLUSTER], **pipes)
        address = runs.stdout.readline().decode().strip()
        assert address
        yield address
        runs.stdin.close()
        runs.wait(30)


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
    assert "machine-2 (2 cores): act 0; machine-3 (2 cores): act 1" in " ".join(said.split())
    finished(tmp_path / "here", "none", *exact)
    assert len(updates(tmp_path / "here")) > 40
    assert updates(tmp_path / "there") == updates(tmp_path / "here")
    assert {row["machine"] for row in events(tmp_path / "there")} == {"machine-2", "machine-3"}


def test_a_wrong_token_is_one_line(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    main = command(tmp_path / "run", "--hosts", f"ray:{cluster}", "--steps", "1000")
    said = main.communicate(timeout=60)[0].decode()
    assert main.returncode == 2
    assert "--hosts: no Ray cluster at" in said.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_killed_raylet_is_noticed_and_its_actors_begin_anew_elsewhere(cluster, tmp_path):
    """The last test: this raylet does not come back."""
    run = tmp_path / "run"
    main = command(run, "--hosts", f"ray:{cluster}", "--steps", "300k")
    wait_for(lambda: learning(run))
    os.kill(raylet("machine-2"), signal.SIGKILL)
    began = time.time()
    lost = wait_for(lambda: [row for row in events(run) if row["event"] == "lost"], 5.0)
    assert lost[0]["machine"] == "machine-2"
    assert lost[0]["time"] - began < 2.5
    said = main.communicate(timeout=120)[0].decode()
    assert main.returncode == 0, said
    assert "a new one takes its place" in said
