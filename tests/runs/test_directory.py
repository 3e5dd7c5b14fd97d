"""The files of a run's directory: config.json, lines that are cut, lock, listing, tables."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import shutil
import stat
import subprocess
import sys
import types
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.cli import main
from polyplay.core import files, machine
from polyplay.core.errors import UserError
from polyplay.core.files import AppendFile, JsonLines
from polyplay.runs import directory
from polyplay.runs.directory import (
    LOCK_FILE,
    DirectoryLock,
    amend_config,
    is_locked,
    read_config,
    read_population,
    rewind,
    write_config,
)
from tests import made
from tests.populations import make_population

GAME = {"wall_seconds": 1.0, "episodic_return": 1.0, "episodic_length": 3}


def test_lines_are_whole_and_readable_at_once(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    lines = JsonLines(path)
    for i in range(3):
        lines.write({"i": i, "text": "a\nb ü"})
        assert list(files.read_lines(path))[-1] == {"i": i, "text": "a\nb ü"}
        assert path.read_bytes().endswith(b"\n")
    lines.close()
    lines.close()
    assert path.read_bytes().count(b"\n") == 3


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
    lines.write({"b": 3})
    assert path.read_bytes() == whole + b'{"b": 3}\n'


def test_on_a_full_disk_nothing_of_a_line_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines, write = JsonLines(tmp_path / "a"), os.write
    lines.write({"a": 1})
    monkeypatch.setattr(files.os, "write", lambda fd, data: write(fd, data[:5]))
    with pytest.raises(OSError, match="No space") as caught:
        lines.write({"a": 2})
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    lines.write({"a": 3})
    assert list(files.read_lines(tmp_path / "a")) == [{"a": 1}, {"a": 3}]


def test_a_directory_that_is_not_there_is_the_users_mistake(tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot write .*nowhere.*No such file"):
        AppendFile(tmp_path / "nowhere" / "a")


def test_plain_is_json_whatever_comes_in():
    value = {"a": math.nan, "b": -math.inf, "c": np.float32(0.5), "d": np.int64(3), "e": (1, [True, None])}
    assert files.to_plain(value) == {"a": None, "b": None, "c": 0.5, "d": 3, "e": [1, [True, None]]}
    assert files.to_plain({1: Path("x"), "t": np.array(math.inf)}) == {"1": "x", "t": None}


def test_write_json_is_old_or_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


RUN: Any = {"system": "a2c", "config": {"env": "x"}, "options": {"seed": 3, "frames": 10}}
RUN |= {"sources": {"env": "default"}, "environment": {"skip": "4"}}


def write(directory: Path) -> dict[str, Any]:
    write_config(directory, RUN)
    return read_config(directory)


def test_config_json_says_what_the_run_is(tmp_path: Path):
    written = write(tmp_path)
    assert (written["system"], written["seed"], written["config"]) == ("a2c", 3, {"env": "x"})
    assert (written["sources"], written["environment"]) == ({"env": "default"}, {"skip": "4"})
    assert {"polyplay", "python", "torch", "numpy", "gymnasium", "ale-py"} == set(written["versions"])
    assert written["versions"]["numpy"] == np.__version__
    assert written["versions"]["python"] == platform.python_version()
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["cpu"]
    assert "commit" in written


def test_amend_config_keeps_the_beginning_and_notes_the_resumption(tmp_path: Path):
    before = write(tmp_path)
    later = {"config": {"env": "x", "learning_rate": 0.5}, "options": {"seed": 3, "frames": 20}}
    amend_config(tmp_path, {**RUN, **later, "sources": {"frames": "resume"}})
    after = read_config(tmp_path)
    assert (after["options"]["frames"], after["config"]["learning_rate"]) == (20, 0.5)
    assert (after["started"], len(after["resumed"])) == (before["started"], 1)
    assert after["resumed"][0]["versions"] == before["versions"]
    amend_config(tmp_path, {**RUN, "options": {}, "sources": {}})
    assert len(read_config(tmp_path)["resumed"]) == 2


def test_read_config_names_what_is_wrong(tmp_path: Path):
    (tmp_path / "a2c-Pong-0").mkdir()
    write(tmp_path / "a2c-Pong-0")
    with pytest.raises(UserError, match=r"no run at .*a2c-Pong-1 .*did you mean .*a2c-Pong-0\?"):
        read_config(tmp_path / "a2c-Pong-1")
    with pytest.raises(UserError, match="name the directory that `polyplay train` printed"):
        read_config(tmp_path / "something else")
    (tmp_path / "config.json").write_text('{"schema":')
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config\.json is damaged: no JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match="schema 1"):
        read_config(tmp_path)


def test_a_package_that_is_not_there_has_no_version():
    assert machine.version("no-such-package-at-all") is None


def test_matches_of_a_gate_are_cut_off_and_those_of_a_league_stay(tmp_path: Path):
    counters = {"steps": 100, "frames": 100, "updates": 5}
    gate = [{"steps": 60, "candidate": 3}, {"steps": 110, "candidate": 6}]
    league = [{"begin": 1}, {"actor": 0, "draw": 1, "of": [], "played": []}]
    for rows, left in ((gate, gate[:1]), (league, league)):
        (tmp_path / "matches.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
        rewind(tmp_path, counters, lambda text: None)
        assert list(files.read_lines(tmp_path / "matches.jsonl")) == left


@pytest.mark.parametrize(
    ("counters", "left"),
    [
        ({"updates": 13, "agents": {"0": 5, "1": 2, "10": 6}}, {"": [4, 5], "-1": [1, 2], "-10": [5, 6]}),
        ({"updates": 0}, {"": [], "-1": [], "-10": []}),
    ],
)
def test_the_updates_of_each_agent_are_cut_off_at_its_own(counters: dict[str, Any], left: Any, tmp_path: Path):
    for whose, written in (("", (4, 5, 6)), ("-1", (1, 2, 3)), ("-10", (5, 6, 7))):
        lines = "".join(json.dumps({"update": u}) + "\n" for u in written)
        (tmp_path / f"updates{whose}.jsonl").write_text(lines + '{"torn')
    rewind(tmp_path, {"steps": 100, "frames": 100, **counters}, lambda text: None)
    for whose, kept in left.items():
        path = tmp_path / f"updates{whose}.jsonl"
        assert [row["update"] for row in map(json.loads, path.read_text().splitlines())] == kept


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path):
    lines = {
        "metrics.jsonl": [{"steps": s, "frames": s, "updates": 1, "wall_seconds": 1.0} for s in (50, 100, 150)],
        "decisions.jsonl": [{"steps": s} for s in (60, 100, 101)],
        "evaluations.jsonl": [{"steps": s} for s in (70, 100, 102)],
        "updates.jsonl": [{"update": u} for u in (4, 5, 6)],
        "deliveries-0.jsonl": [{"from": 0}, [5, [0, 4]], {"from": 5}, [6, [0, 5]]],
        "episodes.jsonl": [
            {"lane": k, "frames": f, "steps": f, **GAME} for k, f in ((0, 90), (2, 95), (0, 110), (1, 120), (3, 99))
        ],
    }
    for name, content in lines.items():
        (tmp_path / name).write_text("".join(json.dumps(x) + "\n" for x in content) + '{"torn')
    counters = {"steps": 100, "frames": 100, "updates": 5, "games": {"0+2": 2}}
    said: list[str] = []
    rewind(tmp_path, counters, said.append)
    assert said == []
    assert [r["steps"] for r in files.read_lines(tmp_path / "metrics.jsonl")] == [50, 100]
    assert [r["steps"] for r in files.read_lines(tmp_path / "decisions.jsonl")] == [60, 100]
    assert [r["steps"] for r in files.read_lines(tmp_path / "evaluations.jsonl")] == [70, 100]
    assert [r["update"] for r in files.read_lines(tmp_path / "updates.jsonl")] == [4, 5]
    lines_left = (tmp_path / "deliveries-0.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines_left)) == [{"from": 0}, [5, [0, 4]], {"from": 5}]
    # lanes 0 and 1 had ended two games by then, the second of which was noted later
    assert [(g["lane"], g["frames"]) for g in files.read_lines(tmp_path / "episodes.jsonl")] == [
        (0, 90),
        (2, 95),
        (0, 100),
        (3, 99),
    ]
    before = (tmp_path / "episodes.jsonl").stat().st_mtime_ns
    rewind(tmp_path, counters, said.append)
    assert (tmp_path / "episodes.jsonl").stat().st_mtime_ns == before


def test_games_behind_the_checkpoint_are_cut_off(tmp_path: Path):
    """Of a gate by the match, as its line of matches.jsonl is."""
    side = {"kind": "self_play", "black": 4, "white": 4}
    lines = [{"steps": s, **side, "name": f"self_play-0-{s}"} for s in (60, 100, 101)]
    lines += [{"steps": 99, "kind": "gate", "black": b, "white": w, "name": f"gate-{b}"} for b, w in ((4, 3), (3, 5))]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "games.jsonl").write_text(whole + '{"steps": 3}\n' + '{"torn')
    said: list[str] = []
    rewind(tmp_path, {"steps": 100, "frames": 100, "updates": 5}, said.append)
    left = [row["name"] for row in files.read_lines(tmp_path / "games.jsonl")]
    assert left == ["self_play-0-60", "self_play-0-100", "gate-4"]
    assert said == ["games.jsonl: 1 damaged line left out"]


HOLDER = "import sys, time; from pathlib import Path; from polyplay.runs.directory import DirectoryLock;"
HOLDER += "lock = DirectoryLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_second_writer_is_told_who_holds_it(tmp_path: Path):
    with closing(DirectoryLock(tmp_path)) as lock:
        assert lock.held
        with pytest.raises(UserError) as said:
            DirectoryLock(tmp_path)
        assert f"process {os.getpid()} on " in str(said.value)
        assert "end it" in str(said.value)
    assert not lock.held
    DirectoryLock(tmp_path).close()


def test_the_system_releases_it_when_its_holder_is_killed(tmp_path: Path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} on"):
        DirectoryLock(tmp_path)
    holder.kill()
    holder.communicate()
    DirectoryLock(tmp_path).close()


def test_a_directory_that_was_deleted_and_made_again_is_locked_anew(tmp_path: Path):
    place = tmp_path / "run"
    place.mkdir()
    lock = DirectoryLock(place)
    shutil.rmtree(place)
    assert not lock.held
    place.mkdir()
    lock.take()
    assert lock.held
    shutil.rmtree(place)
    place.mkdir()
    with closing(DirectoryLock(place)), pytest.raises(UserError, match="is being written by process"):
        lock.take()
    assert not lock.held


@pytest.mark.parametrize("written", [b"", b"[]", b"\xff", b"{}"])
def test_what_the_file_says_does_not_matter(tmp_path: Path, written: bytes):
    (tmp_path / LOCK_FILE).write_bytes(written)
    with closing(DirectoryLock(tmp_path)):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
        (tmp_path / LOCK_FILE).write_bytes(written)
        with pytest.raises(UserError, match="is being written by"):
            DirectoryLock(tmp_path)


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
@pytest.mark.parametrize("value", ["x", True])
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


def write_rows(path: Path) -> Path:
    rows = [(100, {}), (200, {"loss": 1.0}), (150, {"loss": 2.0})]  # resumed from frame 100
    path.write_text("".join(json.dumps({"frames": n, "wall_seconds": 1.0, **more}) + "\n" for n, more in rows))
    return path


def test_columns_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(directory.importlib.util, "find_spec", lambda name: None)
    table = directory.read_table(write_rows(tmp_path / "metrics.jsonl"))
    assert table == {"frames": [100, 150], "wall_seconds": [1.0, 1.0], "loss": [None, 2.0]}
    assert directory.read_table(tmp_path / "absent.jsonl") == {}


def test_a_frame_where_pandas_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pandas = types.ModuleType("pandas")
    pandas.__spec__ = ModuleSpec("pandas", None)
    pandas.DataFrame = lambda columns: ("frame", columns)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    kind, columns = directory.read_table(write_rows(tmp_path / "metrics.jsonl"))
    assert (kind, columns["frames"]) == ("frame", [100, 150])


def test_a_population_that_lost_its_file_says_so(tmp_path: Path):
    run = make_population(tmp_path / "run", turns=0, members=2)
    (run / "population.json").unlink()
    with pytest.raises(UserError, match=r"run has lost its population.json: put back a copy of it"):
        read_population(run)


WHOLE = {"member": 0, "steps": 1, "wall_seconds": 1.0, "values": {}, "state": "waiting", "score": None}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"members": []}, "no members as a population writes it"),
        ({"members": [WHOLE, WHOLE | {"values": None}]}, "no members as a population writes it"),
        ({"members": [WHOLE, WHOLE | {"steps": None}]}, "no members as a population writes it"),
        ({"vary": None, "total": "many"}, "no vary, total as a population writes it"),
        ({"schema": 2}, "has not schema 1"),
    ],
)
def test_damage_is_said_in_one_line(tmp_path: Path, change: dict, says: str):
    run = make_population(tmp_path / "run", turns=0, members=2)
    contents = json.loads((run / "population.json").read_text())
    (run / "population.json").write_text(json.dumps(contents | change))
    with pytest.raises(UserError, match=says):
        read_population(run)
