"""`polyplay population` of a league: its history is that of its referee, as a table and as a picture."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.cli import main
from polyplay.cli.population import _first_values, _levels, draw_league
from polyplay.core.files import read_object
from polyplay.evaluation.tournament import TournamentOptions, play_tournament
from polyplay.population.league_log import CopyRule, read_history, values_over
from polyplay.systems import league


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three agents that copy each other often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(league, "CopyRule", lambda every, configured: CopyRule(every, configured, sure=0.0))
        given = {"env": "toy:rps", "agents": 3, "copies": 40, "network": "mlp", "lanes": 16, "batch": 8, "matches": 10}
        directory = tmp_path_factory.mktemp("runs") / "run"
        polyplay.train("league", run=str(directory), steps=4000, serial=True, tensorboard=False, **given)
    return directory


def test_history_ends_as_the_referees_files_say(run: Path):
    history, saved = read_history(run), read_object(run / "league.json")
    assert history.elo[-1].tolist() == [p["elo"] for p in saved["players"] if p["kind"] == "agent"]
    assert [{k: v for k, v in copy.items() if k != "match"} for copy in history.copies] == saved["copies"]
    assert len(history.copies) >= 2
    assert (np.diff(history.matches) > 0).all()
    assert (history.elo[0] == 1000).all()


def test_values_go_from_copy_to_copy(run: Path):
    history = read_history(run)
    end, agent = int(history.matches[-1]), history.copies[-1]["agent"]
    parts = values_over(history.copies, agent, _first_values(run, history)[agent], end)
    assert [parts[0][0], parts[-1][1]] == [0, end]
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert parts[-1][2] == history.copies[-1]["values"]
    assert parts[0][2] == {"learning_rate": 1e-3, "entropy_cost": 0.01}


def test_table_and_picture(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main.main(["population", str(run), "--picture", str(tmp_path / "league.png")]) == 0
    out = capsys.readouterr().out
    assert f"{len(read_history(run).copies)} copies" in out
    assert (tmp_path / "league.png").stat().st_size > 10_000
    history = read_history(run)
    figure = draw_league(run, history, _first_values(run, history), {"random": 1012.0})
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == ["learning_rate", "entropy_cost"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["random"]


def test_levels_of_opponents_are_on_the_leagues_scale(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    history = read_history(run)
    best = int(history.elo[-1].argmax())
    levels = _levels(run, history, ("random", f"{run}:{1 - min(best, 1)}"))
    assert list(levels) == ["random", f"{run}:{1 - min(best, 1)}"]
    points = play_tournament([f"{run}:{best}", *levels], TournamentOptions(matches=40))
    assert levels["random"] == pytest.approx(history.elo[-1, best] + points["players"][1]["elo"])
    assert main.main(["population", str(run), "--levels", "random"]) == 2
    assert "--levels random given, allowed: with --picture FILE" in capsys.readouterr().err
    assert main.main(["population", str(run), "--picture", str(tmp_path / "a.png"), "--levels", "bot:nobody"]) == 2
    assert "--levels: bot:nobody given, allowed for toy:rps: random" in capsys.readouterr().err


def test_a_damaged_log_is_said_in_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    lines = [json.loads(line) for line in (run / "matches.jsonl").read_text().splitlines()]
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    del lines[0]["agents"]
    (tmp_path / "matches.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main.main(["population", str(tmp_path)]) == 2
    assert "matches.jsonl is damaged (KeyError('agents')): put back a copy of it" in capsys.readouterr().err
