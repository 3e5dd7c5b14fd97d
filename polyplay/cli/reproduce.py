"""`polyplay reproduce`."""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_result
from polyplay.common.bounds import Count


@dataclass(frozen=True)
class ReproduceOptions:
    """An asynchronous run once more, from its log of deliveries; under a debugger if you like."""

    updates: Count | None = None
    """stop after this many updates (none: all that were logged)"""
    trust: bool = False
    """open a run that was made elsewhere and executes a module by name (its environment, its network)"""


def command(words: list[str]) -> None:
    """Prints what was compared."""
    directory, options, _ = run_and_options(ReproduceOptions, words, "reproduce")
    from polyplay.runs import reproduce

    print_result(reproduce.reproduce(directory, options.updates, options.trust))
