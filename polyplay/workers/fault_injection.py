"""Carries out the rules of `--chaos` on a running crew: kill, stop, let go on. chaos.jsonl and a report have results.

All of it happens in the main process between two looks at the crew. Workers know nothing of it: what is counted is read
from the counters and from shared memory. Imports no torch.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from polyplay.common.files import JsonLines, Row
from polyplay.workers.fault_rules import HOST, FaultRule, FaultSchedule, applies_to

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew, WorkerHandle

PACE = 0.02  # seconds between two looks at the crew of such a run
CYCLE = 0.4  # seconds in which a slowed worker runs once and rests once
DEATH = 5.0  # seconds to wait for a killed process to be gone
DONE = {"kill": "killed", "hang": "hung", "slow": "slowed"}


@dataclass
class Fault:
    """One fault. Seconds are those of the clock."""

    number: int
    rule: FaultRule
    worker: WorkerHandle
    turns: float  # that its seat had taken, when it was killed or could go on
    began: float  # from then on its recovery counts
    until: float = 0.0  # when a stopped one may go on; 0: it may
    lost: Row | None = None  # of a kill: rollouts and agent steps that were never handed over; None: not known
    seconds: float | None = None  # until the seat's next turn


class FaultInjector:
    """Does to a running crew what the rules say. `tick` it between two looks; `release` before the crew is stopped."""

    def __init__(self, rules: list[FaultRule], crew: Crew, directory: Path):
        self.crew, self.rules, self.begun = crew, rules, time.monotonic()
        self.schedule = FaultSchedule(rules, crew.seed, crew.resumes)
        self.events, self.open = list[Fault](), list[Fault]()  # open: those that are not over
        self.slowed = list[Fault]()
        self._stopped: set[object] = set()  # whom a slow rule has stopped
        self._file = JsonLines(directory / "chaos.jsonl")
        self._write({"rules": ",".join(map(str, rules)), "resumes": crew.resumes, "seed": crew.seed})

    def tick(self, saved: bool) -> None:
        """saved: there is a checkpoint of this run, so that workers may be killed whose loss ends it."""
        self._settle()
        now = time.monotonic() - self.begun
        for i in self.schedule.due(now):
            if victims := self._victims(self.rules[i], saved):
                self._strike(self.rules[i], victims[self.schedule.strike(i, len(victims), now)])
        for slow in self.slowed:
            self._brake(slow, resting=now % CYCLE > CYCLE / slow.rule.amount)

    def release(self) -> None:
        """The run is ending: whoever is stopped goes on, nothing more is done to anybody."""
        self.schedule.at = [math.inf] * len(self.schedule.at)
        for event in self.open:
            event.until = min(event.until, time.monotonic())
        self._settle()
        for slow in self.slowed:
            self._brake(slow, resting=False)
        self.slowed.clear()

    # ------------------------------------------------------------------------------------------------ innards

    def _settle(self) -> None:
        for event in self.open:
            self._follow(event)
        self.open = [event for event in self.open if event.seconds is None]

    def _victims(self, rule: FaultRule, saved: bool) -> list[list[WorkerHandle]]:
        """One of these is struck: a worker, or all that are on a machine."""
        busy = {(e.worker.ctx.role, e.worker.ctx.index) for e in self.open}
        roles = [r for r in self.crew.roles if rule.role == HOST or applies_to(rule, r)]
        ready = [r for r in roles if saved or rule.kind != "kill" or r.on_loss == "replace"]
        found = [w for r in ready for _, w in sorted(r.workers.items()) if (r.name, w.ctx.index) not in busy]
        there = [w for w in found if not w.done and not connection.wait([w.runs.sentinel], 0)]
        if rule.role != HOST:
            return [[w] for w in there]
        machines = sorted({w.runs.machine for r in self.crew.roles for w in r.workers.values() if _machine(w)})
        groups = [[w for r in roles for w in r.workers.values() if _machine(w) == name] for name in machines]
        return [group for group in groups if all(w in there for w in group)]

    def _strike(self, rule: FaultRule, workers: list[WorkerHandle]) -> None:
        if rule.role == HOST and self.crew.fleet is not None:
            if rule.kind == "kill":
                for worker in workers:
                    worker.spared = True
            self.crew.fleet.strike(workers[0].runs.machine, rule.amount)
        for worker in workers:
            self._strike_one(rule, worker)

    def _strike_one(self, rule: FaultRule, worker: WorkerHandle) -> None:
        now = time.monotonic()
        event = Fault(len(self.events) + 1, rule, worker, worker.ctx.counters.get("stamps"), now)
        self.events.append(event)
        (self.slowed if rule.kind == "slow" else self.open).append(event)
        more: Row = {}
        if rule.kind == "kill":
            worker.spared = True  # the limit is for what nobody asked for
            if rule.role != HOST:
                _send(worker, signal.SIGKILL)
            connection.wait([worker.runs.sentinel], DEATH)  # from now on it changes nothing, and is not yet replaced
            event.turns, event.lost = worker.ctx.counters.get("stamps"), unfinished_work(worker)
            more["lost"] = event.lost
        elif rule.kind == "hang":
            event.until = now + rule.amount
            if rule.role != HOST:
                _send(worker, signal.SIGSTOP)
        more |= {"machine": worker.runs.machine} if rule.role == HOST else {}
        self._write({"event": event.number, "what": DONE[rule.kind], **_who(worker), "rule": str(rule), **more})

    def _follow(self, event: Fault) -> None:
        """A stopped worker goes on when its time is up; a fault is over with the next turn at its seat."""
        worker, now = event.worker, time.monotonic()
        if event.until > now:
            return
        if event.until:
            event.until, event.began, event.turns = 0.0, now, worker.ctx.counters.get("stamps")
            if self._there(worker):
                _send(worker, signal.SIGCONT)
        row = worker.ctx.counters  # also of who takes its place
        if row.get("stamps") > event.turns or worker.done:
            event.seconds = max(0.0, min(now, row.get("stamp")) - event.began)
            back = {"event": event.number, "what": "back", **_who(worker), "seconds": round(event.seconds, 4)}
            self._write({**back, "incarnation": worker.role.past[worker.ctx.index].incarnation})

    def _brake(self, slow: Fault, resting: bool) -> None:
        """Stop whoever has the seat of a slowed worker now, or let it go on, unless it hangs anyway."""
        worker = slow.worker.role.workers.get(slow.worker.ctx.index)
        hangs = any(e.worker is worker and e.until for e in self.open)
        if worker is None or worker.done or hangs or not self._there(worker):
            return
        if resting != (worker.runs in self._stopped):
            _send(worker, signal.SIGSTOP if resting else signal.SIGCONT)
            self._stopped ^= {worker.runs}

    def _there(self, worker: WorkerHandle) -> bool:
        seats = worker.role.workers, worker.role.leaving
        held = any(s.get(worker.ctx.index) is worker for s in seats)
        return held and not connection.wait([worker.runs.sentinel], 0)

    def _write(self, row: Row) -> None:
        with contextlib.suppress(OSError):  # a full disk: the summary still has the counts
            self._file.write({"seconds_run": round(time.monotonic() - self.begun, 3), **row})

    # ------------------------------------------------------------------------------------------------ reports

    def report(self, behind: int | None = None) -> Row:
        """What was done and what became of it; closes the file. behind: agent steps since the newest checkpoint, where
        the run failed: lost, if one of these faults ended it.
        """
        self._file.close()
        fatal = [e for e in self.open if e.rule.kind == "kill" and e.worker.role.on_loss == "fail"]
        ended = {**_who(fatal[-1].worker), "event": fatal[-1].number, "steps_lost": behind} if fatal else None
        roles = list(dict.fromkeys(e.worker.role.name for e in self.events))
        return {
            "rules": ",".join(map(str, self.rules)),
            "seconds": round(time.monotonic() - self.begun, 3),
            "events": len(self.events),
            "roles": {role: _summed([e for e in self.events if e.worker.role.name == role]) for role in roles},
            "ended_by": ended,
        }


def unfinished_work(worker: WorkerHandle) -> Row | None:
    """What a dead worker had not handed over, where what its role writes into (`out`) knows."""
    unfinished = getattr(worker.role.out, "unfinished", None)
    if unfinished is None:
        return None
    (rollouts, steps), counters = unfinished(worker.ctx.index), worker.ctx.counters
    return {"rollouts": rollouts + int(counters.get("open_games")), "steps": steps + int(counters.get("open_steps"))}


def _summed(events: list[Fault]) -> Row:
    """One role's row of the report."""
    done = [e.rule.kind for e in events]
    back = {kind: [e.seconds for e in events if e.rule.kind == kind and e.seconds is not None] for kind in DONE}
    known = [e.lost for e in events if e.lost is not None]
    return {
        **{word: done.count(kind) for kind, word in DONE.items()},
        "replaced": len(back["kill"]),
        "recovery_seconds": percentiles(back["kill"]),
        "wakeup_seconds": percentiles(back["hang"]),
        "rollouts_lost": sum(x["rollouts"] for x in known) if known else None,
        "steps_lost": sum(x["steps"] for x in known) if known else None,
        "losses_unknown": done.count("kill") - len(known),
    }


def percentiles(seconds: Iterable[float]) -> Row | None:
    """Median, 95th percentile and greatest; None of nothing."""
    found = sorted(seconds)
    if not found:
        return None
    at = math.ceil(0.95 * len(found)) - 1
    return {"median": round(median(found), 4), "p95": round(found[at], 4), "max": round(found[-1], 4)}


def describe_faults(report: Row) -> list[str]:
    """The report in lines for people."""
    lines = [f"chaos {report['rules']}: {report['events']} faults in {report['seconds']:.0f} s"]
    for name, row in report["roles"].items():
        did = ", ".join(f"{row[word]} {word}" for word in DONE.values() if row[word])
        lines.append(f"chaos {name}: {did}{_outcome(row)}")
    ended = report["ended_by"]
    if ended:
        steps = "the agent steps since then" if ended["steps_lost"] is None else f"{ended['steps_lost']:,} agent steps"
        lines.append(f"chaos ended the run with {ended['role']} {ended['index']}: {steps} are to be done again")
    return lines


def _outcome(row: Row) -> str:
    text = f"; {row['replaced']} replaced" if row["replaced"] else ""
    for key, what in (("recovery_seconds", "back at work"), ("wakeup_seconds", "at work once they may go on")):
        s = row[key]
        text += f", {what} after {s['median']:.2f} s (p95 {s['p95']:.2f}, most {s['max']:.2f})" if s else ""
    parts = []
    if row["steps_lost"] is not None:
        parts.append(f"{row['steps_lost']:,} agent steps of {row['rollouts_lost']} unfinished rollouts not learnt")
    if row["losses_unknown"]:
        parts.append(f"what {row['losses_unknown']} of them had open is not known")
    return f"{text}; {', '.join(parts)}" if parts else text


def _machine(worker: WorkerHandle) -> str | None:
    """The other machine that it is on."""
    return getattr(worker.runs, "machine", None)


def _who(worker: WorkerHandle) -> Row:
    return {"role": worker.ctx.role, "index": worker.ctx.index}


def _send(worker: WorkerHandle, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.runs.signal(number)
