"""What an editor completes keywords from: the generated signatures of `train`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields

import pytest

from docs import signatures
from polyplay import systems


def test_every_option_of_every_system_is_there_with_its_meaning():
    text = (signatures.ROOT / signatures.FILE).read_text()
    for name in systems.names():
        _, _, own = text.partition(f"class {name.title().replace('_', '')}(RunOptions, total=False):\n")
        lines = own.split("\n\n")[0].splitlines()
        assert [line.split(":")[0].strip() for line in lines] == [f.name for f in fields(systems.load(name).Config)]
        assert all("  # " in line for line in lines)
        assert f'system: Literal["{name}"]' in text


def mypy(code: str, folder) -> Sequence[str]:
    script = folder / "script.py"
    script.write_text(code)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), str(script)]
    return subprocess.run(command, cwd=signatures.ROOT, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.long
def test_a_type_checker_reads_them(tmp_path):
    lines = mypy('import polyplay\nreveal_type(polyplay.train("ppo", env="CartPole-v1", epochs=2))\n', tmp_path)
    assert any('Revealed type is "polyplay.api.Run"' in line for line in lines), lines
    assert lines[-1].startswith("Success")
