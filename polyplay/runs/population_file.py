"""population.json, for those who show a population. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from polyplay.common.errors import UserError
from polyplay.common.files import Row, is_number, is_row
from polyplay.population.store import FILE, Store
from polyplay.runs.directory import has_members, read_config

SHAPE = {"over": str, "exploit": str, "explore": str, "score": str, "vary": dict}
NUMBERS = ("member", "steps", "wall_seconds")  # that a member has at least


def read_population(directory: Path) -> Row:
    """population.json of a run, also of one that goes on. Raises UserError: it is no population, or damaged."""
    path = directory / FILE
    if not path.exists():
        raise _no_population(directory)
    population = Store(directory).read()
    wrong = [name for name, kind in SHAPE.items() if not isinstance(population.get(name), kind)]
    wrong += [name for name in ("every", "total") if not is_number(population.get(name))]
    wrong += [] if population["members"] and all(map(_is_member, population["members"])) else ["members"]
    if wrong:
        raise UserError(f"{path} is damaged: no {', '.join(wrong)} as a population writes it; put back a copy of it")
    return population


def _is_member(value: object) -> bool:
    return (
        isinstance(value, dict)
        and is_row(value, NUMBERS)
        and isinstance(value.get("values"), dict)
        and isinstance(value.get("state"), str)
        and (value.get("score") is None or is_number(value["score"]))
    )


def _no_population(directory: Path) -> UserError:
    above = directory.resolve().parent.parent
    if (above / FILE).exists():
        return UserError(f"RUN: {directory} is a member of a population: name the population, {above}")
    config = read_config(directory, population=True)
    if has_members(config):
        return UserError(f"RUN: {directory} has lost its {FILE}: put back a copy of it")
    what = f"a run of {config['system']}, no population"
    return UserError(f"RUN: {directory} is {what}: name one that `polyplay train pbt` made")
