"""A CUDA device that isn't there: tensors that say they are on cuda:0 and compute on the CPU.

Unlike torch's fake tensors they have numbers, so whole systems can learn with them. What a GPU would refuse is refused:
operations between devices, `.numpy()` of what is there. What a worker would wait for is counted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from polyplay.nets import actor_critic, device

CUDA = torch.device("cuda", 0)
WAITS: Counter[str] = Counter()  # what a worker waits for a device for: "number"s, copies "back"; copies "there"
aten = torch.ops.aten
ACROSS = {aten.copy_.default, aten._to_copy.default}
CAPTURED = list[None]()  # not empty: a graph is recorded, which copies nothing to or from the host and asks for nothing
ASKS = {aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.repeat_interleave.Tensor}
BY_INDEX = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class Far(torch.Tensor):
    """A tensor of the device; `inner` has its numbers."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Far:
        how: Any = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device="meta", **how)
        made.inner = inner.detach()
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def data(self) -> Far:  # type: ignore[override]
        return Far(self.inner)

    @data.setter
    def data(self, other: Far) -> None:
        assert other.shape == self.shape
        self.inner = other.inner

    def item(self) -> Any:
        """A number is waited for. (In C++ these ask for a guard of the device, which a build for the CPU lacks.)"""
        refuse("item")
        WAITS["number"] += 1
        return self.inner.item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def tolist(self) -> Any:
        refuse("tolist")
        WAITS["back"] += 1
        return self.inner.tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Far({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Pretend(TorchDispatchMode):
    """While it is entered, `device="cuda:0"` gives such tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    far = [x for x in leaves if isinstance(x, Far)]
    asked = kwargs.get("device")
    there = bool(far) if asked is None else torch.device(asked).type != "cpu"
    if func in ACROSS:
        there = there if func is aten._to_copy.default else isinstance(args[0], Far)
        if len(far) < len(leaves) if there else far:
            refuse(func)
            WAITS["there" if there else "back"] += 1
    elif far:
        near = [x for x in leaves if not isinstance(x, Far) and x.dim()]
        if func in ASKS or (func in BY_INDEX and any(x is not None and x.dtype == torch.bool for x in args[1])):
            refuse(func)
        if func in BY_INDEX and not CAPTURED:  # whose positions may be on the CPU
            near = [x for x in near if not any(x is i for i in args[1])]
        if near:
            raise RuntimeError(f"{func}: expected all tensors on cuda:0, found {[tuple(x.shape) for x in near]} on cpu")
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner = tree_map(lambda x: x.inner if isinstance(x, Far) else x, (args, kwargs))
    given = func(*inner[0], **inner[1])
    if not there:
        return given
    known = {id(x.inner): x for x in far}
    copied = lambda x: x.clone() if func is aten._to_copy.default and any(x is y for y in leaves) else x  # noqa: E731
    wrap = lambda x: known[id(x)] if id(x) in known else Far(copied(x))  # noqa: E731
    return tree_map(lambda x: wrap(x) if isinstance(x, torch.Tensor) else x, given)


def refuse(what: Any) -> None:
    """What a GPU can't do while a graph is recorded."""
    if CAPTURED:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


def record_graph(run: Any) -> Any:
    """In the place of device._record_graph."""

    def captured() -> Any:
        CAPTURED.append(None)
        try:
            return run()
        finally:
            CAPTURED.pop()

    for _ in range(device.WARM):
        run()
    return device._run_again(captured)


class Half(TorchFunctionMode):
    """What autocast does on a GPU to convolutions and products; its own casts know tensors of real devices only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.conv2d, F.linear):
            args = [x.bfloat16() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def precision_of(net: torch.nn.Module, bf16: bool) -> Iterator[None]:
    """In the place of precision.precision_of."""
    with contextlib.ExitStack() as stack:
        if bf16:
            stack.enter_context(torch.autocast("cuda", torch.bfloat16))
            stack.enter_context(Half())
        yield


@contextlib.contextmanager
def pretended(patch: Any) -> Iterator[Pretend]:
    """torch.cuda's functions that Polyplay calls, and the device. patch: pytest's monkeypatch."""
    locked: list[int] = []
    runtime = SimpleNamespace(cudaHostRegister=lambda *a: locked.append(1) or 0, cudaHostUnregister=lambda *a: 0)
    mode = Pretend()
    queue = SimpleNamespace(synchronize=lambda: WAITS.update(["stream"]))
    patch.setattr(device, "available", lambda: 1)
    patch.setattr(device, "_record_graph", record_graph)
    patch.setattr(actor_critic, "precision_of", precision_of)
    for name, what in {
        "amp.common.amp_definitely_not_available": lambda: False,
        "is_bf16_supported": lambda **_: True,
        "_lazy_init": lambda: None,
        "set_device": lambda which: None,
        "current_stream": lambda which: queue,
        "cudart": lambda: runtime,
        "get_device_name": lambda which: "a pretended GPU",
    }.items():
        patch.setattr(f"torch.cuda.{name}", what)
    WAITS.clear()
    with mode:
        yield mode
