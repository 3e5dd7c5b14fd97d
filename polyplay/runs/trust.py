"""Whose run it is. A run whose files name code executes that wherever it is opened: modules of its environment, network
and wrappers, what a cluster's machines send, the program that an evaluation was played against. So one that was made
elsewhere needs a word from the user. Runs made here carry a signature by the user's own key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import sys
from collections.abc import Collection
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.files import Row

OWN = ("ALE/", "game:", "arena:", "envpool:")  # beginnings of environments that import nothing of the user's
MAIN = "__main__"  # the program that runs; workers and the command line have none of the user's
CLUSTER = "ray:"  # its machines and this one execute what they send each other
PROGRAM = "gtp:"
NAMED = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # module:callable
WORD = "read that, then say --trust"


def check_trust(directory: Path, config: Row, trust: bool, given: Collection[str] = ()) -> list[str]:
    """A line for every file that this run executes by name. config: config.json. given: of env and network those that
    are the caller's own. Raises UserError: the run was made elsewhere, and `trust` was not given.
    """
    own = {"environment" if name == "env" else name for name in given}
    code = {what: name for what, name in code_of(config).items() if what not in own}
    if code and not trust and not is_ours(config):
        executed = " and ".join(
            f"its {what} {name} would execute {_executed(what, name)}" for what, name in code.items()
        )
        raise UserError(f"RUN: {directory} was made elsewhere, and {executed}: {WORD}")
    files = {what: name for what, name in code.items() if what != "cluster" and not name.startswith(f"{MAIN}:")}
    return [f"the run's {what} {name} executes {_executed(what, name)}" for what, name in files.items()]


def check_program(path: Path, record: Row, trust: bool) -> None:
    """Raises UserError: the evaluation in this file was recorded elsewhere, and names a command that would be executed,
    and `trust` was not given.
    """
    name = str(record.get("against"))
    if name.startswith(PROGRAM) and not trust and not _is_signed(record.get("signature"), _played(record)):
        command = name.removeprefix(PROGRAM)
        raise UserError(f"RUN: {path} was made elsewhere, and would execute the command {command}: {WORD}")


def check_named(where: Path, other: Row, config: Row) -> None:
    """Raises UserError: the `config` and `options` of another file of a run name code that its config.json does not."""
    known = {*code_of(config).values()}
    for what, name in code_of(other).items():
        if name not in known:
            raise UserError(f"{where} is damaged: its {what} {name} is not the run's own; put back a copy of it")


def names_same_code(config: Row, own: Row) -> bool:
    """Whether a run with `own` configuration and options, begun here, would execute the same, so no word is needed."""
    return code_of(config) == code_of(own)


def code_of(config: Row) -> dict[str, str]:
    """What a run executes by name, by what that is. config: config.json, or its `config` and `options`."""
    settings, options = config["config"], config.get("options", {})
    others = {"network": settings.get("network"), **_wrappers(options), **_arguments(options), **_varied(settings)}
    found = {what: name for what, name in others.items() if isinstance(name, str) and ":" in name}
    if isinstance(hosts := options.get("hosts"), str) and hosts.startswith(CLUSTER) and hosts != CLUSTER:
        found["cluster"] = hosts
    return ({"environment": settings["env"]} if runs_code(settings.get("env")) else {}) | found


def _wrappers(options: Row) -> dict[str, Any]:
    wrappers = options.get("wrapper")
    return {f"wrapper {i}": name for i, name in enumerate(wrappers if isinstance(wrappers, list | dict) else [])}


def _arguments(options: Row) -> dict[str, str]:
    """What is named in values that an environment is built with: some build others by name."""
    words = options.get("env_kwargs")
    found = [str(word).partition("=")[::2] for word in (words if isinstance(words, list | dict) else [])]
    return {f"argument {name} {i}": code for name, value in found for i, code in enumerate(NAMED.findall(value))}


def _varied(settings: Row) -> dict[str, str]:
    """Networks and environments that a population may choose from."""
    words = settings.get("vary")
    pairs = [str(word).partition("=")[::2] for word in (words if isinstance(words, list | dict) else [])]
    named = [(name, choices.split(",")) for name, choices in pairs if name in ("env", "network")]
    return {f"varied {name} {i}": choice for name, choices in named for i, choice in enumerate(choices)}


def runs_code(env: object) -> bool:
    """Whether an environment of this name is a module's."""
    return isinstance(env, str) and ":" in env.removeprefix("toy:") and not env.startswith(OWN)


def _executed(what: str, name: str) -> str:
    """What is executed by that name, in words."""
    if what == "cluster":
        return "what its machines send"
    module, _, attribute = (name.removeprefix("toy:") if what == "environment" else name).partition(":")
    return f"{attribute} of the program that runs" if module == MAIN else module_file(module)


def module_file(module: str) -> str:
    """The file that importing `module` would execute, found without executing anything."""
    places: Any = [os.getcwd(), *sys.path] if os.getcwd() not in sys.path else sys.path
    found: ModuleSpec | None = None
    parts = module.split(".")
    for i in range(len(parts)):
        found = PathFinder.find_spec(".".join(parts[: i + 1]), places)
        if found is None:
            return f"the module {module}, which is not found here,"
        places = found.submodule_search_locations or []
    return str(found.origin if found and found.origin else f"the module {module}")


def signature(config: Row) -> str | None:
    """By which a run is known as made here; None: it needs none, or the key cannot be kept."""
    return _sign(_what(config)) if code_of(config) else None


def program_signature(record: Row) -> str | None:
    """The same of an evaluation."""
    return _sign(_played(record)) if str(record.get("against")).startswith(PROGRAM) else None


def is_ours(config: Row) -> bool:
    """Whether no word is needed to open a run: it executes nothing by name, or is signed."""
    return not code_of(config) or _is_signed(config.get("signature"), _what(config))


def unsigned(config: Row) -> str:
    """Why this run, begun here, will seem made elsewhere; empty: it will not."""
    if "signature" in config or not code_of(config):
        return ""
    return f"{_key_file()} cannot be written, so this run is not signed: whoever opens it says --trust"


def _what(config: Row) -> list[Any]:
    """What is signed of a run."""
    settings = config["config"]
    names = {
        "environment": settings.get("env"),
        "network": settings.get("network"),
        **_wrappers(config.get("options", {})),
    }
    return [names | code_of(config), config.get("started")]


def _played(record: Row) -> list[Any]:
    """What is signed of an evaluation."""
    return [record.get("against"), record.get("checkpoint_sha256"), record.get("finished")]


def _is_signed(given: object, what: list[Any]) -> bool:
    key = _key(make=False)
    return isinstance(given, str) and key is not None and hmac.compare_digest(given.encode(), _hash(what, key).encode())


def _sign(what: list[Any]) -> str | None:
    """None: the key cannot be kept."""
    key = _key(make=True)
    return None if key is None else _hash(what, key)


def _hash(what: list[Any], key: bytes) -> str:
    return hmac.new(key, json.dumps(what).encode(), hashlib.sha256).hexdigest()


def _key(make: bool) -> bytes | None:
    """The user's own; None: there is none."""
    path = _key_file()
    with contextlib.suppress(OSError):
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(fd, "wb") as file:
                    file.write(secrets.token_bytes(32))
        return path.read_bytes() or None
    return None


def _key_file() -> Path:
    data = os.environ.get("XDG_DATA_HOME")
    home = Path(data) if data else Path(os.path.expanduser("~/.local/share"))  # as it is, where there is no home
    return home / "polyplay" / "key"
