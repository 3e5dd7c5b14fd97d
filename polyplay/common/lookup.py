"""Code that a name means: a name behind module: is looked up, and nothing else is computed. Imports nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any


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
