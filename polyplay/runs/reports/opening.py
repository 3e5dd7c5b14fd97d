"""What a run says of itself before it starts: its title, its settings and its plan, in short or in full.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from polyplay.common.files import Row
from polyplay.runs.directory import RunDescription

Fact = tuple[str, str]  # a heading and what is under it
BRIEF = ("workers", "network")  # of a plan, the first clause of each, and those that name what was chosen
CHOICES = ("networks in ", "inputs ", "self-play by ")  # how these begin
LAST = "length"  # with the memory
DETAILS = (  # if --verbose
    *("settings", "search", "cores", "gradient", "memory", "disk", "updates"),
    *("repeat", "resume", "episodes", "actions", "once"),
)
MARKS = {"default": " ", "preset": "+", "command": "*", "keyword": "*", "resume": "*", "chosen": "="}


def short_opening(
    run: RunDescription, directory: Path | str, plan: Iterable[Fact], console: Console
) -> Iterator[RenderableType]:
    """The first lines of a run: five, and one for each part of the plan that was asked for."""
    yield _title_line(f"{run['system']} on {run['config'].get('env')}", directory, console)
    yield from fact_lines([("settings", _changed_settings(run)), *short_facts(plan)], console)


def short_facts(plan: Iterable[Fact]) -> list[Fact]:
    """A plan without its details."""
    whole = list(plan)
    memory = next((f"; memory {text.partition('; ')[0]}" for k, text in whole if k == "memory"), "")
    short = {k: _brief(text) for k, text in whole if k in BRIEF}
    short |= {k: f"{text}{memory} (--verbose: the whole plan)" for k, text in whole if k == LAST}
    return [(k, short.get(k, text)) for k, text in whole if k not in DETAILS]


def opening_lines(
    run: RunDescription, directory: Path | str, plan: Iterable[Fact], console: Console
) -> Iterator[RenderableType]:
    """The same with every value and all of the plan; or all there is of a run that is only planned."""
    yield _title_line(run["system"], directory, console)
    yield settings_lines(run["config"], run["options"], run["sources"], console.width)
    environment = " · ".join(f"{k} {v}" for k, v in run["environment"].items())
    yield from fact_lines([("playing", environment), *plan], console)


def _title_line(what: str, directory: Path | str, console: Console) -> Text:
    title, where = f"polyplay {what}", f"  in {directory}"
    return Text.assemble((title, "bold"), "\n" * (len(title + where) > console.width), where)


def _brief(text: str) -> str:
    first, *others = text.split("; ")
    return "; ".join([first, *(clause for clause in others if clause.startswith(CHOICES))])


def _changed_settings(run: RunDescription) -> str:
    """What was given, and what was chosen for this machine; the rest is the preset's."""
    values, kinds = {**run["config"], **run["options"]}, {k: _kind(v) for k, v in run["sources"].items()}
    chosen = [f"{k} {_short(values[k])}" for k, kind in kinds.items() if kind == "chosen" and k in values]
    given = [k for k, kind in kinds.items() if kind not in ("default", "preset", "chosen") and k in values]
    told = [f"{k} {_short(values[k])}" for k in given if k not in ("env", "run", "preset")]
    parts = [f"preset {run['options']['preset']}", *([", ".join(told)] if told else [])]
    return "; ".join([*parts, *([f"chosen for this machine: {', '.join(chosen)}"] if chosen else [])])


def fact_lines(facts: Iterable[Fact], console: Console) -> Iterator[RenderableType]:
    """Facts about a run under their headings: folded on a terminal, one line each elsewhere."""
    if not console.is_terminal:
        yield from (Text(f"{heading:<8} {text}") for heading, text in facts)
        return
    table = Table.grid(padding=(0, 1))
    table.add_column(style="bold", no_wrap=True, min_width=8)
    table.add_column()
    for fact in facts:
        table.add_row(*fact)
    yield table


def settings_lines(config: Row, options: Row, sources: Mapping[str, str], width: int) -> RenderableType:
    """All values of the system and the options that were set, each marked, in as many columns as fit."""
    kinds = {name: _kind(source) for name, source in sources.items()}
    set_options = {k: v for k, v in options.items() if kinds.get(k, "default") != "default" or k == "seed"}
    decided = options.get("frames") is not None or options.get("steps") is not None  # then no budget does
    idle = {"budget"} if decided else set[str]()
    idle |= set() if str(config.get("env")).startswith("ALE/") else {"atari"}
    values = {k: v for k, v in (config | set_options).items() if k not in idle}
    shown = {k: (kinds.get(k, "default"), _short(v)) for k, v in values.items()}
    across = max(1, min(4, (width + 2) // (6 + max(len(k) + len(text) for k, (_, text) in shown.items()))))
    cells = [(MARKS.get(kind, "*"), name, text, "") for name, (kind, text) in shown.items()]
    down = -(-len(cells) // across)
    table = Table.grid(padding=(0, 1))
    for _ in range(across):
        table.add_column(style="bold yellow", no_wrap=True)
        table.add_column(style="bright_black", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(width=1)
    for i in range(down):
        table.add_row(*chain.from_iterable(cells[i::down]))
    used = {kind for kind, _ in shown.values()}
    legend = [f"+ {s}" for s in sorted({s for s in sources.values() if s.startswith("preset")})]
    legend += ["* given"] if used - {"default", "preset", "chosen"} else []
    legend += ["= chosen for this machine"] if "chosen" in used else []
    return Group(table, Text("  ".join(["  unmarked: the default", *legend]), style="bright_black"))


def _kind(source: str) -> str:
    return source.partition(" ")[0]


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        return " ".join(map(_short, value)) or "()"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def value_text(value: object) -> str:
    """A hyperparameter; three digits of a fraction."""
    return f"{value:.3g}" if isinstance(value, float) else _short(value)
