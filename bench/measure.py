"""What a program does, and what its parts allow: rates, memory, CPU, limits.

How fast a run could be if only its parts took time: CPU time of each, measured with the library's own functions.

    python bench/measure.py RUN --infer 3.2 --train 40

RUN is a run's directory: game, network, loss and optimizer are its own. Per agent step: one step of one environment
(frames prepared, without the process around it); acting for n lanes at once, divided by n; learning from m rows
(unroll, loss, backward, norm of the gradient, optimizer), divided by m. The limit is cores / their sum: no queue, no
copy between processes, no bootstrap value, perfect overlap. An n that is no whole number and an m that is no multiple
of 5 lie between two that are measured. CPU seconds, once on one core while the others rest, and once on all at a time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import math
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from common import ROOT, Row, command_line, table
from contests import PONG, Contender

from polyplay import systems
from polyplay.acting.actor import POLICY_INPUTS
from polyplay.buffers.replay import Replay
from polyplay.cli.bench import LITTLE
from polyplay.core import tree
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import read_lines
from polyplay.core.machine import cores
from polyplay.envs.pool import Envs
from polyplay.learning.learner import LearnerSpec
from polyplay.nets.actor_critic import ActorCritic
from polyplay.nets.layers import Tape, join_tapes
from polyplay.runs import options
from polyplay.runs.crew_metrics import Throttled, cpu_seconds, memory_mb, process_tree
from polyplay.runs.load import crew_of, load_run
from polyplay.workers.crew import Crew
from polyplay.workers.role import Role
from polyplay.workers.row_costs import CostProfile, cpu_cost

# Rate, memory and CPU of a program, all its processes together, that writes its progress as JSON lines


SLACK = 180.0  # seconds for start and end, besides warm-up and window: 64 processes that load torch take their time


SHARE = 0.02  # of the time that sampling memory may take: with 60 processes it is not free


class ProcessWatch:
    """CPU and memory of a process and all below it."""

    def __init__(self, pid: int):
        self.root = psutil.Process(pid)
        self.peak_mb, self.processes = 0.0, 0
        self.sample_memory = Throttled(self._sample_memory, SHARE)

    def _sample_memory(self) -> float:
        """Sum of PSS: pages that several processes share count once. The greatest so far."""
        self.peak_mb = max(self.peak_mb, memory_mb(self.root))
        self.processes = max(self.processes, len(process_tree(self.root)))
        return self.peak_mb

    def cpu(self) -> tuple[float, float, float]:
        """(now, CPU seconds of the tree, CPU seconds of the machine that were not idle), all totals."""
        own, t = cpu_seconds(self.root, ended=False), psutil.cpu_times()
        return time.monotonic(), own, sum(t) - t.idle - t.iowait - t.guest - t.guest_nice


def started_at(rows: Sequence[Row]) -> float:
    """When the first steps were reported: 16 environments may take their time to come up."""
    return next((row["wall_seconds"] for row in rows if row["steps"] > 0), math.inf)


def find_window(rows: Sequence[Row], warm: float, seconds: float, turn: int = 1) -> list[Row]:
    """Reports from the first one at or after `warm` seconds to the first one `seconds` later, at most half a second
    less, both where the counter had just moved: where rollouts are long it jumps. None of them: there is no window yet.

    turn: updates that follow one another without a step, as PPO's on a rollout do. Both reports are then the first
    after such a turn: steps come while acting only, so a window that ends within one counts too many or too few.
    """
    key, of = ("updates", turn) if turn > 1 else ("steps", 1)
    moved = [b["wall_seconds"] for a, b in pairwise(rows) if b[key] // of > a[key] // of]
    begin = next((at for at in moved if at >= warm), math.inf)
    end = next((at for at in moved if at >= begin + seconds - 0.5 and at > begin), -math.inf)
    return [row for row in rows if begin <= row["wall_seconds"] <= end]


def watched_rate(rows: list[Row], warm: float, window: float, turn: int) -> Row | None:
    """The rate of a window (find_window), of lines with what ProcessWatch.cpu() was when they came. None: there
    is no such window yet.
    """
    if not (lines := find_window(rows, warm, window, turn)):
        return None
    (now, own, busy), wall, steps = (
        [b - a for a, b in zip(lines[0]["times"], lines[-1]["times"], strict=True)],
        *(lines[-1][name] - lines[0][name] for name in ("wall_seconds", "steps")),
    )
    return {
        "sps": steps / wall,
        "window_s": wall,
        "own_cores": own / now,
        "others_cores": max(0.0, busy - own) / now,
        "core_ms_per_step": 1000.0 * own / now * wall / steps if steps else None,
        "lines": [{k: v for k, v in line.items() if k != "times"} for line in lines],
    }


def versions(python: str, packages: Sequence[str]) -> str:
    """Of packages in another environment. Raises OSError, CalledProcessError."""
    each = f"f'{{n}} {{m.version(n)}}' for n in {list(packages)}"
    code = f"import importlib.metadata as m; print(', '.join({each}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def measure(
    words: Sequence[str], log: Path, warm: float, window: float, cwd: Path, stop: bool = False, turn: int = 1
) -> dict[str, Any]:
    """Run `words` until it ends by itself, or, with `stop`, until it has been seen long enough. `log` grows by lines
    with wall_seconds and steps.

    The rate is taken from the first line with new steps at or after `warm` seconds (with `stop`: after the first step)
    to the first such one `window` seconds later; "lines" are these two and those between. Lines that count updates, and
    none so far, are left out: what plays before it learns is faster. Raises RuntimeError with what
    the program said when it gave no such lines. turn: see rate().
    """
    marks = list[Row]()
    limit = time.monotonic() + warm + window + SLACK
    with tempfile.TemporaryFile("w+") as spoken:
        child = subprocess.Popen(list(words), stdout=spoken, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True)
        try:
            watch = ProcessWatch(child.pid)
            while child.poll() is None and time.monotonic() < limit:
                watch.sample_memory()
                rows = [row for row in read_lines(log) if row.get("updates", 1)]
                marks += [{**row, "times": watch.cpu()} for row in rows[len(marks) :]]
                if stop and watched_rate(marks, warm + started_at(marks), window, turn) is not None:
                    break
                time.sleep(0.1)
        finally:
            end(child)
        spoken.seek(0)
        text = spoken.read()
    answer = watched_rate(marks, warm + (started_at(marks) if stop else 0.0), window, turn)
    if answer is None:
        what = f"no window of {window:g} s, exit status {child.returncode}"
        raise RuntimeError(f"{what}\n{' '.join(words)}\n{text[-3000:]}")
    return {**answer, "pss_mb": watch.peak_mb, "processes": watch.processes, "exit": child.returncode}


def end(child: subprocess.Popen) -> None:
    """It should have ended; if not, it and all that it started do now, even if we are told twice to stop."""
    try:
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# A system as it is going to be run, and the sizes of its wiring


@dataclass(frozen=True)
class WiredSystem:
    lanes: int  # of a pool that act at once (1 where each goes at its own pace)
    T: int  # rows of a trajectory that is learnt from,
    B: int  # and how many at once
    turn: int  # updates that follow one another without a step: PPO's, where the same worker acts and learns
    reuse: bool  # learning takes from acting what that computed
    envs: Envs
    spec: LearnerSpec
    replay: Replay | None  # that the learner draws from


def wire(system: str, given: Row) -> WiredSystem:
    """Wire a system with these keywords, and read its sizes. Raises UserError."""
    page = systems.load(system)
    settings, chosen, _ = options.resolve(page, **given)
    crew = crew_of(chosen)
    page.build(settings, crew)
    acts, learner = next(r for r in crew.roles if r.acts), learner_of(crew)
    table: Any = acts.edges().get("agents")
    envs = table.envs if table else acts.envs
    assert envs is not None
    assert learner.spec is not None
    assert learner.source is not None
    T, B = (learner.source.steps, learner.envs.lanes) if learner.envs else learner.source.shape
    lanes = 1 if table else envs.lanes // envs.groups
    turn, replay = updates_per_turn(crew), learner.source.replay
    return WiredSystem(lanes, T, B, turn, reuses(crew), envs, learner.spec, replay)


def updates_per_turn(crew: Crew) -> int:
    """Updates that follow one another while nobody acts; 1 where others act, or where they aren't always as many."""
    role = learner_of(crew)
    passes = role.spec.passes
    return passes.updates if passes and role.envs and not role.asynchronous and not passes.target_kl else 1


def reuses(crew: Crew) -> bool:
    """Whether those who act learn too, in the same rows with the same weights, and may keep what they computed."""
    role = learner_of(crew)
    return crew.reuse and role.envs is not None and bool(role.spec and role.spec.loss.recalls)


def learner_of(crew: Crew) -> Role:
    """Of several roles that learn the first."""
    return next(r for r in crew.roles if r.spec is not None)


# What the parts of a system cost, each alone: a step of the environment, its share of acting and of the updates


Microseconds = dict[str, float]  # of CPU per agent step: env, infer, learn, those of the request


class Profile(CostProfile):
    """reuse: what was computed while acting is not computed again while learning (nets.layers.Tape)."""

    def __init__(self, envs: Envs, spec: LearnerSpec, precision: str, reuse: bool):
        super().__init__(envs, spec, precision)
        recalls = isinstance(self.policy, ActorCritic) and self.policy.recalls
        self.reuse = reuse and spec.loss.recalls and spec.passes is None and recalls

    def learn(self, T: int, B: int, seconds: float) -> float:
        if not self.reuse:
            return super().learn(T, B, seconds)
        batch, first = tree.map(torch.from_numpy, self._rows((T + 1, B))), self.policy.initial(B)
        tapes: list[Tape] = [[] for _ in range(T)]
        state = first
        with torch.no_grad():
            for t, tape in enumerate(tapes):
                row = {k: tree.at(batch[k], t) for k in POLICY_INPUTS if k in batch}
                _, state = cast("ActorCritic", self.policy).act(row, state, tape)
        tape = join_tapes(tapes)

        def update() -> None:
            deque(self.apply_gradient(self.run(batch, first, 0, tape)), 0)

        return cpu_cost(update, seconds, self.clock)


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
    wired = wire(request.system, request.keywords)
    precision = request.keywords.get("precision", "float32")
    parts = Profile(wired.envs, wired.spec, precision, wired.reuse)
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
    """`measured` at a number that need not be a multiple of `step`: a straight line between its neighbors."""
    low = max(step, int(at // step) * step)
    here = measured(low)
    return here if at <= low else here + (at - low) / step * (measured(low + step) - here)


def rate_limit(cores: int, parts: Microseconds) -> float:
    """Agent steps/s if only the parts took time and never waited: cores/(E + I + L)."""
    return cores * 1e6 / (parts["env"] + parts["infer"] + parts["learn"])


def spawn(work: Callable[[Connection], None]) -> tuple[BaseProcess, Connection]:
    """A new process that does work(pipe), and our end of the pipe; its end closes with it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs,))
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")  # it need not import this one
    try:
        child.start()
    finally:
        sys.modules["__main__"] = main
    theirs.close()
    return child, ours


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


# What the parts of one of ours allow in a contest, measured before and after each of its windows


def keywords(fixed: str, setting: str) -> dict[str, Any]:
    """'lanes=64 sync=chunked' as polyplay.train takes it."""
    pairs = (word.split("=", 1) for word in f"{fixed} {setting}".split())
    return {"env": PONG, **{k: _value(v) for k, v in pairs}, **LITTLE}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def turn_of(who: Contender, setting: str) -> int:
    """Of one of ours, see WiredSystem.turn; what peers log are whole rounds. 1 for what cannot be: its run says why."""
    with contextlib.suppress(UserError):
        return wire(who.program, keywords(who.fixed, setting)).turn if who.ours else 1
    return 1


def around(*sides: Row) -> Row:
    """What was measured before and after a window, as one row; the mean of the limits."""
    there = [s for s in sides if s]
    if not there:
        return {}
    parts = {k: statistics.fmean(s["parts_us"][k] for s in there) for k in there[0]["parts_us"]}
    found = [s["limit"] for s in there]
    return {"limit": statistics.fmean(found), "limits": found, "parts_us": parts}


class Limits:
    """Use it as a context: its processes wait for orders."""

    def __init__(self, seconds: float):
        """seconds: for each part."""
        self.seconds, self.crowd = seconds, MeasureProcesses(cores())

    def __enter__(self) -> Limits:
        self.crowd.__enter__()
        return self

    def __exit__(self, *gone: Any) -> None:
        self.crowd.__exit__(*gone)

    def row(self, who: Contender, setting: str) -> Row:
        """limit in agent steps/s, and the µs that it is made of; {} and a line where that fails."""
        given = keywords(who.fixed, setting)
        try:
            wired = wire(who.program, given)
            sizes: dict[str, Any] = {"acting": float(wired.lanes), "rows": (wired.T, wired.B), "lanes": wired.lanes}
            del wired
            found = self.crowd.measure(MeasureRequest(who.program, given, self.seconds, **sizes))
        except (UserError, WorkerLost) as e:
            print(f"compare: no limit of {who.name}: {e}", file=sys.stderr)
            return {}
        return {"limit": rate_limit(cores(), found), "parts_us": found}


CHUNK = 5  # rows of an unroll


def parts_of(run: Path) -> CostProfile:
    """Those of a run's system."""
    page, settings, chosen, _ = load_run(run)
    crew = crew_of(chosen)
    system = page.build(settings, crew)
    spec: Any = next(r.spec for r in crew.roles if r.spec)
    return Profile(system.envs, spec, chosen.precision, reuses(crew))


def learn(parts: CostProfile, m: int, seconds: float) -> float:
    """µs of an update from m rows, in unrolls of 5 rows (fewer are one unroll)."""
    return parts.learn(*((CHUNK, m // CHUNK) if m % CHUNK == 0 else (m, 1)), seconds)


def alone(run: Path, n: float, m: float, seconds: float) -> Row:
    """Per agent step, CPU µs in this process."""
    parts = parts_of(run)
    env = parts.env(seconds)
    infer = interpolate(n, 1, lambda k: parts.infer(k, seconds)) / n
    train = interpolate(m, CHUNK, lambda k: learn(parts, k, seconds)) / m
    return {"env": env, "infer": infer, "train": train}


def together(run: Path, n: float, m: float, seconds: float, copies: int) -> Row:
    """The mean of several processes that measure at the same time. Raises CalledProcessError."""
    words = [sys.executable, str(Path(__file__).resolve()), str(run), "--json", "--seconds", str(seconds)]
    words += ["--infer", str(n), "--train", str(m)]
    children = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(copies)]
    try:
        texts = [child.communicate()[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    for child in children:
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, words)
    found = [json.loads(text.splitlines()[-1]) for text in texts]
    return {k: statistics.fmean(f[k] for f in found) for k in found[0]}


def limits(run: Path, n: float, m: float, seconds: float = 1.5) -> Row:
    """Parts and limits of a run, in agent steps/s: {"infer_batch", "train_rows", "one": …, "all": …}."""
    answer: Row = {"infer_batch": n, "train_rows": m, "cores": cores()}
    for name, copies in (("one", 1), ("all", cores())):
        us = together(run, n, m, seconds, copies)
        answer[name] = {**us, "limit": cores() * 1e6 / sum(us.values())}
    return answer


def shown(found: Sequence[tuple[str, Row]]) -> list[str]:
    """A table: CPU µs per agent step, and the limit."""
    rows = [
        {
            "system": who,
            "acting batch": f["infer_batch"],
            "rows learnt from": f["train_rows"],
            "cores busy": {"one": "1", "all": str(f["cores"])}[name],
            **{f"{part}, µs": f[name][part] for part in ("env", "infer", "train")},
            "limit, steps/s": f[name]["limit"],
        }
        for who, f in found
        for name in ("one", "all")
    ]
    return table(rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--infer", type=float, default=1.0, metavar="N", help="lanes acted for at once")
    parser.add_argument("--train", type=float, default=5.0, metavar="M", help="rows learnt from at once")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each part")
    parser.add_argument("--json", action="store_true", help="this process alone, as a line of JSON")
    asked = parser.parse_args()
    if asked.json:
        print(json.dumps(alone(asked.run, asked.infer, asked.train, asked.seconds)))
    else:
        print("\n".join(shown([(asked.run.name, limits(asked.run, asked.infer, asked.train, asked.seconds))])))


if __name__ == "__main__":
    main()
