from __future__ import annotations

from polyplay.population.store import DONE, FAILED, WAITING, best_member, rank_members


def members(*found: tuple[str, float | None]) -> list[dict]:
    return [{"member": i, "state": state, "score": score} for i, (state, score) in enumerate(found)]


def test_best_first_then_those_without_a_score_then_those_that_failed():
    found = members((WAITING, None), (FAILED, 9.0), (DONE, -3.0), (WAITING, 2.0), (WAITING, 0.0), (DONE, 2.0))
    assert [m["member"] for m in rank_members(found)] == [3, 5, 4, 2, 0, 1]
    assert best_member(found) == found[3]


def test_nobody_is_best_without_a_score():
    assert best_member(members((WAITING, None), (FAILED, 9.0))) is None
    assert best_member([]) is None
