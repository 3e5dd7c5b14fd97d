"""polyplay/cli/systems.py: what each system is good for."""

from __future__ import annotations

import pytest

from polyplay import systems
from polyplay.cli import main
from polyplay.cli.systems import GOOD_FOR


def test_every_system_is_good_for_something():
    assert list(GOOD_FOR) == systems.names()


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_nothing_is_cut(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main.main(["systems"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    words = " ".join(out.split())
    assert all(name in words for name in GOOD_FOR)
