"""The port of a local page, and its server until Ctrl-C. The server needs polyplay[watch]."""

from __future__ import annotations

import errno
import importlib.util
import socket
from typing import Any

from polyplay.common.errors import UserError


def check_port(port: int) -> None:
    """Raises UserError: no port has this number."""
    if not 1 <= port <= 65535:
        raise UserError(f"--port: {port} given, allowed: 1 to 65535")


def check_extra(verb: str) -> None:
    """Raises UserError: what serves pages is not installed."""
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise UserError(f"{verb} needs {' and '.join(missing)}: pip install 'polyplay[watch]'")


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


def serve_page(listener: socket.socket, app: Any) -> None:
    """Answer requests until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False)
    uvicorn.Server(config).run(sockets=[listener])
