"""Cores for acting and for learning, and what a row costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyplay import systems
from polyplay.runs import load, plan
from polyplay.runs.options import RunOptions
from polyplay.workers import row_costs, sizing
from polyplay.workers.sizing import RowCosts, actor_rate, best_actors, threads_of

COSTS = st.builds(RowCosts, st.floats(1e-5, 1e-1), st.floats(1e-5, 1e-1), st.floats(0.5, 3.0))


@pytest.mark.parametrize(
    ("costs", "cores", "learners", "n"),
    [
        (RowCosts(1e-3, 1e-6, 1.5), 16, 1, 16),  # learning costs nothing: every core acts, one of them learns as well
        (RowCosts(3e-3, 1e-3, 1.0), 16, 1, 3),  # a learner that threads do not help is fed by three
        (RowCosts(1e-3, 1e-3, 2.0), 16, 1, 8),  # halves, where two threads are twice as fast
        (RowCosts(1e-3, 1e-3, 2.0), 16, 4, 8),
        (RowCosts(1e-4, 1e-2, 1.8), 8, 1, 2),  # never fewer than two
        (RowCosts(1e-3, 1e-6, 1.5), 2000, 1, 932),  # there is room for 960; within 3 % of that
    ],
)
def test_the_fewest_actors_that_come_near_the_best_rate(costs, cores, learners, n):
    assert best_actors(costs, cores, learners) == n


@given(COSTS, st.integers(3, 200), st.integers(1, 3))
def test_no_other_number_is_much_better_nor_a_smaller_one_as_good(costs, cores, learners):
    n = best_actors(costs, cores, learners)
    assert n % learners == 0
    assert n >= sizing.fewest_actors(learners) >= sizing.FEW
    rates = {m: actor_rate(costs, m, cores, learners) for m in range(learners, min(cores, sizing.MOST) + 1, learners)}
    assert actor_rate(costs, n, cores, learners) >= sizing.NEAR * max(r for m, r in rates.items() if m >= n)
    assert all(
        r < sizing.NEAR * max(rates.values()) for m, r in rates.items() if sizing.fewest_actors(learners) <= m < n
    )


def crew_of(roles: dict[str, tuple[int, int]], fleet: Any = None) -> Any:
    """roles: workers, and threads that they say."""
    made = [SimpleNamespace(name=k, n=n, parameters=sizing.SMALL) for k, (n, _) in roles.items()]
    return SimpleNamespace(trace=False, roles=made, fleet=fleet, threads=lambda role: roles[role.name][1])


def threads_in(crew: Any) -> dict[str, int]:
    return {role.name: threads_of(role, crew) for role in crew.roles}


@pytest.mark.parametrize(
    ("cores", "roles", "threads"),
    [
        (16, {"act": (10, 1), "learn": (1, 0)}, {"act": 1, "learn": 6}),
        (16, {"act": (2, 0), "learn": (1, 0), "evaluator": (1, 0)}, {"act": 5, "learn": 5, "evaluator": 5}),
        (16, {"act": (2, 1), "learn": (1, 0), "evaluator": (1, 0)}, {"act": 1, "learn": 14, "evaluator": 14}),
        (2, {"act": (2, 1), "learn": (1, 0)}, {"act": 1, "learn": 1}),
        (8, {"learn": (3, 0)}, {"learn": 2}),
    ],
)
def test_roles_that_say_no_threads_share_what_is_left(monkeypatch, cores, roles, threads):
    """A traced run has as many for all."""
    monkeypatch.setattr(sizing, "cores", lambda: cores)
    crew = crew_of(roles)
    assert threads_in(crew) == threads
    crew.trace = True
    assert len({*threads_in(crew).values()}) == 1


@pytest.mark.parametrize(
    ("away", "roles", "threads"),
    [
        ({"act": 10}, {"act": (10, 1), "learn": (1, 0)}, {"act": 1, "learn": 8}),
        ({"act": 4}, {"act": (4, 0), "learn": (1, 0)}, {"act": 8, "learn": 8}),
        ({"replica": 4}, {"replica": (5, 0)}, {"replica": 8}),
        ({"learn": 1}, {"act": (4, 1), "learn": (1, 0)}, {"act": 1, "learn": 16}),
    ],
)
def test_each_machine_has_its_own_cores(monkeypatch, away, roles, threads):
    """8 here, 32 on the others, of which that of a learner has 16."""
    monkeypatch.setattr(sizing, "cores", lambda: 8)
    fleet = SimpleNamespace(elsewhere=lambda roles: {r.name: away.get(r.name, 0) for r in roles})
    fleet.cores = lambda role="": 16 if role else 32
    crew = crew_of(roles, fleet)
    assert threads_in(crew) == threads
    fleet.cores = lambda role="": 0  # they are this one's
    assert max(threads_in(crew).values()) <= 8


def test_small_networks_have_one_thread_and_large_ones_more(monkeypatch):
    monkeypatch.setattr(sizing, "cores", lambda: 8)
    for network, threads in (("mlp", 1), ("mlp(512,512)", 4)):
        _, crew = build("impala", {"network": network, "actors": 4})
        learner = next(role for role in crew.roles if role.name == "learn")
        assert threads_of(learner, crew) == threads, learner.parameters


def build(system: str, more: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    page, crew = systems.load(system), load.crew_of(RunOptions(**options))
    crew.measures = True
    given = {"actors": 0, "lanes": 4, "batch": 16, **more}
    return page.build(page.Config(**{"env": "toy:catch", "network": "mlp", **given}), crew), crew


@pytest.mark.parametrize("system", ["impala", "appo"])
def test_a_page_asks_where_its_actors_are_left_open(monkeypatch, system):
    """Not if it is told, acts in step, in threads, by turns, or has two cores."""
    asked = []

    def measure(envs: Any, spec: Any, T: int, B: int, precision: str) -> RowCosts:
        asked.append((envs.lanes, T, B, precision))
        return RowCosts(1e-3, 1e-3, 1.0)

    monkeypatch.setattr(row_costs, "measure_costs", measure)
    monkeypatch.setattr(sizing, "cores", lambda: 6)
    for more, options, n in (
        ({}, {"serial": True}, 2),
        ({"actors": 3}, {}, 3),
        ({"lag": 0, "batch": 8}, {}, 2),
        ({"learners": 5, "actors": 5, "batch": 40}, {}, 5),
        ({"learners": 5, "batch": 40}, {}, 5),
    ):
        assert build(system, {"unroll": 5, **more}, **options)[0].resolved == {"actors": n}
    assert not asked
    wired, crew = build(system, {"unroll": 5, "learners": 2})
    assert asked == [(4, 5, 8, "float32")]
    assert wired.resolved == {"actors": 2}
    assert crew.divided == "measured: acting 1.00 ms a row, learning 1.00 ms, 1.00 times as fast with two threads"
    lines = dict(plan.make_plan(crew, wired, RunOptions()).lines)
    assert lines["cores"] == crew.divided
    monkeypatch.setattr(sizing, "cores", lambda: 2)
    assert build(system, {"unroll": 5})[0].resolved == {"actors": 2}
    assert len(asked) == 1


def test_what_is_measured(monkeypatch):
    """Real parts of a toy: positive, by the clock; this process computes with as many threads as before."""
    import torch

    monkeypatch.setattr(row_costs, "SECONDS", 0.01)
    before = torch.get_num_threads()
    wired, crew = build("impala", {"unroll": 5})
    spec = next(r.spec for r in crew.roles if r.learner)
    found = row_costs.measure_costs(wired.envs, spec, 5, 16, "float32")
    assert found.act > 0 < found.learn
    assert found.gain > 0
    assert torch.get_num_threads() == before


def test_a_network_that_fails_is_left_to_its_worker(monkeypatch):
    def broken(*_: Any) -> RowCosts:
        raise RuntimeError("shapes do not fit\nat all")

    monkeypatch.setattr(row_costs, "measure_costs", broken)
    monkeypatch.setattr(sizing, "cores", lambda: 6)
    wired, crew = build("impala", {"unroll": 5})
    assert wired.resolved == {"actors": 2}
    assert crew.divided == "not measured, RuntimeError: shapes do not fit"
