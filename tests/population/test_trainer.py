"""Trainers, decisions, copies: killed at any moment, or on a full disk, a population becomes the same."""

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
from polyplay.core.files import Row
from polyplay.population import trainer
from polyplay.population.rules import parse_prior
from polyplay.population.store import DONE, FAILED, TRAINING, WAITING, Store, ancestry, read_lineage
from polyplay.population.trainer import DRAWS, MemberRuns, PreparedCopy, may_train
from tests.population.fake_members import (
    EVERY,
    HALF,
    TOTAL,
    FakeRun,
    Kill,
    Killed,
    begun,
    known,
    plan_of,
    save,
    train,
)


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch):
    monkeypatch.setattr(trainer, "REST", 0.0)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def finished(directory: Path, plan: Any) -> Store:
    store = begun(directory, plan)
    train(store, plan, FakeRun(store))
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
    plan = plan_of()
    store = begun(tmp_path / "run", plan)
    run = FakeRun(store)
    train(store, plan, run)
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3
    assert [i for i, steps in run.trained if steps % EVERY == 0] == [0, 1, 2] * 3
    assert copies(store), "nothing was copied: the other tests show nothing"
    assert [row["steps"] for row in read_lineage(store.directory)] == [0] * 3 + [EVERY] * 3 + [2 * EVERY] * 3
    is_whole(store)


@pytest.mark.parametrize("step", [173, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_any_moment_it_becomes_the_same(step, tmp_path, monkeypatch):
    """At every change of a file, or at some, and gone on with."""
    plan = plan_of()
    whole = known(finished(tmp_path / "whole", plan))
    kill = Kill(monkeypatch)
    for n in range(1, 100_000, step):
        store = begun(tmp_path / f"cut-{n}", plan)
        kill.at(n)
        try:
            train(store, plan, FakeRun(store))
        except Killed:
            kill.never()
            is_whole(store)
            train(store, plan, FakeRun(store))
        else:
            break
        assert known(store) == whole, f"killed at change {n}"
        is_whole(store)
        shutil.rmtree(store.directory)
    assert n > 300


@pytest.mark.parametrize("turns", [1, 4, 7])
def test_stopped_between_and_within_sessions_it_becomes_the_same(turns, tmp_path):
    """A member that was stopped on its way goes on first, so the others decide by what they would have seen."""
    plan = plan_of()
    whole = known(finished(tmp_path / "whole", plan))
    store = begun(tmp_path / "cut", plan)
    run = FakeRun(store)

    def stop() -> str:
        run.control.finishing = True
        return ""

    member, steps = turns % 3, turns // 3 * EVERY + HALF
    run.events[member, steps] = stop
    train(store, plan, run)
    m = store.read()["members"][member]
    assert (m["state"], m["steps"], m["why"]) == (WAITING, steps, "stopping")
    train(store, plan, FakeRun(store))
    assert known(store) == whole


def test_the_last_session_that_was_not_written_down_is_no_turn(tmp_path):
    """Killed between a member's last checkpoint and population.json: it is done, and nothing is decided about it."""
    plan = plan_of()
    whole = known(finished(tmp_path / "whole", plan))
    store = begun(tmp_path / "cut", plan)

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        train(store, plan, FakeRun(store, {(1, TOTAL): die}))
    run = FakeRun(store)

    def session(m, until, stopping, say):
        found = run(m, until, stopping, say)
        return found if found.ended != "done" else trainer.replace(found, ended="ready", why="")  # as MemberRunner

    train(store, plan, session)
    assert known(store) == whole


def test_a_lost_session_is_tried_again_and_not_for_ever(tmp_path):
    plan = plan_of(exploit="none")
    whole = known(finished(tmp_path / "whole", plan))
    store = begun(tmp_path / "lost", plan)
    run = FakeRun(store, {(0, HALF): lambda: "lost", (0, EVERY): lambda: "lost"})
    train(store, plan, run)
    assert known(store) == whole
    assert [text for text in run.said if "tried again" in text] == ["member 00: lost; it is tried again"] * 2
    store = begun(tmp_path / "failed", plan)
    fails = FakeRun(store)

    def session(m, until, stopping, say):
        return fails(m, until, stopping, say) if m["member"] else trainer.MemberSession("lost", "killed")

    train(store, plan, session, fails.said)
    states = [(m["state"], m["lost"]) for m in store.read()["members"]]
    assert states == [(FAILED, True), (DONE, False), (DONE, False)]
    assert fails.said == ["member 00: killed; it is tried again"] * 3 + ["member 00: killed"]


def test_who_fails_copies_once_somebody_has_a_score(tmp_path):
    plan = plan_of()
    store = begun(tmp_path / "run", plan)
    run = FakeRun(store, {(0, HALF): lambda: "failed"})
    train(store, plan, run)
    first = next(row for row in read_lineage(store.directory) if row["member"] == 0 and row["steps"])
    assert first["donor"] is not None
    assert (first["score"], first["steps"]) == (None, HALF)  # those of its checkpoint: games before do not count
    assert first["why"].startswith("failed; its run failed")
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3
    is_whole(store)


def pending_store(tmp_path: Path) -> tuple[Store, Any, int]:
    """A population with a copy that was decided and not made yet; whose it is."""
    plan = plan_of()
    store = begun(tmp_path / "run", plan)
    for _ in range(9):
        train(store, plan, FakeRun(store), turns=1)
        found = [m["member"] for m in store.read()["members"] if m["pending"]]
        if found:
            return store, plan, found[0]
    raise AssertionError


def copied_weights(store: Store, i: int) -> np.ndarray:
    found = checkpoint.newest(store.member(i), lambda text: None)
    return checkpoint.read_arrays(found / "agents/0/policy.safetensors")["w"]


@pytest.mark.parametrize("harm", ["deleted", "half deleted", "damaged once it had its name"])
def test_a_copy_that_is_harmed_before_it_is_used_is_made_again(harm, tmp_path):
    store, plan, i = pending_store(tmp_path)
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
    m = trainer._begin(store, plan, i)
    assert (m["state"], m["pending"]) == (TRAINING, None)
    assert np.array_equal(copied_weights(store, i), copied_weights(store, donor))
    train(store, plan, FakeRun(store))
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3
    is_whole(store)


def test_a_copy_that_cannot_be_made_again_fails_its_member_alone(tmp_path):
    store, plan, i = pending_store(tmp_path)
    donor = store.read()["members"][i]["pending"]["copy"][0]
    checkpoint.remove_partial(store.member(i))
    gone = shutil.move(store.member(donor) / "checkpoints", tmp_path / "gone")
    m = trainer._begin(store, plan, i)
    assert (m["state"], m["lost"], m["pending"]) == (FAILED, True, None)
    assert m["why"].startswith(f"its copy of member {donor:02d} is gone: RUN: ")
    with pytest.raises(UserError, match=r"has no checkpoint, but its files record updates: put back"):
        train(store, plan, FakeRun(store))
    shutil.move(gone, store.member(donor) / "checkpoints")
    train(store, plan, FakeRun(store))
    assert [m["state"] for m in store.read()["members"]] == [DONE] * 3


def test_a_full_disk_ends_the_trainer_with_one_line_and_loses_nobody(tmp_path, monkeypatch):
    plan = plan_of()
    whole = known(finished(tmp_path / "whole", plan))
    store = begun(tmp_path / "cut", plan)
    real, full = os.replace, [25]

    def replace(*args: Any) -> None:
        full[0] -= 1
        if full[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[1]))
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(WorkerLost, match=r"^/.*: No space left on device; the disk is full: free some space$"):
            train(store, plan, FakeRun(store))
    is_whole(store)
    train(store, plan, FakeRun(store))
    assert known(store) == whole


def test_members_that_another_trainer_has_are_left_alone(tmp_path):
    plan = plan_of()
    store = begun(tmp_path / "run", plan)
    run = FakeRun(store)
    with store.claimed(0) as mine:
        assert mine
        train(store, plan, run, turns=2)
    assert {i for i, _ in run.trained} == {1, 2}
    train(store, plan, run, turns=1)
    assert run.trained[-1] == (0, EVERY)


SCORES = [1.0, 5.0, 3.0, 9.0, 4.0]


class Scored:
    """A population of which every member has had its first turn. Copies are not prepared: `asked` has them."""

    def __init__(self, directory: Path, wrong: str = "", **more: Any):
        """wrong: why no donor can be copied."""
        self.plan, self.wrong, self.asked = plan_of(size=5, **more), wrong, list[tuple[int, str, bool]]()
        self.store = begun(directory, self.plan)
        population = self.store.read()
        for m, score in zip(population["members"], SCORES, strict=True):
            m |= {"steps": EVERY + m["member"], "frames": 4 * EVERY, "score": score, "games": [score] * 10}
        self.store.write(population)
        self.before = population["members"]

    def prepare(self, receiver: int, donor: int, name: str, lanes: bool) -> PreparedCopy:
        self.asked.append((donor, name, lanes))
        if self.wrong:
            raise UserError(self.wrong)
        return "000000000008-steps-40", EVERY + donor

    def decided(self, i: int, **changed: Any) -> tuple[Row, Row]:
        """The member afterwards, and the line about it."""
        with self.store.locked():
            runs = MemberRuns(self.store, self.plan, self.store.read())
            runs.members[i] |= changed
            runs.prepare = self.prepare  # type: ignore[method-assign]
            runs.decide(i)
            self.store.write(runs.population)
        return self.store.read()["members"][i], read_lineage(self.store.directory)[-1]


def test_one_of_the_worst_copies_one_of_the_best(tmp_path):
    case = Scored(tmp_path / "run")
    before = case.before
    m, row = case.decided(0)
    assert case.asked == [(3, "copy-5", True)]
    assert m["pending"] == {"copy": [3, "copy-5", True], "final": "000000000008-steps-40"}
    assert (m["score"], m["games"], m["copied"], m["since"], m["turns"]) == (None, [], EVERY, EVERY, 1)
    assert round(m["values"]["rate"] / before[3]["values"]["rate"], 6) in (0.8, 1.2)
    told = {"decision": 5, "member": 0, "donor": 3, "score": 1.0, "donor_score": 9.0, "steps": EVERY}
    told |= {"donor_steps": EVERY + 3, "old": before[0]["values"], "new": m["values"]}
    assert {k: row[k] for k in told} == told
    assert row["why"] == "in the bottom 20 %"
    assert [other for other in case.store.read()["members"] if other["member"]] == before[1:]


def test_what_lanes_cannot_go_on_with_says_so(tmp_path):
    case = Scored(tmp_path / "run", priors={"lanes": parse_prior("lanes=2,4", int)}, anew=frozenset({"lanes"}))
    m, row = case.decided(0)
    assert case.asked[0][2] == (row["old"] == row["new"])
    assert m["values"]["lanes"] in (2, 4)


def test_a_failed_member_that_finds_no_donor_tries_again_without_a_line(tmp_path):
    case = Scored(tmp_path / "run", wrong="RUN: its disk is gone")
    for n in range(1, DRAWS + 1):
        assert may_train(case.store.read(), 0)
        m, row = case.decided(0, **({"state": FAILED} if n == 1 else {}))
        assert (m["state"], m["falls"], m["pending"]) == (FAILED, n, None)
        assert row["decision"] == 4
    assert not may_train(case.store.read(), 0)


def test_a_donor_that_cannot_be_read_is_told_in_the_line(tmp_path):
    m, row = Scored(tmp_path / "run", wrong="RUN: its disk is gone").decided(0)
    assert (row["donor"], row["why"], row["old"]) == (None, "not copied: RUN: its disk is gone", row["new"])
    assert (m["score"], m["turns"], m["pending"], m["copied"]) == (1.0, 1, None, 0)


def test_founders_follow_from_the_seed_alone():
    founders = plan_of(size=4).founders()
    assert founders == plan_of(size=4, exploit="none", explore="resample").founders()
    assert founders != plan_of(size=4, seed=4).founders()
    assert len({f["rate"] for f in founders}) == 4
    lists = {"a": parse_prior("a=1,2", int), "b": parse_prior("b=x,y,z", str)}
    grid = plan_of(size=6, priors=lists, grid=True).founders()
    assert grid == [{"a": a, "b": b} for a in (1, 2) for b in "xyz"]


OWN, GIVEN = [1.0, 2.0], [5.0, 6.0]


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A receiver at update 7 and a donor at update 30."""
    receiver, donor = tmp_path / "receiver", tmp_path / "donor"
    save(receiver, 5, OWN, 90)
    save(receiver, 7, OWN, 100, rate=0.5, episodes=3, games={"0+2": 3}, episodic_return_mean=4.0)
    save(donor, 20, [9.0, 9.0], 350)
    save(donor, 30, GIVEN, 400, rate=0.01)
    return receiver, donor


def copied(receiver: Path, donor: Path, **more: Any) -> Path:
    final, _ = trainer.prepare_copy(receiver, donor, "copy-17", **more)
    assert trainer.complete_copy(receiver, "copy-17", final)
    found = checkpoint.newest(receiver, pytest.fail, checkpoint.resume_flaw)
    assert found.name == final
    return found


def arrays(found: Path, name: str) -> dict[str, np.ndarray]:
    return checkpoint.read_arrays(found / f"{name}.safetensors")


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_what_comes_from_whom(runs):
    receiver, donor = runs
    before, given = checkpoint.everything(receiver)[-1], checkpoint.everything(donor)[-1]
    found = copied(receiver, donor)
    assert found.name == "000000000008-steps-100"
    for name in ("policy", "optimizer", "target"):
        assert same(arrays(found, f"agents/0/{name}"), arrays(given, f"agents/0/{name}")), name
    assert arrays(found, "agents/0/policy")["running_mean"].tolist() == [105.0, 106.0]
    learner = json.loads((found / "agents/0/learner.json").read_text())
    own = {"hyperparameters": {"learning_rate": 0.5}, "configured": {"learning_rate": 0.5}}
    assert learner == {"version": 8, "learnt": 100.0, **own}
    lanes, own_lanes = arrays(found, "workers/act-0"), arrays(before, "workers/act-0")
    assert own_lanes["groups/0/state/core"].any()
    assert not lanes.pop("groups/0/state/core").any()
    assert same(lanes, {k: v for k, v in own_lanes.items() if k in lanes})
    for name in ("workers/act-0.json", "replay/0/replay.json"):
        assert (found / name).read_bytes() == (before / name).read_bytes()
    counters = checkpoint.manifest(found)["counters"]
    assert counters == {**checkpoint.manifest(before)["counters"], "updates": 8, "episodic_return_mean": None}


@pytest.mark.parametrize("at", ["while it is checked", "before it is checked"])
def test_a_donor_whose_only_checkpoint_is_replaced_meanwhile(at, runs, monkeypatch):
    receiver, donor = runs
    checkpoint.prune(donor, 1)
    real, left = checkpoint.flaw, [1]

    def flaw(path: Path, within: str = "") -> str | None:
        if path.is_relative_to(donor) and left[0]:
            left[0] -= 1
            save(donor, 31, [7.0, 7.0], 500)
            shutil.rmtree(path)
            if at == "while it is checked":
                raise FileNotFoundError(errno.ENOENT, "gone", str(path))
        return real(path, within)

    monkeypatch.setattr(checkpoint, "flaw", flaw)
    assert arrays(copied(receiver, donor), "agents/0/policy")["w"].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("harm", ["bytes", "missing", "not finite"])
def test_of_a_damaged_donor_the_checkpoint_before_is_copied_or_none(harm, runs):
    receiver, donor = runs
    first, newest = (found / "agents/0/policy.safetensors" for found in checkpoint.everything(donor))
    if harm == "bytes":
        newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    elif harm == "missing":
        newest.unlink()
    else:
        save(donor, 30, [np.nan, 1.0], 400)
    assert arrays(copied(receiver, donor), "agents/0/policy")["w"].tolist() == [9.0, 9.0]
    before = checkpoint.everything(receiver)[-1].name
    first.unlink()
    with pytest.raises(UserError, match=r"donor has no usable checkpoint \(2 found, all damaged\)"):
        trainer.prepare_copy(receiver, donor, "copy-17")
    assert checkpoint.everything(receiver)[-1].name == before


def test_a_donor_that_has_learnt_nothing_is_not_copied(runs, tmp_path):
    save(tmp_path / "new", 0, GIVEN, 0)
    with pytest.raises(UserError, match="new has made no updates yet"):
        trainer.prepare_copy(runs[0], tmp_path / "new", "copy-17")


@pytest.mark.parametrize("file", ["workers/act-0.safetensors", "agents/0/learner.json"])
def test_of_a_damaged_receiver_the_checkpoint_before_goes_on(file, runs):
    """What a run would pass over when it goes on is no part of the copy, and the copy is the newest all the same."""
    receiver, donor = runs
    newest = checkpoint.everything(receiver)[-1]
    (newest / file).unlink()
    (newest / file).write_bytes(b"damaged")
    found = copied(receiver, donor)
    assert found.name == "000000000006-steps-90"
    assert checkpoint.everything(receiver)[-1] == found
    assert json.loads((found / "agents/0/learner.json").read_text())["learnt"] == 90.0
    assert (receiver / "checkpoints" / f"unused-{newest.name}").exists()


def test_lanes_begin_anew_and_files_that_have_one_name_each_are_copied(runs, monkeypatch):
    def link(*args: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    found = copied(*runs, lanes=False)
    assert arrays(found, "agents/0/policy")["w"].tolist() == GIVEN
    assert (found / "agents/0/policy.safetensors").stat().st_nlink == 1
    assert ((found / "workers").exists(), (found / "replay/0/replay.json").exists()) == (False, True)
