"""What crosses of leagues, of the weights of several agents, and of judges, carried by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay.buffers.league import AGENT, PAST, RESULTS, Identity, League
from polyplay.core import checkpoint, flows
from polyplay.weights.params import AgentParams, Params
from polyplay.workers.hosts import remote
from tests.population.leagues import play, small
from tests.weights.ends import POLICY
from tests.workers.hosts.by_hand import Vector, Wire, files_in

SIZE = Params.of(POLICY).size


@pytest.fixture
def roots(tmp_path) -> tuple[Path, Path]:
    for name in ("home", "away"):
        (tmp_path / name).mkdir()
    return tmp_path / "home", tmp_path / "away"


def past_agent(root: Path, league: League, player: int, version: int) -> str:
    """A past agent of agent 0 that may be drawn."""
    path = checkpoint.self_path(root, 0, version)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"weights %d" % version)
    league.put(player, Identity(PAST, 0, version))
    return str(path.relative_to(root))


# Tables.


def test_a_past_agents_file_is_there_before_a_table_that_it_sits_at_and_goes_once(roots):
    league = small()
    wire = Wire(league, roots=roots)
    wire.seat("league", 0)
    there = wire.twins[0]
    there.patience = 0.0
    for player in (0, 1):
        league.put(player, Identity(AGENT, player, 0))
    for draw, player in ((1, 2), (2, 3)):
        file = past_agent(roots[0], league, player, 10 * draw)
        league.seat(0, draw, [0, player])
        wire.send()
        while wire.to_away:
            wire.land_away(1)
            assert there.drawn[0] == draw - 1 or file in files_in(roots[1])
        number, players = there.table(0)
        assert (number, players.tolist()) == (draw, [0, player])
        assert there.identity(player) == Identity(PAST, 0, 10 * draw)
        assert there.wait(0)
        assert file in files_in(roots[0])
        there.acknowledge(0, draw)
        wire.back()
    assert league.acknowledged[0] == 2
    league.seat(0, 3, [0, 3])
    wire.send()
    assert len(wire.to_away) == 1, "its file is there"


def test_an_actor_that_begins_elsewhere_sits_at_its_table(roots):
    league = small()
    file = past_agent(roots[0], league, 2, 5)
    league.seat(1, 4, [0, 2])
    wire = Wire(league, roots=roots)
    wire.seat("league", 1)
    there = wire.twins[0]
    number, players = there.table(1)
    assert (number, players.tolist(), there.identity(2)) == (4, [0, 2], Identity(PAST, 0, 5))
    assert files_in(roots[1]) == [file]


# Results.


def test_results_of_an_actor_elsewhere_come_home_as_they_were_and_ring_the_referee():
    league = small()
    wire = Wire(league)
    wire.seat("league", 1)
    there = wire.twins[0]
    league.seat(1, 1, [0, 1])
    wire.out()
    play(there, 1, [[1.0, 0.0], [0.0, 1.0]])
    while league._bells[0].wait(0):
        pass
    wire.back()
    assert league._bells[0].wait(0)
    draws, players, outcomes = league.results(1, 0, 10)
    assert (draws.tolist(), players.tolist()) == ([1, 1], [[0, 1]] * 2)
    assert outcomes.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_who_sees_a_draw_acknowledged_has_all_results_of_the_one_before(monkeypatch):
    """At any moment while they land."""
    league, seen = small(), list[tuple[int, int]]()
    wire = Wire(league)
    wire.seat("league", 0)
    there = wire.twins[0]
    league.seat(0, 1, [0, 1])
    wire.out()
    play(there, 0, [[1.0, 0.0]] * 3)
    league.seat(0, 2, [1, 0])
    wire.out()
    there.acknowledge(0, 2)
    monkeypatch.setattr(
        flows, "memory_barrier", lambda: seen.append((int(league.acknowledged[0]), int(league.reported[0])))
    )
    wire.back()
    assert (league.acknowledged[0], league.reported[0]) == (2, 3)
    assert (2, 0) not in seen


class Matches:
    """An actor elsewhere that numbers its matches, and a referee that takes them."""

    def __init__(self) -> None:
        self.league, self.numbers = small(), remote.TwinNumbers()
        self.made, self.seen, self.expected = 0, list[int](), list[int]()
        self.open()

    def open(self) -> None:
        self.wire = Wire(self.league, numbers=self.numbers)
        self.wire.seat("league", 0)
        self.there, self.sent = self.wire.twins[0], list[int]()
        self.first = int(self.league.reported[0])

    def report(self, n: int) -> None:
        ids, before = np.arange(self.made, self.made + n), int(self.there.reported[0])
        self.there.report(0, np.stack([ids, ids], 1), np.zeros((n, 2)))
        self.made += n
        self.sent += ids[: int(self.there.reported[0]) - before].tolist()

    def take(self, n: int) -> None:
        """At home, as the referee does."""
        league = self.league
        _, players, _ = league.results(0, int(league.taken[0]), n)
        self.seen += players[:, 0].tolist()
        league.taken[0] += len(players)

    def lose(self) -> None:
        """The machine, with what has not come home."""
        self.expected += self.sent[: int(self.league.reported[0]) - self.first]
        self.open()


@given(moves=st.lists(st.tuples(st.sampled_from("rrtsobbl"), st.sampled_from([1, 7, RESULTS // 3])), max_size=40))
def test_results_are_taken_once_and_in_order_whenever_an_actor_is_replaced(moves):
    matches = Matches()
    for what, n in moves:
        match what:
            case "r":
                matches.report(n)
            case "t":
                matches.take(n)
            case "s":
                matches.wire.send_back()
            case "o":
                matches.wire.out()
            case "b":
                matches.wire.back()
            case "l":
                matches.lose()
    matches.wire.back()
    matches.take(RESULTS)
    assert matches.seen == matches.expected + matches.sent
    matches.wire.both()
    assert matches.league.lost[0] == matches.there.lost[0]
    assert matches.there.taken[0] == matches.league.taken[0]


# Weights of several agents.


def test_weights_of_each_agent_go_where_they_are_read():
    agents = AgentParams(POLICY, 2, readers=2)
    wire = Wire(agents)
    agents.each[0].publish(Vector([3.0] * SIZE), 3, 1)
    wire.seat("params", 1)
    there = wire.twins[0]
    agents.each[1].publish(Vector([4.0] * SIZE), 4, 2)
    wire.out()
    vector: Any = Vector([0.0] * SIZE)
    for i, version in enumerate((3, 4)):
        assert there.each[i].pull(vector) == version
        assert set(vector.flat.tolist()) == {float(version)}
    agents.close()
    assert agents.each[0]._closed[0]


def test_who_waits_for_one_agents_weights_elsewhere_gets_those_at_once():
    agents = AgentParams(POLICY, 2, readers=1)
    wire = Wire(agents)
    wire.seat("params", 0)
    there = wire.twins[0]
    for version in (1, 2):
        for params in agents.each:
            params.publish(Vector([float(version)] * SIZE), version, version)
        wire.out(0.1)
    assert [params.version for params in there.each] == [1, 1], "not that often"
    there.each[1]._waiting[0] = 1
    wire.back(0.1)
    wire.out(0.1)
    assert [params.version for params in there.each] == [1, 2]


# Judges.


def test_a_judges_champion_is_home_before_its_weights_and_stays_where_it_was(roots):
    params = Params(5)
    wire = Wire(params, roots=roots)
    wire.seat("publish", kinds=("judge",))
    there, files = wire.twins[0], list[str]()
    for version in (3, 8):
        folder = f"checkpoints/champion-{version:012d}"
        for name in ("agents/0/policy.safetensors", "manifest.json"):
            path = roots[1] / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{version} {name}".encode())
            files.append(f"{folder}/{name}")
        there.publish(Vector([float(version)] * 5), version, version)
        wire.send_back()
        assert len(wire.to_home) == 5, "each file once: its beginning and its end"
        while wire.to_home:
            assert params.version < version
            wire.land_home(1)
        assert params.version == version
        assert files_in(roots[0]) == files_in(roots[1]) == sorted(files)
