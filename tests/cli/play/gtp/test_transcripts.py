"""What other programs send to an engine, replayed: every command has one answer of the right form.

The transcripts are written after the programs' sources. Sabaki (src/modules/enginesyncer.js and @sabaki/gtp) numbers no
commands, and ends an analysis by `protocol_version`. GoGui (GtpSynchronizer.java, GoGui.java, the file
analyze-commands) numbers them only where a person asks for it, and has no streaming analysis. KaTrain does not speak
GTP: it sends JSON to KataGo's analysis engine (katrain/core/engine.py). It can't use this engine, which refuses each
line.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyplay.cli.play.gtp.main import answer_lines
from tests.cli.play.gtp.test_engine import engine_of

TRANSCRIPTS = Path(__file__).with_name("transcripts")
REFUSED = {"sabaki": ["foo bar"], "gogui": ["3 list_stones b"]}
INFO = r"info move (?:[A-HJ][1-9]|pass) visits \d+ winrate [\d.]+ .*pv(?: (?:[A-HJ][1-9]|pass))+"


class FrontEnd:
    """Sends the lines; after an analysis has begun it waits for a line of it."""

    def __init__(self, text: str, out: io.StringIO):
        self.text, self.out = text, out

    def __iter__(self) -> Iterator[str]:
        for line in self.text.splitlines(keepends=True):
            before = self._seen()
            yield line
            until = time.monotonic() + 120  # loops may have to be compiled
            while "-analyze " in line and self._seen() == before and time.monotonic() < until:
                time.sleep(0.01)

    def _seen(self) -> int:
        return self.out.getvalue().count("info move")


def replay(text: str) -> list[tuple[str, str]]:
    """Commands with their answers."""
    out = io.StringIO()
    answer_lines(engine_of(), FrontEnd(text, out), out)
    *answers, rest = out.getvalue().split("\n\n")
    assert rest == ""
    commands = [line for line in text.splitlines() if not line.startswith("#")]
    return [*zip(commands, answers, strict=True)]


@pytest.mark.parametrize("program", ["sabaki", "gogui"])
def test_every_command_has_one_answer_of_the_right_form(program: str):
    found = replay((TRANSCRIPTS / f"{program}.txt").read_text())
    assert [command for command, answer in found if answer.startswith("?")] == REFUSED[program]
    for command, answer in found:
        number = re.match(r"\d*", command)[0]
        assert re.match(rf"[=?]{number}( |\n|$)", answer), (command, answer)
        words = command.removeprefix(number).split()
        if "genmove" in words[0]:
            assert re.fullmatch(r"= ([A-HJ][1-9]|pass)", answer), command
        if "analyze" in words[0]:
            lines = answer.splitlines()
            assert lines[0] == "="
            assert lines[1:]
            for line in lines[1:]:
                assert all(re.fullmatch(INFO, part) for part in re.split(r" (?=info )", line))
        if words[0] in ("play", "undo", "komi", "boardsize", "clear_board", "time_settings", "time_left"):
            assert answer == f"={number}"


def test_lines_of_json_are_refused_and_not_the_end():
    found = replay((TRANSCRIPTS / "katrain.txt").read_text() + "name\n")
    assert [answer for _, answer in found] == ["? unknown command"] * 3 + ["= Polyplay"]
