"""A network for a search, computed by OpenVINO on a CPU in batches of one shape: the extra `openvino`.

The model is made of OpenVINO's own operators and the folded weights; nothing is converted, and newer weights make a new
model. OpenVINO's package reports that it was imported to an analytics server, by a process of its own, and leaves an id
in the home directory: here it is imported so that it cannot.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.common.errors import UserError
from polyplay.nets.folding import FoldedNetwork
from polyplay.nets.residual import DualResidualNetwork

REPORTS = "openvino_telemetry"


def import_openvino() -> ModuleType:
    """OpenVINO without its reports."""
    hidden = REPORTS not in sys.modules
    if hidden:
        sys.modules[REPORTS] = None  # type: ignore[assignment]  # its import fails, and a stub stands in for it
    try:
        import openvino
    finally:
        if hidden:
            del sys.modules[REPORTS]
    return openvino


class OpenVINOBackend:
    """threads: that compute; 0: as OpenVINO chooses. They are not bound to cores: those of two processes would be bound
    to the same ones. Raises UserError.
    """

    def __init__(self, network: DualResidualNetwork, batch: int, precision: str, threads: int):
        device = network.output.weight.device
        if device.type != "cpu":
            raise UserError(f"--evaluator openvino: computes on CPUs, the network is on {device}; take torch")
        self.openvino = import_openvino()
        self.core = self.openvino.Core()
        self.options = {
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
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
    """FoldedNetwork.forward, of planes of that shape, as an OpenVINO model; logits [N, A] and values [N]."""
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
    """A copy that the model may keep."""
    assert weights is not None
    return weights.detach().to(torch.float32).contiguous().numpy().copy()
