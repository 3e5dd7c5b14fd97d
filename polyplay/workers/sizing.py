"""Cores, divided between acting and learning by what each costs, measured before the workers of a run are started.

A row costs acting `act` seconds of a core: a step of its environment, its share of a forward pass. Learning takes
`learn` seconds a row with one compute thread, and learn / t^log2(gain) with t: `gain` is what a second thread brings.
Then n actors of one thread and learners of t handle at most

    min( n / act,  learners / learning(t),  cores / (act + learn) )   rows a second; n + learners · t ≤ cores, or t = 1

and the fewest actors that come near the best of that are taken. Actors on other machines have the cores there, and
learners all of this one's: then n ≤ the cores there, learners · t ≤ those here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.machine import cores
from polyplay.envs.pool import Envs

if TYPE_CHECKING:
    from polyplay.learning.learner import LearnerSpec
    from polyplay.workers.crew import Crew
    from polyplay.workers.role import Role

FEW, MOST = 2, 960  # actors: at least, and where nothing is measured; that there is room for
NEAR = 0.97  # of the best rate
SECONDS = 0.2  # for each part of acting
LANES, ROWS = 64, 128  # that are measured with, at most
SMALL = 200_000  # parameters: up to here two compute threads wait for each other longer than they save


@dataclass(frozen=True)
class RowCosts:
    """Of a row, in seconds of one core; gain: how many times as fast learning is with two threads."""

    act: float
    learn: float
    gain: float

    def learning(self, threads: int) -> float:
        return self.learn / threads ** math.log2(min(max(self.gain, 1.0), 2.0))


def actor_rate(costs: RowCosts, n: int, among: int, learners: int = 1, away: int = 0) -> float:
    """Rows a second of n actors at most. away: cores of other machines, if they are there."""
    learning = costs.learning(max(1, (among - (0 if away else n)) // learners))  # threads of each learner
    all_work = away / costs.act if away else among / (costs.act + costs.learn)
    return min(n / costs.act, learners / learning, all_work)


def fewest_actors(learners: int) -> int:
    """The fewest actors: two, and as many for each learner."""
    return learners * -(-FEW // max(1, learners))


def best_actors(costs: RowCosts, among: int, learners: int = 1, away: int = 0) -> int:
    """Actors, a multiple of the learners."""
    least = fewest_actors(learners)
    rates = {
        n: actor_rate(costs, n, among, learners, away)
        for n in range(least, max(min(away or among, MOST), least) + 1, learners)
    }
    return next(n for n, rate in rates.items() if rate >= NEAR * max(rates.values()))


def niceness(actors: int, learners: int) -> int:
    """How far actors that run freely let other processes go first: so far that a learner keeps a core beside them. Not
    further: another program would take their cores.
    """
    crowd = actors / max(cores() - learners, 1)
    return max(0, round(math.log(crowd, 1.25)))  # a step of nice is a quarter more of a core for the others


def choose_actors(crew: Crew, envs: Envs, spec: LearnerSpec, T: int, batch: int, learners: int) -> int:
    """How many a crew whose workers run freely shall have, for updates of `batch` trajectories of T rows by all
    learners together. Only where a run begins (crew.measures); elsewhere, as in threads, the fewest. Two cores are not
    divided: two actors and a learner that share them were the fastest (bench/results/compare).
    """
    away = 0 if crew.fleet is None else crew.fleet.cores("act")
    free, least = away or cores() - learners, fewest_actors(learners)
    if not crew.measures or crew.serial or crew.on == "thread" or free < FEW:
        return least
    if not crew.placement.on_cpu:
        return least if crew.placement.actors_on == "device" else max(least, min(free, MOST))
    from polyplay.workers.row_costs import measure_costs

    try:
        found = measure_costs(envs, crew.learned(spec), T, batch // learners, crew.precision)
    except (UserError, EnvFailure):
        raise
    except Exception as e:  # the worker whose network it is will raise it
        crew.divided = f"not measured, {type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
        return least
    learning = f"learning {found.learn * 1e3:.2f} ms, {found.gain:.2f} times as fast with two threads"
    crew.divided = f"measured: acting {found.act * 1e3:.2f} ms a row, {learning}"
    return best_actors(found, cores(), learners, away)


def threads_of(role: Role, crew: Crew) -> int:
    """Compute threads of each of a role's workers: never more runnable than cores; two threads on one forward pass give
    only 1.5 times, and less than one where the networks are small. Roles with a number of their own have it, the others
    share what is left; but all have the same where the run is traced, so that one thread can repeat it to the bit.
    """
    roles = [r for r in crew.roles if r.name != "evaluator"]  # that one rests mostly
    wanted = {r.name: 0 if crew.trace else crew.threads(r) for r in crew.roles}
    if wanted[role.name] or max((r.parameters for r in roles), default=0) < SMALL:
        return wanted[role.name] or 1
    sides = [(cores(), {r.name: r.n for r in roles})]
    if crew.fleet is not None and not crew.trace and (away := crew.fleet.cores()):
        there = crew.fleet.elsewhere(roles)
        sides = [(cores(), {name: n - there[name] for name, n in sides[0][1].items()}), (away, there)]
        if role.n == there.get(role.name) == 1:  # a machine that --place names may be all that it has
            sides.append((crew.fleet.cores(role.name), {role.name: 1}))
    mine = [(among, n) for among, n in sides if n.get(role.name)] or sides[:1]
    return min(_share(among, n, wanted) for among, n in mine)


def _share(among: int, counts: dict[str, int], wanted: dict[str, int]) -> int:
    """Threads of each worker that says no number."""
    left = among - sum(n * wanted[name] for name, n in counts.items())
    return max(1, left // max(1, sum(n for name, n in counts.items() if not wanted[name])))
