"""Import of the user's modules by name. If an import fails, the error message is one line."""

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
from polyplay.core.machine import install_command

# While a user's module is being imported, no process may start: the new process would import the module, and so on.
#
# A process forked for environments may never start others. A process forked for workers may, once it has its arguments.


OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
MAIN = "put it under if __name__ == '__main__'"
_closed = 0  # number of current reasons to forbid starts


def close() -> None:
    """Forbid this process to start processes or runs, until `lift` is called."""
    global _closed
    _closed += 1


def lift() -> None:
    global _closed
    _closed -= 1


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Context in which this process may not start processes or runs."""
    close()
    try:
        yield
    finally:
        lift()


def refused() -> bool:
    return _closed > 0


def refuse(what: str) -> None:
    """Raise UserError if this process must not start processes or runs. `what`: what it tried to start."""
    if not refused():
        return
    stack = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))  # the caller's frames, innermost first
    frames = [f for f in stack if not f.f_code.co_filename.startswith((OURS, "<"))]
    module = [f for f in frames if f.f_code.co_name == "<module>"]
    place = next(iter(module or frames), None)
    where = f" ({os.path.basename(place.f_code.co_filename)}:{place.f_lineno})" if place else ""
    when = "while its module was being imported" if module else "in a process that only steps environments"
    raise UserError(f"{what} was started {when}{where}; {MAIN if module else 'remove it there'}")


def look_up(module: ModuleType, name: str) -> Any:
    """Return attribute `name` of a module, or an attribute of a class in it (`Class.attribute`). Raises AttributeError
    if the attribute does not exist. Attributes of other objects are refused, for safety.
    """
    found: Any = module
    for part in name.split("."):
        inside = found is module or isinstance(found, type)
        if not inside or part.startswith("__") or not hasattr(found, part):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        found = getattr(found, part)
    return found


def find(name: str, option: str, allowed: str) -> Any:
    """Return the object `name` (module:NAME). `option`: the option that gave the name. Raises UserError."""
    module, _, attribute = name.partition(":")
    found = import_module(module, name, option, allowed)
    try:
        return look_up(found, attribute)
    except AttributeError:
        raise UserError(f"{option}: {name} given, but {module} has no {attribute!r}; allowed: {allowed}") from None


def title(given: Any) -> str:
    """Return a function's or class's name. For other objects, return their class's name. Return text unchanged."""
    given = given.func if isinstance(given, partial) else given
    return given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__name__)


EXTRAS = {"minigrid": "minigrid", "mpe2": "pettingzoo", "pettingzoo": "pettingzoo"}  # package → extra that installs it
PARSERS = ("argparse", "optparse", "getopt", "click", "typer", "absl", "tyro", "fire", "hydra", "docopt")


class _Held:
    """Output stream that keeps written text until `let_go` is called."""

    def __init__(self, stream: Any):
        self.stream, self.waiting = stream, list[str]()
        self.write: Callable[[str], Any] = self.waiting.append

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def let_go(self, printed: bool) -> None:
        """Stop keeping text. `printed`: whether to write the kept text. Otherwise, it is dropped."""
        self.write = self.stream.write
        if printed and self.waiting:
            self.stream.write("".join(self.waiting))


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Delay the output to standard error until this context ends. After SystemExit, drop the output."""
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
    """Import `module`, the part of `name` before the colon. `option`: option that gave `name`. Raises UserError."""
    if hint := file_hint(name):
        raise UserError(f"{option}: {name} given, {hint}; allowed: {allowed}")
    if os.getcwd() not in sys.path:  # command-line tools start without this entry
        sys.path.insert(0, os.getcwd())
    try:
        with held_back(), importing():
            return importlib.import_module(module)
    except ModuleNotFoundError as e:
        what = f"no module {e.name!r}" + ("" if e.name == module else f", which {module} imports")
        where = f"it must be installed or lie in {os.getcwd()}"
        where = f"`{install_command(EXTRAS[e.name])}`" if e.name in EXTRAS else where
        raise UserError(f"{option}: {name} given, {what}; {where}; allowed: {allowed}") from None
    except SystemExit as e:
        cure = MAIN.replace("it", "that", 1)
        raise UserError(f"{option}: {name}: importing {module} {ending(e)}: {cure}") from None
    except Exception as e:
        why = str(e) if isinstance(e, UserError) else f"{type(e).__name__}: {e}"
        raise UserError(f"{option}: {name}: importing {module} failed: {why}") from e


def ending(e: SystemExit) -> str:
    """Describe how the user's code ended the program: the reason, the file and the line."""
    frames = traceback.extract_tb(e.__traceback__)
    library = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib"))
    own = [f for f in frames if not f.filename.startswith((*library, OURS, "<"))]
    reads = any(part in PARSERS for f in frames for part in Path(f.filename).with_suffix("").parts)
    why = "it reads the command line" if reads else f"it calls sys.exit({'' if e.code is None else repr(e.code)})"
    where = f", {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"ended the program ({why}{where})"


def file_hint(name: str) -> str:
    """If `name` is the path of a file instead of a module, return advice. Otherwise, return ""."""
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
