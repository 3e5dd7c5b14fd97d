"""The options of the verbs that take a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polyplay.common.errors import UserError


@dataclass(frozen=True)
class ResumeOptions:
    """What may change when a run goes on; what is not given stays as it was."""

    frames: int | None = None
    """stop after this many frames, those before included"""
    steps: int | None = None
    """stop after this many agent steps, those before included (also --total-timesteps, -n)"""
    minutes: float | None = None
    """stop after this many minutes of wall time, those before included"""
    until_return: float | None = None
    """stop when the mean return of the last 100 full games reaches this"""
    report_every: float | None = None
    """seconds between reports"""
    checkpoint_every: float | None = None
    """seconds between checkpoints"""
    keep: int | None = None
    """how many of the newest checkpoints to keep, besides the best"""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """where learners and replicas compute from now on"""
    chaos: str | None = None
    """which workers are harmed from now on, as in `polyplay train` (none: no more)"""
    dry_run: bool = False
    """show the plan, measure the speed for two seconds, write nothing"""


@dataclass(frozen=True)
class EvaluateOptions:
    """Full games, undiscounted and unclipped returns, written to the run's directory (docs/guides/evaluation.md)."""

    protocol: Literal["run", "null-op", "null-op-30min", "null-op-1-30", "human-starts", "sticky"] = "run"
    """what starts and ends a game: as in training (run), or as in the papers: null-op is 0-30 no-ops and 18,000 frames,
    null-op-30min the same with 108,000, null-op-1-30 with 1-30 no-ops; human-starts a file's start states; sticky
    actions of 0.25"""
    episodes: int | None = None
    """how many full games (none: the protocol's number, 30 or 100)"""
    seed: int = 0
    """seed of environments and actions"""
    epsilon: float | None = None
    """the chance of a uniform random action instead of the policy's own (none: the system's, mostly 0)"""
    starts: str | None = None
    """the file of start states, for human-starts"""
    video: bool = False
    """write a video of the first game beside the run"""
    checkpoint: str | None = None
    """which: best, or a number (none: the newest)"""
    greedy: bool = False
    """take the likeliest action instead of drawing one"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the network computes (auto: on CUDA where there is a GPU)"""

    def __post_init__(self) -> None:
        for name, least in (("episodes", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name}: {value} given, allowed: a whole number from {least} up")
        if self.epsilon is not None and not 0 <= self.epsilon <= 1:
            raise UserError(f"--epsilon: {self.epsilon:g} given, allowed: a number from 0 to 1")


@dataclass(frozen=True)
class ReproduceOptions:
    """An asynchronous run once more, from its log of deliveries; under a debugger if you like."""

    updates: int | None = None
    """stop after this many updates (none: all that were logged)"""

    def __post_init__(self) -> None:
        if self.updates is not None and self.updates < 1:
            raise UserError(f"--updates: {self.updates} given, allowed: a whole number from 1 up")


@dataclass(frozen=True)
class ExportOptions:
    """A policy for programs without Polyplay: it takes the likeliest action."""

    onnx: str | None = None
    """the file to write"""
    checkpoint: str | None = None
    """which: best, or a number (none: the newest)"""
