"""Environment processes are forked from a server of their own, with NumPy and Gymnasium in it but no torch.

multiprocessing has one fork server per process, and whoever acts wants torch preloaded there; hence a
second one. A child never imports the user's `__main__`, so scripts without a main guard are safe;
factories travel by cloudpickle.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Callable
from multiprocessing import forkserver, popen_forkserver, process, reduction, spawn, util
from multiprocessing.context import set_spawning_popen

_server = forkserver.ForkServer()
_server.set_forkserver_preload(["polyplay.envs.pools.preload"])


class _Popen(popen_forkserver.Popen):
    """multiprocessing's own, with our server and without the way back to `__main__`."""

    def _launch(self, process_obj: process.BaseProcess) -> None:
        preparation = spawn.get_preparation_data(process_obj.name)
        for key in ("init_main_from_name", "init_main_from_path"):
            preparation.pop(key, None)
        buffer = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(preparation, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            set_spawning_popen(None)
        self.sentinel, end = _server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        ours = os.dup(end)  # closed when we end: the child notices by that
        self.finalizer = util.Finalize(self, util.close_fds, (ours, self.sentinel))  # type: ignore[attr-defined]
        with open(end, "wb", closefd=True) as pipe:
            pipe.write(buffer.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class EnvProcess(process.BaseProcess):
    """A process forked from the environments' server. It ends with its parent, also when that is daemonic."""

    _start_method = None  # environments that start processes do it in the platform's way

    def __init__(self, target: Callable[..., None], args: tuple, name: str):
        super().__init__(target=target, args=args, name=name, daemon=False)

    def start(self) -> None:
        self._popen = _Popen(self)
        self._sentinel = self._popen.sentinel
        del self._target, self._args, self._kwargs  # type: ignore[attr-defined]

    def end(self) -> None:
        """Kill it and everything it started; reap it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)  # its group; there is none before it settled
        self.kill()
        self.join(5.0)

    def dump(self) -> None:
        """Have it write its Python stack into the block that `settle` got."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._popen.pid, signal.SIGUSR1)
