"""An agent as a process of this machine; who started it gives it calls by its standard input."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.forkserver import ROOM, readable

# Nobody's child: Ray kills those of its workers, and an agent ends by itself, leaving nothing behind.
CODE = "import json, os, sys; os.fork() and os._exit(0); sys.path[:] = json.loads(sys.argv[1])\n"
CODE += "from polyplay.workers.hosts.agent import main; main()"
GONE = 2.0  # seconds that it has to end after its link has


class AgentProcess:
    """config: `secret`, `address`, `timeout`; `ship`, if modules go along (ship.pack_modules). Raises UserError
    where none comes to be.
    """

    def __init__(self, name: str, config: dict[str, Any]):
        command = [sys.executable, "-c", CODE, json.dumps(sys.path), ROOM]
        given, self._calls = os.pipe()
        self._said, says = os.pipe()
        started = subprocess.Popen(command, start_new_session=True, stdin=given, stdout=says)
        os.close(given)
        os.close(says)
        started.wait()
        ship = config.get("ship", b"")
        self.give(0, json.dumps({**config, "ship": bool(ship)}).encode())
        if ship:
            self.give(0, ship)
        answer = b""
        while not answer.endswith(b"\n") and (more := os.read(self._said, 1 << 16)):
            answer += more
        if not answer:
            raise UserError(f"--hosts: the agent of {name} ended before it answered; its output says why")
        self.about: dict[str, Any] = json.loads(answer)

    def give(self, number: int, data: bytes) -> None:
        left = memoryview(number.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data)
        with contextlib.suppress(OSError):  # it is lost: the link will say so
            while left:
                left = left[os.write(self._calls, left) :]

    def end(self) -> None:
        """Its end of what it says closes with it."""
        os.close(self._calls)
        if not readable([self._said], GONE):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.about["pid"], signal.SIGKILL)
            readable([self._said], GONE)
        os.close(self._said)
        shutil.rmtree(self.about["folder"], ignore_errors=True)  # of one that was killed
