"""Past selves: when they are made, and what a run that goes on leaves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from polyplay.core.checkpoint import read_self, self_path
from polyplay.learning.agents import PastSelves


class Posted:
    def __init__(self) -> None:
        self.busy, self.versions = False, list[int]()

    def post(self, agent: int, version: int) -> int | None:
        if self.busy:
            return None
        self.versions.append(version)
        return len(self.versions)


def made(directory: Any, league: Posted, version: int = 0) -> tuple[PastSelves, Any]:
    learner = SimpleNamespace(spec=SimpleNamespace(agent=1), version=version, policy=nn.Linear(1, 1, bias=False))
    ctx: Any = SimpleNamespace(directory=directory, say=lambda *words: None)
    return PastSelves(ctx, learner, league, 3), learner  # type: ignore[arg-type]


def updates(past: PastSelves, learner: Any, until: int) -> None:
    while learner.version < until:
        learner.version += 1
        with torch.no_grad():
            learner.policy.weight.fill_(learner.version)
        past.look()


def test_one_is_made_every_so_many_updates_and_posted_once_there_is_room(tmp_path):
    league = Posted()
    past, learner = made(tmp_path, league)
    updates(past, learner, 3)
    league.busy = True
    updates(past, learner, 10)
    assert league.versions == [3]
    league.busy = False
    updates(past, learner, 13)
    assert league.versions == [3, 6, 12], "6 waited; what was due meanwhile was made as soon as it was known"
    assert read_self(self_path(tmp_path, 1, 6))["weight"].item() == 6


def test_a_run_that_goes_on_leaves_past_selves_of_the_time_that_was_lost_as_they_were(tmp_path):
    league = Posted()
    past, learner = made(tmp_path, league)
    updates(past, learner, 9)
    before = {v: read_self(self_path(tmp_path, 1, v))["weight"] for v in (3, 6, 9)}
    past, learner = made(tmp_path, league, version=3)
    updates(past, learner, 13)
    assert league.versions == [3, 6, 9, 7, 10, 13]
    for version, weight in before.items():
        np.testing.assert_array_equal(read_self(self_path(tmp_path, 1, version))["weight"], weight)
