"""Systems that learn policies: lags and passes, who is lost and replaced, and how runs go on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import WorkerLost
from polyplay.core.files import read_lines
from polyplay.learning import Loss
from polyplay.workers.autoscale import schedule
from polyplay.workers.crew import Crew
from tests.reports import rows
from tests.systems import settings as of
from tests.systems.trained import kill_one_by_one, same_weights, until, updates, wired

CATCH = {"env": "toy:catch", "network": "mlp", "workers": 2}


def test_rate_and_clip_range_fall_from_rollout_to_rollout(tmp_path):
    settings = {**of.PPO, "anneal": "linear", "replicas": 1, "serial": True, "report_every": 1e-3}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), steps=1_024, **settings)
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(lines) if "clip_range" in line)  # a line may be of no update that reports
    assert last["clip_range"] / 0.2 == pytest.approx(last["learning_rate"] / 3e-3)
    assert 0.0 <= last["clip_range"] / 0.2 < 1.0, "a mean since the report before"


@pytest.mark.parametrize(
    ("system", "settings", "each"),
    [
        ("accel", of.ACCEL, 1),
        ("accel", of.ACCEL_PPO, 4),
        ("ppo", {**of.PPO, "replicas": 2, "epochs": 2, "minibatches": 4}, 8),
    ],
    ids=["accel a2c", "accel ppo", "ppo"],
)
def test_replicas_stay_equal_to_the_bit_and_lag_is_the_passes(system, settings, each, tmp_path):
    given = {**settings, "steps": 1_000, "trace": True}
    run = polyplay.train(system, serial=True, run=str(tmp_path / "run"), **given)
    rows = updates(run)
    assert len(rows) >= 4
    assert len(rows) % each == 0
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["lag_max"] for row in rows] == list(range(each)) * (len(rows) // each)
    assert [row["lag_mean"] for row in rows] == [row["lag_max"] for row in rows], "of both groups"
    again = polyplay.train(system, serial=True, run=str(tmp_path / "again"), **given)
    assert updates(again) == rows
    apart = polyplay.train(system, on="thread", run=str(tmp_path / "apart"), **given)
    assert same_weights(run, apart), "whoever came first"


def test_groups_change_nothing_but_who_waits(tmp_path):
    """Noise is a lane's, whatever its group; in step with 1, 2 or 4 groups all lanes learn the same."""
    runs = []
    for groups in (1, 2, 4):
        settings = {**of.ACCEL, "groups": groups, "replicas": 1, "steps": 1_500, "normalize_advantage": False}
        runs.append(polyplay.train("accel", serial=True, trace=True, run=str(tmp_path / str(groups)), **settings))
    losses = [[row["loss"] for row in updates(r)] for r in runs]
    assert len(losses[0]) >= 10
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("system", "settings", "steps"), [("a3c", of.A3C, 400), ("accel", {**of.ACCEL, "sync": "chunked"}, 1_500)]
)
def test_without_a_lock_it_goes_on_from_its_counts_with_new_games(system, settings, steps, tmp_path, capfd):
    run = polyplay.train(system, run=str(tmp_path / "run"), on="thread", steps=steps, **settings)
    first = json.loads((checkpoint.everything(run.directory)[-1] / "agents/0/learner.json").read_text())
    assert steps - 9 <= first["learnt"] < steps + 400
    assert first["version"] >= 15
    capfd.readouterr()
    again = polyplay.resume(str(run.directory), steps=2 * steps)
    assert "all lanes restart, from seed" in capfd.readouterr().err
    assert again.exit_code == 0
    last = json.loads((checkpoint.everything(run.directory)[-1] / "agents/0/learner.json").read_text())
    assert 2 * steps - 9 <= last["learnt"] < 2 * steps + 400
    assert last["version"] >= first["version"] + 15


@pytest.mark.parametrize(("system", "role"), [("a3c", "actor_learner"), ("accel", "replica")])
def test_a_killed_worker_is_replaced_and_the_run_goes_on_from_where_it_was(system, role):
    said: list[str] = []
    crew = Crew(seed=1, steps=10**9, log=lambda kind, text: said.append(text))
    settings = {**of.CHUNKED, **CATCH, "optimizer": "adam", "optimizer_eps": 1e-5, "replicas": 2}
    wired(system, crew, **{**settings, **({} if system == "accel" else {"learning_rate": 7e-4})})
    update: Any = crew.roles[0].spec.update
    kill_one_by_one(crew)
    assert said == [f"worker {role} {i} was killed by SIGKILL; a new worker replaces it" for i in (0, 1)]
    if system == "a3c":
        return
    counters, done = update.counters[:, :2], update.done
    assert done.max() - done.min() <= 4, "of the two that died in an update, and of two at the end, some chunks"
    assert abs(int(done.min()) - int(counters[:, 0].sum())) <= 4


# a lag of five updates, on a busy machine, makes larger learning rates unstable


def test_at_lag_0_rows_are_as_old_as_the_pass(tmp_path):
    settings = {**of.APPO, "lag": 0, "steps": 1_500, "trace": True, "epochs": 3}
    run = polyplay.train("appo", on="thread", run=str(tmp_path / "run"), **settings)
    rows = updates(run)
    batches = len(rows) // 6
    assert batches in (11, 12), "of 144 steps, a few of them from one episode to the next"
    assert [row["update"] for row in rows] == list(range(1, batches * 6 + 1))
    assert [row["lag_max"] for row in rows] == list(range(6)) * batches
    again = polyplay.train("appo", serial=True, run=str(tmp_path / "again"), **settings)
    assert [(r["update"], r["loss"]) for r in updates(again)] == [(r["update"], r["loss"]) for r in rows]


@pytest.mark.parametrize(
    ("more", "batches"),
    [({"lag": 1}, 1), ({"actors": 1, "lanes": 4, "batch": 4, "slots": 3}, 3)],
    ids=["1", "free"],
)
def test_rows_are_older_by_whole_batches(more, batches, tmp_path):
    """Nobody acts with the weights of a pass's middle. Free: one slot is being filled, two are full."""
    settings = {**of.APPO, **more, "steps": 1_500, "trace": True}
    run = polyplay.train("appo", on="thread", run=str(tmp_path / "run"), **settings)
    lags = [row["lag_max"] for row in updates(run)]
    assert all(lag % 4 == i % 4 for i, lag in enumerate(lags)), "it acts with the weights between batches only"
    assert max(lags) <= 4 * batches + 3
    reported = [row["lag_max"] for row in read_lines(run.directory / "metrics.jsonl") if row["lag_max"] is not None]
    assert max(reported) == max(lags)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    "wiring",
    [
        {"actors": 3, "lanes": 2, "batch": 2, "epochs": 1, "minibatches": 1},
        {"actors": 3, "lanes": 2, "batch": 6, "epochs": 3, "minibatches": 2},
        {"actors": 4, "lanes": 1, "batch": 4, "learners": 2, "epochs": 2, "minibatches": 2},
        {"actors": 2, "lanes": 4, "batch": 4, "slots": 3, "epochs": 2, "minibatches": 3},
    ],
    ids=str,
)
def test_rounds_count_batches_whatever_their_updates(wiring, lag, tmp_path):
    """Rounds are what actors wait for: if updates were counted in their place, all would wait or run too far ahead."""
    settings = {**of.QUIET, "env": "toy:catch", "anneal": "constant", "unroll": 5, "steps": 600, "trace": True}
    settings |= {"lag": lag, **wiring}
    run = polyplay.train("appo", serial=True, run=str(tmp_path / "run"), **settings)
    assert run.exit_code == 0
    each = wiring["epochs"] * wiring["minibatches"]
    taken = wiring["batch"] // wiring["lanes"]  # rollouts in a batch
    apart = -(-wiring["actors"] // taken) - 1  # batches that a round is made of, less one
    assert run.summary["steps"] >= 600
    assert run.summary["updates"] % each == 0
    assert max(row["lag_max"] for row in updates(run)) <= each * (lag * (apart + 1) + apart) + each - 1


@pytest.mark.parametrize("lag", [1, -1])
def test_ahead_it_goes_on_with_what_was_in_flight(lag, tmp_path, capfd):
    settings = {**of.APPO, "lag": lag, "on": "thread", "trace": True}
    run = polyplay.train("appo", run=str(tmp_path / "run"), steps=1_000, **settings)
    before = len(updates(run))
    capfd.readouterr()
    more = polyplay.resume(run.directory, steps=2_000)
    assert "lanes restart" not in capfd.readouterr().err
    assert [row["update"] for row in updates(more)] == list(range(1, len(updates(more)) + 1))
    assert len(updates(more)) >= before + 20


@dataclass(frozen=True)
class Kept(Loss):
    """A loss that keeps the rows and the state before them."""

    inner: Any
    seen: list = field(default_factory=list, hash=False, compare=False)
    metrics = ()

    def __call__(self, policy, target, batch, state, hyper):
        out = policy.unroll(batch, state)
        said = {k: v.detach() for k, v in out.items()}
        self.seen.append(({k: v.clone() for k, v in (batch | {"value": said["value"]}).items()}, said))
        return self.inner.score(out, batch, hyper)


def test_the_recurrent_state_goes_through_updates_and_the_bootstrap_does_not_advance_it():
    """With weights that stay as they are, all rollouts are one unroll from nothing, each row taken once."""
    crew = Crew(seed=3, serial=True, steps=100)
    settings = {"env": "toy:memory", "core": "lstm", "core_size": 8, "workers": 1, "learning_rate": 0.0, "unroll": 3}
    policy = wired("a3c", crew, **{**CATCH, **settings}).policy
    spec = crew.roles[0].spec
    loss = Kept(spec.loss)
    crew.roles[0] = crew.roles[0].holding(spec=replace(spec, loss=loss))
    crew.start(())
    while not crew.poll(0.05):
        pass
    crew.stop()
    batches = [b for b, _ in loss.seen]
    assert len(batches) >= 20
    own = [_own(b) for b in batches]
    for (before, after), n in zip(pairwise(batches), own, strict=False):
        if n == 3:
            assert torch.equal(before["obs"][-1], after["obs"][0]), "the last row is the next rollout's first"
            assert torch.allclose(before["value"][-1], after["value"][0], atol=1e-6), "and has the value it says there"
            assert before["action"][-1] == before["logp"][-1] == 0, "where it ends a rollout nothing is said"
    rows = {k: torch.cat([b[k][:n] for b, n in zip(batches, own, strict=True)]) for k in batches[0]}
    assert 5 < int(rows["first"].sum()) < len(rows["first"]) / 2
    assert {int(b["first"][0]) for b in batches} == {0, 1}, "some rollouts begin in mid-episode"
    torch.manual_seed(3)
    whole = policy()
    out = whole.unroll(rows, whole.initial(1))
    assert torch.allclose(out["value"], rows["value"], atol=1e-6)
    learnt = torch.cat([o["value"][:n] for (_, o), n in zip(loss.seen, own, strict=True)])
    assert torch.allclose(out["value"], learnt, atol=1e-6)


def _own(batch) -> int:
    """Rows of a rollout that are not the next one's: all but the last, or, where its episode ended, all but padding."""
    padding = batch["first"][1:, 0].nonzero()
    return int(padding[0]) + 1 if len(padding) else len(batch["first"]) - int(not batch["terminated"][-1])


@pytest.mark.parametrize("on", ["thread", "process"])
def test_what_a_worker_raises_reaches_the_main_process(on):
    crew = Crew(seed=1, on=on, steps=10**9)
    wired("a3c", crew, **CATCH)
    spec = crew.roles[0].spec
    crew.roles[0] = crew.roles[0].holding(spec=replace(spec, loss=Fails()))
    crew.start(())
    try:
        with pytest.raises(WorkerLost, match=r"(?s)worker actor_learner \d raised .*a bad day"):
            until(crew, lambda: False, 60.0)
    finally:
        crew.stop()


class Fails(Loss):
    def __call__(self, policy, target, batch, state, hyper):
        raise ValueError("a bad day")


def test_reports_say_what_was_served_and_learnt_at_once(tmp_path):
    settings = {"predict_batch": 4, "predictors": 1, "trainers": 1, "min_batch": 0}
    run = polyplay.train("ga3c", env="toy:catch", steps=2_000, run=str(tmp_path / "run"), **{**of.GA3C, **settings})
    found = [row for row in rows(run.directory / "metrics.jsonl") if row["predict_batch"] is not None]
    assert {row[f"predict_batch_p{q}"] for row in found for q in (10, 90)} == {4.0}
    assert all(1.0 <= row["train_batch_p10"] <= row["train_batch_p90"] <= 5.0 for row in found if row["train_batch"])


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    where = str(tmp_path / "run")
    run = polyplay.train("ga3c", env="toy:catch", steps=3_000, run=where, **of.GA3C)
    more = polyplay.resume(run.directory, steps=6_000)
    assert more.exit_code == 0
    assert more.summary["steps"] >= 6_000
    assert more.summary["updates"] > run.summary["updates"]


def test_a_run_is_evaluated_with_many_lanes_in_step(tmp_path):
    settings = {
        **of.GA3C,
        "agents": 3,
        "predict_batch": 2,
        "schedule": "annealing",
    }  # few served at once, not all lanes there
    run = polyplay.train("ga3c", env="CartPole-v1", steps=500, run=str(tmp_path / "run"), **settings)
    result = run.evaluate(episodes=20)
    assert result["episodes"] == len(result["returns"]) == 20
    assert 8.0 <= result["episodic_return_mean"] <= 500.0


def test_the_scheduler_decides_and_says_so(tmp_path, monkeypatch):
    def hurried(ctx, *, dials):
        return schedule(ctx, dials=dials, interval=0.3)

    monkeypatch.setattr("polyplay.systems.ga3c.schedule", hurried)
    settings = {"schedule": "annealing", "agents": 4, "predictors": 1, "trainers": 1}
    run = polyplay.train("ga3c", env="CartPole-v1", steps=12_000, run=str(tmp_path / "run"), **{**of.GA3C, **settings})
    assert run.exit_code == 0
    decisions = list(read_lines(run.directory / "decisions.jsonl"))
    assert decisions
    for row in decisions:
        assert set(row["from"]) == set(row["to"]) == {"agents", "act", "learn"}
        assert isinstance(row["kept"], bool)
