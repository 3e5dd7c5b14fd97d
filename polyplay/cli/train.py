"""train, resume, surgery: start, continue and enlarge runs."""

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

# `polyplay train SYSTEM --seeds …`: a run per seed, one after the other, and a summary of all.


def parse_seeds(words: Sequence[str]) -> list[int]:
    """Return each seed once, in the given order. Raises UserError."""
    seeds = dict[int, None]()
    for part in ",".join(words).split(","):
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            allowed = "must be whole numbers from 0, such as 0..4, 0,1,2 or 0 1 2"
            raise errors.UserError(f"--seeds '{' '.join(words)}': {allowed}")
        seeds |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return list(seeds)


def train_seeds(seeds: Sequence[int], train: Callable[[int], RunResult], directory: str | None) -> int:
    """Train one seed after the other until a signal ends a run, print the summary, and return the worst exit status.
    train: trains a seed. directory: parent of all runs (None: each has its own).
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
        about = "95 % interval {:,.2f} to {:,.2f}".format(*interval) if interval else "no interval: only one seed"
        print(f"mean return {sum(returns) / len(returns):,.2f}, {about}")
    ended = {run: run_files.read_summary(run) for run in runs}
    drawn = [run for run in runs if ended[run].get("episodic_return_mean") is not None]  # no populations
    if drawn and find_spec("matplotlib") is not None:
        print(plot.curves(drawn, picture))


@remembering()
def command(words: list[str]) -> int:
    """Return the run's exit status; with several seeds, the worst."""
    from polyplay import systems
    from polyplay.runs import options
    from polyplay.workers import process

    words, config = take_option(words, "config")
    words, seeds = take_option(words, "seeds")
    file = None
    if config is not None:
        if len(config) != 1:
            raise errors.UserError(f"--config '{' '.join(config)}': must be one file, or a run's directory")
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
        raise errors.UserError(f"--seed and --seeds {' '.join(seeds)} contradict each other; use one of them")
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
    """Continue a run from its newest checkpoint. Options that you leave out keep their values."""

    frames: errors.Count | None = None  # stop at this many frames, counted from the start of the run
    steps: errors.Count | None = None
    # stop at this many agent steps, counted from the start of the run (also --total-timesteps, -n)
    minutes: errors.Seconds | None = None  # stop at this many minutes, counted from the start of the run
    until_return: float | None = None  # stop at this mean return of the last 100 full games
    learning_rate: errors.Positive | None = None
    # new learning rate; if it decays over the run, it decays from this value
    entropy_cost: errors.NonNegative | None = None  # new weight of the entropy bonus
    lanes: errors.Count | None = None  # new number of parallel environments per worker; they start new episodes
    actors: errors.SomeWorkers | None = None  # new number of acting workers; lanes start new episodes
    learners: errors.SomeWorkers | None = None  # new number of learning workers; lanes start new episodes
    change: tuple[str, ...] = ()
    # new schedule of hyperparameters; replaces the run's schedule, form as in `polyplay train` (empty: no schedule)
    device: Literal["auto", "cpu", "cuda"] | None = None  # new device of learners and replicas
    dry_run: bool = False  # print the plan, measure the speed for two seconds, write nothing
    report_every: errors.Seconds | None = None  # seconds between reports
    checkpoint_every: errors.Seconds | None = None  # seconds between checkpoints
    keep: errors.Count | None = None  # number of newest checkpoints to keep; the best one is always kept
    compile: Literal["auto", "on", "off"] | None = None  # whether to compile updates, as in `polyplay train`
    hosts: str | None = None  # other machines to use, as in `polyplay train` (none: this machine alone)
    place: str | None = None  # machines of the workers, as in `polyplay train`
    ship: str | None = None  # folder of modules to copy to other machines
    host_timeout: errors.Seconds | None = None  # seconds of silence before a machine counts as lost
    host_wait: errors.Seconds | None = None  # seconds that workers of a lost machine wait for a new one
    quiet: bool = False  # print warnings, errors and the last line only
    verbose: bool = False  # print every value with its source, and the whole plan, at the start
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command_resume(words: list[str]) -> int:
    """Return the run's exit status."""
    directory, options, given = run_and_options(ResumeOptions, words, "resume")
    from polyplay.runs import run

    changes = {name: vars(options)[name] for name in given - {"trust"}}
    return run.resume(directory, changes, options.trust).exit_code


# `polyplay surgery`.


@dataclass(frozen=True)
class SurgeryOptions:
    """Write a new run that continues RUN with a larger network or game. Options that you leave out keep their
    values."""

    out: str | None = None  # directory of the run to write
    core_size: errors.Width | None = None  # width of the recurrent core
    hidden: tuple[errors.Width, ...] = ()  # sizes of all hidden layers of the network
    network: str | None = None  # the network, with larger layers
    env: str | None = None  # the environment, with more observations or actions
    env_kwargs: tuple[str, ...] = ()  # new keyword arguments of the environment, as NAME=VALUE
    wrapper: tuple[str, ...] = ()  # new wrappers of the environment
    lanes: errors.Count | None = None  # lanes (num-envs) per actor, if the new game's seats need another number
    freeze_until: errors.Whole = 0  # keep the learning rate at 0 for this many agent steps of training
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command_surgery(words: list[str]) -> None:
    """Print what changed."""
    directory, options, given = run_and_options(SurgeryOptions, words, "surgery")
    if options.out is None:
        raise errors.UserError(f"surgery takes the directory to write: polyplay surgery {directory} --out RUN2")
    from polyplay.runs.surgery import grow_run

    changes = {name: vars(options)[name] for name in given - {"out", "freeze_until", "trust"}}
    report = grow_run(directory, Path(options.out), changes, options.freeze_until, options.trust)
    for name, shapes in report["tensors"].items():
        print(f"{name}: {'new' if shapes['was'] is None else list(shapes['was'])} → {list(shapes['is'])}")
    lines = [f"{part}: removed, as if it were always 0" for part in report["taken_away"]]
    for line in [*lines, *(f"not carried: {what}" for what in report["not_carried"])]:
        print(line)
    print_result(report)
    print(f"continue with `polyplay resume {shlex.quote(options.out)}`")
