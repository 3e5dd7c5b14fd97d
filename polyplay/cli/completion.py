"""--completion: write a shell script that completes verbs, systems, options and their values as a user types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args, get_origin

from polyplay import systems
from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.runs import flags
from polyplay.runs.options import RunOptions
from polyplay.systems import _presets

SHELLS = {  # shell → where the script belongs
    "bash": "~/.local/share/bash-completion/completions/polyplay",
    "zsh": "a file that ~/.zshrc sources",
    "fish": "~/.config/fish/completions/polyplay.fish",
}
Options = dict[str, list[str]]  # option as typed → its values; []: any value
BASH = """# polyplay --completion {shell} > {place}
{begin}_polyplay() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
  esac
  if [[ -z $words && $word == -* ]]; then
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}} " in
{options}
    esac
  elif [[ $COMP_CWORD == 1 ]]; then
    words="{verbs}"
  elif [[ $COMP_CWORD == 2 && ${{COMP_WORDS[1]}} =~ ^(train|systems|bench)$ ]]; then
    words="{systems}"
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$word") )
}}
complete -o default -F _polyplay polyplay"""


def completion(words: Sequence[str]) -> str:
    """Return the script that completes commands in a shell (bash, zsh or fish). Raises UserError for other shells."""
    shell = words[0] if words else ""
    if shell not in SHELLS or len(words) > 1:
        raise UserError(f"--completion: '{' '.join(words)}' given, allowed: {', '.join(SHELLS)}")
    common, own = _values_of(RunOptions), {name: _values_of(systems.load(name).Config) for name in systems.names()}
    found = {verb: verb_options(verb) for verb in main.VERBS if verb not in ("train", "systems")}
    found["systems"] = {"--diagram": [], "--new": []}
    found["train"] = {**common, **{key: [] for key in ("--seeds", "--config", "--save-config", "--sweep", "--part")}}
    for name, options in own.items():
        found[f"train {name}"] = options | {"--preset": _presets.names(systems.load(name))}
    place = SHELLS[shell]
    if shell == "fish":
        return "\n".join([f"# polyplay --completion fish > {place}", *_fish(found)])
    # bash takes the first pattern of a `case` that fits: patterns of a system come before those of all systems
    order = sorted(found, key=lambda context: -len(context.split()))
    values = [
        f'    "{context} "*"{option}") words="{" ".join(allowed)}" ;;'
        for context in order
        for option, allowed in found[context].items()
        if allowed
    ]
    both = {context: {**(found["train"] if " " in context else {}), **found[context]} for context in order}
    listed = [f'      "{context} "*) words="{" ".join(options)}" ;;' for context, options in both.items()]
    begin = "autoload -U +X compinit bashcompinit; (( $+functions[compdef] )) || compinit; bashcompinit\n"
    texts = {"values": "\n".join(values), "options": "\n".join(listed), "verbs": " ".join(main.VERBS)}
    return BASH.format(shell=shell, place=place, begin=begin * (shell == "zsh"), systems=" ".join(own), **texts)


def verb_options(verb: str) -> Options:
    """Return the options of a verb, with their allowed values."""
    try:
        main.dispatch([verb, flags.HELP[-1]])
    except flags.Help as page:
        return _values_of(*map(type, page.defaults), *page.modes.values())
    return {}


def _values_of(*tables: type) -> Options:
    """Return the options of these dataclasses, with their allowed values. [] means any value."""
    found = Options()
    for name, hint in (both for table in tables for both in flags.option_types(table).items()):
        kinds = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
        found[flags.flag(name)] = [str(value) for kind in kinds for value in get_args(kind)]
    return found


def _fish(found: dict[str, Options]) -> Iterator[str]:
    yield f"complete -c polyplay -n __fish_use_subcommand -fa '{' '.join(main.VERBS)}'"
    every = " ".join(systems.names())
    yield f"complete -c polyplay -n '__fish_seen_subcommand_from train systems bench' -a '{every}'"
    for context, options in found.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in context.split())
        for option, allowed in options.items():
            values = f" -xa '{' '.join(allowed)}'" if allowed else ""
            yield f"complete -c polyplay -n '{seen}' -l {option[2:]}{values}"
