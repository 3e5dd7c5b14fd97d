"""A run's directory, opened again: page and options, one of its checkpoints, an empty crew like its own."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyplay import systems
from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row, read_object
from polyplay.envs import Envs, space_files
from polyplay.population.match_log import has_league
from polyplay.runs.changes import parse_changes
from polyplay.runs.directory import read_config
from polyplay.runs.flags import flag
from polyplay.runs.given import find_by_name, recall_objects
from polyplay.runs.options import Page, RunOptions, Settings, from_json, how_made, to_json
from polyplay.runs.trust import check_trust
from polyplay.systems import System
from polyplay.workers import process
from polyplay.workers.crew import Crew
from polyplay.workers.hosts.engine import LINKS, Engine
from polyplay.workers.placement import Placement

if TYPE_CHECKING:
    from polyplay.workers.hosts.fleet import Fleet

BEFORE = {"actions": "clip"}  # of settings that are newer than a run: what was done before there were such


def choose_checkpoint(directory: Path, which: str | None) -> Path:
    """The checkpoint that `which` names: best, its name or its update; None: the newest whole one. Raises UserError."""
    if which is None:
        return checkpoint.newest(directory, lambda text: print(f"polyplay: {text}", file=sys.stderr))
    if which == "best":
        found = checkpoint.best(directory)
        if found is None:
            none = "has none with a return yet, or plays itself without a gate"
            if has_league(directory):
                none = "is a league, which has no best one: its agents play each other"
            raise UserError(f"--checkpoint: {directory} {none}; leave the option out for the newest")
    else:
        there = checkpoint.everything(directory)
        match = [p for p in there if which == p.name or (which.isdecimal() and int(which) == checkpoint.update_of(p))]
        if not match:
            names = ", ".join(p.name for p in there) or "none there yet"
            raise UserError(f"--checkpoint: {which!r} given, allowed: best, {names}")
        found = match[0]
    wrong = checkpoint.flaw(found)
    if wrong is not None:
        raise UserError(f"--checkpoint: {found.name} cannot be used: {wrong}")
    return found


def choose_agent(directory: Path, found: Path, which: str | None, option: str = "--agent") -> int:
    """The agent that `which` names in a checkpoint: best (by its Elo in the league), or its number; None: the first.
    option: what named it. Raises UserError.
    """
    there = checkpoint.agents_of(found)
    if which is None:
        return min(there, default=0)  # none in a damaged manifest: who reads the weights says so
    if which == "best":
        rated = _ratings(directory)
        return max(there, key=lambda agent: rated.get(agent, 0.0))
    if not which.isdecimal() or int(which) not in there:
        raise UserError(f"{option}: {which!r} given, allowed: best, {', '.join(map(str, there))}")
    return int(which)


def _ratings(directory: Path) -> dict[int, float]:
    """The Elo of each agent of a league; empty where there is none."""
    try:
        players = read_object(directory / "league.json").get("players", [])
        return {row["agent"]: float(row["elo"]) for row in players if row["kind"] == "agent"}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def split_checkpoint(path: Path) -> tuple[Path, str | None]:
    """(a run's directory, the checkpoint) of the path of either; None: the path is the run's."""
    if path.parent.name != "checkpoints":
        return path, None
    return path.parents[1], "best" if path.name.startswith(checkpoint.BEST) else path.name


def load_run(
    directory: Path, trust: bool = False, population: bool = False, given: Mapping[str, Any] | None = None
) -> tuple[Page, Settings, RunOptions, Row]:
    """(its system's page, settings, options, config.json) of a run, with a line about each file that it executes by
    name. given: its environment or network, as objects. Raises UserError: also where it was made elsewhere, unless
    `trust`, or is a population, unless that may be.
    """
    config = read_config(directory, whole=True, population=population)
    objects = {**recall_objects(directory, config["config"]), **(given or {})}
    for line in check_trust(directory, config, trust, objects):
        print(f"polyplay: {line}", file=sys.stderr)
    page: Page = page_of(config["system"], config["config"].get("over"))
    options = to_json(RunOptions()) | config["options"]  # an option that is newer than the run: its default
    known = {k: v for k, v in BEFORE.items() if k in page.Config.__dataclass_fields__}
    settings = from_json(page.Config, known | config["config"])
    objects = {**find_by_name(directory, config["config"]), **objects}
    return page, replace(settings, **objects), from_json(RunOptions, options), config


def check_spaces(directory: Path, envs: Envs) -> None:
    """Raises UserError: an environment shows or takes something else than what the run was trained on."""
    path = directory / space_files.FILE
    try:
        was = space_files.spec_from_json(read_object(path), str(path))
    except OSError:  # of an earlier version
        return
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; put back a copy of it") from None
    now = space_files.spec_from_json(space_files.spec_to_json(envs.spec), envs.title)
    (seen, acted), (before, taken) = space_files.network_view(now), space_files.network_view(was)
    shown, actions = space_files.describe_views(now, was)
    parts = [
        ("shows", *shown, seen != before),
        ("takes", *actions, acted != taken or now.action != was.action),
        ("has action masks:", now.mask is not None, was.mask is not None, now.mask != was.mask),
    ]
    for what, is_, other, differ in parts:
        if differ:
            trained = f"{directory} was trained on {other} ({path.name})"
            cure = (
                f"to go on with others, give them another name and `polyplay surgery {directory} --out RUN2 --env NAME`"
            )
            raise UserError(f"RUN: {envs.title} {what} {is_}, but {trained}; {cure}")


def page_of(system: str, over: object = None) -> Any:
    """The page of a system; of a population over another that of both. Raises UserError."""
    page = systems.load(system)
    if not systems.is_population(page):
        return page
    from polyplay.systems._population import composed

    return composed(page, str(over or page.Config().over))


def crew_of(options: RunOptions) -> Crew:
    """An empty crew with the options of a run. From now on this process keeps to the cores that they name."""
    process.keep_to(options.cores)
    where = Placement(options.device, options.actors_on)
    precision: str = options.precision
    if precision == "auto" and where.on_cpu:
        from polyplay.nets.precision import choose_precision

        precision = choose_precision(precision)
    return Crew(
        options.seed,
        options.on,
        options.serial,
        trace=options.trace,
        frames=options.frames,
        steps=options.steps,
        step_timeout=options.step_timeout,
        max_restarts=options.max_restarts,
        precision=precision,
        where=where,
        **how_made(options),
        reuse=options.reuse,
        schedules=parse_changes(options.change),
        fleet=fleet_of(options),
        host_wait=options.host_wait,
    )


def fleet_of(options: RunOptions) -> Fleet | None:
    """The machines that `--hosts` names; None: no others. Raises UserError."""
    hosts = options.hosts
    if hosts is None or hosts == "none":
        for name in ("place", "ship"):
            if (given := getattr(options, name)) is not None:
                raise UserError(f"--{name}: {given} given, but it takes other machines: give --hosts too")
        return None
    if options.serial or options.on == "thread":
        how = "--serial" if options.serial else "--on thread"
        raise UserError(f"--hosts: {hosts} given, but it takes workers that are processes: leave out {how}")
    if not sys.platform.startswith("linux"):
        raise UserError(f"--hosts: {hosts} given, but it needs Linux, and this is {sys.platform}; leave it out")
    from polyplay.workers.hosts.fleet import Fleet
    from polyplay.workers.hosts.places import parse_places
    from polyplay.workers.hosts.ship import pack_modules

    rules = () if options.place is None else parse_places(options.place)
    shipped = b"" if options.ship is None else pack_modules(Path(options.ship))
    return Fleet(engine_of(hosts), options.host_timeout, rules, shipped)


def engine_of(hosts: str) -> Engine:
    """What starts agents on the machines that `--hosts` names. Raises UserError."""
    kind, _, rest = hosts.partition(":")
    pretended = rest.isdigit() and 1 <= int(rest) <= LINKS
    if not (kind == "ray" or (kind == "pretend" and pretended)):
        allowed = f"none, ray, ray:HOST:PORT, or pretend:N with N from 1 to {LINKS}"
        raise UserError(f"--hosts: {hosts} given, allowed: {allowed}")
    from polyplay.workers.hosts.pretend import PretendedMachines
    from polyplay.workers.hosts.ray_cluster import RayMachines

    return RayMachines(rest) if kind == "ray" else PretendedMachines(int(rest))


def wire_system(page: Page, settings: Settings, crew: Crew) -> System:
    """The page's system. Raises UserError, also where the crew's shared memory cannot be had."""
    from polyplay.nets.outline import outlines

    try:
        with outlines():  # pages ask for sizes alone
            return page.build(settings, crew)
    except (MemoryError, OSError) as e:
        if isinstance(e, OSError) and e.errno != errno.ENOMEM:
            raise
        usual = vars(page.Config())
        changed = [f"{flag(k)} {v}" for k, v in vars(settings).items() if type(v) is int and v > usual[k]]
        raise UserError(f"memory: there is too little for {' '.join(changed) or 'these settings'}: lower it") from None


@contextlib.contextmanager
def compute_threads(n: int) -> Iterator[None]:
    """This process computes with `n` threads meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def weights_digest(found: Path, agent: int = 0) -> str:
    """SHA-256 of a policy in a checkpoint, by its manifest; "" where that has none."""
    name = f"{checkpoint.policy_name(agent)}.safetensors"
    return str(checkpoint.manifest(found)["files"].get(name, {}).get("sha256", ""))
