"""Machines whose agents were lost, or could not be opened, get others, later each time."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace

import pytest

from polyplay.core.errors import UserError
from polyplay.core.worker import RunControl
from polyplay.workers.hosts import fleet as fleets
from polyplay.workers.hosts.engines import MachineInfo, node_names
from polyplay.workers.hosts.fleet import HOUR, MOST, Fleet, Retries


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """clock.now: seconds, as the retries see them."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fleets, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_each_pause_is_twice_as_long_and_after_some_within_an_hour_comes_a_long_one(clock):
    tries = Retries()
    assert tries.allows("a")
    assert [tries.fail("a") for _ in range(MOST + 1)] == [2.0, 4.0, 8.0, 16.0, 32.0, HOUR]
    assert not tries.allows("a")
    assert tries.fail("b") == 2.0, "each machine for itself"
    clock.now += HOUR + 1.0
    assert tries.allows("a")
    assert tries.fail("a") == 2.0, "what is longer ago than an hour does not count"


def test_a_pause_that_is_over_is_told_once(clock):
    tries = Retries()
    tries.fail("a")
    assert not tries.passed()
    clock.now += 2.0
    assert tries.passed()
    assert not tries.passed()
    assert tries.allows("a")


class Machines:
    """An engine whose machines all live; `refuses`: those on which no agent starts."""

    own_cores = False

    def __init__(self, *names: str):
        self.infos, self.refuses = [MachineInfo(name, "127.0.0.1", 2) for name in names], set[str]()

    def machines(self) -> list[MachineInfo]:
        return self.infos


@pytest.fixture
def fleet(monkeypatch, clock) -> Fleet:
    """Of a and b, both opened, without processes; c joins later."""
    monkeypatch.setattr(fleets, "LOOK", 0.0)
    fleet = Fleet(Machines("a", "b"))
    fleet._control, fleet._log = RunControl(), None

    def open_one(info: MachineInfo) -> bool:
        if info.name in fleet.engine.refuses:
            raise UserError(f"no agent on {info.name}")
        old = [m for m in fleet.opened if m.info.name == info.name]
        fleet.opened[:] = [m for m in fleet.opened if m not in old]
        fleet.opened.append(SimpleNamespace(info=info, lost=None))
        return bool(old)

    monkeypatch.setattr(fleet, "_open", open_one)
    for info in fleet.engine.machines():
        fleet._open(info)
    return fleet


def look(fleet: Fleet) -> list[str]:
    """What is said of a look, once all that it began is over."""
    fleet._look()
    for thread in fleet._threads:
        thread.join(10)
    return fleet.news()


def lose(fleet: Fleet, name: str) -> None:
    next(m for m in fleet.opened if m.info.name == name).lost = "killed"
    fleet._retries.fail(name)


def live(fleet: Fleet) -> list[str]:
    return sorted(m.info.name for m in fleet.opened if m.lost is None)


def test_a_machine_that_lives_gets_a_new_agent_after_a_pause(fleet, clock):
    assert look(fleet) == []
    lose(fleet, "a")
    assert (look(fleet), live(fleet)) == ([], ["b"])
    clock.now += 2.0
    assert (look(fleet), live(fleet)) == (["machine a has a new agent"], ["a", "b"])
    lose(fleet, "a")
    clock.now += 2.0
    assert (look(fleet), live(fleet)) == ([], ["b"]), "the second pause is longer"
    clock.now += 2.0
    assert (look(fleet), live(fleet)) == (["machine a has a new agent"], ["a", "b"])


def test_a_machine_without_an_agent_keeps_no_other_waiting(fleet, clock):
    lose(fleet, "a")
    fleet.engine.refuses.add("a")
    fleet.engine.infos.append(MachineInfo("c", "127.0.0.1", 2))
    clock.now += 2.0
    said = look(fleet)
    assert sorted(said) == [
        "machine a gets no agent; the next try is in 4 s: no agent on a",
        "machine c has joined",
    ]
    assert live(fleet) == ["b", "c"]
    assert look(fleet) == []
    clock.now += 4.0
    fleet.engine.refuses.clear()
    assert look(fleet) == ["machine a has a new agent"]


def test_a_machine_that_has_gone_gets_none_and_a_run_that_ends_opens_none(fleet, clock):
    lose(fleet, "a")
    clock.now += 2.0
    gone = fleet.engine.infos.pop(0)
    assert (look(fleet), live(fleet)) == ([], ["b"])
    assert fleet._barren > -math.inf, "so whoever waits for one is placed elsewhere"
    fleet.engine.infos.append(gone)
    fleet._control.halt()
    assert (look(fleet), live(fleet)) == ([], ["b"])


def test_the_number_of_a_lost_machine_s_link_is_given_to_one_other_alone(fleet):
    nothing = SimpleNamespace(kill=int, join=int, close=int)
    held = {"workers": {}, "link": nothing, "pipe": nothing, "handle": SimpleNamespace(end=int)}
    for machine in fleet.opened:
        vars(machine).update(held, number=fleet._free_link())
    assert [machine.number for machine in fleet.opened] == [0, 1]
    fleet._lose(fleet.opened[0], "killed")
    assert [fleet._free_link() for _ in range(3)] == [0, 2, 3]


def test_machines_that_could_not_be_listed_are_looked_for_again(fleet, monkeypatch):
    def fails() -> list[MachineInfo]:
        raise RuntimeError("the cluster does not answer")

    monkeypatch.setattr(fleet.engine, "machines", fails)
    fleet._looking.set()
    fleet._look()
    assert not fleet._looking.is_set()
    assert threading.active_count() < 50


@pytest.mark.parametrize(
    ("nodes", "before", "names"),
    [
        ({"id1111x": "m", "id2222x": "n"}, {}, ["m", "n"]),
        ({"id1111x": "m", "id2222x": "m"}, {}, ["m-id1111", "m-id2222"]),
        ({"id1111x": "m", "id2222x": "m"}, {"id1111x": "m"}, ["m", "m-id2222"]),
        ({"id2222x": "m"}, {"id1111x": "m"}, ["m"]),
    ],
    ids=["alone", "alike", "one joins", "one begins anew"],
)
def test_nodes_keep_their_names(nodes, before, names):
    assert list(node_names(nodes, before).values()) == names
