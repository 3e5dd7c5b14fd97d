"""The recap of published rates, from a document of `polyplay bench --json FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from polyplay.core.files import Row

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))

import recap  # noqa: E402

A2C: Row = {"system": "a2c", "sps": 2000.0, "epochs": 1, "frames_per_step": 4}
DOCUMENT: Row = {
    "schema": 2, "machine": {"cpu": "a CPU"}, "commit": "0123456789abc", "cores": 2, "env": "toy:catch",
    "network": "mlp", "precision": "float32",
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


def test_the_documentation_has_the_published_rows():
    text = (ROOT / "docs" / "results" / "recap.md").read_text()
    for line in recap.markdown(None):
        assert line in text
