"""Devices and numeric precision of networks: choice of the device, copies to and from GPUs, CUDA graphs, bfloat16.

Networks compute on the CPU or on CUDA devices (GPUs). Numbers are copied there, and results are copied back. Queues,
published weights and pools of environments are always in the CPU's memory. So are rows (data of one step), except the
observations of a learner that itself acts on a GPU.

A worker process uses one device, and only the default stream of this device, so its operations run in order. Workers'
fork servers must never use a device, because processes forked from them could not use one.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.shared_memory import SharedBlock
from polyplay.core.tree import Batch, Tree
from polyplay.nets.layers import recording
from polyplay.nets.policy import Policy


def available() -> int:
    """Return the number of CUDA devices that this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_devices(how: str) -> tuple[str, ...]:
    """Return the devices that the option `--device` means: ("cpu",) or ("cuda:0", …). Raises UserError if `how` is
    "cuda" and there is no GPU.
    """
    n = 0 if how == "cpu" else available()
    if how == "cuda" and not n:
        built = "finds no GPU" if torch.version.cuda else "is built for the CPU alone"
        raise UserError(f"--device: cuda given, but torch {torch.__version__} {built}; allowed here: auto, cpu")
    return tuple(f"cuda:{i}" for i in range(n)) or ("cpu",)


def enter_device(name: str) -> torch.device:
    """Return the device called `name`. A CUDA device also becomes the default device of this thread."""
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def device_name(name: str) -> str:
    """Return a device's name in words, for the plan that is printed before a run."""
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else "the CPU"


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work. Afterward, memory that copies have read may change."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


# --------------------------------------------------------------------------------------- copies to and from devices


def to_device(batch: Tree, device: torch.device) -> Tree:
    """Return NumPy arrays and tensors as tensors on a device. Tensors that are already there are not copied. Copies
    from page-locked memory may still be running when this function returns: see `synchronize`.
    """
    if isinstance(batch, dict):
        return {k: to_device(v, device) for k, v in batch.items()}
    if device.type == "cpu" and type(batch) is np.ndarray:
        return torch.from_numpy(batch)  # takes a third of as_tensor's time
    return torch.as_tensor(batch).to(device, non_blocking=True)


def to_host(x: Tensor | np.ndarray) -> np.ndarray:
    """Return x as a NumPy array. A CPU tensor shares its memory with the array. A GPU tensor is copied."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def fetch_outputs(batch: Batch) -> Batch:
    """Copy all tensors of a device to the CPU in one transfer, because each separate copy would wait for the device."""
    return split_bytes(join_bytes(batch).cpu(), batch) if any(tree.leaves(batch)) else {}


def join_bytes(batch: Batch) -> Tensor:
    """Return the bytes of all tensors as one flat tensor, in the order of `_by_size`."""
    return torch.cat([x.contiguous().flatten().view(torch.uint8) for _, x in _by_size(batch)])


def split_bytes(flat: Tensor, like: Batch) -> Batch:
    """Make tensors from the bytes `flat`. This inverts `join_bytes`. like: tensors of the same shapes and types."""
    leaves = _by_size(like)
    parts = flat.split([x.numel() * x.element_size() for _, x in leaves])
    back = {path: part.view(x.dtype).view(x.shape) for (path, x), part in zip(leaves, parts, strict=True)}
    return tree.nest({path: back[path] for path, _ in tree.leaves(like)})


def _by_size(batch: Batch) -> list[tuple[str, Tensor]]:
    """Return the leaves sorted by element size, largest first, so that each leaf stays aligned in memory."""
    return sorted(tree.leaves(batch), key=lambda leaf: -leaf[1].element_size())


def to_floats(scalars: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Convert scalars to floats. All scalars that are on a device are copied in one transfer."""
    far = {k: v for k, v in scalars.items() if isinstance(v, Tensor) and v.device.type != "cpu"}
    read = dict(zip(far, torch.stack([v.float() for v in far.values()]).tolist(), strict=True)) if far else {}
    return {k: read[k] if k in read else float(v) for k, v in scalars.items()}


class HostCopy:
    """Gives access to a flat tensor as a NumPy `array`, wherever the tensor is.

    The array shares the memory of a CPU tensor, and is a copy of a GPU tensor. `fetch` updates the copy from the
    tensor, and `put` writes the copy back.
    """

    def __init__(self, tensor: Tensor):
        self.tensor, self.far = tensor, tensor.device.type != "cpu"
        self.copy = torch.empty(tensor.shape, dtype=tensor.dtype) if self.far else tensor.detach()
        self.array = self.copy.numpy()

    def fetch(self) -> np.ndarray:
        if self.far:
            self.copy.copy_(self.tensor)
        return self.array

    def put(self) -> None:
        if self.far:
            self.tensor.copy_(self.copy)


# CUDA graphs: a function's kernels are recorded once, then launched together. Every launch reads and writes the memory
# addresses of the recording; numbers that were in the CPU's memory become constants.


Function = Callable[..., tuple[Tensor, ...]]
WARM = 3  # calls before the recording, in which libraries allocate their memory


class StaticCall:
    """A function of tensors that uses the same memory in every call, which makes calls on a GPU faster.

    On a GPU the function runs as one CUDA graph. On a CPU the function is called again, so tests on a CPU reveal the
    same mistakes, such as a forgotten argument.

    given: example arguments, with which the constructor runs the function.
    fixed: the first `fixed` arguments never move and are used in place. The others have copies on the device, which
        each call overwrites.
    Raises RuntimeError if the function waits for the device, or if there is not enough memory.
    """

    def __init__(self, function: Function, given: Sequence[Tensor], fixed: int = 0, device: torch.device | None = None):
        device = given[0].device if device is None else device
        copies = (x.detach().to(device, copy=True) for x in given[fixed:])
        self.function, self.static = function, [*given[:fixed], *copies]
        self._replay, self._outputs = (_run_again if device.type == "cpu" else _record_graph)(self._run)

    def _run(self) -> tuple[Tensor, ...]:
        with torch.no_grad(), recording():
            return self.function(*self.static)

    def fill(self, given: Sequence[Tensor], at: int = 0) -> list[Tensor]:
        """Copy `given`, arguments number `at` and following, into the device's copies. Return these copies. An argument
        that is itself such a copy is not copied.
        """
        places = self.static[at : at + len(given)]
        for place, x in zip(places, given, strict=True):
            if place is not x:
                place.copy_(x, non_blocking=True)
        return places

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Run the function on the arguments `given`. Return copies of the outputs."""
        self.fill(given)
        self._replay()
        return [x.clone() for x in self._outputs]


Recorded = tuple[Callable[[], None], tuple[Tensor, ...]]  # a function that recomputes the outputs in place; the outputs


def _record_graph(run: Callable[[], tuple[Tensor, ...]]) -> Recorded:
    """Warm up on a side stream, then record a CUDA graph (see torch's notes on CUDA graphs). Other threads may use the
    device.
    """
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        for _ in range(WARM):
            run()
    here.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = run()
    return graph.replay, outputs


def _run_again(run: Callable[[], tuple[Tensor, ...]]) -> Recorded:
    outputs = run()

    def replay() -> None:
        for out, x in zip(outputs, run(), strict=True):
            out.copy_(x)

    return replay, outputs


def signature_of(given: Batch) -> tuple[Any, list[Tensor]]:
    """Return a key made of the tensors' names, shapes and types, and the tensors as a list, made contiguous."""
    flat = dict(tree.leaves(given))
    return (tuple(flat), tuple([(x.shape, x.dtype) for x in flat.values()])), [x.contiguous() for x in flat.values()]


# -------------------------------------------------------------------------------------------------- page-locked memory


def page_lock(block: SharedBlock, device: torch.device) -> bool:
    """Page-lock a block of shared memory until it is freed, so that a device copies from it while this thread runs.
    Return False on a CPU, or if locking fails. Then copies are slower, and nothing else changes.
    """
    if device.type != "cuda":
        return False
    at = block.array(block.nbytes, np.uint8).ctypes.data
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(at, block.nbytes, 0)) != 0:
        with contextlib.suppress(RuntimeError):  # CUDA repeats the error in the next call
            torch.zeros(1, device=device).add_(1)
        return False
    weakref.finalize(block, runtime.cudaHostUnregister, at).atexit = False  # unlocks when the block is freed
    return True


# The precision of a network's torso. Weights, cores, heads, losses and optimizers always use float32. Only in networks
# of action values, the core's input layer and the head's hidden layers, as large as a torso, use the torso's precision.


def is_half(how: str, device: str = "cpu") -> bool:
    """Tell whether the precision `how` means bfloat16. "auto" means bfloat16 if the device multiplies bfloat16
    natively.
    """
    if how != "auto":
        return how == "bfloat16"
    if device != "cpu":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return any(bool(has.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def choose_precision(how: str) -> str:
    """Return the precision `how`. But if `how` is "auto" and bfloat16 is slower on this CPU, return float32. Some CPUs
    take 1.6 times as long with bfloat16. A run calls this function once, for all its processes.
    """
    return "float32" if how == "auto" and is_half(how) and _product(torch.bfloat16) > _product(torch.float32) else how


@functools.cache
def _product(dtype: torch.dtype) -> float:
    """Return the shortest time, in seconds, of ten products of two matrices."""
    a, b = torch.ones(256, 1024, dtype=dtype), torch.ones(1024, 256, dtype=dtype)
    seconds = []
    for _ in range(10):
        begun = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def set_precision(policy: Policy, how: str) -> Policy:
    """Set a policy's precision to `how`, and return the policy.

    Raises UserError if bfloat16 is given for a user's policy, which sets its own precision.
    """
    if policy.bf16 is not None:
        policy.bf16 = is_half(how, next(policy.parameters()).device.type)
    elif how == "bfloat16":
        name = type(policy).__name__
        raise UserError(f"--precision: bfloat16 given, but {name} sets its own precision; remove --precision")
    return policy


def precision_of(net: nn.Module, bf16: bool) -> contextlib.AbstractContextManager[object]:
    """Return the context in which the network `net` computes.

    bf16: convolutions and matrix products take bfloat16 numbers and sum in float32.
    """
    if not bf16:
        return contextlib.nullcontext()
    return torch.autocast(next(net.parameters()).device.type, torch.bfloat16)
