"""A name finds what a module has, and nothing behind that is computed."""

from __future__ import annotations

import os
import types

import pytest

from polyplay.core.user_modules import look_up

HERE = types.ModuleType("here")


class Outer:
    """With a class and a function in it."""

    class Inner:
        pass

    @classmethod
    def make(cls) -> Outer:
        return cls()


HERE.Outer, HERE.os, HERE._hidden, HERE.made = Outer, os, len, Outer()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "found"), [("Outer", Outer), ("Outer.Inner", Outer.Inner), ("_hidden", len)])
def test_names_of_modules_and_their_classes(name: str, found: object):
    assert look_up(HERE, name) is found
    assert isinstance(look_up(HERE, "Outer.make")(), Outer)


@pytest.mark.parametrize(
    "name",
    [
        "__loader__.set_data",
        "__dict__",
        "os.system",
        "made.make",
        "Outer.__subclasses__",
        "Outer.make.__func__",
        "none",
        "",
    ],
)
def test_attributes_of_anything_else_are_none(name: str):
    with pytest.raises(AttributeError, match="module 'here' has no attribute"):
        look_up(HERE, name)
