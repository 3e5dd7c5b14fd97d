"""Lines of {"wall_seconds", "steps", …} that a peer writes while it trains; bench/measure.py reads them."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path


class Log:
    """At most a line every `every` seconds; None writes nothing."""

    def __init__(self, path: str | None, every: float = 0.5):
        self.file = open(Path(path), "a", buffering=1) if path else None  # noqa: SIM115 - as long as the program
        self.begun = self.last = time.perf_counter()
        self.every = every

    def due(self) -> bool:
        return time.perf_counter() - self.last >= self.every

    def write(self, **counters: float) -> None:
        self.last = time.perf_counter()
        if self.file is not None:
            line = {"wall_seconds": round(self.last - self.begun, 4), **counters}
            self.file.write(json.dumps(line) + "\n")


def command_line(text: str | None, networks: tuple[str, ...]) -> argparse.ArgumentParser:
    """What every peer of bench/compare.py is told."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, formatter_class=form)
    parser.add_argument("--log", help="file for a line of counters a second")
    parser.add_argument("--network", choices=networks, default="nature", help="networks.py")
    parser.add_argument("--seed", type=int, default=0)
    return parser
