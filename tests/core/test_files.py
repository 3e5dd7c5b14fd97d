"""Files that are read while they are written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import polyplay
from polyplay.cli import main
from polyplay.core.files import LogWrites, read_lines, refusal_text


class Growing:
    """A file whose last line is finished after a reader has met its first half."""

    def __enter__(self):
        return iter([b'{"a": 1}\n', b'{"a": 2, "b"', b": 3}\n"])

    def __exit__(self, *_):
        pass


def test_a_line_that_is_being_written_ends_the_reading(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    path.write_text("")
    monkeypatch.setattr(Path, "open", lambda *_: Growing())
    assert list(read_lines(path)) == [{"a": 1}]


def test_no_text_is_read_or_written_in_the_encoding_of_the_locale(tmp_path):
    """Of files as ruff sees it; of other programs' outputs by the word."""
    package, odd = Path(polyplay.__file__).parent, tmp_path / "odd.py"
    odd.write_text("import pathlib\n\npathlib.Path('x').read_text()\n")
    rule = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--preview", "--select", "PLW1514"]
    said = [subprocess.run([*rule, str(where)], capture_output=True, text=True) for where in (package, odd)]
    assert [done.returncode for done in said] == [0, 1], said[0].stdout
    assert not [path for path in package.rglob("*.py") if "text=True" in path.read_text("utf-8")]


LOCALE = """
import sys
from pathlib import Path
from polyplay.__main__ import main
from polyplay.runs import option_file
from polyplay.systems import read_settings
import locale
assert locale.getpreferredencoding(False).lower() not in ("utf-8", "utf8")
place = Path(sys.argv[1])
found = option_file.read_contents(place / "options.toml", "--config")["env"]
print(ascii(found), ascii(read_settings("tuned.toml") and "read"))
sys.argv = ["polyplay", "runs", str(place / "r\\u00fcns")]
main()
"""


def test_a_locale_without_utf_8_is_no_hindrance(tmp_path):
    (tmp_path / "options.toml").write_text('env = "größe"\n', "utf-8")
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", LOCALE, str(tmp_path)], capture_output=True, env=os.environ | plain)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.stdout.splitlines()[0] == rb"'gr\xf6\xdfe' 'read'"
    assert done.returncode in (0, 2)


# What a system refuses is told in words, with the limit and what to do.


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EFBIG, "File too large; the file has reached the size limit: raise it (`ulimit -f`)"),
        (errno.EMFILE, "Too many open files; this process cannot open more: raise the limit (`ulimit -n`)"),
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

    monkeypatch.setattr(main, "dispatch", dispatch)
    assert main.main([]) == 1
    assert capsys.readouterr().err == f"polyplay: failed: {tmp_path}/file: {said}\n"
