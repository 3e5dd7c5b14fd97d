"""`polyplay reproduce`."""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_result
from polyplay.common.bounds import Count


@dataclass(frozen=True)
class ReproduceOptions:
    """Repeats an asynchronous run from its log of deliveries, in one thread; a debugger works."""

    updates: Count | None = None
    """stop after this many updates (none: all logged updates)"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""


def command(words: list[str]) -> None:
    """Prints what was compared."""
    directory, options, _ = run_and_options(ReproduceOptions, words, "reproduce")
    from polyplay.runs import reproduce

    print_result(reproduce.reproduce(directory, options.updates, options.trust))
