"""Verbs of the command line, called in this process."""

from __future__ import annotations

import socket

import pytest

from polyplay.cli import main


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The line that a mistake gives, the only one on standard error."""
    assert main.main([str(word) for word in words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("polyplay: error: ")
    return line


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
