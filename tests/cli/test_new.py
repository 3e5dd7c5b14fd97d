from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polyplay.cli import main


def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(tmp_path)
    assert main.main(["new", "first.py"]) == 0
    assert capsys.readouterr().out == "first.py: run it with `python first.py`\n"
    text = Path("first.py").read_text()
    assert "STEPS = 150_000" in text
    Path("first.py").write_text(text.replace("STEPS = 150_000", "STEPS = 3_000"))
    done = subprocess.run([sys.executable, "first.py"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("ppo-CartPole-v1-0-")


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = tmp_path / "mine.py"
    path.write_text("mine")
    for words, message in (
        ([str(path)], "is there already and stays as it is"),
        ([str(tmp_path / "absent/x.py")], "cannot be written: No such file"),
        (["name"], "new takes the file to write, 'name' given"),
        ([], "new takes the file to write, nothing given"),
    ):
        assert main.main(["new", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert path.read_text() == "mine"
