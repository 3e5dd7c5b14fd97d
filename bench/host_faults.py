"""Faults of runs on several machines, one at a time: what `python bench/hosts.py faults` and `soak` do."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, answer_challenge
from pathlib import Path

import numpy as np
import psutil
from common import RESULTS, Row, about, command_line, lines_about, publish, table
from raylets import CREW, MEMBER, SHM, Raylets, Run, listening

from polyplay.core.files import write_json

SMALL = "--env toy:catch --network mlp --steps 1000M --report-every 0.5 --checkpoint-every 2 --no-tensorboard"
REPLAYS = f"{SMALL} --lanes 4 --learning-starts 300"
BOARD = "--env game:tic_tac_toe --games 8 --simulations 8 --blocks 1 --filters 8 --batch 64 --ratio 2 --steps 1000M"
BOARD += " --capacity 4000 --learning-starts 200 --report-every 0.5 --checkpoint-every 2 --no-tensorboard"
SYSTEMS = {
    "impala": f"impala {SMALL} --hidden 32 --actors 3 --lanes 4 --batch 8",
    "apex": f"apex {REPLAYS} --actors 2 --batch 16 --unroll 10 --replay-workers 2 --capacity 4000 --place "
    "serve_replay=others",
    "gorila": f"gorila {REPLAYS} --learners 2 --capacity 5000 --place serve_parameters[0]=m-1,serve_parameters[1]=m-2",
    "a2c": f"a2c {SMALL} --replicas 3",
    "pbt": f"pbt --over a2c {SMALL} --lanes 4 --replicas 1 --vary learning_rate=log:1e-4:1e-2 --population 3 "
    "--at-once 3 --every 20k",
    "alphago_zero": f"alphago_zero {BOARD} --players 3",
}
SEEN, STALL, ENDS = 5.0, 30.0, 10.0  # seconds: until a loss is seen; without an update; that SIGINT takes, at most
HOLD, FULL = 20.0, 12.0  # seconds that a process is stopped, and a disk full
STATE = 1.5  # seconds from a fault to SIGINT, where that comes during it
LEARNING, WHOLE, ENDING, RESUMED = 120.0, 90.0, 60.0, 300.0  # seconds: until it learns; is whole again; has ended;
# has been resumed to its end
BACK = 5.0  # seconds that a machine takes to come back: until Ray knows of its loss
GONE = 8.0  # seconds that what is left of a run has to be gone
MB = 2**20

Undo = Callable[[], None]


def no_undo() -> None:
    """Nothing was left as it should not be."""


@dataclass(frozen=True)
class Fault:
    """What is done to a run. strike: what takes it back. ends: the run's exit status, where it can't go on. hold:
    seconds until it is taken back. seen: whether the run has to say something. breaks: the cluster too.
    """

    name: str
    system: str
    strike: Callable[[Run], Undo]
    ends: int | None = None
    hold: float = 0.0
    seen: bool = True
    breaks: bool = False
    asleep: bool = False  # nothing runs meanwhile
    local: bool = False  # the run starts its own cluster
    back: bool = False  # another raylet of the same name joins, once the loss is seen
    disk: bool = False  # the run's folder is a small disk of its own


def crew_of(run: Run, *titles: str) -> int:
    """The crew whose machine has a worker of this title; else the first one."""
    if titles:
        parents = psutil.Process(run.one(*titles)).parents()
        return next(p.pid for p in parents if p.cmdline()[0].startswith(CREW))
    return run.one(CREW)


def raylet_of(run: Run) -> int:
    """That of the machine with the first crew."""
    return psutil.Process(crew_of(run)).ppid()


def head_of(run: Run) -> int:
    """The gcs_server."""
    found = {pid: words for marked in run.everything() for pid, words in marked.processes().items()}
    return next(pid for pid, words in found.items() if "/gcs_server" in words.partition(" ")[0])


def kills(whom: Callable[[Run], int]) -> Callable[[Run], Undo]:
    """A strike: kill -9."""

    def strike(run: Run) -> Undo:
        os.kill(whom(run), signal.SIGKILL)
        return no_undo

    return strike


def stops(whom: Callable[[Run], int]) -> Callable[[Run], Undo]:
    """A strike: SIGSTOP, until SIGCONT."""

    def strike(run: Run) -> Undo:
        pid = whom(run)
        os.kill(pid, signal.SIGSTOP)

        def undo() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return undo

    return strike


def sleep(run: Run) -> Undo:
    """The machine that all of it is on."""
    for marked in run.everything():
        marked.send(signal.SIGSTOP)

    def undo() -> None:
        for marked in run.everything():
            marked.send(signal.SIGCONT)

    return undo


def fill_disk(run: Run) -> Undo:
    """Until there is no room."""
    ballast = run.run.parent / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return lambda: ballast.unlink(missing_ok=True)


def _silent(sock: socket.socket) -> None:
    time.sleep(HOLD)


def _garbage(sock: socket.socket) -> None:
    for _ in range(20):
        sock.sendall(os.urandom(4096))
        time.sleep(0.05)


def _wrong_key(sock: socket.socket) -> None:
    connection = Connection(sock.dup().detach())
    answer_challenge(connection, b"not this run's")


def strangers(says: Callable[[socket.socket], None]) -> Callable[[Run], Undo]:
    """A strike: they come to every port as soon as it is there, for a crew is killed and a new one will listen."""

    def strike(run: Run) -> Undo:
        over, known = threading.Event(), set[tuple[str, int]]()

        def visit(address: tuple[str, int]) -> None:
            host = "127.0.0.1" if address[0] in ("0.0.0.0", "::") else address[0]
            with contextlib.suppress(Exception), socket.create_connection((host, address[1]), 2.0) as sock:
                sock.settimeout(HOLD)
                says(sock)

        def look() -> None:
            while not over.is_set():
                for address in listening(run.all_processes()) - known:
                    known.add(address)
                    threading.Thread(target=visit, args=(address,), daemon=True).start()
                time.sleep(0.02)

        threading.Thread(target=look, daemon=True).start()
        os.kill(crew_of(run), signal.SIGKILL)
        return over.set

    return strike


FAULTS = [
    Fault("crew killed", "impala", kills(crew_of)),
    Fault("crew stopped", "impala", stops(crew_of), hold=HOLD),
    Fault("actor killed", "impala", kills(lambda run: run.one("polyplay: act "))),
    Fault("player killed", "alphago_zero", kills(lambda run: run.one("polyplay: self_play"))),
    Fault("memory killed", "apex", kills(lambda run: run.one("polyplay: serve_replay"))),
    Fault("memory's crew killed", "apex", kills(lambda run: crew_of(run, "polyplay: serve_replay"))),
    Fault("shard killed", "gorila", kills(lambda run: run.one("polyplay: serve_parameters")), ends=1),
    Fault("replica killed", "a2c", kills(lambda run: run.one("polyplay: replica 1", "polyplay: replica 2")), ends=1),
    Fault("replica's crew killed", "a2c", kills(crew_of), ends=1),
    Fault("member killed", "pbt", kills(lambda run: run.one(MEMBER))),
    Fault("raylet killed, another joins", "impala", kills(raylet_of), back=True),
    Fault("raylet stopped", "impala", stops(raylet_of), hold=HOLD, seen=False),
    Fault("silent strangers", "impala", strangers(_silent), hold=HOLD / 2),
    Fault("strangers with garbage", "impala", strangers(_garbage), hold=HOLD / 2),
    Fault("strangers with another key", "impala", strangers(_wrong_key), hold=HOLD / 2),
    Fault("disk full", "impala", fill_disk, hold=FULL, disk=True),
    Fault("all asleep", "impala", sleep, hold=60.0, seen=False, asleep=True),
    Fault("head killed", "impala", kills(head_of), ends=1, breaks=True),
    Fault("head stopped", "impala", stops(head_of), ends=1, breaks=True),
    Fault("local:3, crew killed", "impala", kills(crew_of), local=True),
    Fault("local:3, raylet killed", "impala", kills(raylet_of), local=True),
    Fault("local:3, head killed", "impala", kills(head_of), ends=1, local=True),
]
SURVIVABLE = [f for f in FAULTS if f.ends is None and not (f.local or f.disk or f.asleep or "stranger" in f.name)]


@dataclass
class Trial:
    """A fault once. interrupt: SIGINT comes while it lasts."""

    fault: Fault
    run: Run
    interrupt: bool
    hold: float
    wrong: list[str] = field(default_factory=list)
    row: Row = field(default_factory=dict)

    def go(self, strikes: int = 1) -> list[Row]:
        """Return the measurements of each strike, and what was wrong. strikes: times in a row, in one run."""
        self.row = {"fault": self.fault.name, "interrupt": self.interrupt}
        if not self.run.wait_for(lambda: self.run.updates() > 20 and self.run.saved() and self._has_all(), LEARNING):
            self.wrong.append("it did not begin to learn")
            return [self._result()]
        self.run.note_folders()
        found = list[Row]()
        for left in range(strikes - 1, -1, -1):
            self._strike()
            if left == 0 or self.run.main.poll() is not None:
                break
            found.append(self._result())
            self.row, self.wrong = {"fault": self.fault.name, "interrupt": self.interrupt}, []
        if self.fault.ends is None and not self.interrupt:
            self._interrupted_after()
        self._aftermath()
        return [*found, self._result()]

    def _strike(self) -> None:
        self._known = len(self.run.messages()), len(self.run.rows("hosts.jsonl"))
        self._restarts = self.run.newest("metrics.jsonl").get("restarts", 0)
        undo = self.fault.strike(self.run)
        self._struck = time.monotonic()
        try:
            if self.interrupt:
                self._interrupted(undo)
            elif self.fault.ends is not None:
                self._ended()
            else:
                self._survived(undo)
        finally:
            undo()

    def _has_all(self) -> bool:
        """Whether the reports count all that work elsewhere; how many."""
        self._workers = self.run.workers()
        return self._workers > 0

    def _check(self, good: bool, otherwise: str) -> None:
        if not good:
            self.wrong.append(otherwise)

    def _interrupted(self, undo: Undo) -> None:
        time.sleep(STATE)
        begun = time.monotonic()
        if self.run.main.poll() is None:
            self.run.main.send_signal(signal.SIGINT)
        if self.fault.asleep:
            undo()
        self._end(begun, (130, self.fault.ends))
        self.row["SIGINT during, s"] = self.row.pop("took")

    def _end(self, begun: float, allowed: Sequence[int | None], within: float = ENDS) -> None:
        try:
            status = self.run.main.wait(ENDING)
        except subprocess.TimeoutExpired:
            status = -999
            self.run.kill()
        self.row |= {"took": time.monotonic() - begun, "status": status}
        self._check(status in allowed, f"exit status {status}")
        self._check(self.row["took"] <= within, f"it took {self.row['took']:.0f} s to end")

    def _said(self) -> bool:
        """Whether it has told of the fault, in hosts.jsonl or in a message."""
        messages, events = self._known
        return len(self.run.messages()) > messages or len(self.run.rows("hosts.jsonl")) > events

    def _ended(self) -> None:
        if self.run.wait_for(self._said, ENDING):
            self.row["seen, s"] = time.monotonic() - self._struck
            self._check(self.row["seen, s"] <= SEEN, f"seen after {self.row['seen, s']:.1f} s")
        else:
            self.wrong.append("it said nothing")
        self._end(self._struck, (self.fault.ends,), ENDS + SEEN)
        self.row["ended, s"] = self.row.pop("took")
        summary = self.run.run / "summary.json"
        self._check(summary.exists() and '"exit_code": 1' in summary.read_text(), "no summary with status 1")

    def _survived(self, undo: Undo) -> None:
        """Watch until all work again and updates go on, and no less than the fault lasts."""
        self._changes, self._released, self._joined, known = [self._struck], 0.0, False, -1
        if self.fault.asleep:
            time.sleep(self.hold)
            undo()
        while self.run.main.poll() is None and not self._recovered():
            now, updates = time.monotonic(), self.run.updates()
            if updates != known:
                known, self._changes = updates, [*self._changes, now]
            if "seen, s" not in self.row and self._said():
                self.row["seen, s"] = now - self._struck
            if self.fault.back and not self._joined:
                self._join()
            if not self._released and now > self._struck + self.hold:
                self._released = now
                undo()
            if now > self._struck + self.hold + WHOLE:
                self.wrong.append(f"not whole again: {self.run.workers()} of {self._workers} workers")
                break
            time.sleep(0.05)
        self._check(self.run.main.poll() is None, f"it ended: {self.run.messages()[-1:]}")
        self._measured()

    def _interrupted_after(self) -> None:
        begun = time.monotonic()
        if self.run.main.poll() is None:
            self.run.main.send_signal(signal.SIGINT)
        self._end(begun, (130,))
        self.row["SIGINT after, s"] = self.row.pop("took")

    def _join(self) -> None:
        """Another raylet of the lost one's name, once that is known."""
        rows = self.run.rows("hosts.jsonl")
        lost = [row["machine"] for row in rows if row["event"] == "lost" and row["time"] < time.time() - BACK]
        if lost and self.run.cluster is not None:
            self._joined = True
            self.run.cluster.add(lost[-1])

    def _recovered(self) -> bool:
        """Whether as many work as before, machines that have come back too, and updates go on."""
        if not self._released or self.run.workers() < self._workers:
            return False
        new = [row["event"] for row in self.run.rows("hosts.jsonl")[self._known[1] :]]
        gone = self.fault.local and "raylet" in self.fault.name  # for good
        back = gone or new.count("lost") <= new.count("opened")
        back &= self._joined or not self.fault.back
        return back and len(self._changes) > 4 and self._changes[-1] > self._released + 1.0

    def _measured(self) -> None:
        self.row["whole, s"] = time.monotonic() - self._struck
        gaps = [after - before for before, after in pairwise(self._changes)]
        self.row["pause, s"] = max(gaps, default=0.0) - (self.hold if self.fault.asleep else 0.0)
        stall = STALL if not self.fault.disk else STALL + self.hold
        self._check(self.row["pause, s"] < stall, f"no update for {self.row['pause, s']:.0f} s")
        if self.fault.seen:
            seen = self.row.get("seen, s")
            self._check(seen is not None and seen <= SEEN + 1.0, f"seen after {seen} s")
        lost = [row for row in self.run.rows("hosts.jsonl")[self._known[1] :] if row["event"] == "lost"]
        again = [row for row in self.run.rows("hosts.jsonl")[self._known[1] :] if row.get("again")]
        self.row |= {"machines lost": len(lost), "opened again": len(again)}
        self.row["workers lost"] = self.run.newest("metrics.jsonl").get("restarts", 0) - self._restarts

    def _aftermath(self) -> None:
        """What is left, what was said, whether it can be resumed."""
        until = time.monotonic() + GONE
        while (left := self.run.left()) and time.monotonic() < until:
            time.sleep(0.1)
        self.row["left"] = len(left)
        self._check(not left, f"left: {left[:3]}")
        text = self.run.log.read_text(errors="replace")
        noise = [word for word in ("Traceback", "*** SIG", "Stack trace", "(raylet)", " C  ", " E ") if word in text]
        self._check(not noise, f"on the terminal: {noise}")
        counters, rows = self.run.saved(), self.run.rows("metrics.jsonl")
        if counters and rows:
            self.row["updates not saved"] = max(0, rows[-1]["updates"] - counters["updates"])
        self.row["resumed"] = self._resumes(counters.get("steps", 0))

    def _resumes(self, steps: int) -> int:
        words = [
            "resume",
            self.run.run,
            "--steps",
            int(steps) + (45_000 if self.fault.system == "pbt" else 3_000),
            "--hosts",
            "none",
        ]
        command = [sys.executable, "-m", "polyplay", *map(str, words)]
        try:
            done = subprocess.run(command, env=self.run.env, capture_output=True, timeout=RESUMED, text=True)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"resume did not end within {RESUMED:.0f} s")
            return 0
        said = (done.stdout + done.stderr).strip().splitlines()[-1:]
        self._check(done.returncode == 0, f"resume ended with {done.returncode}: {said}")
        return int(done.returncode == 0)

    def _result(self) -> Row:
        shown = self.run.messages()[self._known[0] :] if hasattr(self, "_known") else self.run.messages()[-5:]
        return {**self.row, "wrong": self.wrong, "said": shown[-12:]}


class Bench:
    """Trials, and the cluster that they share until one has broken it."""

    def __init__(self, keep: Path | None = None):
        self.cluster: Raylets | None = None
        self.keep = keep

    @contextlib.contextmanager
    def place(self, fault: Fault) -> Iterator[Path]:
        """A folder for a run: where the fault asks for that, a disk of 24 MB."""
        folder = Path(tempfile.mkdtemp(prefix="bench-run-", dir="/tmp"))
        disk = folder / "disk"
        try:
            if fault.disk:
                disk.mkdir()
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True)
            yield folder
        finally:
            if fault.disk:
                subprocess.run(["umount", "-l", disk], check=False)
            shutil.rmtree(folder, ignore_errors=True)

    def once(self, fault: Fault, interrupt: bool, hold: float | None = None, strikes: int = 1) -> list[Row]:
        """Return the results of one run. strikes: of the fault, in a row, without the limits on losses in an hour."""
        with self.place(fault) as folder:
            if not fault.local and (self.cluster is None or self.cluster.broken):
                self.close()
                self.cluster = Raylets()
            cluster = None if fault.local else self.cluster
            hosts = "local:3" if fault.local else f"ray:{cluster.address}"  # type: ignore[union-attr]
            words = ["train", *SYSTEMS[fault.system].split(), "--hosts", hosts]
            program = ("-m", "polyplay") if strikes == 1 else ("-c", SOAK)
            run = Run(words, folder, cluster, folder / "disk/run" if fault.disk else None, program)
            try:
                rows = Trial(fault, run, interrupt, fault.hold if hold is None else hold).go(strikes)
            finally:
                run.close()
                if cluster is not None:
                    cluster.broken = fault.breaks or len(cluster.raylets()) < 1 + len(cluster.names)
            return rows

    def close(self) -> None:
        """End the cluster."""
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row for each fault: medians, and the worst in brackets."""
    found = []
    for name in dict.fromkeys(row["fault"] for row in rows):
        mine = [row for row in rows if row["fault"] == name]
        row: Row = {"fault": name, "times": len(mine)}
        for what in ("seen, s", "pause, s", "whole, s", "ended, s", "SIGINT during, s", "SIGINT after, s"):
            values = [one[what] for one in mine if what in one]
            row[what] = f"{statistics.median(values):.1f} ({max(values):.1f})" if values else None
        for what in ("workers lost", "updates not saved"):
            values = [one[what] for one in mine if one.get(what) is not None]
            row[what] = max(values) if values else None
        row["status"] = ", ".join(sorted({str(one["status"]) for one in mine if "status" in one}))
        ended = [one["resumed"] for one in mine if "resumed" in one]
        row["resumed"] = f"{sum(ended)} of {len(ended)}"
        row["left"] = max((one.get("left", 0) for one in mine), default=0)
        found.append({**row, "wrong": sum(bool(one["wrong"]) for one in mine)})
    return found


NOTES = [
    "*seen*: seconds from the fault to the first message about it. *pause*: longest time without an update (a report",
    "comes every 0.5 s), without the time asleep, and with the time of a full disk. *whole*: seconds until the reports",
    "count all workers again. *ended*: seconds from the fault to the exit of a run that cannot continue. *SIGINT",
    "during*: seconds from SIGINT, 1.5 s after the fault, to the exit; if all is asleep, from the wake-up. *SIGINT",
    "after*: the same, once the run is whole. *workers lost* (restarts of workers), *updates not saved* and *left*",
    "(processes and files) are maxima. All others are medians, with the largest value in brackets. *resumed*: runs.",
    "With `--in-a-row` a run that survives a fault gets it several times, and SIGINT after the last one.",
]


def report(what: Row, rows: Sequence[Row]) -> list[str]:
    """The page."""
    text = ["# Faults of runs on several machines", "", *lines_about(what), "", *table(summary(rows)), "", *NOTES, ""]
    wrong = [
        f"- **{row['fault']}**{' (SIGINT)' * row['interrupt']}: {'; '.join(row['wrong'])}"
        for row in rows
        if row["wrong"]
    ]
    return text + (wrong or ["Nothing was wrong."])


def run_faults() -> int:
    """Each fault of runs on several machines, so many times: what is seen and lost, and how runs end.

        python bench/hosts.py faults --times 10 --only "crew killed;head killed"

    A small run on a cluster of three raylets here. Each time is two runs: one is left to recover, or to end, and one
    gets SIGINT while the fault lasts. --in-a-row: a run that survives a fault gets it so many times, without SIGINT.
    Needs root for the full disk, which is left out otherwise.
    """
    parser = command_line(run_faults.__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", default=None, help="names of faults, parted by semicolons")
    parser.add_argument("--sleep", type=float, default=60.0, help="seconds that all are asleep")
    parser.add_argument("--out", type=Path, default=RESULTS / "hosts_faults")
    parser.add_argument("--interrupts", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--in-a-row", action="store_true", help="strike a run that survives several times")
    asked = parser.parse_args()
    known = {f.name: f for f in FAULTS if not (f.disk and os.geteuid())}
    names = [*known] if asked.only is None else [name.strip() for name in asked.only.split(";")]
    if unknown := set(names) - set(known):
        raise SystemExit(f"--only: {sorted(unknown)} given, allowed: {[*known]}")
    what, rows, bench = about(), list[Row](), Bench()
    try:
        for fault, interrupt, strikes in _trials(asked, [known[name] for name in names]):
            found = bench.once(fault, interrupt, asked.sleep if fault.asleep else None, strikes)
            rows += found
            for row in found:
                print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            write_json(asked.out.with_suffix(".json"), {**what, "trials": rows})
    finally:
        bench.close()
    publish(asked.out, {**what, "faults": summary(rows), "trials": rows}, report(what, rows))
    return int(any(row["wrong"] for row in rows))


def _trials(asked: argparse.Namespace, faults: Sequence[Fault]) -> Iterator[tuple[Fault, bool, int]]:
    """Yield faults, whether SIGINT comes meanwhile, and the strikes in one run."""
    rows = [fault for fault in faults if asked.in_a_row and fault.ends is None and not fault.local]
    yield from ((fault, False, asked.times) for fault in rows)
    for _ in range(asked.times):
        for fault in faults:
            if fault not in rows:
                yield from ((fault, interrupt, 1) for interrupt in (False, True)[: 1 + asked.interrupts])


# A long run with a fault now and then


SOAK = "import sys; from polyplay.workers import crew; from polyplay.workers.hosts import fleet; "
SOAK += "crew.REPLACEMENTS, fleet.HOUR = 10**9, 4.0; from polyplay.cli.main import main; sys.exit(main(sys.argv[1:]))"
SAMPLE = 5.0  # seconds between two samples
GROWTH = {"RSS, MB": 5.0, "open files": 4.0, "threads": 4.0, "shared, MB": 5.0}  # in the second half: none
QUIET = 25.0  # seconds before the end without a new fault


class Soak:
    """A run on three raylets, and what is done to it."""

    def __init__(self, asked: argparse.Namespace, folder: Path, cluster: Raylets):
        words = ["train", *SYSTEMS[asked.system].split(), "--hosts", f"ray:{cluster.address}"]
        self.run = Run(words, folder, cluster, program=("-c", SOAK))
        self.asked, self.cluster, self.draws = asked, cluster, random.Random(asked.seed)
        self.faults, self.samples = list[Row](), list[Row]()
        self.undo: list[tuple[float, Undo]] = []
        self.changed, self.stall, self.updates = time.monotonic(), 0.0, 0

    def go(self) -> None:
        """Until the time is over, or the run is."""
        if not self.run.wait_for(lambda: self.run.updates() > 20, LEARNING):
            raise SystemExit(f"it did not begin to learn: {self.run.messages()[-3:]}")
        self.begun = self.changed = time.monotonic()
        fault, sample, end = self.begun + self.asked.every, self.begun, self.begun + 60 * self.asked.minutes
        while (now := time.monotonic()) < end and self.run.main.poll() is None:
            for at, undo in [one for one in self.undo if now >= one[0]]:
                undo()
                self.undo.remove((at, undo))
            if now >= sample:
                sample += SAMPLE
                self.samples.append(self._sample())
            if now >= fault and now < end - QUIET:
                fault += self.asked.every
                self._strike()
            self._look(now)
            time.sleep(0.2)

    def _look(self, now: float) -> None:
        if (updates := self.run.updates()) != self.updates:
            self.updates, self.changed = updates, now
        self.stall = max(self.stall, now - self.changed)

    def _strike(self) -> None:
        fault = self.draws.choice([f for f in SURVIVABLE if f.system == self.asked.system])
        row: Row = {"seconds": round(time.monotonic() - self.begun, 1), "fault": fault.name}
        try:
            if fault.back:
                self._lose_raylet()
            else:
                self.undo.append((time.monotonic() + fault.hold, fault.strike(self.run)))
        except (LookupError, psutil.Error, StopIteration, OSError) as e:  # nobody is there just now
            row["fault"] += f": {e!r}"
        self.faults.append(row)

    def _lose_raylet(self) -> None:
        name = self.draws.choice(self.cluster.names)
        os.kill(self.cluster.raylet(name), signal.SIGKILL)
        self.undo.append((time.monotonic() + 5.0, lambda: self.cluster.add(name)))

    def _sample(self) -> Row:
        main = psutil.Process(self.run.main.pid)
        shared = sum(path.stat().st_size for path in SHM.iterdir() if path.is_file()) / MB
        row: Row = {"seconds": round(time.monotonic() - self.begun, 1), "RSS, MB": main.memory_info().rss / MB}
        row |= {"open files": main.num_fds(), "threads": main.num_threads(), "shared, MB": shared}
        return row | {"files of it": len(list(SHM.iterdir())), "updates": self.run.updates()}


def growth(samples: Sequence[Row], what: str) -> float:
    """By the straight line through the second half of the samples: from its beginning to its end."""
    half = samples[len(samples) // 2 :]
    if len(half) < 3:
        return 0.0
    seconds, values = [row["seconds"] for row in half], [row[what] for row in half]
    return float(np.polyfit(seconds, values, 1)[0]) * (seconds[-1] - seconds[0])


def run_soak() -> int:
    """A long run on three raylets with a fault that it survives now and then: does it stall, does anything grow?

        python bench/hosts.py soak --minutes 120 --every 30
        python bench/hosts.py soak --minutes 120 --every 30 --system apex

    The limits on losses in an hour are lifted. The main process's memory, open files and threads, files in /dev/shm,
    and updates are looked at every 5 s.
    """
    parser = command_line(run_soak.__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two faults")
    parser.add_argument("--system", choices=("impala", "apex"), default="impala")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--out", type=Path, default=RESULTS / "hosts_soak")
    asked = parser.parse_args()
    what, cluster = about(), Raylets()
    folder = Path(tempfile.mkdtemp(prefix="bench-run-", dir="/tmp"))
    soak = Soak(asked, folder, cluster)
    try:
        soak.go()
        for _, undo in soak.undo:
            undo()
        begun = time.monotonic()
        soak.run.main.send_signal(signal.SIGINT)
        status = soak.run.main.wait(ENDING)
        found = _verdicts(soak, status, time.monotonic() - begun)
    finally:
        soak.run.close()
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    publish(
        asked.out, {**what, **found, "samples": soak.samples, "faults": soak.faults}, _soak_text(what, asked, found)
    )
    return int(bool(found["wrong"]))


def _verdicts(soak: Soak, status: int, took: float) -> Row:
    grown = {name: growth(soak.samples, name) for name in GROWTH}
    wrong = [f"{name} grew by {grown[name]:.1f}" for name, most in GROWTH.items() if grown[name] > most]
    wrong += [f"no update for {soak.stall:.0f} s"] * (soak.stall > STALL)
    wrong += [f"SIGINT: status {status} after {took:.0f} s"] * (status != 130 or took > ENDS)
    wrong += ["a traceback on the terminal"] * ("Traceback" in soak.run.log.read_text(errors="replace"))
    half = soak.samples[len(soak.samples) // 2 :]
    rows = [
        {
            "what": name,
            "first": soak.samples[0][name],
            "half": half[0][name],
            "last": half[-1][name],
            "grew": grown[name],
        }
        for name in GROWTH
    ]
    counts = {
        name: sum(row["fault"] == name for row in soak.faults) for name in sorted({r["fault"] for r in soak.faults})
    }
    ended: Row = {"status": status, "SIGINT, s": took, "longest pause, s": soak.stall, "updates": soak.updates}
    return {"rows": rows, "counts": counts, "ended": ended, "wrong": wrong, "said": soak.run.messages()[-30:]}


def _soak_text(what: Row, asked: argparse.Namespace, found: Row) -> list[str]:
    title = f"# {asked.system} on three raylets with a fault every {asked.every:g} s for {asked.minutes:g} minutes"
    text = [
        title,
        "",
        *lines_about(what),
        "",
        *table([{"fault": k, "times": v} for k, v in found["counts"].items()]),
        "",
    ]
    text += [*table([found["ended"]]), "", "*grew*: in the second half, by the straight line through its samples.", ""]
    return [*text, *table(found["rows"]), "", *([f"- **{w}**" for w in found["wrong"]] or ["No stall, no growth."])]
