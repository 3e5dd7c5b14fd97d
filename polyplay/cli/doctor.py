"""doctor: what a bug report needs.

`polyplay doctor`: what a bug report needs, and whether the things that Polyplay stands on work here.

It reads no file of the user's and prints no path and no name of a user or machine, but of those that `--hosts` asks
for. Imports no torch at the top.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.cli.arguments import print_findings
from polyplay.core.errors import Finding, UserError, as_json, status
from polyplay.core.machine import cores, stamp, version
from polyplay.core.shared_memory import Semaphores
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.engines import OPENING, Engine, MachineInfo
from polyplay.workers.hosts.link import BEAT, CLOSE, DATA, ECHO, HEAD, Link, LinkLost, prove, read_exactly
from polyplay.workers.hosts.mirrors import Frame, ObjectMirror

# What `polyplay doctor` says of another machine: an agent is opened there, and its link measured. Imports no torch.


SIZE, TIMES, TRIPS = 16 * 2**20, 8, 20  # bytes of a frame, frames, round trips


class ProbeMirror(ObjectMirror):
    """A block that is written there, and read by nobody."""

    def prepare(self) -> None:
        self.block = np.zeros(SIZE, np.uint8)

    def changes(self, now: float) -> list[Frame]:  # type: ignore[override]
        return []

    def places(self, item: int) -> list[np.ndarray]:
        return [self.block]

    def arrived(self, item: int) -> None:
        """Nothing is to be done with it."""


def measure_machine(engine: Engine, info: MachineInfo, timeout: float = 10.0) -> dict[str, Any]:
    """What its agent says; its link's `round_trip` (seconds) and `bandwidth` (bytes a second). Raises UserError."""
    secret = secrets.token_bytes(32)
    config = {"secret": secret.hex(), "address": info.address, "timeout": timeout, "threads": 0}
    handle = engine.open(info, config)
    try:
        handle.give(0, agent.dump([ProbeMirror()], agent.TwinNumbers())[0])
        with socket.create_connection((handle.about["address"], handle.about["port"]), OPENING) as sock:
            prove(sock, secret, away=False)
            sock.settimeout(timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(sock, [ProbeMirror()], Semaphores(1)[0], timeout, None)
            block = np.zeros(SIZE, np.uint8)
            trips = [_echo(link, []) for _ in range(TRIPS)]
            _echo(link, [block])  # its pages are there from now on
            took = _echo(link, [block] * TIMES)
            link.send(CLOSE)
        return {**handle.about, "round_trip": statistics.median(trips), "bandwidth": SIZE * TIMES / took}
    except (OSError, LinkLost) as e:
        there = f"{handle.about['address']}:{handle.about['port']}"
        raise UserError(f"no link to {there}: {e}; is a firewall between them?") from None
    finally:
        handle.end()


def _echo(link: Link, blocks: list[np.ndarray]) -> float:
    """Seconds until the other side answers a beat that comes after these blocks."""
    began = time.perf_counter()
    for block in blocks:
        link.send(DATA, 0, 0, [block])
    link.send(BEAT)
    while True:
        _, kind, _, _, n = HEAD.unpack(read_exactly(link.sock, HEAD.size))
        read_exactly(link.sock, n)
        if kind == ECHO:
            return time.perf_counter() - began


NEEDED = ("torch", "numpy", "numba", "gymnasium", "tyro", "rich", "safetensors", "tensorboard", "cloudpickle", "psutil")
EXTRAS = {"ale-py": "atari", "av": "video", "pygame-ce": "video", "matplotlib": "plots"}
FILES = 1024  # descriptors: a process pool takes about 5 per environment process
STEPS = 10_000  # of the training that is tried: a second or two, and a few to start its workers
PATIENCE = 180.0  # seconds that it may take, on a machine that is busy
GB = 2**30


def versions() -> Iterator[Finding]:
    from polyplay import __version__

    python = f"{platform.python_version()} ({platform.python_implementation()})"
    yield Finding("polyplay", "ok", f"{__version__}, Python {python}")
    found = {name: version(name) for name in (*NEEDED, *EXTRAS)}
    installed = ", ".join(f"{name} {v}" for name, v in found.items() if v)
    missing = [name for name in NEEDED if not found[name]]
    yield Finding(
        "packages", "failed" if missing else "ok", installed, f"pip install {' '.join(missing)}" if missing else ""
    )
    absent = [name for name in EXTRAS if not found[name]]
    if absent:
        extras = ",".join(dict.fromkeys(EXTRAS[name] for name in absent))
        yield Finding("extras", "ok", f"not installed: {', '.join(absent)} (pip install 'polyplay[{extras}]')")


def machine() -> Iterator[Finding]:
    yield Finding("platform", "ok", f"{platform.platform()}, {platform.machine()}")
    quota = cpu_quota(_read("/sys/fs/cgroup/cpu.max"))
    text = f"{stamp()['machine']['cpu']}; {cores()} of {os.cpu_count()} cores may be used"
    fix = ""
    if quota is not None and quota < cores():
        fix = "give the container more CPU time, or run under `taskset` with that many cores: workers follow it"
        text += f", for {quota:g} cores' time"
    yield _limit("cpu", text, fix)
    yield memory()


def cpu_quota(text: str) -> float | None:
    """Cores' worth of time that a control group allows: of its cpu.max, "200000 100000" or "max 100000"."""
    words = text.split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None


def memory() -> Finding:
    import psutil

    free = psutil.virtual_memory()
    text = f"{free.total / GB:.1f} GB, {free.available / GB:.1f} GB of it available"
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    least = free.available
    if limit.isdigit() and int(limit) < free.total:
        text += f"; the container's limit is {int(limit) / GB:.1f} GB"
        least = min(least, int(limit) - int(_read("/sys/fs/cgroup/memory.current").strip() or 0))
    fix = "a worker needs about 0.3 GB: lower --replicas, --actors or --lanes" if least < GB else ""
    return _limit("memory", text, fix)


def _limit(name: str, text: str, fix: str) -> Finding:
    """A warning where there is something to do about it."""
    return Finding(name, "warning" if fix else "ok", text, fix)


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError:
        return ""


def limits() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(soft, hard)
    if Path("/dev/shm").is_dir():
        free = shutil.disk_usage("/dev/shm").free
        text = f"{free / GB:.2f} GB free; Polyplay's own memory is not in it, that of some environments is"
        fix = "" if free > 2**26 else "docker run --shm-size=1g …"
        yield _limit("/dev/shm", text, fix)
    free = shutil.disk_usage(".").free
    fix = "" if free > GB else "free some, or put the run elsewhere with --run"
    yield _limit("disk", f"{free / GB:.1f} GB free where you are", fix)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES")
    given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    yield Finding("settings", "ok", ", ".join(given) or "no thread or device settings in the environment")


def open_files(soft: int, hard: int) -> Finding:
    text = f"{soft:,} (at most {hard:,})"
    fix = f"ulimit -n {FILES if hard < 0 else min(hard, 4 * FILES)}" if 0 <= soft < FILES else ""
    return _limit("open files", text, fix)


def torch_build() -> Iterator[Finding]:
    import torch

    config = torch.__config__.show()
    blas = next((w.split("=")[1] for w in config.replace(",", " ").split() if w.startswith("BLAS_INFO=")), "unknown")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    threads = f"{torch.get_num_threads()} threads"
    yield Finding("torch", "ok", f"{torch.__version__}, {build} build, BLAS {blas}, {threads}")
    if torch.cuda.is_available():
        cards = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        yield Finding("gpu", "ok", f"{torch.cuda.device_count()}: {', '.join(sorted(cards))}")
    else:
        driver = Path("/proc/driver/nvidia").exists()
        hint = "; a driver is there: install the torch that fits it to compute on the GPU" if driver else ""
        yield Finding("gpu", "ok", f"none that torch can use{hint}")


def shared_memory() -> Iterator[Finding]:
    from polyplay.core.shared_memory import Semaphores, SharedBlock

    semaphores = Semaphores(1)
    semaphores[0].post()
    works = semaphores[0].wait(1.0) and not semaphores[0].wait(0.0)
    block = SharedBlock(1 << 20).array(1 << 20, "uint8")
    block[:] = 1
    kind = "memfd" if hasattr(os, "memfd_create") else "an unlinked file"
    if not works or int(block.sum()) != 1 << 20:
        yield Finding("shared memory", "failed", "a semaphore or a block does not hold what was put there", REPORT)
    else:
        yield Finding("shared memory", "ok", f"blocks by {kind}, semaphores count")


def environments() -> Iterator[Finding]:
    """An environment process is forked from its server, steps, and ends."""
    import numpy as np

    from polyplay.envs import Envs

    with closing(Envs("CartPole-v1", 1, workers=1, max_restarts=0).open(0)) as pool:
        lanes, _ = pool.recv(60.0)
        pool.send(lanes, np.zeros(1, np.int64))
        pool.recv(60.0)
    yield Finding("environments", "ok", "a process of CartPole-v1 was forked and stepped")


def atari() -> Iterator[Finding]:
    from polyplay.envs import Envs

    if not version("ale-py"):
        yield Finding("atari", "warning", "ale-py is not installed", "pip install 'polyplay[atari]', for ALE/… games")
        return
    spec = Envs("ALE/Pong-v5", 1).spec
    yield Finding("atari", "ok", f"the ROM of Pong opens: {spec.describe['actions']}")


def training() -> Iterator[Finding]:
    """A short run by the command itself, in a directory that is removed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        run = os.path.join(place, "run")
        words = ["train", "a2c", "--env", "toy:catch", "--network", "mlp", "--steps", str(STEPS), "--run", run]
        command = [sys.executable, "-m", "polyplay", *words]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE)
        if done.returncode:
            text = " ".join((done.stdout + done.stderr).split())[-400:].replace(place, "…")
            yield Finding("training", "failed", f"exit status {done.returncode}: {text}", REPORT)
            return
        summary = json.loads(Path(run, "summary.json").read_text("utf-8"))
    seconds = f"{summary['wall_seconds']:.1f} s, start and end of its workers included"
    yield Finding("training", "ok", f"a2c on toy:catch: {summary['steps']:,} steps in {seconds}")


REPORT = "report it, with all of these lines"
CHECKS = (versions, machine, limits, torch_build, shared_memory, environments, atari, training)


def other_machines(hosts: str) -> Iterator[Finding]:
    """Each, by an agent that is started there and a link to it."""
    from polyplay.core.errors import UserError
    from polyplay.runs.load import engine_of
    from polyplay.workers.hosts.engines import needed_versions

    engine = engine_of(hosts)
    machines = engine.machines()
    if not machines:
        yield Finding("hosts", "warning", f"{hosts}: there is no machine but this one", "add one to the cluster")
    for info in machines:
        try:
            there = measure_machine(engine, info)
        except UserError as e:
            yield Finding(info.name, "failed", f"{info.address}: {e}", "see docs/guides/many_machines.md")
            continue
        gpus = f", {there['gpus']} GPUs" if there["gpus"] else ""
        link = f"round trip {1e3 * there['round_trip']:.2g} ms, {there['bandwidth'] / 1e9:.2g} GB/s to it"
        text = f"{info.address}: {there['cores']} cores, {there['memory'] / GB:.1f} GB{gpus}; link: {link}"
        ours = needed_versions()
        other = [f"{name} {there['versions'].get(name)}" for name in ours if there["versions"].get(name) != ours[name]]
        if other:
            here = ", ".join(f"{name} {ours[name]}" for name in ours)
            yield Finding(
                info.name, "failed", f"{text}; it has {', '.join(other)}", f"install the same as here: {here}"
            )
        else:
            yield Finding(info.name, "ok", text)
    engine.close()


def examine(hosts: str | None = None) -> list[Finding]:
    """Everything; what raises is a finding too. hosts: other machines, first. Raises UserError: wrong ones."""
    found = [] if hosts is None else list(other_machines(hosts))
    for check in CHECKS:
        try:
            found.extend(check())
        except Exception as e:
            text = f"{type(e).__name__}: {' '.join(str(e).split())[:400]}"
            found.append(
                Finding(check.__name__.replace("_", " "), "failed", text.replace(str(Path.home()), "~"), REPORT)
            )
    return found


@dataclass(frozen=True)
class DoctorOptions:
    """Nothing is changed, nothing is sent anywhere."""

    json: bool = False
    """print JSON"""
    hosts: str | None = None
    """also other machines: ray, ray:HOST:PORT, or pretend:N"""


def command(words: list[str]) -> int:
    """`polyplay doctor` with these words; the exit status."""
    from polyplay.runs import flags

    options, _ = flags.read_flags(DoctorOptions, words, "polyplay doctor", "What a bug report needs.")
    found = examine(options.hosts)
    if options.json:
        print(as_json(found, {}, "lines"))
    else:
        failed = ", ".join(f.name for f in found if f.level == "failed")
        print_findings(f"polyplay doctor: {failed + ' failed' if failed else 'all works'}", found, {}, "what")
    return status(found)
