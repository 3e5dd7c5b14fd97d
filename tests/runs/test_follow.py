"""--follow: one agent by the schedule of a population's best member."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.common.errors import UserError
from polyplay.common.files import read_lines
from polyplay.population.store import Store, line_of
from polyplay.runs import follow

SETTINGS: dict[str, Any] = {"env": "toy:catch", "lanes": 4, "serial": True, "tensorboard": False, "anneal": "constant"}
ABOUT = {"over": "a2c", "every": 1000, "total": 3000, "exploit": "truncation", "explore": "perturb", "score": "games"}


@pytest.fixture
def population(tmp_path: Path) -> Path:
    """Member 1 copied member 0 at 1,000 steps and again at 2,000, and is the best at the end."""
    directory = tmp_path / "population"
    directory.mkdir()
    store = Store(directory)
    store.begin(
        ABOUT | {"seed": 0, "vary": {"learning_rate": "log:1e-5:1e-2"}}, [{"learning_rate": r} for r in (1e-3, 1e-5)]
    )
    for steps, rate in ((1000, 8e-4), (2000, 9.6e-4)):
        found = store.read()
        donor, m = found["members"]
        donor |= {"steps": steps, "score": 1.0}
        old, m["values"], m["steps"] = m["values"], {"learning_rate": rate}, steps
        store.commit(found, line_of(found, m, old, "in the bottom 20 %", donor, 0.0))
    found = store.read()
    found["members"][1] |= {"score": 2.0, "steps": 3000}
    store.write(found)
    return directory


def rates(directory: Path) -> list[tuple[int, float]]:
    """The learning rates of a run's reports."""
    return [(row["steps"], row["learning_rate"]) for row in read_lines(directory / "metrics.jsonl", "learning_rate")]


def test_schedule_is_the_line_of_the_best(population: Path) -> None:
    assert follow.schedule_from(population, "a2c") == [
        (0, {"learning_rate": 1e-3}),
        (2000, {"learning_rate": 9.6e-4}),
    ]


def test_a_run_follows(population: Path, tmp_path: Path) -> None:
    run = polyplay.train("a2c", follow=str(population), steps=4000, run=str(tmp_path / "run"), **SETTINGS)
    assert run.exit_code == 0
    assert run.reason == "done"
    before = [rate for step, rate in rates(run.directory) if step <= 2000]
    assert before == [pytest.approx(1e-3)] * len(before)
    assert before
    assert rates(run.directory)[-1] == (run.summary["steps"], pytest.approx(9.6e-4))
    assert run.summary["steps"] >= 4000
    assert json.loads((run.directory / "config.json").read_text())["config"]["learning_rate"] == 9.6e-4


def test_a_stopped_run_goes_on_with_its_schedule(population: Path, tmp_path: Path) -> None:
    def stop(run: Any, report: Any) -> bool:
        return report["steps"] < 500

    options = {**SETTINGS, "report_every": 0.01}
    run = polyplay.train(
        "a2c", follow=str(population), steps=4000, run=str(tmp_path / "run"), callbacks=[stop], **options
    )
    assert run.summary["steps"] < 2000
    (population / "lineage.jsonl").unlink()  # it is not read again
    resumed = polyplay.resume(run.directory)
    assert resumed.summary["steps"] >= 4000
    assert rates(run.directory)[-1][1] == pytest.approx(9.6e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"system": "ppo"}, "is a population of a2c, ppo given"),
        ({"learning_rate": 1e-3}, "--learning-rate: given"),
        ({"follow": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_followed(population: Path, tmp_path: Path, given: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"system": "a2c", "follow": str(population), **given}
    with pytest.raises(UserError, match=message):
        polyplay.train(options.pop("system"), run=str(tmp_path / "run"), steps=1000, **options, **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_a_population_without_scores_cannot_be_followed(population: Path) -> None:
    found = Store(population).read()
    for m in found["members"]:
        m["score"] = None
    Store(population).write(found)
    with pytest.raises(UserError, match=r"no member of .* has a score yet"):
        follow.schedule_from(population, "a2c")


def test_a_change_of_what_it_follows_is_refused(population: Path, tmp_path: Path) -> None:
    run = polyplay.train("a2c", follow=str(population), steps=500, run=str(tmp_path / "run"), **SETTINGS)
    with pytest.raises(UserError, match="learning_rate: the run follows a population"):
        polyplay.resume(run.directory, learning_rate=1e-4, steps=1000)
