"""The scripts of bench/: a subject is one script, the page names each, and each tells what it takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SCRIPTS = sorted(BENCH.glob("*.py"))
sys.path.append(str(BENCH))

import common  # noqa: E402


def parts(script: Path) -> list[str]:
    """The names of its parts: the keys of what it gives to `commands`."""
    found = re.search(r"sys\.exit\(\s*commands\(\s*\{(.*?)\}", script.read_text(), re.S)
    return re.findall(r'"(\w*)":', found[1]) if found else [""]


def test_there_are_at_most_fifty_and_the_page_names_each():
    text = (BENCH / "README.md").read_text()
    assert 30 < len(SCRIPTS) <= 50
    assert [p.name for p in SCRIPTS if f"`{p.name}" not in text] == []
    named = [(p.name, part) for p in SCRIPTS for part in parts(p) if part not in ("", "relayed", "ours")]
    assert len(named) > 25
    assert [(name, part) for name, part in named if not re.search(rf"`(?:{name} )?{part}`", text)] == []


def test_the_first_word_names_a_part_and_the_name_is_the_programs(monkeypatch, capsys):
    called = []
    named = {"": lambda: called.append(("", sys.argv[1:])), "one": lambda: called.append((sys.argv[0], sys.argv[1:]))}
    monkeypatch.setattr(common, "PARTS", None)
    monkeypatch.setattr(sys, "argv", ["bench/x.py", "one", "--seconds", "3"])
    assert common.commands(named) == 0
    assert common.about()["command"] == "python bench/x.py one --seconds 3"
    assert "x.py one …" in common.command_line("text").format_help()
    monkeypatch.setattr(sys, "argv", ["bench/x.py", "run"])
    assert common.commands(named) == 0
    assert called == [("bench/x.py one", ["--seconds", "3"]), ("", ["run"])]
    assert common.commands({"one": named["one"]}) == 2
    assert capsys.readouterr().out == "x.py one …\n"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_script_tells_what_it_takes():
    for script in SCRIPTS:
        for part in parts(script):
            if part != "relayed":  # what another part starts
                words = [sys.executable, str(script), *([part] if part else []), "--help"]
                done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                assert done.returncode == 0, f"{words[1:]}: {done.stderr}"
