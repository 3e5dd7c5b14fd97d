"""What a system refuses is told in words, with the limit and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.core.files import LIMITS, LogWrites, refusal_text


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EFBIG, "File too large; files may be no larger here: raise the limit (`ulimit -f`)"),
        (errno.EMFILE, "Too many open files; this process may open no more: raise the limit (`ulimit -n`)"),
        (errno.ENOSPC, "No space left on device; the disk is full: free some space"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_no_number_alone_reaches_the_person(number: int, said: str, monkeypatch, tmp_path: Path, capsys):
    error = OSError(number, os.strerror(number))
    assert refusal_text(error) == said
    warned: list[str] = []

    def write() -> None:
        raise error

    LogWrites(warned.append).attempt("metrics.jsonl", write)
    assert warned == [f"metrics.jsonl: {said}; the run continues, lines that did not fit are missing"]

    def dispatch(words: list[str]) -> int:
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))

    monkeypatch.setattr(main, "_dispatch", dispatch)
    assert main.main([]) == 1
    assert capsys.readouterr().err == f"polyplay: failed: {tmp_path}/file: {said}\n"


def test_what_has_no_number_is_told_as_it_is():
    assert refusal_text(OSError("the fork server was killed by SIGKILL")) == "the fork server was killed by SIGKILL"
    assert refusal_text(ValueError("x")) == "x"
    assert all("[Errno" not in refusal_text(OSError(number, os.strerror(number))) for number in LIMITS)
