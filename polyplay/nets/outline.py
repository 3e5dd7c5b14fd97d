"""Networks whose weights nobody has drawn, for plans: sizes and shapes at once, however large they are.

Memory that is not written is not taken, so a network of gigabytes costs nothing until somebody draws its weights.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from torch.overrides import TorchFunctionMode

N = TypeVar("N")
DRAWS = [
    "uniform_",
    "normal_",
    "trunc_normal_",
    "orthogonal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "xavier_uniform_",
    "xavier_normal_",
]
# by factory; None: weights are drawn
_known: ContextVar[dict[bytes, object] | None] = ContextVar("_known", default=None)
_undrawn: ContextVar[bool] = ContextVar("_undrawn", default=False)


class _Undrawn(TorchFunctionMode):
    """Leaves out what fills a tensor with random numbers."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def undrawn() -> bool:
    """Whether a network is being made whose weights nobody draws: so what is computed of them can be left out, too."""
    return _undrawn.get()


@contextlib.contextmanager
def outlines() -> Iterator[None]:
    """Within it a factory makes its network once, and its weights are not drawn. `drawn` takes that back."""
    if _known.get() is not None:
        yield
        return
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


@contextlib.contextmanager
def drawn() -> Iterator[None]:
    """Within it weights are drawn, as everywhere outside `outlines`."""
    token = _known.set(None)
    try:
        yield
    finally:
        _known.reset(token)


def made(factory: object, make: Callable[[], N], draws: bool = False) -> N:
    """The factory's network, which `make` makes. draws: its weights are drawn nevertheless, since a user's own code may
    refuse to compute with what happens to lie in memory.
    """
    known = _known.get()
    if known is None:
        return make()
    try:
        key = pickle.dumps(factory)
    except Exception:  # a function that was written at a prompt
        return make()
    if key not in known:
        token = _undrawn.set(not draws)
        try:
            with contextlib.nullcontext() if draws else _Undrawn():
                known[key] = make()
        finally:
            _undrawn.reset(token)
    return cast("N", known[key])
