"""A population of runs, from its options to its end: plan, train, resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyplay import systems
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.machine import cores, share
from polyplay.population.evolution import TRIES, Evolution
from polyplay.population.store import DONE, FAILED, FILE, TRAINING, WAITING, Store
from polyplay.runs import flags, run
from polyplay.runs.changes import scheduled_names
from polyplay.runs.directory import amend_config, read_config, write_config
from polyplay.runs.given import objects_of, remember
from polyplay.runs.going_on import FREE, GIVEN
from polyplay.runs.load import crew_of, load_run, wire_system
from polyplay.runs.lock import DirectoryLock
from polyplay.runs.member import MemberRunner
from polyplay.runs.options import (
    LIMITS,
    Page,
    RunOptions,
    Settings,
    Sources,
    name_of,
    new_directory,
    override,
    refuse_begun,
    to_json,
)
from polyplay.runs.population_check import anew_of, check_varied
from polyplay.runs.population_file import read_population
from polyplay.runs.population_session import PopulationSession
from polyplay.runs.reports import opening, screen, wandb
from polyplay.runs.run import RunResult
from polyplay.runs.trust import check_named
from polyplay.runs.wishes import fitted
from polyplay.systems._population import composed, member_settings, wire_member
from polyplay.workers.crew import Crew

# of every run, what a population has once
OWN: dict[str, Any] = {"run": None, "resume": "never", "dry_run": False, "quiet": True, "verbose": False, "cores": None}


def train(
    page: Any, settings: Any, options: RunOptions, sources: Sources, callbacks: Sequence[object] = ()
) -> RunResult:
    """Train a population from nothing. Raises UserError, EnvFailure, NotFinite or WorkerLost when none can go on."""
    _refuse_callbacks(callbacks)
    page = composed(page, settings.over)
    settings = replace(settings, over=name_of(page.OVER))
    wandb.check_wandb(options.wandb)
    settings, (crew, evolution, lines), left = fitted(settings, sources, lambda other: _wire(page, other, options))
    lines = left + lines
    _check_given(evolution, options, sources)
    directory = new_directory(name_of(page), f"{settings.over}-{settings.env}", options)
    result = RunResult(directory, 0, "dry run", {}, settings)
    if options.dry_run:
        _print_plan(directory, lines)
        return result
    description = {"system": name_of(page), "config": to_json(settings), "options": to_json(options)}
    environment = wire_member(settings, crew)[1].envs.spec.describe
    with closing(DirectoryLock(directory)) as lock:
        refuse_begun(directory)
        store = Store(directory)
        store.begin(evolution.about(), evolution.founders())
        write_config(directory, {**description, "sources": sources, "environment": environment})  # type: ignore[typeddict-item]
        remember(directory, settings)
        runner = _runner(directory, settings, options, sources)
        return _go(result, crew, evolution, runner, lines, lock, options)


def resume(
    directory: Path, changes: Mapping[str, Any], trust: bool = False, callbacks: Sequence[object] = ()
) -> RunResult:
    """Go on with a population; `changes` are options of its members that now hold."""
    _refuse_callbacks(callbacks)
    given = objects_of(changes)
    changes = {name: value for name, value in changes.items() if name not in given}
    page, settings, options, config = load_run(directory, trust, population=True, given=given)
    for name in changes:
        if name in flags.option_types(page.Config):
            raise UserError(f"{flags.flag(name)}: a population decides what its members have; leave it out")
    store = Store(directory)
    _check_code(store, config)
    options = override(options, {"run": str(directory), **changes})
    crew, evolution, lines = _wire(page, settings, options)
    result = RunResult(directory, 0, "dry run", {}, settings)
    if options.dry_run:
        _print_plan(directory, lines)
        return result
    with closing(DirectoryLock(directory)) as lock:
        store.repair()
        description = {k: config[k] for k in ("system", "config", "environment")}
        sources = {**config["sources"], **{k: "resume" for k in changes if k not in FREE}}
        amend_config(directory, {**description, "sources": sources, "options": to_json(options)})  # type: ignore[typeddict-item]
        _extend(store, evolution, changes)
        changed = {k: getattr(options, k) for k, source in sources.items() if source == "resume"}  # now or before
        runner = _runner(directory, settings, options, sources, changed)
        return _go(result, crew, evolution, runner, lines, lock, options)


def _check_code(store: Store, config: Row) -> None:
    """Raises UserError: a member's files name code that the population does not, which they would execute unasked."""
    for m in read_population(store.directory)["members"]:
        check_named(store.directory / FILE, {"config": m["values"]}, config)
        if (store.member(m["member"]) / "config.json").exists():
            check_named(store.member(m["member"]), read_config(store.member(m["member"])), config)


def _check_given(evolution: Evolution, options: RunOptions, sources: Sources) -> None:
    """Raises UserError: an option with two values, or one that a population does not take."""
    for name in evolution.priors:
        if sources.get(name, "").partition(" ")[0] in GIVEN:
            raise UserError(f"{flags.flag(name)}: given, and --vary {name} too: leave one of them out")


def _extend(store: Store, evolution: Evolution, changes: Mapping[str, Any]) -> None:
    """Members that had come to their end go on where that is further now; those whose sessions were lost, and those
    that found no donor, have their tries again.
    """
    with store.locked():
        population = store.read()
        further = population["total"] != evolution.total or any(changes.get(name) is not None for name in LIMITS)
        for m in population["members"]:
            if m["state"] == TRAINING or (m["state"] == FAILED and m["lost"]) or (m["state"] == DONE and further):
                m["state"] = WAITING
            if m["state"] != FAILED or m["falls"] >= TRIES:
                m["falls"] = 0
        population |= evolution.about()
        store.write(population)


def _wire(page: Page, settings: Any, options: RunOptions) -> tuple[Crew, Evolution, list[tuple[str, str]]]:
    """The crew of trainers, what it evolves, and the plan. Raises UserError: what cannot work."""
    if options.serial and settings.at_once > 1:
        raise UserError(f"--at-once: {settings.at_once} given, but --serial is one thread: leave one of them out")
    if settings.score == "evaluations" and options.eval_every is None:
        raise UserError("--score: evaluations given, but none are made: give --eval-every FRAMES too")
    check_varied(settings.vary)
    crew = crew_of(options)
    wire_system(page, settings, crew)
    (role,) = crew.roles
    evolution: Evolution = role.settings["evolution"]
    if evolution.exploit != "none" and evolution.every >= evolution.total:
        text = f"--every: {evolution.every:,} agent steps given, but each member has {evolution.total:,} in all"
        raise UserError(f"{text}, so none would copy another: lower it, raise --steps, or give --exploit none")
    for name in sorted(scheduled_names(options.change) & {*evolution.priors}):
        raise UserError(f"--change: {name} given, and --vary {name} too: leave one of them out")
    types = flags.option_types(page.Config)
    with share(role.n):
        evolution = replace(evolution, anew=anew_of(settings, crew, dict(evolution.priors), types))
        role.settings["evolution"] = evolution
        other, wired = wire_member(settings, crew)
        member = run.complete_plan(systems.load(settings.over), other, wired, member_settings(settings), options)
    between = f"{max(1, cores() // role.n)} of {cores()} cores each"
    steps = f"{evolution.total:,} agent steps each, {evolution.size * evolution.total:,} together"
    lines = [
        ("members", f"{evolution.size} run{'s' * (evolution.size > 1)} of {evolution.over}, {steps}"),
        *(("vary", f"{name} from {prior.label()}") for name, prior in evolution.priors.items()),
        ("decisions", f"every {evolution.every:,} agent steps of a member: {evolution.exploit}, {evolution.explore}"),
        ("trainers", f"{role.n} at once, {between}; a member's own plan follows"),
        *member.lines,
    ]
    return crew, evolution, lines


def _runner(
    directory: Path, settings: Any, options: RunOptions, sources: Sources, changes: Mapping[str, Any] | None = None
) -> MemberRunner:
    own: Settings = member_settings(settings)
    names = flags.option_types(type(own), RunOptions)
    kept = {name: source for name, source in sources.items() if name in names}
    return MemberRunner(
        directory, settings.over, own, replace(options, **OWN), kept, settings.score, dict(changes or {})
    )


def _print_plan(directory: Path, lines: list[tuple[str, str]]) -> None:
    console = screen.default_console()
    shown = [("run", f"{directory} (dry run: nothing is written)"), *lines]
    screen.print_all(console, opening.fact_lines(shown, console))


def _go(
    result: RunResult,
    crew: Crew,
    evolution: Evolution,
    runner: MemberRunner,
    lines: list[tuple[str, str]],
    lock: DirectoryLock,
    options: RunOptions,
) -> RunResult:
    crew.roles[0].settings["run"] = runner
    crew.directory = result.directory
    lines = lines if options.verbose else opening.short_facts(lines)
    summary = PopulationSession(crew, result.directory, evolution, lines, options.quiet).go()
    return replace(result, exit_code=summary["exit_code"], reason=summary["reason"], summary=summary)


def _refuse_callbacks(callbacks: Sequence[object]) -> None:
    """Raises UserError: members are other processes' runs."""
    if callbacks:
        raise UserError("callbacks: given, but members of a population train in other processes: leave them out")
