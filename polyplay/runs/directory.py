"""Files of a run's directory: config.json, log lines, lock, requests, signature, population.json, list of runs.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import hmac
import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from polyplay.core import machine, platform
from polyplay.core.errors import UserError
from polyplay.core.files import Row, is_number, is_row, parse_json, read_lines, read_object, write_bytes, write_json
from polyplay.envs.pool import ATARI57, task_words
from polyplay.population import league_log, ratings, store
from polyplay.runs.flags import flag

# A run's JSON lines as a table of columns.


def current_rows(file: Path, *numbers: str) -> list[Row]:
    """Return the lines that have all `numbers`, in order of frames. Lines repeated by a resume replace earlier ones."""
    rows: list[Row] = []
    for row in read_lines(file, "frames", "wall_seconds", *numbers):
        while rows and rows[-1]["frames"] > row["frames"]:
            rows.pop()
        rows.append(row)
    return rows


def read_table(file: Path) -> dict[str, list[Any]]:
    """Return {column: values}, as an argument of pandas.DataFrame. A value that a line lacks is None."""
    rows = current_rows(file)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


# The lock on a run's directory, so only one process writes there. The system releases it when its holder ends.


LOCK_FILE = ".lock"  # in the run's directory; its text is for people, the lock itself is the system's


class DirectoryLock:
    """Lock held from construction to `close`. Raises UserError: another process holds it."""

    def __init__(self, directory: Path):
        self.path, self.fd, self.place = directory / LOCK_FILE, -1, -1
        self.take()

    def take(self) -> None:
        """Take the lock, even if the directory was deleted and made again. Raises UserError, OSError."""
        fd = platform.open_file(self.path, os.O_RDWR | os.O_CREAT)
        if not _lock(fd) and not _lock(fd, after=0.05):
            who = parse_json(platform.pread(fd, 4096, 0))
            os.close(fd)
            who = who if isinstance(who, dict) else {}
            holder = f"process {who.get('pid', '?')} on {who.get('host', '?')}, since {who.get('since', '?')}"
            raise UserError(f"RUN: {self.path.parent} is being written by {holder}: wait until it has ended, or end it")
        self.close()
        self.fd = fd
        self.place = platform.open_directory(self.path.parent)  # while open, no other directory gets its inode
        if not self.held:  # deleted between open and lock
            return self.take()
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": machine.now()}
        with contextlib.suppress(OSError):  # full disk: the lock holds without its text
            os.ftruncate(fd, 0)
            platform.pwrite(fd, json.dumps(who).encode(), 0)

    @property
    def held(self) -> bool:
        """Whether our path still leads to the file that we locked."""
        return _same(self.path, self.fd)

    @property
    def in_place(self) -> bool:
        """Whether our path still leads to the directory that we locked, even if its lock file was deleted."""
        return _same(self.path.parent, self.place) if self.place >= 0 else platform.WINDOWS and self.held

    def close(self) -> None:
        """Release the lock. May be called again."""
        for fd in (self.fd, self.place):
            if fd >= 0:
                os.close(fd)
        self.fd = self.place = -1


def is_locked(directory: Path) -> bool:
    """Tell whether a process holds the lock on a directory. Writes nothing."""
    try:
        with open(directory / LOCK_FILE, "rb") as file:
            return not _lock(file.fileno(), shared=True)
    except OSError:
        return False


def _lock(fd: int, shared: bool = False, after: float = 0.0) -> bool:
    """Try to lock an open file; return success. `is_locked` in another process may lock it briefly. Raises OSError."""
    time.sleep(after)
    try:
        return platform.lock(fd, shared)
    except OSError as e:
        if e.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # file system without locks: run without one
            raise
    return True


def _same(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


# Requests from another program to a running run: to save a checkpoint, or to end.
#
# A request to save is a file in the run's directory, which the session removes. A request to end is SIGINT to the
# process that holds the directory's lock. On Windows, where SIGINT would only kill that process, it is a file instead.


SAVE, END = ".save", ".end"  # in the run's directory


def take_request(directory: Path, name: str = SAVE) -> bool:
    """Tell whether request `name` was made since the last call."""
    with contextlib.suppress(OSError):
        os.unlink(directory / name)
        return True
    return False


def request_save(directory: Path) -> bool:
    """Ask the run in this directory to save at its next update; return False if none is running."""
    if lock_holder(directory) is None:
        return False
    (directory / SAVE).touch()
    return True


def request_end(directory: Path) -> bool:
    """End the run in this directory as Ctrl-C does; return False if none is running. Signals only that run."""
    with contextlib.suppress(OSError):
        if (pid := lock_holder(directory)) is not None:
            if platform.WINDOWS:
                (directory / END).touch()
            else:
                os.kill(pid, signal.SIGINT)
            return True
    return False


def lock_holder(directory: Path) -> int | None:
    """Return the id of the process that writes to a run's directory; None if no other process on this machine does."""
    who = None
    with contextlib.suppress(OSError):
        who = parse_json((directory / LOCK_FILE).read_bytes()) if is_locked(directory) else None
    pid = who.get("pid") if isinstance(who, dict) and who.get("host") == socket.gethostname() else None
    return pid if isinstance(pid, int) and pid > 1 and pid != os.getpid() and _has_open(pid, directory) else None


def _has_open(pid: int, directory: Path) -> bool:
    """Tell whether a process has the lock file open. The file names the last holder until the new one has written."""
    with contextlib.suppress(Exception):  # also psutil's exceptions
        return platform.has_open(pid, directory / LOCK_FILE)
    return False


# Trust. A run whose files name code executes that code wherever it is opened: modules of its environment, network and
# wrappers, objects sent by a cluster's machines, the program that an evaluation was played against. So a run made
# elsewhere needs the user's permission (--trust). Runs made here carry a signature by the user's own key.


OWN = ("ALE/", "game:", "arena:", "envpool:")  # prefixes of environments that import no user code
OWN_GAME = re.compile(
    r"^game:(?:spiel:)?(?=(?!spiel:|connect:)[^\W\d][\w.]*:[^\W\d])"
)  # the prefix before module:Class
MAIN = "__main__"  # the user's program; workers and the command line cannot import from it
NAMING = ("over", "network", "optimizer", "loss", "wrapper")  # options that may be module:callable
CLUSTER = "ray:"  # machines of a cluster execute objects that the others send
PROGRAM = "gtp:"
NAMED = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # module:callable
WORD = "read that, then say --trust"


def check_trust(
    directory: Path, config: Row, trust: bool, given: Collection[str] = (), word: str = WORD, where: str = "RUN"
) -> list[str]:
    """Return lines about all code that this run executes by name. config: contents of config.json. given: options set
    by the caller. Raises UserError: the run names code and was made elsewhere, and `trust` is false.
    """
    code = [(option_title(option), name) for option, name in code_of(config) if option not in given]
    if code and not trust and not is_ours(config):
        executed = " and ".join(f"its {option} {name} would execute {_executed(name)}" for option, name in code)
        raise UserError(f"{where}: {directory} was made elsewhere, and {executed}: {word}")
    own = [(option, name) for option, name in code if not name.startswith((f"{MAIN}:", CLUSTER))]  # not the caller's
    return [f"the run's {option} {name} executes {_executed(name)}" for option, name in own]


def option_title(option: str) -> str:
    """Return the command-line form of an option named in a run's files."""
    return "SYSTEM" if option == "system" else flag(option)


def check_program(path: Path, record: Row, trust: bool) -> None:
    """Raise UserError if `trust` is false, and the evaluation in this file was recorded elsewhere and executes a
    command.
    """
    name = str(record.get("against"))
    if name.startswith(PROGRAM) and not trust and not _is_signed(record.get("signature"), _played(record)):
        command = name.removeprefix(PROGRAM)
        raise UserError(f"RUN: {path} was made elsewhere, and would execute the command {command}: {WORD}")


def check_named(where: Path, other: Row, config: Row) -> None:
    """Raise UserError if `other`, from a run's file, names code that `config`, its config.json, does not name."""
    known = {name for _, name in code_of(config)}
    for option, name in code_of(other):
        if name not in known:
            raise UserError(f"{where} is damaged: its {option} {name} is not the run's own; put back a copy of it")


def code_of(config: Row) -> list[tuple[str, str]]:
    """Return (option, name) of all code that a run executes by name. config: config.json, or a part of it."""
    values = {**config["config"], **config.get("options", {})}
    words = {name: list(map(str, v if isinstance(v, list | dict) else [v])) for name, v in values.items()}
    found = [("system", name) for name in (str(config.get("system", "")),) if ":" in name]
    envs = [OWN_GAME.sub("", task) for name in words.get("env", ()) for task in _tasks_in(name)]
    found += [("env", name) for name in envs if not name.startswith(OWN) and ":" in name.removeprefix("toy:")]
    found += [("env", name) for name in envs if name.startswith("@") and (":" not in name)]  # a file of environments
    found += [(option, name) for option in NAMING for name in words.get(option, ()) if ":" in name]
    found += [("env_options", name) for name in words.get("env_options", ()) if ":" in name.partition("=")[0]]
    for word in words.get("env_kwargs", ()):  # some environments build others by name
        found += [("env_kwargs", name) for name in NAMED.findall(word.partition("=")[2])]
    for word in words.get("vary", ()):  # choices of a population
        if word.startswith(("env=", "network=", "optimizer=")):
            found += [("vary", name) for name in word.partition("=")[2].split(",") if ":" in name]
    return found + [("hosts", name) for name in words.get("hosts", ()) if name.startswith(CLUSTER) and name != CLUSTER]


def _tasks_in(name: str) -> list[str]:
    """Return the environments that `name` lists. A file or function of environments stays unread."""
    try:
        words = task_words(name)
    except UserError:  # a file, a function, or a list that is refused later
        return name.split(",")
    return [name] if not words else [] if name == ATARI57 else [task for task, _ in words]


def _executed(name: str) -> str:
    """Describe the code that a name executes, with its file (for a package, the first). Executes nothing."""
    module, _, attribute = name.removeprefix("toy:").partition(":")
    if name.startswith(CLUSTER):
        return "what its machines send"
    if module == MAIN:
        return f"{attribute} of the program that runs"
    spec = PathFinder.find_spec(module.partition(".")[0], [os.getcwd(), *sys.path])
    return f"the module {module} (not found here)" if spec is None else f"{module} of {spec.origin}"


def signature(config: Row) -> str | None:
    """Return the signature of a run made here; None if it names no code, or the key cannot be stored."""
    return _sign([code_of(config), config.get("started")]) if code_of(config) else None


def program_signature(record: Row) -> str | None:
    """Return the signature of an evaluation; None if it executes no command, or the key cannot be stored."""
    return _sign(_played(record)) if str(record.get("against")).startswith(PROGRAM) else None


def is_ours(config: Row) -> bool:
    """Tell whether a run opens without --trust: it names no code, or the user's key signed it."""
    return not code_of(config) or _is_signed(config.get("signature"), [code_of(config), config.get("started")])


def _played(record: Row) -> list[Any]:
    """Return the signed fields of an evaluation."""
    return [record.get("against"), record.get("checkpoint_sha256"), record.get("finished")]


def _is_signed(given: object, what: list[Any]) -> bool:
    ours = _sign(what, make=False)
    return isinstance(given, str) and ours is not None and hmac.compare_digest(given.encode(), ours.encode())


def _sign(what: list[Any], make: bool = True) -> str | None:
    """Return a signature by the user's own key; None without a key. make: create the key if it does not exist."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # stays "~/…" without a home
    path = Path(home) / "polyplay" / "key"
    try:
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
                file.write(secrets.token_bytes(32))
        key = path.read_bytes()
    except OSError:
        return None
    return hmac.new(key, json.dumps(what).encode(), hashlib.sha256).hexdigest() if key else None


SCHEMA = 1
READ_ONLY = "READ_ONLY"  # a file in a run's directory or its parent: then nothing is added to the run
WIRING = "wiring.json"  # roles and arrows, as `polyplay systems SYSTEM --diagram` draws them
# numbers that every line of metrics.jsonl and of episodes.jsonl has
METRICS = ("wall_seconds", "frames", "steps", "updates")
GAME = ("wall_seconds", "frames", "steps", "lane", "episodic_return", "episodic_length")
Shape = Mapping[str, Callable[[Any], bool]]  # name in a file → test of its value


def _of_kind(kind: type, of: type = object) -> Callable[[Any], bool]:
    """Return a test whether a value is of type `kind`, and its items of type `of`."""

    def fits(value: Any) -> bool:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return isinstance(value, kind) and all(isinstance(v, of) for v in inner)

    return fits


SHAPE: Shape = {  # of config.json
    **dict.fromkeys(("config", "options", "versions", "machine"), _of_kind(dict)),
    **dict.fromkeys(("sources", "environment"), _of_kind(dict, str)),
    **{"system": _of_kind(str), "started": _of_kind(str), "seed": _of_kind(int), "resumed": _of_kind(list, dict)},
}


def check_shape(path: Path, contents: Row, shape: Shape) -> Row:
    """Return `contents` of a file. Raises UserError: the schema differs, or a value is missing or malformed."""
    if contents.get("schema") != SCHEMA:
        raise UserError(f"{path}: this version reads schema {SCHEMA} only; use the version that wrote the file")
    if wrong := sorted(name for name, fits in shape.items() if not fits(contents.get(name))):
        raise UserError(f"{path} is damaged: missing or malformed: {', '.join(wrong)}; put back a copy of it")
    return contents


RunDescription = Mapping[str, Any]  # system, config, options, sources and environment, as config.json has them


def rewind(directory: Path, counters: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Remove lines that a run wrote after a checkpoint, because it will repeat them. Remove damaged lines, and pass
    their number to `say`. Each file is replaced whole.

    A game that ended before the checkpoint but was written after it stays, with the checkpoint's counters. Raises
    OSError.
    """
    steps, updates = counters["steps"], counters["updates"]
    learnt, played = counters.get("agents", {"0": updates}), max(updates, 1)  # the update's match is played again

    def cut(name: str, numbers: tuple[str, ...], stays: Callable[[Row], bool]) -> None:
        _cut(directory / name, lambda row: is_row(row, numbers), lambda row: row if stays(row) else None, say)

    for name, numbers in (("metrics", METRICS), ("decisions", ("steps",)), ("evaluations", ("steps",))):
        cut(f"{name}.jsonl", numbers, lambda row: row["steps"] <= steps)
    if not league_log.has_league(directory):  # a league's matches all stay
        cut(league_log.LOG, ("steps", "candidate"), lambda row: row["candidate"] < played)

    def game_stays(row: Row) -> bool:  # self-play: games up to that step; gate: games of earlier candidates
        gate = row.get("kind") == "gate"
        return max(row["black"], row["white"]) < played if gate else row["steps"] <= steps

    cut("games.jsonl", ("steps", "black", "white"), game_stays)
    cut(ratings.RATINGS, ("version", "steps"), lambda row: row["version"] <= learnt.get("0", 0))
    for path in directory.glob("updates*.jsonl"):  # updates-N.jsonl: agent N; updates.jsonl: agent 0
        last = learnt.get(path.stem.partition("-")[2] or "0", 0)
        cut(path.name, ("update",), lambda row, last=last: row["update"] <= last)  # type: ignore[misc]
    _cut_games(directory / "episodes.jsonl", counters, say)

    def delivery_stays(line: Any) -> Any:
        return line if (line["from"] if isinstance(line, dict) else line[0]) <= updates else None

    for path in directory.glob("deliveries-*.jsonl"):
        _cut(path, _delivery, delivery_stays, say)


def _cut_games(path: Path, counters: Mapping[str, Any], say: Callable[[str], None]) -> None:
    games, found = counters.get("games", {}), Counter[str]()
    owner = {lane: worker for worker in games for lane in worker_lanes(worker)}

    def bounded(row: Row) -> Row | None:
        worker = owner.get(row["lane"])
        if worker is not None:
            found[worker] += 1
            if found[worker] > games[worker]:
                return None
        elif row["frames"] > counters["frames"]:
            return None
        most = {k: min(row[k], counters[k]) for k in ("frames", "steps")}
        return row if most.items() <= row.items() else row | most

    _cut(path, lambda row: is_row(row, GAME), bounded, say)


def worker_lanes(name: str) -> range:
    """Return the lanes of a worker from its name in a checkpoint's counters."""
    first, _, n = name.partition("+")
    return range(int(first), int(first) + int(n))


def _delivery(line: Any) -> bool:
    return is_row(line, ("from",)) or (isinstance(line, list) and bool(line) and is_number(line[0]))


def _cut(path: Path, whole: Callable[[Any], bool], keep: Callable[[Any], Any], say: Callable[[str], None]) -> None:
    """Rewrite a file of JSON lines without damaged ones. keep: returns the line to write, or None to remove it."""
    if not path.is_file():
        return
    before, after, damaged = path.read_bytes(), [], 0
    for line in before.splitlines(keepends=True):
        row = parse_json(line)
        if line.endswith(b"\n") and not whole(row):
            damaged += 1
        elif line.endswith(b"\n") and (kept := keep(row)) is not None:
            after.append(line if kept is row else (json.dumps(kept) + "\n").encode())
    if damaged:
        say(f"{path.name}: {damaged} damaged line{'s' * (damaged > 1)} left out")
    if b"".join(after) != before:
        write_bytes(path, b"".join(after))


# config.json


def write_config(directory: Path, run: RunDescription) -> None:
    """Write config.json; `config` and `options` come from `options.to_json`. Raises OSError."""
    contents = {"schema": SCHEMA, "seed": run["options"]["seed"], **run, **machine.stamp(), "resumed": []}
    contents |= {"signature": signed} if (signed := signature(contents)) else {}
    write_json(directory / "config.json", contents)


def amend_config(directory: Path, run: RunDescription, was: Row | None = None) -> None:
    """Record a resume in config.json: the new options, time, machine and versions. was: earlier values."""
    contents = read_config(directory, population=True)
    ours = is_ours(contents)
    contents |= {k: run[k] for k in ("config", "options", "sources")}
    contents |= {"signature": signed} if ours and (signed := signature(contents)) else {}
    contents |= {"resumed": [*contents["resumed"], machine.stamp() | (was or {})]}
    write_json(directory / "config.json", contents)


def read_config(directory: Path, whole: bool = False, population: bool = False) -> Row:
    """Return config.json of a run. whole: require every entry, as a resume needs. Raises UserError: the file is missing
    or damaged, has another version's schema, or is a population's and `population` is false.
    """
    path = Path(directory) / "config.json"
    try:
        contents = read_object(path)
    except OSError:
        neighbors = {p.parent.name: p.parent for p in path.parent.parent.glob("*/config.json")}
        near = difflib.get_close_matches(path.parent.name, neighbors, 1)
        hint = f"did you mean {neighbors[near[0]]}?" if near else "name the directory that `polyplay train` printed"
        raise UserError(f"no run at {directory} (it has no config.json); {hint}") from None
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; put back a copy of it") from None
    needed = SHAPE if whole else {k: v for k, v in SHAPE.items() if k in contents or k in ("system", "config")}
    check_shape(path, contents, needed)
    if not population and has_members(contents):
        cure = f"`polyplay runs {directory}` ranks them"
        raise UserError(f"RUN: {directory} is a population, name one of its members, in {store.MEMBERS}/: {cure}")
    return contents


def has_members(config: Row) -> bool:
    """Tell whether config.json is a population's, whose members are runs."""
    return "over" in config["config"]


def is_read_only(directory: Path) -> bool:
    """Tell whether nothing may be added to this run; see READ_ONLY."""
    return any((folder / READ_ONLY).exists() for folder in (directory, directory.resolve().parent))


def config_hash(config: Mapping[str, Any]) -> str:
    """Return a hash of the values that decide training and play: system, configuration, environment, precision."""
    parts = {k: config[k] for k in ("system", "config", "environment")}
    parts["options"] = {k: config["options"].get(k) for k in ("precision",)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def origin(directory: Path) -> Row:
    """Return the origin of a run's scores: configuration hash, machine and commit. Raises UserError."""
    config = read_config(directory, whole=True)
    last = (config["resumed"] or [config])[-1]
    return {"config_hash": config_hash(config), "machine": last.get("machine"), "commit": last.get("commit")}


# population.json. Imports no torch.


def _are_members(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_member, value))


def _is_member(value: Any) -> bool:
    if not is_row(value, ("member", "steps", "wall_seconds")) or not isinstance(value.get("values"), dict):
        return False
    return isinstance(value.get("state"), str) and (value.get("score") is None or is_number(value["score"]))


POPULATION_SHAPE: Shape = {
    **dict.fromkeys(("over", "exploit", "explore", "score"), _of_kind(str)),
    **{"vary": _of_kind(dict), "every": is_number, "total": is_number, "members": _are_members},
}


def read_population(directory: Path) -> Row:
    """Return a population's population.json, also while it runs. Raises UserError: not a population, or damaged."""
    if (directory / store.FILE).exists():
        return check_shape(directory / store.FILE, store.Store(directory).read(), POPULATION_SHAPE)
    folder = directory.resolve().parent
    above = folder.parent
    if folder.name == store.MEMBERS and (above / store.FILE).exists():
        raise UserError(f"RUN: {directory} is a member of a population: name the population, {above}")
    what = f"a run of {read_config(directory, population=True)['system']}, not a population"
    raise UserError(f"RUN: {directory} is {what}: name a run of `polyplay train pbt`, with its {store.FILE}")


# A list of runs, read from their directories without changing anything.


COUNTERS = ("frames", "steps", "wall_seconds")
INSIDE = ("*", "*/*", "*/*/seed-*")  # where a directory of runs and of sweeps has runs; members are elsewhere


def list_runs(places: Sequence[Path]) -> list[Row]:
    """Return a row for each run in or directly below these directories, newest first; members only of
    a population in `places`. Raises UserError: a directory does not exist."""
    found = {run.resolve(): run for place in places for run in _runs_in(place)}
    return sorted(map(describe_run, found.values()), key=lambda row: row["started"], reverse=True)


def _runs_in(place: Path) -> Iterable[Path]:
    """Return directories with a config.json: `place` and its members; else folders in it, and those of its sweeps."""
    if not place.is_dir():
        raise UserError(f"DIR: no directory {place}; name one that holds runs, as `polyplay train` makes runs/")
    if (place / "config.json").exists():
        return [place, *sorted(path.parent for path in (place / store.MEMBERS).glob("*/config.json"))]
    return sorted(path.parent for pattern in INSIDE for path in place.glob(f"{pattern}/config.json"))


def describe_run(directory: Path) -> Row:
    """Return the row of a run; a damaged run has an `error`, and the state "damaged"."""
    row: Row = {"run": str(directory), "started": "", "state": "damaged"}
    try:
        config = read_config(directory, population=True)
        counters = summary = read_object(directory / "summary.json") if (directory / "summary.json").exists() else {}
        reports = list(read_lines(directory / "metrics.jsonl", *METRICS))
        if not summary:
            counters = _of_members(directory) if has_members(config) else {**reports[-1]} if reports else {}
        for name in (*COUNTERS, "episodic_return_mean", "episodic_return_mean_best", "best_score"):
            if not (counters.get(name) is None or is_number(counters[name])):
                raise ValueError(f"{name} is {counters[name]!r}; it must be a number")
        row |= {name: counters.get(name) for name in COUNTERS}
        row |= {"system": config["system"], "env": str(config["config"].get("env", "")), "seed": config.get("seed")}
        row |= {"return": counters.get("episodic_return_mean", counters.get("best_score"))}
        row |= {"return_best": counters.get("episodic_return_mean_best"), "reason": summary.get("reason")}
        return row | {"started": str(config.get("started", "")), "state": state_of(directory, summary)}
    except (ArithmeticError, LookupError, OSError, TypeError, UserError, ValueError) as e:
        return row | {"error": str(e) if isinstance(e, OSError | UserError) else f"{directory} is damaged: {e}"}


def state_of(directory: Path, summary: Row) -> str:
    """Return running, done, stopped (by a signal, a callback, or killed) or failed. summary: summary.json, or {}."""
    code, reason = summary.get("exit_code"), str(summary.get("reason", ""))
    if is_locked(directory):
        return "running"
    if summary and (not is_number(code) or code in (1, 2)):
        return "failed"
    return "stopped" if not summary or code or reason.startswith("stopped") else "done"


def read_summary(directory: Path) -> Row:
    """Return summary.json; {} if the run has not ended or the file is damaged."""
    return read_part(directory, "summary.json")


def read_part(directory: Path, name: str) -> Row:
    """Return the contents of a run's JSON file; {} if it is missing or damaged."""
    try:
        return read_object(directory / name)
    except (OSError, ValueError):
        return {}


def _of_members(directory: Path) -> Row:
    """Return the counters of a population that has not ended."""
    population = read_population(directory)
    best = store.best_member(population["members"])
    totals = {name: sum(m[name] for m in population["members"]) for name in ("frames", "steps")}
    return totals | {"wall_seconds": population["wall_seconds"], "best_score": best and best["score"]}
