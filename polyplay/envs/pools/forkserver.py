"""Environment processes are forked from a server of their own, with NumPy and Gymnasium in it but no torch: whoever
acts wants torch preloaded; hence a second one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from polyplay.common import processes
from polyplay.common.forkserver import ForkedProcess, ForkServer

_server = ForkServer("polyplay.envs.pools.preload")
REORDERED = ForkServer("polyplay.envs.pools.preload", reordered=True)  # the order of sets is another one


class EnvProcess(ForkedProcess):
    """A process forked from the environments' server, or from another one such."""

    starts = False

    def __init__(self, target: Callable[..., None], args: tuple, name: str, server: ForkServer = _server):
        super().__init__(server, target, args, f"{name}{processes.label}")

    def dump(self) -> None:
        """Have it write its Python stack into the block that `settle` got."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._popen.pid, signal.SIGUSR1)
