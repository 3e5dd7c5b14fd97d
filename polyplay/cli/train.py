"""`polyplay train`."""

from __future__ import annotations

from polyplay.cli.arguments import page_and_words


def command(words: list[str]) -> int:
    """The run's exit status."""
    from polyplay import systems
    from polyplay.runs import options
    from polyplay.workers import process

    if words and words[0].lower() in systems.names():
        process.start_early(word.partition("=")[0].lstrip("-") for word in words)
    system, page, rest = page_and_words(words, "train")
    settings, chosen, sources = options.parse(page, rest)
    from polyplay.runs import run

    return run.train(system, settings, chosen, sources).exit_code
