"""polyplay/cli/systems.py: what each system is good for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from examples import reinforce
from polyplay import systems as pages
from polyplay.cli import main, systems
from polyplay.runs.directory import list_runs
from tests.runs.test_directory import make_run
from tests.verbs import refused


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_nothing_is_cut(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main.main(["systems"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    words = " ".join(out.split())
    assert all(name in words for name in pages.names())


def test_one_system_is_shown_with_its_presets(capsys: pytest.CaptureFixture):
    assert main.main(["systems", "ppo"]) == 0
    out = capsys.readouterr().out
    assert "good for        a first run; any actions" in out
    assert "classic" in out
    assert main.main(["systems", "a2c", "--diagram", "--env", "toy:catch", "--network", "mlp"]) == 0
    assert "toy:catch × 16 lanes" in capsys.readouterr().out


def test_the_table_fits_80_columns_and_cuts_nothing(tmp_path: Path):
    make_run(
        tmp_path, "accel_dqn-MontezumaRevenge-v5-12345-20260101-120000", {"frames": 200_000_000, "steps": 5 * 10**7}
    )
    console = Console(width=80, record=True, color_system=None)
    console.print(systems.table_of(list_runs([tmp_path])))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "200M/50M" in text


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs in runs/ yet: polyplay train ppo --env CartPole-v1 starts one\n"
    run = make_run(tmp_path / "runs", "first", {})
    (make_run(tmp_path / "runs", "bad", {}) / "config.json").write_text("{")
    assert main.main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "first" in out
    assert "damaged: runs/bad/config.json is damaged" in out
    assert main.main(["runs", str(run), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run"], row["state"]) == (str(run), "done")
    assert "DIR: no directory absent" in refused(capsys, "runs", "absent")
    (tmp_path / "empty").mkdir()
    assert main.main(["runs", "empty"]) == 0
    assert capsys.readouterr().out == "no runs in empty\n"


def test_a_new_system_is_the_example_under_its_name_and_trains(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["systems", "--new", "drawn_system"]) == 0
    assert "`polyplay train drawn_system:system` trains it" in capsys.readouterr().out
    example = Path(reinforce.__file__).read_text()
    assert Path("drawn_system.py").read_text() == example.replace("reinforce:system", "drawn_system:system")
    line = "train drawn_system:system --env toy:catch --steps 300 --serial --no-tensorboard --quiet --run run"
    assert main.main(line.split()) == 0
    assert main.main(["resume", "run", "--steps", "500", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("json", "--new: a module json already exists; choose another name"),
        ("a-b", "--new: a-b is not a module name; use letters, digits and _"),
        ("class", "--new: class is not a module name"),
        ("game chess", "--new 'game chess': must be one name, such as my_system"),
    ],
)
def test_a_name_that_is_no_modules_is_one_line(words: str, said: str, capsys):
    assert said in refused(capsys, "systems", "--new", *words.split())
