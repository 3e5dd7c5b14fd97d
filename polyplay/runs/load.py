"""Load a run from its directory: system, options and checkpoints. Also check whether the run can resume."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import Row, is_number, is_row, read_lines, read_object
from polyplay.core.machine import cxx_compiler
from polyplay.core.user_modules import look_up
from polyplay.envs import pool
from polyplay.runs import options as run_options
from polyplay.runs.directory import MAIN, check_trust, option_title, read_config, read_summary
from polyplay.runs.flags import flag
from polyplay.runs.options import Page, RunOptions, Settings, Sources
from polyplay.runs.plan import Plan, minutes_over
from polyplay.systems import System
from polyplay.workers import process
from polyplay.workers.crew import Crew
from polyplay.workers.hosts import cluster
from polyplay.workers.role import Placement

# Objects that a program passes to a run, as in env=Env. The run's files store only the names of such objects. A resumed
# run gets an object from a keyword, from the earlier run in the same process, or by name from the user's program.


LEARNING = ("optimizer", "loss")
FIELDS = ("env", "network", *LEARNING)
_given: dict[Path, dict[str, Any]] = {}  # directory of a run in this process → objects passed to the run


def objects_of(*values: Settings | Mapping[str, Any]) -> dict[str, Any]:
    """Return {option: object} for the settings and options whose value is an object, such as an environment class."""
    found = {k: v for each in values for k, v in (each if isinstance(each, Mapping) else vars(each)).items()}
    return {name: found[name] for name in FIELDS if callable(found.get(name))}


def remember(directory: Path, settings: Settings, options: RunOptions) -> None:
    """Keep the objects that were passed to a run, so that a resume in the same process finds these objects."""
    _given[directory.resolve()] = objects_of(settings, options)


def find_objects(directory: Path, config: Row) -> dict[str, Any]:
    """Find a run's objects, such as its network, by name in the user's program. Return {option: object}. If an object
    is not found, return a function that raises UserError when it is called. config: options in config.json.
    """
    found: dict[str, Any] = {}
    for name in FIELDS:
        text = str(config.get(name))
        if text.startswith(f"{MAIN}:") or "<" in text or text == "functools:partial":  # no import finds the object
            found[name] = _lost(directory, name, text)
            with contextlib.suppress(AttributeError):
                found[name] = look_up(sys.modules[MAIN], text.removeprefix(f"{MAIN}:"))
    return found


def _lost(directory: Path, field: str, name: str) -> Callable[..., Any]:
    def lost(*args: object, **kwargs: object) -> None:
        where = f"polyplay.resume({str(directory)!r}, {field}=…)"
        what = f"a program with {field}={name}, which is not here"
        raise UserError(f"RUN: {directory} was started by {what}: pass it to {where}")

    lost.__module__, _, lost.__qualname__ = name.partition(":")
    return lost


def choose_checkpoint(directory: Path, which: str | None) -> Path:
    """Return a checkpoint's path. Raises UserError if the checkpoint does not exist or is damaged.

    which: "best", or a checkpoint's name or number of updates. None means the newest intact checkpoint.
    """
    if which is None:
        return checkpoint.newest(directory, lambda text: print(f"polyplay: {text}", file=sys.stderr))
    there, best = checkpoint.everything(directory), checkpoint.best(directory)
    match = [p for p in there if which == p.name or (which.isdecimal() and int(which) == checkpoint.update_of(p))]
    match += [best] if best and which == "best" else []
    if not match:
        names = ", ".join(p.name for p in there) or "none exists yet"
        raise UserError(f"--checkpoint: {which!r} given, allowed: {'' if which == 'best' else 'best, '}{names}")
    if wrong := checkpoint.flaw(match[0]):
        raise UserError(f"--checkpoint: {match[0].name} cannot be used: {wrong}")
    return match[0]


def choose_agent(directory: Path, found: Path, which: str | None, option: str = "--agent") -> int:
    """Return the number of an agent in the checkpoint `found`. Raises UserError if the checkpoint lacks the agent.

    which: the agent's number, or "best" for the highest Elo rating in the league. None means the lowest number.
    option: the command-line option that error messages name.
    """
    there = checkpoint.agents_of(found)
    if which is None:
        return min(there, default=0)  # a damaged manifest lists no agent: reading the weights then fails
    if which == "best":
        rated: dict[int, float] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # without a league, best is the first
            players = read_object(directory / "league.json")["players"]
            rated = {row["agent"]: float(row["elo"]) for row in players if row["kind"] == "agent"}
        return max(there, key=lambda agent: rated.get(agent, 0.0))
    if not which.isdecimal() or int(which) not in there:
        raise UserError(f"{option}: {which!r} given, allowed: best, {', '.join(map(str, there))}")
    return int(which)


def split_checkpoint(path: Path) -> tuple[Path, str | None]:
    """Split a checkpoint's path into (run directory, checkpoint name). From a run's path, return (the path, None)."""
    if path.parent.name != "checkpoints":
        return path, None
    return path.parents[1], "best" if path.name.startswith(checkpoint.BEST) else path.name


def load_run(
    directory: Path,
    trust: bool = False,
    population: bool = False,
    given: Mapping[str, Any] | None = None,
    learns: bool = False,
) -> tuple[Page, Settings, RunOptions, Row]:
    """Load a run. Return (page of its system, settings, options, contents of config.json). If the run's files name code
    of the user, print a line about it.

    `given`: objects of the run, such as its environment class or network.
    `learns`: whether training continues. If not, an optimizer or loss that was an object becomes the default.
    Raises UserError if the run is a population and `population` is false. Raises UserError if the run names code and
    was made elsewhere, and `trust` is false.
    """
    config = read_config(directory, whole=True, population=population)
    known = _given.get(directory.resolve(), {})
    values = {**config["options"], **config["config"]}
    own = {name: v for name, v in known.items() if run_options.json_value(v) == values.get(name)}
    own |= given or {}
    for line in check_trust(directory, config, trust, own):
        print(f"polyplay: {line}", file=sys.stderr)
    page = systems.page_of(config["system"], config["config"].get("over"))
    options = run_options.to_json(RunOptions())  # options newer than the run get defaults; removed options are dropped
    options |= {name: value for name, value in config["options"].items() if name in options}
    settings = run_options.from_json(page.Config, config["config"])
    own = {**find_objects(directory, values), **own}
    own |= (
        {} if learns else {k: v for k, v in {**vars(page.Config()), "loss": None}.items() if k in own and k in LEARNING}
    )
    made = run_options.from_json(RunOptions, options)
    return page, run_options.replace_known(settings, own), run_options.replace_known(made, own), config


def read_spaces(directory: Path) -> pool.EnvSpec:
    """Read the observation and action spaces of a run's environment. Raises UserError if the file is unreadable."""
    path = directory / pool.FILE
    try:
        return pool.spec_from_json(read_object(path), str(path))
    except (OSError, ValueError) as e:
        raise UserError(f"{path} is damaged: {e}; put back a copy of it") from None


def check_spaces(directory: Path, envs: pool.Envs) -> None:
    """Raise UserError if the environments have other observations or actions than the run was trained on."""
    if not (directory / pool.FILE).exists():  # the file was lost: nothing to compare with
        return
    was = read_spaces(directory)
    now = pool.spec_from_json(pool.spec_to_json(envs.spec), envs.title)
    (seen, acted), (before, taken) = pool.network_view(now), pool.network_view(was)
    shown, actions = pool.describe_views(now, was)
    masked = [text + " with masks" * (spec.mask is not None) for text, spec in zip(actions, (now, was), strict=True)]
    same = (acted, now.action, now.mask) == (taken, was.action, was.mask)
    for what, (is_, other), equal in (("shows", shown, seen == before), ("takes", masked, same)):
        if not equal:
            trained = f"{directory} was trained on {other} ({pool.FILE})"
            cure = f"give it another name and run `polyplay surgery {directory} --out RUN2 --env NAME`"
            raise UserError(f"RUN: {envs.title} {what} {is_}, but {trained}; to train on the new one, {cure}")


CREW = ("seed", "on", "serial", "trace", "steps", "reuse", "compile", "host_wait", "loss")
FAULTS = ("step_timeout", "max_restarts")  # options about faults of environments


def crew_of(options: RunOptions, population: bool = False) -> Crew:
    """Make an empty crew, the object to which a run's workers are added. Restrict this process to `options.cores`
    cores.

    `population`: whether the run is a population, whose other machines train whole members.
    Raises UserError if an option does not fit this machine or another option.
    """
    process.keep_to(options.cores)
    if options.compile == "on" and cxx_compiler() is None:
        raise UserError("--compile: on given, but there is no C++ compiler: install g++; allowed here: auto, off")
    where = Placement(options.device, options.actors_on)
    precision: str = options.precision
    if precision == "auto" and where.on_cpu:
        from polyplay.nets import device

        precision = device.choose_precision(precision)
    given: Any = {name: vars(options)[name] for name in CREW}
    given["env_defaults"] = {name: vars(options)[name] for name in FAULTS} | run_options.how_made(options)
    schedules = run_options.parse_changes(options.change)
    away: dict[str, Any] = {"fleet": cluster.fleet_of(options)}
    if population and away["fleet"] is not None:
        if options.place is not None:
            text = "given, but members of a population run where cores are free: leave it out"
            raise UserError(f"--place: {options.place} {text}")
        away = {"cluster": cluster.Cluster(str(options.hosts), options.ship)}
    return Crew(**given, precision=precision, placement=where, schedules=schedules, **away)


def wire_system(page: Page, settings: Settings, crew: Crew) -> System:
    """Add a system's workers to `crew`, and return the system. Raises UserError if an option does not fit."""
    from polyplay.nets.layers import outlines

    try:
        with outlines():  # networks without weights: only sizes are needed
            wired = page.build(settings, crew)
    except TypeError as e:
        if "abstract" not in str(e):
            raise
        raise UserError(f"SYSTEM: build of {page.name}: {e}") from None
    except MemoryError:
        usual = vars(page.Config())
        changed = [f"{flag(k)} {v}" for k, v in vars(settings).items() if type(v) is int and v > usual[k]]
        raise UserError(f"memory: too small for {' '.join(changed) or 'these settings'}: lower the value") from None
    if not isinstance(wired, System):
        raise UserError(f"SYSTEM: build of {page.name} must return a System, got {type(wired).__name__}")
    _check_lanes(crew)
    return wired if crew.loss is None or wired.spec is None else replace(wired, spec=crew.learner.spec)


def _check_lanes(crew: Crew) -> None:
    for role in crew.roles:
        if role.envs is not None and (n := len(role.envs.spec.order)) and (lanes := role.n * role.envs.lanes) % n:
            workers = f" of {role.n} workers (role {role.name})" if role.n > 1 else ""
            many = f"{lanes} lanes{workers} given for {n} lanes of the tasks of --env"
            raise UserError(f"--lanes: {many}; allowed: a multiple of {n} in all")


@contextlib.contextmanager
def compute_threads(n: int) -> Iterator[None]:
    """Let torch compute with `n` threads within this context."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def weights_digest(found: Path, agent: int = 0) -> str:
    """Return the SHA-256 of an agent's policy from the checkpoint's manifest, or "" if the manifest has none."""
    name = f"{checkpoint.policy_name(agent)}.safetensors"
    return str(checkpoint.manifest(found)["files"].get(name, {}).get("sha256", ""))


# Checks before a run resumes: its checkpoint, whether anything is left to do, and which options may differ.


BEGINNING = {"steps": 0, "frames": 0, "updates": 0}


def find_checkpoint(directory: Path, say: Callable[[str], None]) -> tuple[Path | None, Row]:
    """Find the checkpoint to resume from. Return (path, counters), or (None, zeros) if the run has no updates yet.
    `say` is called with a line about each damaged checkpoint. Raises UserError if all checkpoints are damaged or
    deleted.
    """
    if not checkpoint.everything(directory):
        learnt = any(row["updates"] for row in read_lines(directory / "metrics.jsonl", "updates"))
        lines = any(any(read_lines(directory / name)) for name in ("episodes.jsonl", "updates.jsonl"))
        folder = checkpoint.checkpoints_dir(directory)  # an early kill leaves this folder empty
        if learnt or read_summary(directory).get("checkpoint") or (lines and not folder.exists()):
            lost = f"RUN: {directory} has no checkpoint, but its files record updates: put back {folder}"
            raise UserError(f"{lost}; to start again, name another --run or move {directory} away")
        return None, BEGINNING
    found = checkpoint.newest(directory, say, checkpoint.resume_flaw)
    return found, checkpoint.manifest(found)["counters"]


def steps_learnt(found: Path | None) -> float:
    """Return the number of agent steps that the checkpoint's agents have learned from, or 0 without a checkpoint."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if found is not None:
            saved = checkpoint.OpenCheckpoint(found)
            return sum(float(saved.json(f"agents/{agent}/learner")["learnt"]) for agent in checkpoint.agents_of(found))
    return 0.0


def finished(
    directory: Path, found: Path | None, plan: Plan, counters: Row, options: RunOptions, changes: Mapping[str, Any]
) -> str:
    """If the run is finished, return a sentence with the reason and with the command that extends the run. Otherwise
    return "". found: the checkpoint to resume from.
    """
    summary = read_summary(directory)
    seconds = summary["wall_seconds"] if is_row(summary, ("wall_seconds",)) else 0.0
    if summary.get("exit_code") != 0:
        return ""
    if steps_learnt(found) * counters["frames"] >= plan.frames * max(counters["steps"], 1):
        why, longer = f"{counters['frames']:,} of {plan.frames:,} frames are done", "--frames N (or --steps N)"
    elif options.minutes is not None and seconds >= 60.0 * options.minutes:
        why, longer = minutes_over(options.minutes), "--minutes N"
    elif "mean return" in str(summary.get("reason")) and changes.get("until_return") is None:
        why, longer = str(summary["reason"]), "--until-return N"
    else:
        return ""
    command = f"polyplay resume {shlex.quote(str(directory))} {longer}"
    return f"{directory} is finished: {why}; `{command}` with a larger N lengthens it"


def sizes_of(settings: Settings) -> Row:
    """Return {option: value} for the numbers of lanes (parallel environments) and workers in the settings."""
    return {name: value for name, value in vars(settings).items() if name in run_options.SIZES}


def sizes_changed(config: Row, before: Settings, now: Settings, crew: Crew, steps: int) -> str:
    """Describe which numbers of lanes (parallel environments) and workers differ from those at the checkpoint of
    `steps` agent steps. If none differs, return "". Raises UserError if one differs and the run saves a replay buffer,
    because the buffer stores each lane separately.
    """
    saved = sizes_of(before)
    for entry in reversed(config["resumed"]):  # a resume stores the numbers before it
        if isinstance(was := entry.get("sizes"), dict) and is_number(entry.get("steps")) and entry["steps"] >= steps:
            saved |= {name: was[name] for name in saved if name in was}
    found = [(name, was, sizes_of(now)[name]) for name, was in saved.items() if was != sizes_of(now)[name]]
    if found and any(role.held_replay for role in crew.roles):
        name, was, is_ = found[0]
        raise UserError(f"{flag(name)}: {is_} given, but the replay holds the rows of each lane ({was}): leave it out")
    return ", ".join(f"{name} {was} → {is_}" for name, was, is_ in found)


def changes_given(system: str, settings: Settings, options: RunOptions, sources: Sources) -> dict[str, Any]:
    """Return {option: new value} for the options that `train --resume auto` changes in the existing run. Raises
    UserError if an option with a new value cannot change.
    """
    config = read_config(Path(str(options.run)), population="over" in run_options.to_json(settings))
    was = {**config["config"], **config["options"], "system": config["system"]}
    was |= {} if was["steps"] is None else {"frames": None}
    now = {**run_options.to_json(settings), **run_options.to_json(options), "system": system}
    given = [k for k in now if k not in run_options.OF_ONE_RUN and (k == "system" or run_options.is_order(k, sources))]
    differ = [k for k in given if k in was and was[k] != now[k]]
    differ = [k for k in differ if now[k] != 0 or config["sources"].get(k) != "chosen"]  # 0: the run chooses
    for name in differ:
        if name not in run_options.CHANGEABLE:
            text = f"{option_title(name)}: {now[name]} given, but {options.run} was started with {was[name]}"
            raise UserError(f"{text}: give that value, or name another --run")
    return {k: now[k] for k in differ} | {k: True for k in ("dry_run", "quiet", "verbose") if now[k]}
