"""`polyplay resume`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polyplay.cli.arguments import run_and_options
from polyplay.common.bounds import Count, NonNegative, Positive, Seconds, SomeWorkers


@dataclass(frozen=True)
class ResumeOptions:
    """Continues a run from its newest checkpoint. Options that are not given are unchanged."""

    frames: Count | None = None
    """stop after this many frames, counted from the start of the run"""
    steps: Count | None = None
    """stop after this many agent steps, counted from the start of the run (also --total-timesteps, -n)"""
    minutes: Seconds | None = None
    """stop after this many minutes of wall time, counted from the start of the run"""
    until_return: float | None = None
    """stop when the mean return of the last 100 full games reaches this"""
    learning_rate: Positive | None = None
    """learning rate from now on; if it falls over the run, it falls from this value"""
    entropy_cost: NonNegative | None = None
    """weight of the entropy bonus from now on"""
    lanes: Count | None = None
    """parallel environments of each worker from now on; they begin new episodes"""
    actors: SomeWorkers | None = None
    """workers that act from now on; lanes begin new episodes"""
    learners: SomeWorkers | None = None
    """workers that learn from now on; lanes begin new episodes"""
    change: tuple[str, ...] = ()
    """values of hyperparameters in the course of the run, as in `polyplay train`, in place of those that the run
    has (empty: none)"""
    report_every: Seconds | None = None
    """seconds between reports"""
    checkpoint_every: Seconds | None = None
    """seconds between checkpoints"""
    keep: Count | None = None
    """how many of the newest checkpoints to keep; the best one is always kept"""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """where learners and replicas compute from now on"""
    hosts: str | None = None
    """other machines from now on, as in `polyplay train` (none: this machine alone)"""
    place: str | None = None
    """which workers are on which machine, as in `polyplay train`"""
    ship: str | None = None
    """folder whose modules are taken along to other machines"""
    host_timeout: Seconds | None = None
    """a machine that is silent for so many seconds is lost"""
    host_wait: Seconds | None = None
    """seconds that workers of a lost machine wait for another one"""
    quiet: bool = False
    """print warnings, errors and the last line only"""
    verbose: bool = False
    """print every value with its source, and the whole plan, at the start"""
    dry_run: bool = False
    """print the plan, measure the speed for two seconds, write nothing"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""


def command(words: list[str]) -> int:
    """The run's exit status."""
    directory, options, given = run_and_options(ResumeOptions, words, "resume")
    from polyplay.runs import run

    changes = {name: getattr(options, name) for name in given - {"trust"}}
    return run.resume(directory, changes, options.trust).exit_code
