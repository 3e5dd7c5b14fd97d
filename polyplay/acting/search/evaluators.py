"""What a search asks: a network, computed in one of several ways; or the same answer always."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from polyplay.acting.search.torch_backend import TorchBackend
from polyplay.common.errors import UserError
from polyplay.nets.factory import build_network
from polyplay.nets.precision import is_half
from polyplay.nets.residual import BoardNetworkFactory, DualResidualNetwork
from polyplay.weights.flat import FlatParams

BACKENDS, PRECISIONS = ("torch", "openvino"), ("float32", "bfloat16")
SECONDS = 0.1  # of measuring each way to compute
ROUNDS = 3  # batches at least, the first of which may be slow


class UniformEvaluator:
    """Every move alike, every position even."""

    title = "uniform"

    def __init__(self, actions: int):
        self.logits, self.values = np.zeros((0, actions), np.float32), np.zeros(0, np.float32)

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(planes) > len(self.values):
            self.logits = np.zeros((len(planes), self.logits.shape[1]), np.float32)
            self.values = np.zeros(len(planes), np.float32)
        return self.logits[: len(planes)], self.values[: len(planes)]


class Backend(Protocol):
    """Computes a network in batches of one shape."""

    planes: np.ndarray  # float32 [batch, C, H, W], in its own layout: what `compute` takes

    def take(self, network: DualResidualNetwork) -> None: ...  # newer weights
    def compute(self) -> tuple[np.ndarray, np.ndarray]: ...  # logits [batch, A] and values [batch], until the next call


class NetworkEvaluator:
    """A network as a search asks it, always computed in batches of one shape: fewer positions are padded, more are cut
    up. So a position has the same bits in whatever company and wherever in the batch.

    backend "torch" or "openvino" (on CPUs), precision "float32" or "bfloat16": the numbers that convolutions are
    computed in; answers are float32. "auto" measures (`choose_backend`); a player that continues from a checkpoint
    names what was chosen, for bits differ between them. threads: that compute on a CPU; 0: as many as the process has.
    Raises UserError.
    """

    def __init__(
        self,
        factory: BoardNetworkFactory,
        batch: int,
        backend: str = "torch",
        precision: str = "float32",
        device: torch.device | str = "cpu",
        threads: int = 1,
    ):
        if batch < 1:
            raise UserError(f"evaluator: batches of {batch} positions given; allowed: 1 or more")
        network = build_network(factory, 0, device=device)
        assert isinstance(network, DualResidualNetwork)
        self.network, self.vector = network, FlatParams(network)
        self.batch, self.threads, self.version = batch, threads, -1
        if "auto" in (backend, precision):
            backend, precision = choose_backend(network, batch, backend, precision, threads)
        self.backend, self.precision = backend, precision
        self._backend = _make_backend(network, batch, backend, precision, threads)

    @property
    def title(self) -> str:
        return f"{self.network.title}, version {self.version}"

    def load(self, weights: np.ndarray, version: int) -> None:
        """Compute with this vector from now on: float32 [size], parameters and running statistics (weights.flat)."""
        if weights.shape != (self.vector.size,):
            raise ValueError(f"weights of shape {weights.shape} for a network of {self.vector.size}")
        self.vector.write(weights)
        self.take(version)

    def take(self, version: int) -> None:
        """Compute with the weights that are in `vector` now."""
        with computing_threads(self.threads):
            self._backend.take(self.network)
        self.version = version

    def evaluate(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See search.Evaluator."""
        if self.version < 0:
            raise RuntimeError("no weights yet: load comes before evaluate")
        logits = np.empty((len(planes), self.network.actions), np.float32)
        values = np.empty(len(planes), np.float32)
        with computing_threads(self.threads):
            for at in range(0, len(planes), self.batch):
                n = min(self.batch, len(planes) - at)
                self._backend.planes[:n] = planes[at : at + n]
                answers = self._backend.compute()
                logits[at : at + n], values[at : at + n] = (answer[:n] for answer in answers)
        return logits, values


@contextlib.contextmanager
def computing_threads(n: int) -> Iterator[None]:
    """torch computes with so many threads; 0: as many as it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_backend(backend: str) -> None:
    """Raises UserError: its package is not installed."""
    if backend == "openvino" and not _has_openvino():
        raise UserError("--evaluator openvino: needs the package openvino; `pip install 'polyplay[openvino]'`")


def _has_openvino() -> bool:
    return importlib.util.find_spec("openvino") is not None


def choose_backend(
    network: DualResidualNetwork, batch: int, backend: str = "auto", precision: str = "auto", threads: int = 1
) -> tuple[str, str]:
    """(backend, precision) of the ways that these names leave and this machine has, the fastest in batches of this
    size. Measured in turn, each by its fastest batch, for a second or so. Raises UserError.
    """
    tried = ways(backend, precision, network.output.weight.device.type)
    with computing_threads(threads):
        computing = {way: _make_backend(network, batch, *way, threads) for way in tried}
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
    """(backend, precision) to measure: instead of "auto" the backends that are here, and the precisions that a device,
    cpu or cuda, has.
    """
    here = BACKENDS if device == "cpu" and _has_openvino() else BACKENDS[:1]
    several = PRECISIONS if is_half("auto", device) else PRECISIONS[:1]
    backends = here if backend == "auto" else [backend]
    return list(itertools.product(backends, several if precision == "auto" else [precision]))


def _make_backend(network: DualResidualNetwork, batch: int, backend: str, precision: str, threads: int) -> Backend:
    """Raises UserError."""
    for option, given, allowed in (("evaluator", backend, BACKENDS), ("precision", precision, PRECISIONS)):
        if given not in allowed:
            raise UserError(f"--{option}: {given!r} given; allowed: auto, {', '.join(allowed)}")
    check_backend(backend)
    if backend == "torch":
        return TorchBackend(network, batch, precision)
    from polyplay.acting.search.openvino_backend import OpenVINOBackend

    return OpenVINOBackend(network, batch, precision, threads)
