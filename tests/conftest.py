"""Tests share two cores with their own workers: one compute thread each, and the same bits everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest
import torch

from polyplay.nets import device

torch.set_num_threads(1)
# tests start hundreds of processes, each of which would compile the package again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Ray reads these when it is imported: its clusters have a token, send nothing home, and start processes as others do
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
os.environ.setdefault("RAY_AUTH_TOKEN", os.urandom(32).hex())
# the same examples in every run; nothing fails because a machine is busy
BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, **BUSY)
hypothesis.settings.register_profile("random", **BUSY)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def _no_gpu(request, monkeypatch):
    """`--device auto` is the CPU in every test that is not marked gpu, wherever it runs."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(device, "available", lambda: 0)


@pytest.fixture(autouse=True, scope="session")
def _own_data_home(tmp_path_factory):
    """What runs are signed with is kept apart from the user's own key, and what they compile from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


SLOW = set(Path(__file__).with_name("slow.txt").read_text("utf-8").splitlines())
FIRST = {name: int(n) for name, _, n in (line.rpartition(" ") for line in SLOW) if "[" not in name and n.isdigit()}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of slow.txt long: each takes seconds, and tests what others or bench/ also show. A line that ends
    in a number names a test of many cases: those after its first so many are long. Without a GPU, the tests that are
    marked gpu say why they do nothing.
    """
    cases = Counter[str]()
    for item in items:
        name = item.nodeid.partition("[")[0]
        cases[name] += 1
        if item.nodeid in SLOW or cases[name] > FIRST.get(name, len(items)):
            item.add_marker(pytest.mark.long)
    if not device.available():
        skip = pytest.mark.skip(
            reason="needs a CUDA GPU; what can be tested without one is in test_device and test_far"
        )
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(skip)


ROOT = Path(__file__).parents[1]
PARTS = ("arenas",), ("boards", "replay")  # of tests/kernels.py, by process


def pytest_addoption(parser):
    parser.addoption(
        "--kernels", action="store_true", help="compile every loop before the workers start, as a whole run does"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config):
    """In a run of all tests every loop is compiled before there are workers, which would wait for each other. Once: as
    long as no file with loops changes, and no folder for their cache.
    """
    if not (config.getoption("--kernels") or config.args_source is pytest.Config.ArgsSource.TESTPATHS):
        return
    digest = hashlib.sha256(f"{version('numba')} {os.environ.get('NUMBA_CACHE_DIR')}".encode())
    for path in sorted((ROOT / "polyplay").rglob("*.py")):
        if b"njit" in (text := path.read_bytes()) or b"compiled" in text:
            digest.update(text)
    stamp = ROOT / ".pytest_cache" / "kernels"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    config.get_terminal_writer().line("the loops are being compiled ...")
    at_once = [subprocess.Popen([sys.executable, "-m", "tests.kernels", *parts], cwd=ROOT) for parts in PARTS]
    codes = [process.wait() for process in at_once]
    if not any(codes):
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())
