"""The signatures that editors complete `polyplay.train("ppo", …)` from: polyplay/_signatures.pyi, by docs/generate.py.

It declares what polyplay/api.py has, with an overload of `train` for each system whose keywords are its options.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from polyplay import systems
from polyplay.runs.flags import meanings
from polyplay.runs.options import RunOptions

ROOT = Path(__file__).resolve().parents[1]
FILE = Path("polyplay") / "_signatures.pyi"
HEAD = '''"""Written by docs/generate.py from the pages of systems; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from gymnasium import Env

from polyplay.api import Callback, Run, check, evaluate, export, load, resume
from polyplay.systems import Page

__all__ = ["Callback", "Run", "check", "evaluate", "export", "load", "resume", "train"]
'''
OWN = {  # what Python takes besides the text of the command line
    "env": "str | Callable[..., Any] | Env[Any, Any]",
    "network": "str | Callable[..., Any]",
    "optimizer": "str | Callable[..., Any]",
    "loss": "str | Callable[..., Any] | None",
    "env_kwargs": "Mapping[str, object] | tuple[str, ...]",
    "env_options": "Mapping[str, object] | Callable[[float], Mapping[str, object]] | tuple[str, ...]",
    "run": "str | Path | None",
}


def stub() -> str:
    names = systems.names()
    parts = [HEAD, options("RunOptions", RunOptions)]
    parts += [options(name.title().replace("_", ""), systems.load(name).Config, "RunOptions") for name in names]
    parts += [overload(f'Literal["{name}"]', keywords(name)) for name in names]
    return "\n".join([*parts, overload("str | Page | None = None", "Any")])


def keywords(name: str) -> str:
    """A population takes the options of any other system too."""
    return "Any" if systems.is_population(systems.load(name)) else f"Unpack[{name.title().replace('_', '')}]"


def options(name: str, cls: type, base: str = "TypedDict") -> str:
    hints, said = get_type_hints(cls), meanings(cls)
    lines = [f"    {f.name}: {OWN.get(f.name) or written(hints[f.name])}  # {said[f.name]}" for f in fields(cls)]
    return "\n".join([f"class {name}({base}, total=False):", *lines, ""])


def written(hint: Any) -> str:
    """A type as one writes it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return written(args[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin is tuple:
        return f"tuple[{', '.join('...' if a is ... else written(a) for a in args)}]"
    if args:
        return " | ".join(map(written, args))
    return "None" if hint is type(None) else str(hint.__name__)


def overload(system: str, keywords: str) -> str:
    given = "config: str | Path | None = None, callbacks: Sequence[object] = ()"
    return f"@overload\ndef train(\n    system: {system}, {given}, **overrides: {keywords}\n) -> Run: ..."
