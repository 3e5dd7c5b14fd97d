"""What is installed by `pip install`: the wheel itself is built and looked into."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_every_file_the_command_and_the_mark_of_its_types(tmp_path: Path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "polyplay", tmp_path / "polyplay", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from setuptools import build_meta; print(build_meta.build_wheel('out'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "out" / done.stdout.split()[-1]) as wheel:
        held = {n for n in wheel.namelist() if n.startswith("polyplay/")}
        entry = next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))
        assert "polyplay = polyplay.__main__:main" in wheel.read(entry).decode()
    scores = ("SOURCES.md", "atari_papers.csv", "atari_scores.csv", "dopamine_sticky_final.csv")
    data = {
        "polyplay/py.typed",
        "polyplay/_signatures.pyi",
        "polyplay/envs/rules.toml",
        *(f"polyplay/systems/{name}.toml" for name in ("pages", "tuned")),
        *(f"polyplay/evaluation/{name}" for name in scores),
        *(f"polyplay/cli/page/{name}" for name in ("base.css", "base.js", "system.txt")),
        *(f"polyplay/cli/page/play/{name}" for name in ("index.html", "play.css", "board.js", "play.js")),
        *(f"polyplay/cli/page/watch/{name}" for name in ("index.html", "watch.css", "watch.js")),
    }
    assert held == {str(p.relative_to(ROOT)) for p in (ROOT / "polyplay").rglob("*.py")} | data
