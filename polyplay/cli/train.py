"""train, resume, reproduce, surgery: what makes runs and goes on with them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from polyplay.cli.arguments import complain, page_and_words, print_result, run_and_options, take_option
from polyplay.core import errors
from polyplay.core.numbers import mean_interval
from polyplay.envs.make import remembering
from polyplay.runs import directory as run_files
from polyplay.runs.run import RunResult
from polyplay.runs.terminal import default_console

# `polyplay train SYSTEM --seeds …`: a run for each seed, one after the other, and what they come to together.


def parse_seeds(words: Sequence[str]) -> list[int]:
    """Each seed once, in the order given. Raises UserError."""
    seeds = dict[int, None]()
    for part in ",".join(words).split(","):
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            allowed = "allowed: whole numbers from 0, as 0..4, 0,1,2 or 0 1 2"
            raise errors.UserError(f"--seeds: '{' '.join(words)}' given, {allowed}")
        seeds |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return list(seeds)


def train_seeds(seeds: Sequence[int], train: Callable[[int], RunResult], directory: str | None) -> int:
    """Train one seed after the other until a signal ends a run, and print the summary; the worst exit status. train:
    from a seed. directory: of all runs together (None: each has its own).
    """
    runs, status = list[Path](), 0
    for seed in seeds:
        try:
            run = train(seed)
        except (errors.EnvFailure, errors.WorkerLost, errors.NotFinite) as e:
            status = max(status, 1)
            complain(f"failed: {e}", e)
            continue
        runs.append(run.directory)
        status = max(status, run.exit_code)
        if run.exit_code >= 128:
            break
    print_seeds(runs, Path(directory or (runs or [Path()])[0]) / "seeds.png")
    return status


def print_seeds(runs: Sequence[Path], picture: Path) -> None:
    """Print a line for each run, the mean return with its 95 % interval over seeds, and draw their curves."""
    from polyplay.cli import plot, systems

    rows = [run_files.describe_run(run) for run in runs]
    default_console().print(systems.table_of(rows))
    returns = [row["return"] for row in rows if row.get("return") is not None]
    if returns:
        interval = mean_interval(returns)
        about = "95 % interval {:,.2f} to {:,.2f}".format(*interval) if interval else "no interval: it is of one seed"
        print(f"mean return {sum(returns) / len(returns):,.2f}, {about}")
    ended = {run: run_files.read_summary(run) for run in runs}
    drawn = [run for run in runs if ended[run].get("episodic_return_mean") is not None]  # no populations
    if drawn and find_spec("matplotlib") is not None:
        print(plot.curves(drawn, picture))


@remembering()
def command(words: list[str]) -> int:
    """The run's exit status; of several seeds the worst."""
    from polyplay import systems
    from polyplay.runs import options
    from polyplay.workers import process

    words, config = take_option(words, "config")
    words, seeds = take_option(words, "seeds")
    file = None
    if config is not None:
        if len(config) != 1:
            raise errors.UserError(f"--config: '{' '.join(config)}' given, allowed: one file, or a run's directory")
        path = Path(config[0])
        given = [w.partition("=")[0].lstrip("-").replace("-", "_") for w in words if w.startswith("--")]
        named = bool(words) and not words[0].startswith("-")
        file = options.read_option_file(path, [*given, *["system"] * named])
        words = [file.choose_system(words[0] if named else None), *words[named:]]
    if words and words[0].lower() in systems.names():
        process.start_early(word.partition("=")[0].lstrip("-") for word in words)
    page, rest = page_and_words(words, "train", None if file is None else file.values.get("over"))
    settings, chosen, sources = options.parse(page, rest, file=file)
    from polyplay.runs import run

    if seeds is None:
        return run.train(page, settings, chosen, sources).exit_code

    if sources["seed"] == "command line":
        raise errors.UserError(f"--seed and --seeds {' '.join(seeds)} contradict each other: give one of them")
    several = parse_seeds(seeds)

    def train(seed: int) -> RunResult:
        again = ["--run", f"{chosen.run}/seed-{seed}", "--resume", "auto"] if chosen.run else []
        return run.train(page, *options.parse(page, [*rest, "--seed", str(seed), *again], file=file))

    if chosen.dry_run:
        return train(several[0]).exit_code
    return train_seeds(several, train, chosen.run)


# `polyplay resume`.


@dataclass(frozen=True)
class ResumeOptions:
    """Continues a run from its newest checkpoint. Options that are not given are unchanged."""

    frames: errors.Count | None = None  # stop after this many frames, counted from the start of the run
    steps: errors.Count | None = None
    # stop after this many agent steps, counted from the start of the run (also --total-timesteps, -n)
    minutes: errors.Seconds | None = None
    # stop after this many minutes of wall time, counted from the start of the run
    until_return: float | None = None  # stop when the mean return of the last 100 full games reaches this
    learning_rate: errors.Positive | None = None
    # learning rate from now on; if it falls over the run, it falls from this value
    entropy_cost: errors.NonNegative | None = None  # weight of the entropy bonus from now on
    lanes: errors.Count | None = None  # parallel environments of each worker from now on; they begin new episodes
    actors: errors.SomeWorkers | None = None  # workers that act from now on; lanes begin new episodes
    learners: errors.SomeWorkers | None = None  # workers that learn from now on; lanes begin new episodes
    change: tuple[str, ...] = ()
    # values of hyperparameters in the course of the run, as in `polyplay train`, in place of those that the run has
    # (empty: none)
    report_every: errors.Seconds | None = None  # seconds between reports
    checkpoint_every: errors.Seconds | None = None  # seconds between checkpoints
    keep: errors.Count | None = None  # how many of the newest checkpoints to keep; the best one is always kept
    device: Literal["auto", "cpu", "cuda"] | None = None  # where learners and replicas compute from now on
    compile: Literal["auto", "on", "off"] | None = None  # compile updates from now on, as in `polyplay train`
    hosts: str | None = None  # other machines from now on, as in `polyplay train` (none: this machine alone)
    place: str | None = None  # which workers are on which machine, as in `polyplay train`
    ship: str | None = None  # folder whose modules are taken along to other machines
    host_timeout: errors.Seconds | None = None  # a machine that is silent for so many seconds is lost
    host_wait: errors.Seconds | None = None  # seconds that workers of a lost machine wait for another one
    quiet: bool = False  # print warnings, errors and the last line only
    verbose: bool = False  # print every value with its source, and the whole plan, at the start
    dry_run: bool = False  # print the plan, measure the speed for two seconds, write nothing
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command_resume(words: list[str]) -> int:
    """The run's exit status."""
    directory, options, given = run_and_options(ResumeOptions, words, "resume")
    from polyplay.runs import run

    changes = {name: vars(options)[name] for name in given - {"trust"}}
    return run.resume(directory, changes, options.trust).exit_code


# `polyplay reproduce`.


@dataclass(frozen=True)
class ReproduceOptions:
    """Repeats an asynchronous run from its log of deliveries, in one thread; a debugger works."""

    updates: errors.Count | None = None  # stop after this many updates (none: all logged updates)
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command_reproduce(words: list[str]) -> None:
    """Prints what was compared."""
    directory, options, _ = run_and_options(ReproduceOptions, words, "reproduce")
    from polyplay.runs import reproduce

    print_result(reproduce.reproduce(directory, options.updates, options.trust))


# `polyplay surgery`.


@dataclass(frozen=True)
class SurgeryOptions:
    """Writes another run that goes on where RUN was, with a larger network or game. Options that are not given are
    unchanged."""

    out: str | None = None  # directory of the run to write
    core_size: errors.Width | None = None  # width of the recurrent core
    hidden: tuple[errors.Width, ...] = ()  # sizes of the network's hidden layers, as many as it has
    network: str | None = None  # the network, with larger layers
    env: str | None = None  # the environment, with more observations or actions
    env_kwargs: tuple[str, ...] = ()  # keyword arguments of the environment, as NAME=VALUE, instead of those it has
    wrapper: tuple[str, ...] = ()  # wrappers of the environment, instead of those it has
    lanes: errors.Count | None = None  # lanes (num-envs) of each actor, where the new game's seats need another number
    freeze_until: errors.Whole = 0  # the learning rate is 0 until so many more agent steps were learnt from
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command_surgery(words: list[str]) -> None:
    """Prints what changed."""
    directory, options, given = run_and_options(SurgeryOptions, words, "surgery")
    if options.out is None:
        raise errors.UserError(f"surgery takes the directory to write: polyplay surgery {directory} --out RUN2")
    from polyplay.runs.surgery import grow_run

    changes = {name: vars(options)[name] for name in given - {"out", "freeze_until", "trust"}}
    report = grow_run(directory, Path(options.out), changes, options.freeze_until, options.trust)
    for name, shapes in report["tensors"].items():
        print(f"{name}: {'new' if shapes['was'] is None else list(shapes['was'])} → {list(shapes['is'])}")
    lines = [f"{part}: taken away, as if it were always 0" for part in report["taken_away"]]
    for line in [*lines, *(f"not carried: {what}" for what in report["not_carried"])]:
        print(line)
    print_result(report)
    print(f"`polyplay resume {shlex.quote(options.out)}` goes on")
