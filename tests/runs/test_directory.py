from __future__ import annotations

import errno
import json
import math
import os
import platform
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.core import files, machine
from polyplay.core.errors import UserError
from polyplay.core.files import AppendFile, JsonLines
from polyplay.runs.directory import amend_config, read_config, rewind, write_config

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


def test_every_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines, write = JsonLines(tmp_path / "a"), os.write
    writes: list[bytes] = []

    def note(fd: int, data: bytes) -> int:
        writes.append(data)
        return write(fd, data)

    monkeypatch.setattr(files.os, "write", note)
    lines.write({"a": list(range(10_000))})
    assert len(writes) == 1
    assert json.loads(writes[0])["a"][-1] == 9999


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


def test_readers_skip_a_torn_last_line_and_a_missing_file(tmp_path: Path):
    (tmp_path / "a").write_bytes(b'{"a": 1}\n{"a": ')
    assert list(files.read_lines(tmp_path / "a")) == [{"a": 1}]
    assert list(files.read_lines(tmp_path / "b")) == []


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
    assert written["sources"] == {"env": "default"}
    assert written["environment"] == {"skip": "4"}
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
    assert after["started"] == before["started"]
    assert len(after["resumed"]) == 1
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
