"""Runs that grow: another run goes on with them, and the old one stays as it was."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.core.tree import Field
from polyplay.envs import Envs
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Conditional, Discrete, MultiBinary
from polyplay.runs.directory import DirectoryLock, write_config
from polyplay.runs.options import RunOptions, resolve, to_json
from polyplay.runs.surgery import change_options, check_games, grow_run
from tests.verbs import refused

QUIET: dict[str, Any] = {"tensorboard": False, "network": "mlp", "quiet": True}
PPO: dict[str, Any] = {**QUIET, "env": "toy:memory", "core": "lstm", "core_size": 32, "lanes": 4, "unroll": 8}
PPO |= {"serial": True, "replicas": 1, "minibatches": 2, "epochs": 1, "inputs": "normalize", "anneal": "constant"}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of ppo with an LSTM."""
    return polyplay.train("ppo", run=str(tmp_path_factory.mktemp("old") / "run"), steps=96, **PPO).directory


def arrays_of(directory: Path, name: str, agent: int = 0) -> dict[str, np.ndarray]:
    return checkpoint.OpenCheckpoint(checkpoint.everything(directory)[-1]).arrays(f"agents/{agent}/{name}")


def old_units(grown: np.ndarray, was: np.ndarray) -> np.ndarray:
    """The old LSTM's weights among the grown one's, of the shape that they had."""
    units = was.shape[1]
    return grown.reshape(4, -1, grown.shape[1])[:, :units, :units].reshape(was.shape)


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_a_grown_run_settles_and_then_learns_on(old: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    before, new = files_of(old), tmp_path / "new"
    words = ["--core-size", "48", "--hidden", "96", "96", "--env", "toy:memory+cues=4", "--freeze-until", "64"]
    assert main.main(["surgery", str(old), "--out", str(new), *words]) == 0
    said = capfd.readouterr().out
    assert "core.cell.recurrent.weight: [128, 32] → [192, 48]" in said
    assert "not carried: games under way, recurrent states" in said
    assert files_of(old) == before
    report = json.loads((new / "surgery.json").read_text())
    assert report["parameters_after"] > report["parameters_before"]
    config = json.loads((new / "config.json").read_text())
    assert (config["config"]["core_size"], config["config"]["network"]) == (48, "mlp(96,96)")
    assert config["surgery"][0]["from"] == str(old)
    assert [*read_lines(new / "metrics.jsonl")] == [*read_lines(old / "metrics.jsonl")]

    made, moments = arrays_of(new, "policy"), arrays_of(new, "optimizer")
    name, was = "core.cell.recurrent.weight", arrays_of(old, "policy")
    assert np.array_equal(old_units(made[name], was[name]), was[name])
    polyplay.resume(new, steps=128)
    assert "all lanes restart" in capfd.readouterr().err
    settled, after = arrays_of(new, "policy"), arrays_of(new, "optimizer")
    weights = [name for name in made if not name.startswith("inputs")]
    assert all(np.array_equal(made[name], settled[name]) for name in weights), "the rate is 0"
    assert after["step"] > moments["step"]
    assert not np.array_equal(after["exp_avg"], moments["exp_avg"])
    polyplay.resume(new, steps=256)
    learnt = arrays_of(new, "policy")
    heard = learnt["core.cell.recurrent.weight"].reshape(4, 48, 48)[:, :32, 32:]
    assert heard.any(), "old units hear new ones"
    assert json.loads((new / "summary.json").read_text())["exit_code"] == 0


def test_statistics_of_a_core_that_grows_are_kept(old: Path, tmp_path: Path):
    report = grow_run(old, tmp_path / "new", {"core_size": 48})
    assert report["freeze_until"] == 0
    grown, was = arrays_of(tmp_path / "new", "optimizer"), arrays_of(old, "optimizer")
    assert np.count_nonzero(grown["exp_avg_sq"]) == np.count_nonzero(was["exp_avg_sq"])
    assert grown["exp_avg_sq"].sum() == pytest.approx(was["exp_avg_sq"].sum())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--hidden 32 32", "the features would go from [64] to [32], and networks only grow"),
        ("--core-size 16", "--core-size: 16 given, but RUN has 32, and networks only grow"),
        ("--heroes 3", "--heroes"),
        ("--hidden 128", "torso.layers.2.weight would be missing in the new network"),
        ("--network mlp(128,128,relu)", "the new network's activations are ReLU, those of"),
        ("--env toy:tests.toys:Pendulum", "--env: toy:tests.toys:Pendulum given, whose actions are of another kind"),
        ("", "surgery: nothing changes"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    old: Path, tmp_path: Path, capfd: pytest.CaptureFixture, words: str, says: str
):
    before, out = files_of(old), tmp_path / "new"
    assert says in refused(capfd, "surgery", old, "--out", out, *words.split())
    assert files_of(old) == before
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_and_a_run_that_is_written_are_refused(old: Path, tmp_path: Path, capfd):
    line = ["surgery", old, "--core-size", "64", "--out"]
    assert f"--out: {tmp_path} already exists" in refused(capfd, *line, tmp_path)
    with closing(DirectoryLock(old)):
        assert "is being written: end that run first" in refused(capfd, *line, tmp_path / "new")


def begun(directory: Path, system: str, **given: Any) -> Path:
    """A run that never ran, with a checkpoint."""
    page = systems.load(system)
    settings, options, sources = resolve(page, **given)
    directory.mkdir()
    told = {"config": to_json(settings), "options": to_json(options), "sources": sources}
    write_config(directory, {"system": system, **told, "environment": {}})
    checkpoint.CheckpointPart(directory, 5).json("agents/0/learner", {})
    checkpoint.complete(directory, 5, {"steps": 9, "frames": 9, "updates": 5})
    return directory


@pytest.mark.parametrize("system", ["dqn", "gorila", "alphago_zero"])
def test_systems_that_cannot_grow_are_named(system: str, tmp_path: Path, capfd):
    own = {"env": "game:tic_tac_toe"} if system == "alphago_zero" else {"env": "toy:catch", "network": "mlp"}
    run = begun(tmp_path / "old", system, **own)
    line = refused(capfd, "surgery", run, "--out", tmp_path / "new", "--env", f"{own['env']}+rows=11")
    assert f"RUN: a run of {system}, which cannot grow: its replay has states of the old size; ppo, impala" in line


@pytest.mark.long
def test_a_run_of_five_grows_with_its_past_selves_and_its_game(tmp_path: Path, capfd: pytest.CaptureFixture):
    given = {"tensorboard": False, "quiet": True, "serial": True, "core_size": 16, "inputs": "normalize"}
    given |= {"rate_every": 0, "lanes": 8, "unroll": 8, "window": 4, "batch": 8, "capacity": 16}
    given |= {"games_per_matchup": 2, "snapshot_every": 2}
    given |= {"preset": "quick", "opponents": "past:0.5", "env": "arena:moba+team=1+lanes=1+length=40"}
    old, new = tmp_path / "old", tmp_path / "new"
    polyplay.train("five", run=str(old), steps=300, **given)
    for name in ("ratings.jsonl", "references.json"):
        (old / name).write_text('{"version": 0}\n')
    words = "--core-size 24 --hidden 160 --env arena:moba+team=1+lanes=2+length=40 --freeze-until 100"
    assert main.main(["surgery", str(old), "--out", str(new), *words.split()]) == 0
    assert "not carried: experience of optimizers" in capfd.readouterr().out
    assert not [*new.glob("checkpoints/*/learners")]
    assert (new / "ratings.jsonl").read_bytes() == (new / "references.json").read_bytes() == b'{"version": 0}\n'
    past = {p.stem for p in (old / "past_agents").iterdir()}
    assert {p.stem for p in (new / "past_agents").iterdir()} == past
    grown = checkpoint.read_arrays(next((new / "past_agents").iterdir()))
    assert grown["actions.query.weight"].shape == (4 * 32, 24), "four values of the first part name a unit"
    assert not grown["actions.query.weight"][:, 16:].any()

    made, lines = arrays_of(new, "policy"), len([*read_lines(new / "matches.jsonl")])
    assert polyplay.resume(new, steps=700).summary["exit_code"] == 0
    assert "does not fit" not in capfd.readouterr().err
    learnt = arrays_of(new, "policy")
    assert learnt["core.cell.recurrent.weight"].reshape(4, 24, 24)[:, :16, 16:].any(), "old units hear new ones"
    assert not np.array_equal(made["torso.last.weight"], learnt["torso.last.weight"])
    played = {name for line in [*read_lines(new / "matches.jsonl")][lines:] for name in line.get("table", ())}
    assert played & past, "a past agent that grew sits at a table"

    line = ["surgery", str(new), "--out", str(tmp_path / "more"), "--env"]
    assert "the units of creeps would go" in refused(capfd, *line, "arena:moba+team=1+lanes=1+length=40")
    assert main.main([*line, "arena:moba+team=3+lanes=2+length=40", "--lanes", "12"]) == 0
    assert polyplay.resume(tmp_path / "more", steps=1000).summary["exit_code"] == 0
    assert "does not fit" not in capfd.readouterr().err
    assert [line["teams"] for line in read_lines(tmp_path / "more" / "matches.jsonl") if "begin" in line] == [
        [0, 1],
        [0, 1],
        [0, 0, 0, 1, 1, 1],
    ]


# What may change when a run grows.


PAGE = systems.load("ppo")


def changed(given: dict[str, Any], **changes: Any) -> tuple[Any, RunOptions]:
    settings, options, _ = resolve(PAGE, env="toy:memory", **given)
    return change_options(PAGE, settings, options, "ppo", changes)


def test_layers_keep_their_activation():
    settings, options = changed({"network": "mlp(64,64,relu)"}, hidden=(128, 128))
    assert (settings.network, options.hidden) == ("mlp(128,128,relu)", (128, 128))
    settings, options = changed({"network": "auto"}, hidden=(96,), env="toy:memory+cues=3")
    assert (settings.network, settings.env) == ("auto(96)", "toy:memory+cues=3")


OLD = EnvSpec({"a": Field((2,), "float32"), "b": Field((), "int64")}, Discrete(2), classes={"b": 3}, seats=2)


def game(spec: EnvSpec) -> Envs:
    envs = Envs("toy:catch", 2)
    envs.__dict__["spec"] = spec
    return envs


UNITS = Conditional({"v": Discrete(2), "x": Discrete(3)}, {"x": (1,)})


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (replace(OLD, obs=OLD.obs["a"], classes={}), "observations are of another kind"),
        (replace(OLD, obs={"a": Field((2,), "uint8"), "b": OLD.obs["b"]}), "observations are of another kind"),
        (replace(OLD, action=MultiBinary((2,))), "actions are of another kind"),
        (replace(OLD, action=UNITS), "actions are of another kind"),
        (replace(OLD, seats=1), "which has 1 seats"),
        (replace(OLD, seats=4), "matches of RUN's league were played with other teams"),
        (replace(OLD, bots={"new": "m:f"}), "matches of RUN's league were played with other bots"),
    ],
)
def test_games_of_another_kind(new: EnvSpec, says: str):
    with pytest.raises(UserError, match=says):
        check_games(game(OLD), game(new), league=True)
