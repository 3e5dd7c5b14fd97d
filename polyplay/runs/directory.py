"""Read and write the files of a run's directory (config.json, logs, lock, requests, signature, population.json), and
list runs.

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
    """Return a log's rows with the entries `numbers`, in order of frames. Omit rows that a resumed run replaced."""
    rows: list[Row] = []
    for row in read_lines(file, "frames", "wall_seconds", *numbers):
        while rows and rows[-1]["frames"] > row["frames"]:
            rows.pop()
        rows.append(row)
    return rows


def read_table(file: Path) -> dict[str, list[Any]]:
    """Read a log as {column: values}, for pandas.DataFrame. If a line lacks a column, the value there is None."""
    rows = current_rows(file)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


# A lock on a run's directory lets only one process write there. The system releases the lock when that process ends.


LOCK_FILE = ".lock"  # file in the run's directory; its text names the process that holds the lock


class DirectoryLock:
    """Lock on a run's directory, so that only one process writes there. The object takes the lock when it is made, and
    holds it until `close`. Raises UserError if another process holds the lock.
    """

    def __init__(self, directory: Path):
        self.path, self.fd, self.place = directory / LOCK_FILE, -1, -1
        self.take()

    def take(self) -> None:
        """Take the lock, even if the directory was recreated. Raises OSError, or UserError if it is taken."""
        fd = platform.open_file(self.path, os.O_RDWR | os.O_CREAT)
        if not _lock(fd) and not _lock(fd, after=0.05):
            who = parse_json(platform.pread(fd, 4096, 0))
            os.close(fd)
            who = who if isinstance(who, dict) else {}
            holder = f"process {who.get('pid', '?')} on {who.get('host', '?')}, since {who.get('since', '?')}"
            raise UserError(f"RUN: {self.path.parent} is being written by {holder}: wait until it has ended, or end it")
        self.close()
        self.fd = fd
        self.place = platform.open_directory(self.path.parent)  # while this is open, its inode is not reused
        if not self.held:  # the lock file was deleted between open and lock
            return self.take()
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": machine.now()}
        with contextlib.suppress(OSError):  # on a full disk, the lock holds without a text
            os.ftruncate(fd, 0)
            platform.pwrite(fd, json.dumps(who).encode(), 0)

    @property
    def held(self) -> bool:
        """Whether the lock file still exists at its path and is the locked file."""
        return _same(self.path, self.fd)

    @property
    def in_place(self) -> bool:
        """Whether the path of the directory still leads to the locked directory, even if its lock file was deleted."""
        return _same(self.path.parent, self.place) if self.place >= 0 else platform.WINDOWS and self.held

    def close(self) -> None:
        """Release the lock. Further calls do nothing."""
        for fd in (self.fd, self.place):
            if fd >= 0:
                os.close(fd)
        self.fd = self.place = -1


def is_locked(directory: Path) -> bool:
    """Tell whether a process holds the lock on a directory. This function writes nothing."""
    try:
        with open(directory / LOCK_FILE, "rb") as file:
            return not _lock(file.fileno(), shared=True)
    except OSError:
        return False


def _lock(fd: int, shared: bool = False, after: float = 0.0) -> bool:
    """Wait `after` seconds, then try to lock a file. Return success. Raises OSError."""
    time.sleep(after)
    try:
        return platform.lock(fd, shared)
    except OSError as e:
        if e.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # file systems without locks: continue
            raise
    return True


def _same(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


# Requests by which another program asks an active run to save a checkpoint or to end.
#
# A request to save is a file in the run's directory, which the run's main process removes. A request to end is the
# signal SIGINT to the process that holds the directory's lock. On Windows, SIGINT would only kill that process, so a
# request to end is a file there too.


SAVE, END = ".save", ".end"  # names of these files in the run's directory


def take_request(directory: Path, name: str = SAVE) -> bool:
    """Tell whether another program made the request `name` (SAVE or END) since the last call. Remove the request."""
    with contextlib.suppress(OSError):
        os.unlink(directory / name)
        return True
    return False


def request_save(directory: Path) -> bool:
    """Ask the run in this directory to save a checkpoint at its next update. Return False if no run is active there."""
    if lock_holder(directory) is None:
        return False
    (directory / SAVE).touch()
    return True


def request_end(directory: Path) -> bool:
    """End the active run in this directory, as Ctrl-C does. Return False if no run is active there."""
    with contextlib.suppress(OSError):
        if (pid := lock_holder(directory)) is not None:
            if platform.WINDOWS:
                (directory / END).touch()
            else:
                os.kill(pid, signal.SIGINT)
            return True
    return False


def lock_holder(directory: Path) -> int | None:
    """Return the ID of the other process on this machine that holds the lock on a run's directory, or None."""
    who = None
    with contextlib.suppress(OSError):
        who = parse_json((directory / LOCK_FILE).read_bytes()) if is_locked(directory) else None
    pid = who.get("pid") if isinstance(who, dict) and who.get("host") == socket.gethostname() else None
    return pid if isinstance(pid, int) and pid > 1 and pid != os.getpid() and _has_open(pid, directory) else None


def _has_open(pid: int, directory: Path) -> bool:
    """Tell whether a process has the lock file open. If not, the lock file names an earlier process."""
    with contextlib.suppress(Exception):  # includes the exceptions of psutil
        return platform.has_open(pid, directory / LOCK_FILE)
    return False


# Trust. If a run's files name code, opening the run executes this code: modules of the environment, network and
# wrappers, objects sent by the machines of a cluster, or the program that an evaluation was played against. So a run
# that was made elsewhere needs the user's permission (--trust). Runs made here are signed with the user's key.


OWN = ("ALE/", "game:", "arena:", "envpool:")  # prefixes of environment names that import no user code
OWN_GAME = re.compile(
    r"^game:(?:spiel:)?(?=(?!spiel:|connect:)[^\W\d][\w.]*:[^\W\d])"
)  # prefix of a user's own game, as in game:module:Class
MAIN = "__main__"  # module name of the user's program, from which workers and the command line cannot import
NAMING = ("over", "network", "optimizer", "loss", "wrapper")  # options whose values may be module:callable
CLUSTER = "ray:"  # prefix of --hosts for a Ray cluster, whose machines execute objects that other machines send
PROGRAM = "gtp:"
NAMED = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # module:callable
WORD = "read that, then say --trust"


def check_trust(
    directory: Path, config: Row, trust: bool, given: Collection[str] = (), word: str = WORD, where: str = "RUN"
) -> list[str]:
    """Return a line about each piece of code that the run's files name. Opening the run executes this code.

    Raises UserError if the run names code, was made elsewhere, and `trust` is false.
    `config`: contents of config.json.
    `given`: options that the caller sets. Code in these options needs no trust.
    `word`: advice at the end of the error message.
    `where`: beginning of the error message.
    """
    code = [(option_title(option), name) for option, name in code_of(config) if option not in given]
    if code and not trust and not is_ours(config):
        executed = " and ".join(f"its {option} {name} would execute {_executed(name)}" for option, name in code)
        raise UserError(f"{where}: {directory} was made elsewhere, and {executed}: {word}")
    # the caller knows the code in the caller's own program and cluster
    own = [(option, name) for option, name in code if not name.startswith((f"{MAIN}:", CLUSTER))]
    return [f"the run's {option} {name} executes {_executed(name)}" for option, name in own]


def option_title(option: str) -> str:
    """Return the name of an option as it is written on the command line. The option "system" becomes SYSTEM."""
    return "SYSTEM" if option == "system" else flag(option)


def check_program(path: Path, record: Row, trust: bool) -> None:
    """Check a recorded evaluation before it is repeated. Raises UserError if it executes a command, was recorded on
    another machine or by another user, and `trust` is false. record: contents of the file `path`.
    """
    name = str(record.get("against"))
    if name.startswith(PROGRAM) and not trust and not _is_signed(record.get("signature"), _played(record)):
        command = name.removeprefix(PROGRAM)
        raise UserError(f"RUN: {path} was made elsewhere, and would execute the command {command}: {WORD}")


def check_named(where: Path, other: Row, config: Row) -> None:
    """Raise UserError if `other`, read from a run's file, names code that config.json (`config`) does not name."""
    known = {name for _, name in code_of(config)}
    for option, name in code_of(other):
        if name not in known:
            raise UserError(f"{where} is damaged: its {option} {name} is not the run's own; put back a copy of it")


def code_of(config: Row) -> list[tuple[str, str]]:
    """Return (option, name) for each piece of code that a run names. config: contents or part of config.json."""
    values = {**config["config"], **config.get("options", {})}
    words = {name: list(map(str, v if isinstance(v, list | dict) else [v])) for name, v in values.items()}
    found = [("system", name) for name in (str(config.get("system", "")),) if ":" in name]
    envs = [OWN_GAME.sub("", task) for name in words.get("env", ()) for task in _tasks_in(name)]
    found += [("env", name) for name in envs if not name.startswith(OWN) and ":" in name.removeprefix("toy:")]
    found += [("env", name) for name in envs if name.startswith("@") and (":" not in name)]  # list of tasks in a file
    found += [(option, name) for option in NAMING for name in words.get(option, ()) if ":" in name]
    found += [("env_options", name) for name in words.get("env_options", ()) if ":" in name.partition("=")[0]]
    for word in words.get("env_kwargs", ()):  # some environments build others by name
        found += [("env_kwargs", name) for name in NAMED.findall(word.partition("=")[2])]
    for word in words.get("vary", ()):  # values that a population may choose
        if word.startswith(("env=", "network=", "optimizer=")):
            found += [("vary", name) for name in word.partition("=")[2].split(",") if ":" in name]
    return found + [("hosts", name) for name in words.get("hosts", ()) if name.startswith(CLUSTER) and name != CLUSTER]


def _tasks_in(name: str) -> list[str]:
    """Return the environments that `name`, a value of --env, lists. Do not read files or call functions."""
    try:
        words = task_words(name)
    except UserError:  # a file, a function, or a list that is refused later
        return name.split(",")
    return [name] if not words else [] if name == ATARI57 else [task for task, _ in words]


def _executed(name: str) -> str:
    """Describe the code that `name` stands for, with the file of its top-level module, without executing code."""
    module, _, attribute = name.removeprefix("toy:").partition(":")
    if name.startswith(CLUSTER):
        return "what its machines send"
    if module == MAIN:
        return f"{attribute} of the program that runs"
    spec = PathFinder.find_spec(module.partition(".")[0], [os.getcwd(), *sys.path])
    return f"the module {module} (not found here)" if spec is None else f"{module} of {spec.origin}"


def signature(config: Row) -> str | None:
    """Return the signature of a run made here. Return None if the run names no code, or if no key can be stored."""
    return _sign([code_of(config), config.get("started")]) if code_of(config) else None


def program_signature(record: Row) -> str | None:
    """Return an evaluation's signature. Return None if the evaluation executes no command, or no key can be stored."""
    return _sign(_played(record)) if str(record.get("against")).startswith(PROGRAM) else None


def is_ours(config: Row) -> bool:
    """Tell whether a run opens without --trust: the run names no code, or is signed with the user's key."""
    return not code_of(config) or _is_signed(config.get("signature"), [code_of(config), config.get("started")])


def _played(record: Row) -> list[Any]:
    """Return the fields of an evaluation that are signed."""
    return [record.get("against"), record.get("checkpoint_sha256"), record.get("finished")]


def _is_signed(given: object, what: list[Any]) -> bool:
    ours = _sign(what, make=False)
    return isinstance(given, str) and ours is not None and hmac.compare_digest(given.encode(), ours.encode())


def _sign(what: list[Any], make: bool = True) -> str | None:
    """Return a signature made with the user's key, or None without a key. make: create the key if it does not exist."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # without a home, "~" stays
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
READ_ONLY = "READ_ONLY"  # if a run's directory or its parent has a file of this name, nothing is added to the run
WIRING = "wiring.json"  # kinds of workers and their connections, as `polyplay systems SYSTEM --diagram` draws them
# numbers that every line of a log has: METRICS in metrics.jsonl, GAME in episodes.jsonl
METRICS = ("wall_seconds", "frames", "steps", "updates")
GAME = ("wall_seconds", "frames", "steps", "lane", "episodic_return", "episodic_length")
Shape = Mapping[str, Callable[[Any], bool]]  # key in a JSON file → test of its value


def _of_kind(kind: type, of: type = object) -> Callable[[Any], bool]:
    """Return a function that tells whether a value has type `kind` and the items of a list or dict have type `of`."""

    def fits(value: Any) -> bool:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return isinstance(value, kind) and all(isinstance(v, of) for v in inner)

    return fits


SHAPE: Shape = {  # entries of config.json
    **dict.fromkeys(("config", "options", "versions", "machine"), _of_kind(dict)),
    **dict.fromkeys(("sources", "environment"), _of_kind(dict, str)),
    **{"system": _of_kind(str), "started": _of_kind(str), "seed": _of_kind(int), "resumed": _of_kind(list, dict)},
}


def check_shape(path: Path, contents: Row, shape: Shape) -> Row:
    """Return the contents of a JSON file if they are valid. Raises UserError if the file has another schema, or if a
    value is missing or malformed.
    """
    if contents.get("schema") != SCHEMA:
        raise UserError(f"{path}: this version reads schema {SCHEMA} only; use the version that wrote the file")
    if wrong := sorted(name for name, fits in shape.items() if not fits(contents.get(name))):
        raise UserError(f"{path} is damaged: missing or malformed: {', '.join(wrong)}; put back a copy of it")
    return contents


RunDescription = Mapping[str, Any]  # entries of config.json: system, config, options, sources and environment


def rewind(directory: Path, counters: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Remove the log lines that a run wrote after a checkpoint, because the resumed run writes them again.

    Also remove damaged lines, and report their number by `say`. If a game ended before the checkpoint, its line stays,
    even if it was logged later. Each changed file is replaced atomically. Raises OSError.
    """
    steps, updates = counters["steps"], counters["updates"]
    learnt, played = counters.get("agents", {"0": updates}), max(updates, 1)  # the update's match is played again

    def cut(name: str, numbers: tuple[str, ...], stays: Callable[[Row], bool]) -> None:
        _cut(directory / name, lambda row: is_row(row, numbers), lambda row: row if stays(row) else None, say)

    for name, numbers in (("metrics", METRICS), ("decisions", ("steps",)), ("evaluations", ("steps",))):
        cut(f"{name}.jsonl", numbers, lambda row: row["steps"] <= steps)
    if not league_log.has_league(directory):  # all matches of a league stay
        cut(league_log.LOG, ("steps", "candidate"), lambda row: row["candidate"] < played)

    def game_stays(row: Row) -> bool:  # of a gate's games (tests of new weights), those of earlier updates stay
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
    """Return the numbers of a worker's lanes (parallel environments). name: "FIRST+NUMBER", as in a checkpoint."""
    first, _, n = name.partition("+")
    return range(int(first), int(first) + int(n))


def _delivery(line: Any) -> bool:
    return is_row(line, ("from",)) or (isinstance(line, list) and bool(line) and is_number(line[0]))


def _cut(path: Path, whole: Callable[[Any], bool], keep: Callable[[Any], Any], say: Callable[[str], None]) -> None:
    """Replace each line of a JSON lines file by `keep(line)`. Remove damaged lines, and those where this is None."""
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
    """Write a new run's config.json. The run's `config` and `options` come from `options.to_json`. Raises OSError."""
    contents = {"schema": SCHEMA, "seed": run["options"]["seed"], **run, **machine.stamp(), "resumed": []}
    contents |= {"signature": signed} if (signed := signature(contents)) else {}
    write_json(directory / "config.json", contents)


def amend_config(directory: Path, run: RunDescription, was: Row | None = None) -> None:
    """Record a resume in config.json: new options, time, machine and versions. was: notes about earlier values."""
    contents = read_config(directory, population=True)
    ours = is_ours(contents)
    contents |= {k: run[k] for k in ("config", "options", "sources")}
    contents |= {"signature": signed} if ours and (signed := signature(contents)) else {}
    contents |= {"resumed": [*contents["resumed"], machine.stamp() | (was or {})]}
    write_json(directory / "config.json", contents)


def read_config(directory: Path, whole: bool = False, population: bool = False) -> Row:
    """Read a run's config.json. Raises UserError if the file is missing or damaged, or has another schema.

    `whole`: whether to require all entries that a resume needs.
    `population`: whether to accept a population (runs trained together). If false, a population raises UserError.
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
    """Tell whether config.json belongs to a population. The members of a population are runs themselves."""
    return "over" in config["config"]


def is_read_only(directory: Path) -> bool:
    """Tell whether nothing may be added to a run, because its directory or its parent has a file READ_ONLY."""
    return any((folder / READ_ONLY).exists() for folder in (directory, directory.resolve().parent))


def config_hash(config: Mapping[str, Any]) -> str:
    """Return a hash of the values that decide training and play: system, configuration, environment and precision."""
    parts = {k: config[k] for k in ("system", "config", "environment")}
    parts["options"] = {k: config["options"].get(k) for k in ("precision",)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def origin(directory: Path) -> Row:
    """Return the origin of a run's scores: its configuration hash, machine and commit. Raises UserError."""
    config = read_config(directory, whole=True)
    last = (config["resumed"] or [config])[-1]
    return {"config_hash": config_hash(config), "machine": last.get("machine"), "commit": last.get("commit")}


# population.json.


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
    """Read population.json, also during training. Raises UserError if the file is missing or damaged."""
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
INSIDE = ("*", "*/*", "*/*/seed-*")  # paths of runs, and of a sweep's runs, in a directory; no members of populations


def list_runs(places: Sequence[Path]) -> list[Row]:
    """Return a dict about each run that `places` name or contain, newest first. If `places` name a population, its
    members are included too. Raises UserError if a directory does not exist.
    """
    found = {run.resolve(): run for place in places for run in _runs_in(place)}
    return sorted(map(describe_run, found.values()), key=lambda row: row["started"], reverse=True)


def _runs_in(place: Path) -> Iterable[Path]:
    """Return the directories of runs: a run `place` and its members, or the runs in `place` and in its sweeps."""
    if not place.is_dir():
        raise UserError(f"DIR: no directory {place}; name one that holds runs, as `polyplay train` makes runs/")
    if (place / "config.json").exists():
        return [place, *sorted(path.parent for path in (place / store.MEMBERS).glob("*/config.json"))]
    return sorted(path.parent for pattern in INSIDE for path in place.glob(f"{pattern}/config.json"))


def describe_run(directory: Path) -> Row:
    """Return a dict about a run, for a list of runs. A damaged run has the state "damaged" and an entry `error`."""
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
    """Return a run's state: running, done, failed or stopped (or killed). summary: contents of summary.json, or {}."""
    code, reason = summary.get("exit_code"), str(summary.get("reason", ""))
    if is_locked(directory):
        return "running"
    if summary and (not is_number(code) or code in (1, 2)):
        return "failed"
    return "stopped" if not summary or code or reason.startswith("stopped") else "done"


def read_summary(directory: Path) -> Row:
    """Read summary.json of a run. Return {} if the run has not ended or the file is damaged."""
    return read_part(directory, "summary.json")


def read_part(directory: Path, name: str) -> Row:
    """Read a JSON file in a run's directory. Return {} if the file is missing or damaged."""
    try:
        return read_object(directory / name)
    except (OSError, ValueError):
        return {}


def _of_members(directory: Path) -> Row:
    """Return the total counters of a population that has not ended."""
    population = read_population(directory)
    best = store.best_member(population["members"])
    totals = {name: sum(m[name] for m in population["members"]) for name in ("frames", "steps")}
    return totals | {"wall_seconds": population["wall_seconds"], "best_score": best and best["score"]}
