"""Signals at every moment of a run's start: one each 50 ms from the command to the tenth update, SIGINT and SIGTERM, to
the main process and to its group, once and twice.

    python bench/signals.py                    # everything; again: what is missing
    python bench/signals.py --systems a2c --most 10 --part 1/2
    python bench/signals.py --random 200 --out bench/results/signals_random   # and kills, at random moments
    python bench/signals.py --report           # out of what there is

Wrong is: a traceback, another exit status than 130 and 143, processes, shared memory or temporary files that are left
when the command has returned, and a run that was signalled after its first update without a checkpoint that resumes.
After SIGKILL wrong is: a process that is left, a whole checkpoint that is gone, and one that doesn't resume.
Python itself starts before our first instruction; what it does with a signal then is counted apart ("interpreter").
Every case is a line of OUT.jsonl; what is written at the end: OUT.json, OUT.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chaos
from common import HERE, RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines

STEP = 0.05  # seconds between two moments
GAPS = (0.1, 1.3)  # seconds between the first and the second signal
RESUMED = 10  # of so many runs that have to resume one is resumed, for some updates
KILLED = 3  # of so many that were killed, one
LIMIT = 60.0  # seconds that a command may take to end
SYSTEMS = {
    "a2c": "--network mlp --env toy:catch --lanes 8",
    "impala": "--network mlp --env CartPole-v1 --actors 2 --lanes 4 --batch 8 --unroll 5",
    "ga3c": "--network mlp --env CartPole-v1 --agents 4 --predictors 1 --trainers 1 --schedule off",
    "apex": "--network mlp --env CartPole-v1 --actors 2 --replay-workers 1 --lanes 2 --unroll 5 --batch 16 "
    "--capacity 10k --learning-starts 200",
    "alphago_zero": "--env game:tic_tac_toe --players 2 --games 16 --simulations 8 --blocks 1 --filters 8 --batch 32 "
    "--capacity 4k --learning-starts 100 --learners 1 --evaluator torch --precision float32",
    "five": "--preset quick --env arena:moba+team=1+lanes=1+length=300 --core-size 16 --lanes 16 --unroll 20 "
    "--window 5 --batch 32 --capacity 64 --publish 1 --rate-every 0 --learners 2",
    "ftw": "--env toy:skirmish --network mlp --lanes 16 --games-per-matchup 10 --agents 2 "
    "--event-rewards kill=1 death=-0.5 --core-size 16 --unroll 20 --memory 0 "
    "--batch 4 --auxiliary reward --exploit-every 20",
}
SWEPT = ["a2c", "impala", "ga3c", "apex"]  # moment by moment
COMMON = "--tensorboard false --trace --report-every 0.5 --steps 1000M"
WAYS = list(itertools.product(("SIGINT", "SIGTERM"), ("main", "group"), ("once", "twice")))
MOMENTS = 400  # of a random case: so many of STEP
Case = tuple[str, str, str, str, int]  # system, signal, target, times, number of the moment


def main() -> int:
    asked = arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and what it starts
    if not asked.report:
        commit = about()["commit"]
        for number, case in enumerate(drawn(asked) if asked.random else missing(asked)):
            if asked.most is not None and number >= asked.most:
                break
            line = json.dumps({"commit": commit, **harm(case)})
            with asked.out.with_suffix(".jsonl").open("a") as file:
                file.write(line + "\n")
    rows = list(read_lines(asked.out.with_suffix(".jsonl")))
    commits = Counter(r.get("commit") for r in rows)
    report = {**about(), "commits": commits, "totals": count(rows), "by_system": per_system(rows)}
    report["wrong"] = [r for r in rows if r["wrong"]]
    publish(asked.out, report, text(report))
    return 1 if report["wrong"] else 0


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--systems", nargs="+", default=SWEPT, choices=list(SYSTEMS))
    parser.add_argument("--random", type=int, default=0, help="so many random cases instead, kills among them")
    parser.add_argument("--begin", type=int, default=0, help="the first moment's number")
    parser.add_argument("--most", type=int, default=None, help="cases, then end")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth case from the Ith on, for several at once")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "signals", help="without suffix")
    return parser.parse_args()


def missing(asked: argparse.Namespace) -> Iterator[Case]:
    """Cases without a line yet, coarse before fine, as long as their moment lies before the tenth update."""
    part, parts = map(int, asked.part.split("/"))
    for first in (0, 4, 2, 6, 1, 5, 3, 7):
        for number in itertools.count(asked.begin + first, 8):
            rows = list(read_lines(asked.out.with_suffix(".jsonl")))
            seen = {key(row) for row in rows}
            ended = {key(row)[:4] for row in rows if row["updates"] >= 10 and row["number"] < number}
            cases = [(system, *way, number) for system in asked.systems for way in WAYS]
            alive = [case for case in cases if case[:4] not in ended]
            if not alive:
                break
            yield from (case for case in alive if case not in seen and cases.index(case) % parts == part)


def drawn(asked: argparse.Namespace) -> Iterator[Case]:
    """Random cases without a line yet, the same in every call: a third of them kills."""
    generator, done = random.Random(0), {key(row) for row in read_lines(asked.out.with_suffix(".jsonl"))}
    part, parts = map(int, asked.part.split("/"))
    for number in range(asked.random):
        killed, moment = generator.random() < 1 / 3, generator.randrange(MOMENTS)
        name, to, times = generator.choice(WAYS)
        way = ("SIGKILL", to, "once") if killed else (name, to, times)
        case = (asked.systems[number % len(asked.systems)], *way, moment)
        if case not in done and number % parts == part:
            yield case


def key(row: Row) -> Case:
    return row["system"], row["signal"], row["to"], row["times"], row["number"]


# ------------------------------------------------------------------------------------------------------- one case


def harm(case: Case) -> Row:
    """Start a run, signal it, look at what it left."""
    system, name, to, times, number = case
    with tempfile.TemporaryDirectory(prefix="polyplay-signals-") as place:
        run, temporary = Path(place) / "run", Path(place) / "tmp"
        temporary.mkdir()
        words = ["train", system, *SYSTEMS[system].split(), *COMMON.split(), "--run", str(run)]
        words += ["--checkpoint-every", "1"] if name == "SIGKILL" else []
        shared, mark = set(os.listdir(chaos.SHM)), f"POLYPLAY_SWEEP={os.getpid()}-{time.monotonic_ns()}"
        with (Path(place) / "said").open("w+") as said:
            begun = time.monotonic()
            child = started(words, temporary, mark, said)
            time.sleep(max(0.0, begun + number * STEP - time.monotonic()))
            row: Row = {"system": system, "signal": name, "to": to, "times": times, "number": number}
            row |= {"at": round(time.monotonic() - begun, 3), **seen(child, run)}
            before = checkpoint.everything(run)[-1:]
            row["signals"] = send(child, name, to, times, number)
            row |= ended(child, mark, shared, temporary)
            said.seek(0)
            row |= judge_kill(row, said.read(), run, before) if name == "SIGKILL" else judge(row, said.read(), run)
        return row


def started(words: list[str], temporary: Path, mark: str, said: Any) -> subprocess.Popen:
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    more = dict([mark.split("=")], PYTHONPATH=path, TMPDIR=str(temporary))
    command = [sys.executable, "-m", "polyplay", *words]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env={**os.environ, **more}, start_new_session=True, **streams)


def seen(child: subprocess.Popen, run: Path) -> Row:
    """Where the run is as the signal is sent."""
    updates = sum(1 for _ in read_lines(run / "updates.jsonl"))
    caught = 0
    for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt"):
            caught = int(line.split()[1], 16)
    if not caught >> (signal.SIGTERM - 1) & 1:
        return {"phase": "interpreter", "updates": 0}
    return {"phase": "run" if updates else "begun" if run.exists() else "before", "updates": updates}


def send(child: subprocess.Popen, name: str, to: str, times: str, number: int) -> int:
    """How many signals were sent."""
    sent = 0
    for again in range(2 if times == "twice" else 1):
        if again:
            time.sleep(GAPS[number % 2])
        if child.poll() is None:
            (os.killpg if to == "group" else os.kill)(child.pid, getattr(signal, name))
            sent += 1
    return sent


def ended(child: subprocess.Popen, mark: str, shared: set[str], temporary: Path) -> Row:
    """How the command ended, and what was left just then."""
    asked = time.monotonic()
    try:
        status = child.wait(LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        status = None
    seconds = round(time.monotonic() - asked, 3)
    if status == -signal.SIGKILL:  # workers see the end of their parent, and end
        until = time.monotonic() + chaos.GONE
        while family(mark) and time.monotonic() < until:
            time.sleep(0.1)
    left = family(mark)
    names = {name for name in set(os.listdir(chaos.SHM)) - shared if not chaos._held(name)}
    files = [str(p.relative_to(temporary)) for p in temporary.rglob("*")]
    for pid in family(mark):
        os.kill(pid, signal.SIGKILL)
    return {"status": status, "seconds": seconds, "processes": left, "shared": sorted(names), "files": files}


def family(mark: str) -> dict[int, str]:
    """Living processes of a run, by what is in their environment."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return found


def judge(row: Row, said: str, run: Path) -> Row:
    """Everything that should not be so."""
    code = 128 + getattr(signal, row["signal"])
    early = row["phase"] == "interpreter"
    wrong = []
    if row["status"] not in ((code, 128 - code) if early else (code,)) and not (early and "init_import_site" in said):
        wrong.append("status")
    told = "Traceback" in said or "Exception ignored" in said
    if told and not early:
        wrong.append("traceback")
    if row["processes"] or row["shared"] or row["files"]:
        wrong.append("leftover")
    dropped = "again: ending without saving" in said
    resumes = None
    if row["updates"] and not dropped:
        resumes = resumable(run, row["number"] % RESUMED == 0)
        if not resumes:
            wrong.append("checkpoint")
    lines = said.strip().splitlines()
    kept = {"said": said[-3000:]} if wrong else {}
    return {"resumes": resumes, "traceback": told, "last": lines[-1] if lines else "", "wrong": wrong, **kept}


def judge_kill(row: Row, said: str, run: Path, before: list[Path]) -> Row:
    """Everything that should not be so after SIGKILL: what was whole before is whole, and resumes."""
    wrong = ["status"] if row["status"] != -signal.SIGKILL else []
    wrong += ["traceback"] if "Traceback" in said else []
    wrong += ["leftover"] if row["processes"] else []
    resumes = None
    if before:
        newest = max(map(checkpoint.update_of, checkpoint.everything(run)), default=-1)
        resumes = newest >= checkpoint.update_of(before[0]) and resumable(run, row["number"] % KILLED == 0, 0)
        wrong += [] if resumes else ["checkpoint"]
    kept = {"said": said[-3000:]} if wrong else {}
    return {"resumes": resumes, "traceback": "Traceback" in said, "last": "", "wrong": wrong, **kept}


def resumable(run: Path, really: bool, least: int = 1) -> bool:
    """Whether the newest checkpoint is whole and has so many updates; really: whether it is resumed."""
    try:
        counters = checkpoint.manifest(checkpoint.newest(run, lambda text: None))["counters"]
    except (UserError, OSError, ValueError, KeyError):
        return False
    if counters["updates"] < least or not really:
        return counters["updates"] >= least
    words = ["resume", str(run), "--steps", str(counters["steps"] + 500)]
    return subprocess.run([sys.executable, "-m", "polyplay", *words], capture_output=True, timeout=300).returncode == 0


# -------------------------------------------------------------------------------------------------------- report


def count(rows: list[Row]) -> Row:
    seconds = sorted(r["seconds"] for r in rows)
    return {
        "runs": len(rows),
        "signals": sum(r["signals"] for r in rows),
        "tracebacks": sum("traceback" in r["wrong"] for r in rows),
        "wrong statuses": sum("status" in r["wrong"] for r in rows),
        "lost checkpoints": sum("checkpoint" in r["wrong"] for r in rows),
        "leftovers": sum("leftover" in r["wrong"] for r in rows),
        "in the interpreter's start": sum(r["phase"] == "interpreter" for r in rows),
        "checkpoints due": sum(r["resumes"] is not None for r in rows),
        "median s to the end": seconds[len(seconds) // 2] if rows else None,
        "most s": seconds[-1] if rows else None,
    }


def per_system(rows: list[Row]) -> list[Row]:
    names = dict.fromkeys(r["system"] for r in rows)
    return [{"system": name, **count([r for r in rows if r["system"] == name])} for name in names]


def text(report: Row) -> list[str]:
    lines = ["# Signals at every moment of a run's start", "", *lines_about(report)]
    lines += [f"- runs by commit: {', '.join(f'{k} {v}' for k, v in report['commits'].items())}", ""]
    lines += [*table([*report["by_system"], {"system": "all", **report["totals"]}]), ""]
    wrong = [
        {k: r[k] for k in ("system", "signal", "to", "times", "at", "phase", "status", "last")} for r in report["wrong"]
    ]
    return lines + (table(wrong) if wrong else ["Nothing was wrong."])


if __name__ == "__main__":
    sys.exit(main())
