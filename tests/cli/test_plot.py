from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyplay.cli import main, plot
from polyplay.common.errors import UserError


def make(root: Path, name: str, system: str, rows: list[tuple[int, float, Any]], env: str = "toy:catch") -> Path:
    """A run directory with reports (frames, wall seconds, return)."""
    run = root / name
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"schema": 1, "system": system, "config": {"env": env}}))
    keys = ("frames", "wall_seconds", "episodic_return_mean")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows]
    (run / "metrics.jsonl").write_text("".join(lines) + '{"frames": 7, "wall')
    return run


ROWS = [(100, 60.0, None), (200, 120.0, -1.0), (300, 180.0, 0.5)]


def test_read_takes_reports_with_games(tmp_path: Path):
    curve = plot.read_curve(make(tmp_path, "a", "a2c", ROWS))
    assert (curve.label, curve.env) == ("a2c", "toy:catch")
    assert (curve.frames, curve.minutes, curve.returns) == ([200, 300], [2.0, 3.0], [-1.0, 0.5])


def test_what_a_resumption_made_void_is_left_out(tmp_path: Path):
    rows = [(100, 1.0, 0.1), (200, 2.0, 0.2), (300, 3.0, 0.3), (150, 4.0, 0.15), (250, 5.0, 0.25)]
    curve = plot.read_curve(make(tmp_path, "a", "a2c", rows))
    assert curve.frames == [100, 150, 250]
    assert curve.returns == [0.1, 0.15, 0.25]


def test_a_mean_of_fewer_games_is_of_every_games_end(tmp_path: Path):
    run = make(tmp_path, "a", "dqn", ROWS)
    games = [(10, 1.0), (20, 3.0), (30, 5.0), (25, 9.0)]  # the third was played again
    lines = [json.dumps({"frames": f, "wall_seconds": 6.0 * f, "episodic_return": r}) for f, r in games]
    (run / "episodes.jsonl").write_text("\n".join([*lines, ""]))
    curve = plot.read_curve(run, games=2)
    assert (curve.frames, curve.minutes, curve.returns) == ([10, 20, 25], [1.0, 2.0, 2.5], [1.0, 2.0, 6.0])


def test_curves_draws_a_picture_with_a_colour_per_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[tuple[str, str, int]] = []
    draw = plot._draw

    def listen(left: Any, right: Any, name: str, colour: str, runs: Any, pool: str) -> None:
        drawn.append((name, colour, len(runs)))
        draw(left, right, name, colour, runs, pool)

    monkeypatch.setattr(plot, "_draw", listen)
    runs = [make(tmp_path, f"{s}{i}", s, ROWS) for s in ("a2c", "impala") for i in range(2)]
    out = plot.curves(runs, tmp_path / "curve.png", "Catch")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert drawn == [("a2c", plot.COLOURS[0], 2), ("impala", plot.COLOURS[1], 2)]


def test_environments_are_named_where_there_are_several(tmp_path: Path):
    found = [plot.read_curve(make(tmp_path, e, "a2c", ROWS, env=e)) for e in ("x", "y")]
    assert (plot._title(found), plot._title(found[:1])) == ("", "x")


@pytest.mark.parametrize(("pool", "lines", "bands"), [("interval", 1, 1), ("range", 1, 1), ("none", 2, 0)])
def test_runs_that_differ_in_their_seed_are_one_line_with_a_band(tmp_path: Path, pool: str, lines: int, bands: int):
    runs = [make(tmp_path, f"r{i}", "a2c", [*ROWS, (400, 200.0, float(i))]) for i in range(2)]
    left, right = plot.draw_curves(runs, pool=pool).axes
    assert [len(axes.lines) for axes in (left, right)] == [lines, lines]
    assert [len(axes.collections) for axes in (left, right)] == [bands, bands]
    (label,) = [text.get_text() for text in left.get_legend().get_texts()]
    expected = {
        "interval": "mean of 2 runs, 95 % interval",
        "range": "mean of 2 runs, lowest to highest",
        "none": "2 runs",
    }
    assert label == f"a2c ({expected[pool]})"


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="none given"):
        plot.curves([], tmp_path / "x.png")
    empty = make(tmp_path, "a", "a2c", ROWS[:1])
    assert main.main(["plot", str(empty), "--out", str(tmp_path / "x.png")]) == 2
    assert "no report with a finished game yet" in capsys.readouterr().err
    assert main.main(["plot", str(tmp_path / "b")]) == 2
    assert "no run at" in capsys.readouterr().err
    full = make(tmp_path, "c", "a2c", ROWS)
    assert main.main(["plot", str(full), "--out", str(tmp_path / "nodir" / "x.png")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--out: " in line
    assert "nodir/x.png cannot be written: No such file or directory; name a file in a directory that is" in line
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'polyplay\[plots\]'"):
        plot.curves([full], tmp_path / "x.png")


def test_as_a_command(tmp_path: Path):
    run, out = make(tmp_path, "a", "a2c", ROWS), tmp_path / "curve.svg"
    command = [sys.executable, "-m", "polyplay", "plot", str(run), "--out", str(out), "--title", "One run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{out}\n")
    assert "<svg" in out.read_text()


def test_a_picture_that_is_replaced_is_told(tmp_path: Path, capsys: pytest.CaptureFixture):
    run, out = make(tmp_path, "a", "a2c", ROWS), str(tmp_path / "curve.png")
    assert main.main(["plot", str(run), "--out", out]) == 0
    assert capsys.readouterr() == (f"{out}\n", "")
    assert main.main(["plot", str(run), "--out", out]) == 0
    told = f"polyplay: {out} was there before and is replaced; --out FILE names another\n"
    assert capsys.readouterr() == (f"{out}\n", told)
