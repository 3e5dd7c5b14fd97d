"""What a person can do with a run: train, resume, evaluate it, draw its system."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyplay import checkpoint, config, plan, record, snapshot, spawn, systems, terminal, tracking, worker
from polyplay.crew import Crew
from polyplay.errors import UserError
from polyplay.session import Session
from polyplay.where import Where


@dataclass
class Run:
    """A run that has ended, or failed to: what it left behind and how it went."""

    directory: Path
    exit_code: int = 0
    reason: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    settings: Any = None

    def evaluate(self, episodes: int = 30, seed: int = 0) -> dict[str, Any]:
        return evaluate(self.directory, episodes, seed, settings=self.settings)


def train(system: str, settings: Any, options: config.RunOptions, sources: config.Sources) -> Run:
    """Run `system` from nothing. Raises UserError, EnvFailure, NotFinite or WorkerLost when it cannot go on."""
    page = systems.load(system)
    tracking.check(options.wandb)
    crew = new_crew(options)
    wired = page.build(settings, crew)
    planned = _planned(page, crew, wired, settings, options)
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
    return _go(Session(system, settings, options, sources, crew, wired, directory, {}, planned.lines))


def resume(directory: Path, changes: dict[str, Any], sources: config.Sources | None = None) -> Run:
    """Go on with a run from its newest whole checkpoint; `changes` are options that now hold."""
    directory = Path(directory)
    page, settings, options, kept = read(directory)
    options = config.override(options, {"run": str(directory), **changes})
    sources = {**kept["sources"], **dict.fromkeys(changes, "resume")}
    found = checkpoint.newest(directory, lambda text: print(f"polyplay: {text}", file=sys.stderr))
    counters = checkpoint.manifest(found)["counters"]
    crew = new_crew(options)
    crew.resume, crew.resumes = found, len(kept["resumed"]) + 1
    wired = page.build(settings, crew)
    planned = _planned(page, crew, wired, settings, options, int(counters["steps"]))
    if options.dry_run:
        return _dry(kept["system"], settings, options, sources, crew, wired, directory, planned)
    checkpoint.sweep(directory)
    gone = snapshot.lost(found, worker.keyed(crew.seed, 1000 * crew.resumes))
    if gone:
        print(f"polyplay: {gone}", file=sys.stderr)
    record.rewind(directory, counters)
    record.amend_config(directory, config.to_json(options), sources)
    return _go(Session(kept["system"], settings, options, sources, crew, wired, directory, counters, planned.lines))


def evaluate(
    directory: Path,
    episodes: int = 30,
    seed: int = 0,
    video: bool = False,
    which: str | None = None,
    greedy: bool = False,
    settings: Any = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Play `episodes` full games with a checkpoint's weights (default: the newest whole one; "best"; or its number)."""
    import torch

    from polyplay import playing
    from polyplay.crossing import near
    from polyplay.device import choose

    directory = Path(directory)
    page, kept, options, _ = read(directory)
    settings = settings or kept
    found = _choose(directory, which)
    wired = page.build(settings, new_crew(replace(options, device="cpu")))
    spawn.tune(1)  # the environments' threads have the other cores; two that wait for each other gain nothing
    torch.manual_seed(seed)
    policy = near(playing.load_policy(wired, found).to(choose(device)[0]))
    name = f"evaluation-{found.name}-seed{seed}{'-greedy' if greedy else ''}"
    film = playing.Film(directory / f"{name}.mp4") if video else None
    before = time.monotonic()
    try:
        games = playing.play(wired.envs, policy, episodes, seed, greedy, film)
    finally:
        if film is not None:
            film.close()
    result = playing.summarise(games, wired.envs.spec.frames_per_step, time.monotonic() - before)
    result = {"checkpoint": found.name, "seed": seed, "actions": "greedy" if greedy else "sampled", **result}
    result["environment"] = dict(wired.envs.spec.describe)
    if film is not None:
        result["video"] = str(film.path)
    checkpoint.write_json(directory / f"{name}.json", result)
    return result


def export(directory: Path, file: Path, which: str | None = None) -> dict[str, Any]:
    """Write a checkpoint's policy (default: of the newest whole one) as an ONNX file; what was written."""
    from polyplay import export as exporting
    from polyplay import playing

    exporting.check(file)
    directory = Path(directory)
    page, settings, options, kept = read(directory)
    found = _choose(directory, which)
    wired = page.build(settings, new_crew(replace(options, device="cpu")))
    spawn.tune(1)
    spec = wired.envs.spec
    about = {
        "polyplay": kept["versions"]["polyplay"],
        "system": kept["system"],
        "env": config.to_json(settings)["env"],
        "environment": dict(spec.describe),
        "checkpoint": found.name,
        "counters": checkpoint.manifest(found)["counters"],
    }
    return exporting.export(playing.load_policy(wired, found), spec, file, about)


def diagram(system: str, settings: Any, options: config.RunOptions) -> str:
    """The figure of a system, drawn from its wiring."""
    crew = new_crew(options)
    systems.load(system).build(settings, crew)
    return crew.diagram()


def _planned(page: Any, crew: Crew, wired: Any, settings: Any, options: Any, done: int = 0) -> plan.Plan:
    """The plan, refused if it cannot work."""

    def again(other: Any) -> plan.Plan:
        crew = new_crew(options)
        return plan.make(crew, page.build(other, crew), options, done)

    return plan.checked(plan.make(crew, wired, options, done), settings, again)


def _dry(
    system: str,
    settings: Any,
    options: config.RunOptions,
    sources: config.Sources,
    crew: Crew,
    wired: Any,
    directory: Path,
    planned: plan.Plan,
) -> Run:
    """Print the plan, and what two seconds of the run tell; nothing is written."""
    console = terminal.default_console()
    told = config.to_json(settings), config.to_json(options), sources, wired.envs.spec.describe
    for what in terminal.opening(system, *told, f"{directory} (dry run: nothing is written)", planned.lines, console):
        terminal.show(console, what)
    metrics = (*wired.metrics, "grad_norm", "learning_rate")
    for what in terminal.facts(plan.measure(crew, metrics, planned, wired.envs.spec.frames_per_step), console):
        terminal.show(console, what)
    return Run(directory, 0, "dry run", {}, settings)


def _go(session: Session) -> Run:
    summary = session.go()
    return Run(session.directory, summary["exit_code"], summary["reason"], summary, session.settings)


def _choose(directory: Path, which: str | None) -> Path:
    if which == "best":
        found = checkpoint.best(directory)
        if found is None:
            raise UserError(
                f"--checkpoint: {directory} has none with a return yet; leave the option out for the newest"
            )
    elif which is None:
        return checkpoint.newest(directory, lambda text: print(f"polyplay: {text}", file=sys.stderr))
    else:
        names = [p.name for p in checkpoint.everything(directory)]
        match = [n for n in names if n == which or n.lstrip("0") == which.lstrip("0")]
        if not match:
            raise UserError(f"--checkpoint: {which!r} given, allowed: best, {', '.join(names) or 'none there yet'}")
        found = checkpoint.folder(directory) / match[0]
    wrong = checkpoint.flaw(found)
    if wrong is not None:
        raise UserError(f"--checkpoint: {found.name} cannot be used: {wrong}")
    return found


def read(directory: Path) -> tuple[Any, Any, config.RunOptions, dict[str, Any]]:
    """(its system's page, config, options, config.json) of a run. Raises UserError."""
    kept = record.read_config(directory)
    page = systems.load(kept["system"])
    settings = config.from_json(page.Config, kept["config"])
    options = config.to_json(config.RunOptions()) | kept["options"]  # an option that is newer than the run: its default
    return page, settings, config.from_json(config.RunOptions, options), kept


def new_crew(options: config.RunOptions) -> Crew:
    """An empty crew with the options of a run. From now on this process keeps to the cores that they name."""
    spawn.keep_to(options.cores)
    return Crew(
        options.seed,
        options.on,
        options.serial,
        trace=options.trace,
        frames=options.frames,
        steps=options.steps,
        step_timeout=options.step_timeout,
        atari=options.atari,
        precision=options.precision,
        where=Where(options.device, options.actors_on),
        reuse=options.reuse,
    )
