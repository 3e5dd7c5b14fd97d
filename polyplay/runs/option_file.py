"""Option files: read a file, write the options of a run, and read a sweep (several runs with different values).

An option file is TOML, YAML or JSON with a line for each option. The config.json of a run is an option file too. Text
values are parsed like words on a command line. The table `defaults` holds the values that came from a preset or a
default, not from the user. Imports no torch.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from polyplay import systems
from polyplay.core.errors import UserError
from polyplay.core.files import Row, refusal_text
from polyplay.population.rules import combinations
from polyplay.runs import flags
from polyplay.runs.directory import SHAPE, check_shape, check_trust
from polyplay.runs.options import FLAG, OF_ONE_RUN, RunOptions, Settings, Sources, is_order, to_json

SAME_LIMIT = ("frames", "steps")  # both set the length of a run; giving either overrides both in a file
DEFAULTS, GRID, SEEDS = "defaults", "grid", "seeds"  # keys of a file that are not options


@dataclass(frozen=True)
class OptionFile:
    """Contents of an option file.

    `usual`: names of options whose value came from a preset or a default.
    `option`: the command-line option that names the file, for error messages.
    """

    path: Path
    system: str | None
    values: Row
    usual: frozenset[str] = frozenset()
    option: str = "--config"

    def choose_system(self, given: str | None) -> str:
        """Return the system `given` on the command line, or else the file's system. Raises UserError if the two systems
        differ, if both are missing, or if the file's system is unknown.
        """
        known = systems.names()
        if self.system is not None and ":" not in self.system and self.system.lower() not in known:
            near = flags.did_you_mean(self.system, known)
            allowed = f"{', '.join(known)}, or module:NAME of a page"
            raise UserError(f"{self.option}: {self.path}: system: {self.system} given, allowed: {allowed}{near}")
        if given is None and self.system is None:
            text = f'{self.option}: {self.path} names no system: give SYSTEM, or write system = "NAME" into it'
            raise UserError(text)
        if given is not None and self.system is not None and given.lower() != self.system.lower():
            raise UserError(f"SYSTEM: {given} given, but {self.path} is of {self.system}: leave SYSTEM out")
        return str(given or self.system)

    def checked(self, system: str, types: flags.OptionTypes, given: Mapping[str, object]) -> dict[str, object]:
        """Return {option: checked value} for the file's options, except those in `given`. Raises UserError if the
        system lacks an option, or if a value is not allowed.
        """
        values = {self.name_of(key, value, system, types): (key, value) for key, value in self.values.items()}
        taken = {*given, *(SAME_LIMIT if any(given.get(k) is not None for k in SAME_LIMIT) else ())}
        found = {name: self.check(*pair, types[name]) for name, pair in values.items()}
        return {name: value for name, value in found.items() if name not in taken}

    def name_of(self, key: str, value: object, system: str, types: flags.OptionTypes) -> str:
        """Return the option that a key of the file names. Raises UserError if the system has no such option."""
        name = option_name(key)
        if name in types:
            return name
        near = flags.nearest_flag(name, types, str)
        if name in (GRID, SEEDS):
            near = f"; a file of several runs is for --sweep: polyplay train --sweep {self.path}"
        shown = "a table" if isinstance(value, dict) else _shown(value)
        raise UserError(f"{self.option}: {self.path}: {key}: {shown} given, but {system} has no such option{near}")

    def check(self, key: str, value: object, hint: object) -> object:
        """Check a value of the file, and convert it to the type `hint`. Raises UserError if it is not allowed."""
        label = f"{self.option}: {self.path}: {key}"
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, list | dict) for item in items):
            raise UserError(f"{label}: a table or lists in a list given, allowed: {flags.allowed(hint)}")
        return flags.check_value(label, [_word(item) for item in items] if items is value else _word(value), hint)

    def explained(self, e: UserError, given: Collection[str]) -> UserError:
        """If the message of `e` names options of the file, return an error that also shows their values. Else return
        `e`.
        """
        named = {option_name(word) for word in FLAG.findall(str(e))} - {*given, *self.usual}
        own = {key: value for key, value in self.values.items() if option_name(key) in named}
        lines = ", ".join(f"{key} = {_shown(value)}" for key, value in own.items())
        return UserError(f"{e}; {self.path} has {lines}") if own else e


def option_name(key: str) -> str:
    """Return the option that a file's key means. The key may have hyphens, or be an alias from another library."""
    word = key.replace("-", "_")
    return flags.ALIASES.get(word, word)


def _word(value: object) -> object:
    return flags.Word(value) if isinstance(value, str) else value


def _shown(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# Read a file.


def read_option_file(path: str | Path, given: Collection[str] = (), option: str = "--config") -> OptionFile:
    """Read an option file, or a run's config.json. Raises UserError. given: options that override the file."""
    path, of_run = Path(path), Path(path).is_dir()
    path = path / "config.json" if of_run else path
    contents = read_contents(path, option)
    if "schema" in contents or of_run:
        return _of_run(path, check_shape(path, contents, SHAPE), given)
    system, usual = contents.pop("system", None), contents.pop(DEFAULTS, {})
    if not isinstance(usual, dict):
        raise UserError(f"{option}: {path}: {DEFAULTS}: {_shown(usual)} given, allowed: a table of options")
    names = Counter(map(option_name, contents))
    if twice := [name for name, n in names.items() if n > 1]:
        raise UserError(f"{option}: {path}: {twice[0]}: given twice, allowed: each option once; leave one out")
    usual = {k: v for k, v in usual.items() if option_name(k) not in names}
    seen = frozenset(map(option_name, usual))
    return OptionFile(path, None if system is None else str(system), usual | contents, seen, option)


def read_contents(path: Path, option: str) -> Row:
    """Read a file in the format of its suffix. Raises UserError if the file is unreadable or lists no options."""
    suffix = path.suffix.lower()
    cure = f"give {'a directory of a run, or ' * (option == '--config')}a text file {SUFFIXES}"
    try:
        text = path.read_text("utf-8")
        if suffix not in READERS:
            raise OSError(0, f"its name ends in {suffix or 'no format'}")
        cure = f"write options such as {EXAMPLES[suffix]}"
        contents = READERS[suffix](text)
        if contents in (None, {}):
            raise ValueError("it is empty")
        if not isinstance(contents, dict):
            raise ValueError("it must map options to values")
        return contents
    except UnicodeDecodeError:
        why = "it is not a text file"
    except (OSError, ValueError, RecursionError) as e:
        why = e.strerror or str(e) if isinstance(e, OSError) else str(e)
    raise UserError(f"{option}: {path} cannot be read: {why}; {cure}")


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once) if text.strip() else None


def _once(pairs: Sequence[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if twice := [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]:
        raise ValueError(f"{twice[0]} is there twice")
    return found


def _yaml(text: str) -> Any:
    """Parse YAML into text, lists and dicts. Values such as `on`, `no` and 3e-4 stay text, not booleans and numbers."""
    import yaml

    def value(node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return _once([(str(key.value), value(item)) for key, item in node.value])
        if isinstance(node, yaml.SequenceNode):
            return [value(item) for item in node.value]
        return None if node.style is None and node.value in ("", "~", "null") else node.value

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("it has references (*NAME), of which a few lines make many values: write these out")
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        at = e.problem_mark
        raise ValueError(f"{e.problem}" + (f" (at line {at.line + 1}, column {at.column + 1})" if at else "")) from None
    except yaml.YAMLError as e:
        raise ValueError(str(e)) from None
    return None if root is None else value(root)


READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml, ".json": _json}
SUFFIXES = ".toml, .yaml or .json"
EXAMPLES = {".toml": "lanes = 8", ".yaml": "lanes: 8", ".yml": "lanes: 8", ".json": '{"lanes": 8}'}


def _of_run(path: Path, contents: Row, given: Collection[str]) -> OptionFile:
    """Return a run's config.json as an option file. Raises UserError if the run was made elsewhere and its options
    would execute code. Options in `given` are not checked, because the command line replaces them.
    """
    check_trust(path, contents, False, given, "read that, then give these options as well", "--config")
    config = {k: v for k, v in contents["config"].items() if k != "frames" or contents["options"].get("steps") is None}
    known = {f.name for f in fields(RunOptions)} - {*OF_ONE_RUN}  # options that no longer exist are left out
    values = config | {k: v for k, v in contents["options"].items() if k in known}
    usual = {k for k, source in contents["sources"].items() if source.partition(" ")[0] in ("default", "preset")}
    return OptionFile(path, contents["system"], values, frozenset(usual))


# Write a file.


def write_option_file(path: Path, system: str, settings: Settings, options: RunOptions, sources: Sources) -> None:
    """Write all options of a run to a file for --config. Raises UserError if the file exists, or cannot be written."""
    if path.suffix.lower() not in READERS:
        raise UserError(f"--save-config: {path} given, allowed: a file {SUFFIXES}")
    values = to_json(settings) | to_json(options)
    values = {k: v for k, v in values.items() if k != "frames" or options.steps is None}
    given = {k: v for k, v in values.items() if is_order(k, sources)}
    contents = {"system": system, **given, DEFAULTS: {k: v for k, v in values.items() if k not in given}}
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_text(contents, path.suffix.lower()))
    except FileExistsError:
        raise UserError(f"--save-config: {path} exists already; name another file, or remove it") from None
    except OSError as e:
        raise UserError(f"--save-config: {path} cannot be written: {refusal_text(e)}; name another file") from None


def _text(contents: Row, suffix: str) -> str:
    if suffix == ".json":
        return json.dumps(contents, indent=2, ensure_ascii=False) + "\n"
    if suffix == ".toml":
        usual = contents[DEFAULTS]
        given = {k: v for k, v in contents.items() if v is not usual}
        return "\n".join([*map(_toml, given.items()), "", f"[{DEFAULTS}]", *map(_toml, usual.items()), ""])
    import yaml

    text: str = yaml.safe_dump(contents, sort_keys=False, allow_unicode=True, width=1000)
    return text


def _toml(pair: tuple[str, Any]) -> str:
    # TOML has no null, and forbids the character DEL.
    text = json.dumps("none" if pair[1] is None else pair[1], ensure_ascii=False)
    return f"{pair[0]} = {text}".replace("\x7f", "\\u007f")


# Sweeps: files with a list `seeds`, with lists of option values in a table `grid`, or with both.


@dataclass(frozen=True)
class SweepPart:
    """One run of a sweep."""

    file: OptionFile  # the run's options, without a seed
    name: str  # the run's values from the grid as text; "" without a grid
    seed: int | None  # None: the sweep lists no seeds

    def directory(self, parent: Path) -> Path:
        """Return the run's directory inside `parent`. It is the same each time that the sweep is started."""
        return parent.joinpath(*filter(None, [self.name, "" if self.seed is None else f"seed-{self.seed}"]))


@dataclass(frozen=True)
class Sweep:
    """Several runs that differ in seed or options."""

    file: OptionFile  # options that all runs share
    seeds: Sequence[int] | None  # None: the file lists none
    grid: Row  # {option: list of its values}

    def parts(self, system: str, types: flags.OptionTypes, given: Collection[str]) -> list[SweepPart]:
        """Return all runs of the sweep: for each seed, one run for every combination of grid values.

        `given`: names of options on the command line. Raises UserError if an option or a value of the grid is not
        allowed.
        """
        seeds = [None] if self.seeds is None else self.seeds
        lists = dict[str, list[Any]]()
        for key, values in self.grid.items():
            name = self.file.name_of(key, values, system, types)
            lists[name] = _grid_values(self.file, (key, values), name, types[name], given)
        points = combinations(lists)
        names = [",".join(f"{name}={_slug(value)}" for name, value in point.items()) for point in points]
        if len({*names}) < len(names) or max(map(len, names)) > LONGEST:
            names = [f"grid-{i}" for i in range(len(names))]
        usual = self.file.usual - {*lists}
        files = [replace(self.file, values=self.file.values | _plain(point), usual=usual) for point in points]
        return [SweepPart(file, name, seed) for seed in seeds for file, name in zip(files, names, strict=True)]


def _grid_values(
    file: OptionFile, row: tuple[str, object], name: str, hint: object, given: Collection[str]
) -> list[Any]:
    key, values = row
    label = f"{file.option}: {file.path}: {GRID}: {key}"
    if name in ALONE:
        raise UserError(f"{label}: {_shown(values)} given, but all runs share it: {ALONE[name]}")
    if name in given:
        raise UserError(f"{flags.flag(name)}: given, but {file.path} has a list of values for it: leave one out")
    if name in {*map(option_name, file.values)} - file.usual:
        raise UserError(f"{label}: {_shown(values)} given, and {name} above the grid too: leave one out")
    if not isinstance(values, list) or not values:
        shown = "a table" if isinstance(values, dict) else _shown(values) or "an empty list"
        raise UserError(f"{label}: {shown} given, allowed: a list of values in brackets, each tried once")
    checked = [file.check(f"{GRID}: {key}", value, hint) for value in values]
    return list(dict.fromkeys(checked))


LONGEST = 150  # most letters in the name of a run's directory
ALONE = dict.fromkeys(OF_ONE_RUN, "write it above the grid")
ALONE |= {"seed": 'write seeds = "0..4" above the grid', "over": "write a file for each"}


def _slug(value: object) -> str:
    text = "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return re.sub(r"[^\w.+-]+", "-", text.lower() if value is None or isinstance(value, bool) else text)


def _plain(point: Mapping[str, Any]) -> Row:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in point.items()}


def read_sweep(path: Path, given: Collection[str]) -> Sweep:
    """Read the file of a sweep. Raises UserError. given: names of options that override those in the file."""
    file = read_option_file(path, given, "--sweep")
    values = dict(file.values)
    seeds, grid = values.pop(SEEDS, None), values.pop(GRID, {})
    if not isinstance(grid, dict) or (seeds is None and not grid):
        needs = 'seeds = "0..4", or a table [grid] with lists such as lanes = [8, 16]'
        raise UserError(f"--sweep: {file.path}: nothing to vary: write {needs}; --config trains one run of a file")
    if seeds is not None:
        words = [str(seed) for seed in (seeds if isinstance(seeds, list) else [seeds])]
        seeds = parse_seeds(words, f"--sweep: {file.path}: seeds")
        if "seed" in values and "seed" not in file.usual:
            raise UserError(f"--sweep: {file.path}: seed: {_shown(values['seed'])} given, and seeds too: leave one out")
    return Sweep(replace(file, values=values, option="--sweep"), seeds, grid)


def parse_seeds(words: Sequence[str], label: str = "--seeds") -> list[int]:
    """Parse seeds such as 0..4 or 0,1,2 into a list in the given order, without duplicates. Raises UserError."""
    seeds = dict[int, None]()
    for part in ",".join(words).split(","):
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            allowed = "must be whole numbers from 0, such as 0..4, 0,1,2 or 0 1 2"
            raise UserError(f"{label} '{' '.join(words)}': {allowed}")
        seeds |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return list(seeds)
