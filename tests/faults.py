"""Faults on purpose, for tests and bench/: workers of a run are killed and stopped at random, from its main process.

    with injected("kill=act:30,hang=learn:60:5"):
        polyplay.train("impala", …)

    python -m tests.faults kill=act:30,hang=learn:60:5 train impala …     # a command with faults

kill=ROLE:SECONDS       kill -9 of a random worker of that role, every so many seconds on average
hang=ROLE:SECONDS:FOR   stopped for FOR seconds (SIGSTOP, then SIGCONT), likewise

ROLE `any`: of all roles; for kill, of those whose workers are replaced. `host`: a local machine's agent. Gaps are
exponential; gaps and victims follow from the run's seed. A worker that is not back from one fault gets no other, so
each recovery is its own. A worker whose loss ends the run is only killed once this run has written a checkpoint to go
on from. All of it happens between two looks at the crew. RUN/chaos.jsonl has a line for each event.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from statistics import median
from typing import Any

from polyplay.core.files import JsonLines
from polyplay.workers.crew import Crew, WorkerHandle
from polyplay.workers.role import Role

Row = dict[str, Any]
PACE = 0.02  # seconds between two looks at the crew
DEATH = 5.0  # seconds to wait for a killed process to be gone
DONE = {"kill": "killed", "hang": "hung"}
NUMBERS = {"kill": 1, "hang": 2}  # that a rule has
HOST = "host"


@dataclass(frozen=True)
class FaultRule:
    kind: str  # kill or hang
    role: str  # or any, or host
    period: float  # seconds between two, on average
    amount: float = 0.0  # hang: seconds

    def __str__(self) -> str:
        return f"{self.kind}={':'.join((self.role, *(f'{x:g}' for x in (self.period, self.amount) if x)))}"


def parse_faults(text: str) -> list[FaultRule]:
    """The rules of a text. Raises ValueError."""
    rules = []
    for part in text.split(","):
        kind, _, rest = part.strip().partition("=")
        role, *numbers = rest.split(":")
        values = [float(n) for n in numbers]
        if len(values) != NUMBERS.get(kind) or not role or not all(math.isfinite(v) and v > 0 for v in values):
            raise ValueError(f"{part!r} given, allowed: kill=ROLE:SECONDS, hang=ROLE:SECONDS:FOR")
        rules.append(FaultRule(kind, role, *values))
    return rules


@dataclass
class Fault:
    """One fault. Seconds are those of the clock."""

    number: int
    rule: FaultRule
    worker: WorkerHandle
    turns: float  # that its seat had taken, when it was killed or could go on
    began: float  # from then on its recovery counts
    until: float = 0.0  # when a stopped one may go on; 0: it may
    seconds: float | None = None  # until the seat's next turn


class FaultInjector:
    """Does to a running crew what the rules say. `tick` it between two looks; `release` before the crew is stopped."""

    def __init__(self, rules: Sequence[FaultRule], crew: Crew, directory: Path):
        self.crew, self.rules, self.begun = crew, rules, time.monotonic()
        self._draws = [random.Random(f"{crew.seed} {crew.resumes} {rule}") for rule in rules]
        self._at = [self._gap(i) for i in range(len(rules))]  # when each strikes next, in seconds from the beginning
        self.events, self.open = list[Fault](), list[Fault]()  # open: those that are not over
        self._file = JsonLines(directory / "chaos.jsonl")
        self._write({"rules": ",".join(map(str, rules)), "resumes": crew.resumes, "seed": crew.seed})

    def tick(self, saved: bool) -> None:
        """saved: there is a checkpoint of this run, so that workers may be killed whose loss ends it."""
        self._settle()
        now = time.monotonic() - self.begun
        for i, at in enumerate(self._at):
            if at <= now and (victims := self._victims(self.rules[i], saved)):  # one that finds nobody stays due
                chosen = self._draws[i].randrange(len(victims))
                self._at[i] = now + self._gap(i)
                self._strike(self.rules[i], victims[chosen])

    def _gap(self, i: int) -> float:
        return self._draws[i].expovariate(1.0 / self.rules[i].period)

    def release(self) -> None:
        """The run is ending: whoever is stopped goes on, nothing more is done to anybody."""
        self._at = [math.inf] * len(self._at)
        for event in self.open:
            event.until = min(event.until, time.monotonic())
        self._settle()

    # ------------------------------------------------------------------------------------------------ innards

    def _settle(self) -> None:
        for event in self.open:
            self._look_after(event)
        self.open = [event for event in self.open if event.seconds is None]

    def _victims(self, rule: FaultRule, saved: bool) -> list[list[WorkerHandle]]:
        """One of these is struck: a worker, or all that are on a machine."""
        busy = {(e.worker.ctx.role, e.worker.ctx.index) for e in self.open}
        roles = [r for r in self.crew.roles if rule.role == HOST or applies_to(rule, r)]
        ready = [r for r in roles if saved or rule.kind != "kill" or r.if_lost == "replace"]
        seats = [(r.name, self.crew._seats[r.name].workers) for r in ready]
        found = [w for name, workers in seats for i, w in sorted(workers.items()) if (name, i) not in busy]
        there = [w for w in found if not w.done and not connection.wait([w.runs.sentinel], 0)]
        if rule.role != HOST:
            return [[w] for w in there]
        working = [w for seats in self.crew._seats.values() for w in seats.workers.values()]
        machines = sorted({w.runs.machine for w in working if _machine(w)})
        groups = [[w for w in working if w.role in roles and _machine(w) == name] for name in machines]
        return [group for group in groups if all(w in there for w in group)]

    def _strike(self, rule: FaultRule, workers: list[WorkerHandle]) -> None:
        number = signal.SIGKILL if rule.kind == "kill" else signal.SIGSTOP
        if rule.role == HOST:
            os.kill(self._agent(workers[0]), number)
        for worker in workers:
            self._strike_one(rule, worker, number)

    def _strike_one(self, rule: FaultRule, worker: WorkerHandle, number: signal.Signals) -> None:
        now = time.monotonic()
        event = Fault(len(self.events) + 1, rule, worker, worker.ctx.counters.get("stamps"), now)
        self.events.append(event)
        self.open.append(event)
        if rule.role != HOST:
            _send(worker, number)
        if rule.kind == "kill":
            connection.wait([worker.runs.sentinel], DEATH)  # from now on it changes nothing, and is not yet replaced
            event.turns = worker.ctx.counters.get("stamps")
        else:
            event.until = now + rule.amount
        more = {"machine": worker.runs.machine} if rule.role == HOST else {}
        self._write({"event": event.number, "what": DONE[rule.kind], **_who(worker), "rule": str(rule), **more})

    def _look_after(self, event: Fault) -> None:
        """A stopped worker goes on when its time is up; a fault is over with the next turn at its seat."""
        worker, now = event.worker, time.monotonic()
        if event.until > now:
            return
        if event.until:
            event.until, event.began, event.turns = 0.0, now, worker.ctx.counters.get("stamps")
            self._go_on(event)
        row = worker.ctx.counters  # also of who takes its place
        if row.get("stamps") > event.turns or worker.done:
            event.seconds = max(0.0, min(now, row.get("stamp")) - event.began)
            seats = self.crew._seats[worker.role.name]
            back = {"event": event.number, "what": "back", **_who(worker), "seconds": round(event.seconds, 4)}
            self._write({**back, "incarnation": seats.past[worker.ctx.index].incarnation})

    def _go_on(self, event: Fault) -> None:
        worker = event.worker
        if any(w is worker for w in self.crew.workers()) and not connection.wait([worker.runs.sentinel], 0):
            if event.rule.role == HOST:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._agent(worker), signal.SIGCONT)
            else:
                _send(worker, signal.SIGCONT)

    def _agent(self, worker: WorkerHandle) -> int:
        """The process of a local machine's agent."""
        assert self.crew.fleet is not None
        return int(next(m.handle.about["pid"] for m in self.crew.fleet.opened if m.info.name == worker.runs.machine))

    def _write(self, row: Row) -> None:
        with contextlib.suppress(OSError):  # a full disk: the report still has the counts
            self._file.write({"seconds_run": round(time.monotonic() - self.begun, 3), **row})

    # ------------------------------------------------------------------------------------------------ reports

    def report(self) -> Row:
        """What was done and what became of it, also as the last line of the file, which is closed. ended_by: the fault
        that ended the run.
        """
        fatal = [e for e in self.open if e.rule.kind == "kill" and e.worker.role.if_lost == "fail"]
        ended = {**_who(fatal[-1].worker), "event": fatal[-1].number} if fatal else None
        roles = list(dict.fromkeys(e.worker.role.name for e in self.events))
        summed = {role: _summed([e for e in self.events if e.worker.role.name == role]) for role in roles}
        report = {"events": len(self.events), "roles": summed, "ended_by": ended}
        self._write({"what": "ended", **report})
        self._file.close()
        return report


def applies_to(rule: FaultRule, role: Role) -> bool:
    """Whether a rule takes workers of a role."""
    fatal = rule.kind == "kill" and rule.role == "any" and role.if_lost == "fail"
    return role.on == "process" and rule.role in (role.name, "any") and not fatal


@contextlib.contextmanager
def injected(text: str) -> Iterator[list[FaultInjector]]:
    """Runs in this process have these faults; their injectors. Injected losses do not end a run by their number."""
    from polyplay.runs import session as sessions
    from polyplay.workers import crew as crews

    rules, injectors = parse_faults(text), list[FaultInjector]()
    session, poll, close = sessions.Session, sessions.Session._poll, sessions.Session._close

    def injector(of: sessions.Session) -> FaultInjector:
        found = next((i for i in injectors if i.crew is of.crew), None)
        if found is None:
            injectors.append(found := FaultInjector(rules, of.crew, of.directory))
        return found

    def polled(self: sessions.Session) -> bool:
        done = poll(self)
        if not done:
            mine = injector(self)
            mine.release() if self.finishing_since else mine.tick(saved=self.checkpoints.last >= 1)
        return done

    def closed(self: sessions.Session) -> Row:
        mine = injector(self)
        mine.release()
        try:
            return close(self)
        finally:
            mine.report()

    kept = sessions.TICK, crews.REPLACEMENTS
    session._poll, session._close, sessions.TICK, crews.REPLACEMENTS = polled, closed, PACE, 10**9  # type: ignore[method-assign]
    try:
        yield injectors
    finally:
        session._poll, session._close = poll, close  # type: ignore[method-assign]
        sessions.TICK, crews.REPLACEMENTS = kept


def _summed(events: list[Fault]) -> Row:
    """One role's row of the report."""
    done = [e.rule.kind for e in events]
    back = {kind: [e.seconds for e in events if e.rule.kind == kind and e.seconds is not None] for kind in DONE}
    return {
        **{word: done.count(kind) for kind, word in DONE.items()},
        "replaced": len(back["kill"]),
        "recovery_seconds": percentiles(back["kill"]),
        "wakeup_seconds": percentiles(back["hang"]),
    }


def percentiles(seconds: Iterable[float]) -> Row | None:
    """Median, 95th percentile and greatest; None of nothing."""
    found = sorted(seconds)
    if not found:
        return None
    at = math.ceil(0.95 * len(found)) - 1
    return {"median": round(median(found), 4), "p95": round(found[at], 4), "max": round(found[-1], 4)}


def _machine(worker: WorkerHandle) -> str | None:
    """The other machine that it is on."""
    return worker.runs.machine


def _who(worker: WorkerHandle) -> Row:
    return {"role": worker.ctx.role, "index": worker.ctx.index}


def _send(worker: WorkerHandle, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.runs.signal(number)


def main() -> int:
    from polyplay.cli.main import main as polyplay

    with injected(sys.argv[1]):
        return polyplay(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
