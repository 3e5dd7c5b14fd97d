from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyplay.cli import main, plot
from polyplay.cli import train as several
from polyplay.core.errors import WorkerLost
from polyplay.runs.option_file import OptionFile, Sweep, SweepPart
from polyplay.runs.run import RunResult
from tests.runs.test_directory import make_run
from tests.verbs import refused

TOY = ["--env=toy:catch", "--network=mlp", "--lanes=8", "--serial", "--no-tensorboard", "--quiet", "--steps=400"]


def test_a_signal_ends_the_rest_and_a_failure_does_not(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(several, "find_spec", lambda name: None)
    begun: list[int] = []
    parts = Sweep(OptionFile(Path(), None, {}), [0, 1, 2, 3], {}).parts("a2c", {}, ())

    def train(part: SweepPart) -> RunResult:
        seed = int(str(part.seed))
        begun.append(seed)
        if seed == 0:
            raise WorkerLost("actor 0 was killed")
        run = make_run(tmp_path / str(len(begun)), str(seed), {"episodic_return_mean": 2.0 * seed - 1.0})
        return RunResult(run, 130 if seed == 2 else 0)

    assert several.train_parts(parts, train, None) == 130
    assert begun == [0, 1, 2]
    out, err = capsys.readouterr()
    assert "failed: actor 0 was killed" in err
    assert out.splitlines()[-1] == "mean return 2.00, range 1.00 to 3.00"
    assert several.train_parts(parts[:1], train, None) == 1


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
    assert line == "polyplay: error: --seed: given, but there is a run for each of the seeds 0 1 2: leave it out"


def test_options_are_written_and_nothing_is_trained(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(tmp_path)
    assert main.main(["train", "a2c", *TOY, "--run", "run", "--save-config", "a.yaml"]) == 0
    text = "a.yaml written; `polyplay train --config a.yaml` trains with these options\n"
    assert (capsys.readouterr(), sorted(p.name for p in tmp_path.iterdir())) == ((text, ""), ["a.yaml"])
    assert main.main(["train", "--config", "a.yaml"]) == 0
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["config"]["lanes"], config["options"]["steps"], config["options"]["serial"]) == (8, 400, True)
    assert config["sources"]["gamma"] == "default"


SWEEP = """system = "a2c"
seeds = "0..1"
env = "toy:catch"
network = "mlp"
steps = 400
serial = true
tensorboard = false
quiet = true
[grid]
lanes = [4, 8]
"""
NAMES = [f"lanes={n}/seed-{seed}" for seed in (0, 1) for n in (4, 8)]


def test_a_sweep_trains_what_is_left_and_tells_its_points_apart(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "lanes.toml").write_text(SWEEP)
    words = ["train", "--sweep", "lanes.toml"]
    assert main.main([*words, "--part", "1"]) == 0
    assert (list_of(capsys), sorted(p.name for p in tmp_path.glob("runs/lanes/*"))) == ([], ["lanes=8"])
    before = (tmp_path / "runs/lanes/lanes=8/seed-0/config.json").stat().st_mtime_ns
    assert main.main([*words, "--dry-run"]) == 0
    states = zip(range(4), NAMES, ("new", "done", "new", "new"), strict=True)
    assert list_of(capsys) == [[str(i), f"runs/lanes/{name}", state] for i, name, state in states]
    assert main.main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in out if ": mean return" in line] == ["lanes=4", "lanes=8"]
    assert out[-1] == "runs/lanes/sweep.png"
    assert (tmp_path / "runs/lanes/lanes=8/seed-0/config.json").stat().st_mtime_ns == before
    configs = [json.loads((tmp_path / f"runs/lanes/{name}/config.json").read_text()) for name in NAMES]
    assert [(c["config"]["lanes"], c["seed"]) for c in configs] == [(4, 0), (8, 0), (4, 1), (8, 1)]
    assert plot.names_of(plot.pools_of(plot.read_curves(tmp_path / "runs/lanes"))) == ["a2c · lanes 4", "a2c · lanes 8"]
    assert main.main(["runs", "runs/lanes"]) == 0
    table = capsys.readouterr().out
    assert [name for name in NAMES if name not in table] == []


def list_of(capsys: pytest.CaptureFixture) -> list[list[str]]:
    """Rows of a list of parts: index, directory, state."""
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [row for row in rows if row and row[0].isdecimal()]


def test_a_point_of_the_grid_that_does_not_work_is_a_line_and_the_others_are_trained(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(several, "find_spec", lambda name: None)
    (tmp_path / "s.toml").write_text(SWEEP.replace("[4, 8]", "[4]\nnetwork = ['nature', 'mlp']").replace("0..1", "0"))
    (tmp_path / "s.toml").write_text((tmp_path / "s.toml").read_text().replace('network = "mlp"\n', ""))
    assert main.main(["train", "--sweep", "s.toml", "--run", "here"]) == 2
    out, err = capsys.readouterr()
    assert "polyplay: error: lanes=4,network=nature: " in err
    assert "lanes=4,network=mlp: mean return" in out
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["lanes=4,network=mlp"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--part", "4"], "--part: '4' given, allowed: 0 to 3; s.toml has 4 runs"),
        (["--part="], "--part: '' given, allowed: 0 to 3"),
        (["--part", "1", "2"], "--part: '1 2' given, allowed: 0 to 3"),
        (["--lanes", "3"], "--lanes: given, but s.toml has a list of values for it: leave one out"),
        (["--seed", "3"], "--seed: given, but there is a run for each of the seeds 0 1: leave it out"),
        (["--config", "s.toml"], "--config: 's.toml s.toml' given, allowed: one file, or a run's directory; a sweep's"),
        (["--save-config", "a.toml"], "allowed: one file to write, of one run: without --seeds and --sweep"),
    ],
)
def test_what_contradicts_a_sweep_is_one_line(tmp_path: Path, monkeypatch, capsys, words: list[str], says: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SWEEP)
    assert says in refused(capsys, "train", "--sweep", "s.toml", *words)
    assert "--part: '1' given, but no sweep: give --sweep FILE too" in refused(capsys, "train", "a2c", "--part", "1")
