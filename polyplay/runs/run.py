"""Train new runs, resume runs, and draw the diagram of a system."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from polyplay import systems
from polyplay.buffers import actor_checkpoint
from polyplay.buffers import replay as replay_files
from polyplay.buffers.league import League
from polyplay.core import checkpoint, worker
from polyplay.core.errors import UserError
from polyplay.core.files import Row, write_json
from polyplay.envs import atari, pool
from polyplay.runs import directory as run_files
from polyplay.runs import load, reporter, terminal
from polyplay.runs import options as run_options
from polyplay.runs.flags import flag, option_types
from polyplay.runs.options import Page, RunOptions, Settings, Sources
from polyplay.runs.plan import Plan, check_plan, kind_of, make_plan, measure_speed
from polyplay.runs.session import Callback, RunSetup, Session, check_callbacks
from polyplay.systems import System, _presets
from polyplay.workers.crew import Crew
from polyplay.workers.role import describe_wiring


@dataclass
class RunResult:
    """Result of a run that has ended: its directory, exit code, reason of the end, summary and settings."""

    directory: Path
    exit_code: int = 0
    reason: str = ""
    summary: Row = field(default_factory=dict)
    settings: Settings | None = None


def train(
    page: Page, settings: Settings, options: RunOptions, sources: Sources, callbacks: Sequence[object] = ()
) -> RunResult:
    """Train a new agent or population (several runs trained together). With --resume auto, resume the run if it exists
    already. Raises UserError, EnvFailure, NotFinite or WorkerLost if the run cannot continue.
    """
    called = check_callbacks(callbacks, systems.is_population(page))
    there = Path(str(options.run))
    if options.resume == "auto" and (there / "config.json").exists():
        changes = load.changes_given(page.name, settings, options, sources) | load.objects_of(settings, options)
        own = {"system": page.name, "config": run_options.to_json(settings), "options": run_options.to_json(options)}
        same = run_files.code_of(run_files.read_config(there, population=True)) == run_files.code_of(own)
        return resume(there, changes, same, callbacks)
    from polyplay.runs import population

    if systems.is_population(page):
        return population.train(page, settings, options, sources)
    return begin_run(page, settings, options, sources, called)


def begin_run(
    page: Page,
    settings: Settings,
    options: RunOptions,
    sources: Sources,
    callbacks: Sequence[Callback] = (),
    **how: Any,
) -> RunResult:
    """Start a run that is not a population. how: `part` of RunSetup, if only a part of the run is trained now."""
    reporter.check_wandb(options.wandb)
    given = settings
    wire = partial(_wire, page, options)
    settings, (crew, wired), left = run_options.fitted(settings, sources, wire)
    plan = complete_plan(page, crew, wired, settings, options)
    plan = replace(plan, lines=left + plan.lines)
    settings = replace(settings, **wired.resolved)
    chosen = [k for k, value in vars(settings).items() if value != vars(given)[k]]
    sources = {**sources, **dict.fromkeys(chosen, "chosen")}
    directory = run_options.new_directory(page.name, settings.env, options)
    setup = RunSetup(page.name, settings, options, sources, crew, wired, directory, plan, {}, None, callbacks, **how)
    if options.dry_run:
        return _dry_run(setup)
    with closing(run_files.DirectoryLock(directory)) as lock:
        run_options.refuse_begun(directory)
        run_files.write_config(directory, setup.description)
        write_json(directory / pool.FILE, pool.spec_to_json(wired.envs.spec))
        load.remember(directory, settings, options)
        return _go(replace(setup, lock=lock))


def _wire(page: Page, options: RunOptions, settings: Settings) -> tuple[Crew, System]:
    crew = load.crew_of(options)
    crew.measures = True
    wired = load.wire_system(page, settings, crew)
    if wrong := _presets.warning(page, options.preset, settings.env, **run_options.how_made(options)):
        _warn(wrong)
    return crew, wired


def resume(
    directory: Path, changes: Mapping[str, Any], trust: bool = False, callbacks: Sequence[object] = ()
) -> RunResult:
    """Resume a run or a population from its newest intact checkpoint.

    `changes`: new values of options.
    `trust`: whether to execute code that the run's files name, even if the run was made elsewhere.
    """
    of_population = run_files.has_members(run_files.read_config(directory, population=True))
    called = check_callbacks(callbacks, of_population)
    from polyplay.runs import population

    if of_population:
        return population.resume(directory, changes, trust)
    return continue_run(directory, changes, trust, called)


def continue_run(directory: Path, changes: Mapping[str, Any], trust: bool = False, *how: Any, **part: Any) -> RunResult:
    """Resume a run that is not a population. how: the callbacks. part: `part` of RunSetup, as in `begin_run`."""
    run_files.read_config(directory)
    with nullcontext() if changes.get("dry_run") else closing(run_files.DirectoryLock(directory)) as lock:
        given = load.objects_of(changes)
        changes = {name: value for name, value in changes.items() if name not in given}
        page, settings, options, config = load.load_run(directory, trust, given=given, learns=True)
        before = settings
        settings, others = run_options.adjust(page, settings, changes)
        for name in sorted(() if "change" in changes else run_options.scheduled_names(options.change) & {*changes}):
            text = f"{flag(name)}: {changes[name]} given, but --change of {directory} schedules it"
            raise UserError(f"{text}: leave it out, or give a new --change too")
        elsewhere = {"place": None, "ship": None} if "hosts" in changes else {}  # values are for the earlier machines
        options = run_options.override(options, {"run": str(directory), **elsewhere, **others})
        sources = {**config["sources"], **dict.fromkeys(changes, "resume")}
        found, counters = load.find_checkpoint(directory, _warn)
        crew = load.crew_of(options)
        if counters["steps"] or counters["updates"]:
            crew.resume, crew.resumes = found, len(config["resumed"]) + 1
        wired = load.wire_system(page, settings, crew)
        load.check_spaces(directory, wired.envs)
        if crew.resume is not None:  # environments may read this before the learner starts
            crew.control.run.set("remaining", max(0.0, 1.0 - load.steps_learnt(found) / wired.spec.total))
        crew.control.anew = bool(sizes := load.sizes_changed(config, before, settings, crew, counters["steps"]))
        if crew.resume is not None:
            replay_files.check_saved(Path(crew.resume), [r.held_replay for r in crew.roles if r.held_replay])
        plan = complete_plan(page, crew, wired, settings, options, int(counters["steps"]))
        if sizes:
            plan = replace(plan, lines=[*plan.lines, ("sizes", f"{sizes}: not bitwise, all lanes restart")])
        made = config["system"], settings, options, sources, crew, wired, directory, plan, counters, lock
        setup = RunSetup(*made, *how, **part)
        if why := load.finished(directory, found, plan, counters, options, changes):
            print(f"polyplay: {why}")
            return RunResult(directory, 0, why, run_files.read_summary(directory), settings)
        if lock is None:
            return _dry_run(setup)
        checkpoint.remove_partial(directory)
        checkpoint.set_aside(directory, found)
        if crew.resume is None:
            _warn("the run had made no updates: it restarts at update 0")
        elif setup.part is None and (lost := _lost_lanes(crew)):
            _warn(lost)
        if damaged := [f"{p} {wrong}" for p in checkpoint.self_files(directory) if (wrong := checkpoint.self_flaw(p))]:
            more = f", and so are {len(damaged) - 1} others" if damaged[1:] else ""
            _warn(f"past agent {damaged[0]}{more}: put back a copy; the run ends when it has to play")
        run_files.rewind(directory, counters, _warn)
        load.remember(directory, settings, options)
        was = load.sizes_of(before)
        noted = {"steps": counters["steps"], "sizes": was} if was != load.sizes_of(settings) else None
        run_files.amend_config(directory, setup.description, noted)
        return _go(setup)


def _lost_lanes(crew: Crew) -> str:
    """Describe the lanes (parallel environments) that the checkpoint cannot restore, or return "" if none is lost."""
    seed = worker.seed_of(crew.seed, 1000 * crew.resumes)
    if crew.control.anew:
        return f"all lanes restart, from seed {seed}: their number differs from the checkpoint's"
    found = checkpoint.OpenCheckpoint(Path(str(crew.resume)))
    plays = any(role.find(League) for role in crew.roles)
    if plays and not (crew.serial and found.has(actor_checkpoint.LEAGUE)):
        return f"matches under way are counted as lost: all lanes restart, from seed {seed}"
    return actor_checkpoint.lost_lanes(found.path, seed)


def diagram(page: Page, settings: Settings, options: RunOptions, sources: Sources | None = None) -> str:
    """Return a text diagram of a system: its workers, and the objects through which they exchange data."""

    def draw(other: Settings) -> str:
        crew = load.crew_of(options, systems.is_population(page))
        load.wire_system(page, other, crew)
        return crew.diagram()

    return str(run_options.fitted(settings, sources or {}, draw)[1])


def complete_plan(
    page: Page, crew: Crew, wired: System, settings: Settings, options: RunOptions, steps: int = 0
) -> Plan:
    """Return the plan of a run. If the options request evaluations, add an evaluator to `crew`, the run's workers.

    `steps`: agent steps that a resumed run has already made.
    Raises UserError if the run cannot work with these options, or needs too much memory.
    """

    from polyplay.nets.layers import outlines

    check_returns(crew, options)
    if backends := [role.holds["backend"] for role in crew.roles if "backend" in role.holds]:
        from polyplay.search.evaluators import check_backend

        for backend in backends:  # checked here, because only training needs a backend
            check_backend(backend)
    with outlines():  # networks without weights: only sizes are needed
        plan = make_plan(crew, wired, options, steps)
        try:
            plan = check_plan(plan, replace(settings, **wired.resolved))
        except UserError as e:
            if not options.dry_run:
                raise
            plan = replace(plan, refused=str(e))
    source = _presets.tuned(page).get(options.preset, {}).get("source")
    settled = [("settings", f"preset {options.preset}: {source}")] if source else []
    if crew.fleet is not None:
        settled.append(("machines", crew.fleet.check(crew)))
    changes = run_options.check_changes(crew, option_types(page.Config))
    plan = replace(plan, lines=settled + plan.lines + changes + add_evaluator(crew, wired, options, steps))
    if plan.warning:
        _warn(plan.warning)
    return plan


def check_returns(crew: Crew, options: RunOptions) -> None:
    """Raise UserError if a league uses the mean return, which does not measure strength in self-play."""
    given = [name for name in ("eval_every", "until_return") if vars(options)[name] is not None]
    if given and any(role.find(League) for role in crew.roles):
        text = f"{flag(given[0])} {vars(options)[given[0]]} given, but mean return does not measure strength"
        raise UserError(f"{text} in self-play: leave it out; `polyplay tournament` rates agents")


def add_evaluator(crew: Crew, wired: System, options: RunOptions, steps: int) -> run_options.Lines:
    """If the options request evaluations, add a worker that evaluates the weights. Return the plan's lines about
    evaluations.

    Raises UserError if --eval-protocol does not fit the environment, or if the learner is on another machine.
    """
    if options.eval_every is None:
        return []
    if crew.fleet is not None and crew.fleet.learner_away(crew):
        raise UserError("--place: learn is on another machine, but --eval-every needs it here; leave one of them out")
    from polyplay.acting.play import PlayOptions
    from polyplay.weights.params import Params
    from polyplay.workers import evaluator

    protocol = atari.protocol(options.eval_protocol)
    envs, _ = atari.apply(protocol, wired.envs)
    epsilon = wired.test_epsilon if options.eval_epsilon is None else options.eval_epsilon
    crew.control.show = Params.of(wired.policy())
    play = PlayOptions(options.eval_episodes, options.seed, epsilon=epsilon)
    asked = {"games": envs, "policy": wired.policy, "asked": play, "protocol": protocol.name, "steps": steps}
    crew.add(evaluator.evaluator, name="evaluator", if_lost="replace", every=options.eval_every, **asked)
    text = f"every {options.eval_every:,} frames {play.episodes} games: {protocol.what}; ε {epsilon:g}"
    return [("evaluation", text)]


def _warn(text: str) -> None:
    print(f"polyplay: {text}", file=sys.stderr)


def _dry_run(setup: RunSetup) -> RunResult:
    console = terminal.default_console()
    directory = f"{setup.directory} (dry run: nothing is written)"
    terminal.print_all(console, terminal.opening_lines(setup.description, directory, setup.plan.lines, console))
    speed = measure_speed(setup.crew, setup.metrics, setup.plan, setup.frames_per_step)
    terminal.print_all(console, terminal.fact_lines(speed, console))
    if setup.plan.refused:
        raise UserError(setup.plan.refused)
    return RunResult(setup.directory, 0, "dry run", {}, setup.settings)


def _go(setup: RunSetup) -> RunResult:
    wiring = describe_wiring(setup.crew) | {"pool": kind_of(setup.wired.envs)}
    write_json(setup.directory / run_files.WIRING, wiring)
    summary = Session(setup).go()
    return RunResult(setup.directory, summary["exit_code"], summary["reason"], summary, setup.settings)
