"""Curves of runs: what is read of them, what is pooled, what is drawn."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.cli import main, plot
from polyplay.cli.plot import Curve, find_runs, names_of, pool_curves, pools_of, read_curve
from polyplay.core.errors import UserError
from tests.verbs import refused

ROWS = [(100, None), (200, -1.0), (300, 0.5)]


def make(root: Path, name: str, rows: list[tuple[int, Any]] = ROWS, games: Any = (), env: str = "toy:catch") -> Path:
    """A run directory with reports and games (frames, return): 4 frames a step, 10 a second. Last lines are torn."""
    run = root / name
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"schema": 1, "system": "a2c", "config": {"env": env}}))
    for file, column, found in (
        ("metrics", "episodic_return_mean", rows),
        ("episodes", "episodic_return", games),
    ):
        lines = [json.dumps({"frames": n, "steps": n // 4, "wall_seconds": n / 10, column: mean}) for n, mean in found]
        (run / f"{file}.jsonl").write_text("\n".join([*lines, '{"frames": 7, "wa']))
    return run


def points(curve: Curve) -> tuple[list[float], list[float], list[float]]:
    """(frames, minutes, returns)"""
    return curve.across["frames"].tolist(), curve.across["minutes"].tolist(), curve.returns.tolist()


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_curve_is_of_every_game_or_else_of_the_reports_with_games(tmp_path: Path):
    reports = read_curve(make(tmp_path, "reports"))
    assert (reports.label, reports.env, *points(reports)) == ("a2c", "toy:catch", [200, 300], [1 / 3, 0.5], [-1.0, 0.5])
    run = make(tmp_path, "games", games=[(10, 1.0), (20, 3.0), (30, 5.0), (25, 9.0)])  # the third was played again
    assert points(read_curve(run, games=2)) == ([10, 20, 25], [1 / 60, 2 / 60, 2.5 / 60], [1.0, 2.0, 6.0])


def test_a_long_run_is_thinned_from_its_first_game_to_its_last(tmp_path: Path):
    games = [(10 * (i // 3), float(i)) for i in range(6_000)]  # three games end at a time
    curve = read_curve(make(tmp_path, "a", games=games))
    x = curve.across["frames"]
    assert (x[0], x[-1], len(x)) == (0.0, 19_990.0, 1000)
    assert (curve.returns[0], curve.returns[-1]) == (1.0, 5_949.5)  # of games 0 to 2, and of the last 100


def test_a_folder_of_seeds_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    for seed in (0, 1, 10):
        make(tmp_path / "catch", f"seed-{seed}", [*ROWS, (400, float(seed))])
    make(tmp_path / "catch", "seed-2", ROWS[:1])
    assert legend(plot.draw_curves([tmp_path / "catch"])) == ["a2c (mean of 3 runs, range)"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"polyplay: left out: {tmp_path}/catch/seed-2 has no finished game yet")
    make(tmp_path, "a-20")
    names = ["a-20", "seed-0", "seed-1", "seed-2", "seed-10"]
    assert [path.name for path in find_runs(tmp_path)] == names


def test_runs_made_by_hand_have_games_alone(tmp_path: Path):
    for name, games in (("mine", [(1, 0.0), (2, 1.0)]), ("other/seed-0", [(1, 0.0), (9, 1.0)]), ("other/seed-1", [])):
        (tmp_path / name).mkdir(parents=True)
        lines = [json.dumps({"frames": n, "wall_seconds": n, "episodic_return": mean}) + "\n" for n, mean in games]
        (tmp_path / name / "episodes.jsonl").write_text("".join(lines))
    assert legend(plot.draw_curves([tmp_path / "mine", tmp_path / "other"])) == ["mine", "other"]
    with pytest.raises(UserError, match="--x steps: mine has no such count; use frames or hours"):
        plot.draw_curves([tmp_path / "mine"], plot.PlotOptions(x="steps"))
    with pytest.raises(UserError, match=r"a line of episodes\.jsonl needs frames, wall_seconds and episodic_return$"):
        plot.draw_curves([tmp_path / "other" / "seed-1"])


def test_labels_name_each_run_and_join_those_of_one_name(tmp_path: Path):
    runs = [make(tmp_path, f"r{i}", [*ROWS, (400, float(i))], env=f"e{i}") for i in range(3)]
    figure = plot.draw_curves(runs, plot.PlotOptions(label=("wide", "wide", "deep"), pool="none"))
    assert legend(figure) == ["wide (2 runs)", "deep"]
    says = "--label a b: must be one name per RUN, without commas: --label NAME NAME NAME"
    with pytest.raises(UserError, match=says):
        plot.draw_curves(runs, plot.PlotOptions(label=("a", "b")))


@pytest.mark.parametrize(
    ("x", "last", "name"),
    [("frames", 40, "frames"), ("steps", 10, "agent steps"), ("hours", 40 / 36_000, "hours of wall time")],
)
def test_one_panel_over_what_is_asked_for(tmp_path: Path, x: Any, last: float, name: str):
    (axes,) = plot.draw_curves([make(tmp_path, "a", games=[(8, 0.0), (40, 1.0)])], plot.PlotOptions(x=x)).axes
    assert (axes.get_xlabel(), axes.lines[0].get_xdata()[-1]) == (name, pytest.approx(last))
    assert axes.lines[0].get_color() == plot.COLORS[0]


def test_the_legend_is_below_the_panels_however_many_runs_there_are(tmp_path: Path):
    runs = [make(tmp_path, f"r{i}") for i in range(12)]
    name = "whose name is so long that no line of a legend in half a picture can take it"
    figure = plot.draw_curves(runs, plot.PlotOptions(label=tuple(f"number {i}, {name}" for i in range(12))))
    figure.draw_without_rendering()
    taken, panel = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert 0 <= taken.x0 < taken.x1 <= figure.bbox.x1
    assert 0 <= taken.y0 < taken.y1 <= panel.y0
    assert panel.height > 400


@pytest.mark.parametrize(
    ("pool", "lines", "bands", "label"),
    [
        ("interval", 1, 1, "a2c (mean of 4 runs, 95 % interval)"),
        ("range", 1, 1, "a2c (mean of 4 runs, range)"),
        ("none", 4, 0, "a2c (4 runs)"),
    ],
)
def test_runs_that_differ_in_their_seed_are_one_line_with_a_band(tmp_path: Path, pool, lines, bands, label):
    runs = [make(tmp_path, f"r{i}", [*ROWS, (400, float(i))]) for i in range(4)]
    figure = plot.draw_curves(runs, plot.PlotOptions(pool=pool))
    assert [(len(axes.lines), len(axes.collections)) for axes in figure.axes] == [(lines, bands)] * 2
    assert (legend(figure), figure.axes[0].get_title(loc="left")) == ([label], "toy:catch")


def test_runs_with_another_loss_are_another_line(tmp_path: Path):
    runs = [make(tmp_path, f"r{i}") for i in range(3)]
    config = json.loads((runs[2] / "config.json").read_text())
    for run, loss in zip(runs, (None, None, "mine:loss"), strict=True):
        (run / "config.json").write_text(json.dumps({**config, "options": {"loss": loss, "quiet": True}}))
    assert legend(plot.draw_curves(runs)) == ["a2c (mean of 2 runs, range)", "a2c · loss mine:loss"]


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    empty, full = make(tmp_path, "a", ROWS[:1]), make(tmp_path, "c")
    for words, says in (
        ([], "plot takes the directory of at least one run"),
        ([empty], "has no finished game yet, in episodes.jsonl or metrics.jsonl: let the run train"),
        ([tmp_path / "b"], "no run at"),
        (
            [full, "--out", tmp_path / "nodir" / "x.png"],
            f"--out: {tmp_path}/nodir/x.png cannot be written: No such file or directory; choose a file in",
        ),
    ):
        assert says in refused(capsys, "plot", *words)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install .*\[plots\]'"):
        plot.curves([full], tmp_path / "x.png")


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture):
    run, out = make(tmp_path, "a"), tmp_path / "curve.svg"
    told = f"polyplay: {out} existed before and was replaced; --out FILE chooses another file\n"
    for errors in ("", told):
        assert main.main(["plot", str(run), "--out", str(out), "--title", "One run"]) == 0
        assert capsys.readouterr() == (f"{out}\n", errors)
    assert "<svg" in out.read_text()


def across(frames: list[float], minutes: list[float]) -> dict[str, np.ndarray]:
    return {"frames": np.array(frames), "minutes": np.array(minutes)}


SETTINGS = {"env": "x", "learning_rate": 0.001}
ONE = Curve("ppo", "x", SETTINGS, across([0.0, 100.0], [0.0, 1.0]), np.array([0.0, 10.0]))
TWO = Curve("ppo", "x", SETTINGS, across([50.0, 150.0], [0.0, 2.0]), np.array([20.0, 20.0]))


def test_a_pool_is_of_one_system_and_configuration():
    other = dataclasses.replace(ONE, settings={"env": "x", "learning_rate": 0.01})
    pools = pools_of([ONE, other, TWO])
    assert pools == [[ONE, TWO], [other]]
    assert names_of(pools) == ["ppo · learning rate 0.001", "ppo · learning rate 0.01"]
    elsewhere = dataclasses.replace(ONE, env="y", settings={"env": "y", "learning_rate": 0.001})
    assert names_of([[ONE], [elsewhere]]) == ["ppo · x", "ppo · y"]


def test_the_mean_is_where_all_runs_have_returns():
    (x, mean, low, high), minutes = (pool_curves([ONE, TWO], axis, "range") for axis in ("frames", "minutes"))
    assert (x[0], x[-1], mean[0], mean[-1], low[0], high[0]) == (50.0, 100.0, 12.5, 15.0, 5.0, 20.0)
    assert (minutes[0][0], minutes[0][-1]) == (0.0, 1.0)
    later = dataclasses.replace(ONE, across=across([200.0, 300.0], [0.0, 1.0]))
    assert pool_curves([ONE], "frames", "range") is pool_curves([ONE, later], "frames", "range") is None
    assert pool_curves([ONE, later], "minutes", "range") is not None
