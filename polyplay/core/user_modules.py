"""The user's modules: imported by name, or refused in one line."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from polyplay.core.errors import UserError

# While a module of the user's is imported, nothing is started: it would import that module again, and so on.
#
# A process that is forked for environments starts nothing at all; one for workers does once it has read what it was
# sent.


OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
MAIN = "put it under if __name__ == '__main__'"
_closed = 0  # how many reasons there are to start nothing


def close() -> None:
    """From now on this process starts nothing, until `lift`."""
    global _closed
    _closed += 1


def lift() -> None:
    global _closed
    _closed -= 1


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Nothing is started meanwhile."""
    close()
    try:
        yield
    finally:
        lift()


def refused() -> bool:
    return _closed > 0


def refuse(what: str) -> None:
    """Raises UserError while nothing may start; what: what was to start."""
    if not refused():
        return
    stack = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))  # of whoever called, innermost first
    frames = [f for f in stack if not f.f_code.co_filename.startswith((OURS, "<"))]
    module = [f for f in frames if f.f_code.co_name == "<module>"]
    place = next(iter(module or frames), None)
    where = f" ({os.path.basename(place.f_code.co_filename)}:{place.f_lineno})" if place else ""
    when = "while its module was being imported" if module else "in a process that only steps environments"
    raise UserError(f"{what} was started {when}{where}; {MAIN if module else 'leave it out there'}")


def look_up(module: ModuleType, name: str) -> Any:
    """What a module has by this name; behind a dot, what a class in it has. Raises AttributeError: also for attributes
    of anything else, as `__loader__.set_data` would be.
    """
    found: Any = module
    for part in name.split("."):
        inside = found is module or isinstance(found, type)
        if not inside or part.startswith("__") or not hasattr(found, part):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        found = getattr(found, part)
    return found


PARSERS = ("argparse", "optparse", "getopt", "click", "typer", "absl", "tyro", "fire", "hydra", "docopt")
SHOWN = 3  # names of a file that a message lists


def import_module(module: str, name: str, option: str, allowed: str) -> ModuleType:
    """The module that `name`, which was given for `option`, has before its colon. Raises UserError."""
    if hint := file_hint(name):
        raise UserError(f"{option}: {name} given, {hint}; allowed: {allowed}")
    if os.getcwd() not in sys.path:  # a command line tool has no entry for it
        sys.path.insert(0, os.getcwd())
    try:
        with held_back(), importing():
            return importlib.import_module(module)
    except ModuleNotFoundError as e:
        what = f"no module {e.name!r}" + ("" if e.name == module else f", which {module} imports")
        where = f"it must be installed or lie in {os.getcwd()}"
        raise UserError(f"{option}: {name} given, {what}; {where}; allowed: {allowed}") from None
    except UserError as e:
        raise UserError(f"{option}: {name}: importing {module} failed: {e}") from None
    except SystemExit as e:
        cure = MAIN.replace("it", "that", 1)
        raise UserError(f"{option}: {name}: importing {module} {ending(e)}: {cure}") from None
    except Exception as e:
        raise UserError(f"{option}: {name}: importing {module} failed: {type(e).__name__}: {e}") from e


def ending(e: SystemExit) -> str:
    """That code of the user's ended the program, why and where."""
    frames = traceback.extract_tb(e.__traceback__)
    library = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib"))
    own = [f for f in frames if not f.filename.startswith((*library, OURS, "<"))]
    reads = any(part in PARSERS for f in frames for part in Path(f.filename).with_suffix("").parts)
    why = "it reads the command line" if reads else f"it calls sys.exit({'' if e.code is None else repr(e.code)})"
    where = f", {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"ended the program ({why}{where})"


# ------------------------------------------------------------------------------------ what is printed


class _Held:
    """A stream whose text is kept."""

    def __init__(self, stream: Any):
        self.stream, self.said = stream, list[str]()

    def write(self, text: str) -> int:
        self.said.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Standard error is printed at the end; not where the program is ended: it is the usage of another command."""
    held, keep = _Held(sys.stderr), True
    try:
        with contextlib.redirect_stderr(held):
            yield
    except BaseException as e:
        keep = not isinstance(e.__cause__ or e, SystemExit)
        raise
    finally:
        if keep and held.said and held.stream is not None:
            held.stream.write("".join(held.said))


# ------------------------------------------------------------------------------ files instead of modules


def file_hint(name: str) -> str:
    """What to write instead of a name that means a file of the current folder; "": it means none."""
    module, colon, attribute = name.partition(":")
    if "/" in module or os.sep in module or module.endswith(".py"):
        path = Path(module if module.endswith(".py") else f"{module}.py")
    elif not colon and (found := _named(module)):
        path, attribute = found
    else:
        return ""
    if not path.exists():
        return "" if not colon and not module.endswith(".py") else f"but there is no file {path}"
    names = [attribute] if attribute else _callables(path)
    try:
        parts = path.resolve().relative_to(Path.cwd().resolve()).with_suffix("").parts
    except ValueError:
        folder = f"set PYTHONPATH={path.resolve().parent}"
        return f"which is a file of another folder: {folder} and write {_choices([path.stem], names)}"
    return f"which is a file: write {_choices(parts, names)}"


def _named(word: str) -> tuple[Path, str] | None:
    """The file, and perhaps what is in it, that a word without a colon means: env of env.py, env.make."""
    parts = word.split(".")
    if all(parts) and (whole := Path(*parts[:-1], f"{parts[-1]}.py")).exists():
        return whole, ""
    if len(parts) > 1 and all(parts) and (holder := Path(*parts[:-2], f"{parts[-2]}.py")).exists():
        return (holder, parts[-1]) if parts[-1] in _callables(holder) else None
    return None


def _choices(module: Any, names: list[str]) -> str:
    return " or ".join(f"{'.'.join(module)}:{name}" for name in names[:SHOWN] or ["NAME"])


def _callables(path: Path) -> list[str]:
    """Functions and classes of a file that is not executed, those called make first."""
    try:
        body = ast.parse(path.read_text("utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return []
    kinds = ast.FunctionDef | ast.ClassDef
    names = [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]
    return sorted(names, key=lambda name: not name.startswith("make"))
