"""As many processes as cores measure the same part at the same time: frequency, caches and memory are shared then, as
they are in a run. `python -m polyplay.cli.bench.crowd` is one of them: a line of JSON in, a line of JSON out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polyplay.common.errors import UserError, WorkerLost


@dataclass(frozen=True)
class MeasureRequest:
    """What to measure: the parts of a system that is wired with these keywords (speed.keywords)."""

    system: str
    keywords: dict[str, Any]
    seconds: float  # for each part
    acting: float = 0.0  # lanes acted for at once; 0: not measured
    rows: tuple[int, int] | None = None  # [T, B] learnt from at once
    lanes: int = 0  # stepped at once; 0: not measured


Found = dict[str, float]  # µs of CPU per agent step: env, infer, learn, those that were asked for


def measure_parts(order: MeasureRequest) -> Found:
    """In this process. Raises UserError."""
    from polyplay.cli.bench import settings
    from polyplay.workers.profile import CostProfile, interpolate

    wired = settings.wire(order.system, order.keywords)
    precision = order.keywords.get("precision", "float32")
    parts = CostProfile(wired.envs, wired.system_of.policy, wired.spec, precision, wired.reuse)
    found: Found = {}
    if order.lanes:
        found["env"] = parts.env(order.seconds, order.lanes) / order.lanes
    if order.acting:
        found["infer"] = interpolate(order.acting, 1, lambda n: parts.infer(n, order.seconds)) / order.acting
    if order.rows:
        T, B = order.rows
        found["learn"] = parts.learn(T, B, order.seconds) / (T * B)
    return found


class MeasureProcesses:
    """The processes; use it as a context."""

    def __init__(self, copies: int):
        words = [sys.executable, "-m", "polyplay.cli.bench.crowd"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.children = [subprocess.Popen(words, **pipes) for _ in range(copies)]

    def __enter__(self) -> MeasureProcesses:
        return self

    def __exit__(self, *_: Any) -> None:
        for child in self.children:
            child.kill()
        for child in self.children:
            child.communicate()

    def measure(self, order: MeasureRequest) -> Found:
        """The mean over the processes. Raises UserError, WorkerLost."""
        line = json.dumps(asdict(order)) + "\n"
        try:
            for child in self.children:
                child.stdin.write(line)  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            raise WorkerLost("a process that measures parts has ended; is there memory for one per core?") from None
        return mean([self._hear(child) for child in self.children])

    def _hear(self, child: subprocess.Popen) -> Found:
        line = child.stdout.readline()  # type: ignore[union-attr]
        if not line:
            status = child.wait()
            raise WorkerLost(f"a process that measures parts ended with exit status {status}")
        answer = json.loads(line)
        if "mistake" in answer:
            raise UserError(answer["mistake"])
        return answer


def mean(found: list[Found]) -> Found:
    return {k: statistics.fmean(f[k] for f in found) for k in found[0]}


def answer_request(line: str) -> Mapping[str, Any]:
    asked = json.loads(line)
    rows = asked.pop("rows")
    try:
        return measure_parts(MeasureRequest(**asked, rows=tuple(rows) if rows else None))
    except UserError as e:
        return {"mistake": str(e)}


def main() -> None:
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        said.write(json.dumps(answer_request(line)) + "\n")
        said.flush()


if __name__ == "__main__":
    main()
