"""`polyplay systems`."""

from __future__ import annotations

from polyplay.common.errors import UserError


def command(words: list[str]) -> None:
    """Prints the table of systems."""
    from rich import box
    from rich.table import Table

    from polyplay import systems
    from polyplay.runs import flags
    from polyplay.runs.reports.terminal import default_console

    if words and not flags.wants_help(words):
        raise UserError(f"unexpected '{words[0]}' for polyplay systems: it takes no options")
    if words:
        print("usage: polyplay systems\n\nThe six choices that make each system, in a table.")
        return
    rows = {name: systems.load(name).ROW for name in systems.names()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("system", style="bold", no_wrap=True)
    for heading in next(iter(rows.values()), {}):
        table.add_column(heading)
    for name, row in rows.items():
        table.add_row(name, *row.values())
    default_console().print(table)
