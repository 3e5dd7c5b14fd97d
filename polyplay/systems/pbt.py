"""Population based training of any other system (Jaderberg et al. 2017). It trains a population of runs (members). A
member may copy a better one, and continue with changed hyperparameters.

trainer:  takes the member with the fewest agent steps ─► trains it for `every` of them ─► its score
          ─► if the rule `exploit` names a better one: copy it, `explore` its hyperparameters ─► the next member
          … × at_once, each with its share of the cores; no trainer waits for another, and none decides for all
members:  ordinary runs of the system that --over names, in RUN/members/00, 01, …
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.core.errors import Count, Whole, Workers
from polyplay.population.rules import Evolution
from polyplay.population.trainer import Members, trainer
from polyplay.systems import System
from polyplay.systems._presets import member_cores, plan_of, priors_of
from polyplay.workers.crew import Crew
from polyplay.workers.role import Kind


@dataclass(frozen=True)
class Config:
    """Defaults: section 4.1 of Jaderberg et al. 2017. `every` is the shortest interval in that section."""

    over: str = "a2c"  # system of the members, or module:NAME; give its options as in `polyplay train SYSTEM`
    population: Whole = 0  # members (0: 8; with --exploit none and only lists in --vary, one for each combination)
    every: Count = 1_000_000  # agent steps that a member trains between exploit/explore decisions
    vary: tuple[str, ...] = ()  # options to vary: NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=A,B,C
    exploit: Literal["truncation", "tournament", "ttest", "none"] = "truncation"  # rule for copying a better member
    explore: Literal["perturb", "resample", "both", "none"] = "perturb"
    # how copied values change; perturb: times 0.8 or 1.2; resample: one in four is drawn again; both: one in four is
    # drawn again, the others are perturbed
    score: Literal["games", "evaluations"] = "games"  # mean return of 10 training games, or of --eval-every games
    at_once: Workers = 0  # trainers, each with its share of the cores (0: one per core)


def build(c: Any, crew: Crew) -> System:
    # after every `every` steps of a member: which member it copies (exploit), and how --vary's values change (explore)
    evolution = Evolution(c.every, exploit=c.exploit, explore=c.explore, priors=priors_of(c))
    plan = plan_of(c, crew, evolution)  # the number of members, the length of training, the score
    n = 1 if crew.serial else min(c.at_once or member_cores(crew), plan.size)
    on: Kind = "process" if crew.cluster is None else "thread"  # a thread only waits for another machine
    members = Members(plan.size)  # each member's progress, and the trainer that has it
    # learner: the run ends when the trainers end
    crew.add(trainer, n=n, on=on, learner=True, if_lost="replace", plan=plan, out=members)
    return System(None, None)  # only members have environments and networks
