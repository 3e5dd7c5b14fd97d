"""The verb `polyplay bench`. Imports no torch before its words are read."""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polyplay.common.errors import UserError

WIDTH = 100  # columns, at most
LINE = "polyplay bench [SYSTEM …]"
ABOUT = "Measures this machine and the systems on it; without SYSTEM all of them. Nothing is learnt, nothing kept."


@dataclass(frozen=True)
class BenchOptions:
    """For figures to mean anything nothing else may run on the machine."""

    env: str = "ALE/Pong-v5"
    """environment, as train's"""
    network: tuple[str, ...] = ()
    """networks to measure; the systems are run with the first (none: a3c and nature, or mlp)"""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """of the systems' networks, as train's"""
    cores: int | None = None
    """use so many of the machine's cores, as train (none: all that this process may use)"""
    seconds: float = 3.5
    """how long each system's run is watched; its parts an eighth of that each, at most a second"""
    without: tuple[Literal["env", "network"], ...] = ()
    """run every system with this made free too, between two runs as it is, to see whether that is what holds it up"""
    json: str | None = None
    """write everything to this file"""
    picture: str | None = None
    """draw where the time goes (.png, .svg, .pdf; needs polyplay[plots])"""
    recap: bool = False
    """print the scaling recap as Markdown, published figures beside these, instead of the tables"""
    read: str | None = None
    """measure nothing: take the figures of this file, that an earlier --json wrote"""

    def __post_init__(self) -> None:
        if self.cores is not None and self.cores < 1:
            raise UserError(f"--cores: {self.cores} given, allowed: a whole number from 1 up")
        if not self.seconds > 0.0:
            raise UserError(f"--seconds: {self.seconds:g} given, allowed: a number above 0")
        for name in ("json", "picture"):
            file = getattr(self, name)
            if file is not None and not Path(file).absolute().parent.is_dir():
                raise UserError(f"--{name}: {file} given, but there is no directory {Path(file).parent}; make it first")


def command(words: list[str], means: Any = None) -> int:
    """`polyplay bench` with these words; the exit status. `means`: measuring.Means, for tests."""
    from polyplay.cli.bench import picture, recap, settings, table
    from polyplay.common.files import write_json
    from polyplay.runs import flags
    from polyplay.runs.reports.terminal import default_console

    if flags.wants_help(words):
        flags.show_help({"bench": BenchOptions()}, LINE, f"{ABOUT} Systems: {', '.join(settings.MEASURED)}.")
    n = next((i for i, w in enumerate(words) if w.startswith("-")), len(words))
    asked, _ = flags.read_flags(BenchOptions, words[n:], LINE)
    if asked.picture is not None:
        picture.check_picture(asked.picture)
    document = read_options(asked.read) if asked.read is not None else _measure(words[:n], asked, means)
    if asked.json is not None:
        write_json(Path(asked.json), document)
    if asked.picture is not None:
        picture.draw_picture(document, Path(asked.picture))
    if asked.recap:
        print("\n".join(recap.markdown(document)))
    else:
        console = default_console()
        console.width = min(console.width, WIDTH)
        table.print_table(document, console)
    return int(any("error" in row for row in document["systems"]))


def _measure(names: list[str], asked: BenchOptions, means: Any) -> dict[str, Any]:
    from polyplay import systems
    from polyplay.cli.bench import settings
    from polyplay.workers.process import keep_to

    if len(set(names)) < len(names):
        raise UserError(f"bench takes each system once, {' '.join(names)} given")
    chosen = names or settings.MEASURED
    for name in chosen:
        systems.load(name)  # a UserError where there is none
        if name not in settings.MEASURED:
            can = ", ".join(settings.MEASURED)
            raise UserError(f"bench: {name} given, which learns from a replay: not measured yet; allowed: {can}")
    keep_to(asked.cores)  # and so do all that are started from here
    from polyplay.cli.bench.measure import Bench, Measures

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):  # end what was started, remove what was written
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    how = means or Measures(say=lambda text: print(f"bench: {text}", file=sys.stderr, flush=True))
    return Bench(chosen, asked, how).run()


def read_options(file: str) -> dict[str, Any]:
    """An earlier document. Raises UserError."""
    from polyplay.cli.bench import SCHEMA

    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"--read: {file} given: {e.strerror}; name a file that --json wrote") from None
    except ValueError as e:
        raise UserError(f"--read: {file} is no JSON: {e}; name a file that --json wrote") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "machine_limits" not in document:
        raise UserError(f"--read: {file} is no document of `polyplay bench` with schema {SCHEMA}; measure again")
    return document
