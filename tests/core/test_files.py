"""Files that are read while they are written."""

from __future__ import annotations

import ast
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import polyplay
from polyplay.cli import main
from polyplay.core.files import LIMITS, LogWrites, read_lines, refusal_text


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


def lacks_encoding(call: ast.Call) -> bool:
    """Whether a call reads or writes a text in the locale's encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if ast.unparse(call.func) in ("av.open", "_package().open", "tarfile.open"):  # no text
        return False
    words = {k.arg: k.value for k in call.keywords}
    if name in ("read_text", "write_text"):
        return "encoding" not in words and len(call.args) <= (name == "write_text")
    if name in ("run", "Popen", "check_output"):
        return "encoding" not in words and ("text" in words or "universal_newlines" in words)
    if name not in ("open", "fdopen") or "encoding" in words:
        return False
    modes = [a.value for a in [*call.args[:2], words.get("mode")] if isinstance(a, ast.Constant)]
    texts = [m for m in modes if isinstance(m, str) and re.fullmatch(r"[rwxa]\+?t?|t?[rwxa]\+?", m)]
    opens = isinstance(call.func, ast.Name) and len(call.args) == 1 and "mode" not in words  # a file, to be read
    return bool(texts or opens)


def test_no_text_is_read_or_written_in_the_encoding_of_the_locale():
    package, found = Path(polyplay.__file__).parent, list[str]()
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        nodes = ast.walk(ast.parse(text)) if re.search(r"_text\(|open\(|Popen|text=", text) else ()
        found += [f"{path}:{node.lineno}" for node in nodes if isinstance(node, ast.Call) and lacks_encoding(node)]
    assert found == []
    for text in ("p.read_text()", "p.write_text('x')", "open(p)", "open(p, 'w')", "p.open('r')", "run(w, text=True)"):
        assert lacks_encoding(ast.parse(text).body[0].value), text  # type: ignore[attr-defined]
    for text in ("p.read_text('utf-8')", "open(p, 'rb')", "pool.open(7)", "run(w)", "p.open(encoding='utf-8')"):
        assert not lacks_encoding(ast.parse(text).body[0].value), text  # type: ignore[attr-defined]


LOCALE = """
import sys
from pathlib import Path
from polyplay.__main__ import main
from polyplay.runs import options as option_file
from polyplay.systems import _presets
import locale
assert locale.getpreferredencoding(False).lower() not in ("utf-8", "utf8")
place = Path(sys.argv[1])
print(ascii(option_file._read(place / "options.toml")["env"]), ascii(_presets._table() and "read"))
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
