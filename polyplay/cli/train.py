"""`polyplay train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyplay.cli.arguments import page_and_words
from polyplay.common.errors import UserError

if TYPE_CHECKING:
    from polyplay.runs.option_file import OptionFile
    from polyplay.runs.run import RunResult


def command(words: list[str]) -> int:
    """The run's exit status; of several seeds the worst."""
    from polyplay import systems
    from polyplay.runs import options
    from polyplay.workers import process

    words, config = take_option(words, "config")
    words, seeds = take_option(words, "seeds")
    file = None
    if config is not None:
        file, words = _read_file(_one(config), words)
    if words and words[0].lower() in systems.names():
        process.start_early(word.partition("=")[0].lstrip("-") for word in words)
    system, page, rest = page_and_words(words, "train", None if file is None else file.values.get("over"))
    settings, chosen, sources = options.parse(page, rest, file=file)
    from polyplay.runs import run

    if seeds is None:
        return run.train(system, settings, chosen, sources).exit_code
    from polyplay.cli.seeds import parse_seeds, train_seeds

    if sources["seed"] == "command line":
        raise UserError(f"--seed {chosen.seed} and --seeds {' '.join(seeds)} contradict each other: give one of them")
    several = parse_seeds(seeds)

    def train(seed: int) -> RunResult:
        again = ["--run", f"{chosen.run}/seed-{seed}", "--resume", "auto"] if chosen.run else []
        return run.train(system, *options.parse(page, [*rest, "--seed", str(seed), *again], file=file))

    if chosen.dry_run:
        return train(several[0]).exit_code
    return train_seeds(several, train, chosen.run)


def _read_file(path: str, words: list[str]) -> tuple[OptionFile, list[str]]:
    """A file of options, and the words with its system first where they have none."""
    from polyplay.runs.option_file import read_option_file

    given = [w.partition("=")[0].lstrip("-").replace("-", "_") for w in words if w.startswith("--")]
    file = read_option_file(path, given)
    system = words[0] if words and not words[0].startswith("-") else None
    return file, [file.choose_system(system), *words[system is not None :]]


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
