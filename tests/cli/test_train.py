from __future__ import annotations

from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.cli import train as seeds
from polyplay.core.errors import UserError, WorkerLost
from polyplay.runs.run import RunResult
from tests.runs.test_directory import make_run
from tests.verbs import refused

TOY = ["--env=toy:catch", "--network=mlp", "--lanes=8", "--serial", "--no-tensorboard", "--quiet", "--steps=400"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *((["0..3"], [0, 1, 2, 3]), (["0", "7"], [0, 7]), (["2,1"], [2, 1]), (["0..1", "1,5"], [0, 1, 5])),
        *(([word], None) for word in ("x", "3..1", "-1", "1,", "")),
        ([], None),
    ],
)
def test_seeds_as_they_are_written(words: list[str], expected: list[int] | None):
    if expected is not None:
        assert seeds.parse_seeds(words) == expected
        return
    with pytest.raises(UserError, match=r"--seeds '.*': must be whole numbers from 0, such as 0\.\.4"):
        seeds.parse_seeds(words)


def test_a_signal_ends_the_rest_and_a_failure_does_not(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(seeds, "find_spec", lambda name: None)
    begun: list[int] = []

    def train(seed: int) -> RunResult:
        begun.append(seed)
        if seed == 0:
            raise WorkerLost("actor 0 was killed")
        run = make_run(tmp_path / str(len(begun)), str(seed), {"episodic_return_mean": 2.0 * seed - 1.0})
        return RunResult(run, 130 if seed == 2 else 0)

    assert seeds.train_seeds([0, 1, 2, 3], train, None) == 130
    assert begun == [0, 1, 2]
    out, err = capsys.readouterr()
    assert "failed: actor 0 was killed" in err
    assert out.splitlines()[-1] == "mean return 2.00, range 1.00 to 3.00"
    assert seeds.train_seeds([0], train, None) == 1


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
    line = refused(capsys, "train", "a2c", *TOY, "--seed", "1", "--seeds", "0..2")
    assert line == "polyplay: error: --seed and --seeds 0..2 contradict each other; use one of them"
