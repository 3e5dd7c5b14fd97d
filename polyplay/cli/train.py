"""train, resume, reproduce, surgery: what makes runs and goes on with them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.table import Table

from polyplay.cli.arguments import page_and_words, print_result, run_and_options
from polyplay.core import errors
from polyplay.core.numbers import mean_interval
from polyplay.runs.run import RunResult
from polyplay.runs.terminal import default_console

if TYPE_CHECKING:
    from polyplay.runs.options import OptionFile

# `polyplay train SYSTEM --seeds …`: a run for each seed, one after the other, and what they come to together.


ALLOWED = "allowed: whole numbers from 0, as 0..4, 0,1,2 or 0 1 2"
PICTURE = "seeds.png"


def parse_seeds(words: Sequence[str]) -> list[int]:
    """Each seed once, in the order given. Raises UserError."""
    seeds: dict[int, None] = {}
    for part in [part for word in words for part in word.split(",")]:
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            hint = f"; a range goes up: {match[2]}..{match[1]}" if match else ""
            raise errors.UserError(f"--seeds: '{' '.join(words)}' given, {ALLOWED}{hint}")
        seeds |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not seeds:
        raise errors.UserError(f"--seeds needs a value: {ALLOWED.removeprefix('allowed: ')}")
    return list(seeds)


def train_seeds(seeds: Sequence[int], train: Callable[[int], RunResult], directory: str | None) -> int:
    """Train one seed after the other until a signal ends a run, and print the summary; the worst exit status. train:
    from a seed. directory: of all runs together (None: each has its own).
    """
    runs: dict[int, RunResult | None] = {}  # None: it failed
    status = 0
    for seed in seeds:
        try:
            run = runs[seed] = train(seed)
        except (errors.EnvFailure, errors.WorkerLost, errors.NotFinite) as e:
            runs[seed], status = None, max(status, 1)
            print("\n".join([f"polyplay: failed: {e}", *getattr(e, "__notes__", [])]), file=sys.stderr, flush=True)
            continue
        status = max(status, run.exit_code)
        if run.exit_code >= 128:
            break
    default_console().print(table_of_seeds(runs))
    ended = [run for run in runs.values() if run is not None]
    if ended and find_spec("matplotlib") is not None:
        _draw_picture(ended, Path(directory) if directory else ended[0].directory)
    return status


def table_of_seeds(runs: dict[int, RunResult | None]) -> Table:
    """A line for each seed, then the mean return with its 95 % interval over seeds."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("seed", "return", "frames", "minutes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ended", overflow="fold")
    returns = []
    for seed, run in runs.items():
        summary = run.summary if run else {}
        mean, seconds = summary.get("episodic_return_mean", summary.get("best_score")), summary.get("wall_seconds")
        returns += [] if mean is None else [mean]
        shown = "–" if mean is None else f"{mean:,.2f}"
        minutes = "–" if seconds is None else f"{seconds / 60:.1f}"
        frames = f"{summary['frames']:,}" if "frames" in summary else "–"
        table.add_row(str(seed), shown, frames, minutes, str(summary.get("reason", "failed")))
    if returns:
        interval = mean_interval(returns)
        about = "95 % interval {:,.2f} to {:,.2f}".format(*interval) if interval else "no interval: it is of one seed"
        table.add_section()
        table.add_row("mean", f"{sum(returns) / len(returns):,.2f}", "", "", about)
    return table


def _draw_picture(runs: Sequence[RunResult], directory: Path) -> None:
    """Leaves it out where no game has ended yet."""
    from polyplay.cli import plot

    drawn = [run.directory for run in runs if run.summary.get("episodic_return_mean") is not None]
    if drawn:
        print(plot.curves(drawn, directory / PICTURE))


def command(words: list[str]) -> int:
    """The run's exit status; of several seeds the worst."""
    from polyplay import systems
    from polyplay.runs import options
    from polyplay.workers import process

    words, config = take_option(words, "config")
    words, seeds = take_option(words, "seeds")
    file = None
    if config is not None:
        file, words = _read_file(_one(config), words)
    if words and words[0].lower() in systems.names():
        process.start_early(word.partition("=")[0].lstrip("-") for word in words)
    system, page, rest = page_and_words(words, "train", None if file is None else file.values.get("over"))
    settings, chosen, sources = options.parse(page, rest, file=file)
    from polyplay.runs import run

    if seeds is None:
        return run.train(system, settings, chosen, sources).exit_code

    if sources["seed"] == "command line":
        both = f"--seed {chosen.seed} and --seeds {' '.join(seeds)}"
        raise errors.UserError(f"{both} contradict each other: give one of them")
    several = parse_seeds(seeds)

    def train(seed: int) -> RunResult:
        again = ["--run", f"{chosen.run}/seed-{seed}", "--resume", "auto"] if chosen.run else []
        return run.train(system, *options.parse(page, [*rest, "--seed", str(seed), *again], file=file))

    if chosen.dry_run:
        return train(several[0]).exit_code
    return train_seeds(several, train, chosen.run)


def _read_file(path: str, words: list[str]) -> tuple[OptionFile, list[str]]:
    """A file of options, and the words with its system first where they have none."""
    from polyplay.runs.options import read_option_file

    given = [w.partition("=")[0].lstrip("-").replace("-", "_") for w in words if w.startswith("--")]
    file = read_option_file(path, given)
    system = words[0] if words and not words[0].startswith("-") else None
    return file, [file.choose_system(system), *words[system is not None :]]


def take_option(words: Sequence[str], name: str) -> tuple[list[str], list[str] | None]:
    """The words without --NAME and its values, and those values; None: it was not given."""
    flag = f"--{name}"
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == flag), None)
    if at is None:
        return list(words), None
    end = next((i for i in range(at + 1, len(words)) if words[i].startswith("-")), len(words))
    _, equals, value = words[at].partition("=")
    return [*words[:at], *words[end:]], [*([value] if equals else []), *words[at + 1 : end]]


def _one(values: Sequence[str]) -> str:
    if len(values) != 1:
        raise errors.UserError(f"--config: '{' '.join(values)}' given, allowed: one file, or the directory of a run")
    return values[0]


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

    changes = {name: getattr(options, name) for name in given - {"trust"}}
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
    hidden: errors.Widths = ()  # sizes of the network's hidden layers, as many as it has
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

    changes = {name: getattr(options, name) for name in given - {"out", "freeze_until", "trust"}}
    report = grow_run(directory, Path(options.out), changes, options.freeze_until, options.trust)
    for name, shapes in report["tensors"].items():
        print(f"{name}: {'new' if shapes['was'] is None else list(shapes['was'])} → {list(shapes['is'])}")
    for part in report["taken_away"]:
        print(f"{part}: taken away, as if it were always 0")
    for what in report["not_carried"]:
        print(f"not carried: {what}")
    print_result(report)
    print(f"`polyplay resume {shlex.quote(options.out)}` goes on")
