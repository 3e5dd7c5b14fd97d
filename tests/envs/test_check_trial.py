"""One trial of an environment: what it finds, how far it goes, what it draws."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from polyplay.envs import Envs, check
from polyplay.envs.check import run_watched
from polyplay.envs.pool import lane_seeds
from polyplay.envs.process_pool import pickled_factory
from tests.envs import broken
from tests.envs.broken import job_of, look, look_at_pool, tried_by
from tests.games.traits import NAME as TRAITS


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


@pytest.mark.parametrize(
    ("env", "broke", "odd"),
    [
        (broken.NotFinite, {"finite": "step 3: nan at [2] of an observation, 1 of 4 values not finite"}, {}),
        (
            broken.NoFlag,
            {"flags": "step 1: terminated must be a boolean, given None"},
            {"flags": "None, no boolean"},
        ),
        (broken.NoReward, {"reward": "step 1: reward must be one finite number, given None"}, {}),
        (broken.NothingLegal, {"mask": "step 4: action_mask: no action is legal"}, {}),
        (broken.WrongDtype, {"dtype": "reset 1: declared float32 [4], given float64 [4]"}, {}),
        (broken.NoLastObservation, {"final-observation": "the step that truncated the episode has no real last"}, {}),
        (broken.OutOfBounds, {"bounds": "reset 1: "}, {"bounds": ""}),
        (broken.OldGym, {"step": "given a tuple of 4, as gym's before 0.26 did"}, {}),
        (broken.NeverBegins, {"reset": "reset 1: OSError: no level left (broken.py:"}, {}),
        (broken.Revived, {"agents": "step 4: left is in agents again, though it has ended"}, {}),
        (broken.Unnamed, {"players": "step() gave no observation, reward or flag of left, which acted"}, {}),
        (broken.Ghost, {"players": "step 1: step() gave a reward of ghost, not in possible_agents"}, {}),
        (broken.LeftBehind, {}, {"agents": "everyone has ended, but agents is still ['left', 'right']"}),
        (broken.Beyond, {}, {"bounds": "right: "}),
        (broken.ResetsItself, {"autoreset": "returned the next one's beginning"}, {}),
        (lambda: broken.Restless(True), {}, {"autoreset": "step 3: it called reset() without ending the episode"}),
        (lambda: broken.Restless(False), {}, {"autoreset": "the step that ended an episode called reset() too"}),
        (lambda: gymnasium.wrappers.Autoreset(broken.Sound()), {}, {}),  # the pool resets before the wrapper does
        (broken.Strays, {}, {"bounds": "is not in [-1, 1]; training looks at bounds after a reset only"}),
        (broken.Counts, {}, {"flags": "terminated is int 0, no boolean"}),
        (broken.Vast, {}, {"finite": "which float32, in which networks compute, can't hold: train with --inputs norm"}),
        (broken.Grey, {}, {"flags": "info says TimeLimit.truncated of a terminated episode"}),
    ],
)
def test_what_is_wrong_is_found_and_nothing_else(env, broke: dict, odd: dict):
    tried = look(env, steps=60)
    for found, want in ((tried.broke, broke), (tried.odd, odd)):
        assert found.keys() == want.keys()
        assert all(text in found[rule] for rule, text in want.items()), found


def test_what_raises_ends_a_trial_after_a_few_times():
    tried = look(broken.Raises)
    assert "step 5: action" in tried.broke["step"]
    assert "ValueError: boom (broken.py:" in tried.broke["step"]
    assert (tried.facts.steps, tried.facts.resets, tried.whole) == (15, 3, True)
    assert look(broken.NotFinite).facts.steps == 30, "what is only wrong does not"


def test_one_that_can_be_built_only_once_is_told():
    job = replace(job_of(broken.Sound), maker=pickled_factory(Envs(broken.Unbuildable, 1)))
    tried = tried_by(lambda answer, clock: check.run_trial(answer, clock, job, 5, 60.0))
    (text,) = tried.broke.values()
    assert text.startswith("Sound: could not be built: RuntimeError: no licence found (broken.py:")
    assert "(rule" not in text


@pytest.mark.parametrize("kind", broken.MASKS)
@pytest.mark.parametrize("where", ["observation", "info"])
def test_actions_are_drawn_from_what_a_mask_allows(kind: str, where: str):
    tried = look(lambda: broken.Masked(kind, where), steps=8)
    assert (tried.broke, tried.facts.steps) == ({}, 8)


def test_the_time_is_a_limit_too():
    assert look(broken.Sound, steps=10**9, seconds=0.2).facts.steps < 10**6


def test_what_hangs_or_dies_has_told_how_far_it_came():
    tried = run_watched(check.run_trial, job_of(broken.Hangs, step_timeout=1.0), 30, 60.0)
    assert tried.broke["hang"].startswith("step 5 took longer than 1 s (broken.py:")
    assert (tried.whole, tried.facts.steps) == (False, 5)
    tried = run_watched(check.run_trial, job_of(broken.Dies), 30, 60.0)
    assert tried.broke == {"crash": "step 5 ended its process: exit status 3"}


@pytest.mark.parametrize("name", [f"{TRAITS}+mask+hybrid", "toy:catch", "toy:pendulum", "ALE/Pong-v5"])
def test_polyplays_own_pools_keep_to_the_rules(name: str):
    tried, again = look_at_pool(name, 60), look_at_pool(name, 60)
    assert (tried.broke, tried.facts.steps) == ({}, 60)
    assert tried.facts.prints == again.facts.prints
    if name == "toy:catch":
        assert set(tried.facts.ends) == {(9, True)}


def test_flaws_of_rows():
    envs = Envs("toy:catch", 1)
    pool = envs.open(0)
    _, row = pool.recv()
    assert check.row_flaws(envs, row, over=True) == []
    wrong = {**row, "obs": np.full((1, 3), np.nan), "reward": np.float32([np.nan]), "first": np.array([False])}
    found = [rule for rule, _ in check.row_flaws(envs, wrong, over=True)]
    assert found == ["shape", "dtype", "finite", "reward", "autoreset"]
