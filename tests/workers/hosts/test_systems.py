"""Every system with its workers on two raylets: it learns, goes on here and there, and to the bit where it can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from tests.systems import settings as of
from tests.systems.test_five import GIVEN as FIVE
from tests.systems.trained import same_weights
from tests.workers.hosts.runs import events, raylets

pytestmark = pytest.mark.xdist_group("ray")
FIVE_IN_STEP = {**FIVE, "learners": 1, "lag": 0, "batch": 64, "capacity": 128, "opponents": "latest"}
LEAGUE: Any = {"network": "mlp", "lanes": 16, "batch": 8, "agents": 2, "actors": 2, "tensorboard": False}
FTW: Any = {**LEAGUE, "env": "toy:tests.systems.test_leagues:Recall", "unroll": 20, "players": 2, "core_size": 16}
LEAGUE |= {"env": "toy:rps", "core": "gru", "opponents": "elo", "snapshot_every": 3, "unroll": 5}
LEAGUE |= {"games_per_matchup": 20}
GATE = {"gate": 0.55, "gate_games": 8, "gate_every": 20, "champion_games": 10, "players": 2}
FIRST = {"gate": 0.55, "gate_every": 1_000_000, "players": 1}  # all games are played by the first weights
ALL = {"place": "serve_replay=others,learn=others"}
SHARDS = {"place": "serve_parameters=others"}
MANY = {"place": "serve_parameters=others,serve_replay=others"}

# system, settings, agent steps, mean return of the last games asked for; None: of a system whose games have none
RUNS: dict[str, tuple[str, dict[str, Any], int, float | None]] = {
    "apex": ("apex", of.APEX, 12_000, 0.0),
    "apex, all elsewhere": ("apex", {**of.APEX, **ALL}, 12_000, 0.0),
    "apex_dpg": ("apex_dpg", of.AIM, 6_000, 0.4),
    "apex_sac": ("apex_sac", of.APEX_SAC, 3_000, 0.4),
    "r2d2": ("r2d2", of.R2D2, 10_000, 0.5),
    "gorila": ("gorila", of.GORILA, 14_000, 0.0),
    "gorila, shards elsewhere": ("gorila", {**of.GORILA, **SHARDS}, 14_000, 0.0),
    "gorila, free": ("gorila", {**of.FREE, **MANY}, 16_000, 0.0),
    "ppo": ("ppo", {**of.PPO, "replicas": 3, "lanes": 18}, 12_000, 0.0),
    "league": ("league", LEAGUE, 4_000, None),
    "ftw": ("ftw", FTW, 4_000, None),
    "five, past agents": ("five", {**FIVE, "learners": 1, "actors": 2, "snapshot_every": 20}, 12_000, None),
    "alphago_zero": ("alphago_zero", {**of.BOARD, **GATE}, 5_000, 0.2),
}
# the same where a run on one machine repeats to the bit
EXACT: dict[str, tuple[str, dict[str, Any], int]] = {
    "impala": ("impala", {**of.IMPALA, "actors": 2, "lag": 0}, 8_000),
    "appo": ("appo", {**of.APPO, "lag": 0}, 8_000),
    "a2c": ("a2c", {**of.A2C, "replicas": 2}, 8_000),
    "ppo, three": ("ppo", {**of.PPO, "replicas": 3, "lanes": 18}, 5_000),
    "dqn": ("dqn", {**of.DQN, "replicas": 2}, 6_000),
    "rainbow": ("rainbow", {**of.RAINBOW, "replicas": 2}, 6_000),
    "accel": ("accel", of.ACCEL, 8_000),
    "accel_dqn": ("accel_dqn", of.ACCEL_DQN, 6_000),
    "five": ("five", FIVE_IN_STEP, 8_000),
    "alphago_zero": ("alphago_zero", {**of.BOARD, **FIRST}, 5_000),
}
SHORT = {"ppo, three"}


def some(names: Any) -> list[Any]:
    """One by default."""
    return [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    with raylets(2) as address:
        yield address


def goes_on(run: polyplay.Run, hosts: str, steps: int, place: str | None) -> None:
    """Here, and there again."""
    for where, more in (({"hosts": "none"}, steps + 1_000), ({"hosts": hosts, "place": place}, steps + 2_000)):
        again = polyplay.resume(run.directory, steps=more, quiet=True, **where)
        assert again.exit_code == 0
        assert again.summary["updates"] > run.summary["updates"]
        run = again


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", some(RUNS))
def test_a_system_learns_with_its_workers_elsewhere_and_goes_on_here_and_there(name, hosts, tmp_path):
    system, settings, steps, least = RUNS[name]
    run = polyplay.train(system, run=str(tmp_path / "run"), steps=steps, hosts=hosts, quiet=True, **settings)
    assert run.exit_code == 0
    assert {row["event"] for row in events(run.directory)} == {"opened"}, "nobody was lost"
    if least is not None:
        assert run.summary["episodic_return_mean"] > least
    if name.startswith(("five", "league")):
        assert list((run.directory / "past_agents").iterdir())
    if system == "alphago_zero":
        matches = list(read_lines(run.directory / "matches.jsonl"))
        assert matches, "the judge played"
        assert len(checkpoint.champions(run.directory)) > sum(row["passed"] for row in matches)
    goes_on(run, hosts, steps, settings.get("place"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", some(EXACT))
def test_a_system_learns_the_same_elsewhere_to_the_bit(name, hosts, tmp_path):
    system, settings, steps = EXACT[name]
    given = {**settings, "trace": True, "quiet": True, "steps": steps}
    there = polyplay.train(system, run=str(tmp_path / "there"), hosts=hosts, **given)
    here = polyplay.train(system, run=str(tmp_path / "here"), **given)
    assert {row["machine"] for row in events(there.directory)} == {"local-1", "local-2"}
    assert there.summary["updates"] == here.summary["updates"] > 20
    assert same_weights(there, here)
    if name not in SHORT:
        goes_on(there, hosts, steps, None)


@pytest.mark.parametrize("system", ["a3c", "ga3c", "accel"])
def test_a_system_whose_workers_share_memory_by_nature_is_refused(system, tmp_path):
    settings = {"a3c": of.A3C, "ga3c": {**of.GA3C, "env": "toy:catch"}, "accel": {**of.ACCEL, **of.CHUNKED}}[system]
    with pytest.raises(UserError, match=r"--hosts: .*remove --hosts"):
        polyplay.train(system, run=str(tmp_path / "run"), steps=1_000, hosts="local:2", quiet=True, **settings)
