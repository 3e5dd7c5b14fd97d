"""bench/digests.py and bench/verbs.py: every system is among the cases, and only what a machine decides is masked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import digests
import verbs

from polyplay import systems
from polyplay.cli.main import VERBS


def test_every_system_has_a_digest():
    assert {name.split()[0] for name in digests.CASES} == {*systems.names()}
    assert sum("hosts" in given for given in digests.CASES.values()) == 2


def test_every_verb_is_called():
    called = [*verbs.OF_A_RUN.values(), *verbs.ALONE.values()]
    assert {words.split()[0] for words in called} >= {*VERBS} - {"train"}
    assert {*verbs.VERBS.split()} == {*VERBS}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("saved /tmp/x/runs/a in 3.5 s", "saved FOLDER/a in TIME"),
        ("1,234 frames/s, 12.5k steps/s", "SPEED, SPEED"),
        ("memory 312.5 MB", "memory SIZE"),
        ("frames 360\nseconds 0.55", "frames 360\nseconds #"),
        ("begun 2026-11-27 22:45:38", "begun DATE"),
        ("┃ a ━━━━━━ b", "┃ a b"),
        ("loss 0.25 after 40 updates", "loss 0.25 after 40 updates"),
        ("--lanes: 0 given, allowed: 1 or more", "--lanes: 0 given, allowed: 1 or more"),
    ],
)
def test_only_what_a_machine_decides_is_masked(text, expected):
    assert verbs.masked(text, Path("/tmp/x/runs")) == expected


def test_what_differs_is_shown_and_counted(tmp_path, capsys):
    for folder, text in (("before", "loss 1\n"), ("after", "loss 2\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.txt").write_text(text)
        (tmp_path / folder / "help.txt").write_text("usage\n")
    (tmp_path / "after" / "more.txt").write_text("new\n")
    assert verbs.compare(tmp_path / "before", tmp_path / "after") == 2
    said = capsys.readouterr().out
    assert "-loss 1\n+loss 2\n" in said
    assert said.endswith("1 of 3 commands print the same\n")
    assert verbs.compare(tmp_path / "before", tmp_path / "before") == 0
