"""An agent as a process of this machine; who started it gives it calls by its standard input."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.forkserver import ROOM, ending_text

CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from polyplay.workers.hosts.agent import main; main()"
GONE = 2.0  # seconds that it has to end after its link has


class AgentProcess:
    """Raises UserError where none comes to be."""

    def __init__(self, name: str, config: dict[str, Any]):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", CODE, json.dumps(sys.path), ROOM]
        self._process = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]
        self.give(0, json.dumps(config).encode())
        answer = self._process.stdout.readline()
        if not answer:
            raise UserError(f"--hosts: the agent of {name} {ending_text(self._process.wait())}; its output says why")
        self.about: dict[str, Any] = json.loads(answer)

    def give(self, number: int, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it is lost: the link will say so
            self._process.stdin.write(number.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data)
            self._process.stdin.flush()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.about["folder"], ignore_errors=True)  # of one that was killed
