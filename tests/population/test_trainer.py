"""A trainer that is killed at any moment, loses sessions, finds a full disk: what comes of its population."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.core import checkpoint
from polyplay.core.errors import UserError, WorkerLost
from polyplay.population import trainer
from polyplay.population.store import DONE, FAILED, TRAINING, WAITING, Store, ancestry, read_lineage
from tests.population.fake_members import (
    EVERY,
    HALF,
    TOTAL,
    FakeRun,
    Kill,
    Killed,
    begun,
    evolution_of,
    known,
    save,
    train,
)


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch):
    monkeypatch.setattr(trainer, "REST", 0.0)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def finished(directory: Path, evolution: Any) -> Store:
    store = begun(directory, evolution)
    train(store, evolution, FakeRun(store))
    return store


def copies(store: Store) -> list[dict[str, Any]]:
    return [row for row in read_lineage(store.directory) if row["donor"] is not None]


def is_whole(store: Store) -> None:
    """What holds of a population at any moment at which nobody writes."""
    store.repair()
    population, rows = store.read(), read_lineage(store.directory)
    assert [row["decision"] for row in rows] == list(range(population["decisions"]))
    for m in population["members"]:
        own = [row for row in rows if row["member"] == m["member"]]
        assert own[-1]["new"] == m["values"]
        assert len(own) == m["turns"] + 1 + sum("failed" in row["why"] for row in own)
        assert ancestry(rows, m["member"])[0].begin == 0


def test_members_take_turns_and_decide_between(tmp_path):
    evolution = evolution_of()
    store = begun(tmp_path / "run", evolution)
    run = FakeRun(store)
    train(store, evolution, run)
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3
    assert [i for i, steps in run.trained if steps % EVERY == 0] == [0, 1, 2] * 3
    assert copies(store), "nothing was copied: the other tests show nothing"
    assert [row["steps"] for row in read_lineage(store.directory)] == [0] * 3 + [EVERY] * 3 + [2 * EVERY] * 3
    is_whole(store)


def moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> int:
    """Killed at every so-manieth change of a file, and gone on with: the same to the bit. How many there are."""
    evolution = evolution_of()
    whole = known(finished(tmp_path / "whole", evolution))
    kill = Kill(monkeypatch)
    for n in range(1, 100_000, every):
        store = begun(tmp_path / f"cut-{n}", evolution)
        kill.at(n)
        try:
            train(store, evolution, FakeRun(store))
        except Killed:
            kill.never()
            is_whole(store)
            train(store, evolution, FakeRun(store))
        else:
            return n
        assert known(store) == whole, f"killed at change {n}"
        is_whole(store)
        shutil.rmtree(store.directory)
    raise AssertionError("it never came to its end")


def test_killed_at_many_moments_it_becomes_the_same(tmp_path, monkeypatch):
    assert moments(tmp_path, monkeypatch, 101) > 300


@pytest.mark.long
def test_killed_at_any_moment_it_becomes_the_same(tmp_path, monkeypatch):
    assert moments(tmp_path, monkeypatch, 1) > 300


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_killed_within_a_decision_it_becomes_the_same(every, tmp_path, monkeypatch):
    """Every change of a file from the copy's first to the next session's first checkpoint."""
    evolution, kill = evolution_of(), Kill(monkeypatch)
    store = begun(tmp_path / "run", evolution)
    train(store, evolution, FakeRun(store), turns=3)
    real, begins = trainer.prepare_copy, list[int]()
    monkeypatch.setattr(trainer, "prepare_copy", lambda *a, **k: (begins.append(kill.changes), real(*a, **k))[1])
    shutil.copytree(store.directory, tmp_path / "before")
    kill.never()
    train(store, evolution, FakeRun(store), turns=4)
    assert begins, "nothing was copied"
    whole = known(store)
    first = begins[0]
    for n in range(first, first + 60, every):
        shutil.rmtree(store.directory)
        shutil.copytree(tmp_path / "before", store.directory)
        kill.at(n)
        with pytest.raises(Killed):
            train(store, evolution, FakeRun(store), turns=4)
        kill.never()
        done = 4 - store.read()["decisions"] + 6
        train(store, evolution, FakeRun(store), turns=done)
        assert known(store) == whole, f"killed at change {n}"


@pytest.mark.parametrize("turns", [1, 4, 7])
def test_stopped_between_and_within_sessions_it_becomes_the_same(turns, tmp_path):
    """A member that was stopped on its way goes on first, so the others decide by what they would have seen."""
    evolution = evolution_of()
    whole = known(finished(tmp_path / "whole", evolution))
    store = begun(tmp_path / "cut", evolution)
    run = FakeRun(store)

    def stop() -> str:
        run.control.finishing = True
        return ""

    member, steps = turns % 3, turns // 3 * EVERY + HALF
    run.events[member, steps] = stop
    train(store, evolution, run)
    m = store.read()["members"][member]
    assert (m["state"], m["steps"], m["why"]) == (WAITING, steps, "stopping")
    train(store, evolution, FakeRun(store))
    assert known(store) == whole


def test_the_last_session_that_was_not_written_down_is_no_turn(tmp_path):
    """Killed between a member's last checkpoint and population.json: it is done, and nothing is decided about it."""
    evolution = evolution_of()
    whole = known(finished(tmp_path / "whole", evolution))
    store = begun(tmp_path / "cut", evolution)

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        train(store, evolution, FakeRun(store, {(1, TOTAL): die}))
    run = FakeRun(store)

    def session(m, until, stopping, say):
        found = run(m, until, stopping, say)
        return found if found.ended != "done" else trainer.replace(found, ended="ready", why="")  # as MemberRunner

    train(store, evolution, session)
    assert known(store) == whole


def lose() -> str:
    raise AssertionError


def test_a_lost_session_is_tried_again_and_not_for_ever(tmp_path):
    evolution = evolution_of(exploit="none")
    whole = known(finished(tmp_path / "whole", evolution))
    store = begun(tmp_path / "lost", evolution)
    run = FakeRun(store, {(0, HALF): lambda: "lost", (0, EVERY): lambda: "lost"})
    train(store, evolution, run)
    assert known(store) == whole
    assert [text for text in run.said if "tried again" in text] == ["member 00: lost; it is tried again"] * 2
    store = begun(tmp_path / "failed", evolution)
    fails = FakeRun(store)

    def session(m, until, stopping, say):
        return fails(m, until, stopping, say) if m["member"] else trainer.MemberSession("lost", "killed")

    train(store, evolution, session, fails.said)
    states = [(m["state"], m["lost"]) for m in store.read()["members"]]
    assert states == [(FAILED, True), (DONE, False), (DONE, False)]
    assert fails.said == ["member 00: killed; it is tried again"] * 3 + ["member 00: killed"]


def test_who_fails_copies_once_somebody_has_a_score(tmp_path):
    evolution = evolution_of()
    store = begun(tmp_path / "run", evolution)
    run = FakeRun(store, {(0, HALF): lambda: "failed"})
    train(store, evolution, run)
    first = next(row for row in read_lineage(store.directory) if row["member"] == 0 and row["steps"])
    assert first["donor"] is not None
    assert (first["score"], first["steps"]) == (None, HALF)  # those of its checkpoint: games before do not count
    assert first["why"].startswith("failed; its run failed")
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3
    is_whole(store)


def pending_store(tmp_path: Path) -> tuple[Store, Any, int]:
    """A population with a copy that was decided and not made yet; whose it is."""
    evolution = evolution_of()
    store = begun(tmp_path / "run", evolution)
    for _ in range(9):
        train(store, evolution, FakeRun(store), turns=1)
        found = [m["member"] for m in store.read()["members"] if m["pending"]]
        if found:
            return store, evolution, found[0]
    raise AssertionError


def copied_weights(store: Store, i: int) -> np.ndarray:
    found = checkpoint.newest(store.member(i), lambda text: None)
    return checkpoint.read_arrays(found / "agents/0/policy.safetensors")["w"]


@pytest.mark.parametrize("harm", ["deleted", "half deleted", "damaged once it had its name"])
def test_a_copy_that_is_harmed_before_it_is_used_is_made_again(harm, tmp_path):
    store, evolution, i = pending_store(tmp_path)
    pending = store.read()["members"][i]["pending"]
    donor, name, _ = pending["copy"]
    part = store.member(i) / "checkpoints" / f".partial-{name}"
    assert part.exists()
    if harm == "deleted":
        checkpoint.remove_partial(store.member(i))
    elif harm == "half deleted":
        (part / "agents/0/policy.safetensors").unlink()
    else:
        trainer.complete_copy(store.member(i), name, pending["final"])
        file = part.with_name(pending["final"]) / "agents/0/policy.safetensors"
        file.unlink()
        file.write_bytes(b"damaged")
    m = trainer._begin(store, evolution, i)
    assert (m["state"], m["pending"]) == (TRAINING, None)
    assert np.array_equal(copied_weights(store, i), copied_weights(store, donor))
    train(store, evolution, FakeRun(store))
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3
    is_whole(store)


def test_a_copy_that_cannot_be_made_again_fails_its_member_alone(tmp_path):
    store, evolution, i = pending_store(tmp_path)
    donor = store.read()["members"][i]["pending"]["copy"][0]
    checkpoint.remove_partial(store.member(i))
    gone = shutil.move(store.member(donor) / "checkpoints", tmp_path / "gone")
    m = trainer._begin(store, evolution, i)
    assert (m["state"], m["lost"], m["pending"]) == (FAILED, True, None)
    assert m["why"].startswith(f"its copy of member {donor:02d} is gone: RUN: ")
    with pytest.raises(UserError, match=r"has no checkpoint, but its episodes\.jsonl has lines: put back"):
        train(store, evolution, FakeRun(store))
    shutil.move(gone, store.member(donor) / "checkpoints")
    train(store, evolution, FakeRun(store))
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3


def test_a_donor_without_a_whole_checkpoint_is_not_copied_and_the_line_says_why(tmp_path):
    evolution = evolution_of(size=2)
    store = begun(tmp_path / "run", evolution)
    train(store, evolution, FakeRun(store), turns=3)
    before = store.read()["members"]
    shutil.rmtree(store.member(1) / "checkpoints")
    better = before[1]["score"] - 100
    with store.locked():
        population = store.read()
        population["members"][0] |= {"score": better, "games": [better] * 10, "pending": None}
        evolution.decide(store, population, 0, lambda *copied: trainer._copy(store, 0, *copied))
    row = read_lineage(store.directory)[-1]
    assert row["donor"] is None
    assert row["old"] == row["new"]
    assert row["why"].startswith("not copied: RUN: ")
    assert "no usable checkpoint" in row["why"]
    assert store.read()["members"][0]["pending"] is None


def test_a_full_disk_ends_the_trainer_with_one_line_and_loses_nobody(tmp_path, monkeypatch):
    evolution = evolution_of()
    whole = known(finished(tmp_path / "whole", evolution))
    store = begun(tmp_path / "cut", evolution)
    real, full = os.replace, [25]

    def replace(*args: Any) -> None:
        full[0] -= 1
        if full[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[1]))
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(WorkerLost, match=r"^/.*: No space left on device; the disk is full: free some space$"):
            train(store, evolution, FakeRun(store))
    is_whole(store)
    train(store, evolution, FakeRun(store))
    assert known(store) == whole


def test_members_that_another_trainer_has_are_left_alone(tmp_path):
    evolution = evolution_of()
    store = begun(tmp_path / "run", evolution)
    run = FakeRun(store)
    with store.claimed(0) as mine:
        assert mine
        train(store, evolution, run, turns=2)
    assert {i for i, _ in run.trained} == {1, 2}
    train(store, evolution, run, turns=1)
    assert run.trained[-1] == (0, EVERY)


def test_a_damaged_population_is_told_in_one_line(tmp_path):
    store = begun(tmp_path / "run", evolution_of())
    (store.directory / "population.json").write_text("{")
    with pytest.raises(UserError, match=r"population.json cannot be read .*; put back a copy of it"):
        train(store, evolution_of(), FakeRun(store))


def test_checkpoints_of_these_tests_are_those_of_runs(tmp_path):
    found = save(tmp_path, 3, [1.0], 20)
    assert checkpoint.resume_flaw(found) is None
    assert json.loads((found / "agents/0/learner.json").read_text())["learnt"] == 20.0
