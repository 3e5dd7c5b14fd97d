"""The files of a population: lines and decisions agree, whoever was killed between them, and nobody is taken twice."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from polyplay.core.errors import UserError
from polyplay.population.store import FAILED, LINEAGE, Store, founder, line_of, read_lineage, standing, wall_seconds
from tests.population.fake_members import begun, evolution_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return begun(tmp_path / "run", evolution_of())


def decide(store: Store, i: int = 0, why: str = "no member is better") -> None:
    with store.locked():
        population = store.read()
        m = population["members"][i]
        store.commit(population, line_of(population, m, m["values"], why))


def numbers(store: Store) -> list[int]:
    return [row["decision"] for row in read_lineage(store.directory)]


def test_founders_have_the_first_lines(store):
    population, rows = store.read(), read_lineage(store.directory)
    assert numbers(store) == [0, 1, 2]
    assert population["decisions"] == 3
    assert [row["new"] for row in rows] == [m["values"] for m in population["members"]]
    assert all(row["old"] == {} and row["donor"] is None and row["why"] == "drawn from the prior" for row in rows)
    assert founder(1, {"rate": 0.5}).keys() == population["members"][1].keys()


def test_it_may_be_begun_again_where_it_was_killed_before_it_was_a_run(store):
    (store.directory / LINEAGE).write_text((store.directory / LINEAGE).read_text() + '{"torn')
    begun(store.directory, evolution_of(size=2))
    assert numbers(store) == [0, 1]
    assert len(store.read()["members"]) == 2


def test_a_line_whose_decision_was_not_made_is_cut_off(store, monkeypatch):
    def killed(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("polyplay.population.store.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            decide(store, 1, "not made")
    assert numbers(store) == [0, 1, 2, 3]
    assert store.read()["decisions"] == 3
    store.repair()
    assert numbers(store) == [0, 1, 2]
    store.repair()
    assert numbers(store) == [0, 1, 2]


@pytest.mark.parametrize(
    "left", ['{"decision": 3, "member": 1', '{"decision": 3}\n', '{"decision": 3}\n{"decision": 4}\n{"d']
)
def test_the_next_decision_has_the_number_of_one_that_was_not_made(left, store):
    with (store.directory / LINEAGE).open("a") as file:
        file.write(left)
    decide(store, 2, "made")
    assert numbers(store) == [0, 1, 2, 3]
    assert read_lineage(store.directory)[-1]["why"] == "made"


def test_a_full_disk_leaves_lines_and_decisions_as_they_were(store, monkeypatch):
    before = (store.directory / LINEAGE).read_bytes(), store.read()
    real = os.write

    def write(fd: int, data: bytes) -> int:
        real(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space left"):
            decide(store)
    assert ((store.directory / LINEAGE).read_bytes(), store.read()) == before
    decide(store)
    assert numbers(store) == [0, 1, 2, 3]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2, "members": []}', '{"schema": 1}'])
def test_a_damaged_file_is_told_in_one_line(text, store):
    (store.directory / "population.json").write_text(text)
    with pytest.raises(UserError, match=r"^RUN: /.*population\.json [^\n]*$"):
        store.read()


def test_a_failed_member_is_the_worst():
    assert standing(founder(0, {})).score is None
    assert standing(founder(0, {}) | {"state": FAILED, "score": 3.0}).score == float("-inf")


def test_seconds_of_all_sittings():
    assert wall_seconds({}) == 0.0
    assert wall_seconds({"clock": {"before": 100.0, "since": time.monotonic() - 5}}) == pytest.approx(105, abs=30)


@pytest.mark.parametrize("jump", [-7200.0, 7200.0, 1e9], ids=["back", "forth", "another epoch"])
def test_a_clock_that_is_set_changes_no_duration(jump, monkeypatch):
    population = {"clock": {"before": 100.0, "since": time.monotonic()}}
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert wall_seconds(population) == pytest.approx(100, abs=30)
    for since in (time.monotonic() + 1e6, real()):  # of another start of the machine, and of an earlier version
        assert wall_seconds({"clock": {"before": 100.0, "since": since}}) == 100.0


def hold(directory: Path, i: int, ready: Any) -> None:
    store = Store(directory)
    with store.claimed(i) as mine, store.locked():
        ready.send(mine)
        time.sleep(600)


def test_a_member_is_one_trainers_alone_and_free_when_that_is_killed(store):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(store.directory, 1, theirs))
    process.start()
    try:
        assert ours.recv() is True
        with store.claimed(1) as mine:
            assert not mine
        with store.claimed(0) as mine:
            assert mine
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        with store.claimed(1) as mine:
            assert mine
        with store.locked():
            assert json.loads((store.directory / "population.json").read_text()) == store.read()
    finally:
        process.kill()
        process.join()


def test_a_claim_within_one_process_excludes_too(store):
    """Trainers may be threads."""
    with store.claimed(2) as first, store.claimed(2) as second:
        assert (first, second) == (True, False)
