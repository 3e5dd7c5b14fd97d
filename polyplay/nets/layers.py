"""Layers that several networks share, names along the axes of tensors, and reuse of activations from acting.

Linear computes a row's output independently of the other rows of the batch. Other functions initialize networks and
preprocess images.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from polyplay.core import tree
from polyplay.core.compiled import compiled, inlined
from polyplay.envs.pool import EnvSpec, byte_bounds

# Names along the axes of a network's tensors. When surgery enlarges a network, old numbers are found by these names.


@dataclass(frozen=True)
class AxisSegment:
    """Named, contiguous part of a tensor's axis. Surgery, which enlarges a network, finds the same elements in the old
    and the new network by these names.

    `shape`: shape of the elements before flattening.
    `fixed`: whether the number of elements must stay the same in surgery.
    `part`: path of the observation, or of the part of an action, that the elements belong to. A network may lack it.
    `silent`: whether elements that surgery adds start at 0, instead of at random.
    """

    name: str
    shape: tuple[int, ...]
    fixed: bool = False
    part: str | None = None
    silent: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Axis = tuple[AxisSegment, ...]


def axis(name: str, *shape: int, fixed: bool = False) -> Axis:
    """Make an axis that has one segment."""
    return (AxisSegment(name, shape, fixed),)


@dataclass(frozen=True)
class TensorAxes:
    """Names along the axes of a tensor. The dict `axes` of a module holds the TensorAxes of each tensor that surgery
    may enlarge, by the tensor's name.

    `fill`: initial value of added elements, or None for the value in a new network.
    `counts`: whether the tensor is the number of rows from which the module's other tensors were computed.
    `spare`: whether the other network may lack the tensor (see surgery.tensor_axes).
    """

    axes: tuple[Axis, ...]
    fill: float | None = None
    counts: bool = False
    spare: bool = False


def observed_axis(spec: EnvSpec, one_hot: bool = True, without: tuple[str, ...] = ()) -> Axis:
    """Return the names along flattened observations, in the order of the spec. If `one_hot`, observations listed in the
    spec's `classes` are one-hot encoded. Observations with paths in `without` are left out.
    """
    found: list[AxisSegment] = []
    for path, field in tree.leaves(spec.obs):
        name, classes = f"observation {path}".strip(), spec.classes.get(path, 0) if one_hot else 0
        if path in without:
            continue
        if isinstance(classes, tuple):
            found += [AxisSegment(f"{name}[{i}]", (n,), part=path) for i, n in enumerate(classes)]
        else:
            found.append(AxisSegment(name, (classes,) if classes else field.shape, part=path))
    return tuple(found)


_planned: ContextVar[bool] = ContextVar("_planned", default=False)


@contextlib.contextmanager
def outlines(planned: bool = True) -> Iterator[None]:
    """Context in which Polyplay's factories make networks without weights, on torch's meta device. With planned=False,
    the factories make real networks.
    """
    token = _planned.set(planned)
    try:
        yield
    finally:
        _planned.reset(token)


def outline() -> contextlib.AbstractContextManager[Any]:
    """Return the context in which a factory makes a network: torch's meta device if `outlines` is active."""
    return torch.device("meta") if _planned.get() else contextlib.nullcontext()


_recording = list[None]()  # shared by all threads: torch runs a GPU's backward passes in another thread


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Context of a computation that is recorded, for example as a CUDA graph, and repeated with other numbers."""
    _recording.append(None)
    try:
        yield
    finally:
        _recording.pop()


def tracing() -> bool:
    """Return whether a tracer or `recording` is active. Then branches and shapes must not depend on tensors' values."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None or bool(_recording)


def one_hot(x: Tensor, n: int) -> Tensor:
    """One-hot encode integers [N] as float32 [N, n]. Raises RuntimeError on a CPU if an integer is not in 0 … n − 1."""
    return torch.zeros(x.shape[0], n, device=x.device).scatter_(1, x.long().unsqueeze(1), 1.0)


_TILE = 8  # number of rows (in narrow layers, also columns) that BLAS kernels take at once, or a multiple
_LEAST = 16  # least number of rows: for fewer rows, BLAS uses other kernels on Intel's processors
_NARROW = 16


def spare_rows(n: int) -> int:
    """Return how many rows of padding n rows need, so that their number is a multiple of _TILE, and at least _LEAST."""
    return max(_LEAST, n + -n % _TILE) - n


class Linear(nn.Linear):
    """Linear layer [N, in] → [N, out], in which a row's output is bitwise the same in every batch.

    On a CPU, BLAS uses other instructions for the last rows of a batch than for the other rows. So the last bits of a
    row's output would depend on the batch size. Therefore this layer pads the batch to a multiple of _TILE rows, and
    pads the inputs of narrow layers too. In measurements with MKL this suffices, but MKL does not promise it.

    If `exact` is False, the layer does not pad. A large layer then takes a third of the time for a single row.
    """

    exact = True
    half_weight: Tensor | None = None  # bfloat16 copy of the weight for acting, see Policy.cache_weights
    present_half: Tensor | None = None  # bfloat16 copy kept equal to the weight, for learning too
    factors: list[tuple[Tensor, Tensor]] | None = None  # a list: backward appends (dL/dy, x) to it; dL/dw is None

    @classmethod
    def along(cls, rows: Axis, columns: Axis) -> Self:
        """Make a layer whose outputs have the axis `rows` and whose inputs have the axis `columns`."""
        layer = cls(sum(s.size for s in columns), sum(s.size for s in rows))
        layer.stand(rows, columns)
        return layer

    def stand(self, rows: Axis, columns: Axis) -> None:
        """Name the axes of weight and bias."""
        self.axes = {"weight": TensorAxes((rows, columns)), "bias": TensorAxes((rows,))}

    def forward(self, x: Tensor) -> Tensor:
        if self.factors is not None and torch.is_grad_enabled():
            out: Tensor = _WithFactors.apply(x, self.weight, self.bias, self.factors, self.present_half, None)
            return out
        weight, half = self.weight, self.half_weight if self.present_half is None else self.present_half
        if half is not None and x.dtype == torch.bfloat16 and not torch.is_grad_enabled():
            return F.linear(x, half, self.bias)
        if x.device.type != "cpu" or not self.exact:
            return F.linear(x, weight, self.bias)
        n = x.shape[0]
        rows = spare_rows(n)
        columns = -x.shape[1] % _TILE if self.out_features < _NARROW else 0
        if not rows and not columns:
            return F.linear(x, weight, self.bias)
        weight = F.pad(weight, (0, columns)) if columns else weight
        return F.linear(F.pad(x, (0, columns, 0, rows)), weight, self.bias)[:n]


class _WithFactors(torch.autograd.Function):
    """F.linear without the weight's gradient dL/dyᵀ·x. Instead, backward appends (dL/dy, x) to the list `factors`.

    `half`: the weight in bfloat16, or None. `token`: the token of _GradientOfUses, or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factors: list[tuple[Tensor, Tensor]],
        half: Tensor | None,
        token: Tensor | None,
    ) -> Tensor:
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        ctx.x, ctx.factors = x.to(dtype), factors
        ctx.weight = half if half is not None and half.dtype == dtype else weight.to(dtype)
        return F.linear(ctx.x, ctx.weight, None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.factors.append((grad, ctx.x))
        bias = grad.sum(0).float() if ctx.needs_input_grad[2] else None
        return grad @ ctx.weight, None, bias, None, None, grad.new_zeros(1) if ctx.needs_input_grad[5] else None


class RepeatedLinear(Linear):
    """Linear layer that a recurrent network calls once per step. In the context `repeated`, one matrix product computes
    the weight's gradient for all steps. A product for each step would take much longer in small batches.
    """

    _open: tuple[Tensor, list[tuple[Tensor, Tensor]]] | None = None

    @contextlib.contextmanager
    def repeated(self) -> Iterator[None]:
        """Context of an unroll. The weight's gradient is computed once for the whole unroll."""
        if torch.is_grad_enabled() and self.weight.requires_grad and not tracing():
            uses: list[tuple[Tensor, Tensor]] = []
            self._open = _GradientOfUses.apply(self.weight, self.bias, uses), uses
        try:
            yield
        finally:
            self._open = None

    def forward(self, x: Tensor) -> Tensor:
        if self._open is None:
            return super().forward(x)
        rows = spare_rows(len(x)) if self.exact and x.device.type == "cpu" else 0
        padded = F.pad(x, (0, 0, 0, rows)) if rows else x
        bias, (token, uses) = None if self.bias is None else self.bias.detach(), self._open
        out: Tensor = _WithFactors.apply(padded, self.weight.detach(), bias, uses, None, token)
        return out[: len(x)]


class _GradientOfUses(torch.autograd.Function):
    """Computes the gradients of weight and bias for all calls of a RepeatedLinear in an unroll. Forward makes a token,
    which all calls take as input. So autograd runs this backward after the backward of all calls.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, uses: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.uses, ctx.bias = uses, bias is not None
        return weight.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        grad, x = (torch.cat(parts) for parts in zip(*ctx.uses, strict=True))
        ctx.uses.clear()
        return grad.t() @ x, grad.sum(0) if ctx.bias else None, None


class Conv2d(nn.Conv2d):
    """Convolution that can use a bfloat16 copy of its weight, for acting."""

    half_weight: Tensor | None = None  # see Linear
    present_half: Tensor | None = None  # never set

    def forward(self, x: Tensor) -> Tensor:
        if self.half_weight is not None and x.dtype == torch.bfloat16 and not torch.is_grad_enabled():
            return self._conv_forward(x, self.half_weight, self.bias)
        return super().forward(x)


def cache_half_weights(layers: Iterable[nn.Module]) -> None:
    """Make a bfloat16 copy of the weight of every Linear and Conv2d, for acting in bfloat16. Later calls write to the
    same copies, because CUDA graphs read their memory.
    """
    for layer in layers:
        if isinstance(layer, Linear | Conv2d) and layer.present_half is None:
            if layer.half_weight is None:
                layer.half_weight = torch.empty_like(layer.weight, dtype=torch.bfloat16, requires_grad=False)
            layer.half_weight.copy_(layer.weight.detach())


def pad_lanes(lanes: int, device: torch.device) -> int:
    """Return how many lanes to add on a CPU, so that the number of lanes is a multiple of _TILE. Return 0 on a GPU."""
    return -lanes % _TILE if device.type == "cpu" else 0


def initialize(module: nn.Module, style: str, gain: float = math.sqrt(2.0)) -> None:
    """Initialize every linear and convolutional layer in `module`, in order, from torch's global generator.

    `style`: one of the following. Only orthogonal uses `gain`.
    orthogonal: orthogonal weights with `gain`, zero bias (OpenAI baselines).
    torch: weights and biases uniform in ±1/√fan_in (Torch 7's, as in A3C and GA3C).
    sonnet: normal weights with deviation 1/√fan_in, redrawn beyond two deviations, zero bias (Sonnet's, as in IMPALA).
    dopamine: weights uniform in ±∜3/√fan_in, zero bias (Dopamine's Rainbow).
    """
    for layer in module.modules():
        if not isinstance(layer, (nn.Linear, nn.Conv2d)):
            continue
        scale = layer.weight[0].numel() ** -0.5
        if style == "orthogonal":
            nn.init.orthogonal_(layer.weight, gain)
        elif style == "sonnet":
            nn.init.trunc_normal_(layer.weight, 0.0, scale, -2.0 * scale, 2.0 * scale)
        else:
            bound = scale if style == "torch" else 3**0.25 * scale
            nn.init.uniform_(layer.weight, -bound, bound)
        if layer.bias is not None and style == "torch":
            nn.init.uniform_(layer.bias, -scale, scale)
        elif layer.bias is not None:
            nn.init.zeros_(layer.bias)


def pixels(obs: Tensor, scale: float = 1.0 / 255.0, low: float = 0.0) -> Tensor:
    """Convert images [N, C, H, W] to floats, in the memory format channels last.

    A byte x becomes (x − low)·scale, by default in [0, 1]. On a CPU, training is faster with channels last. Acting and
    training must use the same memory format to give equal results.
    """
    if obs.is_floating_point():  # already converted, by CenteredImages, SignedImages or a user's network
        return obs.contiguous(memory_format=torch.channels_last)
    if obs.device.type == "cuda" and torch.is_autocast_enabled("cuda"):  # bytes are exact in bfloat16
        x = obs.to(torch.bfloat16, memory_format=torch.channels_last)
        return (x.sub_(low) if low else x).mul_(scale)
    return _scaled(obs, torch.tensor(low) if low else None, scale)


class FlatLeaves(nn.Module):
    """Flattens observations [N, …] to float32 [N, numbers]. Bytes are scaled from their declared bounds to [0, 1]."""

    def __init__(self, spec: EnvSpec):
        super().__init__()
        bounds = byte_bounds(spec)
        self.pixels = {path: bool((low == 0).all() and (high == 255).all()) for path, (low, high) in bounds.items()}
        for i, ends in enumerate(bounds.values()):  # buffers of bytes are neither learned nor averaged
            numbers = np.stack([x.astype(np.uint8).ravel() for x in ends])
            self.register_buffer(f"ends{i}", torch.from_numpy(numbers), persistent=False)

    def numbers(self, path: str, x: Tensor) -> Tensor:
        flat = x.reshape(x.shape[0], -1)  # not len(x), which would fix N in an exported graph
        if x.dtype != torch.uint8 or path not in self.pixels:  # normalized leaves are no longer bytes
            return flat.float()
        if self.pixels[path]:
            return flat.float() * (1.0 / 255.0)
        low, high = self.get_buffer(f"ends{list(self.pixels).index(path)}").float()
        return (flat.float() - low) / (high - low).clamp_min(1.0)


def _scaled(obs: Tensor, mean: Tensor | None, scale: float) -> Tensor:
    """Return (obs − mean)·scale for bytes [N, C, H, W], channels last. `mean`: [C, H, W], a scalar, or None for 0."""
    fits = obs.dtype == torch.uint8 and obs.device.type == "cpu" and obs.shape[1] == 4 and obs.is_contiguous()
    if fits and not tracing() and not torch.jit.is_tracing():  # `_fused` supports these images and may be used
        planes = (torch.zeros(()) if mean is None else mean).expand(obs.shape[1:]).flatten(1).contiguous()
        return _fused(obs, planes.numpy(), scale)
    # convert the type, then the order: two simple passes take a third less time than one that does both
    x = obs.to(torch.float32).contiguous(memory_format=torch.channels_last)  # a new copy, since the type changed
    return (x if mean is None else x.sub_(mean)).mul_(scale)


def _fused(obs: Tensor, mean: np.ndarray, scale: float) -> Tensor:
    """Return (obs − mean)·scale for bytes [N, 4, H, W], in one pass over memory. The result is bitwise torch's, in
    bfloat16 under autocast, else in float32. `mean`: float32 [4, H · W].
    """
    n, planes, height, width = obs.shape
    half = torch.is_autocast_enabled("cpu")
    out = torch.empty(n, height, width, planes, dtype=torch.bfloat16 if half else torch.float32)
    bytes_ = obs.numpy().reshape(n, planes, -1)
    if half:
        bits = out.view(torch.int64).numpy().view(np.uint64).reshape(n, -1)  # four numbers of 16 bits each
        _interleave_halves(bytes_, mean, np.float32(scale), bits)
    else:
        _interleave(bytes_, mean, np.float32(scale), out.numpy().reshape(n, -1))
    return out.permute(0, 3, 1, 2)


@inlined
def _bfloat16(number: np.float32) -> np.uint32:
    """Return the bits of `number` rounded to bfloat16, ties to even, as torch does. NaN is not supported."""
    bits = np.float32(number).view(np.uint32)
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@compiled
def _interleave_halves(x: np.ndarray, mean: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Write (x − mean)·scale of four planes to `out` as bfloat16. A number in `out` holds a pixel's four values. `x`:
    uint8 [N, 4, P]. `mean`: float32 [4, P]. `out`: uint64 [N, P].
    """
    a, b, c, d = mean[0], mean[1], mean[2], mean[3]
    for n in range(x.shape[0]):
        p, q, r, s, row = x[n, 0], x[n, 1], x[n, 2], x[n, 3], out[n]
        for i in range(row.size):
            low = _bfloat16((np.float32(p[i]) - a[i]) * scale) | (
                _bfloat16((np.float32(q[i]) - b[i]) * scale) << np.uint32(16)
            )
            high = _bfloat16((np.float32(r[i]) - c[i]) * scale) | (
                _bfloat16((np.float32(s[i]) - d[i]) * scale) << np.uint32(16)
            )
            row[i] = np.uint64(low) | (np.uint64(high) << np.uint64(32))  # one store, so that compilers vectorize


@compiled
def _interleave(x: np.ndarray, mean: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Write (x − mean)·scale of four planes to `out` [N, 4 · P] as float32. A pixel's four values are adjacent."""
    a, b, c, d = mean[0], mean[1], mean[2], mean[3]
    for n in range(x.shape[0]):
        p, q, r, s, row = x[n, 0], x[n, 1], x[n, 2], x[n, 3], out[n]
        for i in range(p.size):
            row[4 * i] = (np.float32(p[i]) - a[i]) * scale
            row[4 * i + 1] = (np.float32(q[i]) - b[i]) * scale
            row[4 * i + 2] = (np.float32(r[i]) - c[i]) * scale
            row[4 * i + 3] = (np.float32(s[i]) - d[i]) * scale


class CenteredImages(nn.Module):
    """Subtracts the mean image from images of bytes [N, C, H, W], so that constant parts of the screen vanish.

    The mean image is computed from a learner's first `ROWS` observations, and then stays constant. Like the weights,
    the mean image is published, saved and averaged over replicas. `span` is the highest byte minus the lowest byte.
    """

    ROWS = 20_000
    GAIN = 3.0  # factor of differences, which are small: most pixels are near 0

    mean: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, int, int], span: float = 255.0):
        super().__init__()
        self.scale = self.GAIN / span
        channels, height, width = shape
        # stored as [H, W, C], so that its view [C, H, W] has the memory layout of channels-last images
        self.register_buffer("mean", torch.zeros(height, width, channels))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, obs: Tensor) -> Tensor:
        return _scaled(obs, self.mean.permute(2, 0, 1), self.scale)

    @torch.no_grad()
    def observe(self, obs: Tensor) -> None:
        """Update the mean from rows [..., C, H, W], until `ROWS` rows were counted."""
        if float(self.count) >= self.ROWS:
            return
        rows = obs.flatten(0, -4)
        mean = rows.to(torch.float32).mean(0).permute(1, 2, 0)
        self.mean += (mean - self.mean) * (len(rows) / (self.count + len(rows)))
        self.count += len(rows)


class SignedImages(nn.Module):
    """Maps images of bytes x [N, C, H, W] to x/128 − 1, as in GA3C. If the bytes have other bounds than 0 and 255, maps
    [`low`, `high`] to [−1, 1].
    """

    def __init__(self, low: int = 0, high: int = 255):
        super().__init__()
        ends = (0, 256) if (low, high) == (0, 255) else (low, max(high, low + 1))
        self.middle, self.reach = sum(ends) / 2, (ends[1] - ends[0]) / 2

    def forward(self, obs: Tensor) -> Tensor:
        return _scaled(obs, torch.tensor(self.middle), 1.0 / self.reach)

    def observe(self, obs: Tensor) -> None:
        """Do nothing: signed images need no statistics."""


# Layers that reuse their outputs from acting, so that learning computes only gradients.
#
# At lag 0, the learner has the weights that acted, so the learner's forward pass would repeat the actor's. `act` fills
# a tape with each layer's output; `join_tapes` joins the tapes of a rollout; in `unroll`, each layer takes its output
# from the joined tape. Operations between layers (padding, flattening, heads, cores) are cheap and are computed again.


Tape = list[Tensor]  # each layer's output, [N, …], after its ReLU


def join_tapes(tapes: list[Tape]) -> Tape:
    """Join the tapes of successive calls of `act`: concatenate each layer's recorded outputs."""
    return [torch.cat(outputs) for outputs in zip(*tapes, strict=True)]


def recall(layer: nn.Conv2d | nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """Return y, the recorded value of relu(layer(x)). The gradient is that of relu(layer(x))."""
    conv = (layer.stride, layer.padding) if isinstance(layer, nn.Conv2d) else None
    out: Tensor = _Recalled.apply(x.to(y.dtype), layer.weight.to(y.dtype), layer.bias.to(y.dtype), y, conv)  # type: ignore[union-attr]
    return out


class _Recalled(torch.autograd.Function):
    """Autograd function of `recall`. `conv`: stride and padding of a convolution, or None for a linear layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor, conv: tuple[Any, Any] | None) -> Tensor:
        ctx.save_for_backward(x, weight, y)
        ctx.conv, ctx.biases = conv, list(bias.shape)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        back = torch.ops.aten.threshold_backward(grad, y, 0)
        if ctx.conv is None:
            return back @ weight, back.t() @ x, back.sum(0), None, None
        wanted = [ctx.needs_input_grad[0], True, True]
        more = *ctx.conv, (1, 1), False, (0, 0), 1, wanted
        return *torch.ops.aten.convolution_backward(back, x, weight, ctx.biases, *more), None, None


# For users' own networks and losses.


def mlp(*sizes: int) -> nn.Sequential:
    """Make an MLP with these layer sizes and ReLU between the layers. Example: mlp(3, 64, 1) maps float32 [..., 3] to
    [..., 1].
    """
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def frozen(module: nn.Module) -> Callable[..., Any]:
    """Return a function that calls the module with constant weights. Only the inputs get gradients."""
    weights = {name: x.detach() for name, x in module.named_parameters()}
    return lambda *inputs: torch.func.functional_call(module, weights, inputs)
