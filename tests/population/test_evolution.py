"""What is decided about a member, and written down: from the same standings always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.population.rules import parse_prior
from polyplay.population.store import DONE, FAILED, TRAINING, WAITING, Store, read_lineage
from polyplay.population.trainer import DRAWS, Evolution, PreparedCopy, is_over, may_train
from tests.population.fake_members import EVERY, TOTAL, begun, evolution_of

SCORES = [1.0, 5.0, 3.0, 9.0, 4.0]


class Copies:
    """Prepares nothing, and remembers what it was asked for."""

    def __init__(self, wrong: str = ""):
        self.asked: list[tuple[int, str, bool]] = []
        self.wrong = wrong

    def __call__(self, donor: int, name: str, lanes: bool) -> PreparedCopy:
        self.asked.append((donor, name, lanes))
        if self.wrong:
            raise UserError(self.wrong)
        return PreparedCopy("000000000008-steps-40", EVERY + donor)


def scored(directory: Path, evolution: Evolution) -> Store:
    """Every member has had its first turn."""
    store = begun(directory, evolution)
    population = store.read()
    for m, score in zip(population["members"], SCORES, strict=True):
        m |= {"steps": EVERY + m["member"], "frames": 4 * EVERY, "score": score, "games": [score] * 10}
    store.write(population)
    return store


def decided(store: Store, evolution: Evolution, i: int, copies: Copies, **changed: Any) -> tuple[Row, Row]:
    """The member afterwards, and the line about it."""
    with store.locked():
        population = store.read()
        population["members"][i] |= changed
        evolution.decide(store, population, i, copies)
        store.write(population)
    return store.read()["members"][i], read_lineage(store.directory)[-1]


def test_one_of_the_worst_copies_one_of_the_best(tmp_path):
    evolution, copies = evolution_of(size=5), Copies()
    store = scored(tmp_path / "run", evolution)
    before = store.read()["members"]
    m, row = decided(store, evolution, 0, copies)
    assert copies.asked == [(3, "copy-5", True)]
    assert m["pending"] == {"copy": [3, "copy-5", True], "final": "000000000008-steps-40"}
    assert (m["score"], m["games"], m["copied"], m["since"], m["turns"]) == (None, [], EVERY, EVERY, 1)
    assert m["values"]["rate"] == pytest.approx(before[3]["values"]["rate"] * 0.8) or m["values"][
        "rate"
    ] == pytest.approx(before[3]["values"]["rate"] * 1.2)
    told = {"decision": 5, "member": 0, "donor": 3, "score": 1.0, "donor_score": 9.0, "steps": EVERY}
    told |= {"donor_steps": EVERY + 3, "old": before[0]["values"], "new": m["values"]}
    assert {k: row[k] for k in told} == told
    assert row["why"] == "in the bottom 20 %"
    assert [other for other in store.read()["members"] if other["member"]] == before[1:]


def test_others_go_on_as_they_are(tmp_path):
    evolution, copies = evolution_of(size=5), Copies()
    store = scored(tmp_path / "run", evolution)
    before = store.read()["members"][2]
    m, row = decided(store, evolution, 2, copies)
    assert copies.asked == []
    assert m == before | {"turns": 1, "since": EVERY + 2}
    assert (row["donor"], row["donor_score"], row["donor_steps"], row["old"]) == (None, None, None, row["new"])
    assert row["why"] == "not in the bottom 20 %"


def test_a_decision_is_the_same_whenever_it_is_made_again(tmp_path):
    """Killed before it was written down, a trainer comes to it again."""
    evolution = evolution_of(size=5, explore="both")
    found = []
    for run in ("a", "b"):
        store = scored(tmp_path / run, evolution)
        m, row = decided(store, evolution, 0, Copies())
        found.append((m, {k: v for k, v in row.items() if k not in ("at", "wall_seconds")}))
    assert found[0] == found[1]
    assert decided(store, evolution, 0, Copies(), score=1.0)[0]["values"] != m["values"], "the next turn is another"


def test_what_lanes_cannot_go_on_with_says_so(tmp_path):
    priors = {"lanes": parse_prior("lanes=2,4", int)}
    evolution, copies = evolution_of(size=5, priors=priors, anew=frozenset({"lanes"})), Copies()
    store = scored(tmp_path / "run", evolution)
    m, row = decided(store, evolution, 0, copies)
    assert copies.asked[0][2] == (row["old"] == row["new"])
    assert m["values"]["lanes"] in (2, 4)


def test_a_failed_member_copies_whomever_it_can(tmp_path):
    evolution, copies = evolution_of(size=5), Copies()
    store = scored(tmp_path / "run", evolution)
    m, row = decided(store, evolution, 4, copies, state=FAILED, why="update 7: loss nan", falls=2, turns=1)
    assert copies.asked[0][0] == 3
    assert (m["state"], m["why"], m["falls"], m["turns"]) == (WAITING, "", 0, 1)
    assert (row["score"], row["donor_score"]) == (None, 9.0)
    assert row["why"] == "update 7: loss nan; its run failed; in the bottom 20 %"


def test_a_failed_member_that_finds_no_donor_tries_again_without_a_line(tmp_path):
    evolution, copies = evolution_of(size=5), Copies("RUN: its disk is gone")
    store = scored(tmp_path / "run", evolution)
    for n in range(1, DRAWS + 1):
        assert may_train(store.read(), 0)
        state = {"state": FAILED} if n == 1 else {}
        m, row = decided(store, evolution, 0, copies, **state)
        assert (m["state"], m["falls"], m["pending"]) == (FAILED, n, None)
        assert row["decision"] == 4
    assert not may_train(store.read(), 0)


def test_a_donor_that_cannot_be_read_is_told_in_the_line(tmp_path):
    evolution = evolution_of(size=5)
    store = scored(tmp_path / "run", evolution)
    m, row = decided(store, evolution, 0, Copies("RUN: its disk is gone"))
    assert (row["donor"], row["why"], row["old"]) == (None, "not copied: RUN: its disk is gone", row["new"])
    assert (m["score"], m["turns"], m["pending"], m["copied"]) == (1.0, 1, None, 0)


def test_who_has_something_left_to_do(tmp_path):
    store = begun(tmp_path / "run", evolution_of())
    population = store.read()
    first, second, third = population["members"]
    assert may_train(population, 0)
    first["state"], second["state"] = TRAINING, DONE  # of a trainer that was killed
    assert may_train(population, 0)
    assert not may_train(population, 1)
    third["state"] = FAILED
    assert not may_train(population, 2), "nobody has a score that it could copy"
    first["state"] = DONE
    assert is_over(population)
    second["score"] = 1.0
    assert may_train(population, 2)
    assert not is_over(population)
    population["exploit"] = "none"
    assert is_over(population)


def test_founders_follow_from_the_seed_alone():
    founders = evolution_of(size=4).founders()
    assert founders == evolution_of(size=4, exploit="none", explore="resample").founders()
    assert founders != evolution_of(size=4, seed=4).founders()
    assert len({f["rate"] for f in founders}) == 4
    lists = {"a": parse_prior("a=1,2", int), "b": parse_prior("b=x,y,z", str)}
    grid = evolution_of(size=6, priors=lists, grid=True).founders()
    assert grid == [{"a": a, "b": b} for a in (1, 2) for b in "xyz"]


def test_a_member_is_ready_after_every_turn_and_at_its_end():
    evolution = evolution_of(total=100)
    assert [evolution.until({"turns": n}) for n in range(4)] == [EVERY, 2 * EVERY, 100, 100]
    assert evolution_of().until({"turns": 2}) == TOTAL
