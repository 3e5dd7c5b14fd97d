"""What other programs sent to this engine, replayed: every command has one answer of the right form.

Recorded on 2026-11-27 between the programs and `polyplay play bench/champions/go9 --gtp --simulations 32`:

- GoGui 1.6.0, built from its source, by mouse and keyboard.
- Sabaki 0.60.2: its own src/modules/enginesyncer.js, gametree.js and analysis.js with @sabaki/gtp 3.0.0, without its
  window; it is asked for what its sabaki.js asks it for.
- KaTrain 1.18.1: its own katrain/core/engine.py and game.py, without its window. It does not speak GTP: it sends JSON
  to KataGo's analysis engine. It can't use this engine, which refuses each line.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyplay.cli.gtp import answer_lines
from tests.cli.test_gtp_engine import engine_of

TRANSCRIPTS = Path(__file__).with_name("transcripts")
REFUSED = {"sabaki": ["foo bar", "boardsize 13"], "gogui": ["no_such_command"]}
SILENT = ("play", "undo", "komi", "boardsize", "clear_board", "time_settings", "time_left")
INFO = r"info move (?:[A-HJ][1-9]|pass) visits \d+ winrate [\d.]+ .*pv(?: (?:[A-HJ][1-9]|pass))+"


class FrontEnd:
    """Sends the lines. It begins an analysis when all before is answered, and then waits for a line of it."""

    def __init__(self, text: str, out: io.StringIO):
        self.text, self.out = text, out

    def __iter__(self) -> Iterator[str]:
        sent = 0
        for line in self.text.splitlines(keepends=True):
            analyses = "-analyze " in line
            if analyses:
                self._wait("\n\n", sent)
            before = self.out.getvalue().count("info move")
            yield line
            sent += not line.startswith("#")
            if analyses:
                self._wait("info move", before + 1)

    def _wait(self, words: str, times: int) -> None:
        until = time.monotonic() + 120  # loops may have to be compiled
        while self.out.getvalue().count(words) < times and time.monotonic() < until:
            time.sleep(0.01)


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
        if words[0] in SILENT and command not in REFUSED[program]:
            assert answer == f"={number}"


def test_lines_of_json_are_refused_and_not_the_end():
    found = replay((TRANSCRIPTS / "katrain.txt").read_text() + "name\n")
    assert [answer for _, answer in found] == ["? unknown command"] * 8 + ["= Polyplay"]
