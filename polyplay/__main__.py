"""The command `polyplay`, and `python -m polyplay`: from the first instruction on it knows how to end."""

from __future__ import annotations

import io
import signal
import sys
from typing import NoReturn

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import, until the next line is done

from polyplay.core import processes


def main() -> NoReturn:
    """Run the command line; nothing is left once it has returned."""
    if processes.may_step(sys.argv[1:]):
        processes.fix_sets()
    processes.install(processes.end_at_once)
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, io.TextIOWrapper):  # letters that the locale does not have
            stream.reconfigure(errors="replace")
    from polyplay.cli.main import main as run

    status = run()
    processes.ignore()  # it has ended, and its status stands
    processes.end_descendants(titled=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
