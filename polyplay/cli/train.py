"""`polyplay train`."""

from __future__ import annotations

from collections.abc import Sequence

from polyplay.cli.arguments import page_and_words
from polyplay.common.errors import UserError


def command(words: list[str]) -> int:
    """The run's exit status."""
    from polyplay import systems
    from polyplay.runs import options
    from polyplay.workers import process

    words, config = take_option(words, "config")
    file = None
    if config is not None:
        from polyplay.runs.option_file import read_option_file

        file = read_option_file(_one(config), [w.partition("=")[0].lstrip("-") for w in words if w.startswith("--")])
        given = words[0] if words and not words[0].startswith("-") else None
        words = [file.choose_system(given), *words[given is not None :]]
    if words and words[0].lower() in systems.names():
        process.start_early(word.partition("=")[0].lstrip("-") for word in words)
    system, page, rest = page_and_words(words, "train")
    settings, chosen, sources = options.parse(page, rest, file=file)
    from polyplay.runs import run

    return run.train(system, settings, chosen, sources).exit_code


def take_option(words: Sequence[str], name: str) -> tuple[list[str], list[str] | None]:
    """The words without --NAME and its values, and those values; None: it was not given."""
    flag = f"--{name}"
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == flag), None)
    if at is None:
        return list(words), None
    end = next((i for i in range(at + 1, len(words)) if words[i].startswith("-")), len(words))
    _, equals, value = words[at].partition("=")
    return [*words[:at], *words[end:]], [*([value] if equals else []), *words[at + 1 : end]]


def _one(values: Sequence[str]) -> str:
    if len(values) != 1:
        raise UserError(f"--config: '{' '.join(values)}' given, allowed: one file, or the directory of a run")
    return values[0]
