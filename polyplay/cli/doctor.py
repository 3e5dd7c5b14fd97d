"""doctor: print facts for a bug report, and test the software and hardware that Polyplay depends on.

The command reads no files of the user, and prints no paths and no user names. It prints the names of machines only if
they are in `--hosts`.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from polyplay import __version__
from polyplay.cli.arguments import print_findings
from polyplay.core import machine as this_machine
from polyplay.core.errors import Finding, UserError, as_json, status
from polyplay.core.platform import cpu_limit, memory_limit, nvidia_gpus, open_files
from polyplay.envs.pool import Envs
from polyplay.workers.hosts import line
from polyplay.workers.hosts.cluster import Cluster, MachineInfo

NEEDED = (
    "torch",
    "numpy",
    "numba",
    "gymnasium",
    "rich",
    "safetensors",
    "tensorboard",
    "cloudpickle",
    "psutil",
    "pyyaml",
)
EXTRAS = ("ale-py", "av", "pygame-ce", "matplotlib")
SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES")
FILES = 1024  # least limit of open files without a warning: each environment process takes about 5
TRAINED = "train a2c --env CartPole-v1 --lanes 4 --steps 2000"  # takes a few seconds, mostly to start processes
PATIENCE = 180.0  # most seconds for this training run, on a busy machine
GB = 2**30
REPORT = "report it, with all of these lines"


def _limit(name: str, text: str, fix: str) -> Finding:
    return Finding(name, "warning" if fix else "ok", text, fix)


def versions() -> Iterator[Finding]:
    python = platform.python_implementation()
    yield Finding("polyplay", "ok", f"{__version__}, Python {platform.python_version()} ({python})")
    found = {name: this_machine.version(name) for name in (*NEEDED, *EXTRAS)}
    lost = " ".join(name for name in NEEDED if not found[name])
    installed = ", ".join(f"{name} {v}" for name, v in found.items() if v)
    yield Finding("packages", "failed" if lost else "ok", installed, f"pip install {lost}" if lost else "")


def machine() -> Iterator[Finding]:
    yield Finding("platform", "ok", f"{platform.platform()}, {platform.machine()}")
    cpu, fix = this_machine.stamp()["machine"]["cpu"], ""
    text = f"{cpu}; {this_machine.cores()} of {os.cpu_count()} cores may be used"
    quota, _, period = cpu_limit().partition(" ")
    if quota.isdigit() and (share := int(quota) / int(period)) < this_machine.cores():
        text += f", for {share:g} cores' time"
        fix = "give the container more CPU time, or run under `taskset` with that many cores: workers follow it"
    yield _limit("cpu", text, fix)
    there, most = psutil.virtual_memory(), memory_limit()
    text = f"{there.total / GB:.1f} GB, {there.available / GB:.1f} GB of it available"
    text += f"; the container's limit is {most / GB:.1f} GB" * (most < there.total)
    few = min(there.available, most) < GB
    yield _limit("memory", text, "a worker needs about 0.3 GB: lower --replicas, --actors or --lanes" * few)


def limits() -> Iterator[Finding]:
    soft, hard = found = open_files() or (-1, -1)
    fix = f"ulimit -n {FILES if hard < 0 else min(hard, 4 * FILES)}" if 0 <= soft < FILES else ""
    yield _limit("open files", f"{soft:,} (at most {hard:,})" if max(found) >= 0 else "no limit", fix)
    given = ", ".join(f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ)
    yield Finding("settings", "ok", given or "no thread or device settings in the environment")


def torch_build() -> Iterator[Finding]:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    yield Finding("torch", "ok", f"{torch.__version__}, {build} build, {torch.get_num_threads()} threads")
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count() * torch.cuda.is_available())]
    driver = "; a driver is installed: install a torch that fits it to compute on the GPU"
    none = "none that torch can use" + driver * (nvidia_gpus() is not None)
    yield Finding("gpu", "ok", f"{len(cards)}: {', '.join(sorted({*cards}))}" if cards else none)


def atari() -> Iterator[Finding]:
    if this_machine.version("ale-py"):
        actions = Envs("ALE/Pong-v5", 1).spec.describe["actions"]
        yield Finding("atari", "ok", f"the ROM of Pong opens: {actions}")
    else:
        yield Finding("atari", "warning", "ale-py is not installed", "install the extra atari, for ALE/… games")


def training() -> Iterator[Finding]:
    """Test training, shared memory and environment processes by a short run in a temporary directory."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        command = [sys.executable, "-m", "polyplay", *TRAINED.split(), "--run", os.path.join(place, "run")]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE)
        if done.returncode:
            raise RuntimeError(
                f"exit status {done.returncode}: {(done.stdout + done.stderr).replace(place, '…')[-300:]}"
            )
        summary = json.loads(Path(place, "run", "summary.json").read_text("utf-8"))
    text = f"{summary['steps']:,} steps in {summary['wall_seconds']:.1f} s, start and end of its workers included"
    yield Finding("training", "ok", f"a2c on CartPole-v1, whose environments are processes: {text}")


CHECKS = (versions, machine, limits, torch_build, atari, training)


# Other machines: start a process on each machine, and measure the connection to it.


TRIPS = 20  # round trips measured per machine
SILENT = 10.0  # seconds of silence after which a connection counts as lost


def measure_machine(cluster: Cluster, info: MachineInfo) -> dict[str, Any]:
    """Return another machine's description and median round trip (seconds). Raises UserError if connecting fails."""
    from polyplay.workers.hosts.remote import RemoteCrew

    key = secrets.token_bytes(32)
    actor = cluster.start_actor(info, RemoteCrew, 0, key, info.address, SILENT)
    try:
        about = actor.call("about")
        actor.send("serve")
        there = line.connect(about["address"], key, SILENT)

        def seconds() -> float:
            """Return the seconds until the other machine answers a test message."""
            began = time.perf_counter()
            there.send([(line.BEAT, None, [])])
            while all(kind != line.ECHO for kind, *_ in there.receive()):
                pass
            return time.perf_counter() - began

        trips = [seconds() for _ in range(TRIPS)]
        there.send([(line.CLOSE, None, [])])
        there.free()
        return {**about, "round_trip": statistics.median(trips)}
    except (OSError, line.LineLost) as e:
        raise UserError(f"no connection to {info.name}: {e}; check for a firewall between the machines") from None
    finally:
        actor.end()


def other_machines(hosts: str) -> Iterator[Finding]:
    """Test the connection to each machine of the cluster, and yield the results. Raises UserError for bad `hosts`."""
    cluster = Cluster(hosts)
    cluster.connect()
    machines = cluster.machines()
    if not machines:
        yield Finding("hosts", "warning", f"{hosts}: this is the only machine", "add one to the cluster")
    for info in machines:
        try:
            there = measure_machine(cluster, info)
            text = f"{info.address}: {there['cores']} cores, {there['memory'] / GB:.1f} GB, {there['gpus']} GPUs"
            text += f"; round trip {1e3 * there['round_trip']:.2g} ms"
            info.check_versions(there["versions"])
            yield Finding(info.name, "ok", text)
        except UserError as e:
            yield Finding(info.name, "failed", str(e), "see the page Many machines of the documentation")
    cluster.close()


@dataclass(frozen=True)
class DoctorOptions:
    """The command changes nothing and sends nothing."""

    json: bool = False  # print JSON
    hosts: str | None = None  # other machines to test: ray, ray:HOST:PORT, or local:N


def command(words: list[str]) -> int:
    """Run `polyplay doctor`: print all test results, and return the exit status."""
    from polyplay.runs import flags

    options, _ = flags.read_flags(DoctorOptions, words, "polyplay doctor", "Print what a bug report needs.")
    found = [] if options.hosts is None else list(other_machines(options.hosts))
    for check in CHECKS:
        try:
            found.extend(check())
        except Exception as e:  # an exception is a finding too
            text = f"{type(e).__name__}: {' '.join(str(e).split())[:400]}".replace(str(Path.home()), "~")
            found.append(Finding(check.__name__.replace("_", " "), "failed", text, REPORT))
    if options.json:
        print(as_json(found, {}, "lines"))
    else:
        failed = ", ".join(f.name for f in found if f.level == "failed")
        print_findings(f"polyplay doctor: {failed + ' failed' if failed else 'all works'}", found, {}, "what")
    return status(found)
