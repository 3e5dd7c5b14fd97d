"""Systems of action values with masks and dict observations, as threads and as processes; what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.nets.factory import build_network
from polyplay.runs import options as config
from polyplay.workers.crew import Crew
from tests.games.traits import NAME as TRAITS
from tests.systems import traits_matrix as matrix

NET: Any = {
    "env": f"{TRAITS}+mask+dict",
    "network": "mlp",
    "tensorboard": False,
    "report_every": 1.0,
    "steps": 600,
}
SOME: Any = {"batch": 16, "capacity": 2_000, "start": 100, "target": 5, "ratio": 2.0, "lanes": 4, "unroll": 4}
R2D2: Any = {"actors": 1, "sequence": 4, "burn_in": 2, "n_step": 2, "core_size": 16}
OF: Any = {
    "accel_dqn": {"replicas": 2},
    "apex": {"memories": 2},
    "dqn": {},
    "gorila": {"learners": 2},
    "rainbow": {},
    "r2d2": R2D2,
}


RUNS: Any = [(name, OF[name] | {"on": "thread"}) for name in matrix.VALUES]
RUNS += [("dqn", {"on": "process"}), ("gorila", {"on": "thread", "learners": 2, "actors": 2, "memories": 2})]


@pytest.mark.parametrize(("system", "more"), RUNS)
def test_it_trains_with_masks_and_dicts(system, more, tmp_path):
    given = {**NET, **SOME, **more}
    run = polyplay.train(system, run=str(tmp_path / "run"), **given)
    assert run.exit_code == 0
    assert run.summary["updates"] >= 5
    assert run.summary["episodic_return_mean"] >= 0.0, "an illegal action gives -1"
    page = systems.load(system)
    chosen, options, _ = config.resolve(page, **given)
    fresh = build_network(page.build(chosen, Crew(options.seed)).policy, options.seed).state_dict()
    now = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")
    assert all(np.isfinite(v).all() for v in now.values())
    assert any((v != fresh[k].numpy()).any() for k, v in now.items())


@pytest.mark.parametrize("env", [f"{TRAITS}+continuous", f"{TRAITS}+hybrid"])
@pytest.mark.parametrize("system", matrix.VALUES)
def test_actions_that_are_no_choice_are_refused(system, env):
    page = systems.load(system)
    with pytest.raises(UserError, match="needs discrete actions, this has"):
        page.build(page.Config(env=env, network="mlp"), Crew())
