from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.runs import directory
from polyplay.runs.directory import DirectoryLock, is_locked

SUMMARY = {"exit_code": 0, "reason": "done", "frames": 400, "steps": 100, "wall_seconds": 90.0}


def make_run(root: Path, name: str, summary: dict[str, Any] | None = None, started: str = "2026-01-01") -> Path:
    run = root / name
    run.mkdir(parents=True)
    config = {"schema": 1, "system": "a2c", "config": {"env": "toy:catch"}, "seed": 3, "started": started}
    (run / "config.json").write_text(json.dumps(config))
    rows = [(50, 0.9), (100, 0.5), (150, 0.25)]
    lines = [{"wall_seconds": 60.0, "frames": 40, "steps": 10, "updates": 1, "episodes": n} for n, _ in rows]
    lines = [line | {"episodic_return_mean": r} for line, (_, r) in zip(lines, rows, strict=True)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is not None:
        (run / "summary.json").write_text(json.dumps({**SUMMARY, "episodic_return_mean": 0.25, **summary}))
    return run


def test_a_run_is_described_by_its_summary_and_its_best_full_mean(tmp_path: Path):
    row = directory.describe_run(make_run(tmp_path, "a", {}))
    expected = {"system": "a2c", "env": "toy:catch", "seed": 3, "state": "done", "frames": 400, "steps": 100}
    assert row.items() >= (expected | {"return": 0.25, "return_best": 0.5, "wall_seconds": 90.0}).items()


def test_without_a_summary_the_last_report_counts_and_the_lock_says_whether_it_is_running(tmp_path: Path):
    run = make_run(tmp_path, "a")
    assert directory.describe_run(run).items() >= {"state": "stopped", "frames": 40, "return": 0.25}.items()
    lock = DirectoryLock(run)
    assert is_locked(run)
    assert directory.describe_run(run)["state"] == "running"
    lock.close()
    assert not is_locked(run)


@pytest.mark.parametrize(
    ("code", "reason", "state"),
    [
        (0, "done", "done"),
        (130, "stopped by SIGINT", "stopped"),
        (0, "stopped by callback x", "stopped"),
        (1, "lost", "failed"),
        (2, "wrong", "failed"),
    ],
)
def test_states(tmp_path: Path, code: int, reason: str, state: str):
    assert directory.state_of(tmp_path, {"exit_code": code, "reason": reason}) == state


def test_the_newest_comes_first_and_damage_is_a_row(tmp_path: Path):
    make_run(tmp_path, "old", {}, "2026-01-01")
    make_run(tmp_path, "several/seed-0", {}, "2026-01-02")
    (make_run(tmp_path, "torn", {}, "2026-01-03") / "summary.json").write_text('{"exit')
    (make_run(tmp_path, "bad", {}) / "config.json").write_text("{")
    (tmp_path / "nothing").mkdir()
    rows = directory.list_runs([tmp_path, tmp_path / "old"])
    assert [Path(row["run"]).name for row in rows] == ["seed-0", "old", "bad", "torn"]
    assert [row["state"] for row in rows] == ["done", "done", "damaged", "damaged"]
    assert "config.json is damaged" in rows[2]["error"]
    with pytest.raises(UserError, match="DIR: no directory"):
        directory.list_runs([tmp_path / "absent"])


@pytest.mark.parametrize("name", ["frames", "steps", "wall_seconds", "episodic_return_mean"])
@pytest.mark.parametrize("value", ["x", True, [1], {"a": 1}])
def test_a_value_that_is_no_number_hides_no_other_run(name: str, value: Any, tmp_path: Path, capsys):
    make_run(tmp_path, "good", {})
    make_run(tmp_path, "bad", {name: value})
    last = {"wall_seconds": 60.0, "frames": 40, "steps": 10, "updates": 1, "episodic_return_mean": 0.5, name: value}
    (make_run(tmp_path, "report") / "metrics.jsonl").write_text(json.dumps(last) + "\n")
    for more in ([], ["--json"]):
        assert main.main(["runs", str(tmp_path), *more]) == 0
        out = capsys.readouterr().out
        assert "good" in out
        assert f"bad/summary.json is damaged: {name} is" in out.replace("\n", "")


@pytest.mark.parametrize("damage", [{"members": 1}, {"members": [{}]}, {"members": [{"member": 0, "steps": "x"}]}, {}])
def test_a_damaged_population_is_a_row(damage: dict[str, Any], tmp_path: Path):
    run = make_run(tmp_path, "population")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "config": {"env": "toy:catch", "over": "a2c"}}))
    (run / "population.json").write_text(json.dumps({"schema": 1, **damage}))
    row = directory.describe_run(run)
    assert (row["state"], "population.json" in row["error"]) == ("damaged", True)
