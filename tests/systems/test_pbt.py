"""polyplay/systems/pbt.py over other systems, on toys: members are ordinary runs, and a hopeless one ends well."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.files import Row, read_object
from polyplay.population.rules import Evolution
from polyplay.population.store import DONE, FAILED, Segment, Store, ancestry, read_lineage
from polyplay.runs import flags
from polyplay.runs.directory import read_config
from polyplay.runs.load import crew_of
from polyplay.runs.options import RunOptions, resolve
from polyplay.runs.population import anew_of
from polyplay.systems import _presets
from polyplay.workers.crew import Crew
from tests.reports import rows

EVERY = 300
SMALL = {
    **{"network": "mlp", "lanes": 4, "unroll": 8, "replicas": 1, "actors": 1, "agents": 4, "predictors": 1},
    **{"trainers": 1, "schedule": "off", "capacity": 1000, "learning_starts": 64, "replay_workers": 1},
}
OF = {"impala": {"batch": 8}, "dqn": {"lanes": 1, "batch": 16}}
EXACT = {"serial": True, "at_once": 1}
NET = {"network": "mlp", "hidden": (16,), "tensorboard": False, "quiet": True}


def plan_of(c, crew):
    """As the page has it."""
    return _presets.plan_of(c, crew, Evolution(c.every, c.exploit, c.explore, _presets.priors_of(c)))


def train(over: str, path: Path, **more: Any) -> polyplay.Run:
    known = {f.name for f in fields(systems.load(over).Config)}
    small = {k: v for k, v in SMALL.items() if k in known} | OF.get(over, {}) | NET
    small |= {"env": "CartPole-v1", "preset": "paper", "population": 3, "every": EVERY, "steps": 3 * EVERY}
    small |= {"exploit": "tournament", "vary": ("learning_rate=log:1e-5:1e-2",)}
    given = small | more
    varied = {text.partition("=")[0] for text in given["vary"]}
    return polyplay.train("pbt", over=over, run=path / "run", **{k: v for k, v in given.items() if k not in varied})


def members(run: polyplay.Run) -> list[Row]:
    found: list[Row] = Store(run.directory).read()["members"]
    return found


def directory(run: polyplay.Run, i: int) -> Path:
    return Store(run.directory).member(i)


@pytest.mark.long
@pytest.mark.parametrize("over", ["impala", "dqn", "ga3c"])
def test_a_population_of_every_kind_of_system(over, tmp_path):
    """As processes: each member ends where --steps says, with two decisions behind it, and is a run as any other."""
    run = train(over, tmp_path)
    assert (run.exit_code, run.reason) == (0, "done")
    assert run.summary["steps"] == sum(m["steps"] for m in members(run)) >= 9 * EVERY
    assert [(m["state"], m["turns"]) for m in members(run)] == [(DONE, 2)] * 3
    lines = read_lineage(run.directory)
    assert [line["decision"] for line in lines] == list(range(9))
    assert [line["member"] for line in lines[:3]] == [0, 1, 2]
    for line in lines[3:]:
        copied = line["donor"] is not None
        assert copied or line["new"] == line["old"]  # a copy may give what it had before
        assert not copied or line["donor_score"] > line["score"]
    for i, m in enumerate(members(run)):
        last = rows(directory(run, i) / "metrics.jsonl")[-1]
        assert last["steps"] >= m["steps"] >= 3 * EVERY
        assert last["steps"] == m["steps"] or over == "ga3c"  # whose agents act on while it ends
        assert polyplay.evaluate(directory(run, i), episodes=2)["episodes"] == 2


CARTPOLE = dict(lanes=8, unroll=8, gamma=0.98, lam=0.98, reward_scale=0.1, anneal="constant", optimizer="adam")


@pytest.mark.long
def test_a_member_with_a_hopeless_rate_ends_with_a_winners_line(tmp_path):
    """Seed 71 draws 6e-8 for the first of two members and 4e-3 for the second."""
    more = dict(population=2, vary=("learning_rate=log:1e-9:1e-2",), exploit="truncation", seed=71, entropy_cost=0.0)
    run = train("a2c", tmp_path, **CARTPOLE, **EXACT, **more, hidden=(), every=8000, steps=24_000)
    lines = read_lineage(run.directory)
    hopeless, good = (line["new"]["learning_rate"] for line in lines[:2])
    assert hopeless < 1e-7
    assert 2e-3 < good < 8e-3
    oldest, newest = ancestry(lines, 0)
    assert (oldest.member, oldest.values) == (1, {"learning_rate": good})
    assert newest == Segment(0, newest.begin, newest.end, members(run)[0]["values"])
    assert newest.values["learning_rate"] / good in (pytest.approx(0.8), pytest.approx(1.2))
    copy = next(line for line in lines if line["donor"] == 1)
    assert copy["score"] < 30 < copy["donor_score"]  # random play: 22
    assert members(run)[0]["score"] > 60
    learnt = rows(directory(run, 0) / "metrics.jsonl")[-1]
    assert learnt["learning_rate"] == pytest.approx(newest.values["learning_rate"])


@pytest.mark.parametrize("exploit", ["truncation", "none"])
def test_a_member_whose_numbers_are_not_finite_copies_another_or_has_failed(exploit, tmp_path):
    """Its first founder's learning rate soon makes every weight infinite."""
    lists = {"vary": ("learning_rate=1e30,1e-3",), "exploit": exploit, "explore": "none"}
    run = train("a2c", tmp_path, **EXACT, **lists, population=2, optimizer="adam", seed=1)
    lines, (first, second) = read_lineage(run.directory), members(run)
    assert [line["new"]["learning_rate"] for line in lines[:2]] == [1e30, 1e-3]
    assert (run.exit_code, second["state"]) == (0, DONE)
    if exploit == "none":
        assert first["state"] == FAILED
        assert first["steps"] <= 100
        assert "gradient norm nan" in first["why"]
        return
    assert (first["state"], first["values"]) == (DONE, {"learning_rate": 1e-3})
    copy = next(line for line in lines if line["donor"] == 1)
    assert copy["member"] == 0
    assert copy["steps"] <= 100
    assert "gradient norm nan" in copy["why"]


@pytest.mark.parametrize("more", [{"core": "lstm"}, {"vary": ("unroll=5,8,16",)}])
def test_members_go_on_after_copies_with_a_recurrent_core_and_with_other_rollouts(more, tmp_path):
    run = train("a2c", tmp_path, **EXACT, **more, seed=1)
    assert (run.exit_code, run.summary["failed"]) == (0, 0)
    copied = [line for line in read_lineage(run.directory)[3:] if line["donor"] is not None]
    assert copied
    assert all(line["new"] != line["old"] or "vary" in more for line in copied)
    for m in members(run):
        config = read_config(directory(run, m["member"]))["config"]
        assert {k: config[k] for k in m["values"]} == m["values"]


@pytest.mark.long
def test_after_a_copy_the_parts_of_a_parameter_server_have_had_one_update_more(tmp_path):
    small = {"env": "toy:catch", "every": 120, "steps": 360, "lanes": 1, "batch": 16, "shards": 2}
    run = train("gorila", tmp_path, **EXACT, **small, seed=2)
    assert any(line["donor"] is not None for line in read_lineage(run.directory)[3:])
    for path in run.directory.glob("members/*/checkpoints/*"):
        learner = read_object(path / "agents/0/learner.json")
        assert learner["version"] == sum(learner["shards"]) // 2 == checkpoint.manifest(path)["update"], path


@pytest.mark.parametrize(
    ("vary", "anew"),
    [
        ("learning_rate=log:1e-4:1e-2", set()),
        ("anneal=linear,constant", set()),
        ("gamma=uniform:0.9:1", set()),
        ("unroll=5,8,16", {"unroll"}),
        ("lanes=4,8", {"lanes"}),
    ],
)
def test_lanes_begin_anew_only_where_their_number_or_their_rollouts_change(vary, anew):
    settings, crew = resolved(vary=(vary,), lanes=4)
    priors = dict(plan_of(settings, crew).evolution.priors)
    assert anew_of(settings, crew, priors, flags.option_types(type(settings))) == anew


def test_no_option_of_a_population_is_named_as_one_of_a_system_or_of_a_run():
    own = {f.name for f in fields(systems.load("pbt").Config)}
    assert "over" in own
    for name in systems.ordinary():
        assert not own & {f.name for f in fields(systems.load(name).Config)}, name
    assert not own & {f.name for f in fields(RunOptions)}


def resolved(**given: Any) -> tuple[Any, Crew]:
    settings, options, _ = resolve(systems.page_of("pbt", "a2c"), env="toy:catch", network="mlp", steps=1000, **given)
    return settings, crew_of(options)


def grid(**given: Any) -> list[tuple[Any, ...]]:
    return [tuple(values.values()) for values in plan_of(*resolved(**given)).founders()]


def test_lists_alone_without_an_exploit_rule_are_a_grid():
    lists = ("learning_rate=1e-3,1e-2", "unroll=5,8,16")
    assert grid(vary=lists, exploit="none") == list(product([1e-3, 1e-2], [5, 8, 16]))
    assert len(grid(vary=lists, exploit="none", population=4)) == 4
    assert (len(grid(vary=(*lists, "gamma=uniform:0.9:1"), exploit="none")), len(grid(vary=lists))) == (8, 8)
