"""`polyplay surgery`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_result
from polyplay.common.bounds import Count, Whole, Width, Widths
from polyplay.common.errors import UserError


@dataclass(frozen=True)
class SurgeryOptions:
    """Writes another run that goes on where RUN was, with a larger network or game. Options that are not given are
    unchanged."""

    out: str | None = None
    """directory of the run to write"""
    core_size: Width | None = None
    """width of the recurrent core"""
    hidden: Widths = ()
    """sizes of the network's hidden layers, as many as it has"""
    network: str | None = None
    """the network, with larger layers"""
    env: str | None = None
    """the environment, with more observations or actions"""
    env_kwargs: tuple[str, ...] = ()
    """keyword arguments of the environment, as NAME=VALUE, instead of those it has"""
    wrapper: tuple[str, ...] = ()
    """wrappers of the environment, instead of those it has"""
    lanes: Count | None = None
    """lanes (num-envs) of each actor, where the new game's seats need another number"""
    settle: Whole = 0
    """the learning rate is 0 until so many more agent steps were learnt from"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""


def command(words: list[str]) -> None:
    """Prints what changed."""
    directory, options, given = run_and_options(SurgeryOptions, words, "surgery")
    if options.out is None:
        raise UserError(f"surgery takes the directory to write: polyplay surgery {directory} --out RUN2")
    from polyplay.runs.surgery import grow_run

    changes = {name: getattr(options, name) for name in given - {"out", "settle", "trust"}}
    report = grow_run(directory, Path(options.out), changes, options.settle, options.trust)
    for name, shapes in report["tensors"].items():
        print(f"{name}: {'new' if shapes['was'] is None else list(shapes['was'])} → {list(shapes['is'])}")
    for part in report["taken_away"]:
        print(f"{part}: taken away, as if it were always 0")
    for what in report["not_carried"]:
        print(f"not carried: {what}")
    print_result(report)
    print(f"`polyplay resume {shlex.quote(options.out)}` goes on")
