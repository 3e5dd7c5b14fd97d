"""The day on a GPU, rehearsed on a CPU: every part, parts that fail or hang, and its learners on a pretended GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch

from tests.pretend import CUDA, pretended

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import gpu_day
import gpu_parts
from gpu_day import Part


@pytest.mark.long
def test_the_rehearsal_runs_every_part(tmp_path):
    out, archive = tmp_path / "out", tmp_path / "day.tar.gz"
    words = ["--device", "cpu", "--short", "--out", str(out), "--archive", str(archive)]
    done = subprocess.run([sys.executable, gpu_day.__file__, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("every part ended without an error")
    assert {p.stem for p in out.glob("*.json")} == {*gpu_day.ORDER}
    with tarfile.open(archive) as packed:
        names = {Path(name).name for name in packed.getnames()}
    for name in gpu_day.ORDER:
        data = json.loads((out / f"{name}.json").read_text())
        assert data["rows"]
        assert data["error"] is None
        assert not [row for row in data["rows"] if row.get("note")], name
        assert "a rehearsal: nothing here is a result" in (out / f"{name}.md").read_text()
        assert {f"{name}.json", f"{name}.md"} <= names


def test_the_lines_of_pytest_are_read():
    text = "[gw0] [  5%] PASSED tests/a.py::test_x[one, two] \n[gw1] [100%] FAILED tests/a.py::test_y\n"
    text += "tests/b.py::test_z[a b] SKIPPED (no GPU) [ 50%]\ntests/b.py::test_w ERROR    [ 60%]\nPASSED in a message\n"
    found = {w[1] or w[2]: w[0] or w[3] for w in gpu_day.LINE.findall(text)}
    assert found == {
        "tests/a.py::test_x[one, two]": "PASSED",
        "tests/a.py::test_y": "FAILED",
        "tests/b.py::test_z[a b]": "SKIPPED",
        "tests/b.py::test_w": "ERROR",
    }


def _fails(day):
    yield {"what": "first"}
    raise ValueError("something is wrong\nat the end")


def _dies(day):
    yield {"what": "first"}
    os.kill(os.getpid(), 9)


def _hangs(day):
    yield {"what": "first"}
    time.sleep(1000)


def _works(day):
    yield {"what": "only"}
    yield {"table": "Another", "x": 1.0}


def test_a_part_that_fails_or_hangs_is_a_line_and_the_next_begins(tmp_path, monkeypatch, capfd):
    makes = {"fails": _fails, "dies": _dies, "hangs": _hangs, "works": _works}
    monkeypatch.setattr(gpu_day, "PARTS", {name: Part(name, make, 1.0) for name, make in makes.items()})
    monkeypatch.setattr(gpu_day, "SLACK", 0.5)
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", "--device", "cpu", "--short", "--out", str(tmp_path)])
    assert gpu_day.main() == 1
    said = capfd.readouterr().out
    assert said.strip().splitlines()[-4:] == [
        "failed:",
        "fails: ValueError: at the end",
        "dies: its process ended with exit status -9",
        "hangs: ended after 1 s, its limit of time",
    ]
    for name in makes:  # what there was is kept
        assert "| first |" in (tmp_path / f"{name}.md").read_text() or name == "works"
    assert "## Another" in (tmp_path / "works.md").read_text()


def test_without_cuda_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", "--out", str(tmp_path / "out")])
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_day.main() == 2
    assert "is built for the CPU; --device cpu --short is a rehearsal" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.fixture
def gpu(monkeypatch):
    """A short day on a pretended GPU."""
    with pretended(monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a pretended GPU")
        monkeypatch.setattr(gpu_parts, "busy", lambda *_: {})  # torch's profiler has no such device
        monkeypatch.setattr(gpu_parts, "synchronize", lambda device: None)
        day = gpu_parts.Day("cuda", True, 60.0)
        day.seconds = lambda wanted: 0.01
        yield day


def test_learners_compute_on_the_gpu(gpu):
    assert gpu_parts.Wired("a2c", gpu.fixed).device == CUDA
    rows = [*gpu_parts.learners(gpu), *gpu_parts.games(gpu)]
    assert all(row.get("transitions", row.get("learn")) > 0 for row in rows)
    assert all(row.get("transitions graph", row.get("learn graph")) > 0 for row in rows), rows
    assert all(row.get("differs", row.get("learn differs")) < 1e-2 for row in rows), rows
    assert not any("graphs" in row for row in rows), rows


def test_the_limit_of_a_system_is_measured_on_the_gpu(gpu):
    name, system, network, keywords = gpu_parts.SHORT[0]
    found = gpu_parts.limits(system, {**gpu.fixed, "network": network, **keywords}, 0.01)
    infer, learn = (max(found[k], found[f"{k} graph"]) for k in ("infer", "learn"))
    assert found["limit"] == pytest.approx(1 / (1 / infer + 1 / learn))
    assert max(found["infer differs"], found["learn differs"]) < 1e-2
    assert found["recorded"] > 0
    assert found["recorded graph"] > 0
    seen = {gpu_parts.EMULATORS: 0.9, gpu_parts.LEAST: 0.5}
    assert gpu_parts.judged(name, seen) == {"target": "of_emulators ≥ 0.85: met"}
    assert gpu_parts.judged(gpu_parts.CLEANRL, seen) == {"published": 6_809}


def test_the_documentation_shows_what_was_measured(tmp_path):
    assert gpu_day.everything(tmp_path, "there") == gpu_day.NOTHING
    about = {"commit": "0123456789abcdef", "started": "2026-01-01", "command": "x", "machine": {}, "versions": {}}
    rows = [{"what": "a copy", "rate": 3000.0, "unit": "GB/s"}, {"table": "More", "x": 1}]
    data = {"title": "The machine", "device": "A card", "about": about, "rows": rows, "error": "it broke"}
    (tmp_path / "machine.json").write_text(json.dumps(data))
    text = gpu_day.everything(tmp_path, "there")
    assert text.startswith(
        "### The machine\n\nA card; commit 0123456789ab, 2026-01-01; [whole result](there/machine.md)"
    )
    assert "Failed: it broke." in text
    assert "| a copy | 3000 | GB/s |" in text
    assert "#### More" in text
