from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from polyplay.cli.watch import reader
from polyplay.cli.watch.reader import RunReader
from tests.cli.watch.runs import make_run, report, write_lines


def steps(found: dict) -> list[float]:
    return [point[0] for point in found["curve"]]


def test_only_what_is_new_is_read(tmp_path: Path):
    run = make_run(tmp_path)
    watched = RunReader(run)
    assert steps(watched.state()) == [100, 200, 300]
    offset = watched.lines.offset
    assert offset == (run / "metrics.jsonl").stat().st_size
    assert watched.lines.read() == []
    write_lines(run / "metrics.jsonl", [report(400)], "a")
    assert watched.lines.read() == [report(400)]
    assert watched.lines.offset > offset


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path):
    run = make_run(tmp_path)
    watched = RunReader(run)
    line = json.dumps(report(400)) + "\n"
    with (run / "metrics.jsonl").open("a") as file:
        file.write(line[:30])
        file.flush()
        assert steps(watched.state()) == [100, 200, 300]
        file.write(line[30:])
    assert steps(watched.state()) == [100, 200, 300, 400]


@pytest.mark.parametrize("anew", [True, False])
def test_a_resumption_cuts_what_was_read(tmp_path: Path, anew: bool):
    run = make_run(tmp_path, rows=5)
    watched = RunReader(run)
    watched.state()
    rows = [report(100), report(200), *([report(250 + i) for i in range(9)] if anew else [])]
    path = tmp_path / "new" if anew else run / "metrics.jsonl"
    write_lines(path, rows)
    if anew:
        os.replace(path, run / "metrics.jsonl")
    found = watched.state()
    assert steps(found) == [row["steps"] for row in rows]
    assert found["now"]["steps"] == rows[-1]["steps"]


def test_damaged_lines_are_left_out(tmp_path: Path):
    run = make_run(tmp_path)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"steps": 350}\n[1]\n\xff\xfe\n{"ste\n\n')
    write_lines(run / "metrics.jsonl", [report(400)], "a")
    assert steps(RunReader(run).state()) == [100, 200, 300, 400]


def test_a_file_larger_than_a_chunk_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "CHUNK", 1000)
    run = make_run(tmp_path, rows=50)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("x" * 5000 + "\n")
    write_lines(run / "metrics.jsonl", [report(6000)], "a")
    assert steps(RunReader(run).state()) == [*range(100, 5001, 100), 6000]


def test_curves_are_thinned_and_end_with_the_newest_report():
    curve = reader.ThinnedCurve()
    for i in range(30_001):
        curve.add((i, 0.0))
    points = [p[0] for p in curve.points()]
    assert reader.POINTS / 4 < len(points) <= reader.POINTS
    assert points[0] == 0
    assert points[-1] == 30_000
    gaps = {b - a for a, b in itertools.pairwise(points[:-1])}
    assert len(gaps) == 1


def test_a_run_that_has_not_begun(tmp_path: Path):
    found = RunReader(make_run(tmp_path, rows=0)).state()
    assert (found["curve"], found["now"], found["episodes"], found["checkpoints"]) == ([], {}, [], [])
    assert (found["standing"], found["limit"], found["wiring"]) == ("not running", "", {})


def test_a_finished_run_has_its_reason_episodes_checkpoints_and_settings(tmp_path: Path):
    run = make_run(tmp_path)
    (run / "summary.json").write_text(json.dumps({"exit_code": 0, "reason": "done"}))
    games = [{"wall_seconds": 1.0, "steps": i, "episodic_return": 1.0, "episodic_length": 9} for i in range(500)]
    write_lines(run / "episodes.jsonl", games)
    for name in ("000000000007", "000000000020", ".partial-000000000030"):
        (run / "checkpoints" / name).mkdir(parents=True)
    found = RunReader(run).state()
    assert (found["standing"], found["reason"], found["running"]) == ("finished", "done", False)
    assert [e["steps"] for e in found["episodes"]] == list(range(499, 489, -1))
    assert [c["update"] for c in found["checkpoints"]] == [20, 7]
    assert {"name": "actors", "value": "2", "source": "command"} in found["settings"]


def test_what_limits_it_has_the_words_of_bench(tmp_path: Path):
    run = make_run(tmp_path)
    assert RunReader(run).state()["limit"].startswith("environment takes 56 % of the core time: `polyplay check toy:")
    write_lines(run / "metrics.jsonl", [report(400, cpu=0.2)], "a")
    why = "more actors, while others wait; it changes what is learnt"
    assert RunReader(run).state()["limit"] == f"waiting takes 80 % of the core time: try --actors 3 ({why})"
