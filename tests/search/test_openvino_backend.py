"""OpenVINO computes, and reports to nobody."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if importlib.util.find_spec("openvino") is None:
    pytest.skip("the extra openvino", allow_module_level=True)

# What a process does that evaluates with OpenVINO. An audit hook sees sockets, processes, and files opened for writing.
USES = """
import os, sys
seen = []
def audit(event, args):
    if event.startswith(("socket.", "subprocess.", "os.fork", "os.posix_spawn", "os.exec", "os.mkdir")):
        seen.append((event, args))
    if event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        seen.append((event, args))
import numba, torch
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.envs import Envs
from polyplay.nets.residual import BoardNetworkFactory
import numpy as np
factory = BoardNetworkFactory(Envs("game:tic_tac_toe", 1).spec, 1, 4, 4)
sys.addaudithook(audit)
evaluator = NetworkEvaluator(factory, 4, "openvino")
evaluator.load(np.ones(evaluator.vector.size, np.float32), 0)
evaluator.evaluate(np.zeros((4, 3, 3, 3), np.float32))
print(seen, "openvino_telemetry" in sys.modules, evaluator._backend.compute()[0].shape)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home, and beside it a package that stands in for OpenVINO's reports: it says when it is imported."""
    package = tmp_path / "packages" / "openvino_telemetry"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os, pathlib\n(pathlib.Path(os.environ['HOME']) / 'reported').write_text('')\n"
    )
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def run(code: str, home: Path) -> str:
    paths = [str(home.parent / "packages"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_socket_is_opened_no_process_begun_and_no_file_written(home: Path):
    assert run(USES, home) == "[] False (4, 9)"
    assert list(home.iterdir()) == []


def test_the_package_itself_would_have_reported(home: Path):
    run("import openvino", home)
    assert [path.name for path in home.iterdir()] == ["reported"]
