"""Functions that all verbs (subcommands) of the command line share: they parse words, print results, and serve pages.

On a command line, the subject of a verb (a run, a system or an environment) comes first, and the options follow.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from polyplay.core.errors import Finding, UserError
from polyplay.core.files import Row
from polyplay.core.machine import install_command

if TYPE_CHECKING:
    from polyplay.systems import Page

T = TypeVar("T")
EXAMPLES = (
    "ppo --env CartPole-v1",
    "a2c --env ALE/Pong-v5 --preset quick",
    "impala --env CartPole-v1 --hidden 128 128",
)
BEGIN = "start with ppo (any actions), dqn (discrete actions) or impala (many cores)"


def parse_words(
    cls: type[T], words: Sequence[str], command: str, about: str, several: bool = False, modes: Sequence[type] = ()
) -> tuple[list[str], T | Any, set[str]]:
    """Parse the words of a verb. Return the words before the options, the options, and the names of the given options.
    Raises flags.Help for --help.
    `several`: whether more than one word may come before the options.
    `modes`: other classes of options. If the first option of such a class is given, the class is used instead of `cls`.
    """
    from polyplay.runs import flags

    table: Any = cls
    for mode in modes:
        name, kind = next(iter(flags.option_types(mode).items()))
        switch = flags.flag(name)
        rest, after = take_option(words, switch[2:])
        if after is not None:
            table, command, modes = mode, f"{command} {switch}", ()
            words = [*after, *rest] if kind is bool else words  # a subject may follow such an option
    before = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    n = before if several else min(before, 1)
    return list(words[:n]), *flags.read_flags(table, words[n:], command, about, modes)


def run_and_options(
    cls: type[T], words: Sequence[str], verb: str, modes: Sequence[type] = ()
) -> tuple[Path, T | Any, set[str]]:
    """Parse the words of a verb. Return a run's directory, the options, and the names of the given options."""
    from polyplay.runs import directory

    about = "RUN is the directory of a run."
    first, options, given = parse_words(cls, words, f"polyplay {verb} RUN", about, modes=modes)
    if not first:
        raise UserError(f"{verb} takes the directory of a run first: polyplay {verb} runs/… [--OPTION VALUE …]")
    directory.read_config(Path(first[0]), population=verb == "resume")
    return Path(first[0]), options, given


def page_and_words(words: Sequence[str], verb: str, over: object = None) -> tuple[Page, list[str]]:
    """Return the page (definition) of the system in `words`, and the other words. `over`: default value of --over."""
    from polyplay import systems
    from polyplay.runs import flags

    if words and words[0] in flags.HELP:
        _show_general_help(verb, words[0] == flags.HELP[-1])
    if not words or words[0].startswith("-"):
        given = f", not '{words[0]}'" if words else ""
        text = f"{verb} takes a system first{given}: polyplay {verb} {EXAMPLES[0]}; {BEGIN}"
        raise UserError(f"{text}; allowed: {', '.join(systems.names())}")
    named = take_option(words[1:], "over")[1]
    return systems.page_of(words[0], named[-1] if named else over), list(words[1:])


def take_option(words: Sequence[str], name: str) -> tuple[list[str], list[str] | None]:
    """Return the words without the option --NAME, and the option's values (None if it is not given)."""
    at = max((i for i, word in enumerate(words) if word.partition("=")[0] == f"--{name}"), default=None)
    if at is None:
        return list(words), None
    end = next((i for i in range(at + 1, len(words)) if words[i].startswith("-")), len(words))
    _, equals, value = words[at].partition("=")
    return [*words[:at], *words[end:]], [*([value] if equals else []), *words[at + 1 : end]]


def _show_general_help(verb: str, whole: bool) -> NoReturn:
    """Raise flags.Help with the options that all systems have."""
    from polyplay import systems
    from polyplay.runs import options

    lines = [f"systems: {', '.join(systems.names())}; `polyplay systems` says what each is good for.", "examples:"]
    lines += [f"  polyplay {verb} {example}" for example in EXAMPLES]
    lines += [options.MORE, "Below are options of every system; `polyplay train ppo --help` lists those of ppo too:"]
    lines += ["--env, --lanes, --network, --learning-rate, …"]
    options.show_options([options.RunOptions()], f"polyplay {verb} SYSTEM", "\n".join(lines), whole)


# Printed results: findings as a table, a result as lines.


LEVELS = {"ok": ("ok", "green"), "warning": ("warning", "bold yellow")}
LEVELS |= {"failed": ("FAILED", "bold red"), "unseen": ("–", "bright_black")}


def _grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Merge findings of level "unseen" (untested rules) that have the same reason."""
    rows: list[Finding] = []
    for text in dict.fromkeys(f.seen for f in findings if f.level == "unseen"):
        names = [f.name for f in findings if (f.level, f.seen) == ("unseen", text)]
        name = names[0] if len(names) == 1 else f"{len(names)} others"
        rows.append(Finding(name, "unseen", text if len(names) == 1 else f"{text}: {', '.join(names)}"))
    return [f for f in findings if f.level != "unseen"] + rows


def print_findings(title: str, findings: Sequence[Finding], card: Mapping[str, str], heading: str) -> None:
    """Print a table of test results (findings), with fixes for warnings and failures. Then print the facts `card`."""
    from rich.table import Column
    from rich.text import Text

    from polyplay.runs.terminal import default_console, ruled_table

    console = default_console()
    console.print(Text(title, style="bold"))
    first = Column(heading, no_wrap=True, style="bold"), Column("", no_wrap=True)
    table = ruled_table(*first, Column("seen", overflow="fold"))
    for f in _grouped(findings):
        seen = Text(f.seen)
        if f.fix and f.level in ("warning", "failed"):
            seen.append("\nfix: ", style="bold").append(f.fix)
        table.add_row(f.name, Text(*LEVELS[f.level]), seen)
    console.print(table)
    width = max(map(len, card), default=0)
    for key, value in card.items():
        console.print(Text.assemble((f"{key:<{width}}  ", "bright_black"), value), soft_wrap=True)


def complain(text: str, e: BaseException) -> None:
    """Print an error message and the exception's notes, such as the command that continues the run."""
    print("\n".join([f"polyplay: {text}", *getattr(e, "__notes__", [])]), file=sys.stderr, flush=True)


def print_result(result: Row) -> None:
    """Print each value of a result on a line. Leave out lists, tuples and dictionaries."""
    short = {k: v for k, v in result.items() if not isinstance(v, (list, tuple, dict))}
    for key, value in short.items():
        text = "none" if value is None else str(value)
        if isinstance(value, float):
            text = f"{value:g}" if 0.0 < abs(value) < 0.01 else f"{value:,.2f}"
        print(f"{key:<{max(map(len, short))}}  {text}")


# The port of a local web page, and a server for the page until Ctrl-C. The server needs the extra polyplay[watch].


def check_extra(verb: str) -> None:
    """Raise UserError if a package for web pages is not installed."""
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise UserError(f"{verb} needs {' and '.join(missing)}: {install_command('watch')}")


def listen(port: int) -> socket.socket:
    """Return a network socket that only this machine can reach. Raises UserError if the port cannot be used."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as e:
        listener.close()
        another = f"try --port {port % 65535 + 1}"
        raise UserError(f"--port: {port} cannot be used ({e.strerror}); {another}") from None
    return listener


def serve_page(listener: socket.socket, app: Any) -> None:
    """Serve the web application `app` until the user presses Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False)
    uvicorn.Server(config).run(sockets=[listener])
