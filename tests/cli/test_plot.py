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


def make(root: Path, name: str, system: str, rows: list[tuple[int, float, Any]], env: str = "toy:catch") -> Path:
    """A run directory with reports (frames, wall seconds, return)."""
    run = root / name
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"schema": 1, "system": system, "config": {"env": env}}))
    keys = ("frames", "wall_seconds", "episodic_return_mean")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows]
    (run / "metrics.jsonl").write_text("".join(lines) + '{"frames": 7, "wall')
    return run


def points(curve: Curve) -> tuple[list[float], list[float], list[float]]:
    """(frames, minutes, returns)"""
    return curve.across["frames"].tolist(), curve.across["minutes"].tolist(), curve.returns.tolist()


ROWS = [(100, 60.0, None), (200, 120.0, -1.0), (300, 180.0, 0.5)]


def test_read_takes_reports_with_games(tmp_path: Path):
    curve = read_curve(make(tmp_path, "a", "a2c", ROWS))
    assert (curve.label, curve.env) == ("a2c", "toy:catch")
    assert points(curve) == ([200, 300], [2.0, 3.0], [-1.0, 0.5])


def write_games(run: Path, games: list[tuple[int, float]], **more: Any) -> Path:
    """Games (frames, return), a frame each tenth of a second."""
    run.mkdir(exist_ok=True, parents=True)
    lines = [json.dumps({"frames": f, "wall_seconds": f / 10, "episodic_return": r, **more}) for f, r in games]
    (run / "episodes.jsonl").write_text("\n".join([*lines, '{"frames": 999, "wa']))
    return run


def test_a_curve_is_of_every_game_not_of_the_reports(tmp_path: Path):
    run = write_games(make(tmp_path, "a", "dqn", ROWS), [(10 * (i + 1), float(i)) for i in range(400)])
    curve = read_curve(run)
    assert curve.across["frames"].tolist() == [10.0 * (i + 1) for i in range(400)]
    assert (curve.returns[:3].tolist(), curve.returns[-1]) == ([0.0, 0.5, 1.0], sum(range(300, 400)) / 100)


def test_a_mean_may_be_of_fewer_games_and_what_was_played_again_counts_once(tmp_path: Path):
    run = write_games(make(tmp_path, "a", "dqn", ROWS), [(10, 1.0), (20, 3.0), (30, 5.0), (25, 9.0)])
    assert points(read_curve(run, games=2)) == ([10, 20, 25], [1 / 60, 2 / 60, 2.5 / 60], [1.0, 2.0, 6.0])


def test_a_long_run_is_thinned_from_its_first_game_to_its_last(tmp_path: Path):
    games = [(10 * (i // 3), float(i)) for i in range(6_000)]  # three games end at a time
    curve = read_curve(write_games(make(tmp_path, "a", "dqn", ROWS), games))
    x = curve.across["frames"]
    assert (x[0], x[-1], len(x)) == (0.0, 19_990.0, 1000)
    assert (curve.returns[0], curve.returns[-1]) == (1.0, 5_949.5)  # of games 0 to 2, and of the last 100


def test_a_folder_of_seeds_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "catch").mkdir()
    for seed in (0, 1, 10):
        make(tmp_path / "catch", f"seed-{seed}", "a2c", [*ROWS, (400, 200.0, float(seed))])
    make(tmp_path / "catch", "seed-2", "a2c", ROWS[:1])
    figure = plot.draw_curves([tmp_path / "catch"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a2c (mean of 3 runs, 95 % interval)"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"polyplay: left out: {tmp_path}/catch/seed-2 has no finished game yet")
    assert [path.name for path in find_runs(tmp_path / "catch")] == ["seed-0", "seed-1", "seed-2", "seed-10"]
    make(tmp_path, "a-20", "a2c", ROWS)
    names = ["a-20", "seed-0", "seed-1", "seed-2", "seed-10"]
    assert [path.name for path in find_runs(tmp_path)] == names


def test_runs_made_by_hand_have_games_alone(tmp_path: Path):
    write_games(tmp_path / "mine", [(1, 0.0), (2, 1.0)], steps=1)
    for seed in range(2):
        write_games(tmp_path / "other" / f"seed-{seed}", [(1, 0.0), (9, 1.0)])
    figure = plot.draw_curves([tmp_path / "mine", tmp_path / "other"])
    names = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert names == ["mine", "other (mean of 2 runs, 95 % interval)"]
    with pytest.raises(UserError, match=r"no run at .*nothing"):
        plot.draw_curves([tmp_path / "nothing"])


def test_labels_name_each_run_and_join_those_of_one_name(tmp_path: Path):
    runs = [make(tmp_path, f"r{i}", "a2c", [*ROWS, (400, 200.0, float(i))], env=f"e{i}") for i in range(3)]
    figure = plot.draw_curves(runs, plot.PlotOptions(label=("wide", "wide", "deep"), pool="none"))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["wide (2 runs)", "deep"]
    with pytest.raises(
        UserError, match=r"--label: 2 names, 3 RUN given; give one for each, without commas: --label NAME NAME NAME"
    ):
        plot.draw_curves(runs, plot.PlotOptions(label=("a", "b")))


@pytest.mark.parametrize(
    ("x", "last", "name"),
    [("frames", 40, "frames"), ("steps", 40, "agent steps"), ("hours", 40 / 36_000, "hours of wall time")],
)
def test_one_panel_over_what_is_asked_for(tmp_path: Path, x: Any, last: float, name: str):
    run = write_games(make(tmp_path, "a", "dqn", ROWS), [(10, 0.0), (40, 1.0)])
    lines = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()[:-1]]
    (run / "episodes.jsonl").write_text("".join(json.dumps({**row, "steps": row["frames"]}) + "\n" for row in lines))
    (axes,) = plot.draw_curves([run], plot.PlotOptions(x=x)).axes
    assert (axes.get_xlabel(), axes.lines[0].get_xdata()[-1]) == (name, pytest.approx(last))
    assert axes.lines[0].get_color() == plot.COLOURS[0]
    if x == "steps":
        with pytest.raises(UserError, match="--x: steps given, but mine counted none; allowed: frames, hours"):
            plot.draw_curves([write_games(tmp_path / "mine", [(10, 0.0)])], plot.PlotOptions(x="steps"))


def test_the_legend_is_below_the_panels_however_many_runs_there_are(tmp_path: Path):
    runs = [make(tmp_path, f"r{i}", "a2c", ROWS) for i in range(12)]
    name = "whose name is so long that no line of a legend in half a picture can take it"
    figure = plot.draw_curves(runs, plot.PlotOptions(label=tuple(f"number {i}, {name}" for i in range(12))))
    figure.draw_without_rendering()
    taken, panel = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert 0 <= taken.x0 < taken.x1 <= figure.bbox.x1
    assert 0 <= taken.y0 < taken.y1 <= panel.y0
    assert panel.height > 400


def test_the_environment_is_the_title_unless_there_are_several(tmp_path: Path):
    x, y = (make(tmp_path, env, "a2c", ROWS, env=env) for env in ("x", "y"))
    titles = [plot.draw_curves(runs).axes[0].get_title(loc="left") for runs in ([x], [x, y])]
    assert titles == ["x", ""]


@pytest.mark.parametrize(
    ("pool", "lines", "bands", "label"),
    [
        ("interval", 1, 1, "a2c (mean of 2 runs, 95 % interval)"),
        ("range", 1, 1, "a2c (mean of 2 runs, lowest to highest)"),
        ("none", 2, 0, "a2c (2 runs)"),
    ],
)
def test_runs_that_differ_in_their_seed_are_one_line_with_a_band(tmp_path: Path, pool, lines, bands, label):
    runs = [make(tmp_path, f"r{i}", "a2c", [*ROWS, (400, 200.0, float(i))]) for i in range(2)]
    figure = plot.draw_curves(runs, plot.PlotOptions(pool=pool))
    for axes in figure.axes:
        assert (len(axes.lines), len(axes.collections)) == (lines, bands)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [label]


def test_games_made_by_hand_without_a_time_are_told_what_they_need(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "episodes.jsonl").write_text('{"episodic_return": 3, "steps": 9}\n')
    with pytest.raises(UserError, match=r"a line of episodes\.jsonl needs frames, wall_seconds and episodic_return$"):
        plot.draw_curves([tmp_path / "mine"])


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="none given"):
        plot.curves([], tmp_path / "x.png")
    empty = make(tmp_path, "a", "a2c", ROWS[:1])
    assert "has no finished game yet, in episodes.jsonl or metrics.jsonl: let the run go on" in refused(
        capsys, "plot", empty, "--out", tmp_path / "x.png"
    )
    assert "no run at" in refused(capsys, "plot", tmp_path / "b")
    full = make(tmp_path, "c", "a2c", ROWS)
    line = refused(capsys, "plot", full, "--out", tmp_path / "nodir" / "x.png")
    assert f"--out: {tmp_path}/nodir/x.png cannot be written: No such file or directory; name a file in a dir" in line
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'polyplay\[plots\]'"):
        plot.curves([full], tmp_path / "x.png")


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture):
    run, out = make(tmp_path, "a", "a2c", ROWS), tmp_path / "curve.svg"
    assert main.main(["plot", str(run), "--out", str(out), "--title", "One run"]) == 0
    assert capsys.readouterr() == (f"{out}\n", "")
    assert "<svg" in out.read_text()
    assert main.main(["plot", str(run), "--out", str(out)]) == 0
    told = f"polyplay: {out} was there before and is replaced; --out FILE names another\n"
    assert capsys.readouterr() == (f"{out}\n", told)


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
    assert (x[0], x[-1]) == (50.0, 100.0)
    assert (minutes[0][0], minutes[0][-1]) == (0.0, 1.0)
    assert (mean[0], mean[-1]) == (12.5, 15.0)
    assert (low[0], high[0]) == (5.0, 20.0)


def test_one_run_or_runs_without_a_common_part_are_no_pool():
    later = dataclasses.replace(ONE, across=across([200.0, 300.0], [0.0, 1.0]))
    assert pool_curves([ONE], "frames", "range") is None
    assert pool_curves([ONE, later], "frames", "range") is None
    assert pool_curves([ONE, later], "minutes", "range") is not None
