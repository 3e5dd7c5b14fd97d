"""bench: how fast each on-policy system is on this machine, and where its time goes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyplay import systems
from polyplay.cli.arguments import parse_words
from polyplay.core import machine
from polyplay.core.errors import Count, Seconds, UserError, WorkerLost
from polyplay.core.files import Row, is_number, read_lines, write_json
from polyplay.core.tree import Field, Spec
from polyplay.envs.pool import Envs
from polyplay.runs import options as config
from polyplay.runs.flags import flag
from polyplay.runs.load import crew_of
from polyplay.runs.plan import kind_of
from polyplay.runs.reporter import KINDS
from polyplay.systems import _presets
from polyplay.workers.crew import Crew
from polyplay.workers.role import Role

if TYPE_CHECKING:
    from polyplay.learning.learner import LearnerSpec

SCHEMA = 3  # of its JSON document
QUIET = 0.1  # cores that other programs may use
NAMES = {"env": "environment", "infer": "acting forward", "learn": "learning", "overhead": "overhead"}
NAMES |= {"idle": "waiting"}
CHANGES = {  # by bottleneck: options that help where a page has them, the first that does, and what they do
    "infer": dict.fromkeys(("agents", "lanes"), "larger acting batches"),
    "learn": {
        "epochs": "fewer passes over a rollout",
        **dict.fromkeys(("min_batch", "batch", "unroll"), "larger updates"),
    },
    "overhead": {
        **{name: f"more {name} share what a call costs" for name in ("lanes", "agents")},
        "unroll": "longer rollouts share what an update costs",
    },
    "idle": {
        **{name: f"more {name}, while others wait" for name in ("actors", "agents")},
        "groups": "one group steps while the other is served",
        "lanes": "longer turns between two waits",
    },
}


def split_core_time(
    times: Mapping[str, float], own: float, others: float, workers: float, pooled: bool
) -> dict[str, float]:
    """Shares of all core time, by what a run's workers report: of NAMES, and others: what other programs used.

    times: shares of their wall time (env, infer, learn, replay, wait). own, others: shares of all cores that the run
    and other programs used; workers: how many there are for each core. What the run used and its workers were not busy
    with is its environments' where these are processes of their own (pooled), else overhead.
    """
    own = min(own, 1.0)
    others = min(others, 1.0 - own)
    busy = 1.0 - times.get("wait", 0.0)
    within = min(own, busy * workers)
    parts = {k: within * times.get(k, 0.0) / busy if busy > 0.0 else 0.0 for k in ("env", "infer", "learn")}
    rest = max(0.0, own - sum(parts.values()))
    outside = min(rest, own - within) if pooled else 0.0
    parts["env"] += outside
    return {**parts, "overhead": rest - outside, "others": others, "idle": 1.0 - own - others}


def bottleneck(shares: Mapping[str, float]) -> str:
    """One of NAMES: what takes most of the core time."""
    return max(NAMES, key=lambda name: shares[name])


def change(name: str, values: Row, env: str, kind: str) -> str:
    """What to change where NAMES' name is the bottleneck. values: all settings; env: its title; kind: of its pool."""
    if name == "env" and not env.startswith("ALE/"):
        return f"`polyplay check {env}` measures it; make its step cheaper, or take more cores"
    if name == "env":
        cheaper = "try --atari baselines: ale-py makes its pictures itself; else more cores"
        return cheaper if kind == "inline" else "the emulator has no cheaper setting here; more cores make it faster"
    for option, why in CHANGES[name].items():
        value = _other(option, values)
        if value is not None:
            return f"try {flag(option)} {value} ({why}; it changes what is learnt)"
    computing = name in ("infer", "learn")
    hint = "a smaller --network, or more cores" if computing else "nothing that an option could change"
    return f"{hint}; this system has no setting for it"


def _other(option: str, values: Row) -> int | None:
    """Another value of an option that is worth a try; None where there is none."""
    now = values.get(option)
    if not isinstance(now, int) or now < 1:
        return None
    if option == "groups":
        return 2 if now == 1 and values.get("lanes", 1) % 4 == 0 else None
    return {"epochs": now - 1, "actors": now + 1}.get(option, 2 * now) or None


# A page's preset `quick` is meant for a small machine; on top of it go the settings below, which were the fastest of
# those tried on 2 cores (bench/results/speed.md, originals.md) and grow with the cores.


SETTINGS: dict[str, Callable[[int], dict[str, int]]] = {
    "a2c": lambda cores: {"lanes": 16 * cores, "replicas": cores},
    "accel": lambda cores: {"lanes": 32 * cores, "replicas": cores},
    "appo": lambda cores: {"actors": min(max(2, cores), 48), "lanes": 32, "batch": 32},
    "a3c": lambda cores: {"workers": cores},
    "ga3c": lambda cores: {"agents": min(8 * cores, 128)},
    "impala": lambda cores: {"actors": min(max(2, cores), 48), "lanes": 32, "batch": 32},
    "ppo": lambda cores: {"lanes": 8 * cores, "replicas": cores},
}
MEASURED = sorted(SETTINGS)  # systems that learn from what was just done
LITTLE = {"device": "cpu", "trace": False, "tensorboard": False, "checkpoint_every": 1e9, "steps": 1_000_000_000}


@dataclass(frozen=True)
class WiredSystem:
    """A system as it is going to be run, and the sizes of its wiring. `keywords` are plain values."""

    system: str
    keywords: Row
    changed: Row  # the settings that are not the preset's
    values: Row  # all settings
    kind: str  # of its pool, see plan.kind_of
    lanes: int  # of a pool that act at once (1 where each goes at its own pace)
    T: int  # rows of a trajectory that is learnt from,
    B: int  # and how many at once
    turn: int  # updates that follow one another without a step: PPO's, where the same worker acts and learns
    reuse: bool  # learning takes from acting what that computed
    workers: int  # that count their time
    envs: Envs
    spec: LearnerSpec

    @property
    def epochs(self) -> int:
        return self.spec.passes.epochs if self.spec.passes else 1


def keywords(system: str, env: str, network: str, precision: str, cores: int) -> Row:
    """What `polyplay.train(system, …)` gets. Raises UserError: no such environment."""
    page = systems.load(system)
    preset = {"preset": "quick"} if "quick" in page.PRESETS else {}
    there = "inputs" in page.Config.__dataclass_fields__
    raw = {"inputs": "raw"} if there and not pictures(Envs(env, 1).spec.obs) else {}  # a preset may be for pictures
    own = SETTINGS[system](cores) if system in SETTINGS else {}
    return {"env": env, **preset, **own, **raw, "network": network, "precision": precision, **LITTLE}


def pictures(obs: Spec) -> bool:
    """Whether observations are one image each, large enough for the Atari networks."""
    return isinstance(obs, Field) and len(obs.shape) == 3 and obs.dtype == "uint8" and min(obs.shape[1:]) >= 64


def wire(system: str, given: Row) -> WiredSystem:
    """Wire a system with these keywords (`keywords`, perhaps changed) and read its sizes. Raises UserError."""
    page = systems.load(system)
    settings, options, _ = config.resolve(page, **given)
    crew = crew_of(options)
    wired = page.build(settings, crew)
    preset = config.to_json(_presets.settings(page, options.preset))
    named = {k: v for k, v in given.items() if k in preset and k != "env"} | dict(wired.resolved)
    acts, learner = next(r for r in crew.roles if r.envs or r.agents), _learner(crew)
    envs = acts.agents.envs if acts.agents else acts.envs
    assert envs is not None
    assert learner.spec is not None
    T, B = learner.source.shape if learner.source else (learner.T, learner.envs.lanes if learner.envs else 0)
    return WiredSystem(
        system,
        dict(given),
        changed={k: v for k, v in named.items() if preset[k] != v},
        values=config.to_json(replace(settings, **wired.resolved)),
        kind=kind_of(envs),
        lanes=1 if acts.agents else envs.lanes // envs.groups,
        T=T,
        B=B,
        turn=updates_per_turn(crew),
        reuse=reuses(crew),
        workers=sum(r.n for r in crew.roles if r.envs or r.agents or r.source),
        envs=envs,
        spec=learner.spec,
    )


def updates_per_turn(crew: Crew) -> int:
    """Updates that follow one another while nobody acts; 1 where others act, or where they aren't always as many."""
    role = _learner(crew)
    passes = role.spec.passes if role.spec else None
    return passes.updates if passes and role.envs and not role.asynchronous and not passes.target_kl else 1


def reuses(crew: Crew) -> bool:
    """Whether those who act learn too, in the same rows with the same weights, and may keep what they computed."""
    role = _learner(crew)
    return crew.reuse and role.envs is not None and bool(role.spec and role.spec.stored_bootstrap)


def _learner(crew: Crew) -> Role:
    """Of several roles that learn the first."""
    return next(r for r in crew.roles if r.spec is not None)


# How fast a system is: a real run of it, in a process and a directory of its own, whose reports are read for a while.


NUMBERS = ("predict_batch", "train_batch", "lag_mean", "queue_depth")
WARM = 2.0  # seconds after the first steps that don't count, at most
SLACK = 120.0  # seconds for the start, besides: 64 processes that load torch take their time
TRAIN = """
import json, signal, sys
from polyplay.core import processes
processes.prctl(processes.PDEATHSIG, signal.SIGKILL)
import polyplay
from polyplay.core.errors import UserError
try:
    polyplay.train(**json.loads(sys.argv[1]))
except UserError as e:
    sys.exit(str(e))
"""


def weighted_means(reports: Iterable[tuple[Row, float]], names: Iterable[str]) -> Row:
    """Of each number over several reports, weighted by their seconds; None where no report has it."""
    reports, means = list(reports), Row()
    for name in names:
        found = [(row[name], seconds) for row, seconds in reports if is_number(row.get(name)) and seconds > 0]
        whole = sum(seconds for _, seconds in found)
        means[name] = sum(value * seconds for value, seconds in found) / whole if found else None
    return means


def started_at(rows: Sequence[Row]) -> float:
    """When the first steps were reported: 16 environments may take their time to come up."""
    return next((row["wall_seconds"] for row in rows if row["steps"] > 0), math.inf)


def find_window(rows: Sequence[Row], warm: float, seconds: float, slack: float = 0.5, turn: int = 1) -> list[Row]:
    """Reports from the first one at or after `warm` seconds to the first one `seconds` later, at most `slack` less,
    both where the counter had just moved: where rollouts are long it jumps. None of them: there is no window yet.

    turn: updates that follow one another without a step, as PPO's on a rollout do. Both reports are then the first
    after such a turn: steps come while acting only, so a window that ends within one counts too many or too few.
    """
    key, of = ("updates", turn) if turn > 1 else ("steps", 1)
    moved = [b["wall_seconds"] for a, b in pairwise(rows) if b[key] // of > a[key] // of]
    begin = next((at for at in moved if at >= warm), math.inf)
    end = next((at for at in moved if at >= begin + seconds - slack and at > begin), -math.inf)
    return [row for row in rows if begin <= row["wall_seconds"] <= end]


def watch_run(system: str, given: Row, seconds: float, turn: int = 1) -> Row:
    """Its rate, what it and other programs used of the cores, what its workers did, means of what it reports.

    Raises WorkerLost with what the run printed, where it gave no reports. turn: see find_window.
    """
    often = max(0.25, min(1.0, seconds / 8)) if turn == 1 else 0.1  # several reports while a turn is acted
    with (
        tempfile.TemporaryDirectory(prefix="polyplay-bench-", ignore_cleanup_errors=True) as place,
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
    ):
        words = json.dumps({"system": system, **given, "run": f"{place}/run", "report_every": often})
        command = [sys.executable, "-c", TRAIN, words]
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            found = _watch(child, Path(place, "run", "metrics.jsonl"), seconds, turn)
        finally:
            status = child.poll()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # at once: nothing of it is saved
            child.wait()
        if not found:
            output.seek(0)
            tail = "\n".join(output.read().strip().splitlines()[-20:])
            raise WorkerLost(f"{system}: its run gave no reports (exit status {status}):\n{tail}")
    return _summary_of(found)


def _watch(child: subprocess.Popen[bytes], log: Path, seconds: float, turn: int) -> list[Row]:
    """The reports of a window. busy: seconds that all cores were until then."""
    rows, limit = list[Row](), time.monotonic() + SLACK + WARM + 2 * seconds
    while child.poll() is None and time.monotonic() < limit:
        t = psutil.cpu_times()
        busy = sum(t) - t.idle - t.iowait - t.guest - t.guest_nice
        rows += [{**row, "busy": busy} for row in list(read_lines(log))[len(rows) :]]
        found = find_window(rows, started_at(rows) + min(WARM, seconds), seconds, min(0.5, seconds / 8), turn)
        if found and found[-1]["steps"] > found[0]["steps"]:
            return found
        time.sleep(0.02)
    return []


def _summary_of(rows: Sequence[Row]) -> Row:
    """A window as one row."""
    wall, steps, busy = (rows[-1][name] - rows[0][name] for name in ("wall_seconds", "steps", "busy"))
    reports = [(b, b["wall_seconds"] - a["wall_seconds"]) for a, b in pairwise(rows)]
    means = weighted_means(reports, ("cpu", "memory_mb", *NUMBERS, *(f"time_{kind}" for kind in KINDS)))
    times, own = {kind: means.pop(f"time_{kind}") or 0.0 for kind in KINDS}, (means.pop("cpu") or 0.0) * machine.cores()
    return {
        "sps": steps / wall,
        "window_s": wall,
        "own_cores": own,
        "others_cores": max(0.0, busy / wall - own),
        "core_ms_per_step": 1000.0 * own * wall / steps,
        "time": times,
        **means,
    }


# What is measured: a run of each system, in order, as one JSON document.


def measure(names: Sequence[str], options: BenchOptions) -> Row:
    """The document. Raises UserError before anything is measured."""
    cores, begun = machine.cores(), time.monotonic()
    network = options.network or ("a3c" if pictures(Envs(options.env, 1).spec.obs) else "mlp")
    wired = [wire(name, keywords(name, options.env, network, options.precision, cores)) for name in names]
    rows = [_measure_system(one, options.seconds, cores) for one in wired]
    about = {"env": options.env, "network": network, "precision": options.precision, "seconds": options.seconds}
    took = {"took_seconds": round(time.monotonic() - begun, 1)}
    return {
        **{"schema": SCHEMA, **machine.stamp(), "cores": cores, **about, **took},
        **{"systems": rows, "notes": list(_doubts(rows))},
    }


def _measure_system(wired: WiredSystem, seconds: float, cores: int) -> Row:
    """A system's row: its rate, and where the core time went."""
    row: Row = {"system": wired.system, "settings": wired.changed, "keywords": wired.keywords}
    print(f"bench: {wired.system}: a run of it …", file=sys.stderr, flush=True)
    try:
        run = watch_run(wired.system, wired.keywords, seconds, wired.turn)
    except WorkerLost as e:
        return {**row, "error": str(e)}
    used, others, workers = (n / cores for n in (run["own_cores"], run["others_cores"], wired.workers))
    shares = split_core_time(run["time"], used, others, workers, wired.kind == "processes")
    name = bottleneck(shares)
    todo = change(name, wired.values, wired.envs.title, wired.kind)
    return {
        **row,
        "pool": wired.kind,
        "acting_batch": float(wired.lanes if wired.lanes > 1 else run.get("predict_batch") or 1.0),
        "rows_per_update": wired.T * wired.B,
        "epochs": wired.epochs,
        "frames_per_step": wired.envs.spec.frames_per_step,
        "sps": run["sps"],
        "shares": shares,
        "wait_share": run["time"].get("wait", 0.0),
        "run": run,
        "bottleneck": NAMES[name],
        "change": f"{NAMES[name]} takes {100 * shares[name]:.0f} % of the core time: {todo}",
    }


def _doubts(rows: Sequence[Row]) -> Iterator[str]:
    """What makes figures doubtful."""
    yield from (f"{row['system']}: {row['error'].splitlines()[0]}" for row in rows if "error" in row)
    for row in rows:
        if "run" in row and (others := row["run"]["others_cores"]) > QUIET:
            disturbed = f"other programs used {others:.1f} cores meanwhile"
            yield f"{row['system']}: {disturbed}; measure again when it is quiet"


# What was found, for a terminal: at most 80 columns.


HEADS = {"env": "env", "infer": "acting", "learn": "learn", "overhead": "overhead", "idle": "idle"}
LEGEND = (
    "In %: where the time of all cores went. overhead: all else that the run did. others: other programs. "
    "idle: cores at rest.\n"
    "waits: the part of the workers' time in which they slept for one another; none of them spins."
)


def print_table(document: Row, console: Console) -> None:
    machine = document["machine"]
    head = f"{machine['cpu']}, {document['cores']} cores · {document['env']} · {document['precision']}"
    console.print(Text(f"polyplay bench: {head}", style="bold"))
    console.print(Text(f"\n{document['network']}: agent steps/s, and where the core time goes in %"))
    console.print(_systems(document["systems"]))
    console.print(Text(LEGEND, style="bright_black"))
    console.print()
    grid = Table.grid(padding=(0, 2))
    for row in document["systems"]:
        for i, line in enumerate(_lines(row)):
            grid.add_row(Text(row["system"] if i == 0 else "", style="bold"), line)
    for note in document["notes"]:
        grid.add_row(Text("note", style="bold yellow"), Text(note))
    console.print(grid)


def _systems(rows: Sequence[Row]) -> Table:
    disturbed = any(row["shares"]["others"] >= 0.01 for row in rows if "error" not in row)
    shares = HEADS | ({"others": "others"} if disturbed else {})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("system", style="bold", no_wrap=True)
    for heading in ("steps/s", *shares.values(), "waits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = ["failed"]
        if "error" not in row:
            parts = [f"{100 * row['shares'][k]:.0f}" for k in shares]
            cells = [f"{row['sps']:,.0f}", *parts, f"{row['wait_share']:.0%}"]
        table.add_row(row["system"], *cells)
    return table


def _lines(row: Row) -> list[Text]:
    """A system's bottleneck and settings, in words."""
    if "error" in row:
        return [Text(f"failed: {row['error'].splitlines()[0]}", style="bold red")]
    settings = [f"{flag(k)} {v}" for k, v in row["settings"].items() if k != "network"]
    quick = ["--preset quick"] if row["keywords"].get("preset") == "quick" else []
    passes = f" in {row['epochs']} passes" if row["epochs"] > 1 else ""
    sizes = f"acts for {row['acting_batch']:.3g} at once, learns from {row['rows_per_update']}{passes}"
    return [Text(row["change"]), Text("; ".join([" ".join([*quick, *settings]), sizes]), style="bright_black")]


WIDTH = 100  # columns, at most
ABOUT = "Measures how fast systems are on this machine, and where their time goes; without SYSTEM all of them."


@dataclass(frozen=True)
class BenchOptions:
    """Run nothing else on the machine meanwhile, or the results are meaningless."""

    env: str = "ALE/Pong-v5"
    """environment, as in train"""
    network: str | None = None
    """the systems' network (none: a3c for images, else mlp)"""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """number type of the systems' networks, as in train"""
    cores: Count | None = None
    """use this many cores of the machine, as in train (none: all that this process may use)"""
    seconds: Seconds = 3.5
    """how long each system is measured"""
    json: str | None = None
    """write everything to this file"""

    def __post_init__(self) -> None:
        if self.json is not None and not Path(self.json).absolute().parent.is_dir():
            folder = Path(self.json).parent
            raise UserError(f"--json: {self.json} given, but there is no directory {folder}; make it first")


def command(words: list[str]) -> int:
    """Prints the tables; the exit status."""
    from polyplay.runs.terminal import default_console
    from polyplay.workers.process import keep_to

    about = f"{ABOUT} Systems: {', '.join(MEASURED)}."
    names, options, _ = parse_words(BenchOptions, words, "polyplay bench [SYSTEM …]", about, several=True)
    _check_systems(names)
    keep_to(options.cores)  # and so do all that are started from here
    document = measure(names or MEASURED, options)
    if options.json is not None:
        write_json(Path(options.json), document)
    console = default_console()
    console.width = min(console.width, WIDTH)
    print_table(document, console)
    return int(any("error" in row for row in document["systems"]))


def _check_systems(names: Sequence[str]) -> None:
    """Raises UserError: one that is not measured, or one twice."""
    if len(set(names)) < len(names):
        raise UserError(f"bench takes each system once, {' '.join(names)} given")
    for name in names:
        page, can = systems.load(name), ", ".join(MEASURED)
        if systems.is_population(page):
            raise UserError(f"bench: {name} given, whose members are runs of other systems; allowed: {can}")
        if name not in MEASURED:
            why = "learns from a replay" if "Replay" in page.ROW["between"] else "trains several agents"
            raise UserError(f"bench: {name} given, which {why}: not measured yet; allowed: {can}")
