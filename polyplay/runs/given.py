"""What a program gave to a run as an object, as in env=Env: the run's files have only its name. A resumed run is given
it again, or has it from the run that began in this process, or by its name in the program that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.lookup import look_up
from polyplay.runs.options import Settings, json_value
from polyplay.runs.trust import MAIN

FIELDS = ("env", "network")
_given: dict[Path, dict[str, Any]] = {}  # to runs of this process, by the directory


def objects_of(values: Settings | Mapping[str, Any]) -> dict[str, Any]:
    """Those of some settings."""
    found = values if isinstance(values, Mapping) else vars(values)
    return {name: found[name] for name in FIELDS if callable(found.get(name))}


def remember(directory: Path, settings: Settings) -> None:
    """This run has these."""
    _given[directory.resolve()] = objects_of(settings)


def recall_objects(directory: Path, config: Row) -> dict[str, Any]:
    """Those that `remember` was told of this run. config: of config.json."""
    known = _given.get(directory.resolve(), {})
    return {name: thing for name, thing in known.items() if json_value(thing) == config.get(name)}


def find_by_name(directory: Path, config: Row) -> dict[str, Any]:
    """Those that the program that runs has, and for those that nobody can find a function that says so when it is
    called: acting and looking at a run may need neither.
    """
    found = {name: config[name] for name in FIELDS if isinstance(config.get(name), str) and _is_object(config[name])}
    return {name: _in_main(text) or _lost(directory, name, text) for name, text in found.items()}


def _is_object(name: str) -> bool:
    """Whether no import finds what has this name: of the program itself, a lambda, a part of a function, a partial."""
    return name.startswith(f"{MAIN}:") or "<" in name or name == "functools:partial"


def _in_main(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = look_up(sys.modules[MAIN], attribute) if module == MAIN else None
    except AttributeError:
        return None
    return found if callable(found) else None


def _lost(directory: Path, field: str, name: str) -> Callable[..., Any]:
    """In its place."""

    def lost(*args: object, **kwargs: object) -> None:
        where = f"polyplay.resume({str(directory)!r}, {field}=…)"
        raise UserError(
            f"RUN: {directory} was begun by a program with {field}={name}, which is not here: {where} has it"
        )

    lost.__module__, _, lost.__qualname__ = name.partition(":")
    return lost
