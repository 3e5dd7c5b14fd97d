from __future__ import annotations

import numpy as np
import pytest

import polyplay
from polyplay.envs import Envs, check
from polyplay.envs.check import run_watched
from polyplay.envs.lane import LaneJob
from tests.envs import broken, vectors
from tests.games.traits import NAME as TRAITS


def test_a_pool_is_driven_whatever_its_actions_are():
    pool = Envs(broken.Sound, 4, workers=2).open(0)
    assert check.steps_per_second(pool, 0.1) > 0
    pool.close()
    with pytest.raises(Exception, match=r"Sound, lane|OneSeed, lane"):
        check.steps_per_second(Envs(broken.OneSeed, 4, workers=2).open(0), 0.1)


class Choosy(broken.Sound):
    """Raises at an action that its mask, in info, forbids."""

    def reset(self, **kw):
        self.legal = 0
        return super().reset(**kw)[0], {"action_mask": np.array([1, 0], np.int8)}

    def step(self, action):
        assert action == self.legal
        self.legal = 1 - self.legal
        return *super().step(action)[:-1], {"action_mask": np.eye(2, dtype=np.int8)[self.legal]}


def test_random_actions_keep_to_masks(monkeypatch: pytest.MonkeyPatch):
    pool = Envs(Choosy, 2, workers=1, max_restarts=0).open(0)
    sent, send = [], pool.send
    monkeypatch.setattr(pool, "send", lambda lanes, action: (sent.append(action.tolist()), send(lanes, action)))
    assert check.steps_per_second(pool, 0.1) > 0
    assert sent[:8] == [[t % 2] * 2 for t in range(8)], "the one that is legal"
    assert pool.restarts == 0
    pool.close()


@pytest.mark.parametrize("name", [f"{TRAITS}+mask+hybrid", "toy:catch", "toy:pendulum", "ALE/Pong-v5"])
def test_polyplays_own_pools_keep_to_the_rules(name: str):
    envs = Envs(name, 1)
    job = LaneJob(b"", name, envs.spec, 3, 0, 60.0)
    tried, again = (run_watched(check.run_pool_trial, job, 60, 60.0, envs) for _ in range(2))
    assert (tried.broke, tried.whole, tried.facts.steps) == ({}, True, 60)
    assert tried.facts.prints == again.facts.prints
    if name == "toy:catch":
        assert set(tried.facts.ends) == {(9, True)}


def test_flaws_of_rows():
    envs = Envs("toy:catch", 1)
    pool = envs.open(0)
    _, row = pool.recv()
    assert check.row_flaws(envs, row, over=True) == []
    wrong = {**row, "obs": np.full((1, 3), np.nan), "reward": np.float32([np.nan]), "first": np.array([False])}
    assert [rule for rule, _ in check.row_flaws(envs, wrong, over=True)] == [
        "shape",
        "dtype",
        "finite",
        "reward",
        "autoreset",
    ]


def test_a_vector_environment_that_loses_last_observations_breaks_that_rule():
    """In the words in which a run would end."""
    report = polyplay.check(MildSame, steps=40, measure=0.05)
    (failed,) = [f for f in report.findings if f.level == "failed"]
    assert failed.name == "final-observation"
    assert "resets in the same step (SAME_STEP) and gives no info['final_obs'] of lane 0" in failed.seen


def test_a_vector_environment_of_as_many_lanes_as_it_has_is_checked_with_all_of_them():
    report = polyplay.check(MildThree, steps=40, measure=0.05)
    assert report.status == 0
    assert report.card["resets"] == "by us, lane by lane"
    assert any(k == "pool of 3 lanes" for k in report.card)


class MildSame(vectors.Same):
    """Every action is as good."""

    def step(self, actions):
        return super().step(np.zeros_like(actions))


class MildCounting(vectors.Counting):
    """Every action is as good."""

    def step(self, actions):
        return super().step(np.zeros_like(actions))


def MildThree():
    return MildCounting(3)
