from __future__ import annotations

from typing import Any

import pytest

from polyplay.envs import check
from polyplay.envs.check import TrialResult
from polyplay.envs.check_trial import TrialFacts
from polyplay.envs.rules import RULES

CARD = {"observation": "float32 [4]", "actions": "2 discrete"}


def tried(card: Any = CARD, broke: Any = None, odd: Any = None, **facts: Any) -> TrialResult:
    return TrialResult(dict(card), broke or {}, odd or {}, TrialFacts(**{"steps": 10, "resets": 2, **facts}))


NONE = TrialResult(facts=TrialFacts())  # a trial that was not made


def level(rule: str, first: TrialResult, again: TrialResult = NONE, other: TrialResult = NONE) -> tuple[str, str]:
    found = check.finding(rule, first.broke, (first, again, other), limit=1.0)
    assert bool(found.fix) == (found.level in ("warning", "failed"))
    return found.level, found.seen


def test_what_was_not_come_to_is_not_praised():
    none = tried(card={}, broke={"spaces": "x"}, steps=0)
    assert [level(rule, none)[0] for rule in RULES] == ["ok", "ok", "failed"] + ["unseen"] * (len(RULES) - 3)
    unsent = tried(card={}, broke={"factory": "x"}, steps=0)
    assert {level(rule, unsent)[0] for rule in RULES if rule != "factory"} == {"unseen"}
    assert level("final-observation", tried()) == ("unseen", "no episode ended in 10 steps; --steps 100 looks longer")
    assert level("final-observation", tried(broke={"step": "x"})) == ("unseen", "no episode ended in 10 steps")
    assert level("final-observation", tried(ends=[(3, True)])) == ("ok", "at 1 ends")


@pytest.mark.parametrize(
    ("ends", "want"),
    [
        ([(200, True), (200, True)], "warning"),
        ([(200, True)], "ok"),
        ([(9, True), (9, True)], "ok"),
        ([(200, False), (200, False)], "ok"),
        ([(200, True), (120, True)], "ok"),
    ],
)
def test_a_time_limit_that_terminates_is_doubtful(ends: list, want: str):
    assert level("flags", tried(ends=ends))[0] == want


def test_seeds():
    a, b = dict(generator=5, prints=[1, 2]), dict(generator=6, prints=[1, 3])

    def seed(first: dict, other: dict) -> tuple[str, str]:
        return level("seed", tried(**first), tried(**first), tried(**other))

    assert seed(a, b) == ("ok", "two lanes, two generators")
    assert seed(a, {**b, "prints": [1, 2]})[1].endswith("they play the same: nothing in it is random")
    assert seed(a, {**b, "generator": 5}) == (
        "failed",
        "lanes 0 and 1 got different seeds but draw from the same generator, of seed 5",
    )
    assert seed({**a, "generator": -1}, {**b, "generator": -1}) == ("ok", "two lanes play different episodes")
    assert seed({**a, "generator": -1}, {**a, "generator": -1})[0] == "warning"
    assert level("seed", tried())[0] == "unseen"


def test_determinism():
    assert level("determinism", tried(prints=[1, 2, 3]), tried(prints=[1, 2])) == ("ok", "the same 2 rows twice")
    found = level("determinism", tried(prints=[1, 2, 3]), tried(prints=[1, 5, 3]))
    text = "two trials with the same seed and actions differ from row 1 on"
    assert found == ("warning", f"{text}; the second had sets in another order (PYTHONHASHSEED)")
    assert level("determinism", tried())[0] == "unseen"


def test_times():
    quick = level("step-time", tried(step_sum=0.0005, step_most=0.002, reset_most=0.3))
    assert quick == ("ok", "a step 50 µs in the mean, 2 ms at most; a reset 300 ms at most")
    assert level("step-time", tried(step_most=0.7))[0] == "warning"


def test_the_card():
    card = check.card_of(tried(ends=[(3, True), (5, False)]), own=False)
    assert card["episodes"] == "2 with random actions, 3 to 5 steps, 4.0 in the mean; 1 terminated, 1 truncated"
    assert card["autoreset"].startswith("the pool calls reset()")
    assert "Polyplay's own" in check.card_of(tried(), own=True)["autoreset"]
