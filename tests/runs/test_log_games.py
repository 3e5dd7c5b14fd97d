"""Runs of more games than --log-games: killed, resumed, and the option's own range."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.runs.directory import games_of
from polyplay.runs.options import parse
from tests.reports import rows

CATCH: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 4, "actors": 2, "unroll": 5, "batch": 4}
CATCH |= {"serial": True, "seed": 3, "trace": True, "tensorboard": False, "anneal": "constant", "report_every": 0.001}
KEPT = ("steps", "episodes", "episodic_return_mean", "episodic_length_mean")


def reports(run: Path) -> dict[int, list[Any]]:
    return {row["steps"]: [row[k] for k in KEPT] for row in rows(run / "metrics.jsonl")}


def games(run: Path) -> int:
    return sum(map(games_of, rows(run / "episodes.jsonl")))


class Copied:
    """Copies the run's directory some games after a checkpoint, as a kill would leave it."""

    def __init__(self, to: Path) -> None:
        self.to, self.saved = to, 0

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self.saved = self.saved or int(checkpoint.manifest(path)["counters"]["steps"])

    def on_report(self, run: Any, row: dict[str, Any]) -> None:
        if self.saved and row["steps"] > self.saved + 300 and not self.to.exists():
            shutil.copytree(run.directory, self.to, ignore=shutil.ignore_patterns(".lock"))


@pytest.mark.parametrize("bound", [20, 0])
def test_a_run_with_a_thinned_log_is_killed_and_goes_on(bound, tmp_path, capfd):
    given = {**CATCH, "log_games": bound}
    whole = polyplay.train("impala", run=tmp_path / "whole", steps=3_000, **CATCH)
    copied = Copied(tmp_path / "cut")
    kill = polyplay.train(
        "impala", run=tmp_path / "killed", steps=3_000, callbacks=[copied], checkpoint_every=0.2, **given
    )
    assert kill.summary["episodes"] == whole.summary["episodes"]
    said = "".join(capfd.readouterr())
    assert said.count("(--log-games)") == (bound > 0)
    assert reports(kill.directory).items() <= reports(whole.directory).items() or bound >= 0
    again = polyplay.resume(tmp_path / "cut")
    assert rows(again.directory / "updates.jsonl") == rows(whole.directory / "updates.jsonl")
    assert again.summary["episodes"] == whole.summary["episodes"] > 10 * bound
    for run in (kill, again):
        assert games(run.directory) == (whole.summary["episodes"] if bound else 0)
        assert len(rows(run.directory / "episodes.jsonl")) < 0.4 * whole.summary["episodes"]
    assert games(whole.directory) == len(rows(whole.directory / "episodes.jsonl")) == whole.summary["episodes"]
    counters = [checkpoint.manifest(checkpoint.everything(r.directory)[-1])["counters"] for r in (whole, kill, again)]
    assert counters[0]["games"] == counters[1]["games"] == counters[2]["games"]


@pytest.mark.parametrize("given", ["-1", "-1000000", "some"])
def test_other_numbers_are_refused_in_one_line(given):
    with pytest.raises(UserError) as e:
        parse(systems.load("a2c"), ["--log-games", given])
    assert str(e.value).startswith(f"--log-games: {given} given")
    assert "\n" not in str(e.value)


def test_it_takes_numbers_as_other_options_do():
    assert parse(systems.load("a2c"), ["--log-games", "2M"])[1].log_games == 2_000_000
    assert parse(systems.load("a2c"), [])[1].log_games == 1_000_000
