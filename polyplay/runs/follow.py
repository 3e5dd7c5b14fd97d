"""`polyplay train SYSTEM --follow RUN`: one agent with the hyperparameters of a population's best member, as they
changed along its line of ancestors. The run keeps the schedule: what the population does meanwhile changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.files import Row, read_object, write_json
from polyplay.population.lineage import LINEAGE, read_lineage, schedule_of
from polyplay.population.ranking import best_member
from polyplay.runs import run
from polyplay.runs.changes import scheduled_names
from polyplay.runs.directory import read_config
from polyplay.runs.flags import flag
from polyplay.runs.going_on import GIVEN
from polyplay.runs.member import amend_values, learnt
from polyplay.runs.options import RunOptions, Settings, Sources, new_directory
from polyplay.runs.population_file import read_population
from polyplay.runs.run import RunResult
from polyplay.runs.session import Slice
from polyplay.runs.trust import check_named, check_trust, code_of

FILE = "schedule.json"  # in the run's directory: from which agent step on which values hold
Schedule = list[tuple[int, dict[str, Any]]]
PartOfRun = Callable[[Slice | None], RunResult]


def train(
    system: str, settings: Settings, options: RunOptions, sources: Sources, callbacks: Sequence[object] = ()
) -> RunResult:
    """A run of one agent by the schedule of the population that --follow names. Raises UserError: it has none."""
    given = [name for name, source in sources.items() if source.partition(" ")[0] in GIVEN]
    schedule = schedule_from(Path(str(options.follow)), system, given)
    for name in sorted(scheduled_names(options.change) & {*schedule[0][1]}):
        text = f"--change: {name} given, and --follow {options.follow} says when it has what value"
        raise UserError(f"{text}: leave one out")
    settings = replace(settings, **schedule[0][1])
    sources = sources | dict.fromkeys(schedule[0][1], "population")
    if options.dry_run:
        return run.begin_run(system, settings, options, sources, callbacks)
    directory = new_directory(system, settings.env, options)
    write_json(directory / FILE, {"schedule": schedule})
    options = replace(options, run=str(directory))

    def first(part: Slice | None) -> RunResult:
        return run.begin_run(system, settings, options, sources, callbacks, part)

    return _go_through(directory, schedule, first, lambda part: run.continue_run(directory, {}, True, callbacks, part))


def resume(
    directory: Path, changes: Mapping[str, Any], trust: bool = False, callbacks: Sequence[object] = ()
) -> RunResult:
    """Go on with such a run. Raises UserError: its schedule cannot be read, or says what is to change."""
    schedule = _read(directory)
    for name in ({*changes} | scheduled_names(changes.get("change") or ())) & {*schedule[0][1]}:
        raise UserError(f"{name}: the run follows a population, which says it; delete {directory / FILE} to end that")
    given = [dict(changes)]  # to the first part only: from then on the run has them

    def later(part: Slice | None) -> RunResult:
        return run.continue_run(directory, given.pop() if given else {}, trust, callbacks, part)

    return _go_through(directory, schedule, later, later)


def schedule_from(directory: Path, system: str, given: Collection[str] = ()) -> Schedule:
    """The line of the winner, from its founder on. given: options of the command line. Raises UserError: RUN is no
    population of this system or has no winner, or an option has two values.
    """
    population = read_population(directory, "--follow")
    if population["over"] != system:
        over = population["over"]
        raise UserError(f"--follow: {directory} is a population of {over}, {system} given: polyplay train {over} does")
    both = sorted(set(given) & set(population["vary"]))
    if both:
        raise UserError(
            f"{', '.join(map(flag, both))}: given, and --follow {directory} says when it has what value: leave one out"
        )
    winner = best_member(population["members"])
    schedule = schedule_of(read_lineage(directory), winner["member"]) if winner else []
    for _, values in schedule:
        _check_code(directory, values)
    if not schedule:
        raise UserError(f"--follow: no member of {directory} has a score yet: let the population go on")
    return schedule


def _check_code(directory: Path, values: Row) -> None:
    """Raises UserError: these name code, and the population does not or was made elsewhere."""
    if code_of({"config": values}):
        config = read_config(directory, population=True)
        check_trust(directory, config, False)
        check_named(directory / LINEAGE, {"config": values}, config)


def _read(directory: Path) -> Schedule:
    """What a run follows. Raises UserError: it cannot be read."""
    try:
        return [(int(step), dict(values)) for step, values in read_object(directory / FILE)["schedule"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"RUN: {directory / FILE} cannot be read ({e}); put back a copy of it") from None


def _go_through(directory: Path, schedule: Schedule, first: PartOfRun, later: PartOfRun) -> RunResult:
    """Train with each of the values in turn, from where the run is. first: what the run does now, with the values of
    its configuration; later: what it does then.
    """
    result = RunResult(directory)
    for (_, values), (end, _) in zip(schedule, [*schedule[1:], (None, {})], strict=True):
        if end is not None and end <= learnt(directory):
            continue
        if (directory / "config.json").exists():
            amend_values(directory, values)
        _print(directory, values)
        part = None if end is None else Slice(end)
        result = first(part)
        first = later
        if part is None or result.exit_code or result.reason != part.paused:
            break
    return result


def _print(directory: Path, values: Row) -> None:
    named = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
    print(f"polyplay: from {learnt(directory):,.0f} agent steps on: {named}", file=sys.stderr)
