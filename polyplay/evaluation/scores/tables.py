"""Scores as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Column, Table

from polyplay.common.files import Row
from polyplay.common.statistics import STATISTICS
from polyplay.runs.reports.screen import default_console

WIDEST = 400


def print_scores(result: Row) -> None:
    """Print the result of `compare_runs` or `list_published`."""
    console = default_console()
    for title, table in [_columns(result)] if "columns" in result else [_games(result), _aggregates(result)]:
        if table.row_count:
            console.print(title, style="bold", soft_wrap=True)
            wanted = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
            console.width = max(console.width, wanted)  # a figure is never cut
            console.print(table)
    for note in result["notes"]:
        console.print(note, style="bright_black", soft_wrap=True)


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    columns = [Column(heading, no_wrap=True) for heading in words]
    columns += [Column(heading, justify="right", no_wrap=True) for heading in numbers]
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _columns(result: Row) -> tuple[str, Table]:
    table = _table(["column", "protocol", "baselines"], ["games", *STATISTICS])
    for row in result["columns"]:
        numbers = (f"{row[k]:,.1f}" for k in STATISTICS)
        table.add_row(row["column"], row["protocol"], row["baselines"], str(row["games"]), *numbers)
    return "Published scores, human-normalised (%)", table


def _games(result: Row) -> tuple[str, Table]:
    rows, base = result["games"], result["baselines"]
    title = f"{result['protocol']}, {result['place']} scores; % of {base['name']}: {base['what']}"
    names = list(rows[0]["published"]) if rows else []
    table = _table(["game", "actions"], ["runs", "games", "ε", "score", "95 %", "norm. %", "random", "human", *names])
    for row in rows:
        epsilon = " ".join(f"{e:g}" for e in row["epsilon"]) or "–"
        counts = (str(row["runs"]), str(row["episodes"]), epsilon)
        numbers = (*(row[k] for k in ("normalised", "random", "human")), *(row["published"].get(k) for k in names))
        table.add_row(
            row["game"],
            " ".join(row["actions"]) or "–",
            *counts,
            _number(row["score"]),
            _between(*row["interval"]),
            *map(_number, numbers),
        )
    return title, table


def _aggregates(result: Row) -> tuple[str, Table]:
    title = f"Aggregates over the same games, % of {result['baselines']['name']}; in brackets 95 % over runs"
    table = _table(["agent"], ["games", *STATISTICS])
    for row in result["aggregates"]:
        estimates = (row[k] for k in STATISTICS)
        cells = [_number(e["value"]) + _bracket(e["low"], e["high"]) for e in estimates]
        table.add_row(row["agent"], str(row["games"]), *cells)
    return title, table


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.1f}"


def _between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:,.1f} … {high:,.1f}"


def _bracket(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{_between(low, high)}]"
