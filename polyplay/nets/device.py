"""Devices and numeric precision of networks: choice of the device, copies to and from GPUs, CUDA graphs, bfloat16.

Networks compute on the CPU or on CUDA devices (GPUs). Queues, published weights, environments and rollouts are in the
CPU's memory, except the observations of a learner that itself acts on a GPU.

A worker process uses the default stream of one device, so its operations run in order. The fork servers that start
workers must never use a device, because a process that is forked after CUDA was used cannot use CUDA.
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
    """Return the names of the devices for the value `how` of the option --device: ("cpu",) or ("cuda:0", …). Raises
    UserError if `how` is "cuda" and torch finds no GPU.
    """
    n = 0 if how == "cpu" else available()
    if how == "cuda" and not n:
        built = "finds no GPU" if torch.version.cuda else "is built for the CPU alone"
        raise UserError(f"--device: cuda given, but torch {torch.__version__} {built}; allowed here: auto, cpu")
    return tuple(f"cuda:{i}" for i in range(n)) or ("cpu",)


def enter_device(name: str) -> torch.device:
    """Return the device called `name`. Make a CUDA device the default device of this thread."""
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def device_name(name: str) -> str:
    """Return the name of a device for the plan that is printed before a run."""
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else "the CPU"


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work. Call this before changing memory that a copy may still read."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


# --------------------------------------------------------------------------------------- copies to and from devices


def to_device(batch: Tree, device: torch.device) -> Tree:
    """Return NumPy arrays and tensors as tensors on a device. Tensors on this device are not copied. Copies from
    page-locked memory may still be running when this function returns (see `synchronize`).
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
    """Copy all tensors of a batch to the CPU in one transfer. This takes less time than a transfer for each tensor."""
    return split_bytes(join_bytes(batch).cpu(), batch) if any(tree.leaves(batch)) else {}


def join_bytes(batch: Batch) -> Tensor:
    """Return the bytes of all tensors as one flat tensor, in the order of `_by_size`."""
    return torch.cat([x.contiguous().flatten().view(torch.uint8) for _, x in _by_size(batch)])


def split_bytes(flat: Tensor, like: Batch) -> Batch:
    """Invert `join_bytes`: make tensors from the bytes `flat`, with the shapes and types of the tensors in `like`."""
    leaves = _by_size(like)
    parts = flat.split([x.numel() * x.element_size() for _, x in leaves])
    back = {path: part.view(x.dtype).view(x.shape) for (path, x), part in zip(leaves, parts, strict=True)}
    return tree.nest({path: back[path] for path, _ in tree.leaves(like)})


def _by_size(batch: Batch) -> list[tuple[str, Tensor]]:
    """Return the tensors sorted by element size, largest first, so that each is aligned when they are joined."""
    return sorted(tree.leaves(batch), key=lambda leaf: -leaf[1].element_size())


def to_floats(scalars: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Convert scalars to floats, with one transfer for all scalars on a GPU."""
    far = {k: v for k, v in scalars.items() if isinstance(v, Tensor) and v.device.type != "cpu"}
    read = dict(zip(far, torch.stack([v.float() for v in far.values()]).tolist(), strict=True)) if far else {}
    return {k: read[k] if k in read else float(v) for k, v in scalars.items()}


class HostCopy:
    """Gives access to a flat tensor, on the CPU or a GPU, as a NumPy `array`.

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
    """A function of tensors that runs as one CUDA graph on a GPU, with arguments and outputs at fixed addresses.

    On a CPU, each call runs the function on copies of the arguments. So tests on a CPU can also find some mistakes, for
    example that the function uses a tensor that is not among its arguments.

    `given`: example arguments, with which the constructor runs the function.
    `fixed`: number of first arguments that always stay at their address. Each call copies only the other arguments.
    Raises RuntimeError if the function waits for the device, or if memory does not suffice.
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
        """Copy `given` to the fixed memory of the arguments, from argument number `at` on, and return the arguments
        there. A tensor of `given` that is already the argument is not copied.
        """
        places = self.static[at : at + len(given)]
        for place, x in zip(places, given, strict=True):
            if place is not x:
                place.copy_(x, non_blocking=True)
        return places

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Run the function on the arguments `given`, and return copies of the outputs."""
        self.fill(given)
        self._replay()
        return [x.clone() for x in self._outputs]


Recorded = tuple[Callable[[], None], tuple[Tensor, ...]]  # function that recomputes the outputs; outputs


def _record_graph(run: Callable[[], tuple[Tensor, ...]]) -> Recorded:
    """Run a function several times to warm up, then record a CUDA graph (see torch's notes on CUDA graphs)."""
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        for _ in range(WARM):
            run()
    here.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device
        outputs = run()
    return graph.replay, outputs


def _run_again(run: Callable[[], tuple[Tensor, ...]]) -> Recorded:
    outputs = run()

    def replay() -> None:
        for out, x in zip(outputs, run(), strict=True):
            out.copy_(x)

    return replay, outputs


def signature_of(given: Batch) -> tuple[Any, list[Tensor]]:
    """Return a key made of the tensors' paths, shapes and types, and a list of the tensors made contiguous."""
    flat = dict(tree.leaves(given))
    return (tuple(flat), tuple([(x.shape, x.dtype) for x in flat.values()])), [x.contiguous() for x in flat.values()]


# -------------------------------------------------------------------------------------------------- page-locked memory


def page_lock(block: SharedBlock, device: torch.device) -> bool:
    """Page-lock a block of shared memory until the block is freed. Copies to the GPU can then run in the background.
    Return False on a CPU, or if locking fails.
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
    """Return whether `how` selects bfloat16. "auto" selects it if the device multiplies bfloat16 natively."""
    if how != "auto":
        return how == "bfloat16"
    if device != "cpu":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return any(bool(has.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def choose_precision(how: str) -> str:
    """Return the precision `how`. If `how` is "auto", and this CPU multiplies more slowly in bfloat16, return
    "float32". A run calls this function once, for all processes.
    """
    return "float32" if how == "auto" and is_half(how) and _product(torch.bfloat16) > _product(torch.float32) else how


@functools.cache
def _product(dtype: torch.dtype) -> float:
    """Return the time of a matrix product in seconds, the shortest of ten."""
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
    """Return the context in which the network `net` computes. If `bf16`, convolutions and matrix products take bfloat16
    numbers, and sum in float32.
    """
    if not bf16:
        return contextlib.nullcontext()
    return torch.autocast(next(net.parameters()).device.type, torch.bfloat16)
