"""The user's modules: imported by name, or refused in one line."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import partial
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


def find(name: str, option: str, allowed: str) -> Any:
    """What module:NAME names, which was given for `option`. Raises UserError."""
    module, _, attribute = name.partition(":")
    found = import_module(module, name, option, allowed)
    try:
        return look_up(found, attribute)
    except AttributeError:
        raise UserError(f"{option}: {name} given, but {module} has no {attribute!r}; allowed: {allowed}") from None


def title(given: Any) -> str:
    """A name, or that of a function or a class, of a partial too; of other callables their class's."""
    given = given.func if isinstance(given, partial) else given
    return given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__name__)


PARSERS = ("argparse", "optparse", "getopt", "click", "typer", "absl", "tyro", "fire", "hydra", "docopt")


class _Held:
    """A stream whose text waits until it is let go."""

    def __init__(self, stream: Any):
        self.stream, self.waiting = stream, list[str]()
        self.write: Callable[[str], Any] = self.waiting.append

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def let_go(self, printed: bool) -> None:
        """printed: also what waits."""
        self.write = self.stream.write
        if printed and self.waiting:
            self.stream.write("".join(self.waiting))


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Standard error is printed at the end; not where the program is ended: it is the usage of another command."""
    if sys.stderr is None:
        yield
        return
    held, ended = _Held(sys.stderr), False
    try:
        with contextlib.redirect_stderr(held):
            yield
    except BaseException as e:
        ended = isinstance(e.__cause__ or e, SystemExit)
        raise
    finally:
        held.let_go(not ended)


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
    except SystemExit as e:
        cure = MAIN.replace("it", "that", 1)
        raise UserError(f"{option}: {name}: importing {module} {ending(e)}: {cure}") from None
    except Exception as e:
        why = str(e) if isinstance(e, UserError) else f"{type(e).__name__}: {e}"
        raise UserError(f"{option}: {name}: importing {module} failed: {why}") from e


def ending(e: SystemExit) -> str:
    """That code of the user's ended the program, why and where."""
    frames = traceback.extract_tb(e.__traceback__)
    library = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib"))
    own = [f for f in frames if not f.filename.startswith((*library, OURS, "<"))]
    reads = any(part in PARSERS for f in frames for part in Path(f.filename).with_suffix("").parts)
    why = "it reads the command line" if reads else f"it calls sys.exit({'' if e.code is None else repr(e.code)})"
    where = f", {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"ended the program ({why}{where})"


def file_hint(name: str) -> str:
    """What to write instead of a name that means a file; "": it means none."""
    module, colon, attribute = name.partition(":")
    path, is_file = Path(module if module.endswith(".py") else f"{module}.py"), module.endswith(".py")
    if colon and not is_file and os.sep not in module:
        return ""
    if not path.exists():
        return f"but there is no file {path}" if colon or is_file else ""
    where, (*folders, file) = "", path.resolve().with_suffix("").parts
    try:
        folders = [*path.resolve().relative_to(Path.cwd().resolve()).parts[:-1]]
    except ValueError:
        where, folders = f" of another folder: set PYTHONPATH={Path(*folders)} and", []
    return f"which is a file{where or ':'} write {'.'.join([*folders, file])}:{attribute or 'NAME'}"
