"""Parse command-line flags into dataclasses, check their values, and print their help.

If the user makes a mistake, a UserError with a message of one line is raised. Imports no torch.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import operator
import os
import re
import shutil
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from polyplay.core.errors import Range, UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

# Descriptions of a dataclass's fields, read from the comments in its source code, for --help and the documentation.


def meanings(cls: type) -> dict[str, str]:
    """Return {field: description}. The description is the text of all comments from the field to the next one."""
    found = dict[str, str]()
    for base in reversed(cls.__mro__):
        if not vars(base).get("__annotations__"):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        (tree,), lines = ast.parse(source).body, source.splitlines()
        assert isinstance(tree, ast.ClassDef)
        for node, below in zip_longest(tree.body, tree.body[1:]):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own = "\n".join(lines[node.lineno - 1 : below.lineno - 1 if below else None])
                found[node.target.id] = " ".join(" ".join(COMMENT.findall(own)).split())
    return found


COMMENT = re.compile(r"  # (?!type: )(.*)")
T = TypeVar("T")
OptionTypes = Mapping[str, object]  # option → its type

ALIASES = {"env_id": "env", "total_timesteps": "steps", "n": "steps", "num_envs": "lanes"}
ELSEWHERE = {  # names in other libraries, which are not accepted → options here; messages suggest the first that exists
    "learning_rate": "lr", "lr": "learning_rate", "n_envs": "lanes", "envs": "lanes", "total_frames": "frames",
    "num_workers": "actors", "num_steps": "unroll", "n_steps": "unroll", "rollout": "unroll",
    "ent_coef": "entropy_cost", "vf_coef": "value_cost", "train_for_env_steps": "steps", "n_timesteps": "steps",
    "discount": "gamma", "network": "net", "net": "network", "buffer_size": "capacity", "net_arch": "hidden",
    "track": "wandb", "batch_size": "minibatches batch", "clip_coef": "clip_range", "gae_lambda": "lam",
    "n_epochs": "epochs", "update_epochs": "epochs", "exp_name": "run", "cuda": "device", "eval_freq": "eval_every",
}  # fmt: skip
HELP = ("-h", "--help", "--help-all")
ADDED = ("change",)  # options that may be repeated on a command line; all their values count
NUMBER = re.compile(r"-(\d|\.\d|inf|nan)")
SHORT = re.compile(r"([+-]?\d[\d_]*\.?\d*)([kmb]|e\+?\d+)", re.IGNORECASE)
ASSIGNED = re.compile(r",(?=[A-Za-z_][\w-]*=)")  # a comma between two assignments NAME=VALUE
SCALE = {"k": 10**3, "m": 10**6, "b": 10**9}
BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NONE = type(None)
UNIONS = (Union, types.UnionType)  # origins of types such as int | None
TYPE_NAMES: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}


def flag(name: str) -> str:
    """Return the name of an option as it is written on the command line, as in --learning-rate for learning_rate."""
    return "--" + name.replace("_", "-")


def wants_help(args: Sequence[str]) -> bool:
    return any(a in HELP for a in args)


def read_flags(
    cls: type[T], args: Sequence[str], command: str, about: str = "", modes: Sequence[type] = ()
) -> tuple[T, set[str]]:
    """Parse flags into an instance of the dataclass `cls`. Also return the names of the fields that were given.

    modes: dataclasses of other modes, for help and messages. The first option of a dataclass selects its mode.
    """
    own, apart = option_types(cls), {flag(next(iter(option_types(mode)))): mode for mode in modes}
    if wants_help(args):
        about = "\n".join(filter(None, [about, docstring(cls)]))
        short = None if HELP[-1] in args else list(own)[:MOST]
        raise Help([cls()], {command.split()[1]: list(own)}, command, about, apart, short)
    for word in (arg.partition("=")[0] for arg in args):
        for switch, mode in apart.items():
            if word not in map(flag, own) and word in map(flag, option_types(mode)):
                raise UserError(f"{word}: is an option of {switch}: add {switch}, or leave {word} out")
    values = parse_values(split_flags(args, own, command), own)
    return cls(**values), set(values)


def docstring(of: object) -> str:
    return " ".join((of.__doc__ or "").split())


def option_types(*classes: type) -> OptionTypes:
    """Return {option: type} of dataclasses. Raises UserError if two dataclasses have an option of the same name."""
    counts = Counter(f.name for cls in classes for f in dataclasses.fields(cls))
    if twice := [name for name, n in counts.items() if n > 1]:
        raise UserError(f"{classes[0].__qualname__}: {', '.join(twice)} is an option of every run too: rename it")
    types = {name: hint for cls in classes for name, hint in get_type_hints(cls, include_extras=True).items()}
    return {f.name: types[f.name] for cls in classes for f in dataclasses.fields(cls)}


# Parse words into values


def split_flags(args: Sequence[str], options: OptionTypes, command: str) -> dict[str, list[str]]:
    """Return {option: its words}. If an option is repeated, its last use counts. Options in ADDED keep all words."""
    given: dict[str, list[str]] = {}
    current = None
    for arg in (arg for arg in args if arg not in HELP):
        if arg.startswith("-") and not NUMBER.match(arg):
            head, equals, value = arg.partition("=")
            word = head.lstrip("-").replace("-", "_")
            current = ALIASES.get(word, word)
            if word.startswith("no_") and not equals and options.get(word[3:]) is bool:
                current, equals, value = word[3:], "=", "false"
            elif current not in options or not (head.startswith("--") or head == "-n"):
                raise UserError(f"unknown option {head} for {command}{nearest_flag(word, options, flag)}")
            before = given.get(current, []) if current in ADDED else []
            given[current] = [*before, value] if equals else [*before]
        elif current is None or (given[current] and get_origin(options[current]) is not tuple):
            hint = f"; did you mean --env {arg}?" if "env" in options and current is None else ""
            raise UserError(f"unexpected '{arg}' for {command}: options begin with --{hint}")
        else:
            given[current].append(arg)
    return given


def nearest_flag(word: str, names: Iterable[str], spell: Callable[[str], str]) -> str:
    """Return the end of a message about an unknown option: the nearest name, or all names, or a hint to --help-all."""
    names = list(names)
    known = [*names, *(a for a in ALIASES if ALIASES[a] in names)]
    found = [name for name in ELSEWHERE.get(word, "").split() if name in names]
    found = found or difflib.get_close_matches(word, known, 1, 0.5)
    if found:
        counted = ", their number" if (word, found[0]) == ("batch_size", "minibatches") else ""
        return f"; did you mean {spell(found[0])}{counted}?"
    return f"; it takes {', '.join(map(spell, names))}" if len(names) <= 24 else "; --help-all lists all options"


def parse_values(given: Mapping[str, list[str]], options: OptionTypes) -> dict[str, object]:
    """Convert the words of `split_flags` to {option: value}. Raises UserError if a value is missing or not allowed."""
    values: dict[str, object] = {}
    for name, words in given.items():
        hint, label = options[name], flag(name)
        several = get_origin(hint) is tuple
        words = ["true"] if hint is bool and not words else words
        if not words or (words == [""] and not several and hint is not bool):
            raise UserError(f"{label} needs a value: {allowed(hint)}" + f"; {label}= for none" * several)
        parts = [part for word in words for part in Word(word).parts()]
        values[name] = check_value(label, parts if several else Word(words[0]), hint)
    return values


class Word(str):
    """Text from a command line or a file that is not yet converted to a Python value."""

    def parts(self) -> list[Word]:
        """Split the text at commas. A value after = keeps its commas: x=1,2,y=3 gives x=1,2 and y=3."""
        return [Word(part) for part in re.split(ASSIGNED if "=" in self else ",", self) if part]

    def read(self, hint: object) -> object:
        """Convert the text to type `hint`. Raises ValueError for a bad number. A wrong choice or boolean stays text."""
        if get_origin(hint) is Literal:
            return next((choice for choice in get_args(hint) if str(choice) == self), str(self))
        if hint is bool:
            return BOOLS.get(self.lower(), str(self))
        return int(expand_suffix(self)) if hint is int else float(self) if hint is float else str(self)


def expand_suffix(text: str) -> str:
    """Return a whole number such as 10M, 200k or 1e7 in plain digits. Return any other text unchanged."""
    match = SHORT.fullmatch(text)
    if not match:
        return text
    digits, unit = match[1].replace("_", ""), match[2].lower()
    value = float(digits) * SCALE[unit] if unit in SCALE else float(digits + unit)
    return str(int(value)) if math.isfinite(value) and value.is_integer() else text


# Check a value against its type


def check_keywords(given: Mapping[str, object], options: OptionTypes, where: str) -> dict[str, object]:
    """Return {option: checked value} from Python keywords. Raises UserError for an unknown keyword or a bad value."""
    values = {}
    for key, value in given.items():
        name = ALIASES.get(key, key)
        if name not in options:
            raise UserError(f"unknown keyword {key} for {where}{nearest_flag(key, options, str)}")
        values[name] = check_value(name, value, options[name])
    return values


def check_value(label: str, value: object, hint: object) -> object:
    """Convert `value` to type `hint`. An int also fits float, a list fits a tuple, and a callable fits str. Raises
    UserError if `value` does not fit. The message has one line, with the option, the value, the allowed values and the
    nearest choice.
    """
    try:
        return _fit(value, hint)
    except (ArithmeticError, TypeError, ValueError):  # ArithmeticError: a whole number too large for a float
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        near = did_you_mean(text, map(str, get_args(hint)) if get_origin(hint) is Literal else [])
        raise UserError(f"{label}: '{' '.join(text.split())}' given, allowed: {allowed(hint)}{near}") from None


def _fit(value: object, hint: object) -> object:
    """Convert `value` to type `hint`. Raises ValueError or TypeError if the value does not fit."""
    origin = get_origin(hint)
    if origin in UNIONS:
        if value is None or (isinstance(value, Word) and value.lower() == "none"):
            return None
        return _fit(value, next(kind for kind in get_args(hint) if kind is not NONE))
    if origin is Annotated:
        kind, numbers = get_args(hint)
        fitted = _fit(value, kind)
        if fitted not in numbers:
            raise ValueError
        return fitted
    if origin is tuple:
        return _items(value.parts() if isinstance(value, Word) else value, hint)
    value = value.read(hint) if isinstance(value, Word) else value
    if origin is Literal:
        fits = any(type(choice) is type(value) and choice == value for choice in get_args(hint))
    elif hint is int or hint is float:
        if isinstance(value, bool | str):
            raise TypeError
        whole = hint is int and not (isinstance(value, float) and value.is_integer())  # 3e2 counts as whole
        value = number = operator.index(value) if whole else hint(value)  # type: ignore[arg-type, call-overload]
        fits = math.isfinite(number)
    else:
        value = os.fspath(value) if hint is str and isinstance(value, os.PathLike) else value
        fits = (isinstance(hint, type) and isinstance(value, hint)) or (hint is str and callable(value))
    if not fits:
        raise ValueError
    return value


def read_assignments(name: str, words: Iterable[str]) -> dict[str, object]:
    """Parse words NAME=VALUE into {NAME: VALUE}. VALUE is a Python literal, true, false or text. Raises UserError."""
    found: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"{flag(name)}: {word} given, allowed: NAME=VALUE, as in {flag(name)} gravity=-9.8")
        try:
            found[key] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (ValueError, SyntaxError):
            found[key] = value
    return found


def _items(value: object, hint: object) -> tuple[object, ...]:
    if isinstance(value, str | Mapping):
        raise TypeError
    items: tuple[object, ...] = tuple(value)  # type: ignore[arg-type] # TypeError is caught
    kinds = get_args(hint)
    kinds = (kinds[0],) * len(items) if kinds[-1:] == (...,) else kinds
    return tuple(_fit(v, kind) for v, kind in zip(items, kinds, strict=True))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error message about a wrong `word`: the nearest choice. Return "" if no choice is near."""
    near = difflib.get_close_matches(word, list(choices), 1)
    return f"; did you mean {near[0]}?" if near else ""


def allowed(hint: object) -> str:
    """Describe the values that a type allows, for help and error messages."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        return ", or ".join("none for the default" if kind is NONE else allowed(kind) for kind in args)
    if origin is Annotated:
        return f"{TYPE_NAMES[args[0]].replace('finite ', '')} {args[1].whole}"
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin is tuple and args[-1:] == (...,):
        return f"any number of values, each {allowed(args[0])}"
    if origin is tuple:
        return f"{len(args)} values: {', '.join(map(allowed, args))}"
    return TYPE_NAMES[hint]


# Help


MOST = 12  # most options that a short help explains
FEW = 20  # most other options whose names a short help lists
ASIDE, CLAUSE = re.compile(r" \([^()]*\)"), re.compile(r"; |\. ")  # a short help omits asides and later clauses


class Help(SystemExit):
    """Exception that ends a command with --help. Its method `show` prints the help.

    defaults: instances of dataclasses of options, with default values.
    groups: {title: its options}. modes: {option that selects a mode: dataclass of the mode's options}.
    short: options that a short help explains (None: print the whole help).
    """

    def __init__(
        self,
        defaults: Sequence[object],
        groups: Mapping[str, Sequence[str]],
        command: str,
        about: str = "",
        modes: Mapping[str, type] | None = None,
        short: Sequence[str] | None = None,
    ) -> None:
        super().__init__(0)
        self.defaults, self.groups, self.modes, self.short = defaults, groups, modes or {}, short
        self.command, self.about = command, about

    def show(self) -> None:
        """Print the options in groups, then the options of each mode. If `short` is given, print a short help only."""
        from rich.console import Console

        console = Console(width=min(shutil.get_terminal_size().columns, 110), highlight=False, markup=False)
        console.print(f"usage: {self.command} [--OPTION VALUE …]\n\n{self.about}\n")
        if self.short is not None:
            self._show_short(console, self.short)
            return
        for title, names in ((title, names) for title, names in self.groups.items() if names):
            console.print(_panel(title, names, self.defaults))
        for switch, mode in self.modes.items():
            console.print(f"\n{switch}: {docstring(mode)}\n")
            console.print(_panel(switch, list(option_types(mode)), [mode()]))

    def _show_short(self, console: Console, names: Sequence[str]) -> None:
        """Print the default and the first clause about each option in `names`. Then list modes and other options."""
        values, types, texts = _described(self.defaults)
        rows = list[tuple[str, str]]()
        for name in names:
            value = f" [{_shown(values[name])}]" if values[name] else ""  # not shown: 0, which means automatic or off
            rows.append((flag(name), CLAUSE.split(ASIDE.sub("", texts.get(name, "")))[0] + value))
        rows.append(("", ""))
        for switch, mode in self.modes.items():
            more = ", ".join(map(flag, list(option_types(mode))[1:]))
            rows.append((switch, f"{CLAUSE.split(docstring(mode).rstrip('.'))[0]}{'; with ' * bool(more)}{more}"))
        others = [name for name in types if name not in names]
        named = f", also {' '.join(map(flag, others))}" if 0 < len(others) <= FEW else ""
        _print_rows(console, [*rows, (HELP[-1], f"explains all options{named}")])


def _print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _panel(title: str, names: Iterable[str], defaults: Sequence[object]) -> Panel:
    from rich.panel import Panel
    from rich.table import Table

    values, types, texts = _described(defaults)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    for name in names:
        table.add_row(flag(name), f"{texts.get(name, '')} ({_default(values[name], types[name])})")
    return Panel(table, title=f"{title} options", title_align="left")


def _described(defaults: Sequence[object]) -> tuple[dict[str, object], dict[str, object], dict[str, str]]:
    """Return the values, types and descriptions of the options of dataclass instances."""
    values, types, texts = dict[str, object](), dict[str, object](), dict[str, str]()
    for instance in defaults:
        values |= vars(instance)
        types |= option_types(type(instance))
        texts |= meanings(type(instance))
    return values, types, texts


def _shown(value: object) -> str:
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return {"": "none", "None": "none", "True": "on", "False": "off"}.get(shown, shown)


def _default(value: object, hint: object) -> str:
    """Return "default: VALUE", followed by the choices or the range of numbers that are allowed."""
    shown, numbers = _shown(value), range_of(hint)
    kinds = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
    limits = numbers.in_short if numbers else f"one of {allowed(kinds[0])}" if kinds else ""
    return f"default: {shown}; {limits}" if limits else f"default: {shown}"


def range_of(hint: object) -> Range | None:
    """Return the range of numbers that a type allows, also inside a union or tuple. Return None without a range."""
    if get_origin(hint) is Annotated:
        return next((x for x in get_args(hint) if isinstance(x, Range)), None)
    return next(filter(None, map(range_of, get_args(hint))), None) if get_origin(hint) in (*UNIONS, tuple) else None
