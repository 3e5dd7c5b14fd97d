"""Whose run it is. A run whose environment or network is `module:callable` executes that module wherever it is opened,
so one that was made elsewhere needs a word from the user. Runs made here carry a signature by the user's own key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from polyplay.common.errors import UserError
from polyplay.common.files import Row

OWN = ("ALE/", "game:", "arena:", "envpool:", "__main__:")  # names that import nothing of the user's


def check_trust(directory: Path, config: Row, trust: bool) -> list[str]:
    """A line for every file that this run executes by name. config: config.json. Raises UserError: the run was made
    elsewhere, and `trust` was not given.
    """
    code = {what: name for what, name in _names(config).items() if runs_code(name)}
    files = {what: module_file(name.removeprefix("toy:").partition(":")[0]) for what, name in code.items()}
    if code and not trust and not _signed(config):
        executed = " and ".join(f"its {what} {code[what]} would execute {files[what]}" for what in code)
        raise UserError(f"RUN: {directory} was made elsewhere, and {executed}: read that, then say --trust")
    return [f"the run's {what} {code[what]} executes {files[what]}" for what in code]


def names_same_code(config: Row, own: Row) -> bool:
    """Whether a run with `own` configuration, begun here, would execute the same modules: then no word is needed."""
    same = all(own.get(key) == config["config"].get(key) for key in ("env", "network"))
    return same and not config["options"].get("wrapper")


def _names(config: Row) -> dict[str, Any]:
    found = {"environment": config["config"].get("env"), "network": config["config"].get("network")}
    wrappers = config["options"].get("wrapper")
    return found | {f"wrapper {i}": name for i, name in enumerate(wrappers if isinstance(wrappers, list) else [])}


def runs_code(env: object) -> bool:
    """Whether an environment or network of this name is a module's."""
    return isinstance(env, str) and ":" in env.removeprefix("toy:") and not env.startswith(OWN)


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
    key = _key(make=True) if any(map(runs_code, _names(config).values())) else None
    return None if key is None else _sign(config, key)


def unsigned(config: Row) -> str:
    """Why this run, begun here, will seem made elsewhere; empty: it will not."""
    if "signature" in config or not any(map(runs_code, _names(config).values())):
        return ""
    return f"{_key_file()} cannot be written, so this run is not signed: whoever opens it says --trust"


def _signed(config: Row) -> bool:
    given, key = config.get("signature"), _key(make=False)
    return (
        isinstance(given, str) and key is not None and hmac.compare_digest(given.encode(), _sign(config, key).encode())
    )


def _sign(config: Row, key: bytes) -> str:
    what = json.dumps([_names(config), config["started"]])
    return hmac.new(key, what.encode(), hashlib.sha256).hexdigest()


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
