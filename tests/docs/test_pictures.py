"""The curves of the systems' pages are those of the committed runs."""

from __future__ import annotations

import json

import pytest

from docs import curves
from polyplay import systems


@pytest.mark.parametrize("name", curves.RUNS)
def test_a_curve_is_not_older_than_its_runs(name: str) -> None:
    made = json.loads(curves.MADE.read_text())
    assert curves.picture(name).is_file(), f"run: python docs/curves.py {name}"
    assert made.get(name) == curves.digest(name), f"its runs changed; run: python docs/curves.py {name}"


def test_every_systems_page_shows_its_curve() -> None:
    assert sorted(curves.RUNS) == sorted(systems.names())
    for name in systems.names():
        page = (curves.ROOT / "docs" / "systems" / f"{name}.md").read_text()
        assert f"](../pictures/{curves.picture(name).name})" in page, name


def test_a_changed_run_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(curves, "ROOT", tmp_path)
    monkeypatch.setitem(curves.RUNS, "made", "runs/made-s*")
    (run := tmp_path / "runs" / "made-s0").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("{}\n")
    before = curves.digest("made")
    assert curves.digest("made") == before
    (run / "metrics.jsonl").write_text("{}\n{}\n")
    assert curves.digest("made") != before
