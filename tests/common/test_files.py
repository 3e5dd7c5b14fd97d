"""Files that are read while they are written."""

from __future__ import annotations

from pathlib import Path

from polyplay.common.files import read_lines


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
