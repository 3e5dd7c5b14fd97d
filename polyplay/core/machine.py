"""Information about this machine and Polyplay's installation. Binding of threads to cores. A pool of threads."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from polyplay.core.files import Row
from polyplay.core.platform import bind, cpu_name
from polyplay.core.platform import cores as usable_cores

PACKAGES = ("polyplay", "torch", "numpy", "gymnasium", "ale-py")


def stamp() -> Row:
    """Return a description of a run that starts now: time, versions, machine and commit."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    machine = {"platform": platform.platform(), "cpu": cpu_name(), "cores": cores()}
    return {"started": now(), "versions": versions, "machine": machine, "commit": _commit()}


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    """Return the pip command that installs an optional extra of Polyplay. If Polyplay was installed from a checkout, a
    wheel or an address, the command uses the same source (PEP 610).
    """
    records = (found.read_text("direct_url.json") for found in importlib.metadata.distributions(name="polyplay"))
    origin = json.loads(next(filter(None, records), "{}"))  # a checkout on sys.path has a distribution without the file
    url, repository, folder = origin.get("url", ""), origin.get("vcs_info"), origin.get("dir_info")
    if repository:
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    if not url.startswith("file:"):
        return f"pip install {shlex.quote(f'polyplay[{extra}]' + f' @ {url}' * bool(url))}"
    from urllib.request import url2pathname  # slow to load

    path = url2pathname(url.removeprefix("file://"))
    pinned = f"-c {shlex.quote(os.path.join(path, 'constraints.txt'))} " if folder is not None else ""
    editable = "-e " if folder and folder.get("editable") else ""
    return f"pip install {pinned}{editable}{shlex.quote(f'{path}[{extra}]')}"


def documentation(name: str) -> str:
    """Return the path of a documentation page, such as docs/start/install.md, in the checkout or installed wheel."""
    root, marker = Path(__file__).parents[2], f"share/doc/polyplay/{name}"
    if not (root / name).is_file():
        there = importlib.metadata.distributions(name="polyplay")
        files = (file for found in there for file in found.files or () if file.match(marker))
        return str(next((Path(file.locate()).resolve() for file in files), name))
    return name if root == Path.cwd() else str(root / name)


def cores() -> int:
    return len(usable_cores())


def cxx_compiler() -> str | None:
    """Return the path of the C++ compiler for compiled updates, or None if no compiler was found."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++"))), None)


def take_share(index: int, n: int) -> None:
    """Bind this thread and its later threads and processes to group `index` of `n` equal groups of cores."""
    if n > 1:
        there = usable_cores()
        own = {core for k, core in enumerate(there) if k * n // len(there) == index}
        bind(own or {there[index % len(there)]})


@contextlib.contextmanager
def share(n: int) -> Iterator[None]:
    """Context manager that binds this thread to the first of `n` equal groups of cores."""
    before = usable_cores()
    take_share(0, n)
    try:
        yield
    finally:
        bind(before)


def _commit() -> str | None:
    """Return the commit of Polyplay's code, with "-dirty" if files were changed, or None without a Git checkout."""
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in ([*git, "ls-files", "--error-unmatch", here.name], describe):
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=5, check=True
            )
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


R = TypeVar("R")


class ThreadPool:
    """Pool of `n` threads, including the caller's thread. Each of the other threads calls `begin` when it starts."""

    def __init__(self, n: int, begin: Callable[[], None]):
        self.n = n
        self._others = ThreadPoolExecutor(n - 1, "team", begin)

    def each(self, work: Callable[[int], R]) -> list[R]:
        """Return [work(0), …, work(n - 1)], each run in its own thread. work(0) runs in the caller's thread."""
        begun = [self._others.submit(work, i) for i in range(1, self.n)]
        return [work(0), *(w.result() for w in begun)]

    def begin(self, work: Callable[[], R]) -> Future[R]:
        """Start `work` in a thread other than the caller's, and return at once. Calls start in order."""
        return self._others.submit(work)

    def part(self, i: int, size: int) -> slice:
        """Return the slice that thread i processes of an array with `size` elements."""
        return slice(size * i // self.n, size * (i + 1) // self.n)
