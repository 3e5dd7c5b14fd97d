"""The verb `polyplay bench`. Imports no torch before its words are read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from polyplay.cli.arguments import parse_words
from polyplay.common.bounds import Count, Seconds
from polyplay.common.errors import UserError
from polyplay.common.files import Row, write_json

if TYPE_CHECKING:
    from polyplay.cli.bench.measure import Measures

WIDTH = 100  # columns, at most
ABOUT = "Measures how fast systems are on this machine, and where their time goes; without SYSTEM all of them."


@dataclass(frozen=True)
class BenchOptions:
    """Run nothing else on the machine meanwhile, or the results are meaningless."""

    env: str = "ALE/Pong-v5"
    """environment, as in train"""
    network: str | None = None
    """the systems' network (none: a3c for images, else mlp)"""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """number type of the systems' networks, as in train"""
    cores: Count | None = None
    """use this many cores of the machine, as in train (none: all that this process may use)"""
    seconds: Seconds = 3.5
    """how long each system is measured"""
    json: str | None = None
    """write everything to this file"""

    def __post_init__(self) -> None:
        if self.json is not None and not Path(self.json).absolute().parent.is_dir():
            folder = Path(self.json).parent
            raise UserError(f"--json: {self.json} given, but there is no directory {folder}; make it first")


def command(words: list[str], means: Measures | None = None) -> int:
    """Prints the tables; the exit status. `means` replaces what measures, for tests."""
    from polyplay.cli.bench import settings, table
    from polyplay.runs.reports.screen import default_console

    about = f"{ABOUT} Systems: {', '.join(settings.MEASURED)}."
    names, options, _ = parse_words(BenchOptions, words, "polyplay bench [SYSTEM …]", about, several=True)
    document = _measure(names, options, means)
    if options.json is not None:
        write_json(Path(options.json), document)
    console = default_console()
    console.width = min(console.width, WIDTH)
    table.print_table(document, console)
    return int(any("error" in row for row in document["systems"]))


def _measure(names: list[str], options: BenchOptions, means: Measures | None) -> Row:
    from polyplay import systems
    from polyplay.cli.bench import settings
    from polyplay.workers.process import keep_to

    if len(set(names)) < len(names):
        raise UserError(f"bench takes each system once, {' '.join(names)} given")
    chosen = names or settings.MEASURED
    for name in chosen:
        can = ", ".join(settings.MEASURED)
        if systems.is_population(systems.load(name)):  # a UserError where there is none
            raise UserError(f"bench: {name} given, whose members are runs of other systems; allowed: {can}")
        if name not in settings.MEASURED:
            replay = "Replay" in systems.load(name).ROW["between"]
            why = "learns from a replay" if replay else "trains several agents"
            raise UserError(f"bench: {name} given, which {why}: not measured yet; allowed: {can}")
    keep_to(options.cores)  # and so do all that are started from here
    from polyplay.cli.bench.measure import Bench, Measures

    means = means or Measures(report=lambda text: print(f"bench: {text}", file=sys.stderr, flush=True))
    return Bench(chosen, options, means).run()
