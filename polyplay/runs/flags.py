"""The words of a command line: flags, their values, and what to say when they are wrong.

Knows dataclasses only. Every mistake is a UserError of one line; tyro converts the values and writes the
help. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import io
import math
import operator
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from polyplay.common.errors import UserError

T = TypeVar("T")
Hints = dict[str, Any]  # option → its type

ALIASES = {"env_id": "env", "total_timesteps": "steps", "n": "steps"}
ELSEWHERE = {  # what other libraries call it: only to suggest, never accepted
    "learning_rate": "lr", "lr": "learning_rate", "num_envs": "lanes", "n_envs": "lanes",
    "num_workers": "actors", "num_steps": "unroll", "n_steps": "unroll", "rollout": "unroll",
    "ent_coef": "entropy_cost", "vf_coef": "value_cost", "total_frames": "frames", "train_dir": "run",
    "train_for_env_steps": "steps", "experiment": "run", "serial_mode": "serial", "discount": "gamma",
    "network": "net", "net": "network",
}  # fmt: skip
HELP = ("-h", "--help")
NUMBER = re.compile(r"-(\d|\.\d|inf|nan)")
SHORT = re.compile(r"([+-]?\d[\d_]*\.?\d*)([kmb]|e\+?\d+)", re.IGNORECASE)
SCALE = {"k": 10**3, "m": 10**6, "b": 10**9}
BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    type(None): "none",
}


def flag(name: str) -> str:
    """How an option is spelled on the command line."""
    return "--" + name.replace("_", "-")


def wants_help(args: Sequence[str]) -> bool:
    return any(a in HELP for a in args)


def read_flags(cls: type[T], args: Sequence[str], command: str, about: str = "") -> tuple[T, set[str]]:
    """An instance of the dataclass `cls` from flags, and the names of the fields that were given."""
    given = tokens(args, hints({"": cls}), command)
    if wants_help(args):
        show_help({"command": cls()}, command, about)
    return convert({"command": cls()}, given, command)["command"], set(given)


def hints(groups: Mapping[str, type]) -> Hints:
    """Every option of some dataclasses and its type."""
    found: Hints = {}
    for cls in groups.values():
        of = get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if f.name in found:
                raise ValueError(f"{cls.__name__}.{f.name}: another group has this option, rename the field")
            found[f.name] = of[f.name]
    return found


# From words to values


def tokens(args: Sequence[str], hints: Hints, command: str) -> dict[str, list[str]]:
    """Option → the words given for it, spelled as tyro reads them. If a flag comes twice the last counts."""
    given: dict[str, list[str]] = {}
    current = None
    for arg in args:
        if arg in HELP:
            continue
        if arg.startswith("-") and not NUMBER.match(arg):
            head, equals, value = arg.partition("=")
            current, off = _option(head, hints, command)
            if off and equals:
                raise UserError(f"{head} takes no value, '{value}' given: write {flag(current)}={value}")
            given[current] = ["false"] if off else [value] if equals else []
        elif current is None or (given[current] and not _many(hints[current])):
            hint = f"; did you mean --env {arg}?" if "env" in hints and current is None else ""
            raise UserError(f"unexpected '{arg}' for {command}: options begin with --{hint}")
        else:
            given[current].append(arg)
    return {name: _spell(name, words, hints[name]) for name, words in given.items()}


def _option(head: str, hints: Hints, command: str) -> tuple[str, bool]:
    """One flag as typed → (option, whether it was spelled --no-option)."""
    word = head.lstrip("-").replace("-", "_")
    name = ALIASES.get(word, word)
    if name in hints and (head.startswith("--") or head == "-n"):
        return name, False
    if word.startswith("no_") and hints.get(word[3:]) is bool:
        return word[3:], True
    raise UserError(f"unknown option {head} for {command}{nearest_flag(word, hints, flag)}")


def nearest_flag(word: str, names: Iterable[str], spell: Callable[[str], str]) -> str:
    """The end of a line about an unknown `word`: the name probably meant, or where all are listed."""
    names = list(names)
    known = [*names, *(a for a in ALIASES if ALIASES[a] in names)]
    found = [ELSEWHERE[word]] if ELSEWHERE.get(word) in names else []
    few = len(names) <= 12  # then listing them beats guessing
    found = found or difflib.get_close_matches(word, known, 1, 0.6 if few else 0.5)
    found = found or [n for n in names if len(word) > 2 and (word in n or n in word.split("_"))]
    if found:
        return f"; did you mean {spell(found[0])}?"
    return f"; it takes {', '.join(map(spell, names))}" if few else "; --help lists all options"


def _spell(name: str, words: list[str], hint: Any) -> list[str]:
    kinds = {hint, *get_args(hint)}
    if hint is bool:
        word = words[0].lower() if words else "true"
        return [str(BOOLS[word])] if word in BOOLS else _reject(flag(name), word, hint)
    if _many(hint):
        return [_whole(w) if int in kinds else w for part in words for w in part.split(",") if w]
    if words in ([], [""]):
        raise UserError(f"{flag(name)} needs a value: {allowed(hint)}")
    return [_whole(words[0])] if int in kinds and float not in kinds else words


def _many(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _whole(text: str) -> str:
    """10M, 200k and 1e7 as plain digits; anything else as it is."""
    match = SHORT.fullmatch(text)
    if not match:
        return text
    digits, unit = match[1].replace("_", ""), match[2].lower()
    value = float(digits) * SCALE[unit] if unit in SCALE else float(digits + unit)
    return str(int(value)) if math.isfinite(value) and value.is_integer() else text


def convert(defaults: Mapping[str, Any], given: Mapping[str, list[str]], command: str) -> dict[str, Any]:
    """The instances `defaults` with what `tokens` gave put in, by group."""
    types_ = hints({name: type(value) for name, value in defaults.items()})
    try:
        made = _tyro(defaults, [a for name, words in given.items() for a in _argv(name, words, types_[name])], command)
    except SystemExit:
        raise _guilty(defaults, given, types_, command) from None
    for value in made.values():
        for name in given.keys() & {f.name for f in dataclasses.fields(value)}:
            check_flags(flag(name), getattr(value, name), types_[name])
    return made


def show_help(defaults: Mapping[str, Any], command: str, about: str = "") -> NoReturn:
    """Print tyro's help and raise SystemExit(0)."""
    _tyro(defaults, ["--help"], command, about)
    raise SystemExit(0)


def _tyro(defaults: Mapping[str, Any], args: list[str], command: str, about: str | None = None) -> dict[str, Any]:
    """One instance per group; SystemExit where tyro cannot. It prints only if `about` is given: the help."""
    import tyro

    options = dataclasses.make_dataclass("Options", [(n, type(v)) for n, v in defaults.items()], frozen=True)
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_optional)
    call = functools.partial(
        tyro.cli,
        options,
        prog=command,
        description=about,
        args=args,
        default=options(**defaults),
        config=(tyro.conf.OmitArgPrefixes,),
        registry=registry,
    )
    if about is not None:
        call()
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        made = call()
    return {name: getattr(made, name) for name in defaults}


def _optional(info: Any) -> Any:
    """tyro's rule for `int | None` and its like: the help says INT, the word `none` is None."""
    from tyro.constructors import PrimitiveConstructorSpec

    args = get_args(info.type)
    kinds = [k for k in args if k in (int, float, str)]
    if len(kinds) != 1 or set(args) != {type(None), *kinds}:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kinds[0].__name__.upper(),
        instance_from_str=lambda words: None if words[0].lower() == "none" else kinds[0](words[0]),
        is_instance=lambda value: value is None or isinstance(value, kinds[0]),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def _guilty(defaults: Mapping[str, Any], given: Mapping[str, list[str]], types_: Hints, command: str) -> UserError:
    """Which option tyro stopped at: each is tried alone."""
    for name, words in given.items():
        try:
            _tyro(defaults, _argv(name, words, types_[name]), command)
        except SystemExit:
            return UserError(complaint(flag(name), " ".join(words), types_[name]))
        except UserError:
            continue
    return UserError(f"{command} cannot read {' '.join(map(flag, given))} together")


def _argv(name: str, words: list[str], hint: Any) -> list[str]:
    if hint is bool:
        return [flag(name) if words == ["True"] else "--no-" + flag(name)[2:]]
    return [flag(name), *words] if _many(hint) else [f"{flag(name)}={words[0]}"]


# One value against its type


def check_flags(label: str, value: Any, hint: Any) -> Any:
    """`value` as `hint` wants it, else UserError. Ints pass as floats, lists as tuples, callables as str."""
    try:
        return _fit(value, hint)
    except (TypeError, ValueError):
        return _reject(label, value, hint)


def _fit(value: Any, hint: Any) -> Any:
    """ValueError or TypeError where `value` does not fit."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _first(value, args)
    if origin is tuple:
        return _items(value, args)
    if origin is Literal:
        fits = any(type(a) is type(value) and a == value for a in args)
    elif hint in (int, float):
        value = _number(value, hint)
        fits = math.isfinite(value)
    else:
        value = os.fspath(value) if hint is str and isinstance(value, os.PathLike) else value
        fits = isinstance(value, hint) or (hint is str and callable(value))
    if not fits:
        raise ValueError
    return value


def _number(value: Any, kind: type) -> Any:
    if isinstance(value, (bool, str)):
        raise TypeError
    return operator.index(value) if kind is int else float(value)


def _items(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(value, str):
        raise TypeError
    items = tuple(value)
    kinds = (kinds[0],) * len(items) if kinds[-1:] == (...,) else kinds
    return tuple(_fit(v, k) for v, k in zip(items, kinds, strict=True))


def _first(value: Any, kinds: Iterable[Any]) -> Any:
    for kind in kinds:
        try:
            return _fit(value, kind)
        except (TypeError, ValueError):
            continue
    raise ValueError


def _reject(label: str, value: Any, hint: Any) -> NoReturn:
    raise UserError(complaint(label, value, hint))


def complaint(label: str, value: Any, hint: Any) -> str:
    """One line: the option, what was given, what is allowed, and the nearest choice."""
    choices = [str(a) for a in get_args(hint)] if get_origin(hint) is Literal else []
    near = difflib.get_close_matches(str(value), choices, 1)
    given = " ".join(str(value).split())
    return f"{label}: '{given}' given, allowed: {allowed(hint)}" + (f"; did you mean {near[0]}?" if near else "")


def allowed(hint: Any) -> str:
    """What a type allows, in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(allowed, args))
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin is tuple and args[-1:] == (...,):
        return f"any number of values, each {allowed(args[0])}"
    if origin is tuple:
        return f"{len(args)} values: {', '.join(map(allowed, args))}"
    return WORDS[hint]
