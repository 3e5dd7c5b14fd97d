"""What a verb prints: findings as a table, a result as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyplay.common.files import Row
from polyplay.common.findings import Finding

STYLES = {"ok": "green", "warning": "bold yellow", "failed": "bold red", "unseen": "bright_black"}
WORDS = {"ok": "ok", "warning": "warning", "failed": "FAILED", "unseen": "–"}


def _grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that are unseen for the same reason become one."""
    rows: list[Finding] = []
    for text in dict.fromkeys(f.seen for f in findings if f.level == "unseen"):
        names = [f.name for f in findings if (f.level, f.seen) == ("unseen", text)]
        name = names[0] if len(names) == 1 else f"{len(names)} others"
        rows.append(Finding(name, "unseen", text if len(names) == 1 else f"{text}: {', '.join(names)}"))
    return [f for f in findings if f.level != "unseen"] + rows


def print_findings(title: str, findings: Sequence[Finding], card: Mapping[str, str], heading: str) -> None:
    """Print a table of findings, the fix beneath each that is not ok, then the card."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from polyplay.runs.reports.screen import default_console

    console = default_console()
    console.print(Text(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(heading, no_wrap=True, style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("seen", overflow="fold")
    for f in _grouped(findings):
        seen = Text(f.seen)
        if f.fix and f.level in ("warning", "failed"):
            seen.append("\nfix: ", style="bold").append(f.fix)
        table.add_row(f.name, Text(WORDS[f.level], style=STYLES[f.level]), seen)
    console.print(table)
    width = max(map(len, card), default=0)
    for key, value in card.items():
        console.print(Text.assemble((f"{key:<{width}}  ", "bright_black"), value), soft_wrap=True)


def print_result(result: Row) -> None:
    """A line for each value that fits in one."""
    short = {k: v for k, v in result.items() if not isinstance(v, (list, tuple, dict))}
    for key, value in short.items():
        text = "none" if value is None else str(value)
        if isinstance(value, float):
            text = f"{value:g}" if 0.0 < abs(value) < 0.01 else f"{value:,.2f}"
        print(f"{key:<{max(map(len, short))}}  {text}")
