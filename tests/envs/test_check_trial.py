from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym

from polyplay.envs import check_trial
from polyplay.envs.pool import lane_seeds
from tests.envs import broken
from tests.envs.broken import look


def test_a_sound_environment_breaks_nothing_and_repeats_itself():
    tried, again, other = look(broken.Sound), look(broken.Sound), look(broken.Sound, lane=1)
    assert (tried.broke, tried.odd, tried.whole) == ({}, {}, True)
    facts = tried.facts
    assert (facts.steps, facts.resets) == (30, 4)
    assert [n for n, _ in facts.ends] == [8, 8, 8]
    assert len(facts.prints) == 34
    assert facts.prints == again.facts.prints != other.facts.prints
    assert facts.generator == lane_seeds(3, 0, 1)[0] != other.facts.generator
    assert facts.step_most >= facts.step_sum / 30 > 0


def test_a_trial_goes_on_after_what_is_wrong_and_tells_it_once():
    tried = look(broken.NotFinite)
    assert tried.broke == {"finite": "step 3: nan at [2] of an observation, 1 of 4 values not finite"}
    assert tried.facts.steps == 30
    tried = look(broken.NoFlag)
    assert tried.broke == {"flags": "step 1: terminated must be a boolean, given None"}


def test_what_raises_ends_a_trial_after_a_few_times():
    tried = look(broken.Raises)
    assert "step 5: action" in tried.broke["step"]
    assert "ValueError: boom (broken.py:" in tried.broke["step"]
    assert (tried.facts.steps, tried.facts.resets, tried.whole) == (15, 3, True)
    assert look(broken.OldGym).broke["step"].endswith("given a tuple of 4, as gym's before 0.26 did")
    assert look(broken.NeverBegins).broke["reset"].startswith("reset 1: OSError: no level left (broken.py:")


def test_a_last_observation_is_only_blamed_where_others_are_right():
    assert set(look(broken.NoLastObservation, steps=60).broke) == {"final-observation"}
    assert set(look(broken.WrongDtype).broke) == {"dtype"}


def test_resets_within_a_step_are_seen():
    assert "returned the next one's beginning" in look(broken.ResetsItself).broke["autoreset"]
    tried = look(lambda: gymnasium.wrappers.Autoreset(broken.Sound()))
    assert (tried.broke, tried.odd) == ({}, {}), "the pool resets before the wrapper does"


class Restless(broken.Sound):
    """Begins anew in the middle, or resets at an end but gives the right observation."""

    def __init__(self, middle: bool):
        self.middle = middle

    def step(self, action: Any) -> tuple:
        result = super().step(action)
        if self.steps == (3 if self.middle else 8):
            self.reset()
        return result


def test_resets_within_a_step_that_lose_nothing_are_odd():
    assert "without ending the episode" in look(lambda: Restless(True)).odd["autoreset"]
    assert look(lambda: Restless(False)).odd["autoreset"] == "the step that ended an episode called reset() too"


def test_bounds_are_broken_at_a_reset_and_doubtful_at_a_step():
    class Strays(broken.Sound):
        def see(self) -> Any:
            return super().see() + np.float32(9 if getattr(self, "steps", 0) == 2 else 0)

    tried = look(Strays)
    assert tried.broke == {}
    assert "is not in [-1, 1]; training looks at bounds after a reset only" in tried.odd["bounds"]
    assert set(look(broken.OutOfBounds).broke) == {"bounds"}


def test_flags_that_are_numbers_are_odd():
    class Counts(broken.Sound):
        def step(self, action: Any) -> tuple:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, int(terminated), truncated, info

    tried = look(Counts)
    assert (tried.broke, tried.odd) == ({}, {"flags": "terminated is int 0, no boolean"})


def test_the_time_is_a_limit_too():
    assert look(broken.Sound, steps=10**9, seconds=0.2).facts.steps < 10**6


MASKS = {
    "discrete": (gym.Discrete(4, start=2), np.array([0, 0, 1, 0]), 4),
    "multi": (gym.MultiDiscrete([2, 3]), np.array([0, 1, 0, 0, 1]), [1, 2]),
    "tuple": (gym.MultiDiscrete([2, 2]), (np.int8([1, 0]), np.int8([0, 1])), [0, 1]),
}


class Masked(broken.Sound):
    """Raises at any action but the one that its mask allows."""

    def __init__(self, kind: str, where: str):
        super().__init__()
        self.action_space, self.mask, self.want = MASKS[kind]
        self.where = where
        if where == "observation":
            form = gym.MultiBinary(2) if kind == "tuple" else gym.MultiBinary(len(self.mask))
            mask_space = gym.Tuple([form, form]) if kind == "tuple" else form
            self.observation_space = gym.Dict({"x": self.observation_space, "action_mask": mask_space})

    def _shown(self, obs: Any) -> tuple[Any, dict]:
        mask = {"action_mask": self.mask}
        return ({"x": obs, **mask}, {}) if self.where == "observation" else (obs, mask)

    def reset(self, **kw: Any) -> Any:
        return self._shown(super().reset(**kw)[0])

    def step(self, action: Any) -> Any:
        assert np.array_equal(action, self.want)
        obs, *rest = super().step(0)
        obs, info = self._shown(obs)
        return obs, *rest[:-1], info


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("where", ["observation", "info"])
def test_actions_are_drawn_from_what_a_mask_allows(kind: str, where: str):
    tried = look(lambda: Masked(kind, where), steps=8)
    assert (tried.broke, tried.facts.steps) == ({}, 8)


def test_same():
    a = {"x": np.arange(3), "y": (1, np.zeros(2))}
    assert check_trial.same_values(a, {"x": [0, 1, 2], "y": (1, np.zeros(2))})
    assert not check_trial.same_values(a, {"x": np.arange(3), "y": (1, np.ones(2))})
    assert not check_trial.same_values(a, {"x": np.arange(3)})
    assert not check_trial.same_values(np.zeros(2), np.zeros(3))


class Vast(broken.Sound):
    observation_space = gym.Box(-1e300, 1e300, (4,), np.float64)

    def see(self):
        return 1e299 * super().see().astype(np.float64)


def test_numbers_that_no_network_holds_are_doubtful():
    tried = look(Vast)
    assert tried.broke == {}
    assert "float32, in which networks compute, can't hold: train with --inputs normalize" in tried.odd["finite"]
