"""Who is on which machine: rules read, what they leave open, and what cannot be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polyplay.core.errors import UserError
from polyplay.core.worker import Edge
from polyplay.learning import LearnerSpec, Source
from polyplay.workers.hosts.cluster import MachineInfo
from polyplay.workers.hosts.places import Places, Spot, parse_places
from polyplay.workers.role import Role

INFOS = [MachineInfo("red", "10.0.0.1", 4, ("fast",)), MachineInfo("blue", "10.0.0.2", 2)]


class Learns(Source):
    """Learns from an edge, or from what it acts."""

    shape = (1, 1)

    def __init__(self, edge: Edge | None = None, envs: Any = None):
        self.edge, self.envs = edge, envs

    def open(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError


class Samples(Edge):
    replay: Any = 1


def role(name: str, n: int, **holds: Any) -> Role:
    replaced = name in ("act", "serve_replay")
    return Role(name, print, n, holds, "replace" if replaced else "fail", learner=name in ("learn", "replica"))


def spec_of(apart: bool) -> LearnerSpec:
    spec = object.__new__(LearnerSpec)
    vars(spec).update(policy=None, update=SimpleNamespace(asynchronous=apart))
    return spec


def run_of(actors: int = 4, memories: int = 2, shards: int = 2, learners: int = 1) -> list[Role]:
    """As Gorila's with actors: each memory takes every second actor's rollouts."""
    queue, samples = Edge(), Samples()
    act = role("act", actors, envs=1, out=queue)
    memory = role("serve_replay", memories, source=queue, out=samples)
    learn = role("learn", learners, source=Learns(samples), spec=spec_of(False))
    return [act, memory, learn, role("serve_parameters", shards, server=Edge())]


def replicas(n: int, apart: bool = False) -> list[Role]:
    return [role("replica", n, source=Learns(envs=1), spec=spec_of(apart))]


def planned(roles: list[Role], text: str = "") -> dict[str, list[str]]:
    rules = parse_places(text) if text else ()
    places = Places(rules, roles)
    places.check(INFOS, {role.name: 1 for role in roles})
    found = places.plan(INFOS, {role.name: 1 for role in roles})
    return {where: [f"{name}{i}" for name, i in seats] for where, seats in found.items()}


def test_actors_go_where_cores_are_free_and_all_else_stays():
    found = planned(run_of(actors=6))
    assert found["red"] == ["act0", "act1", "act2", "act4"]
    assert found["blue"] == ["act3", "act5"]
    assert found["here"] == ["serve_replay0", "serve_replay1", "learn0", "serve_parameters0", "serve_parameters1"]


def test_replicas_are_divided_in_order_the_first_here():
    assert planned(replicas(6)) == {
        "here": ["replica0", "replica1"],
        "red": ["replica2", "replica3"],
        "blue": ["replica4", "replica5"],
    }


def test_a_memory_takes_its_actors_along():
    found = planned(run_of(), "serve_replay=others")
    assert found["red"] == ["act0", "act2", "serve_replay0"]
    assert found["blue"] == ["act1", "act3", "serve_replay1"]
    assert planned(run_of(), "serve_replay=others,act=here")["here"][:4] == ["act0", "act1", "act2", "act3"]


@pytest.mark.parametrize(
    ("text", "where", "who"),
    [
        ("act=red", "red", ["act0", "act1", "act2", "act3"]),
        ("act=10.0.0.1", "red", ["act0", "act1", "act2", "act3"]),
        ("act=res:fast", "red", ["act0", "act1", "act2", "act3"]),
        ("act=here,act[1-2]=blue", "blue", ["act1", "act2"]),
        ("act=here, act[3]=blue", "blue", ["act3"]),
        ("act=even", "here", ["act0", "act1", "serve_replay0", "serve_replay1", "learn0"]),
        ("serve_parameters=red,act=here", "red", ["serve_parameters0", "serve_parameters1"]),
        ("learn=blue,act=here", "blue", ["learn0"]),
    ],
)
def test_rules_say_where(text, where, who):
    found = planned(run_of(), text)[where]
    assert [name for name in found if not (where == "here" and name.startswith("serve_parameters"))] == who


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("act", "act: must be ROLE=WHERE, ROLE\\[A\\]=WHERE or ROLE\\[A-B\\]=WHERE"),
        ("act[2-1]=blue", "act\\[2-1\\]=blue: must be"),
        ("actor=blue", "actor=blue: this run has no role actor; choose from act, serve_replay, learn"),
        ("act[3-4]=blue", "act has 4 workers; must be within 0 to 3"),
        ("act=bleu", r"no machine is called bleu \(known: red, blue\); must be here, others"),
        ("act=blue", "act=blue: blue has 2 cores for 4 threads of 4 act; place fewer there"),
        ("act[0-1]=blue,learn=blue", "act.0-1.=blue: blue has 2 cores for 3 threads of 2 act, 1 learn"),
        ("act=res:fats", r"no machine has the resource fats \(known: fast\)"),
    ],
)
def test_rules_that_mean_nothing_are_refused(text, said):
    with pytest.raises(UserError, match=f"^--place .*{said}"):
        planned(run_of(), text)


def test_the_replica_that_saves_and_two_learners_stay():
    for text in ("replica=others", "replica[0]=blue"):
        with pytest.raises(UserError, match=r"replica 0, which saves .* stays on the main machine; .*replica\[1-1\]"):
            planned(replicas(2), text)
    roles = run_of(learners=2)
    with pytest.raises(UserError, match="learn stays on the main machine"):
        planned(roles, "learn=blue")


def test_a_worker_returns_to_its_machine_and_leaves_one_that_is_lost():
    act = run_of()[0]
    places, spots = Places((), [act]), [*map(Spot, INFOS)]
    first = places.choose(act, 0, spots)
    assert first is spots[0]
    first.threads[0] = 9
    assert places.choose(act, 0, spots) is first
    first.lost = "gone"
    assert places.choose(act, 0, spots) is spots[1]
    spots[1].lost = "gone too"
    assert places.choose(act, 1, spots) is None
