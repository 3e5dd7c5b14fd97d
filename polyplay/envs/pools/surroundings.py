"""What belongs to the process, not to the environments that are stepped in it: the working directory, what Ctrl-C and
SIGTERM do, how NumPy answers overflows, torch's default type. What an environment changes there is its own: it is put
back while others work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

import numpy as np

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Surroundings:
    """`with` it environments have what they changed the last time, and afterwards the process what it had. Looking is
    slow: those that changed nothing while they were built are not looked at again.
    """

    def __init__(self) -> None:
        self._inside: dict[str, Any] | None = None  # what they changed; None: they are not built yet
        self._outside: dict[str, Any] = {}

    def __enter__(self) -> None:
        if self._inside != {}:
            self._outside = _look()
            _change(self._inside or {})

    def __exit__(self, *exception: object) -> None:
        if self._inside == {}:
            return
        now = _look()
        self._inside = {name: value for name, value in now.items() if value != self._outside.get(name, value)}
        _change({name: self._outside[name] for name in self._inside})


def _look() -> dict[str, Any]:
    found: dict[str, Any] = {"numpy": np.geterr(), "signals": tuple(map(signal.getsignal, SIGNALS))}
    with contextlib.suppress(OSError):  # it was removed
        found["folder"] = os.getcwd()
    return found if (torch := sys.modules.get("torch")) is None else {**found, "torch": torch.get_default_dtype()}


def _change(what: dict[str, Any]) -> None:
    for name, value in what.items():
        with contextlib.suppress(OSError, ValueError):  # a removed folder; not the main thread, which sees no signals
            if name == "folder":
                os.chdir(value)
            elif name == "numpy":
                np.seterr(**value)
            elif name == "torch":
                sys.modules["torch"].set_default_dtype(value)
            else:
                for number, handler in zip(SIGNALS, value, strict=True):
                    signal.signal(number, handler)
