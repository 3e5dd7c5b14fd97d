"""Learners of AlphaGo Zero that average their gradients: the paper's 64 of 32 positions each, here two."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch
from polyplay.envs import Envs
from polyplay.games.boards import GAMES
from polyplay.learning.learner import Learner, LearnerSpec
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.systems._alphago_zero import learner_spec_of
from polyplay.workers.crew import Crew
from tests.systems.test_alphago_zero import SMALL
from tests.weights.ends import finish, me

BOARD, BATCH, UPDATES = GAMES["tic_tac_toe"], 16, 6
CONFIG: Any = {"env": "game:tic_tac_toe", "blocks": 1, "filters": 8, "batch": BATCH, "drops": (3, 5)}


def positions(update: int, n: int) -> Batch:
    """As a replay draws them."""
    rng = np.random.default_rng(update)
    planes = rng.random((2, n, *BOARD.planes)) < 0.4
    mask = rng.random((2, n, BOARD.actions)) < 0.6
    mask[..., 0] = True
    visits = rng.random((n, BOARD.actions)) * mask[0]
    rows: Batch = {"obs": np.packbits(planes.reshape(2, n, -1), axis=2), "mask": mask, "action": np.zeros(n, np.int64)}
    rows |= {"visits": (visits / visits.sum(1, keepdims=True)).astype(np.float32), "version": np.zeros(n, np.int64)}
    return rows | {"return": rng.integers(-1, 2, n).astype(np.float32)}


def part(rows: Batch, at: slice) -> Batch:
    return {k: np.ascontiguousarray(v[:, at] if k in ("obs", "mask") else v[at]) for k, v in rows.items()}


HALVES = slice(0, BATCH // 2), slice(BATCH // 2, BATCH)


def learn(learner: Learner, at: slice = slice(None)) -> list[torch.Tensor]:
    """The whole vector after each update."""
    found = []
    for update in range(UPDATES):
        finish(learner.step_on_sample(part(positions(update, BATCH), at)))
        found.append(learner.vector.flat.clone())
    return found


def plain_updates(net: Any, spec: LearnerSpec) -> list[torch.Tensor]:
    """The parameters after each update by torch's own SGD, with the mean gradient of both halves of a batch."""
    sgd, found = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=2e-4), []
    for update in range(UPDATES):
        sgd.param_groups[0]["lr"] = 0.01 * 0.1 ** ((update >= 3) + (update >= 5))
        losses = []
        for half in HALVES:  # a forward pass each, normalised by its own statistics
            rows = {k: torch.from_numpy(v) for k, v in part(positions(update, BATCH), half).items()}
            out = spec.outputs(net, None, rows, None, key=update)
            losses.append(spec.loss(out, rows, spec.hyperparameters).loss)
        sgd.zero_grad()
        (sum(losses) / 2).backward()
        sgd.step()
        found.append(torch.cat([p.detach().ravel() for p in net.parameters()]))
    return found


def test_two_learners_of_half_the_batch_make_the_updates_of_one():
    page, envs = systems.load("alphago_zero"), Envs("game:tic_tac_toe", 1)
    c = page.Config(**CONFIG, learners=2)
    policy = BoardNetworkFactory(envs.spec, c.blocks, c.filters)
    spec = learner_spec_of(c, policy, BOARD, 1e6, seed=7)
    learners = [Learner(me(i, 2), spec) for i in (0, 1)]
    twin = copy.deepcopy(learners[0].policy)
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(learn, learners, HALVES)
    assert all(map(torch.equal, one, two)), "running statistics too"
    weights = learners[0].vector.weights
    for ours, expected in zip(one, plain_updates(twin, spec), strict=True):
        torch.testing.assert_close(ours[:weights], expected, atol=1e-6, rtol=1e-5)
    whole = learn(Learner(me(), learner_spec_of(replace(c, learners=1), policy, BOARD, 1e6, seed=7)))
    assert (whole[0] - one[0])[:weights].abs().max() > 1e-4, "one batch has one statistic"


@pytest.mark.parametrize("on", ["thread", pytest.param("process", marks=pytest.mark.long)])
def test_it_learns_with_two_learners(on: str, tmp_path: Path):
    settings = {**SMALL, "precision": "float32", "learners": 2, "batch": 128, "ratio": 4.0}
    run = polyplay.train("alphago_zero", run=str(tmp_path / "run"), **settings, steps=6_000, on=on)
    assert run.reason == "done"
    page = systems.load("alphago_zero")
    config = page.Config(**{k: v for k, v in settings.items() if k not in ("tensorboard", "report_every", "precision")})
    assert "AllReduce(sgd) of 2" in diagram("alphago_zero", config, RunOptions())
    assert run.summary["updates"] > 100
    assert polyplay.evaluate(run.directory, episodes=64)["episodic_return_mean"] > 0.6, "against random moves"
    again = polyplay.resume(run.directory, steps=7_000)
    assert again.summary["steps"] >= 7_000


def test_a_batch_is_divided_evenly():
    page = systems.load("alphago_zero")
    with pytest.raises(UserError, match="--batch 100 does not divide among --learners 3: make it a multiple"):
        page.build(page.Config(**{**CONFIG, "batch": 100, "learners": 3}), Crew(0))
