"""Scores as tables for a terminal."""

from __future__ import annotations

from typing import Any

WIDEST = 400


def print_scores(result: dict[str, Any]) -> None:
    """Print what `scores.command` found."""
    from polyplay.runs.reports.terminal import default_console

    console = default_console()
    for title, table in [_columns(result)] if "columns" in result else [_games(result), _aggregates(result)]:
        if table is not None:
            console.print(title, style="bold", soft_wrap=True)
            wanted = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
            console.width = max(console.width, wanted)  # a figure is never cut
            console.print(table)
    for note in result["notes"]:
        console.print(note, style="bright_black", soft_wrap=True)


def _table(words: list[str], numbers: list[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in words:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _columns(result: dict[str, Any]) -> tuple[str, Any]:
    table = _table(["column", "protocol", "baselines"], ["games", "median", "mean", "iqm"])
    for row in result["columns"]:
        numbers = (f"{row[k]:,.1f}" for k in ("median", "mean", "iqm"))
        table.add_row(row["column"], row["protocol"], row["baselines"], str(row["games"]), *numbers)
    return "Published scores, human-normalised (%)", table


def _games(result: dict[str, Any]) -> tuple[str, Any]:
    rows, base = result["games"], result["baselines"]
    title = f"{result['protocol']}, {result['place']} scores; % of {base['name']}: {base['what']}"
    beside = list(rows[0]["published"]) if rows else []
    table = _table(["game"], ["runs", "games", "ε", "score", "95 %", "norm. %", "random", "human", *beside])
    for row in rows:
        epsilon = " ".join(f"{e:g}" for e in row["epsilon"]) or "–"
        between = _between(*row["interval"])
        numbers = (row[k] for k in ("normalised", "random", "human"))
        others = (row["published"].get(k) for k in beside)
        cells = [_number(x) for x in (*numbers, *others)]
        table.add_row(
            row["game"], str(row["runs"]), str(row["episodes"]), epsilon, _number(row["score"]), between, *cells
        )
    return title, table


def _aggregates(result: dict[str, Any]) -> tuple[str, Any]:
    if not result["aggregates"]:
        return "", None
    title = f"Aggregates over the same games, % of {result['baselines']['name']}; in brackets 95 % over runs"
    table = _table(["agent"], ["games", "median", "mean", "iqm"])
    for row in result["aggregates"]:
        found = (row[k] for k in ("median", "mean", "iqm"))
        cells = [_number(e["value"]) + _bracket(e["low"], e["high"]) for e in found]
        table.add_row(row["agent"], str(row["games"]), *cells)
    return title, table


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.1f}"


def _between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:,.1f} … {high:,.1f}"


def _bracket(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{_between(low, high)}]"
