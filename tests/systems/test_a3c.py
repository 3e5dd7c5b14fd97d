"""A3C learns however its workers run, keeps its recurrent state, outlives a worker, goes on, says what it cannot."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import read_lines
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.runs.reproduce import reproduce
from polyplay.runs.run import diagram
from polyplay.workers.crew import Crew
from tests.systems.trained import kill_one_by_one, until

NET = {
    "network": "mlp",
    "optimizer": "adam",
    "optimizer_eps": 1e-5,
    "max_grad_norm": 1.0,
    "tensorboard": False,
    "report_every": 0.5,
}
CATCH = {**NET, "env": "toy:catch", "workers": 2, "unroll": 9, "lam": 0.95, "learning_rate": 2e-3, "anneal": "constant"}


def a3c(**settings: Any) -> Any:
    return systems.load("a3c").Config(**{"env": "toy:catch", "network": "mlp", "workers": 2, **settings})


def wired(crew: Crew, **settings: Any) -> Any:
    return systems.load("a3c").build(a3c(**settings), crew)


SERIAL = pytest.param({"serial": True}, marks=pytest.mark.long)


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}, SERIAL])
def test_it_learns_catch(how, tmp_path):
    run = polyplay.train("a3c", run=str(tmp_path / "run"), steps=80_000, until_return=0.2, **CATCH, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.2  # random play: -0.6
    rows = list(read_lines(run.directory / "metrics.jsonl"))
    if "on" in how:  # in one thread a turn is a whole rollout and its update
        assert 0.3 <= rows[-1]["lag_mean"] <= 3.0, "the other worker's updates meanwhile"


@pytest.mark.long
@pytest.mark.parametrize(("core", "least", "most"), [("lstm", 0.8, 1.0), ("none", -1.0, 0.5)])
def test_memory_is_learnt_with_a_core_and_not_without(core, least, most, tmp_path):
    settings = {**NET, "env": "toy:memory", "workers": 2, "unroll": 8, "learning_rate": 3e-3, "core_size": 16}
    run = polyplay.train("a3c", core=core, serial=True, steps=6_000, run=str(tmp_path / "run"), **settings)
    assert least <= run.summary["episodic_return_mean"] <= most


@pytest.mark.long
def test_the_papers_optimiser_learns_too(tmp_path):
    paper = {
        "optimizer": "rmsprop_a3c",
        "learning_rate": 1e-2,
        "optimizer_eps": 0.1,
        "max_grad_norm": 40.0,
        "unroll": 5,
        "lam": 1.0,
    }
    run = polyplay.train("a3c", serial=True, steps=20_000, run=str(tmp_path / "run"), **{**CATCH, **paper})
    assert run.summary["episodic_return_mean"] >= 0.2


@dataclass(frozen=True)
class Kept:
    """A loss that keeps the rows and the state before them."""

    inner: Any
    seen: list = field(default_factory=list, hash=False, compare=False)
    metrics: ClassVar[tuple[str, ...]] = ()

    def __call__(self, out, batch, hyperparameters):
        self.seen.append(({k: v.clone() for k, v in batch.items()}, {k: v.detach() for k, v in out.items()}))
        return self.inner(out, batch, hyperparameters)


def test_the_recurrent_state_goes_through_updates_and_the_bootstrap_does_not_advance_it():
    """With weights that stay as they are, all rollouts are one unroll from nothing, each row taken once."""
    crew = Crew(seed=3, serial=True, steps=100)
    settings = {"env": "toy:memory", "core": "lstm", "core_size": 8, "workers": 1, "learning_rate": 0.0, "unroll": 3}
    policy = wired(crew, **settings).policy
    spec = crew.roles[0].spec
    loss = Kept(spec.loss)
    crew.roles[0].spec = replace(spec, loss=loss)
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


def test_a_killed_worker_is_replaced_and_the_run_goes_on_from_where_it_was():
    said: list[str] = []
    crew = Crew(seed=1, steps=10**9, say=lambda kind, text: said.append(text))
    wired(crew, optimizer="adam", optimizer_eps=1e-5)
    kill_one_by_one(crew)
    assert said == [f"worker episodic_replica {i} was killed by SIGKILL; a new one takes its place" for i in (0, 1)]


@pytest.mark.parametrize("on", ["thread", "process"])
def test_what_a_worker_raises_reaches_the_main_process(on):
    crew = Crew(seed=1, on=on, steps=10**9)
    wired(crew)
    spec = crew.roles[0].spec
    crew.roles[0].spec = replace(spec, loss=fails)
    crew.start(())
    try:
        with pytest.raises(WorkerLost, match=r"(?s)worker episodic_replica \d raised .*a bad day"):
            until(crew, lambda: False, 60.0)
    finally:
        crew.stop()


def fails(out, batch, hyperparameters):
    raise ValueError("a bad day")


def test_a_run_goes_on_from_its_counts(tmp_path, capfd):
    kw = {**CATCH, "on": "thread"}
    run = polyplay.train("a3c", run=str(tmp_path / "run"), steps=1500, **kw)
    found = checkpoint.everything(run.directory)[-1]
    first = json.loads((found / "agents/0/learner.json").read_text())
    assert first["learnt"] >= 1500 - 9
    assert first["version"] >= first["learnt"] / 9
    capfd.readouterr()
    again = polyplay.resume(str(run.directory), steps=3000)
    assert "all lanes begin anew, from seed" in capfd.readouterr().err
    assert 3000 <= again.summary["steps"] < 3100
    last = json.loads((checkpoint.everything(run.directory)[-1] / "agents/0/learner.json").read_text())
    assert last["learnt"] >= 3000 - 9
    assert last["version"] == pytest.approx(first["version"] * 2, rel=0.1)
    assert again.summary["updates"] >= last["version"]


def test_in_one_thread_it_repeats_to_the_bit_and_is_not_replayed(tmp_path):
    kw = {**CATCH, "steps": 600, "trace": True, "serial": True}
    for name in ("a", "b"):
        polyplay.train("a3c", run=str(tmp_path / name), **kw)
    one, two = ((tmp_path / name / "updates.jsonl").read_text() for name in ("a", "b"))
    assert one == two
    assert one.count("\n") >= 30
    with pytest.raises(UserError, match=r"a3c's workers change the weights without a lock.*--serial repeats") as e:
        reproduce(tmp_path / "a")
    assert "\n" not in str(e.value)


def test_the_figure_and_the_plan_say_what_is_shared():
    figure = diagram("a3c", a3c(optimizer="rmsprop_a3c"), RunOptions())
    assert "episodic_replica × 2" in figure
    assert "Hogwild(rmsprop_a3c), no lock" in figure
    assert "if lost replace" in figure
    assert "weights and rmsprop_a3c's square ──► episodic_replica" in figure
    crew = Crew(0, steps=1000)
    made = dict(plan.make_plan(crew, wired(crew), RunOptions(steps=1000)).lines)
    assert made["updates"] == "about 200 updates of 5 rows"
    assert made["repeat"].startswith("not bitwise")
    assert made["resume"].endswith("while workers change them; environments start new episodes")
    alone = Crew(0, steps=1000)
    repeat = dict(plan.make_plan(alone, wired(alone, workers=1), RunOptions(steps=1000)).lines)["repeat"]
    assert repeat.startswith("bitwise reproducible")


def test_memory_counts_the_shared_weights_and_statistics_once():
    from polyplay.runs import plan

    crew = Crew(0, steps=1000)
    system = wired(crew, optimizer="adam", workers=3)
    net = plan.bytes_of(system.policy())
    told = plan.predict_memory(crew, system.policy())["weights"]
    assert told == pytest.approx((3 * 2 + 1 + 2) * net, abs=1024)
