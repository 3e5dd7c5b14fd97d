"""Standard output as a console, where it is a file; and who draws on it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from polyplay.runs.reports.reporter import Reporter
from polyplay.runs.reports.screen import default_console
from polyplay.runs.reports.terminal import Terminal


def test_a_log_file_is_wide_plain_and_keeps_its_encoding(monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = default_console()
    console.print("×█×", style="bold")
    console.file.flush()
    assert "×?×".encode("latin-1") in raw.getvalue()
    monkeypatch.delenv("FORCE_COLOR")
    assert default_console().width == 120
    monkeypatch.setenv("COLUMNS", "70")
    assert default_console().width == 70


def test_forced_colours_do_not_make_a_log_file_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console(file=io.StringIO())
    assert console.is_terminal
    assert Terminal(Reporter(tmp_path, tensorboard=False), console=console).screen.live is None
