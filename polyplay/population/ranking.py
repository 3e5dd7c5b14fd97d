"""Members of a population from the best to the worst. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable

from polyplay.common.files import Row
from polyplay.population.store import FAILED


def rank_members(members: Iterable[Row]) -> list[Row]:
    """Best first; then those without a score, and those that failed; equal ones in the order of their numbers."""
    return sorted(members, key=lambda m: (m["state"] == FAILED, m["score"] is None, -(m["score"] or 0.0), m["member"]))


def best_member(members: Iterable[Row]) -> Row | None:
    """None: no member that has not failed has a score."""
    best = next(iter(rank_members(members)), None)
    return None if best is None or best["state"] == FAILED or best["score"] is None else best
