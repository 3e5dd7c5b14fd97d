"""The files of a run's directory: config.json, lines that are cut, lock, listing, tables."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.cli import main
from polyplay.core import files
from polyplay.core.errors import UserError
from polyplay.core.files import AppendFile, JsonLines
from polyplay.runs import directory
from polyplay.runs.directory import DirectoryLock, is_locked, read_config, read_population, rewind
from tests import made
from tests.populations import make_population

GAME = {"wall_seconds": 1.0, "episodic_return": 1.0, "episodic_length": 3}


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (b'{"a": 1}\n{"a": 2', b'{"a": 1}\n'),
        (b'{"a": 2', b""),
        (b'{"a": 1}\n' + b"\0" * 70_000, b'{"a": 1}\n'),
        (b'{"a": 1}\n' + b"x" * 65_527, b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a": 2}\n', b'{"a": 1}\n{"a": 2}\n'),
        (b"", b""),
    ],
)
def test_a_torn_last_line_is_cut_off_on_open(tmp_path: Path, content: bytes, whole: bytes):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    lines = JsonLines(path)
    assert path.read_bytes() == whole
    lines.write({"b": "a\nb ü"})
    assert path.read_bytes().startswith(whole)
    assert [*files.read_lines(path)][-1] == {"b": "a\nb ü"}
    lines.close()
    lines.close()


def test_on_a_full_disk_nothing_of_a_line_stays_and_a_file_is_old_or_new(tmp_path: Path, monkeypatch):
    lines, path, write = JsonLines(tmp_path / "a"), tmp_path / "b.json", os.write
    lines.write({"a": 1})
    files.write_json(path, {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "write", lambda fd, data: write(fd, data[:5]))
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        lines.write({"a": 2})
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"a": 2})
    monkeypatch.undo()
    lines.write({"a": 3})
    assert list(files.read_lines(tmp_path / "a")) == [{"a": 1}, {"a": 3}]
    assert json.loads(path.read_text()) == {"a": 1}
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b.json"}
    with pytest.raises(UserError, match=r"cannot write .*nowhere.*No such file"):
        AppendFile(tmp_path / "nowhere" / "a")


def test_plain_is_json_whatever_comes_in():
    value = {"a": math.nan, "b": -math.inf, "c": np.float32(0.5), "d": np.int64(3), "e": (1, [True, None])}
    assert files.to_plain(value) == {"a": None, "b": None, "c": 0.5, "d": 3, "e": [1, [True, None]]}
    assert files.to_plain({1: Path("x"), "t": np.array(math.inf)}) == {"1": "x", "t": None}


RUN: Any = {"system": "a2c", "config": {"env": "x"}, "options": {"seed": 3, "frames": 10}}
RUN |= {"sources": {"env": "default"}, "environment": {"skip": "4"}}


def test_config_json_says_what_the_run_is_and_was(tmp_path: Path):
    directory.write_config(tmp_path, RUN)
    before = read_config(tmp_path)
    assert before.items() >= {**RUN, "seed": 3, "resumed": []}.items()
    assert {"polyplay", "python", "torch", "numpy", "gymnasium", "ale-py"} == set(before["versions"])
    assert before["versions"]["numpy"] == np.__version__
    assert before["machine"]["cores"] >= 1
    later = {"config": {"env": "x", "learning_rate": 0.5}, "options": {"seed": 3, "frames": 20}}
    directory.amend_config(tmp_path, {**RUN, **later, "sources": {"frames": "resume"}}, {"steps": 7})
    directory.amend_config(tmp_path, {**RUN, **later})
    after = read_config(tmp_path)
    assert after.items() >= {**RUN, **later, "started": before["started"]}.items()
    assert [entry.get("steps") for entry in after["resumed"]] == [7, None]
    assert after["resumed"][0]["versions"] == before["versions"]


def test_read_config_names_what_is_wrong(tmp_path: Path):
    (tmp_path / "a2c-Pong-0").mkdir()
    directory.write_config(tmp_path / "a2c-Pong-0", RUN)
    with pytest.raises(UserError, match=r"no run at .*a2c-Pong-1 .*did you mean .*a2c-Pong-0\?"):
        read_config(tmp_path / "a2c-Pong-1")
    with pytest.raises(UserError, match="name the directory that `polyplay train` printed"):
        read_config(tmp_path / "something else")
    for text, says in (('{"schema":', "damaged: "), ("[]", "damaged: no JSON object"), ('{"schema": 99}', "schema 1")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=rf"config\.json:? .*{says}"):
            read_config(tmp_path)


def write_lines(path: Path, rows: list[Any], torn: str = '{"torn') -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)


def left(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


SIDE = {"steps": 99, "kind": "self_play", "black": 4, "white": 4}
AT = [{"steps": s} for s in (60, 100, 101)]
METRICS = [{"steps": s, "frames": s, "updates": 1, "wall_seconds": 1.0} for s in (50, 100, 150)]
UPDATES = [{"update": u} for u in range(1, 8)]
AGENTS = {"agents": {"0": 5, "1": 2, "10": 6}}
DELIVERIES = [{"from": 0}, [5, [0, 4]], {"from": 5}, [6, [0, 5]]]
GATE = [{"steps": 60, "candidate": 3}, {"steps": 110, "candidate": 6}]
MATCHES = [SIDE | AT[0], SIDE | AT[1], SIDE | {"kind": "gate", "white": 3}, SIDE | {"kind": "gate", "white": 5}]
GAMES = [{"lane": k, "frames": f, "steps": f, **GAME} for k, f in ((0, 90), (2, 95), (0, 110), (1, 120), (3, 99))]
CUTS: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
    ("metrics.jsonl", METRICS, {}, METRICS[:2]),
    ("decisions.jsonl", AT, {}, AT[:2]),
    ("evaluations.jsonl", AT, {}, AT[:2]),
    ("updates.jsonl", UPDATES, {}, UPDATES[:5]),
    ("updates.jsonl", UPDATES, {"updates": 0}, []),
    ("updates.jsonl", UPDATES, AGENTS, UPDATES[:5]),
    ("updates-1.jsonl", UPDATES, AGENTS, UPDATES[:2]),
    ("updates-10.jsonl", UPDATES, AGENTS, UPDATES[:6]),
    ("updates-1.jsonl", UPDATES, {"updates": 0}, []),
    (
        "deliveries-0.jsonl",
        [{"from": 0}, [5, [0, 4]], {"from": 5}, [6, [0, 5]]],
        {},
        [{"from": 0}, [5, [0, 4]], {"from": 5}],
    ),
    ("matches.jsonl", GATE, {}, GATE[:1]),
    ("games.jsonl", MATCHES, {}, MATCHES[:3]),
    # lanes 0 and 1 had ended two games by then, the second of which was noted later; or three, one of which has no line
    ("episodes.jsonl", GAMES, {"games": {"0+2": 2}}, [*GAMES[:2], GAMES[2] | {"frames": 100, "steps": 100}, GAMES[4]]),
]


@pytest.mark.parametrize(("name", "rows", "counters", "stay"), CUTS)
def test_what_came_after_the_checkpoint_is_cut_off(name: str, rows: list, counters: dict, stay: list, tmp_path: Path):
    """Each agent's updates at its own; games bear the checkpoint's numbers."""
    write_lines(tmp_path / name, rows)
    said: list[str] = []
    counters = {"steps": 100, "frames": 100, "updates": 5, **counters}
    rewind(tmp_path, counters, said.append)
    assert (left(tmp_path / name), said) == (stay, [])
    rewind(tmp_path, counters, said.append)
    assert left(tmp_path / name) == stay
    write_lines(tmp_path / name, [*stay, "damaged"], "")
    rewind(tmp_path, counters, said.append)
    assert (left(tmp_path / name), said) == (stay, [f"{name}: 1 damaged line left out"])


def test_matches_of_a_league_stay(tmp_path: Path):
    write_lines(tmp_path / "matches.jsonl", [{"begin": 1}, {"actor": 0, "draw": 1, "of": [], "played": []}], "")
    before = (tmp_path / "matches.jsonl").read_bytes()
    rewind(tmp_path, {"steps": 100, "frames": 100, "updates": 5}, lambda text: None)
    assert (tmp_path / "matches.jsonl").read_bytes() == before


HOLDER = "import sys, time; from pathlib import Path; from polyplay.runs.directory import DirectoryLock;"
HOLDER += "lock = DirectoryLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_second_writer_is_told_who_holds_it_until_that_is_killed(tmp_path: Path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert is_locked(tmp_path)
    with pytest.raises(UserError, match=f"is being written by process {holder.pid} on .*: wait until it has ended"):
        DirectoryLock(tmp_path)
    holder.kill()
    holder.communicate()
    with closing(DirectoryLock(tmp_path)) as lock:
        assert lock.held
        (tmp_path / ".lock").write_bytes(b"\xff")
        with pytest.raises(UserError, match="is being written by"):
            DirectoryLock(tmp_path)
    assert not lock.held
    assert not is_locked(tmp_path)


def test_train_and_resume_take_it_and_readers_need_none(tmp_path: Path):
    run = made.run(tmp_path / "run", ended=False)
    with closing(DirectoryLock(run)):
        with pytest.raises(UserError, match="is being written by process"):
            polyplay.resume(run)
        with pytest.raises(UserError, match="is being written by process"):
            polyplay.train("a2c", env="toy:catch", replicas=1, lanes=4, run=str(run), resume="auto")
        assert polyplay.evaluate(run, episodes=1)["episodes"] == 1
    (tmp_path / "new").mkdir()
    with closing(DirectoryLock(tmp_path / "new")), pytest.raises(UserError, match="is being written by process"):
        polyplay.train("a2c", env="toy:catch", serial=True, steps=10, run=str(tmp_path / "new"))
    assert not (tmp_path / "new" / "config.json").exists()


SUMMARY = {"exit_code": 0, "reason": "done", "frames": 400, "steps": 100, "wall_seconds": 90.0}


def make_run(root: Path, name: str, summary: dict[str, Any] | None = None, started: str = "2026-01-01") -> Path:
    run = root / name
    run.mkdir(parents=True)
    config = {"schema": 1, "system": "a2c", "config": {"env": "toy:catch"}, "seed": 3, "started": started}
    (run / "config.json").write_text(json.dumps(config))
    line = {"wall_seconds": 60.0, "frames": 40, "steps": 10, "updates": 1}
    ends = (50, 0.9, None), (100, 0.5, 0.5), (150, 0.25, 0.5)
    rows = [line | {"episodes": n, "episodic_return_mean": r, "episodic_return_mean_best": b} for n, r, b in ends]
    write_lines(run / "metrics.jsonl", rows, "")
    if summary is not None:
        (run / "summary.json").write_text(json.dumps({**SUMMARY, "episodic_return_mean": 0.25, **summary}))
    return run


def test_a_run_is_described_by_its_summary_or_its_last_report(tmp_path: Path):
    row = directory.describe_run(make_run(tmp_path, "a", {"episodic_return_mean_best": 0.5}))
    expected = {"system": "a2c", "env": "toy:catch", "seed": 3, "state": "done", "frames": 400, "steps": 100}
    assert row.items() >= (expected | {"return": 0.25, "return_best": 0.5, "wall_seconds": 90.0}).items()
    run = make_run(tmp_path, "b")
    stopped = {"state": "stopped", "frames": 40, "return": 0.25, "return_best": 0.5}
    assert directory.describe_run(run).items() >= stopped.items()
    with closing(DirectoryLock(run)):
        assert directory.describe_run(run)["state"] == "running"


def test_states(tmp_path: Path):
    ends = [(0, "done"), (130, "stopped by SIGINT"), (0, "stopped by callback x"), (1, "lost"), (2, "wrong")]
    states = [directory.state_of(tmp_path, {"exit_code": code, "reason": reason}) for code, reason in ends]
    assert states == ["done", "stopped", "stopped", "failed", "failed"]


def test_the_newest_comes_first_and_damage_is_a_row(tmp_path: Path, capsys, monkeypatch: pytest.CaptureFixture):
    monkeypatch.setenv("COLUMNS", "120")
    make_run(tmp_path, "old", {}, "2026-01-01")
    make_run(tmp_path, "several/seed-0", {}, "2026-01-02")
    (make_run(tmp_path, "torn", {}, "2026-01-03") / "summary.json").write_text('{"exit')
    (make_run(tmp_path, "bad", {}) / "config.json").write_text("{")
    for name in ("frames", "steps", "wall_seconds", "episodic_return_mean"):
        make_run(tmp_path, f"text-{name}", {name: "x"}, "2025")
    population = make_run(tmp_path, "lost", started="2025")
    config = json.loads((population / "config.json").read_text())
    (population / "config.json").write_text(json.dumps(config | {"config": {"over": "a2c"}}))
    (population / "population.json").write_text('{"schema": 1, "members": [{}]}')
    (tmp_path / "nothing").mkdir()
    rows = directory.list_runs([tmp_path, tmp_path / "old"])
    states = {Path(row["run"]).name: row["state"] for row in rows}
    assert list(states)[:2] == ["seed-0", "old"]
    assert {name for name, state in states.items() if state == "damaged"} == {*states} - {"seed-0", "old"}
    errors = " ".join(row.get("error", "") for row in rows)
    for says in (
        "bad/config.json is damaged",
        "text-steps is damaged: steps is 'x'; it must be a number",
        "population.json is",
    ):
        assert says in errors
    for more in ([], ["--json"]):
        assert main.main(["runs", str(tmp_path), *more]) == 0
        assert "seed-0" in capsys.readouterr().out
    with pytest.raises(UserError, match="DIR: no directory"):
        directory.list_runs([tmp_path / "absent"])


def write_rows(path: Path) -> Path:
    rows = [(100, {}), (200, {"loss": 1.0}), (150, {"loss": 2.0})]  # resumed from frame 100
    write_lines(path, [{"frames": n, "wall_seconds": 1.0, **more} for n, more in rows], "")
    return path


def test_columns(tmp_path: Path):
    columns = directory.read_table(write_rows(tmp_path / "metrics.jsonl"))
    assert columns == {"frames": [100, 150], "wall_seconds": [1.0, 1.0], "loss": [None, 2.0]}
    assert directory.read_table(tmp_path / "absent.jsonl") == {}


WHOLE = {"member": 0, "steps": 1, "wall_seconds": 1.0, "values": {}, "state": "waiting", "score": None}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"members": []}, "missing or malformed: members"),
        ({"members": [WHOLE, WHOLE | {"values": None}]}, "missing or malformed: members"),
        ({"members": [WHOLE, WHOLE | {"steps": None}]}, "missing or malformed: members"),
        ({"vary": None, "total": "many"}, "missing or malformed: total, vary"),
        ({"schema": 2}, "has not schema 1"),
        (None, "run is a run of pbt, not a population: name a run of `polyplay train pbt`, with its population.json"),
    ],
)
def test_a_damaged_population_is_one_line(tmp_path: Path, change: dict | None, says: str):
    run = make_population(tmp_path / "run", turns=0, members=2)
    contents = json.loads((run / "population.json").read_text())
    (run / "population.json").write_text(json.dumps(contents | (change or {})))
    if change is None:
        (run / "population.json").unlink()
    with pytest.raises(UserError, match=says):
        read_population(run)
