"""Runs of more games than --log-games: killed, resumed, and the option's own range."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.runs import session
from polyplay.runs.directory import games_of
from polyplay.runs.options import parse
from polyplay.runs.session import SAVE
from tests.reports import rows

CATCH: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 4, "replicas": 1, "unroll": 5, "serial": True}
CATCH |= {"seed": 3, "trace": True, "tensorboard": False, "anneal": "constant", "report_every": 1e-4, "steps": 1_600}
CATCH["quiet"] = True


def games(run: Path) -> int:
    return sum(map(games_of, rows(run / "episodes.jsonl")))


class Copied:
    """Copies the run's directory some games after a checkpoint that it asks for, as a kill would leave it."""

    def __init__(self, to: Path) -> None:
        self.to, self.asked, self.saved = to, False, 0

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self.saved = self.saved or int(checkpoint.manifest(path)["counters"]["steps"])

    def on_report(self, run: Any, row: dict[str, Any]) -> None:
        if row["steps"] > 500 and not self.asked:
            self.asked = True
            (run.directory / SAVE).touch()
        if self.saved and row["steps"] > self.saved + 200 and not self.to.exists():
            shutil.copytree(run.directory, self.to, ignore=shutil.ignore_patterns(".lock"))


@pytest.mark.parametrize("bound", [20, pytest.param(0, marks=pytest.mark.long)])
def test_a_run_with_a_thinned_log_is_killed_and_goes_on(bound, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(session, "TICK", 1e-3)  # a look after every round
    whole = polyplay.train("a2c", run=tmp_path / "whole", **CATCH)
    copied = Copied(tmp_path / "cut")
    thin = polyplay.train("a2c", run=tmp_path / "thin", callbacks=[copied], log_games=bound, **CATCH)
    assert "".join(capfd.readouterr()).count("(--log-games)") == (bound > 0)
    assert 500 < copied.saved < 1_300
    killed = len(rows(copied.to / "episodes.jsonl"))
    again = polyplay.resume(copied.to)
    assert rows(again.directory / "updates.jsonl") == rows(whole.directory / "updates.jsonl")
    played = whole.summary["episodes"]
    assert again.summary["episodes"] == thin.summary["episodes"] == played > 5 * bound
    for key in ("episodic_return_mean", "episodic_length_mean", "episodic_return_mean_best"):
        assert thin.summary[key] == whole.summary[key], "reports have every game"
    assert games(whole.directory) == len(rows(whole.directory / "episodes.jsonl")) == played
    for run in (thin, again):
        assert games(run.directory) == (played if bound else 0)
        assert len(rows(run.directory / "episodes.jsonl")) < 0.5 * played
    assert killed <= len(rows(again.directory / "episodes.jsonl"))
    counters = [checkpoint.manifest(checkpoint.everything(r.directory)[-1])["counters"] for r in (whole, thin, again)]
    assert counters[0]["games"] == counters[1]["games"] == counters[2]["games"]


@pytest.mark.parametrize("given", ["-1", "-1000000", "some"])
def test_other_numbers_are_refused_in_one_line(given):
    with pytest.raises(UserError) as e:
        parse(systems.load("a2c"), ["--log-games", given])
    assert str(e.value).startswith(f"--log-games: '{given}' given, allowed: a whole number from 0")
    assert "\n" not in str(e.value)


def test_it_takes_numbers_as_other_options_do():
    assert parse(systems.load("a2c"), ["--log-games", "2M"])[1].log_games == 2_000_000
    assert parse(systems.load("a2c"), [])[1].log_games == 1_000_000
