"""population.json, as those read it who show a population or follow it. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from polyplay.common.errors import UserError
from polyplay.common.files import Row, is_number, is_row, read_object
from polyplay.runs.directory import read_config

FILE = "population.json"
MEMBERS = "members"
SHAPE = {"over": str, "exploit": str, "explore": str, "score": str, "vary": dict, "members": list}
NUMBERS = ("member", "steps", "since", "copied", "turns", "wall_seconds")  # that a member has at least


def member_directory(directory: Path, member: int) -> Path:
    """Of a member's own run."""
    return Path(directory) / MEMBERS / f"{member:02}"


def read_population(directory: Path, option: str = "RUN") -> Row:
    """population.json of a run, also of one that goes on. option: whose value the directory is. Raises UserError: it is
    no population, or damaged.
    """
    directory = Path(directory)
    path = directory / FILE
    try:
        population = read_object(path)
    except OSError:
        raise _no_population(directory, option) from None
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; put back a copy of it") from None
    wrong = [name for name, kind in SHAPE.items() if not isinstance(population.get(name), kind)]
    wrong += [] if is_number(population.get("every")) else ["every"]
    wrong += [] if wrong or all(map(_is_member, population["members"])) else ["members"]
    if wrong:
        raise UserError(f"{path} is damaged: no {', '.join(wrong)} as a population writes it; put back a copy of it")
    return population


def rank_members(members: Iterable[Row]) -> list[Row]:
    """Best first; those without a score last, in the order of their numbers."""
    return sorted(members, key=lambda m: (m["score"] is None, -(m["score"] or 0.0), m["member"]))


def _is_member(value: object) -> bool:
    return (
        isinstance(value, dict)
        and is_row(value, NUMBERS)
        and isinstance(value.get("values"), dict)
        and (value.get("score") is None or is_number(value["score"]))
    )


def _no_population(directory: Path, option: str) -> UserError:
    above = directory.resolve().parent.parent
    if (above / FILE).exists():
        return UserError(f"{option}: {directory} is a member of a population: name the population, {above}")
    system = read_config(directory)["system"]
    if system == "pbt":
        return UserError(f"{option}: {directory} has no {FILE} yet: wait until the population has begun")
    return UserError(
        f"{option}: {directory} is a run of {system}, no population: name one that `polyplay train pbt` made"
    )
