"""The command line of `polyplay watch`. Needs polyplay[watch]."""

from __future__ import annotations

import errno
import importlib.util
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from polyplay.cli.arguments import parse_words
from polyplay.common.errors import UserError
from polyplay.runs.directory import read_config


@dataclass(frozen=True)
class WatchOptions:
    """Serves a live page of runs to this machine only. It reads the runs' directories. Needs polyplay[watch]."""

    port: int = 8765
    """port of the page, http://127.0.0.1:PORT"""

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise UserError(f"--port: {self.port} given, allowed: 1 to 65535")


def command(words: list[str]) -> None:
    """Serves until Ctrl-C."""
    runs, options, _ = parse_words(WatchOptions, words, "polyplay watch RUN …", "RUN: directories of runs.", True)
    if not runs:
        raise UserError("watch takes the directory of a run first: polyplay watch runs/… [--port N]")
    directories = [Path(run) for run in runs]
    for directory in directories:
        read_config(directory)
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise UserError(f"watch needs {' and '.join(missing)}: pip install 'polyplay[watch]'")
    with listen(options.port) as listener:
        _serve(listener, directories, options.port)


def listen(port: int) -> socket.socket:
    """A socket of this machine only. Raises UserError: the port is in use."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as e:
        listener.close()
        why = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be used ({e.strerror})"
        raise UserError(f"--port: {port} {why}; name another, such as --port {port % 65535 + 1}") from None
    return listener


def _serve(listener: socket.socket, directories: list[Path], port: int) -> None:
    import uvicorn

    from polyplay.cli.watch.server import application

    token = secrets.token_urlsafe(24)
    config = uvicorn.Config(
        application(directories, token, port), log_level="warning", lifespan="off", server_header=False
    )
    print(f"watching {len(directories)} run{'s' * (len(directories) != 1)}: http://127.0.0.1:{port}/#token={token}")
    print("Ctrl-C stops the page; the runs continue", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
