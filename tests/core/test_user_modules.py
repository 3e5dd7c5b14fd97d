"""A name finds what a module has, and nothing behind that is computed."""

from __future__ import annotations

import os
import sys
import types

import pytest

from polyplay.core.errors import UserError
from polyplay.core.user_modules import file_hint, look_up
from polyplay.envs import Envs
from polyplay.envs.build import factory
from polyplay.nets.factory import make as make_network

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
    ["__loader__.set_data", "__dict__", "os.system", "made.make", "Outer.__subclasses__", "Outer.make.__func__", ""],
)
def test_attributes_of_anything_else_are_none(name: str):
    with pytest.raises(AttributeError, match="module 'here' has no attribute"):
        look_up(HERE, name)


# Modules of the user's: files given in their place, and what they do while they are imported.


GAME = "import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
PARSES = f"import argparse\n\narguments = argparse.ArgumentParser().parse_args()\n{GAME}"
TRAINS = f"{GAME}\n\npolyplay.train('ppo', env=make, steps=10)\n"
WAYS_TO_START = {
    "train": f"import polyplay\n{TRAINS}",
    "imported": f"from polyplay import train\n{GAME}\n\ntrain('a2c', env=make)\n",
    "check": f"import polyplay\n{GAME}\n\npolyplay.check(make)\n",
    "pool": f"from polyplay.envs import Envs\n{GAME}\n\nEnvs(make, 1, workers=1).open(0)\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["polyplay", "train", "ppo"])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("./game_a2.py:make", "game_a2:make"),
        ("game_a2", "game_a2:NAME"),
        ("inner/more.py", "inner.more:NAME"),
        ("inner/more:build", "inner.more:build"),
        ("{here}/game_a2.py:make", "game_a2:make"),
    ],
)
def test_a_file_in_place_of_a_module_is_told_what_to_write(folder, given, right):
    (folder / "game_a2.py").write_text(GAME)
    (folder / "inner").mkdir()
    (folder / "inner" / "more.py").write_text(GAME)
    given = given.format(here=folder)
    with pytest.raises(UserError) as e:
        factory(given, {})
    assert str(e.value).startswith(f"--env: {given} given, which is a file: write {right}; allowed: ")


def test_files_elsewhere_missing_files_and_words_that_mean_none(folder):
    (folder / "here").mkdir()
    (folder / "game_a2.py").write_text(GAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "here")
        hint = f"which is a file of another folder: set PYTHONPATH={folder} and write game_a2:make"
        assert file_hint("../game_a2.py:make") == hint
    assert file_hint("lost.py:make") == "but there is no file lost.py"
    for name in ("CartPole-v1", "game_a2:make", "ALE/Pong-v5", "a.b.c", "..", ""):
        assert file_hint(name) == ""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (PARSES, "it reads the command line, ends_a2.py:3"),
        (f"import sys\n{GAME}\n\nsys.exit(3)\n", r"it calls sys.exit\(3\), ends_a2.py:9"),
        ("import sys\n\n\ndef stop():\n    sys.exit()\n\n\nstop()\n", r"it calls sys.exit\(\), ends_a2.py:5"),
    ],
)
def test_a_module_that_ends_the_program(folder, code, why, capsys):
    (folder / "ends_a2.py").write_text(code)
    text = rf"importing ends_a2 ended the program \({why}\): put that under if __name__ == '__main__'"
    with pytest.raises(UserError, match=f"--env: ends_a2:make: {text}") as e:
        factory("ends_a2:make", {})
    assert "\n" not in str(e.value)
    with pytest.raises(UserError, match=f"--network: ends_a2:make: {text}"):
        make_network("ends_a2:make", Envs("toy:catch", 1).spec)
    assert capsys.readouterr().err == "", "the usage of another command"


@pytest.mark.parametrize("way", WAYS_TO_START)
def test_a_module_that_starts_processes_while_it_is_imported(folder, way):
    (folder / "script_a2.py").write_text(WAYS_TO_START[way])
    what = "a process" if way == "pool" else f"polyplay.{'train' if way == 'imported' else way}"
    why = rf"{what} was started while its module was being imported \(script_a2.py:\d+\); put it under if __name__"
    with pytest.raises(UserError, match=f"--env: script_a2:make: importing script_a2 failed: {why}"):
        factory("script_a2:make", {})


def test_a_probe_that_imports_such_a_module_says_so(folder):
    """By name, and as a function of that module."""
    (folder / "script_a2.py").write_text(WAYS_TO_START["train"])
    why = "polyplay.train was started while its module was being imported"
    with pytest.raises(UserError, match=why):
        Envs("script_a2:make", 1).spec  # noqa: B018
    (folder / "script_a2.py").write_text(GAME)
    import script_a2

    (folder / "script_a2.py").write_text(WAYS_TO_START["train"])
    with pytest.raises(UserError, match=f"make: cannot be read in another process: {why}"):
        Envs(script_a2.make, 1).spec  # noqa: B018
