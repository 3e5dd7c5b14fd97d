"""A run from its options to its end: train, resume, and the figure of its system."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyplay import systems
from polyplay.buffers import actor_checkpoint
from polyplay.buffers.replay import codec
from polyplay.common import checkpoint, context
from polyplay.common.errors import UserError
from polyplay.envs.atari import protocols
from polyplay.runs import directory as record
from polyplay.runs import options as config
from polyplay.runs import plan
from polyplay.runs.load import crew_of, load_run
from polyplay.runs.reports import terminal, wandb
from polyplay.runs.session import Session
from polyplay.workers import fault_rules
from polyplay.workers.crew import Crew


@dataclass
class RunResult:
    """A run that has ended, or failed to: what it left behind and how it went."""

    directory: Path
    exit_code: int = 0
    reason: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    settings: Any = None


def train(system: str, settings: Any, options: config.RunOptions, sources: config.Sources) -> RunResult:
    """Run `system` from nothing. Raises UserError, EnvFailure, NotFinite or WorkerLost when it cannot go on."""
    page = systems.load(system)
    wandb.check_wandb(options.wandb)
    crew = crew_of(options)
    crew.measures = True
    wired = page.build(settings, crew)
    planned = _planned(page, crew, wired, settings, options)
    beside = _beside(crew, wired, options)
    _harm(crew, options)
    settings = replace(settings, **wired.resolved)
    sources = {**sources, **{k: "chosen" for k in wired.resolved if sources.get(k) != "command line"}}
    directory = config.new_directory(system, settings.env, options)
    if options.dry_run:
        return _dry(system, settings, options, sources, crew, wired, directory, planned)
    record.write_config(
        directory,
        system,
        config.to_json(settings),
        config.to_json(options),
        sources,
        wired.envs.spec.describe,
    )
    return _go(Session(system, settings, options, sources, crew, wired, directory, {}, planned.lines + beside))


def resume(directory: Path, changes: dict[str, Any], sources: config.Sources | None = None) -> RunResult:
    """Go on with a run from its newest whole checkpoint; `changes` are options that now hold."""
    directory = Path(directory)
    page, settings, options, kept = load_run(directory)
    options = config.override(options, {"run": str(directory), **changes})
    sources = {**kept["sources"], **dict.fromkeys(changes, "resume")}
    found = checkpoint.newest(directory, lambda text: print(f"polyplay: {text}", file=sys.stderr))
    counters = checkpoint.manifest(found)["counters"]
    crew = crew_of(options)
    crew.resume, crew.resumes = found, len(kept["resumed"]) + 1
    wired = page.build(settings, crew)
    planned = _planned(page, crew, wired, settings, options, int(counters["steps"]))
    lines = planned.lines + _beside(crew, wired, options, int(counters["steps"]))
    _harm(crew, options)
    if options.dry_run:
        return _dry(kept["system"], settings, options, sources, crew, wired, directory, planned)
    checkpoint.remove_partial(directory)
    gone = actor_checkpoint.lost_lanes(found, context.seed_of(crew.seed, 1000 * crew.resumes))
    if gone:
        print(f"polyplay: {gone}", file=sys.stderr)
    record.rewind(directory, counters)
    record.amend_config(directory, config.to_json(options), sources)
    return _go(Session(kept["system"], settings, options, sources, crew, wired, directory, counters, lines))


def diagram(system: str, settings: Any, options: config.RunOptions) -> str:
    """The figure of a system, drawn from its wiring."""
    crew = crew_of(options)
    systems.load(system).build(settings, crew)
    return crew.diagram()


def _planned(page: Any, crew: Crew, wired: Any, settings: Any, options: Any, done: int = 0) -> plan.Plan:
    """The plan, refused if it cannot work."""
    if options.compress != "none":
        codec(options.compress)
        if not any(r.held_replay for r in crew.roles):
            raise UserError(f"--compress {options.compress}: this system keeps no replay; leave it out")

    def again(other: Any) -> plan.Plan:
        crew = crew_of(options)
        return plan.make_plan(crew, page.build(other, crew), options, done)

    settings = replace(settings, **wired.resolved) if crew.divided else settings  # `again` measures nothing
    return plan.check_plan(plan.make_plan(crew, wired, options, done), settings, again)


def _beside(crew: Crew, wired: Any, options: Any, steps: int = 0) -> list[tuple[str, str]]:
    """Put the evaluator into a wired crew if the options ask for one; its line of the plan. steps: agent steps that a
    resumed run has behind it. Raises UserError: a protocol that the environment doesn't have.
    """
    if options.eval_every is None:
        return []
    from polyplay.acting.play import PlayOptions
    from polyplay.weights.flat import param_sizes
    from polyplay.weights.on_request import WeightsOnRequest
    from polyplay.workers import evaluator

    how = protocols.protocol(options.eval_protocol)
    envs, _ = protocols.apply(how, wired.envs)
    epsilon = wired.epsilon if options.eval_epsilon is None else options.eval_epsilon
    crew.control.show = WeightsOnRequest(param_sizes(wired.policy())[1])
    asked = PlayOptions(options.eval_episodes, options.seed, epsilon=epsilon)
    crew.add(
        evaluator.evaluator,
        name="evaluator",
        on_loss="replace",
        games=envs,
        policy=wired.policy,
        asked=asked,
        protocol=how.name,
        every=options.eval_every,
        steps=steps,
    )
    return [("evaluation", f"every {options.eval_every:,} frames {asked.episodes} games: {how.what}; ε {epsilon:g}")]


def _harm(crew: Crew, options: config.RunOptions) -> None:
    """Whether there is somebody to do to what the options ask for. Raises UserError."""
    if options.chaos is not None:
        fault_rules.check_faults(fault_rules.parse_faults(options.chaos), crew)


def _dry(
    system: str,
    settings: Any,
    options: config.RunOptions,
    sources: config.Sources,
    crew: Crew,
    wired: Any,
    directory: Path,
    planned: plan.Plan,
) -> RunResult:
    """Print the plan, and what two seconds of the run tell; nothing is written."""
    console = terminal.default_console()
    told = config.to_json(settings), config.to_json(options), sources, wired.envs.spec.describe
    for what in terminal.opening_lines(
        system, *told, f"{directory} (dry run: nothing is written)", planned.lines, console
    ):
        terminal.print_lines(console, what)
    metrics = (*wired.metrics, "grad_norm", "learning_rate")
    for what in terminal.fact_lines(
        plan.measure_speed(crew, metrics, planned, wired.envs.spec.frames_per_step), console
    ):
        terminal.print_lines(console, what)
    return RunResult(directory, 0, "dry run", {}, settings)


def _go(session: Session) -> RunResult:
    summary = session.go()
    return RunResult(session.directory, summary["exit_code"], summary["reason"], summary, session.settings)
