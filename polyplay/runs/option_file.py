"""Options from a file: a run's config.json, or TOML, JSON or YAML with a line for each option.

Imports no torch.
"""

from __future__ import annotations

import importlib.util
import json
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.runs import flags
from polyplay.runs.directory import SCHEMA
from polyplay.runs.trust import check_trust, code_of

OF_ONE_RUN = ("run", "resume", "dry_run", "quiet", "verbose")  # in config.json, and of no meaning for another run
EXAMPLES = {
    ".toml": 'env = "CartPole-v1", a line for each, text in quotes',
    ".json": '{"env": "CartPole-v1", "lanes": 8}',
    ".yaml": "env: CartPole-v1, a line for each",
    ".yml": "env: CartPole-v1, a line for each",
}
SAME_LIMIT = ("frames", "steps")  # one of them overrides the other


@dataclass(frozen=True)
class OptionFile:
    """What a file says. usual: names whose values were defaults where it was written."""

    path: Path
    system: str | None
    values: Row
    usual: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        return f"config {self.path}"

    def choose_system(self, given: str | None) -> str:
        """The system given, or else the file's. Raises UserError: they differ, or there is none."""
        if given is None and self.system is None:
            raise UserError(f'--config: {self.path} names no system: give SYSTEM, or write system = "NAME" into it')
        if given is not None and self.system is not None and given.lower() != self.system.lower():
            raise UserError(f"SYSTEM: {given} given, but {self.path} is of {self.system}: leave SYSTEM out")
        return str(given or self.system)

    def checked(self, types: flags.OptionTypes, given: Mapping[str, object]) -> dict[str, object]:
        """The values of options that were not given otherwise. Raises UserError: a name or value that does not fit."""
        values = {}
        for key, value in self.values.items():
            name = flags.ALIASES.get(key.replace("-", "_"), key.replace("-", "_"))
            if name not in types:
                hint = flags.nearest_flag(name, types, str)
                raise UserError(f"--config: {self.path}: unknown option {key}{hint}")
            values[name] = _value(f"--config: {self.path}: {name}", value, types[name])
        taken = {*given, *(SAME_LIMIT if any(given.get(k) is not None for k in SAME_LIMIT) else ())}
        return {name: value for name, value in values.items() if name not in taken}


def _value(label: str, value: object, hint: object) -> object:
    """Text is read as on a command line."""
    if isinstance(value, str) and get_origin(hint) is tuple:
        value = [flags.Word(part) for part in flags.split_items(value)]
    elif isinstance(value, str):
        value = flags.Word(value)
    return flags.check_value(label, value, hint)


def read_option_file(path: str | Path, given: Collection[str] = ()) -> OptionFile:
    """The file, or the config.json in a run's directory. given: names of options that override it. Raises UserError."""
    path, of_run = Path(path), Path(path).is_dir()
    path = path / "config.json" if of_run else path
    contents = _read(path)
    if "schema" in contents or of_run:
        return _of_run(path, contents, given)
    system = contents.pop("system", None)
    if system is not None and not isinstance(system, str):
        raise UserError(f"--config: {path}: system: '{system}' given, allowed: the name of a system")
    return OptionFile(path, system, contents)


def _read(path: Path) -> Row:
    parsers: dict[str, Callable[[str], Any]] = {
        ".json": json.loads,
        ".toml": tomllib.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise UserError(f"--config: {path} given, allowed: a file .json, .toml or .yaml, or the directory of a run")
    try:
        contents = parse(path.read_text("utf-8"))
    except OSError as e:
        raise UserError(f"--config: {path} cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        kind, line = path.suffix[1:].upper(), EXAMPLES[path.suffix.lower()]
        raise UserError(f"--config: {path} is no {kind}: {e}; write options as in {line}") from None
    if not isinstance(contents, dict) or not all(isinstance(key, str) for key in contents):
        raise UserError(f"--config: {path} has no options: write a line for each, name and value")
    return contents


def _yaml(text: str) -> Any:
    """Raises ValueError, and UserError: PyYAML is not installed."""
    if importlib.util.find_spec("yaml") is None:
        raise UserError("--config: YAML needs PyYAML, which is not installed: pip install pyyaml, or write TOML")
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ValueError(e) from None


def _of_run(path: Path, contents: Row, given: Collection[str]) -> OptionFile:
    """What a run wrote; an environment or network of a module only where the run was made here, or it is given anew."""
    if contents.get("schema") != SCHEMA:
        text = f"--config: {path} has schema {contents.get('schema', 'none')}, this version reads {SCHEMA}"
        raise UserError(f"{text}: use the version that wrote it")
    config, options, sources = contents.get("config"), contents.get("options"), contents.get("sources")
    whole = isinstance(contents.get("system"), str) and isinstance(contents.get("started"), str)
    if not (whole and isinstance(config, dict) and isinstance(options, dict) and isinstance(sources, dict)):
        raise UserError(f"--config: {path} is damaged: no system, config, options and sources as a run writes them")
    _check_code(path, contents, given)
    values = {**config, **{k: v for k, v in options.items() if k not in OF_ONE_RUN}}
    usual = {k for k, source in sources.items() if str(source).partition(" ")[0] in ("default", "preset")}
    return OptionFile(path, contents["system"], values, frozenset(usual))


def _check_code(path: Path, contents: Row, given: Collection[str]) -> None:
    """Raises UserError: the run was made elsewhere, and code that it names would be executed."""
    own = {part: {k: v for k, v in contents[part].items() if k not in given} for part in ("config", "options")}
    if not code_of(own):
        return
    try:
        check_trust(path, contents, False)
    except UserError as e:
        text = str(e).removeprefix("RUN: ").partition(": read that")[0]
        named = [k for k in ("env", "network", "vary", "wrapper", "hosts") if code_of(_only(own, k))]
        anew = " ".join(f"{flags.flag(k)} {_spelled({**own['config'], **own['options']}[k])}" for k in named)
        raise UserError(f"--config: {text}: read that, then give {anew} as well") from None


def _only(contents: Row, name: str) -> Row:
    return {part: {k: v for k, v in contents[part].items() if k == name} for part in contents}


def _spelled(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | dict) else str(value)
