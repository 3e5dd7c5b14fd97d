"""bench: measure the speed of each on-policy system on this machine, and how each one uses the CPU cores."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from polyplay import systems
from polyplay.cli.arguments import parse_words
from polyplay.core import machine, platform
from polyplay.core.errors import Count, Seconds, UserError, WorkerLost
from polyplay.core.files import Row, is_number, read_lines, read_object, write_json
from polyplay.core.tree import Field, Spec
from polyplay.envs.atari import is_game
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.runs import flags, load
from polyplay.runs import options as config
from polyplay.runs.reporter import KINDS
from polyplay.runs.terminal import default_console, ruled_table

SCHEMA = 4  # version of the JSON document
QUIET = 0.1  # number of cores that other programs may use without a note
NAMES = {"env": "environment", "infer": "acting forward", "learn": "learning", "overhead": "overhead"}
NAMES |= {"idle": "waiting"}
CHANGES: dict[str, list[tuple[str, Callable[[int], int], str]]] = {
    # bottleneck → (option, function from its value to the next, effect); `change` proposes the first one that applies
    "infer": [(name, lambda n: 2 * n, "larger acting batches") for name in ("agents", "lanes")],
    "learn": [
        ("epochs", lambda n: n - 1, "fewer passes over a rollout"),
        *((name, lambda n: 2 * n, "larger updates") for name in ("min_batch", "batch", "unroll")),
    ],
    "overhead": [
        *((name, lambda n: 2 * n, f"more {name} share what a call costs") for name in ("lanes", "agents")),
        ("unroll", lambda n: 2 * n, "longer rollouts share what an update costs"),
    ],
    "idle": [
        ("actors", lambda n: n + 1, "more actors, while others wait"),
        ("agents", lambda n: 2 * n, "more agents, while others wait"),
        ("groups", lambda n: 2 * (n == 1), "one group steps while the other is served"),
        ("lanes", lambda n: 2 * n, "longer turns between two waits"),
    ],
}


def split_core_time(
    times: Mapping[str, float], own: float, others: float, workers: float, pooled: bool
) -> dict[str, float]:
    """Return the fraction of all cores' time for each activity (key of NAMES) during a run, and for other programs.

    `times`: fractions of the workers' wall time that went into env, infer, learn, replay and wait.
    `own`, `others`: fractions of all cores that the run and other programs used.
    `workers`: number of workers per core.
    `pooled`: whether environments are separate processes. Core time outside the workers then counts as env time.
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
    """Return the activity (a key of NAMES) that takes the largest share of core time."""
    return max(NAMES, key=lambda name: shares[name])


def change(name: str, values: Row, env: str, kind: str) -> str:
    """Return advice on a bottleneck. `name`: a key of NAMES. `kind`: kind of the pool of `env`, such as "inline"."""
    if name == "env" and not is_game(env, {}):
        return f"`polyplay check {env}` measures it; make its step cheaper, or use more cores"
    if name == "env":
        cheaper = "try --atari baselines, where ale-py makes the images itself; else use more cores"
        return cheaper if kind == "inline" else "the emulator has no cheaper setting here; more cores make it faster"
    for option, other, why in CHANGES[name]:
        if isinstance(now := values.get(option), int) and now > 0 and (value := other(now)):
            return f"try {flags.flag(option)} {value} ({why}; it changes what is learned)"
    computing = name in ("infer", "learn")
    hint = "a smaller --network, or more cores" if computing else "no option reduces it"
    return f"{hint}; this system has no setting for it"


# Settings added to a system's preset `quick`, which is for small machines. They were the fastest settings in tests on 2
# cores (bench/results/speed.md, originals.md), and they grow with the number of cores.


SETTINGS: dict[str, Callable[[int], dict[str, int]]] = {
    "a2c": lambda cores: {"lanes": 16 * cores, "replicas": cores},
    "accel": lambda cores: {"lanes": 32 * cores, "replicas": cores},
    "appo": lambda cores: {"actors": min(max(2, cores), 48), "lanes": 32, "batch": 32},
    "a3c": lambda cores: {"workers": cores},
    "ga3c": lambda cores: {"agents": min(8 * cores, 128)},
    "impala": lambda cores: {"actors": min(max(2, cores), 48), "lanes": 32, "batch": 32},
    "ppo": lambda cores: {"lanes": 8 * cores, "replicas": cores},
}
MEASURED = sorted(SETTINGS)  # systems that learn on-policy
LITTLE: Row = {"device": "cpu", "trace": False, "tensorboard": False, "checkpoint_every": 1e9, "steps": 1_000_000_000}


def settings_of(system: str, spec: EnvSpec, cores: int) -> Row:
    """Return a system's settings for the measurement, without environment, network and precision."""
    page = systems.load(system)
    preset = {"preset": "quick"} if "quick" in page.presets else {}
    there = "inputs" in page.Config.__dataclass_fields__
    raw = {"inputs": "raw"} if there and not pictures(spec.obs) else {}  # a preset may expect images
    return {**preset, **SETTINGS[system](cores), **raw}


def pictures(obs: Spec) -> bool:
    """Tell whether an observation is a single image that is large enough for the Atari networks."""
    return isinstance(obs, Field) and len(obs.shape) == 3 and obs.dtype == "uint8" and min(obs.shape[1:]) >= 64


# The speed of a system is that of a real run in a separate process and directory: its reports are read for a while.


WARM = 2.0  # most seconds to ignore after the first steps
SLACK = 120.0  # further seconds for the start: 64 processes load torch slowly


def weighted_means(reports: Iterable[tuple[Row, float]], names: Iterable[str]) -> Row:
    """Return the mean of each number over the reports, weighted by their seconds, or None if no report has it."""
    reports, means = list(reports), Row()
    for name in names:
        found = [(row[name], seconds) for row, seconds in reports if is_number(row.get(name)) and seconds > 0]
        whole = sum(seconds for _, seconds in found)
        means[name] = sum(value * seconds for value, seconds in found) / whole if found else None
    return means


def find_window(rows: Sequence[Row], warm: float, seconds: float) -> list[Row]:
    """Return the reports of the measured period, or [] if the period has not ended yet. The period begins at least
    `warm` seconds after the first steps, and lasts at least `seconds`.
    """
    # The period begins and ends with the first new steps after an update. A worker that acts and learns in turns makes
    # steps only while it acts, so other limits would bias the rate.
    edges, learnt = list[float](), False
    for a, b in pairwise(rows):
        if learnt and b["steps"] > a["steps"]:
            edges.append(b["wall_seconds"])
            learnt = False
        else:
            learnt = learnt or b["updates"] > a["updates"]
    begun = next((row["wall_seconds"] for row in rows if row["steps"] > 0), math.inf)
    begin = next((at for at in edges if at >= begun + warm), math.inf)
    end = next((at for at in edges if at >= begin + seconds), -math.inf)
    return [row for row in rows if begin <= row["wall_seconds"] <= end]


def watch_run(system: str, given: Row, seconds: float) -> Row:
    """Run a system for a while. Return the measured speed, the cores that the run and other programs used, the workers'
    times, and the contents of config.json and wiring.json. Raises WorkerLost if the run gave too few reports.
    """
    with (
        tempfile.TemporaryDirectory(prefix="polyplay-bench-", ignore_cleanup_errors=True) as place,
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
    ):
        run = Path(place, "run")
        limit = SLACK + WARM + 2 * seconds
        given = {**given, "run": run, "report_every": max(0.1, seconds / 30), "minutes": limit / 60}
        words = [f"{flags.flag(name)}={str(v).lower() if isinstance(v, bool) else v}" for name, v in given.items()]
        command = [sys.executable, "-m", "polyplay", "train", system, *words]
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            if found := _watch(child, run / "metrics.jsonl", seconds, limit):
                files = {name: read_object(run / f"{name}.json") for name in ("config", "wiring")}
                return _summary_of(found) | files
        finally:
            status = child.poll()
            with contextlib.suppress(ProcessLookupError):
                platform.kill_group(child.pid)  # kill: nothing needs saving
            child.wait()
        output.seek(0)
        tail = "\n".join(output.read().strip().splitlines()[-20:])
        raise WorkerLost(f"{system}: its run gave no reports (exit status {status}):\n{tail}")


def _watch(child: subprocess.Popen[bytes], log: Path, seconds: float, limit: float) -> list[Row]:
    """Return the reports of the measured period, or [] if the run ended too early. `busy`: busy seconds of cores."""
    rows, until = list[Row](), time.monotonic() + limit
    while child.poll() is None and time.monotonic() < until:
        t = psutil.cpu_times()
        busy = sum(t) - t.idle - t.iowait - t.guest - t.guest_nice
        rows += [{**row, "busy": busy} for row in list(read_lines(log))[len(rows) :]]
        if found := find_window(rows, min(WARM, seconds), seconds):
            return found
        time.sleep(0.02)
    return []


def _summary_of(rows: Sequence[Row]) -> Row:
    wall, steps, busy = (rows[-1][name] - rows[0][name] for name in ("wall_seconds", "steps", "busy"))
    reports = [(b, b["wall_seconds"] - a["wall_seconds"]) for a, b in pairwise(rows)]
    means = weighted_means(reports, ("cpu", *(f"time_{kind}" for kind in KINDS)))
    times, own = {kind: means[f"time_{kind}"] or 0.0 for kind in KINDS}, (means["cpu"] or 0.0) * machine.cores()
    others = max(0.0, busy / wall - own)
    return {"sps": steps / wall, "window_s": wall, "own_cores": own, "others_cores": others, "time": times}


# The measurement: a run of each system, one after the other. The results are one JSON document.


def measure(names: Sequence[str], options: BenchOptions) -> Row:
    """Measure systems one by one, and return the results as a JSON document."""
    cores, spec = machine.cores(), Envs(options.env, 1).spec
    network = options.network or ("a3c" if pictures(spec.obs) else "mlp")
    about: Row = {"env": options.env, "network": network, "precision": options.precision}
    given = {name: settings_of(name, spec, cores) for name in names}
    for name, own in given.items():
        page = systems.load(name)
        settings, chosen, _ = config.resolve(page, **about, **own, **LITTLE)
        page.build(settings, load.crew_of(chosen))
    frames = {"frames_per_step": spec.frames_per_step}
    rows = [_measure_system(name, own, about, options.seconds, cores) | frames for name, own in given.items()]
    return {"schema": SCHEMA, **machine.stamp(), "cores": cores, **about, "seconds": options.seconds, "systems": rows}


def _measure_system(system: str, settings: Row, about: Row, seconds: float, cores: int) -> Row:
    row: Row = {"system": system, "settings": settings}
    print(f"bench: {system}: running …", file=sys.stderr, flush=True)
    try:
        run = watch_run(system, {**about, **settings, **LITTLE}, seconds)
    except WorkerLost as e:
        return {**row, "error": str(e)}
    values, wiring = run.pop("config")["config"], run.pop("wiring")
    workers = sum(role["n"] for role in wiring["roles"])
    used, others = run["own_cores"] / cores, run["others_cores"] / cores
    shares = split_core_time(run["time"], used, others, workers / cores, wiring["pool"] == "processes")
    name = bottleneck(shares)
    todo = change(name, values, values["env"], wiring["pool"])
    return {
        **row,
        "pool": wiring["pool"],
        "epochs": values.get("epochs", 1),
        "sps": run["sps"],
        "shares": shares,
        "wait_share": run["time"].get("wait", 0.0),
        "run": run,
        "bottleneck": NAMES[name],
        "change": f"{NAMES[name]} takes {100 * shares[name]:.0f} % of the core time: {todo}",
    }


# The table for a terminal, at most 80 columns wide.


HEADS = {"env": "env", "infer": "acting", "learn": "learn", "overhead": "overhead", "idle": "idle", "others": "others"}
LEGEND = (
    "In % of the time of all cores. overhead: everything else that the run did. idle: unused cores. "
    "others: other programs.\n"
    "waits: the share of the workers' time in which they slept, waiting for each other; no worker spins."
)


def print_table(document: Row, console: Console) -> None:
    head = f"{document['machine']['cpu']}, {document['cores']} cores · {document['env']} · {document['precision']}"
    console.print(Text(f"polyplay bench: {head}", style="bold"))
    console.print(Text(f"\n{document['network']}: agent steps/s, and where the core time goes in %"))
    name = Column("system", style="bold", no_wrap=True)
    table = ruled_table(name, numbers=("steps/s", *HEADS.values(), "waits"))
    lines = Table.grid(padding=(0, 2))
    for row in document["systems"]:
        if "error" in row:
            table.add_row(row["system"], "failed")
            lines.add_row(Text(row["system"], style="bold"), Text(row["error"].splitlines()[0], style="bold red"))
            continue
        shares = (f"{100 * row['shares'][name]:.0f}" for name in HEADS)
        table.add_row(row["system"], f"{row['sps']:,.0f}", *shares, f"{row['wait_share']:.0%}")
        settings = " ".join(f"{flags.flag(name)} {value}" for name, value in row["settings"].items())
        lines.add_row(Text(row["system"], style="bold"), Text(row["change"]))
        lines.add_row("", Text(settings, style="bright_black"))
        if (others := row["run"]["others_cores"]) > QUIET:
            note = f"other programs used {others:.1f} cores; measure again on an idle machine"
            lines.add_row(Text("note", style="bold yellow"), Text(note))
    console.print(table)
    console.print(Text(LEGEND, style="bright_black"))
    console.print()
    console.print(lines)


WIDTH = 100  # most columns of the printed text
ABOUT = "Measure how fast systems are on this machine, and where their time goes; without SYSTEM, all systems."


@dataclass(frozen=True)
class BenchOptions:
    """Run nothing else on the machine at the same time, or the results are meaningless."""

    env: str = "ALE/Pong-v5"  # environment, as in train
    network: str | None = None  # the systems' network (none: a3c for images, else mlp)
    precision: Literal["float32", "bfloat16", "auto"] = "auto"  # number type of the systems' networks, as in train
    cores: Count | None = None  # use this many cores of the machine, as in train (none: all that this process may use)
    seconds: Seconds = 3.5  # seconds to measure each system
    json: str | None = None  # JSON file for all results

    def __post_init__(self) -> None:
        if self.json is not None and not Path(self.json).absolute().parent.is_dir():
            folder = Path(self.json).parent
            raise UserError(f"--json {self.json}: directory {folder} does not exist; create it first")


def command(words: list[str]) -> int:
    """Measure the systems, print the tables, and return the exit status."""
    from polyplay.workers.process import keep_to

    about = f"{ABOUT} Systems: {', '.join(MEASURED)}."
    names, options, _ = parse_words(BenchOptions, words, "polyplay bench [SYSTEM …]", about, several=True)
    if wrong := [name for name in names if name not in MEASURED]:
        raise UserError(f"bench: {wrong[0]} is not an on-policy system of one agent; choose from {', '.join(MEASURED)}")
    keep_to(options.cores)  # child processes inherit this
    document = measure(names or MEASURED, options)
    if options.json is not None:
        write_json(Path(options.json), document)
    console = default_console()
    console.width = min(console.width, WIDTH)
    print_table(document, console)
    return int(any("error" in row for row in document["systems"]))
