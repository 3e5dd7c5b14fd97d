"""From the results of trials to a verdict on every rule, and the card of an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyplay.common.findings import Finding, Level
from polyplay.envs.check.trial import TrialFacts
from polyplay.envs.check.watchdog import TrialResult
from polyplay.envs.rules import RULES

BEGIN = ("factory", "build", "spaces", "images", "copies")  # what is seen before it is reset, in that order
AT_ENDS = ("flags", "final-observation", "autoreset")
SLOW = 0.5  # of the step's time limit: too near to it
LONG = 50  # steps: episodes of one length that long look like a time limit


def card_of(first: TrialResult, own: bool) -> dict[str, str]:
    """What the environment is, and how its episodes end."""
    ends = first.facts.ends
    by = "Polyplay's own pool" if own else "the pool calls reset() after the last row"
    card = {**first.card, "autoreset": f"{by}; the new episode's first row is one of its own"}
    card["truncation"] = "kept apart from termination: the value of the last observation counts"
    if ends:
        lengths = [n for n, _ in ends]
        over = sum(t for _, t in ends)
        spread = f"{min(lengths):,} to {max(lengths):,} steps, {np.mean(lengths):,.1f} in the mean"
        card["episodes"] = f"{len(ends)} with random actions, {spread}; {over} terminated, {len(ends) - over} truncated"
    return card


def failed(rule: str, text: str) -> Finding:
    return Finding(rule, "failed", text, RULES[rule].fix)


def finding(rule: str, broke: Mapping[str, str], trials: Sequence[TrialResult], limit: float) -> Finding:
    """From trials of lane 0, of lane 0 again and of lane 1; those that were not made have no facts."""
    if rule in broke:
        return failed(rule, broke[rule])
    special = {"seed": _seed, "determinism": _determinism}.get(rule)
    level, text = special(*(t.facts for t in trials)) if special else _plain(rule, trials[0], limit)
    return Finding(rule, level, text, RULES[rule].fix if level in ("warning", "failed") else "")


def _plain(rule: str, first: TrialResult, limit: float) -> tuple[Level, str]:
    """A rule that one trial shows, and that was not broken."""
    facts, ends, steps = first.facts, len(first.facts.ends), first.facts.steps
    if rule in first.odd:
        return "warning", first.odd[rule]
    begun = rule in BEGIN and (first.card or set(BEGIN[BEGIN.index(rule) :]) & first.broke.keys())
    if not begun and not first.card:
        return "unseen", "not tested"
    if begun:
        known = f"{first.card.get('observation')}; {first.card.get('actions')}"
        spaces = known if first.card else "of supported kinds"
        built = f"in {_time(facts.build)}" if facts.build else "it was built"
        shape = "its observations are no image, or have its planes first"
        own = "each is an environment of its own"
        seen = {"factory": "it reached another process", "build": built, "copies": own, "spaces": spaces}
        return "ok", {**seen, "images": shape}[rule]
    if not steps and rule not in ("hang", "crash"):
        return "unseen", "no step was made"
    if rule == "flags" and (text := _limit(facts.ends)):
        return "warning", text
    if rule in AT_ENDS[1:] and not ends:
        hint = "" if first.broke else f"; --steps {10 * steps} looks longer"
        return "unseen", f"no episode ended in {steps:,} steps{hint}"
    if rule == "step-time":
        slow = max(facts.step_most, facts.reset_most)
        mean = f"a step {_time(facts.step_sum / steps)} in the mean"
        level: Level = "warning" if slow > SLOW * limit else "ok"
        return level, f"{mean}, {_time(facts.step_most)} at most; a reset {_time(facts.reset_most)} at most"
    return "ok", f"at {ends:,} ends" if rule in AT_ENDS else f"in {steps:,} steps and {facts.resets:,} resets"


def _limit(ends: Sequence[tuple[int, bool]]) -> str:
    """A warning about what looks like a time limit reported as a termination; "": nothing does."""
    lengths = {n for n, _ in ends}
    if len(ends) < 2 or len(lengths) > 1 or min(lengths) < LONG or not all(t for _, t in ends):
        return ""
    return f"all {len(ends)} episodes terminated after {min(lengths)} steps: a time limit must be truncated"


def _seed(a: TrialFacts, again: TrialFacts, b: TrialFacts) -> tuple[Level, str]:
    """Lanes 0 and 1."""
    if not b.prints:
        return "unseen", "not tested: no second lane was played"
    alike = differ(a.prints, b.prints) is None
    if a.generator == b.generator >= 0:
        which = f", of seed {a.generator}" if a.generator < 2**62 else ""
        return "failed", f"lanes 0 and 1 got different seeds but draw from the same generator{which}"
    if a.generator < 0 and alike:
        return "warning", "lanes 0 and 1 got different seeds but play the same: right if nothing in it is random"
    if a.generator < 0:
        return "ok", "two lanes play different episodes"
    return "ok", "two lanes, two generators" + ("; they play the same: nothing in it is random" if alike else "")


def _determinism(first: TrialFacts, again: TrialFacts, other: TrialFacts) -> tuple[Level, str]:
    """Two trials of lane 0."""
    if not again.prints:
        return "unseen", "not tested: there was no second trial"
    at = differ(first.prints, again.prints)
    if at is not None:
        text = f"two trials with the same seed and actions differ from row {at} on"
        return "warning", f"{text}; the second had sets in another order (PYTHONHASHSEED)"
    return "ok", f"the same {min(len(first.prints), len(again.prints)):,} rows twice"


def differ(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first row in which two trials differ, as far as both went."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def _time(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
