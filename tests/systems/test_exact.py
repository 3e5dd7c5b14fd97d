"""Runs in one thread go on to the bit where they were stopped, leagues too; bench/exactness.py has more."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines, read_object
from polyplay.population import rules
from polyplay.runs.reproduce import reproduce
from polyplay.systems import _teams
from tests.systems import settings as of
from tests.systems.trained import resumed_and_whole, same_weights, updates

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import exactness
from exactness import at_turns, cut_and_whole, differs

LONG = pytest.mark.long
CASES: list[Any] = [
    pytest.param("ppo", 2_048, {**of.PPO, "replicas": 1}, id="ppo"),
    pytest.param("accel", 1_024, of.ACCEL, id="accel"),
    pytest.param("appo", 2_000, {**of.APPO, "lag": 0}, id="appo", marks=LONG),
    pytest.param("dqn", 1_500, {**of.DQN, "double": True, "alpha": 0.6, "beta": 1.0}, id="dqn"),
    pytest.param("accel_dqn", 1_500, of.ACCEL_DQN, id="accel_dqn", marks=LONG),
    # β would depend on where the run is to end
    pytest.param("rainbow", 1_500, {**of.RAINBOW, "beta": 1.0, "learning_starts": 400}, id="rainbow", marks=LONG),
    # actors hold older weights than the learner has
    pytest.param("r2d2", 1_600, {**of.R2D2, "learning_starts": 500, "pull": 40}, id="r2d2"),
]


@pytest.mark.parametrize(("system", "steps", "settings"), CASES)
def test_a_run_that_was_stopped_goes_on_to_the_bit(system, steps, settings, tmp_path):
    resumed, whole = resumed_and_whole(system, tmp_path, steps, **settings)
    assert updates(resumed) == updates(whole)
    assert len(updates(whole)) > 4
    assert [row["update"] for row in updates(resumed)] == list(range(1, len(updates(whole)) + 1))
    assert same_weights(resumed, whole)


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("a3c", {**of.A3C, "steps": 200}),
        ("accel", {**of.ACCEL, "sync": "chunked"}),
        ("ga3c", {**of.GA3C, "env": "toy:catch"}),
    ],
    ids=["a3c", "accel in chunks", "ga3c"],
)
def test_where_weights_change_in_any_order_one_thread_repeats_and_nothing_is_replayed(system, settings, tmp_path):
    for name in ("a", "b"):
        polyplay.train(system, run=str(tmp_path / name), serial=True, trace=True, **{"steps": 700, **settings})
    one, two = ((tmp_path / name / "updates.jsonl").read_text() for name in ("a", "b"))
    assert one == two
    assert one.count("\n") >= 5
    with pytest.raises(UserError, match=rf"{system} keeps no log .*--serial repeats") as e:
        reproduce(tmp_path / "a")
    assert "\n" not in str(e.value)


def test_a_process_has_the_losses_of_a_thread(tmp_path):
    """The last bits may differ where a process has more compute threads."""
    losses = []
    for on in ("thread", "process"):
        settings = {**of.A2C, **of.MEMORY, "core_size": 16, "replicas": 1, "steps": 3_000, "trace": True}
        run = polyplay.train("a2c", on=on, run=str(tmp_path / on), **settings)
        losses.append([row["loss"] for row in updates(run)])
    assert len(losses[0]) >= 15
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3, atol=1e-5)


SEATS: dict[str, Any] = {"network": "mlp", "lanes": 8, "batch": 4, "unroll": 4}
LEAGUE = SEATS | {"env": "toy:rps", "agents": 3, "opponents": "past:0.3", "snapshot_every": 4, "exploit_every": 15}
LEAGUE |= {"games_per_matchup": 10}
FTW = SEATS | {"env": "toy:skirmish", "event_rewards": ("kill=1", "death=-0.5"), "core_size": 4, "memory": 2}
FTW |= {"auxiliary": "reward", "optimizer": "adam", "agents": 2, "players": 2, "exploit_every": 10}
FTW |= {"games_per_matchup": 6, "ranges": ("period=3",)}
FIVE = SEATS | {"env": "toy:skirmish", "core_size": 4, "learners": 2, "window": 2, "capacity": 16}
FIVE |= {"team_spirit": 0.0, "publish": 3, "staleness": 1, "rate_every": 0, "snapshot_every": 4}
FIVE |= {"opponents": "past:0.5", "games_per_matchup": 5}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents copy each other often."""
    monkeypatch.setattr(rules, "SURE", 0.5)
    monkeypatch.setattr(_teams, "CHANCE", 1.0)


@pytest.mark.parametrize(
    ("system", "settings", "steps"),
    [
        pytest.param("league", LEAGUE, 640, marks=pytest.mark.long),
        pytest.param("ftw", FTW, 480, marks=pytest.mark.long),
        ("ftw", FTW | {"core": "none"}, 480),
        ("five", FIVE, 400),
    ],
)
def test_a_run_that_is_stopped_twice_resumes_to_the_bit(system, settings, steps, tmp_path):
    """With past agents, copies, a memory of recent rows, several learners, published weights of earlier updates."""
    given = exactness.QUIET | settings | {"steps": steps}
    with at_turns() as turns:
        whole = polyplay.train(system, run=str(tmp_path / "whole"), **given)
    third, updates = turns() // 3, []
    with at_turns(finish=third):
        run = polyplay.train(system, run=str(tmp_path / "cut"), **given)
    for finish in (third, 10**9):
        updates.append(exactness.updates_at(exactness.newest(run)))
        with at_turns(finish=finish):
            run = polyplay.resume(run.directory)
    assert 0 < updates[0] < updates[1] < exactness.updates_at(exactness.newest(whole))
    assert differs(run, whole) == ""
    assert list(read_lines(run.directory / "matches.jsonl", "draw"))[-1]["draw"] > 1
    if system != "five":
        assert read_object(run.directory / "league.json")["copies"]


def losses(directory: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(directory.glob("updates*.jsonl")) for row in read_lines(path)]


def test_a_run_that_lost_its_last_checkpoint_plays_the_same_matches_again(tmp_path):
    """As one that is killed: its log has matches, copies and past agents of after the checkpoint."""
    given = exactness.QUIET | LEAGUE | {"steps": 560}
    with at_turns(save=150):
        run = polyplay.train("league", run=str(tmp_path / "run"), **given)
    before, matches = losses(run.directory), (run.directory / "matches.jsonl").read_text().splitlines()
    saved = checkpoint.everything(run.directory)
    state = json.loads((saved[0] / "league/state.json").read_text())
    assert len(saved) == 2
    assert 20 < state["lines"] < len(matches) - 20
    selves = {path.name: path.read_bytes() for path in (run.directory / "past_agents").iterdir()}
    shutil.rmtree(saved[1])
    (run.directory / "summary.json").unlink()
    run = polyplay.resume(run.directory)
    assert losses(run.directory) == before
    again = (run.directory / "matches.jsonl").read_text().splitlines()
    timeless = partial(json.loads, object_hook=lambda row: {k: v for k, v in row.items() if k != "at"})
    assert list(map(timeless, again)) == list(map(timeless, matches))
    assert {path.name: path.read_bytes() for path in (run.directory / "past_agents").iterdir()} == selves


def test_matches_under_way_are_said_to_be_lost_only_where_they_are(tmp_path, capsys):
    given = exactness.QUIET | LEAGUE
    run = polyplay.train("league", run=str(tmp_path / "run"), steps=100, **given)
    polyplay.resume(run.directory, steps=150)
    assert "are lost" not in capsys.readouterr().err
    polyplay.resume(run.directory, steps=250, actors=2)
    assert "all lanes restart" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", list(exactness.at_tables()), ids=lambda cell: cell.name)
def test_every_cell_of_the_published_table_resumes_to_the_bit(cell, tmp_path):
    run, whole, _ = cut_and_whole(cell, tmp_path, seed=1)
    assert differs(run, whole) == ""
