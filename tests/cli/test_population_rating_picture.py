"""`polyplay population` of a run whose versions are rated: the newest one, its references, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.cli.population import draw_ratings
from polyplay.population.ratings import RATINGS, REFERENCES, read_rated, read_references
from tests import made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = made.run(tmp_path / "run", network="mlp", hidden=(8,))
    known = [{"name": "random", "mu": 0.0, "sigma": 1.0}, {"name": "focus", "mu": 14.5, "sigma": 1.0}]
    (directory / REFERENCES).write_text(json.dumps({"references": known}))
    about = {"wall_seconds": 1.0, "reference": "random", "reference_mu": 0.0, "mu": 0.0, "sigma": 0.0}
    points = [[0.0, 1.0], [1.0, 1.0, 0.5], [1.0, 1.0]]
    rows = [{**about, "version": 10 * i, "steps": 4000 * i, "points": x} for i, x in enumerate(points)]
    (directory / RATINGS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_table_and_picture(run, tmp_path, capsys):
    assert main.main(["population", str(run), "--picture", str(tmp_path / "ratings.png")]) == 0
    out, rated = capsys.readouterr().out, read_rated(run)
    mu, sigma = rated[-1].skill
    assert f"TrueSkill {mu:.1f} ± {2 * sigma:.1f} after 20 updates, 8,000 agent steps · 3 versions" in out
    assert [line.split()[:2] for line in out.splitlines() if line.strip().startswith(("focus", "random"))] == [
        ["focus", "14.5"],
        ["random", "0.0"],
    ]
    assert "2 of 2" in out
    assert (tmp_path / "ratings.png").stat().st_size > 10_000
    axes = draw_ratings(run, rated, read_references(run)).axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[version.steps, version.skill[0]] for version in rated]
    assert [text.get_text() for text in axes.texts] == ["random", "focus"]
    assert axes.get_title(loc="left") == "3 versions, 7 matches · toy:catch"


def test_levels_are_for_leagues(run, tmp_path, capsys):
    picture = str(tmp_path / "a.png")
    assert main.main(["population", str(run), "--picture", picture, "--levels", "random"]) == 2
    assert "--levels random given, but versions of" in capsys.readouterr().err
