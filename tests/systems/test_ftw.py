"""FTW as users run it: it learns, acting is learning to the bit, agents evolve and go on, and what cannot be is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay.acting.play import PlayOptions
from polyplay.acting.team_match import play_both_sides, policy_player, random_player
from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import read_lines
from polyplay.envs import Envs
from polyplay.evaluation.agent import load_agent
from polyplay.learning.losses.auxiliary import WithAuxiliary
from polyplay.systems import _ftw, ftw

TEAMS: dict[str, Any] = {
    "env": "toy:skirmish",
    "points": ("kill=1", "death=-0.5"),
    "network": "mlp",
    "core_size": 16,
    "lanes": 16,
    "batch": 4,
    "unroll": 8,
    "memory": 0,
    "optimizer": "adam",
    "normalize_advantage": True,
    "tensorboard": False,
}
PAIR: dict[str, Any] = {**TEAMS, "agents": 2, "players": 2, "batch": 8, "evolve": False, "serial": True}


@pytest.mark.parametrize("period", [1, 5, 19])
def test_acting_is_learning_to_the_bit(period, tmp_path, monkeypatch):
    """Over 300 updates, with matches that end in mid-cycle and rollouts that begin between ticks."""
    seen = 0
    scored = WithAuxiliary.__call__

    def check(self: WithAuxiliary, out: Any, batch: Any, hyperparameters: Any) -> Any:
        nonlocal seen
        seen += 1
        for name in ("logp", "value"):
            assert torch.equal(out[name], batch[name]), (seen, name)
        return scored(self, out, batch, hyperparameters)

    monkeypatch.setattr(WithAuxiliary, "__call__", check)
    given = {**PAIR, "lag": 0, "lanes": 8, "batch": 4, "unroll": 19, "vary": (f"period={period}",)}
    polyplay.train("ftw", run=str(tmp_path / "run"), steps=26_000, **given)
    assert seen >= 300


@pytest.mark.parametrize("on", ["thread", "process"])
def test_a_population_learns_to_win(on, tmp_path):
    given = {**TEAMS, "agents": 2, "players": 2, "batch": 16, "lanes": 32, "evolve": False, "vary": ("learning_rate=3e-3", "kl_posterior_cost=1e-3", "period=3")}
    run = polyplay.train("ftw", run=str(tmp_path / "run"), steps=60_000, on=on, **given)
    player = policy_player(load_agent(run.directory)._policy, PlayOptions(1, 3))
    points = play_both_sides(Envs("toy:skirmish", 4), player, random_player(7), 100, 1)
    assert points.mean() > 0.8
