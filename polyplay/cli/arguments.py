"""The words after a verb: what it is about (runs, a system, an environment) comes first, then its options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from polyplay.common.errors import UserError

T = TypeVar("T")


def parse_words(
    cls: type[T], words: Sequence[str], command: str, about: str, several: bool = False
) -> tuple[list[str], T, set[str]]:
    """(the words before the options: at most one unless `several`, the options, the names of those given).

    --help prints and raises SystemExit(0).
    """
    from polyplay.runs import flags

    before = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    n = before if several else min(before, 1)
    options, given = flags.read_flags(cls, words[n:], command, about)
    return list(words[:n]), options, given


def run_and_options(cls: type[T], words: Sequence[str], verb: str) -> tuple[Path, T, set[str]]:
    """A run's directory, the options, and the names of those given; checked before anything heavy is loaded."""
    from polyplay.runs import directory

    first, options, given = parse_words(cls, words, f"polyplay {verb} RUN", "RUN is the directory of a run.")
    if not first:
        raise UserError(f"{verb} takes the directory of a run first: polyplay {verb} runs/… [--OPTION VALUE …]")
    directory.read_config(Path(first[0]))
    return Path(first[0]), options, given


def page_and_words(words: Sequence[str], verb: str) -> tuple[str, ModuleType, list[str]]:
    """(system, its page, the rest of the words)"""
    from polyplay import systems

    if words and words[0] in ("-h", "--help"):
        known = systems.names()
        print(f"usage: polyplay {verb} SYSTEM [--OPTION VALUE …]\n\nsystems: {', '.join(known)}")
        print(f"`polyplay {verb} {known[0]} --help` lists one's options; `polyplay systems` compares all")
        raise SystemExit(0)
    if not words or words[0].startswith("-"):
        given = f"'{words[0]}' given" if words else "nothing given"
        raise UserError(f"{verb} takes a system first, {given}; allowed: {', '.join(systems.names())}")
    return words[0], systems.load(words[0]), list(words[1:])
