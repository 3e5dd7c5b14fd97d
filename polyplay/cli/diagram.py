"""`polyplay diagram`."""

from __future__ import annotations

from polyplay.cli.arguments import page_and_words


def command(words: list[str]) -> None:
    """Prints the figure of a system."""
    from polyplay.runs import options

    system, page, rest = page_and_words(words, "diagram")
    settings, chosen, sources = options.parse(page, rest, "diagram")
    from polyplay.runs import run

    print(run.diagram(system, settings, chosen, sources))
