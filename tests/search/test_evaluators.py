"""A network's answers have the same bits in every company; newer weights; what is chosen by measuring."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from polyplay.core.errors import NotFinite, UserError
from polyplay.envs import Envs
from polyplay.games.boards import GAMES
from polyplay.nets.factory import build_network
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search import Search, SearchOptions, evaluators
from polyplay.search.evaluators import NetworkEvaluator, choose_backend
from polyplay.weights.params import FlatParams
from tests.search.twins import UniformEvaluator

SPEC = Envs("game:connect_four", 1).spec
SMALL = BoardNetworkFactory(SPEC, blocks=2, filters=16, hidden=16)
OPENVINO = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the extra openvino")
BACKENDS = ["torch", pytest.param("openvino", marks=OPENVINO)]
WAYS = [
    *itertools.product(["torch"], ["float32", "bfloat16"]),
    *(pytest.param("openvino", precision, marks=OPENVINO) for precision in ("float32", "bfloat16")),
]


def weights(seed: int = 1) -> np.ndarray:
    """Of a network that has learnt from something: its statistics are no longer those of the start."""
    network = build_network(SMALL, seed)
    flat = FlatParams(network)
    network.unroll({"obs": torch.from_numpy(positions(64)).unsqueeze(0)}, {})
    return flat.read().copy()


def positions(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, 3, 6, 7)).astype(np.float32)


def evaluator(batch: int = 8, *more: str) -> NetworkEvaluator:
    made = NetworkEvaluator(SMALL, batch, *more)
    made.load(weights(), 3)
    return made


@pytest.mark.parametrize("batch", [5, 32])
@pytest.mark.parametrize(("backend", "precision"), WAYS)
def test_a_position_has_the_same_bits_wherever_it_lies(backend: str, precision: str, batch: int):
    asked, planes = evaluator(batch, backend, precision), positions(67)
    logits, values = asked.evaluate(planes)
    assert (logits.dtype, logits.shape, values.dtype, values.shape) == (np.float32, (67, 7), np.float32, (67,))
    order = np.random.default_rng(1).permutation(67)
    last = np.ascontiguousarray(planes.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for given, part in itertools.product((planes, last), (order, order[:3], order[5:6])):
        again, other = asked.evaluate(given[part])
        assert np.array_equal(again, logits[part])
        assert np.array_equal(other, values[part])


@pytest.mark.parametrize(("backend", "precision"), WAYS)
def test_it_answers_as_the_network_that_acts_with_the_newest_weights(backend: str, precision: str):
    most = {"float32": 1e-5, "bfloat16": 0.05}[precision]
    asked, planes, network = evaluator(8, backend, precision), positions(20), build_network(SMALL, 0)
    flat = FlatParams(network)
    for version, vector in enumerate((weights(1), weights(2))):
        asked.load(vector, version)
        flat.write(vector)
        for mine, theirs in zip(asked.evaluate(planes), network.predict(torch.from_numpy(planes)), strict=True):
            assert np.abs(mine - theirs.numpy()).max() < most
    assert asked.title == "residual, 2 blocks of 16 filters, version 1"


def test_an_answer_that_is_no_number_names_network_and_position():
    vector = weights()
    vector[0] = np.nan
    asked = evaluator()
    asked.load(vector, 12)
    search = Search(GAMES["connect_four"], 2, SearchOptions(simulations=5), asked)
    search.restart()
    with pytest.raises(NotFinite) as raised:
        search.step()
    board = "......./......./......./......./......./......., x to move"
    named = "network residual, 2 blocks of 16 filters, version 12"
    assert str(raised.value) == f"{named}: it answers NaN or infinity to the position {board}"


@pytest.mark.parametrize(("logit", "value"), [(np.nan, 0.0), (np.inf, 0.0), (0.0, np.nan), (0.0, -np.inf)])
def test_one_bad_number_changes_nothing_in_the_tree(logit: float, value: float):
    game = GAMES["tic_tac_toe"]
    search = Search(game, 3, SearchOptions(simulations=5), UniformEvaluator(9))
    search.restart()
    logits, values = np.zeros((3, 9), np.float32), np.zeros(3, np.float32)
    search.round()
    before = search.state()
    logits[1, 4], values[1] = logit, value
    with pytest.raises(NotFinite, match=r"network uniform: .* the position \.\.\./\.\.\./\.\.\., x to move"):
        search.answer(logits, values)
    assert all(np.array_equal(x, before[k]) for k, x in search.state().items())
    logits[1, 4], values[1] = -np.inf, 0.0  # a move that is never made
    search.answer(logits, values)


def test_the_fastest_way_is_chosen(monkeypatch):
    network, seconds = build_network(SMALL, 0), {"float32": 0.004, "bfloat16": 0.002}

    class Slow:
        def __init__(self, precision: str):
            self.seconds = seconds[precision]

        def compute(self) -> None:
            clock[0] += self.seconds

    clock = [0.0]
    monkeypatch.setattr(evaluators.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(evaluators, "_make_backend", lambda network, batch, backend, precision: Slow(precision))
    monkeypatch.setattr(evaluators, "is_half", lambda how, device: True)
    assert choose_backend(network, 8, "torch") == ("torch", "bfloat16")
    assert choose_backend(network, 8, "torch", "float32") == ("torch", "float32")
    monkeypatch.setattr(evaluators, "is_half", lambda how, device: False)
    assert choose_backend(network, 8, "torch") == ("torch", "float32"), "no such numbers here: not measured"


def test_what_is_here_is_measured(monkeypatch):
    assert evaluator(4, "auto", "auto").backend in evaluators.BACKENDS
    monkeypatch.setattr(evaluators, "is_half", lambda how, device: True)
    for has, here in ((True, ["torch", "openvino"]), (False, ["torch"])):
        monkeypatch.setattr(evaluators, "_has_openvino", lambda has=has: has)
        for precision, several in (("auto", ["float32", "bfloat16"]), ("float32", ["float32"])):
            assert evaluators.ways("auto", precision, "cpu") == list(itertools.product(here, several))
    assert evaluators.ways("auto", "float32", "cuda") == [("torch", "float32")]


def test_a_package_that_is_missing_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "openvino" else find(name, *more)
    )
    with pytest.raises(UserError, match=r"needs the package openvino; `pip install .*\[openvino\]'`"):
        NetworkEvaluator(SMALL, 4, "openvino")


# OpenVINO computes, and reports to nobody.

ROOT = Path(__file__).parents[2]
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


@OPENVINO
def test_no_socket_is_opened_no_process_begun_and_no_file_written(home: Path):
    assert run(USES, home) == "[] False (4, 9)"
    assert list(home.iterdir()) == []


@OPENVINO
def test_the_package_itself_would_have_reported(home: Path):
    run("import openvino", home)
    assert [path.name for path in home.iterdir()] == ["reported"]
