"""Networks without numbers, for plans: sizes and shapes at once, whatever their size (torch's meta device)."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar, cast

import torch
from torch import nn

N = TypeVar("N")
# by factory; None: networks have numbers
_known: ContextVar[dict[bytes, object] | None] = ContextVar("_known", default=None)


@contextlib.contextmanager
def outlines() -> Iterator[None]:
    """Within it a factory makes its network once, without numbers where torch can. `numbers` takes that back."""
    if _known.get() is not None:
        yield
        return
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


@contextlib.contextmanager
def numbers() -> Iterator[None]:
    """Within it networks have numbers, as everywhere outside `outlines`."""
    token = _known.set(None)
    try:
        yield
    finally:
        _known.reset(token)


def made(factory: object, make: Callable[[], N]) -> N:
    """The factory's network, which `make` makes."""
    known = _known.get()
    if known is None:
        return make()
    try:
        key = pickle.dumps(factory)
    except Exception:  # a function that was written at a prompt
        return make()
    if key not in known:
        try:
            with torch.device("meta"):
                known[key] = make()
        except Exception:  # it looks at numbers; what is wrong with the network itself is raised here again
            known[key] = make()
    return cast("N", known[key])


def with_numbers(factory: Callable[[], N]) -> N:
    """The factory's network with numbers, and from now on that one within `outlines`."""
    with numbers():
        network = factory()
    if (known := _known.get()) is not None:
        with contextlib.suppress(Exception):
            known[pickle.dumps(factory)] = network
    return network


def is_outline(network: object) -> bool:
    """Whether it has no numbers."""
    return isinstance(network, nn.Module) and any(p.device.type == "meta" for p in network.parameters())


def as_on_cpu(device: torch.device) -> bool:
    """Whether shapes are those of a CPU: outlines are of networks there."""
    return device.type in ("cpu", "meta")
