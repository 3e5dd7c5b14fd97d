"""The words after a verb: what it is about (runs, a system, an environment) comes first, then its options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TypeVar

from polyplay.common.errors import UserError

T = TypeVar("T")
EXAMPLES = (
    "ppo --env CartPole-v1",
    "a2c --env ALE/Pong-v5 --preset quick",
    "impala --env CartPole-v1 --hidden 128 128",
)
COMMON = (
    "  --env ID             ALE/NAME, a Gymnasium id, module:callable, or toy:NAME",
    "  --lanes N            parallel environments, also --num-envs",
    "  --network NAME       auto, mlp, nature, impala, …, or module:callable",
    "  --learning-rate X    at the start",
    "  --preset NAME        named set of defaults; chosen by --env if not given",
)
BEGIN = "begin with ppo (any actions), dqn (discrete actions) or impala (many cores)"


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
    directory.read_config(Path(first[0]), population=verb in ("resume", "population"))
    return Path(first[0]), options, given


def page_and_words(words: Sequence[str], verb: str, over: object = None) -> tuple[str, ModuleType, list[str]]:
    """(system, its page, the rest of the words). over: of a population, unless the words say it."""
    from polyplay import systems

    if words and words[0] in ("-h", "--help"):
        _show_general_help(verb)
    if not words or words[0].startswith("-"):
        given = f"'{words[0]}' given" if words else "nothing given"
        example = shlex.join(words) if words else "--env CartPole-v1"
        text = f"{verb} takes a system first, {given}: polyplay {verb} ppo {example}; {BEGIN}"
        raise UserError(f"{text}; allowed: {', '.join(systems.names())}")
    page, rest = systems.load(words[0]), list(words[1:])
    if systems.is_population(page):
        from polyplay.runs.load import page_of

        page = page_of(words[0], _value_of("over", rest) or over)
    return words[0], page, rest


def _value_of(name: str, words: Sequence[str]) -> str | None:
    """The last value that is given for an option, if any is."""
    found = None
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.partition("=")[0] == f"--{name}":
            found = word.partition("=")[2] or following
    return found


def _show_general_help(verb: str) -> NoReturn:
    """What all systems have in common."""
    from polyplay import systems
    from polyplay.runs import flags
    from polyplay.runs.option_groups import grouped
    from polyplay.runs.options import MORE, RunOptions

    lines = [f"systems: {', '.join(systems.names())}", "`polyplay systems` says what each is good for.", ""]
    lines += ["examples:", *(f"  polyplay {verb} {example}" for example in EXAMPLES), ""]
    lines += [
        f"options of most systems (`polyplay {verb} ppo --help` lists all of ppo's):",
        *COMMON,
        "",
        *MORE.split("\n"),
    ]
    lines += ["The options below are the same for every system."]
    groups = grouped((), flags.option_types(RunOptions))
    flags.show_help([RunOptions()], groups, f"polyplay {verb} SYSTEM", "\n".join(lines))
