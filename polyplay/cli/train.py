"""train, resume, surgery: start a run, continue it, or enlarge its network or game."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Column

from polyplay.cli.arguments import complain, page_and_words, print_result, run_and_options, take_option
from polyplay.core import errors
from polyplay.core.numbers import interval_name, mean_interval
from polyplay.envs.make import remembering
from polyplay.runs import directory as run_files
from polyplay.runs import option_file, options, run
from polyplay.runs.flags import option_types
from polyplay.runs.option_file import OptionFile, Sweep, SweepPart
from polyplay.runs.run import RunResult
from polyplay.runs.terminal import default_console, ruled_table

if TYPE_CHECKING:
    from polyplay.systems import Page

# `polyplay train SYSTEM --seeds …`, `--sweep FILE`: several runs, one after the other, and a summary of all.


def train_parts(parts: Sequence[SweepPart], train: Callable[[SweepPart], RunResult], directory: str | None) -> int:
    """Train the runs of a sweep in order, and print a summary. Stop early if a signal ends a run. Return the highest
    exit status. `train`: function that trains one run.
    `directory`: parent directory of all runs, or None if the runs have no common parent directory.
    """
    runs, status = dict[Path, str](), 0
    for part in parts:
        try:
            run = train(part)
        except (errors.EnvFailure, errors.WorkerLost, errors.NotFinite) as e:
            status = max(status, 1)
            complain(f"failed: {e}", e)
            continue
        except errors.UserError as e:  # these values of the grid do not fit; others may
            if not part.name:
                raise
            status = max(status, 2)
            complain(f"error: {part.name}: {e}", e)
            continue
        runs[run.directory] = part.name
        status = max(status, run.exit_code)
        if run.exit_code >= 128:
            break
    name = "sweep.png" if parts[0].file.option == "--sweep" else "seeds.png"
    print_parts(runs, Path(directory or next(iter(runs), ".")) / name)
    return status


def print_parts(runs: Mapping[Path, str], picture: Path) -> None:
    """Print a line for each run of a sweep, and the mean return over seeds for each combination of values. Then draw
    all learning curves. `runs`: {directory of a run: its combination of values, as text}.
    """
    from polyplay.cli import plot, systems

    rows = {run: run_files.describe_run(run) for run in runs}
    default_console().print(systems.table_of([*rows.values()]))
    for point in dict.fromkeys(runs.values()):
        returns = [row["return"] for run, row in rows.items() if runs[run] == point and row.get("return") is not None]
        if returns:
            interval, name = mean_interval(returns), interval_name(len(returns))
            about = "{} {:,.2f} to {:,.2f}".format(name, *interval) if interval else "no interval: only one seed"
            print(f"{point and f'{point}: '}mean return {sum(returns) / len(returns):,.2f}, {about}")
    ended = {run: run_files.read_summary(run) for run in runs}
    drawn = [run for run in runs if ended[run].get("episodic_return_mean") is not None]  # not populations
    if drawn and find_spec("matplotlib") is not None:
        print(plot.curves(drawn, picture))


def list_parts(directories: Sequence[Path], file: Path) -> None:
    """Print a table with the index, the directory and the state of each run in a sweep."""
    table = ruled_table("part", Column("run", overflow="fold"), Column("state", no_wrap=True))
    for i, directory in enumerate(directories):
        begun = (directory / "config.json").exists()
        table.add_row(str(i), str(directory), str(run_files.describe_run(directory)["state"]) if begun else "new")
    default_console().print(table)
    print(f"`polyplay train --sweep {shlex.quote(str(file))} --part 0` trains the first alone")


def choose_part(words: Sequence[str], parts: Sequence[SweepPart]) -> SweepPart:
    """Return the run that --part selects by its index in the sweep. Raises UserError if no run has this index."""
    text = " ".join(words)
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= len(parts):
        file = parts[0].file.path
        raise errors.UserError(f"--part: '{text}' given, allowed: 0 to {len(parts) - 1}; {file} has {len(parts)} runs")
    return parts[int(text)]


def train_sweep(page: Page, words: Sequence[str], sweep: Sweep, number: Sequence[str] | None) -> int:
    """Train all runs of a sweep, and return the highest exit status. Resume a run if its directory already exists. Skip
    runs that are finished. If an option is wrong, raises UserError before any run starts.
    `words`: options on the command line, which apply to all runs.
    `number`: index of the only run to train, or None to train all runs.
    """
    if sweep.seeds is not None and "seed" in _names(words):
        text = f"--seed: given, but there is a run for each of the seeds {' '.join(map(str, sweep.seeds))}"
        raise errors.UserError(f"{text}: leave it out")
    parts = sweep.parts(page.name, option_types(page.Config, options.RunOptions), _names(words))
    points = [options.parse(page, words, file=part.file) for part in parts if part.seed == parts[0].seed]
    chosen = points[0][1]
    of_file = sweep.file.option == "--sweep"
    parent = chosen.run or (f"runs/{sweep.file.path.stem}" if of_file else None)

    def train(part: SweepPart) -> RunResult:
        seed = [] if part.seed is None else ["--seed", str(part.seed)]
        again = ["--run", str(part.directory(Path(parent))), "--resume", "auto"] if parent else []
        return run.train(page, *options.parse(page, [*words, *seed, *again], file=part.file))

    if number is not None:
        return train(choose_part(number, parts)).exit_code
    if chosen.dry_run and not of_file:
        return train(parts[0]).exit_code
    if chosen.dry_run:
        list_parts([part.directory(Path(str(parent))) for part in parts], sweep.file.path)
        return 0
    return train_parts(parts, train, parent)


def read_files(words: list[str]) -> tuple[list[str], OptionFile | None, Sweep | None]:
    """Read the files of --config and --sweep. Return the remaining words of the command line, the option file (or
    None), and the sweep (or None). If a file is given and the command line names no system, the file's system is
    inserted as the first word. Raises UserError if a file is wrong.
    """
    words, config = take_option(words, "config")
    words, sweep = take_option(words, "sweep")
    if config is None and sweep is None:
        return words, None, None
    name, paths = ("--config", config) if config is not None else ("--sweep", sweep or [])
    if len(paths) != 1 or (config is not None and sweep is not None):
        cure = "one file, or a run's directory; a sweep's file has all options of its runs"
        raise errors.UserError(f"{name}: '{' '.join([*(config or []), *(sweep or [])])}' given, allowed: {cure}")
    named = bool(words) and not words[0].startswith("-")
    given = [*_names(words), *["system"] * named]
    several = None if config else option_file.read_sweep(Path(paths[0]), given)
    file = option_file.read_option_file(paths[0], given) if several is None else several.file
    return [file.choose_system(words[0] if named else None), *words[named:]], file, several


def _names(words: Sequence[str]) -> list[str]:
    heads = (word.partition("=")[0] for word in words if word.startswith("-"))
    return [option_file.option_name(head.lstrip("-").removeprefix("no-")) for head in heads]


@remembering()
def command(words: list[str]) -> int:
    """Run `polyplay train`, and return the highest exit status of the runs. --save-config only writes a file."""
    from polyplay import systems
    from polyplay.workers import process

    words, seeds = take_option(words, "seeds")
    words, number = take_option(words, "part")
    words, save = take_option(words, "save-config")
    words, file, sweep = read_files(words)
    if number is not None and sweep is None:
        raise errors.UserError(f"--part: '{' '.join(number)}' given, but no sweep: give --sweep FILE too")
    if save is not None and (len(save) != 1 or seeds or sweep):
        cure = "one file to write, of one run: without --seeds and --sweep"
        raise errors.UserError(f"--save-config: '{' '.join(save)}' given, allowed: {cure}")
    if save is None and words and words[0].lower() in systems.names():
        process.start_early(word.partition("=")[0].lstrip("-") for word in words)
    page, rest = page_and_words(words, "train", None if file is None else file.values.get("over"))
    if seeds is not None:
        sweep = sweep or Sweep(file or OptionFile(Path(), None, {}), None, {})
        sweep = replace(sweep, seeds=option_file.parse_seeds(seeds))
    if sweep is not None:
        return train_sweep(page, rest, sweep, number)
    choice = options.parse(page, rest, file=file)
    if save is None:
        return run.train(page, *choice).exit_code
    option_file.write_option_file(Path(save[0]), page.name, *choice)
    print(f"{save[0]} written; `polyplay train --config {shlex.quote(save[0])}` trains with these options")
    return 0


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
    # new learning rate; a rate that decays over the run decays from this value
    entropy_cost: errors.NonNegative | None = None  # new weight of the entropy bonus
    lanes: errors.Count | None = None  # new number of parallel environments per worker; they start new episodes
    actors: errors.SomeWorkers | None = None  # new number of acting workers; lanes start new episodes
    learners: errors.SomeWorkers | None = None  # new number of learning workers; lanes start new episodes
    change: tuple[str, ...] = ()
    # new schedule of hyperparameters, as in `polyplay train`; replaces the run's schedule (empty: no schedule)
    device: Literal["auto", "cpu", "cuda"] | None = None  # new device of learners and replicas
    dry_run: bool = False  # print the plan, measure the speed for two seconds, write nothing
    report_every: errors.Seconds | None = None  # seconds between reports
    checkpoint_every: errors.Seconds | None = None  # seconds between checkpoints
    keep: errors.Count | None = None  # number of newest checkpoints to keep; the best one is always kept
    compile: Literal["auto", "on", "off"] | None = None  # whether to compile updates, as in `polyplay train`
    hosts: str | None = None  # other machines to use, as in `polyplay train` (none: this machine alone)
    place: str | None = None  # machines of the workers, as in `polyplay train`
    ship: str | None = None  # folder of modules that other machines import from, as in `polyplay train`
    host_timeout: errors.Seconds | None = None  # seconds of silence before a machine counts as lost
    host_wait: errors.Seconds | None = None  # seconds to wait for a machine that replaces a lost one
    quiet: bool = False  # print warnings, errors and the last line only
    verbose: bool = False  # print every value with its source, and the whole plan, at the start
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command_resume(words: list[str]) -> int:
    """Run `polyplay resume`: continue a run, and return its exit status."""
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
    """Run `polyplay surgery`: write a run with a larger network or game, and print what has changed."""
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
