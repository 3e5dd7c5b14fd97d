"""Damaged JSON in a run's directory: the checkpoint before, or one line; never a traceback, never a resume that others
of its files would block.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.runs import run as runs_
from polyplay.runs import session as runs
from polyplay.runs.run import RunResult
from tests.reports import rows

CASES = 100
FILES = ("config.json", "MANIFEST", "metrics.jsonl", "episodes.jsonl", "updates.jsonl", "evaluations.jsonl")
FILES += ("decisions.jsonl", "deliveries-0.jsonl", "summary.json", "scores.json")
READ = ("config.json", "MANIFEST", "episodes.jsonl", "scores.json")  # by those who only read, too
VALUES: list[Any] = [None, [], {}, "x", "", -1, 1e308, 10**400, True, float("nan"), [[1]], {"a": {"b": 1}}, "é\0"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints and every file of lines."""
    run = tmp_path_factory.mktemp("whole") / "run"
    kw = {"env": "toy:catch", "network": "mlp", "lanes": 4, "serial": True, "trace": True, "tensorboard": False}
    polyplay.train("a2c", run=str(run), steps=600, eval_every=100, eval_episodes=1, **kw)
    polyplay.resume(run, steps=900)
    polyplay.evaluate(run, episodes=1)
    (run / "decisions.jsonl").write_text('{"steps": 10, "updates": 1, "kept": true}\n' * 2)
    (run / "deliveries-0.jsonl").write_text('{"from":0,"threads":1,"length":0}\n[1,[0,0]]\n')
    assert len(checkpoint.everything(run)) == 2
    assert all(rows(run / name) for name in ("metrics.jsonl", "episodes.jsonl", "updates.jsonl", "evaluations.jsonl"))
    return run


def spots(value: Any, path: tuple = ()) -> list[tuple]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for k, v in inner for spot in spots(v, (*path, k)))]


def altered(value: Any, rng: random.Random) -> Any:
    """`value` with a part of it replaced or gone."""
    *way, last = rng.choice(spots(value)) or (None,)
    if last is None:
        return rng.choice(VALUES)
    part = value
    for key in way:
        part = part[key]
    if rng.random() < 0.4:
        del part[last]
    else:
        part[last] = rng.choice(VALUES)
    return value


def mangled(data: bytes, rng: random.Random, lines: bool) -> bytes:
    """Bytes of a JSON file, or of lines of it, that a run never wrote."""
    how = rng.choice(["cut", "flip", "garbage", "deep", "empty", "altered", "altered", "altered"])
    at = rng.randrange(len(data))
    if how == "cut":
        return data[:at] + b"\n" * rng.randrange(2)
    if how == "flip":
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if how == "garbage":
        return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
    if how == "deep":
        return b"[" * 100_000 + b"\n" + (data if lines else b"")
    if how == "empty":
        return b""
    if not lines:
        return json.dumps(altered(json.loads(data), rng)).encode()
    rows = [json.loads(line) for line in data.splitlines()]
    i = rng.randrange(len(rows))
    rows[i] = altered(rows[i], rng)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def command_ends(capfd: pytest.CaptureFixture, *words: str) -> tuple[int, list[str]]:
    """Its status and lines of stderr; no traceback."""
    status = main.main(list(words))
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert status in (0, 2), err
    assert status == 0 or err.splitlines()[-1].startswith("polyplay: error: ")
    return status, err.splitlines()


@pytest.mark.parametrize("name", FILES)
def test_mangled_json_is_one_line_or_the_checkpoint_before(
    name: str, whole: Path, tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture
):
    """100 files in all. What is read when a run goes on is all read; it is not gone on with."""
    begun: list[runs.RunSetup] = []

    def go(setup: runs.RunSetup) -> RunResult:
        runs.Session(setup).reporter.close("", 0)
        begun.append(setup)
        return RunResult(setup.directory)

    monkeypatch.setattr(runs_, "_go", go)
    for case in range(CASES // len(FILES)):
        rng, run = random.Random(f"{name} {case}"), shutil.copytree(whole, tmp_path / str(case))
        old, new = checkpoint.everything(run)
        file = new / "manifest.json" if name == "MANIFEST" else run / name
        file.write_bytes(mangled(file.read_bytes(), rng, name.endswith(".jsonl")))
        begun.clear()
        status, err = command_ends(capfd, "resume", str(run), "--steps", "2000")
        if name == "config.json":
            assert status == 0 or "config.json" in err[-1] or "--" in err[-1], err
        else:
            assert status == 0, err
            assert begun[0].counters["steps"] > 0
        if name == "MANIFEST" and begun[0].crew.resume == old:
            assert f"checkpoint {new.name}: " in err[0]
        if name in READ:
            command_ends(capfd, "evaluate", str(run), "--episodes", "1")
            command_ends(capfd, "scores", str(run))


def test_lines_that_are_damaged_are_counted_and_gone(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    run = shutil.copytree(whole, tmp_path / "run")
    episodes, updates = len(rows(run / "episodes.jsonl")), len(rows(run / "updates.jsonl"))
    for name in ("episodes", "updates"):
        data = (run / f"{name}.jsonl").read_bytes()
        (run / f"{name}.jsonl").write_bytes(b"[]\n\xff\n" + data)
    assert polyplay.resume(run, steps=1500).exit_code == 0
    assert "polyplay: episodes.jsonl: 2 damaged lines left out\n" in capfd.readouterr().err
    assert len(rows(run / "episodes.jsonl")) > episodes
    numbers = [row["update"] for row in rows(run / "updates.jsonl")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > updates


SHAPES: list[Callable[[Any], Any]] = [lambda m: [], lambda m: {}]
SHAPES += [lambda m: {**m, "counters": {}}, lambda m: {**m, "files": []}]


@pytest.mark.parametrize("of", SHAPES)
def test_a_manifest_of_another_shape_is_passed_over(of: Callable[[Any], Any], whole: Path, tmp_path: Path, capfd):
    run = shutil.copytree(whole, tmp_path / "run")
    old, new = checkpoint.everything(run)
    checkpoint.write_json(new / "manifest.json", of(checkpoint.manifest(new)))
    assert polyplay.resume(run, steps=1500).exit_code == 0
    assert f"checkpoint {new.name}: its manifest" in capfd.readouterr().err
    assert checkpoint.update_of(checkpoint.everything(run)[-1]) > checkpoint.update_of(old)
