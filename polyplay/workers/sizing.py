"""Division of the cores between actors and learners, by costs that are measured before the workers of a run start.

A row is one step of one environment. Acting takes `act` seconds of a core per row, with the row's share of a forward
pass. Learning takes `learn` seconds per row with one thread, and learning(t) = learn / t^log2(gain) seconds with t
threads, where `gain` is the speedup by a second thread. With n actors of one thread each, and t threads for each
learner, the largest number of rows per second is

    min( n / act,  learners / learning(t),  cores / (act + learn) )   where t = (cores − n) / learners, at least 1

The smallest n with nearly the best rate is chosen. If actors run on other machines, they use the cores there, and the
learners use all cores of this machine.
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

FEW, MOST = 2, 960  # fewest actors, also chosen if nothing is measured; most actors
NEAR = 0.97  # the chosen number of actors reaches this share of the best rate, or more
SECONDS = 0.2  # seconds for the measurement of each part of acting
LANES, ROWS = 64, 128  # most parallel environments, and most rows of a batch, in measurements
SMALL = 200_000  # parameters of a network; a second thread slows down smaller networks


@dataclass(frozen=True)
class RowCosts:
    """Costs of acting and learning per row, in seconds of one core. `gain`: speedup of learning by a second thread."""

    act: float
    learn: float
    gain: float

    def learning(self, threads: int) -> float:
        return self.learn / threads ** math.log2(min(max(self.gain, 1.0), 2.0))


def actor_rate(costs: RowCosts, n: int, among: int, learners: int = 1, away: int = 0) -> float:
    """Return the most rows per second with `n` actors. `among`: cores of this machine. `away`: cores of other machines
    that run the actors, or 0 if the actors run here.
    """
    learning = costs.learning(max(1, (among - (0 if away else n)) // learners))  # threads of each learner
    all_work = away / costs.act if away else among / (costs.act + costs.learn)
    return min(n / costs.act, learners / learning, all_work)


def fewest_actors(learners: int) -> int:
    """Return the smallest allowed number of actors: at least FEW, and a multiple of the number of learners."""
    return learners * -(-FEW // max(1, learners))


def best_actors(costs: RowCosts, among: int, learners: int = 1, away: int = 0) -> int:
    """Return the best number of actors, a multiple of the number of learners. For arguments, see actor_rate."""
    least = fewest_actors(learners)
    rates = {
        n: actor_rate(costs, n, among, learners, away)
        for n in range(least, max(min(away or among, MOST), least) + 1, learners)
    }
    return next(n for n, rate in rates.items() if rate >= NEAR * max(rates.values()))


def niceness(actors: int, learners: int) -> int:
    """Return the least niceness of actors that leaves each learner a core, for actors that never wait for learners."""
    crowd = actors / max(cores() - learners, 1)
    return max(0, round(math.log(crowd, 1.25)))  # each step of niceness gives other processes 1.25 times the share


def choose_actors(crew: Crew, envs: Envs, spec: LearnerSpec, T: int, batch: int, learners: int) -> int:
    """Return the number of actors for a system whose actors never wait for learners.

    If all workers use CPUs, the number follows from measured costs (`crew.measures`). If only the learners use a GPU,
    each free core gets an actor. In all other cases, the fewest actors are chosen.
    `T`: rows per trajectory. `batch`: trajectories per update of all learners together.
    """
    away = 0 if crew.fleet is None else crew.fleet.cores("act")
    free, least = away or cores() - learners, fewest_actors(learners)
    # on two cores, the fewest actors were the fastest in measurements (bench/results/compare)
    if not crew.measures or crew.serial or crew.on == "thread" or free < FEW:
        return least
    if not crew.placement.on_cpu:
        return least if crew.placement.actors_on == "device" else max(least, min(free, MOST))
    from polyplay.workers.row_costs import measure_costs

    try:
        found = measure_costs(envs, crew.learned(spec), T, batch // learners, crew.precision)
    except (UserError, EnvFailure):
        raise
    except Exception as e:  # a worker with this network will raise the same exception
        crew.divided = f"not measured, {type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
        return least
    learning = f"learning {found.learn * 1e3:.2f} ms, {found.gain:.2f} times as fast with two threads"
    crew.divided = f"measured: acting {found.act * 1e3:.2f} ms a row, {learning}"
    return best_actors(found, cores(), learners, away)


def threads_of(role: Role, crew: Crew) -> int:
    """Return the compute threads per worker of a role.

    If the role's number of threads is set, return this number. With a small network, return 1. With a large network,
    return an equal share of the remaining cores. In a traced run, all roles get the same number, so that a run in one
    thread can repeat the trace exactly.
    """
    roles = [r for r in crew.roles if r.name != "evaluator"]  # the evaluator is mostly idle
    wanted = {r.name: 0 if crew.trace else crew.threads(r) for r in crew.roles}
    if wanted[role.name] or max((r.parameters for r in roles), default=0) < SMALL:
        return wanted[role.name] or 1
    sides = [(cores(), {r.name: r.n for r in roles})]
    if crew.fleet is not None and not crew.trace and (away := crew.fleet.cores()):
        there = crew.fleet.elsewhere(roles)
        sides = [(cores(), {name: n - there[name] for name, n in sides[0][1].items()}), (away, there)]
        if role.n == there.get(role.name) == 1:  # --place may leave only one machine for this worker
            sides.append((crew.fleet.cores(role.name), {role.name: 1}))
    mine = [(among, n) for among, n in sides if n.get(role.name)] or sides[:1]
    return min(_share(among, n, wanted) for among, n in mine)


def _share(among: int, counts: dict[str, int], wanted: dict[str, int]) -> int:
    """Return the threads per worker of roles without a set number. `counts`: workers. `wanted`: set threads, or 0."""
    left = among - sum(n * wanted[name] for name, n in counts.items())
    return max(1, left // max(1, sum(n for name, n in counts.items() if not wanted[name])))
