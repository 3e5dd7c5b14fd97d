"""A cluster of raylets on this machine, and runs on it: their processes, what they say, what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
from common import ROOT, Row

CREW, MEMBER = "ray::RemoteCrew", "ray::MemberActor"  # titles of processes of Ray's
MARK = "POLYPLAY_BENCH"  # in the environment of all that belongs to a run or a cluster
SHM, TMP = Path("/dev/shm"), Path("/tmp")
TAIL = 1 << 15  # bytes that have the last two lines of a file
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_worker_niceness": "0"}
TOKEN["RAY_USAGE_STATS_ENABLED"] = "0"
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
folder, cores, *names = sys.argv[1:]
folder += "/ray"
few = {"num_cpus": int(cores), "object_store_memory": 80 * 2**20}
head = {**few, "node_name": "first", "include_dashboard": False, "temp_dir": folder}
cluster = Cluster(initialize_head=True, head_node_args=head)
for name in names:
    cluster.add_node(wait=False, node_name=name, **few)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.add_node(node_name=line.strip(), **few)
    print("added", flush=True)
cluster.shutdown()
"""


class Marked:
    """Processes that were started, however indirectly, with a mark of their own in their environment."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.env = {**os.environ, **TOKEN, MARK: self.mark, "PYTHONPATH": str(ROOT)}

    def processes(self) -> dict[int, str]:
        """Their commands, or titles, by number; without zombies."""
        found, mark = {}, f"{MARK}={self.mark}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return {pid: words for pid, words in sorted(found.items()) if words}

    def send(self, number: int) -> None:
        """A signal to all of them."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Until none is left."""
        until = time.monotonic() + 10.0
        while self.processes() and time.monotonic() < until:
            self.send(signal.SIGKILL)
            time.sleep(0.05)


class Raylets(Marked):
    """A head and `n` raylets, m-1, m-2, …; `broken`: it is to be started anew before it is used again."""

    def __init__(self, n: int = 3, cores: int = 2):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="bench-", dir=TMP))
        self.env["TMPDIR"] = str(self.folder)
        self.names, self.broken = [f"m-{i + 1}" for i in range(n)], False
        words = [sys.executable, "-c", CLUSTER, str(self.folder), str(cores), *self.names]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self._runs = subprocess.Popen(words, env=self.env, start_new_session=True, **pipes)
        self.address = self._runs.stdout.readline().strip()
        if not self.address:
            self.close()
            raise SystemExit("the cluster did not start")

    def add(self, name: str) -> None:
        """Another raylet; it is there when this returns."""
        self._runs.stdin.write(f"{name}\n")
        self._runs.stdin.flush()
        self._runs.stdout.readline()

    def raylet(self, name: str) -> int:
        """The newest of that name. Raises ValueError."""
        return max(pid for pid, words in self.raylets().items() if words.endswith(f"--node-name={name}"))

    def raylets(self) -> dict[int, str]:
        """Their commands, the head's too."""
        return {i: words for i, words in self.processes().items() if words.partition(" ")[0].endswith("/raylet")}

    def close(self) -> None:
        """End it, and whatever belonged to it."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._runs.stdin.close()
            self._runs.wait(1.0 if self.broken else 15.0)
        self.kill()
        self._runs.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Run(Marked):
    """`polyplay train`, or another command, and what it says and writes. cluster: None where it has one of its own.
    run: its folder; program: what runs it.
    """

    def __init__(
        self,
        words: Iterable[str],
        place: Path,
        cluster: Raylets | None = None,
        run: Path | None = None,
        program: Sequence[str] = ("-m", "polyplay"),
    ):
        super().__init__()
        self.run, self.cluster, self.folder = run or place / "run", cluster, place / "temporary"
        self.folder.mkdir(exist_ok=True)
        self.env["TMPDIR"] = str(self.folder)
        self.log = place / "said"
        self._shm = set(os.listdir(SHM))
        self._out = self.log.open("ab")
        command = [sys.executable, *program, *words, "--run", str(self.run)]
        null: Any = subprocess.DEVNULL
        self.main = subprocess.Popen(command, env=self.env, cwd=place, stdin=null, stdout=self._out, stderr=self._out)
        self.owned = {self.folder}  # folders of its own

    def rows(self, name: str) -> list[Row]:
        """Lines of a file of its, all but one that is being written."""
        with contextlib.suppress(OSError):
            lines = (self.run / name).read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        return []

    def newest(self, name: str) -> Row:
        """Return the last line of a file; {} if there is none."""
        with contextlib.suppress(OSError), (self.run / name).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = [line for line in file.read().splitlines(keepends=True)[-2:] if line.endswith(b"\n")]
            return json.loads(lines[-1]) if lines else {}
        return {}

    def updates(self) -> int:
        """All so far, of all members of a population."""
        names = ["metrics.jsonl", *(f"{path.relative_to(self.run)}/metrics.jsonl" for path in self._members())]
        return sum(self.newest(name).get("updates", 0) for name in names)

    def _members(self) -> list[Path]:
        return sorted(self.run.glob("members/[0-9]*"))

    def workers(self) -> int:
        """How many work elsewhere, by the newest report; a population's members by their processes."""
        if self._members():
            return sum(MEMBER in words for words in self.all_processes().values())
        return sum(host["workers"] for host in self.newest("metrics.jsonl").get("hosts", {}).values())

    def saved(self) -> dict[str, int]:
        """Counters of the newest checkpoint; {}: there is none of a later update than 0."""
        roots = [self.run, *self._members()]
        for path in sorted((path for root in roots for path in root.glob("checkpoints/[0-9]*")), reverse=True):
            with contextlib.suppress(OSError, ValueError):
                counters: dict[str, int] = json.loads((path / "manifest.json").read_text())["counters"]
                return counters if counters["updates"] else {}
        return {}

    def messages(self) -> list[str]:
        """What it said, without reports."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if "steps/s" not in line]

    def all_processes(self) -> dict[int, str]:
        """Its own, and those of its workers on the cluster."""
        theirs = {} if self.cluster is None else self.cluster.processes()
        return self.processes() | {pid: words for pid, words in theirs.items() if is_ours(words)}

    def one(self, *words: str) -> int:
        """The first process that has one of these in its title. Raises LookupError."""
        for pid, title in self.all_processes().items():
            if any(word in title for word in words):
                return pid
        raise LookupError(f"no process called {words}")

    def everything(self) -> list[Marked]:
        """The run, and its cluster."""
        return [self] if self.cluster is None else [self.cluster, self]

    def wait_for(self, what: Callable[[], Any], seconds: float) -> bool:
        """Whether it came to that, before the run ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.main.poll() is None:
            if what():
                return True
            time.sleep(0.05)
        return bool(what())

    def note_folders(self) -> None:
        """Remember the folder of a cluster of its own."""
        for words in self.processes().values():
            self.owned |= {TMP / part.split("/")[2] for part in words.split() if "=/tmp/polyplay-" in f"={part}"}

    def left(self) -> list[str]:
        """What is there of it once it has ended: processes, folders, files of shared memory. The next crew on a
        machine removes the folder of one that was killed there.
        """
        found = list(self.all_processes().values())
        found += [str(path) for path in self.owned if path.exists() and path.name.startswith("polyplay-")]
        temporary = [*self.folder.glob("polyplay-*")]
        temporary += [] if self.cluster is None else [*self.cluster.folder.glob("polyplay-*")]
        temporary = [x for x in temporary if not x.name.startswith("polyplay-crew-") or _owner_lives(x)]
        names = [name for name in os.listdir(SHM) if name not in self._shm and "polyplay" in name]
        return found + [str(path) for path in temporary] + names

    def close(self) -> None:
        """Whatever it still is."""
        self.kill()
        self.main.wait()
        self._out.close()


def _owner_lives(folder: Path) -> bool:
    return psutil.pid_exists(int(folder.name.split("-")[2]))


def is_ours(words: str) -> bool:
    """Whether this process of a cluster belongs to a run, by its command or title."""
    return words.startswith(("polyplay: ", CREW, MEMBER))


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Where these processes listen."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            for at in psutil.Process(pid).net_connections("tcp"):
                if at.status == psutil.CONN_LISTEN:
                    found.add((at.laddr.ip, at.laddr.port))
    return found
