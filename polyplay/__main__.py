"""Entry point of the commands `polyplay` and `python -m polyplay`."""

from __future__ import annotations

import io
import signal
import sys
from typing import NoReturn

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the next import prints no traceback

from polyplay.core import processes


def main() -> NoReturn:
    """Run the command line, end all remaining child processes, and exit with the command's status."""
    if processes.may_step(sys.argv[1:]):
        processes.fix_sets()
    processes.install(processes.end_at_once)
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, io.TextIOWrapper):  # print a replacement for characters that the locale lacks
            stream.reconfigure(errors="replace")
    from polyplay.cli.main import main as run

    status = run()
    processes.ignore()  # the command has ended: later signals must not change its exit status
    processes.end_descendants(titled=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
