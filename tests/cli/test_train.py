from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from polyplay.cli import main
from polyplay.cli import train as seeds
from polyplay.core.errors import UserError, WorkerLost
from polyplay.runs.run import RunResult
from tests.verbs import refused

TOY = ["--env=toy:catch", "--network=mlp", "--lanes=8", "--serial", "--no-tensorboard", "--quiet", "--steps=400"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["0..3"], [0, 1, 2, 3]), (["0", "7"], [0, 7]), (["2,1"], [2, 1]), (["0..1", "1,5"], [0, 1, 5])],
)
def test_seeds_as_they_are_written(words: list[str], expected: list[int]):
    assert seeds.parse_seeds(words) == expected


@pytest.mark.parametrize("words", [["x"], ["3..1"], ["-1"], ["1,"], []])
def test_other_words_are_refused(words: list[str]):
    with pytest.raises(UserError, match=r"--seeds.* whole numbers from 0, as 0\.\.4"):
        seeds.parse_seeds(words)


def test_a_range_that_goes_down_names_the_one_that_goes_up():
    with pytest.raises(UserError, match=r"--seeds: '4\.\.1' given, allowed: .*; a range goes up: 1\.\.4$"):
        seeds.parse_seeds(["4..1"])


def result(code: int, mean: float | None = 1.0, reason: str = "done") -> RunResult:
    return RunResult(Path("x"), code, reason, {"episodic_return_mean": mean, "frames": 9, "reason": reason})


def test_a_signal_ends_the_rest_and_a_failure_does_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(seeds, "find_spec", lambda name: None)
    begun = []

    def train(seed: int) -> RunResult:
        begun.append(seed)
        if seed == 0:
            raise WorkerLost("actor 0 was killed")
        return result(130 if seed == 2 else 0)

    assert seeds.train_seeds([0, 1, 2, 3], train, None) == 130
    assert begun == [0, 1, 2]
    assert "failed: actor 0 was killed" in capsys.readouterr().err
    assert seeds.train_seeds([0, 1], train, None) == 1


def test_the_table_ends_with_the_mean_and_its_interval():
    console = Console(width=80, record=True, color_system=None)
    console.print(seeds.table_of_seeds({0: result(0, 1.0), 1: result(0, 3.0), 2: None}))
    lines = [line.split() for line in console.export_text().splitlines() if line.strip()]
    assert (lines[0], lines[4][-1]) == (["seed", "return", "frames", "minutes", "ended"], "failed")
    assert lines[-1] == ["mean", "2.00", "95", "%", "interval", "1.00", "to", "3.00"]


def test_a_repeated_command_makes_no_finished_run_again(tmp_path: Path, capsys: pytest.CaptureFixture):
    words = ["train", "a2c", *TOY, "--run", str(tmp_path / "all"), "--seeds"]
    assert main.main([*words, "0"]) == 0
    before = (tmp_path / "all/seed-0/config.json").stat().st_mtime_ns
    capsys.readouterr()
    assert main.main([*words, "0..1"]) == 0
    out = capsys.readouterr().out
    assert "all/seed-0 is finished" in out
    assert out.splitlines()[-1] == str(tmp_path / "all/seeds.png")
    assert (tmp_path / "all/seed-0/config.json").stat().st_mtime_ns == before
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == ["seed-0", "seed-1", "seeds.png"]


def test_contradictions_are_one_line(capsys: pytest.CaptureFixture):
    line = refused(capsys, "train", "a2c", *TOY, "--seed", "1", "--seeds", "0..2")
    assert line == "polyplay: error: --seed 1 and --seeds 0..2 contradict each other: give one of them"
    assert "--seeds: 'many' given" in refused(capsys, "train", "a2c", *TOY, "--seeds", "many")
