"""The bounds of options that are numbers; None passes everywhere. Raises UserError on one line."""

from __future__ import annotations

from polyplay.common.errors import UserError


def at_least(options: object, **least: int) -> None:
    """Fields of `options` that are whole numbers, each with the least that is allowed."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise UserError(f"{_flag(name)}: {value} given, allowed: a whole number from {bound} up")


def above_zero(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise UserError(f"{_flag(name)}: {value:g} given, allowed: a number above 0")


def fraction(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{_flag(name)}: {value:g} given, allowed: a number from 0 to 1")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
