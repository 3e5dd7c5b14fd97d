"""What crosses of what every worker has: cells, counters, hyperparameters, files. Carried by hand."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyplay.core import checkpoint, worker
from polyplay.core.errors import Closed
from polyplay.core.flows import EVERYONE, FILE, MAIN, MARK, Cells
from polyplay.core.shared_memory import Semaphores, SharedObject
from polyplay.core.worker import EPISODES, Counters, Hyperparameters, HyperparameterSchedule, RunControl, SchedulePoint
from polyplay.workers.hosts import traffic as traffics
from polyplay.workers.hosts.traffic import Traffic, file_pieces
from tests.workers.hosts.by_hand import Wire, copied, files_in, queue_of, seat_of

INF = np.inf

# Cells.


def test_cells_go_out_when_they_change():
    control = RunControl()
    wire = Wire(control)
    wire.seat("act")
    wire.out()
    wire.send()
    assert not wire.to_away
    control.dismissed[3] = 1
    control.halt()
    wire.out()
    assert wire.twins[0].dismissed[3] == 1
    with pytest.raises(Closed):
        wire.twins[0].check()


def test_whoever_sees_the_last_cell_has_what_was_written_before_it():
    """Also where it is written while the others are read."""
    data, mark = np.zeros(1), np.zeros(1)

    class Slow:
        """A view, behind whose reading the writer gets a turn."""

        def __init__(self, view: np.ndarray):
            self.view = view

        def tobytes(self) -> bytes:
            read = self.view.tobytes()
            data[0] += 1  # as writers do
            mark[0] = data[0]
            return read

    views: Any = [Slow(data), Slow(mark)]
    seen = np.frombuffer(Cells(MAIN, [EVERYONE], views).token(True))
    assert seen[0] >= seen[1]


def test_what_begins_is_no_newer_than_what_was_sent_before_it():
    """The writer goes on while a worker's beginning is sent: a later cell tells of nothing that has not gone."""
    control = RunControl()
    wire = Wire(control)
    first, second = np.zeros(1), np.zeros(1)
    wire.home.flows[:] = [Cells(MAIN, [EVERYONE], [x]) for x in (first, second)]
    for number, flow in enumerate(wire.home.flows):
        flow.traffic, flow.number = wire.home, number
    begun = {}
    for number, _, _, arrays in copied(wire.home.begin(seat_of("act"))):
        begun[number] = float(arrays[0].view(np.float64)[0])
        first[0] += 1
        second[0] = first[0]
    assert begun[1] <= begun[0]
    sent = {number for number, *_ in wire.home.news(0.0)}
    wire.home.sit(seat_of("act"))
    sent |= {number for number, *_ in wire.home.news(0.0)}
    assert sent == {0, 1}, "what was written meanwhile follows"


def test_a_bell_of_who_waits_elsewhere_rings_the_line():
    lines, bells = Semaphores(2), Semaphores(3)
    bells.relay_by(lines)
    bells[1].relay(1)
    bells[1].post()
    bells[0].post()
    assert (lines[1].wait(0), lines[0].wait(0), bells[1].wait(0), bells[0].wait(0)) == (True, False, False, True)
    bells[1].relay(None)
    bells[1].post()
    assert bells[1].wait(0)


def test_what_does_not_cross_machines_is_refused():
    class Odd(SharedObject):
        pass

    assert Odd().crossing() is None  # test_fleet has what a run says then


# Hyperparameters.


def scheduled() -> Hyperparameters:
    hyper = Hyperparameters(learning_rate=1.0, entropy_cost=0.1, remaining=1.0)
    hyper.schedules = (HyperparameterSchedule("entropy_cost", (SchedulePoint(0.2, 0.0, True),)),)
    return hyper


def test_what_is_scheduled_is_its_learners_own_and_what_remains_of_the_run_comes_from_there():
    hyper = scheduled()
    wire = Wire(hyper)
    wire.seat("learn", row=2, kinds=("learner",))
    there = wire.twins[0]
    there.keep_to_schedules(0.0, 1.0)
    there.set("remaining", 0.3)
    hyper.set("learning_rate", 0.5)
    wire.both(INF)
    assert there.all() == {"learning_rate": 0.5, "entropy_cost": 0.2, "remaining": 0.3}
    assert hyper.all() == {"learning_rate": 0.5, "entropy_cost": 0.1, "remaining": 0.3}


def test_where_nobody_learns_all_hyperparameters_are_as_at_home():
    hyper = scheduled()
    wire = Wire(hyper)
    wire.seat("act")
    hyper.keep_to_schedules(0.0, 1.0)
    hyper.set("remaining", 0.4)
    wire.out(INF)
    assert wire.twins[0].all() == hyper.all() == {"learning_rate": 1.0, "entropy_cost": 0.2, "remaining": 0.4}


# Counters.


def test_counts_and_new_games_come_home_once():
    counters = Counters(3, ("loss",))
    wire = Wire(counters)
    counters.row(2).add("steps", 100)
    wire.seat("act", row=2)
    there = wire.twins[0].row(2)
    assert there.get("steps") == 100
    for i in range(100):
        there.add("steps", 8)
        there.episode(float(i), 10.0, 3)
    there.losses({"loss": 2.5})
    wire.back(INF)
    here = counters.row(2)
    assert (here.get("steps"), here.get("episodes")) == (900, 100)
    assert here.games[:100, 0].tolist() == list(range(100))
    assert here.metrics.tolist() == [[2.5, 1.0]]
    there.episode(7.0, 1.0, 0)
    wire.send_back(INF)
    ((_, part, _, (_, rows, games)),) = wire.to_home
    assert (part, rows.tolist(), games[:, 0].tolist()) == (MARK, [100], [7.0]), "a new game goes with its count"
    wire.send_back(0.0)
    assert len(wire.to_home) == 1, "counts go four times a second"


def test_of_more_games_than_have_room_the_newest_come_home():
    counters = Counters(1)
    wire = Wire(counters)
    wire.seat("act")
    there = wire.twins[0].row(0)
    for i in range(EPISODES + 10):
        there.episode(float(i), 1.0, 0)
    wire.back(INF)
    here = counters.row(0)
    assert here.get("episodes") == EPISODES + 10
    assert sorted(here.games[:, 0].tolist()) == list(range(10, EPISODES + 10))


def test_a_stamp_from_another_clock_is_the_time_at_which_it_came(monkeypatch):
    counters = Counters(1)
    wire = Wire(counters)
    wire.seat("act")
    there, here = wire.twins[0].values[0], counters.values[0]
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: 50.0))
    there[:2] = 9e9, 1
    wire.back(INF)
    assert here[:2].tolist() == [50.0, 1.0]
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: 60.0))
    there[2] = 7  # no new stamp
    wire.back(INF)
    assert here[:3].tolist() == [50.0, 1.0, 7.0]


def test_a_replaced_worker_goes_on_counting_where_the_lost_one_was():
    counters = Counters(1)
    wire = Wire(counters)
    wire.seat("act")
    wire.twins[0].row(0).add("steps", 5)
    wire.twins[0].row(0).episode(1.0, 1.0, 0)
    wire.back(INF)
    wire = Wire(counters)  # its machine was lost
    wire.seat("act")
    there = wire.twins[0].row(0)
    assert (there.get("steps"), there.get("episodes")) == (5, 1)
    there.episode(2.0, 1.0, 0)
    wire.send_back(INF)
    assert [arrays[1].tolist() for *_, arrays in wire.to_home] == [[1]]
    wire.land_home()
    assert counters.row(0).games[:2, 0].tolist() == [1.0, 2.0]


def test_a_judge_elsewhere_sees_what_others_have_counted_but_its_own_machines_rows_stay():
    counters = Counters(3)
    actor, judge = Wire(counters, relay=0), Wire(counters, relay=1)
    actor.seat("act", 0, row=1)
    judge.seat("judge", 0, row=2, kinds=("judge",))
    actor.twins[0].row(1).add("steps", 40)
    judge.twins[0].row(2).add("served", 3)
    counters.row(0).add("learnt", 20)
    actor.back(INF)
    judge.out(INF)
    there = judge.twins[0]
    assert [there.row(0).get("learnt"), there.row(1).get("steps"), there.row(2).get("served")] == [20, 40, 3]
    assert actor.twins[0].row(0).get("learnt") == 0, "nobody there reads that"
    judge.back(INF)
    assert counters.row(2).get("served") == 3


# Files.


def part_of(root: Path, name: str, data: bytes = b"whole") -> Path:
    path = root / "checkpoints/.partial-000000000005" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def roots(tmp_path) -> tuple[Path, Path]:
    for name in ("home", "away"):
        (tmp_path / name).mkdir()
    return tmp_path / "home", tmp_path / "away"


def test_a_workers_part_of_a_checkpoint_is_there_before_its_answer_and_is_gone_where_it_was(roots, monkeypatch):
    monkeypatch.setattr(traffics, "CHUNK", 7)
    queue = queue_of()
    wire = Wire(queue, roots=roots)
    wire.seat("out", 0)
    data = bytes(range(100))
    part_of(roots[1], "workers/act-0.json", data)
    part_of(roots[1], "workers/.act-1.json.tmp")
    wire.twins[0].answer(0, 5)
    wire.send_back()
    while wire.to_home:
        assert queue.answered[0] == 0
        wire.land_home(1)
    assert queue.answered[0] == 6
    (name,) = files_in(roots[0])
    assert (roots[0] / name).read_bytes() == data
    assert [Path(name).name for name in files_in(roots[1])] == [".act-1.json.tmp"]


def test_a_learners_part_is_there_before_its_counter_says_so(roots):
    counters = Counters(2)
    wire = Wire(counters, roots=roots)
    wire.seat("replica", 1, row=1)
    part_of(roots[1], "workers/replica-1.json")
    there = wire.twins[0].row(1)
    there.add("steps", 1)
    wire.back(INF)
    assert files_in(roots[0]) == []
    there.set("saved", 6.0)
    wire.send_back(INF)
    wire.land_home(2)
    assert counters.row(1).get("saved") == 0.0
    wire.land_home()
    assert counters.row(1).get("saved") == 6.0
    assert [Path(name).name for name in files_in(roots[0])] == ["replica-1.json"]


def test_an_answer_that_home_passes_on_takes_no_files_along(roots):
    """An actor answers a memory on a third machine; parts of checkpoints stay at home."""
    queue = queue_of()
    actor, memory = Wire(queue, relay=0, roots=roots), Wire(queue, relay=1, roots=(roots[0], roots[1] / "memory"))
    actor.seat("out", 0)
    memory.seat("source", 0)
    part_of(roots[1], "workers/act-0.json")
    part_of(roots[0], "agents/0/policy.safetensors")
    actor.twins[0].answer(0, 5)
    actor.back()
    memory.out()
    assert memory.twins[0].answered[0] == 6
    assert sorted(Path(name).name for name in files_in(roots[0])) == ["act-0.json", "policy.safetensors"]


class Full:
    """A disk without room for files with this in their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, what: str):
        def opened(path: Path, mode: str) -> Any:
            if what in path.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            return open(path, mode)

        monkeypatch.setattr(traffics, "open", opened, raising=False)


@pytest.mark.parametrize("full", ["act-0", "act-1"])
def test_where_homes_disk_is_full_the_answer_of_who_wrote_that_part_says_so(full, roots, monkeypatch):
    queue, said = queue_of(producers=2), list[str]()
    wire = Wire(queue, roots=roots)
    wire.home.warn = said.append
    for i in range(2):
        wire.seat("out", i)
        part_of(roots[1], f"workers/act-{i}.json")
        wire.twins[0].answer(i, 5)
    with monkeypatch.context() as patch:
        Full(patch, full)
        wire.back()
    assert f"checkpoints/.partial-000000000005/workers/{full}.json could not be written: No space left" in said[0]
    assert len(files_in(roots[0])) == 1
    failed = [i for i in range(2) if queue.answered[i] < 0]
    assert int(full[-1]) in failed
    for i in range(2):
        part_of(roots[1], f"workers/act-{i}.json")
        wire.twins[0].answer(i, 6)
    wire.back()
    assert queue.answered.tolist() == [7, 7]
    assert len(files_in(roots[0])) == 2


def test_where_the_disk_of_who_begins_is_full_the_line_ends(roots, monkeypatch):
    """Nobody there can do without those files."""
    (roots[0] / "x").write_bytes(b"12")
    traffic = Traffic([], True, 0, roots[1])
    Full(monkeypatch, "act-0")
    first = next(file_pieces(roots[0] / "x", "resume/workers/act-0.json"))
    with pytest.raises(OSError, match="No space left"):
        traffic.land((0, *first))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "checkpoints/.partial-000000000001/workers/../../../x-1.json",
        "resume/workers/act-0.py",
        "resume/workers/act-0.json\n",
        "",
    ],
)
def test_a_file_goes_nowhere_but_to_a_part_of_a_checkpoint(name, tmp_path):
    traffic = Traffic([], False, 0, tmp_path)
    arrays = [np.frombuffer(x, np.uint8) for x in (name.encode(), b"act-0", b"x")]
    with pytest.raises(ValueError, match="a file named"):
        traffic.land((0, FILE, 0, arrays))
    assert list(tmp_path.rglob("*")) == []


def test_late_parts_are_dropped_but_those_of_the_beginning_and_that_are_waited_for_are_not(tmp_path):
    home = tmp_path / "home"
    for made in ("000000000000-steps-0", "000000000004-steps-9"):
        (home / "checkpoints" / made).mkdir(parents=True)
    (tmp_path / "x").write_bytes(b"ab")
    names = ["0/workers/act-1.json", "0/agents/0/policy.safetensors", "4/workers/replica-1.json"]
    names += ["4/replay/replica-1/replay.json", "4/workers/act-1.json"]
    traffic, names = Traffic([], False, 0, home), [f"checkpoints/.partial-00000000000{name}" for name in names]
    for name in names:
        for piece in file_pieces(tmp_path / "x", name, "act-1"):
            traffic.land((0, *piece))
    assert [(home / name).is_file() for name in names] == [True] * 4 + [False]
    assert not traffic.unwritten


def test_a_part_whose_checkpoint_is_made_while_it_comes_is_dropped_whole(tmp_path):
    home = tmp_path / "home"
    checkpoint.CheckpointPart(home, 5).arrays("agents/0/policy", {"w": np.zeros(3, np.float32)})
    (tmp_path / "x").write_bytes(b"ab")
    traffic, name = Traffic([], False, 0, home), "checkpoints/.partial-000000000005/workers/act-1.json"
    first, *others = file_pieces(tmp_path / "x", name, "act-1")
    traffic.land((0, *first))
    made = checkpoint.complete(home, 5, {"steps": 5})
    for piece in others:
        traffic.land((0, *piece))
    assert checkpoint.flaw(made) is None
    assert not list(home.rglob("*act-1*"))
    assert not traffic.unwritten
