"""The recap of published rates and the picture, from a document of `polyplay bench --json FILE`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyplay.common.files import Row

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))

import bench_picture  # noqa: E402
import recap  # noqa: E402

A2C: Row = {
    "system": "a2c", "sps": 2000.0, "limit": 4000.0, "fraction": 0.5, "bottleneck": "environment", "epochs": 1,
    "frames_per_step": 4, "whole_us": 1000.0, "costs_us": {"env": 200.0, "infer": 50.0, "learn": 100.0},
    "where_us": {
        "env": 200.0, "infer": 50.0, "learn": 100.0, "dearer_infer": 10.0, "dearer_learn": 20.0, "dearer_env": 20.0,
        "overhead": 100.0, "others": 0.0, "idle": 500.0,
    },
}  # fmt: skip
DOCUMENT: Row = {
    "schema": 1, "machine": {"cpu": "a CPU"}, "commit": "0123456789abc", "cores": 2, "env": "toy:catch",
    "network": "mlp", "precision": "float32", "machine_limits": {},
    "systems": [A2C, {**A2C, "system": "ppo", "epochs": 3}, {"system": "ga3c", "error": "no reports"}],
}  # fmt: skip


def test_every_published_row_has_a_source():
    rows = recap.published()
    assert {"DQN", "A3C", "GA3C", "Ape-X DQN", "R2D2", "Accel RL, A2C"} <= {r["system"] for r in rows}
    for row in rows:
        assert row.keys() <= {"system", "hardware", "machines", "generated", "trained", "source", "note", "at_least"}
        assert all(row[k] for k in ("system", "hardware", "machines", "source"))
        assert row["generated"] is None or row["generated"] > 0


def test_the_recap_puts_measured_systems_beside_the_published():
    lines = recap.markdown(DOCUMENT)
    assert lines[0].startswith("| system | hardware | machines | frames/s generated | frames/s trained |")
    assert "| DQN | 1 CPU, 1 GPU | 1 | 230 | 1,800 | Mnih et al. 2015" in "\n".join(lines)
    measured = [x.split(" | ") for x in lines if "polyplay" in x]
    assert [x[0] for x in measured] == ["| **polyplay a2c**", "| **polyplay ppo**"]
    assert [x[3:5] for x in measured] == [["8,000", "–"], ["8,000", "24,000"]]  # ppo learns from each row in 3 passes
    assert len({x.count(" | ") for x in lines[2:-2]}) == 1
    assert not any("polyplay" in x for x in recap.markdown(None))


def test_the_picture_has_two_bars_for_each_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[dict[str, float]] = []
    bar = bench_picture._bar
    monkeypatch.setattr(bench_picture, "_bar", lambda *a: (drawn.append(dict(a[3])), bar(*a))[1])
    out = bench_picture.draw_picture(DOCUMENT, tmp_path / "b.png")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert len(drawn) == 4  # two systems that did not fail, each with its limit
    assert sum(drawn[0].values()) == pytest.approx(1000.0)
    assert drawn[1] == {"environment": 200.0, "acting": 50.0, "learning": 100.0}


def test_both_scripts_read_a_document(tmp_path: Path):
    file, picture = tmp_path / "b.json", tmp_path / "b.svg"
    file.write_text(json.dumps(DOCUMENT))
    done = subprocess.run([sys.executable, "bench/recap.py", file], cwd=ROOT, capture_output=True, text=True)
    assert "**polyplay a2c**" in done.stdout, done.stderr
    words = [sys.executable, "bench/bench_picture.py", file, "--out", picture]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    assert "<svg" in picture.read_text()


def test_the_documentation_has_the_published_rows():
    text = (ROOT / "docs" / "results" / "recap.md").read_text()
    for line in recap.markdown(None):
        assert line in text
