"""A population of runs: what cannot work, its members, what other verbs say of it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.cli import main
from polyplay.core import checkpoint, processes
from polyplay.core.errors import UserError, WorkerLost
from polyplay.population.store import DONE, FAILED, TRAINING, WAITING, founder
from polyplay.population.trainer import DRAWS
from polyplay.runs import population as population_module
from polyplay.runs.directory import list_runs
from polyplay.runs.options import RunOptions, resolve
from polyplay.runs.population import MemberRunner
from polyplay.runs.session import Session
from tests.population.fake_members import begun, plan_of
from tests.verbs import refused

A2C = "--over a2c --env toy:catch --network mlp --hidden 16 --lanes 4 --steps 400 --every 200 --population 2 --serial"
RATE = "--vary learning_rate=log:1e-4:1e-2"
GO = "--serial"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--vary lerning_rate=1,2", "--vary: lerning_rate given, but a2c has no such option; did you mean l"),
        ("--vary epochs=1,2", "--vary: epochs given, but a2c has no such option; `polyplay train a2c --help`"),
        ("--core gru --vary core_size=8,16", "--vary: core_size=16 given, but it changes the network, whose weights"),
        ("--vary optimizer=rmsprop_tf,adam", "changes the optimizer, whose state members copy: rmsprop_tf bec"),
        ("--over dqn --learning-starts 99 --vary capacity=1000,2000", "capacity=2000 given, but it changes the"),
        ("--vary gamma=uniform:0.5:1.5", "--vary gamma: '1.5' given, allowed: a number from 0 to 1"),
        ("--vary unroll=uniform:1.5:8.5", "--vary unroll=uniform:1.5:8.5: '1.5' given, allowed: a whole number"),
        ("--vary env=toy:catch,toy:memory", "--vary: env given, but all members share its value: leave it out"),
        ("--vary step-timeout=1,2", "--vary: step_timeout given, but all members share its value: leave it out"),
        ("--replicas 2 --vary lanes=4,5", "--lanes 5 does not divide"),
        ("", "--vary: nothing given for 2 members: name an option, as learning_rate=log:1e-5:1e-2"),
        (f"{RATE} --population 1", "--population: 1 given, allowed with --exploit truncation: 2 or more; or "),
        (f"{RATE} --over pbt", "--over: pbt given, which is a population itself, allowed: a2c, a3c, accel"),
        (f"{RATE} --over alphago_zero", "--over: alphago_zero given, but its self-play has no score"),
        (f"{RATE} --epsilon 0.1", "unknown option --epsilon for polyplay train pbt --over a2c; did you mean"),
        (f"{RATE} --score evaluations", "--score: evaluations given, but none are made: give --eval-"),
        (f"{RATE} --at-once 2", "--at-once: 2 given, but --serial is one thread: leave one of them out"),
        (f"{RATE} --learning-rate 0.5", "--learning-rate: given together with --vary learning_rate: leave one of"),
        (f"{RATE} --every 1M", "--every: 1,000,000 agent steps given, but each member has"),
    ],
)
def test_what_cannot_work_is_one_line_and_nothing_is_written(words, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capfd, *f"train pbt {GO if 'alphago' in words else A2C} {words}".split())
    assert list(tmp_path.iterdir()) == []


def test_so_is_what_python_cannot_give():
    with pytest.raises(UserError, match="callbacks: given, but members of a population train in other processes"):
        polyplay.train("pbt", callbacks=[print], env="toy:catch", serial=True, vary=("learning_rate=log:1e-4:1e-2",))
    with pytest.raises(UserError, match="unknown keyword lanse for pbt --over dqn; did you mean lanes"):
        polyplay.train("pbt", over="dqn", serial=True, lanse=4)


@pytest.fixture(scope="module")
def population(tmp_path_factory) -> Path:
    """A population that has ended."""
    directory = tmp_path_factory.mktemp("population") / "run"
    settings = dict(env="toy:catch", network="mlp", hidden=(16,), lanes=4, steps=400, every=200, population=2)
    vary = ("learning_rate=log:1e-4:1e-2",)
    how = dict(serial=True, tensorboard=False, quiet=True, eval_every=200, eval_episodes=2)
    run = polyplay.train("pbt", over="a2c", run=directory, vary=vary, **settings, **how)
    assert run.exit_code == 0
    return run.directory


VERBS = "evaluate RUN", "plot RUN --out x.png", "watch RUN", "export RUN --onnx x.onnx", "evaluate RUN --verify"
VERBS += "tournament RUN random", "play RUN", "evaluate RUN --save-starts x", "runs RUN --scores", "check RUN"


@pytest.mark.parametrize("words", VERBS)
def test_verbs_for_a_run_name_the_members_of_a_population(words, population, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    line = refused(capfd, *words.replace("RUN", str(population)).split())
    ranked = f"`polyplay runs {population}` ranks them"
    assert line == f"polyplay: error: RUN: {population} is a population, name one of its members, in members/: {ranked}"
    assert list(tmp_path.iterdir()) == []


def test_runs_lists_a_population_and_its_members_which_are_runs_as_any_other(population):
    (row,) = list_runs([population.parent])
    best = json.loads((population / "summary.json").read_text())["best_score"]
    assert (row["system"], row["state"], row["return"]) == ("pbt", "done", best)
    rows = list_runs([population])
    assert sorted(Path(row["run"]).name for row in rows) == ["00", "01", "run"]
    assert sum(member["steps"] for member in rows if member["system"] == "a2c") == row["steps"] >= 800
    assert polyplay.evaluate(population / "members/01", episodes=2)["episodes"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("resume RUN --learning-rate 0.1", "--learning-rate: a population decides what its members have; leave it out"),
        ("train a2c --serial --run RUN", "holds a run already; `polyplay resume "),
        ("train a2c --serial --run RUN --resume auto", "is a population, name one of its members, in members/: "),
        (f"train pbt {A2C} {RATE} --run RUN", "holds a run already; `polyplay resume "),
        (f"train pbt {A2C} {RATE} --run RUN --resume auto --lanes 8", "--lanes: a population decides what its"),
        (f"train pbt {A2C} {RATE} --run MEMBER --resume auto", "SYSTEM: pbt given, but "),
    ],
)
def test_what_a_population_that_is_there_cannot_become(words, said, population, capfd):
    words = words.replace("RUN", str(population)).replace("MEMBER", str(population / "members" / "00"))
    assert said in refused(capfd, *words.split())


def test_dry_runs_print_the_plan_and_write_nothing(population, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    assert main.main(f"train pbt {A2C} {RATE} unroll=5,8,16 --dry-run".split()) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "(dry run: nothing is written)" in out
    assert "2 runs of a2c, 400 agent steps each, 800 together" in out
    assert "learning_rate from log:0.0001:0.01" in out
    assert "unroll from 5,8,16" in out
    assert "every 200 agent steps of a member: truncation, perturb" in out
    assert list(tmp_path.iterdir()) == []
    before = {path: path.stat().st_mtime_ns for path in population.rglob("*")}
    assert main.main(f"resume {population} --dry-run --steps 800".split()) == 0
    assert "2 runs of a2c, 800 agent steps each" in " ".join(capfd.readouterr().out.split())
    assert main.main(f"train --config {population} --dry-run".split()) == 0
    assert "2 runs of a2c, 400 agent steps each" in " ".join(capfd.readouterr().out.split())
    assert {path: path.stat().st_mtime_ns for path in population.rglob("*")} == before


def test_the_figure_of_a_population_names_what_its_trainers_share(capsys):
    assert main.main(f"systems pbt --diagram {A2C} {RATE}".split()) == 0
    figure = capsys.readouterr().out
    assert "members/00 … 01: scores, hyperparameters, checkpoints" in figure
    assert "decides for its member: exploit truncation, explore perturb" in figure


def test_its_help_has_its_own_options_apart_and_those_of_its_members(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main.main(["train", "pbt", "--over", "dqn", "--help-all"]) == 0
    text = capsys.readouterr().out
    own = text.partition(" population options ")[2].partition(" environment options ")[0]
    assert all(f"--{name}" in own for name in ("over", "population", "every", "vary", "exploit", "explore", "score"))
    assert "--capacity" in text
    assert all(f"--{name.replace('_', '-')}" in text for name in RunOptions.__dataclass_fields__)


def test_a_file_of_options_may_say_what_it_is_over(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    lines = ['system = "pbt"', 'over = "dqn"', 'env = "toy:catch"', 'network = "mlp"', "steps = 1000", "every = 500"]
    lines += ["learning_starts = 100", "capacity = 500"]
    for vary in ('["gamma=0.9,0.99", "epsilon=0.05,0.1"]', '"gamma=0.9,0.99,epsilon=0.05,0.1"'):
        (tmp_path / "p.toml").write_text("\n".join([*lines, f"vary = {vary}"]))
        assert main.main(["train", "--config", "p.toml", "--serial", "--exploit", "none", "--dry-run"]) == 0
        out = capfd.readouterr().out
        assert "4 runs of dqn" in out
        assert "epsilon from 0.05,0.1" in " ".join(out.split())
    assert polyplay.train(config="p.toml", serial=True, dry_run=True).settings.capacity == 500


@pytest.mark.long
def test_several_seeds_are_several_populations(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main.main(f"train pbt {A2C} {RATE} --seeds 0,1 --run runs --quiet".split()) == 0
    found = [json.loads((tmp_path / f"runs/seed-{seed}/members/01/config.json").read_text()) for seed in (0, 1)]
    assert [config["seed"] for config in found] == [1, 1001]
    assert found[0]["config"]["learning_rate"] != found[1]["config"]["learning_rate"]
    best = json.loads((tmp_path / "runs/seed-1/summary.json").read_text())["best_score"]
    assert f"{best:,.2f}" in capfd.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("more", [{"steps": 800}, {"frames": 800}])
def test_a_population_that_is_done_goes_on_with_more_steps(more, population, tmp_path):
    run = polyplay.resume(shutil.copytree(population, tmp_path / "run"), **more)
    assert (run.exit_code, run.reason) == (0, "done")
    assert run.summary["steps"] >= 1600
    assert run.summary["decisions"] == 2 + 2 * 3


KW: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "lanes": 4, "unroll": 5, "replicas": 1, "serial": True}
KW |= {"tensorboard": False, "quiet": True, "steps": 400}


@pytest.fixture
def runner(tmp_path: Path) -> MemberRunner:
    (tmp_path / "run/members").mkdir(parents=True)
    settings, options, sources = resolve(systems.load("a2c"), **KW)
    return MemberRunner(tmp_path / "run", "a2c", settings, replace(options, run=None), sources, "games")


def session(runner: MemberRunner, until: int = 400, why: str = "", said: list[str] | None = None) -> Any:
    m = founder(0, {"learning_rate": 1e-3})
    return runner(m, until, lambda: why, lambda kind, text: (said if said is not None else []).append(text))


def test_a_member_trains_to_its_turn_and_to_its_end(runner):
    (runner.directory / "members/00/checkpoints").mkdir(parents=True)  # its directory was made and nothing else
    first = session(runner, 200)
    assert (first.ended, first.why) == ("ready", "")
    assert first.steps >= 200
    assert len(first.games) == 10
    assert session(runner, 200) == replace(first, seconds=pytest.approx(0, abs=5)), "killed before it was written down"
    last = session(runner, 400)
    assert (last.ended, last.why) == ("done", "done")


def test_who_is_stopped_before_it_learns_is_not_done(runner, monkeypatch):
    monkeypatch.setattr(Session, "_learning", lambda self: False)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.0)
    found = session(runner, why="stopped with its population")
    assert (found.ended, found.why) == ("stopped", "stopped with its population before any learner started")


def test_who_is_dropped_in_the_midst_is_not_done(runner, monkeypatch):
    """A second signal to a population in one thread comes out of its member's session."""

    def tick(self: Session) -> None:
        raise processes.Stopped(15)

    monkeypatch.setattr(Session, "_tick", tick)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.0)
    with pytest.raises(processes.Stopped):
        session(runner)
    monkeypatch.undo()
    assert session(runner).ended == "done"


def test_a_checkpoint_that_cannot_be_saved_ends_the_population(runner, monkeypatch):
    """Going on would lose what every session learns."""

    def refused(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    assert session(runner, 200).ended == "ready"
    monkeypatch.setattr(checkpoint, "complete", refused)
    with pytest.raises(
        WorkerLost,
        match=r"^member 00: not saved: checkpoint of update \d+: No space left on device; the disk is full: free .*$",
    ):
        session(runner)
    monkeypatch.undo()
    assert session(runner).ended == "done"


def test_a_warning_may_be_printed_while_a_session_prints(runner, capfd, monkeypatch):
    """In one thread both go to the same standard output."""

    def tick(self: Session, real: Any = Session._tick) -> None:
        print("polyplay: warning a lane is late")
        real(self)

    monkeypatch.setattr(Session, "_tick", tick)
    monkeypatch.setattr("polyplay.runs.session.TICK", 0.02)
    said: list[str] = []

    def say(kind: str, text: str) -> None:
        said.append(text)
        print(f"polyplay: warning {text}", file=sys.stdout)

    runner(founder(0, {"learning_rate": 1e-3}), 100, str, say)
    assert {*said} == {"member 00: a lane is late"}
    assert "polyplay: warning member 00: a lane is late" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("member", "changes", "more", "goes_on"),
    [
        ({"state": FAILED, "lost": True, "falls": 0}, {}, {}, (WAITING, 0)),
        ({"state": FAILED, "falls": DRAWS}, {}, {}, (FAILED, 0)),
        ({"state": FAILED, "falls": 3}, {}, {}, (FAILED, 3)),  # draws a donor by it, as if nothing was interrupted
        ({"state": TRAINING, "falls": 2}, {}, {}, (WAITING, 0)),
        ({"state": DONE}, {}, {}, (DONE, 0)),
        ({"state": DONE}, {"quiet": True}, {}, (DONE, 0)),
        ({"state": DONE}, {"until_return": 9.0}, {}, (WAITING, 0)),
        # killed after config.json had the new end, and resumed without saying it again
        ({"state": DONE}, {}, {"total": 500}, (WAITING, 0)),
    ],
)
def test_who_goes_on_when_a_population_does(member, changes, more, goes_on, tmp_path):
    store = begun(tmp_path / "run", plan_of())
    found = store.read()
    found["members"][0] |= member
    store.write(found)
    population_module._extend(store, plan_of(**more), changes)
    first, *others = store.read()["members"]
    assert (first["state"], first["falls"]) == goes_on
    assert {m["state"] for m in others} == {WAITING}
