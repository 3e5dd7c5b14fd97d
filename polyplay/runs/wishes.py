"""Values of a preset or a default are wishes: those that do not apply are left out. Values from a person are orders.

A message that is about a wish says whose it is, and does not call it an option that was given. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from polyplay.common.errors import UserError
from polyplay.runs.flags import flag
from polyplay.runs.options import Settings, Sources

FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
ROUNDS = 8  # wishes that are given up, one after the other


def _rounded(value: int, text: str) -> int:
    """Up to the multiple that a message asks for."""
    found = re.findall(r"multiples? of (?:the |--[a-z]+ )?(\d+)", text)
    return -(-value // int(found[-1])) * int(found[-1]) if found and int(found[-1]) else value


def _lowered(value: int, text: str) -> int:
    """To the number of rows that a message says there are."""
    found = re.search(r"(\d+) (?:transitions|trajectories)", text)
    return min(value, int(found[1])) if found and int(found[1]) else value


def _fewer(value: str, text: str) -> str:
    """Auxiliary tasks without that which a message names, or none."""
    named = re.search(r"--auxiliary (\w+):", text)
    left = [task for task in value.split(",") if named and task.strip().partition("=")[0] != named[1]]
    return ",".join(left) or "none"


WISHES: dict[str, Callable[[Any, str], Any]] = {  # what is taken instead of a value that a message refuses
    "inputs": lambda value, text: "raw",
    "core": lambda value, text: "none",
    "previous": lambda value, text: False,
    "reward": lambda value, text: "none" if value == "scale" else value,
    "auxiliary": _fewer,
    "correction": lambda value, text: "none",
    "lanes": _rounded,
    "minibatches": _lowered,
}


def is_order(name: str, sources: Sources) -> bool:
    """Whether a person gave this option."""
    source = sources.get(name, "default")
    return not (source in ("default", "chosen") or source.startswith("preset "))


def left_out(text: str, settings: Settings, sources: Sources) -> dict[str, Any]:
    """What the wishes that a message names are changed to, so that it does not apply any more; {}: it names none."""
    found = dict[str, Any]()
    for word in FLAG.findall(text):
        name = word.replace("-", "_")
        if name in WISHES and hasattr(settings, name) and not is_order(name, sources):
            value = getattr(settings, name)
            if (other := WISHES[name](value, text)) != value:
                found[name] = other
    return found


def attributed(text: str, settings: Settings, sources: Sources) -> str:
    """A message that begins with an option that nobody gave, with its value and whose it is instead."""
    begin = re.match(r"--([a-z]+(?:-[a-z]+)*)(:? )", text)
    name = begin[1].replace("-", "_") if begin else ""
    if begin is None or not hasattr(settings, name) or is_order(name, sources):
        return text
    value, source = getattr(settings, name), sources.get(name, "default")
    rest = text[begin.end() :]
    if rest.startswith("nothing given"):
        return text
    if rest.startswith(f"{value}"):
        rest = rest.removeprefix(f"{value}").removeprefix(" given")
    else:
        rest = f"{begin[2].rstrip()} {rest}"
    return f"{begin[1]} {value} ({source}){rest}"


def fitted(
    settings: Settings, sources: Sources, wire: Callable[[Settings], Any]
) -> tuple[Settings, Any, list[tuple[str, str]]]:
    """The settings without the wishes that do not apply, what `wire` made of them, and lines of the plan about what was
    left out. Raises UserError.
    """
    lines = list[tuple[str, str]]()
    for _ in range(ROUNDS):
        try:
            return settings, wire(settings), lines
        except UserError as e:
            found = left_out(str(e), settings, sources)
            if not found:
                raise UserError(attributed(str(e), settings, sources)) from None
            lines += [("left out", _line(name, settings, sources, value, str(e))) for name, value in found.items()]
            settings = replace(settings, **found)
    return settings, wire(settings), lines


def _line(name: str, settings: Settings, sources: Sources, value: Any, why: str) -> str:
    """Of the plan: what is left out, whose it was, why, and what is taken instead."""
    before = getattr(settings, name)
    reason = why.removeprefix(flag(name)).lstrip(": ").removeprefix(f"{before}").lstrip(": ").partition(";")[0]
    return f"{name} {before} ({sources.get(name, 'default')}): {reason}; {value} instead"
