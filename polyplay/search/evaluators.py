"""Networks that evaluate positions for a tree search, computed by PyTorch or OpenVINO."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core.errors import UserError
from polyplay.core.machine import install_command
from polyplay.nets.device import is_half
from polyplay.nets.factory import build_network
from polyplay.nets.residual import BoardNetworkFactory, DualResidualNetwork, FoldedNetwork
from polyplay.weights.params import FlatParams


class TorchBackend:
    """Backend that computes a network by PyTorch, on the device of the network."""

    def __init__(self, network: DualResidualNetwork, batch: int, precision: str):
        numbers = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.folded = FoldedNetwork(network, numbers)
        self.device = network.output.weight.device
        channels, rows, columns = network.planes
        self.planes = np.zeros((batch, rows, columns, channels), np.float32).transpose(0, 3, 1, 2)  # channels last
        self._input = torch.from_numpy(self.planes)

    def take(self, network: DualResidualNetwork) -> None:
        self.folded.take(network)

    @torch.inference_mode()
    def compute(self) -> tuple[np.ndarray, np.ndarray]:
        logits, values = self.folded(self._input.to(self.device))
        return logits.cpu().numpy(), values.cpu().numpy()


# An OpenVINO model is built from OpenVINO's operators and the folded weights, without a conversion from torch. Newer
# weights need a new model. On import, OpenVINO would report to an analytics server and leave an id in the home
# directory; `import_openvino` prevents both.


REPORTS = "openvino_telemetry"


def import_openvino() -> ModuleType:
    """Import OpenVINO, but prevent its reports to an analytics server."""
    hidden = REPORTS not in sys.modules
    if hidden:
        sys.modules[REPORTS] = None  # type: ignore[assignment]  # OpenVINO uses a stub if this import fails
    try:
        import openvino
    finally:
        if hidden:
            del sys.modules[REPORTS]
    return openvino


class OpenVINOBackend:
    """Backend that computes a network by OpenVINO, in one CPU thread. Raises UserError on any other device."""

    def __init__(self, network: DualResidualNetwork, batch: int, precision: str):
        device = network.output.weight.device
        if device.type != "cpu":
            raise UserError(f"--evaluator openvino: computes on CPUs, the network is on {device}; use torch")
        self.openvino = import_openvino()
        self.core = self.openvino.Core()
        self.options = {
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
            "INFERENCE_NUM_THREADS": 1,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # several processes would pin their threads to the same core
        }
        self.planes = np.zeros((batch, *network.planes), np.float32)
        self.folded = FoldedNetwork(network)
        self.take(network)

    def take(self, network: DualResidualNetwork) -> None:
        self.folded.take(network)
        model = build_model(self.openvino, self.folded, self.planes.shape)
        self._request = self.core.compile_model(model, "CPU", self.options).create_infer_request()
        self._request.set_input_tensor(self.openvino.Tensor(self.planes, shared_memory=True))

    def compute(self) -> tuple[np.ndarray, np.ndarray]:
        self._request.infer()
        return self._request.get_output_tensor(0).data, self._request.get_output_tensor(1).data


def build_model(openvino: ModuleType, folded: FoldedNetwork, shape: tuple[int, ...]) -> Any:
    """Return an OpenVINO model of FoldedNetwork.forward, from planes of this shape to logits [N, A] and values [N]."""
    ops = openvino.opset8
    planes = ops.parameter(shape, np.float32)
    stem, *tower = folded.trunk()
    x = ops.relu(_convolution(ops, planes, stem))
    for first, second in zip(tower[::2], tower[1::2], strict=True):
        inner = ops.relu(_convolution(ops, x, first))
        x = ops.relu(ops.add(_convolution(ops, inner, second), x))
    heads = ops.relu(_convolution(ops, x, folded.heads))
    sizes = [folded.split, folded.heads.out_channels - folded.split]
    policy, value = ops.variadic_split(heads, 1, sizes).outputs()
    value = ops.relu(_linear(ops, _rows(ops, value), folded.hidden))
    value = ops.tanh(_linear(ops, value, folded.output))
    logits = _linear(ops, _rows(ops, policy), folded.logits)
    return openvino.Model([logits, ops.reshape(value, np.array([-1]), False)], [planes], "policy and value")


def _convolution(ops: Any, x: Any, conv: nn.Conv2d) -> Any:
    around = [int(n) for n in conv.padding]
    made = ops.convolution(x, _array(conv.weight), [1, 1], around, around, [1, 1])
    return ops.add(made, _array(conv.bias).reshape(1, -1, 1, 1))


def _linear(ops: Any, x: Any, layer: nn.Linear) -> Any:
    return ops.add(ops.matmul(x, _array(layer.weight), False, True), _array(layer.bias))


def _rows(ops: Any, x: Any) -> Any:
    return ops.reshape(x, np.array([0, -1]), True)


def _array(weights: Tensor | None) -> np.ndarray:
    """Return a float32 copy of weights, for a model that keeps the array."""
    assert weights is not None
    return weights.detach().to(torch.float32).contiguous().numpy().copy()


BACKENDS, PRECISIONS = ("torch", "openvino"), ("float32", "bfloat16")
SECONDS = 0.1  # time to measure each (backend, precision)
ROUNDS = 3  # least number of measured batches; the first may be slow


# A backend computes a network in batches of one fixed shape. `planes` is the input, float32 [batch, C, H, W]; `compute`
# returns logits [batch, A] and values [batch], valid until the next call; `take` copies newer weights.
Backend = TorchBackend | OpenVINOBackend


class NetworkEvaluator:
    """Network that evaluates positions for a search. Small batches are padded and large ones are split, so that all
    batches have the same shape. The outputs for a position are therefore bitwise the same in any batch.

    `backend`: "torch", or on CPUs also "openvino". "auto" means the fastest (`choose_backend`).
    `precision`: type of the numbers in convolutions, "float32", "bfloat16" or "auto". Outputs are always float32.

    On a CPU, one thread computes. Raises UserError if a backend is unavailable.
    """

    def __init__(
        self,
        factory: BoardNetworkFactory,
        batch: int,
        backend: str = "torch",
        precision: str = "float32",
        device: torch.device | str = "cpu",
    ):
        network = build_network(factory, 0, device=device)
        assert isinstance(network, DualResidualNetwork)
        self.network, self.vector = network, FlatParams(network)
        self.batch, self.version = batch, -1
        if "auto" in (backend, precision):
            backend, precision = choose_backend(network, batch, backend, precision)
        self.backend, self.precision = backend, precision
        self._backend = _make_backend(network, batch, backend, precision)

    @property
    def title(self) -> str:
        return f"{self.network.title}, version {self.version}"

    def load(self, weights: np.ndarray, version: int) -> None:
        """Load weights, float32 [size]: all parameters and running statistics in one vector (see weights.params)."""
        if weights.shape != (self.vector.size,):
            raise ValueError(f"weights of shape {weights.shape} for a network of {self.vector.size}")
        self.vector.write(weights)
        self.take(version)

    def take(self, version: int) -> None:
        """Use the weights that are now in `vector`. version: the version of these weights."""
        with one_thread():
            self._backend.take(self.network)
        self.version = version

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return logits [N, A] and values [N] of planes [N, C, H, W], all float32. Values lie in [-1, 1], for the
        player to move.
        """
        if self.version < 0:
            raise RuntimeError("no weights yet: call load before evaluate")
        logits = np.empty((len(planes), self.network.actions), np.float32)
        values = np.empty(len(planes), np.float32)
        with one_thread():
            for at in range(0, len(planes), self.batch):
                n = min(self.batch, len(planes) - at)
                self._backend.planes[:n] = planes[at : at + n]
                answers = self._backend.compute()
                logits[at : at + n], values[at : at + n] = (answer[:n] for answer in answers)
        return logits, values


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread while the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_backend(backend: str) -> None:
    """Raise UserError if the package of a backend is not installed."""
    if backend == "openvino" and not _has_openvino():
        raise UserError(f"--evaluator openvino: needs the package openvino; `{install_command('openvino')}`")


def _has_openvino() -> bool:
    return importlib.util.find_spec("openvino") is not None


def choose_backend(
    network: DualResidualNetwork, batch: int, backend: str = "auto", precision: str = "auto"
) -> tuple[str, str]:
    """Return the fastest (backend, precision) for batches of this size. Each pair that `ways` returns is measured for
    about SECONDS, and its fastest batch counts. Raises UserError if a backend is unavailable.
    """
    tried = ways(backend, precision, network.output.weight.device.type)
    with one_thread():
        computing = {way: _make_backend(network, batch, *way) for way in tried}
        seconds, rounds = dict.fromkeys(tried, math.inf), 0
        until = time.perf_counter() + SECONDS * len(tried)
        while len(tried) > 1 and (rounds < ROUNDS or time.perf_counter() < until):
            for way in tried:
                begun = time.perf_counter()
                computing[way].compute()
                seconds[way] = min(seconds[way], time.perf_counter() - begun)
            rounds += 1
    return min(tried, key=lambda way: seconds[way])


def ways(backend: str, precision: str, device: str) -> list[tuple[str, str]]:
    """Return the pairs (backend, precision) to measure. The backend "auto" means all installed backends. The precision
    "auto" means all precisions that the device (cpu or cuda) computes natively.
    """
    here = BACKENDS if device == "cpu" and _has_openvino() else BACKENDS[:1]
    several = PRECISIONS if is_half("auto", device) else PRECISIONS[:1]
    backends = here if backend == "auto" else [backend]
    return list(itertools.product(backends, several if precision == "auto" else [precision]))


def _make_backend(network: DualResidualNetwork, batch: int, backend: str, precision: str) -> Backend:
    check_backend(backend)
    if backend == "torch":
        return TorchBackend(network, batch, precision)
    return OpenVINOBackend(network, batch, precision)
