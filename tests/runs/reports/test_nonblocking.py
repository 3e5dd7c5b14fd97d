from __future__ import annotations

import io
import os
import sys
from typing import Any

from polyplay.runs.reports.nonblocking import NonBlockingWriter


def test_pieces_arrive_in_order_and_only_when_flushed():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        file.write("before ")
        writer = NonBlockingWriter(file)
        for i in range(100):
            writer.write(f"{i} ")
            writer.write("ü,")
            writer.flush()
        writer.write("not flushed")
        writer.drain(60.0)
        assert writer.backlog == 0
    got = os.read(reading, 100_000).decode()
    os.close(reading)
    assert got == "before " + "".join(f"{i} ü," for i in range(100))


def test_a_full_pipe_holds_nobody_up_and_nothing_is_lost():
    reading, writing = os.pipe()
    piece = "x" * 9_999 + "\n"
    with os.fdopen(writing, "w") as file:
        writer = NonBlockingWriter(file)
        for _ in range(50):
            writer.write(piece)
            writer.flush()
        assert writer.backlog > 0
        got = b""
        while len(got) < 50 * len(piece):
            got += os.read(reading, 1 << 16)
        writer.drain(60.0)
        assert writer.backlog == 0
    os.close(reading)
    assert got.decode() == piece * 50


def test_when_the_reader_leaves_everything_goes_nowhere():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as file:
        writer = NonBlockingWriter(file)
        writer.write("x")
        writer.flush()
        writer.drain(60.0)
        assert writer.gone
        writer.write("y")
        writer.flush()
        assert writer.backlog == 0
        print("others neither", file=file, flush=True)


def test_a_recording_is_written_at_once_and_may_be_closed():
    file = io.StringIO()
    writer = NonBlockingWriter(file)
    writer.write("x")
    assert file.getvalue() == ""
    writer.flush()
    assert (file.getvalue(), writer.isatty(), writer.thread) == ("x", False, None)
    file.close()
    writer.write("y")
    writer.flush()
    assert writer.gone


def test_encoding_is_the_files():
    raw: Any = os.pipe()
    with os.fdopen(raw[1], "w", encoding="latin-1", errors="replace") as file:
        writer = NonBlockingWriter(file)
        writer.write("ü█")
        writer.flush()
        writer.drain(60.0)
        assert (writer.encoding, writer.fileno()) == ("latin-1", raw[1])
    assert os.read(raw[0], 100) == b"\xfc?"
    os.close(raw[0])
    assert NonBlockingWriter(sys.stdout).encoding
