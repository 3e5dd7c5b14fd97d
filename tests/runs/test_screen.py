"""Standard output as a console, where it is a file; and who draws on it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from polyplay.runs.reporter import Reporter
from polyplay.runs.terminal import Output, Terminal, default_console


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


def test_when_the_reader_leaves_everything_goes_nowhere():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as file:
        output = Output(file)
        output.write("x")
        output.flush()
        assert output.gone
        output.write("y")
        output.flush()
        print("others neither", file=file, flush=True)


def test_a_recording_may_be_closed():
    file = io.StringIO()
    output = Output(file)
    output.write("x")
    assert (file.getvalue(), output.isatty()) == ("x", False)
    file.close()
    output.write("y")
    assert output.gone
