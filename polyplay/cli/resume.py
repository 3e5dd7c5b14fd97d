"""`polyplay resume`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polyplay.cli.arguments import run_and_options
from polyplay.common.bounds import Count, NonNegative, Positive, Seconds


@dataclass(frozen=True)
class ResumeOptions:
    """What may change when a run goes on; what is not given stays as it was."""

    frames: Count | None = None
    """stop after this many frames, those before included"""
    steps: Count | None = None
    """stop after this many agent steps, those before included (also --total-timesteps, -n)"""
    minutes: Seconds | None = None
    """stop after this many minutes of wall time, those before included"""
    until_return: float | None = None
    """stop when the mean return of the last 100 full games reaches this"""
    learning_rate: Positive | None = None
    """learn at this rate from now on; where it falls over the run, it goes on falling from there"""
    entropy_cost: NonNegative | None = None
    """weigh the policy's entropy so from now on"""
    report_every: Seconds | None = None
    """seconds between reports"""
    checkpoint_every: Seconds | None = None
    """seconds between checkpoints"""
    keep: Count | None = None
    """how many of the newest checkpoints to keep, besides the best"""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """where learners and replicas compute from now on"""
    chaos: str | None = None
    """which workers are harmed from now on, as in `polyplay train` (none: no more)"""
    quiet: bool = False
    """print warnings, errors and the last line only"""
    dry_run: bool = False
    """show the plan, measure the speed for two seconds, write nothing"""
    trust: bool = False
    """open a run that was made elsewhere and executes a module by name (its environment, its network)"""


def command(words: list[str]) -> int:
    """The run's exit status."""
    directory, options, given = run_and_options(ResumeOptions, words, "resume")
    from polyplay.runs import run

    changes = {name: getattr(options, name) for name in given - {"trust"}}
    return run.resume(directory, changes, options.trust).exit_code
