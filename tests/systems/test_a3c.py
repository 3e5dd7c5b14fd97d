"""A3C learns however its workers run, keeps its recurrent state, outlives a worker, goes on, says what it cannot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch

from polyplay.core.errors import WorkerLost
from polyplay.workers.crew import Crew
from tests.systems.trained import kill_one_by_one, until, wired

CATCH = {"env": "toy:catch", "network": "mlp", "workers": 2}


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
    policy = wired("a3c", crew, **{**CATCH, **settings}).policy
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
    crew = Crew(seed=1, steps=10**9, log=lambda kind, text: said.append(text))
    wired("a3c", crew, **CATCH, optimizer="adam", optimizer_eps=1e-5)
    kill_one_by_one(crew)
    assert said == [f"worker episodic_replica {i} was killed by SIGKILL; a new one takes its place" for i in (0, 1)]


@pytest.mark.parametrize("on", ["thread", "process"])
def test_what_a_worker_raises_reaches_the_main_process(on):
    crew = Crew(seed=1, on=on, steps=10**9)
    wired("a3c", crew, **CATCH)
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
