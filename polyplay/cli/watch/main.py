"""The command line of `polyplay watch`. Needs polyplay[watch]."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from polyplay.cli.arguments import parse_words
from polyplay.cli.local_page.port import check_extra, check_port, listen, serve_page
from polyplay.common.errors import UserError
from polyplay.runs.directory import read_config


@dataclass(frozen=True)
class WatchOptions:
    """Serves a live page of runs to this machine only. It reads the runs' directories. Needs polyplay[watch]."""

    port: int = 8765
    """port of the page, http://127.0.0.1:PORT"""

    def __post_init__(self) -> None:
        check_port(self.port)


def command(words: list[str]) -> None:
    """Serves until Ctrl-C."""
    runs, options, _ = parse_words(WatchOptions, words, "polyplay watch RUN …", "RUN: directories of runs.", True)
    if not runs:
        raise UserError("watch takes the directory of a run first: polyplay watch runs/… [--port N]")
    directories = [Path(run) for run in runs]
    for directory in directories:
        read_config(directory)
    check_extra("watch")
    with listen(options.port) as listener:
        from polyplay.cli.watch.server import application

        token, n = secrets.token_urlsafe(24), len(directories)
        print(f"watching {n} run{'s' * (n != 1)}: http://127.0.0.1:{options.port}/#token={token}")
        print("Ctrl-C stops the page; the runs continue", flush=True)
        serve_page(listener, application(directories, token, options.port))
