from __future__ import annotations

import json
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from polyplay.core import machine
from polyplay.core.errors import UserError
from polyplay.core.machine import ThreadPool
from polyplay.core.user_modules import import_module

ROOT = Path(__file__).parents[2]
EDITABLE, COMMIT = {"dir_info": {"editable": True}}, {"vcs_info": {"vcs": "git", "commit_id": "1f"}}


def test_each_thread_does_its_part_and_the_caller_the_first():
    team, begun = ThreadPool(3, lambda: None), threading.current_thread()
    found = team.each(lambda i: (i, threading.current_thread() is begun))
    assert found == [(0, True), (1, False), (2, False)]
    assert [team.part(i, 10) for i in range(3)] == [slice(0, 3), slice(3, 6), slice(6, 10)]


class Installed(metadata.Distribution):
    """A distribution whose only file is direct_url.json, if it has that."""

    def __init__(self, origin: dict[str, Any] | None):
        self.record = origin

    def read_text(self, filename: str) -> str | None:
        return None if filename != "direct_url.json" or self.record is None else json.dumps(self.record)

    def locate_file(self, path: Any) -> Path:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("origins", "command"),
    [
        ([{"url": "file:///a/b", **EDITABLE}], "pip install -c /a/b/constraints.txt -e '/a/b[ray]'"),
        ([None, {"url": "file:///a/b", **EDITABLE}], "pip install -c /a/b/constraints.txt -e '/a/b[ray]'"),
        ([{"url": "file:///a%20b/c", **EDITABLE}], "pip install -c '/a b/c/constraints.txt' -e '/a b/c[ray]'"),
        ([{"url": "file:///a/b", "dir_info": {}}], "pip install -c /a/b/constraints.txt '/a/b[ray]'"),
        (
            [{"url": "file:///a/polyplay-1%2Bdirty-py3-none-any.whl", "archive_info": {}}],
            "pip install '/a/polyplay-1+dirty-py3-none-any.whl[ray]'",
        ),
        (
            [{"url": "https://a.b/polyplay-1-py3-none-any.whl", "archive_info": {}}],
            "pip install 'polyplay[ray] @ https://a.b/polyplay-1-py3-none-any.whl'",
        ),
        ([{"url": "https://a.b/c.git", **COMMIT}], "pip install 'polyplay[ray] @ git+https://a.b/c.git@1f'"),
        ([{"url": "file:///a/b", **COMMIT}], "pip install 'polyplay[ray] @ git+file:///a/b@1f'"),
        ([None], "pip install 'polyplay[ray]'"),
        ([], "pip install 'polyplay[ray]'"),
    ],
)
def test_an_extra_is_added_in_the_way_of_the_installation(origins, command, monkeypatch):
    monkeypatch.setattr(metadata, "distributions", lambda name: [Installed(origin) for origin in origins])
    assert machine.install_command("ray") == command


@pytest.mark.parametrize(("name", "extra"), [("minigrid:MiniGrid-Empty-5x5-v0", "minigrid"), ("mpe2:x", "pettingzoo")])
def test_a_missing_package_of_an_extra_is_one_line_with_the_command(name, extra, monkeypatch):
    module = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError) as e:
        import_module(module, name, "--env", "a Gymnasium id")
    assert f"`{machine.install_command(extra)}`; allowed: a Gymnasium id" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_page_is_found_in_the_checkout_and_in_a_wheel(tmp_path, monkeypatch):
    page = "docs/guides/atari.md"
    monkeypatch.chdir(ROOT)
    assert machine.documentation(page) == page
    monkeypatch.chdir(tmp_path)
    assert machine.documentation(page) == str(ROOT / page)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "site" / "polyplay" / "core" / "machine.py"))
    file = metadata.PackagePath(f"../share/doc/polyplay/{page}")
    file.dist = metadata.Distribution.at(tmp_path / "site" / "polyplay.dist-info")
    monkeypatch.setattr(Installed, "files", [file])
    monkeypatch.setattr(metadata, "distributions", lambda name: [Installed(None)])
    assert machine.documentation(page) == str(tmp_path / "share/doc/polyplay" / page)
    assert machine.documentation("no such page") == "no such page"
