"""What the parts of a system cost, each alone: a step of the environment, its share of acting and of the updates.

As many processes as cores measure the same part at the same time: they share frequency, caches and memory, as in a run.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from polyplay.cli import bench
from polyplay.cli.bench_measure import spawn
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import Row
from polyplay.workers.sizing import CostProfile

Microseconds = dict[str, float]  # of CPU per agent step: env, infer, learn, those of the request


@dataclass(frozen=True)
class MeasureRequest:
    """What to measure: the parts of a system that is wired with these keywords (settings.keywords)."""

    system: str
    keywords: Row
    seconds: float  # for each part
    acting: float = 0.0  # lanes acted for at once; 0: not measured
    rows: tuple[int, int] | None = None  # [T, B] learnt from at once
    lanes: int = 0  # stepped at once; 0: not measured


def measure_parts(request: MeasureRequest) -> Microseconds:
    """In this process. Raises UserError."""
    wired = bench.wire(request.system, request.keywords)
    precision = request.keywords.get("precision", "float32")
    parts = CostProfile(wired.envs, wired.spec, precision, wired.reuse)
    found: Microseconds = {}
    if request.lanes:
        found["env"] = parts.env(request.seconds, request.lanes) / request.lanes
    if request.acting:
        found["infer"] = interpolate(request.acting, 1, lambda n: parts.infer(n, request.seconds)) / request.acting
    if request.rows:
        T, B = request.rows
        found["learn"] = parts.learn(T, B, request.seconds) / (T * B)
    return found


def interpolate(at: float, step: int, measured: Callable[[int], float]) -> float:
    """`measured` at a number that need not be a multiple of `step`: a straight line between its neighbours."""
    low = max(step, int(at // step) * step)
    here = measured(low)
    return here if at <= low else here + (at - low) / step * (measured(low + step) - here)


def rate_limit(cores: int, parts: Microseconds) -> float:
    """Agent steps/s if only the parts took time and never waited: cores/(E + I + L)."""
    return cores * 1e6 / (parts["env"] + parts["infer"] + parts["learn"])


class MeasureProcesses:
    """The processes; use it as a context."""

    def __init__(self, copies: int):
        started = [spawn(answer_requests) for _ in range(copies)]
        self.children, self.pipes = [child for child, _ in started], [pipe for _, pipe in started]

    def __enter__(self) -> MeasureProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.kill()
        for child in self.children:
            child.join()

    def measure(self, request: MeasureRequest) -> Microseconds:
        """The mean over the processes. Raises UserError, WorkerLost."""
        try:
            for pipe in self.pipes:
                pipe.send(request)
            answers = [pipe.recv() for pipe in self.pipes]
        except (OSError, EOFError):
            raise WorkerLost("a process that measures parts has ended; is there memory for one per core?") from None
        for answer in answers:
            if isinstance(answer, UserError):
                raise answer
        return mean(answers)


def mean(found: list[Microseconds]) -> Microseconds:
    return {k: statistics.fmean(f[k] for f in found) for k in found[0]}


def answer_requests(pipe: Connection) -> None:
    """What such a process does, until the other end closes."""
    os.dup2(2, 1)  # what libraries print is no part of the tables
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(measure_parts(request))
        except UserError as e:
            pipe.send(e)
