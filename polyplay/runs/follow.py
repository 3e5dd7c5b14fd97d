"""`--follow RUN`: the hyperparameters of a population's winner, for one agent from its start. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.population.lineage import read_lineage, schedule_of
from polyplay.runs.population_file import rank_members, read_population

Schedule = list[tuple[int, dict[str, Any]]]  # from which agent step on, and the values


def read_schedule(directory: Path, system: str, given: Collection[str] = ()) -> Schedule:
    """The line of the winner, from its founder on. given: options of the command line. Raises UserError: RUN is no
    population of this system or has no winner, or an option has two values.
    """
    population = read_population(directory, "--follow")
    if population["over"] != system:
        over = population["over"]
        raise UserError(f"--follow: {directory} is a population of {over}, {system} given: polyplay train {over} does")
    both = sorted(set(given) & set(population["vary"]))
    if both:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in both)
        raise UserError(f"{flags}: given, and --follow {directory} says when it has what value: leave one of them out")
    winner = rank_members(population["members"])[0]
    schedule = schedule_of(read_lineage(directory), winner["member"])
    if winner["score"] is None or not schedule:
        raise UserError(f"--follow: no member of {directory} has a score yet: let the population go on")
    return schedule
