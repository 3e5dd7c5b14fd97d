"""`polyplay runs`: a table of the runs in some directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Column, Table
from rich.text import Text

from polyplay.cli.arguments import parse_words
from polyplay.common.files import Row
from polyplay.runs.listing import list_runs
from polyplay.runs.reports.screen import default_console
from polyplay.runs.reports.terminal import short_count

HOME = Path("runs")
STYLES = {"running": "green", "stopped": "yellow", "failed": "bold red", "damaged": "bold red"}


@dataclass(frozen=True)
class RunsOptions:
    """Lists the runs in directories, newest first."""

    json: bool = False
    """print a JSON list instead of a table"""


def command(words: list[str]) -> None:
    """Prints the table."""
    about = "DIR: directories of runs, or runs (none: runs/)."
    places, options, _ = parse_words(RunsOptions, words, "polyplay runs [DIR …]", about, several=True)
    rows = list_runs([Path(place) for place in places] or [HOME] * HOME.is_dir())
    if options.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_table(rows)
    else:
        begin = "" if places else "/ yet: polyplay train ppo --env CartPole-v1 begins one"
        print(f"no runs in {', '.join(places) or HOME}{begin}")


def _print_table(rows: Sequence[Row]) -> None:
    console = default_console()
    console.print(table_of(rows))
    for row in rows:
        if error := row.get("error"):
            console.print(Text(f"damaged: {error}", style="bold red"), soft_wrap=True)


def table_of(rows: Sequence[Row]) -> Table:
    """Names are folded where a line is too long for the terminal, numbers are not."""
    names = [Column("run", overflow="fold"), Column("system", no_wrap=True), Column("env", overflow="fold")]
    marks = [Column("seed", justify="right", no_wrap=True), Column("state", no_wrap=True)]
    numbers = [Column(name, justify="right", no_wrap=True) for name in ("frames/steps", "min", "return", "best")]
    table = Table(*names, *marks, *numbers, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[Text]:
    name, state = Path(row["run"]), Text(row["state"], style=STYLES.get(row["state"], ""))
    shown = f"{name.parent.name}/{name.name}" if name.name.startswith("seed-") else name.name
    seed, seconds = row.get("seed"), row.get("wall_seconds")
    counts = list(dict.fromkeys("–" if row.get(k) is None else short_count(row[k]) for k in ("frames", "steps")))
    returns = ("–" if row.get(k) is None else f"{row[k]:,.4g}" for k in ("return", "return_best"))
    words = (shown, row.get("system", "–"), row.get("env", "–"), "–" if seed is None else str(seed))
    numbers = ("/".join(counts), "–" if seconds is None else f"{seconds / 60:.1f}", *returns)
    return [*map(Text, words), state, *map(Text, numbers)]
