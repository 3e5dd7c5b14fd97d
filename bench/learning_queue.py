"""Learning runs on idle cores: a list of runs, one after the other, at the lowest priority.

    python bench/learning_queue.py start     # works in the background until the list is done
    python bench/learning_queue.py status    # which runs are finished, running, waiting, or failed, and why
    python bench/learning_queue.py stop      # at once, with a checkpoint: before any timing, and when work ends
    python bench/learning_queue.py table     # write docs/results/learning.md from the results

The list is bench/learning_runs.toml; it may grow while the queue works. Each run is a normal run directory in --runs,
outside the checkout, so that another checkout continues it. A run that was cut continues from its newest checkpoint. A
finished run is evaluated, and its result is bench/results/learning/NAME.json: settings, command, commit, machine,
scores and a curve. A run that fails is a line in `status`; the next `start` tries it again. A full disk pauses the
queue.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil
from common import HERE, RESULTS, ROOT, Row, command, command_line, commit, table, thin, whole
from common import table as markdown

from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines, read_object, write_bytes, write_json
from polyplay.core.machine import now
from polyplay.runs.crew_metrics import cpu_seconds, process_tree

# What a finished run of the learning queue says, and the page of all of them beside published curves


PAGE = ROOT / "docs" / "results" / "learning.md"
POINTS = 300  # of a curve
GAMES = 100  # the last, of which a mean is taken
PUBLISHED = HERE / "published_curves.csv"
KINDS = {
    "ppo": ("baselines ppo2", "SB3 ppo"),
    "a2c": ("baselines a2c", "SB3 a2c"),
    "dqn": ("baselines deepq", "SB3 dqn"),
}
BARS = "▁▂▃▄▅▆▇█"


def result_of(settings: Row, group: str, run: Path, core_seconds: float, evaluation: Row) -> Row:
    """A finished run as one small document."""
    config = read_object(run / "config.json")
    games = whole(read_lines(run / "episodes.jsonl", "frames", "episodic_return"))
    lines = whole(read_lines(run / "metrics.jsonl", "frames", "steps"))
    reports = [r for r in lines if r.get("episodic_return_mean") is not None]
    last = [game["episodic_return"] for game in games[-GAMES:]]
    return {
        "name": run.name,
        "settings": settings,
        "group": group,
        "command": command(config, run.name),
        **{k: config[k] for k in ("machine", "versions", "started")},
        "commit": commit(config),
        "finished": now(),
        "steps": lines[-1]["steps"],
        "frames": lines[-1]["frames"],
        "core_seconds": round(core_seconds, 1),
        "training": {"mean": statistics.fmean(last) if last else None, "games": len(last)},
        "evaluation": evaluation,
        "curve": [[r["steps"], round(r["episodic_return_mean"], 2)] for r in thin(reports, POINTS)],
    }


def compact(result: Row) -> str:
    """A result as JSON, a line for each of its parts."""
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in result.items())
    return f"{{\n{lines}\n}}\n"


def published(system: str, env: str, steps: int) -> list[float]:
    """What the field has published of this algorithm at this number of agent steps."""
    game = env.removeprefix("ALE/").removesuffix("-v5")
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["game"] == game and int(r["agent_steps"]) == steps]
    return [float(r["mean"]) for who in KINDS.get(system, ()) for r in rows if r["algorithm"] == who]


def sparkline(values: list[float], width: int = 24) -> str:
    """A curve in one line of text."""
    if not values:
        return "–"
    low, span = min(values), (max(values) - min(values)) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in thin(values, width))


def shown(result: Row) -> Row:
    """A line of the page."""
    s, e, interval = result["settings"], result["evaluation"], result["evaluation"].get("interval")
    score = f"{e['episodic_return_mean']:,.1f}" + (f" ({interval[0]:,.1f} to {interval[1]:,.1f})" if interval else "")
    known = " / ".join(f"{value:,.0f}" for value in published(s["system"], s["env"], s["steps"]))
    mean = result["training"]["mean"]
    return {
        "game": s["env"].removeprefix("ALE/").removesuffix("-v5"),
        "system": s["system"],
        "seed": s["seed"],
        "agent steps": f"{result['steps']:,}",
        "core-hours": round(result["core_seconds"] / 3600, 2),
        "training": "–" if mean is None else f"{mean:,.1f}",
        "evaluation": score,
        "published": known or "–",
        "curve": sparkline([y for _, y in result["curve"]]),
        "result": f"[{result['commit'][:9]}](../../bench/results/learning/{result['name']}.json)",
    }


def sections(results: Path) -> str:
    """All results, by heading, game and system."""
    found = [read_object(path) for path in sorted(results.glob("*.json"))]
    found.sort(key=lambda r: (r["settings"]["env"], r["settings"]["system"], r["settings"]["seed"]))
    lines = []
    for group in sorted({result["group"] for result in found}):
        rows = [result for result in found if result["group"] == group]
        commands = [f"- `{result['command']}`" for result in rows]
        lines += [f"## {group or 'Runs'}", "", *table([shown(r) for r in rows]), "", "Commands:", "", *commands, ""]
    return "\n".join(lines).rstrip() or "No run has finished yet."


def write_page() -> None:
    """Bring the page of the documentation up to date."""
    sys.path.insert(0, str(ROOT))
    from docs import generate

    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(generate.filled(PAGE, text), encoding="utf-8")


DATA_HOME = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
RUNS = DATA_HOME / "polyplay" / "learning_queue"
LIST = HERE / "learning_runs.toml"
COMMITTED = RESULTS / "learning"
ROOM = 2**30  # bytes that must be free; below, the queue pauses
TRIES = 3  # of a run that is killed or ends by a fault
POLL = 0.5  # seconds
PAUSE = 30.0  # seconds between two looks at a full disk
GRACE = 90.0  # seconds for a checkpoint, after which a run is killed
SOON = ("is being written by", "were started by")  # another process of the same run is about to end
FULL = "No space left on device"


@dataclass(frozen=True)
class Entry:
    """One run of the list, and where it ends: after `steps` agent steps, or after `core_seconds`."""

    system: str
    env: str
    seed: int
    preset: str
    group: str = ""
    steps: int = 0
    core_seconds: float = 0.0
    options: tuple[str, ...] = ()
    protocol: str = "null-op-30min"
    episodes: int = 30

    @property
    def name(self) -> str:
        game = re.sub(r"[^A-Za-z0-9]+", "_", self.env.removeprefix("ALE/").removesuffix("-v5"))
        length = f"{self.steps / 1000:g}k" if self.steps else f"{self.core_seconds:g}cs"
        return f"{self.system}-{self.preset}-{game}-{length}-s{self.seed}"

    @property
    def settings(self) -> Row:
        """What a result has to agree with; a heading may change."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if k != "group"}

    def train(self, run: Path) -> list[str]:
        words = ["train", self.system, "--env", self.env, "--preset", self.preset, "--seed", str(self.seed)]
        words += ["--steps", str(self.steps)] if self.steps else []
        return [*words, *self.options, "--run", str(run), "--no-tensorboard", "--quiet"]

    def evaluate(self, run: Path) -> list[str]:
        words = ["--protocol", self.protocol, "--episodes", str(self.episodes), "--device", "cpu"]
        return ["evaluate", str(run), *words]


def read_list(path: Path) -> list[Entry]:
    """The runs of a list, in order. Raises UserError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("runs", [])
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise UserError(f"--list: {path} cannot be read: {e}") from None
    found = [entry for number, table in enumerate(tables, 1) for entry in _entries(path, number, table)]
    names = [entry.name for entry in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"--list: {path} has {', '.join(twice)} twice; remove one")
    return found


def _entries(path: Path, number: int, table: Any) -> list[Entry]:
    """The runs of one table. Raises UserError."""
    where, known = f"--list: table {number} of {path}", {f.name for f in fields(Entry)} - {"env", "seed"}
    allowed = {*known, "envs", "seeds"}
    if not isinstance(table, dict) or (wrong := sorted(set(table) - allowed)):
        raise UserError(f"{where} has '{wrong[0]}', allowed: {', '.join(sorted(allowed))}")
    if missing := [k for k in ("system", "preset", "envs", "seeds") if not table.get(k)]:
        raise UserError(f"{where} lacks {missing[0]}")
    if bool(table.get("steps")) == bool(table.get("core_seconds")):
        raise UserError(f"{where} needs either steps or core_seconds")
    same = {k: tuple(v) if k == "options" else v for k, v in table.items() if k in known}
    return [Entry(env=env, seed=seed, **same) for env, seed in itertools.product(table["envs"], table["seeds"])]


# ---------------------------------------------------------------------------------------------- one queue at a time


@contextlib.contextmanager
def holding(*folders: Path) -> Iterator[None]:
    """Hold these folders. The system releases them when this process ends, however. Raises UserError: one is held."""
    held = []
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            held.append(os.open(folder, os.O_RDONLY))
            try:
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"a queue works already: {describe(holder(folder))}, on {folder}; stop ends it"
                ) from None
        yield
    finally:
        for fd in held:
            os.close(fd)


def holder(folder: Path) -> int | None:
    """The process that holds a folder; None: nobody does. 0: a process that this machine does not list."""
    if not folder.exists():
        return None
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines() if " FLOCK " in line]
        place = os.fstat(fd).st_ino
        return next((int(w[4]) for w in lines if w[5].endswith(f":{place}")), 0)
    finally:
        os.close(fd)
    return None


def describe(pid: int | None) -> str:
    """A process for a person."""
    try:
        process = psutil.Process(pid)
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(process.create_time()))
        return f"process {pid} since {since}"
    except (psutil.Error, ValueError):
        return f"process {pid or '?'}"


# ------------------------------------------------------------------------------------------------------- the work


class Stopped(Exception):
    """A signal asked the queue to end."""


class Worker:
    """Works the list off."""

    def __init__(self, asked: Any):
        self.runs, self.results, self.list = asked.runs, asked.results, asked.list
        self.nice, self.stopping = asked.nice, False

    def work(self) -> None:
        """Until nothing is left to do. Raises Stopped."""
        for path in self.runs.glob("*.state.json"):  # what failed may work now
            write_json(path, {**read_object(path), "error": None, "tries": 0})
        while (entry := self.next()) is not None:
            try:
                self.do(entry)
            except Stopped:
                raise
            except Exception as e:  # whatever is wrong with one run, the next one begins
                if isinstance(e, OSError) and e.errno == errno.ENOSPC:
                    self.pause(str(e))
                    continue
                self.log(traceback.format_exc())
                self.remember(entry, error=f"{type(e).__name__}: {e}")
        self.log("the list is done")

    def next(self) -> Entry | None:
        """The first run that is neither finished nor failed."""
        done = (entry for entry in self.entries() if not (finished(self.results, entry) or self.state(entry)["error"]))
        return next(done, None)

    def entries(self) -> list[Entry]:
        """The list as it is now; while somebody writes nonsense into it, nothing new begins."""
        try:
            return read_list(self.list)
        except UserError as e:
            self.log(str(e))
            return []

    def state(self, entry: Entry) -> Row:
        """What the queue remembers of a run."""
        return {"core_seconds": 0.0, "ended": False, "error": None, "tries": 0, **_state(self.runs, entry)}

    def remember(self, entry: Entry, **changes: Any) -> None:
        write_json(_state_file(self.runs, entry), {**self.state(entry), "settings": entry.settings, **changes})

    def log(self, text: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)

    def do(self, entry: Entry) -> None:
        """Train what is left of a run, evaluate it, write its result. Raises Stopped, OSError."""
        run, known = self.runs / entry.name, self.state(entry)
        if known.get("settings", entry.settings) != entry.settings:
            self.log(f"{entry.name}: its settings in the list have changed; it starts again")
            shutil.rmtree(run, ignore_errors=True)
            _state_file(self.runs, entry).unlink()
        self.remember(entry)
        self.make_room()
        if not self.trained(entry, run) and not self.train(entry, run):
            return
        if evaluation(run, entry) is None and not self.child(entry, entry.evaluate(run), "evaluating"):
            return
        score = evaluation(run, entry)
        if score is None:
            raise RuntimeError(f"{run} has no evaluation by {entry.protocol}")
        result = result_of(entry.settings, entry.group, run, self.state(entry)["core_seconds"], score)
        self.results.mkdir(parents=True, exist_ok=True)
        write_bytes(self.results / f"{entry.name}.json", compact(result).encode())
        self.log(f"{entry.name}: finished")
        if self.results == COMMITTED:
            write_page()

    def trained(self, entry: Entry, run: Path) -> bool:
        """Whether training has ended, with a checkpoint there."""
        saved = checkpoint.everything(run) if run.exists() else []
        if not saved:
            return False
        return self.state(entry)["ended"] or 0 < entry.steps <= checkpoint.steps_of(saved[-1])

    def train(self, entry: Entry, run: Path) -> bool:
        """Begin or continue a run; whether it has ended."""
        begun = run.exists() and bool(checkpoint.everything(run))
        if not begun:
            shutil.rmtree(run, ignore_errors=True)  # cut before its first checkpoint
            self.remember(entry, core_seconds=0.0, ended=False)
        words = ["resume", str(run), "--quiet"] if begun else entry.train(run)
        ended = self.child(entry, words, "training")
        if ended:
            self.remember(entry, ended=True)
        return ended

    def child(self, entry: Entry, words: Sequence[str], what: str) -> bool:
        """`polyplay` with these words; whether it did its work. What went wrong is remembered. Raises Stopped."""
        self.log(f"{entry.name}: {what}: polyplay {' '.join(words)}")
        with contextlib.suppress(OSError):
            write_json(self.runs / "doing.json", {"name": entry.name, "what": what, "since": time.time()})
        log = self.runs / f"{entry.name}.log"
        with log.open("ab") as file:
            begin = file.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "polyplay", *words],
                **{"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "cwd": ROOT, "preexec_fn": end_with_us},
            )
            why = self.watch(entry, process, what == "training")
        if self.stopping:
            raise Stopped
        if why or process.returncode == 0:
            return process.returncode == 0 or why == "limit"
        said = log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
        self.judge(entry, process.returncode, said[-1] if said else "it said nothing", "\n".join(said))
        return False

    def judge(self, entry: Entry, status: int, last: str, said: str) -> None:
        """Remember a failure: a user's mistake ends this run, other faults only after some tries. Raises Stopped."""
        tries = self.state(entry)["tries"] + 1
        self.log(f"{entry.name}: exit status {status}: {last}")
        if FULL in said:
            self.pause(last)
        elif any(words in last for words in SOON):
            self.wait(5.0)
        elif status == 2 or tries >= TRIES:
            self.remember(entry, error=f"exit status {status}: {last}", tries=tries)
        else:
            self.remember(entry, tries=tries)
            self.wait(5.0)

    def watch(self, entry: Entry, process: subprocess.Popen[bytes], counts: bool) -> str:
        """Wait for a process and count its processor time. Why it was ended: limit, disk, stop; "": by itself."""
        used = before = self.state(entry)["core_seconds"]
        why, ended, saved, tree = "", 0.0, time.monotonic(), psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                used = before + cpu_seconds(tree)
            if counts and time.monotonic() - saved > 5.0:
                saved = time.monotonic()
                with contextlib.suppress(OSError):  # a full disk: see below
                    self.remember(entry, core_seconds=used)
            over = counts and 0 < entry.core_seconds <= used
            full = shutil.disk_usage(self.runs).free < ROOM
            if not why and (why := "stop" if self.stopping else "limit" if over else "disk" if full else ""):
                process.terminate()
                hurry(tree)
                ended = time.monotonic()
            if ended and time.monotonic() - ended > GRACE:
                process.kill()
            time.sleep(POLL)
        if counts:
            self.remember(entry, core_seconds=used)
        group_priority(self.nice)
        return why

    def make_room(self) -> None:
        """Wait until the disk has room. Raises Stopped."""
        while (free := shutil.disk_usage(self.runs).free) < ROOM:
            self.pause(f"{free / 2**20:,.0f} MB free, {ROOM / 2**20:,.0f} needed")

    def pause(self, why: str) -> None:
        """Raises Stopped."""
        self.log(f"paused: {why}")
        with contextlib.suppress(OSError):
            write_json(self.runs / "doing.json", {"name": "", "what": f"paused: {why}", "since": time.time()})
        self.wait(PAUSE)

    def wait(self, seconds: float) -> None:
        """Raises Stopped."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.stopping:
                raise Stopped
            time.sleep(min(POLL, seconds))


def end_with_us() -> None:
    """In a new process: SIGTERM, and so a checkpoint, when this one ends, even by kill -9."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def hurry(root: psutil.Process) -> None:
    """Let a run that is to end have the processor, where the system allows it: it has a rollout to finish first."""
    for process in process_tree(root):
        with contextlib.suppress(psutil.Error, OSError):
            process.nice(0)
    group_priority(0)


def group_priority(nice: int) -> None:
    """Of this session's processes among those of other sessions, where the system schedules each as a group."""
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def evaluation(run: Path, entry: Entry) -> Row | None:
    """The evaluation of a run's newest checkpoint by the protocol of the list."""
    names = [p.name for p in checkpoint.everything(run)[-1:]]
    found = [read_object(p) for name in names for p in run.glob(f"evaluation-{name}-*.json")]
    return next((f for f in found if (f["protocol"], f["episodes"]) == (entry.protocol, entry.episodes)), None)


def _state_file(runs: Path, entry: Entry) -> Path:
    return runs / f"{entry.name}.state.json"


def _state(runs: Path, entry: Entry) -> Row:
    path = _state_file(runs, entry)
    return read_object(path) if path.exists() else {}


def finished(results: Path, entry: Entry) -> bool:
    """Whether there is a result of these settings."""
    path = results / f"{entry.name}.json"
    return path.exists() and read_object(path)["settings"] == entry.settings


# ------------------------------------------------------------------------------------------------------- commands


def start(asked: Any) -> str:
    """Work in a process of its own. Raises UserError."""
    entries = read_list(asked.list)
    asked.runs.mkdir(parents=True, exist_ok=True)
    with (asked.runs / "queue.log").open("ab") as file:
        words = [f"--{name}={getattr(asked, name)}" for name in ("list", "runs", "results", "nice")]
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "work", *words],
            **{"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "cwd": ROOT, "start_new_session": True},
        )
    while process.poll() is None:
        if holder(asked.results) == process.pid:
            left = sum(not finished(asked.results, entry) for entry in entries)
            return f"process {process.pid} works on {left} runs of {asked.list}; log: {file.name}"
        time.sleep(0.1)
    if process.returncode == 0:
        return "nothing is left to do"
    with holding(asked.runs, asked.results):  # says who holds it
        raise UserError(f"the queue ended at once: see {file.name}")


def work(asked: Any) -> str:
    """The queue itself, in this process. Raises UserError."""
    worker = Worker(asked)

    def end(*_: object) -> None:
        worker.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    with holding(asked.runs, asked.results):
        os.nice(asked.nice)
        group_priority(asked.nice)
        try:
            worker.work()
        except Stopped:
            worker.log("stopped")
        finally:
            (asked.runs / "doing.json").unlink(missing_ok=True)
    return ""


def stop(asked: Any) -> str:
    """End the queue, with a checkpoint. Raises UserError."""
    pid = holder(asked.runs)
    if pid is None:
        return "no queue works here"
    if not pid:
        raise UserError(f"{asked.runs} is held by a process that is not on this machine: stop it there")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + GRACE + 10.0
    while holder(asked.runs) == pid:
        if time.monotonic() > end:
            raise UserError(f"process {pid} has not ended yet: see {asked.runs / 'queue.log'}")
        time.sleep(0.1)
    return f"stopped process {pid}"


def status(asked: Any) -> str:
    """The list as a table."""
    pid, doing = holder(asked.runs), Row()
    with contextlib.suppress(OSError, ValueError):
        doing = read_object(asked.runs / "doing.json") if pid is not None else {}
    rows = [{"run": e.name, **_standing(asked, e, doing)} for e in read_list(asked.list)]
    head = "no queue works here" if pid is None else f"{describe(pid)} works"
    paused = doing.get("what", "") if not doing.get("name") else ""
    return "\n".join([f"{head} {paused}".strip(), "", *markdown(rows)])


def _standing(asked: Any, entry: Entry, doing: Row) -> Row:
    """Where a run is."""
    state, run = _state(asked.runs, entry), asked.runs / entry.name
    shown: Row = {"state": "waiting", "agent steps": None, "core-hours": None, "score": None, "why": None}
    shown["core-hours"] = state.get("core_seconds", 0.0) / 3600 or None
    reports = list(read_lines(run / "metrics.jsonl", "steps"))[-1:]
    of = f" of {entry.steps:,}" if entry.steps else ""
    shown["agent steps"] = f"{reports[0]['steps']:,}{of}" if reports else None
    if finished(asked.results, entry):
        found = read_object(asked.results / f"{entry.name}.json")
        return {**shown, "state": "finished", "score": found["evaluation"]["episodic_return_mean"]}
    if (asked.results / f"{entry.name}.json").exists():
        shown["why"] = "there is a result of other settings, which this run will replace"
    if state.get("error"):
        return {**shown, "state": "failed", "why": state["error"]}
    if doing.get("name") == entry.name:
        return {**shown, "state": doing["what"]}
    return {**shown, "state": "cut" if reports else "waiting"}


def show_table(asked: Any) -> str:
    """Bring the page of the committed results up to date; of other results, print it."""
    if asked.results != COMMITTED:
        return sections(asked.results)
    write_page()
    return f"wrote {PAGE.relative_to(ROOT)}"


def main() -> int:
    commands = {f.__name__: f for f in (start, stop, status, work)} | {"table": show_table}
    parser = command_line(__doc__)
    parser.add_argument("command", choices=list(commands), help="work: as start, but in this process")
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the run directories")
    parser.add_argument("--nice", type=int, default=19, help="priority, from 0 (as any program) to 19 (lowest)")
    parser.add_argument("--results", type=Path, default=COMMITTED)
    asked = parser.parse_args()
    for name in ("list", "runs", "results"):
        setattr(asked, name, getattr(asked, name).resolve())
    try:
        if text := commands[asked.command](asked):
            print(text)
    except UserError as e:
        print(f"learning_queue: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
