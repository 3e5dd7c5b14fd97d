"""What `polyplay bench` found, for a terminal: at most 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyplay.common.files import Row
from polyplay.runs.flags import flag

HEADS = {"env": "env", "infer": "acting", "learn": "learn", "overhead": "overhead", "idle": "idle"}
LEGEND = (
    "In %: where the time of all cores went. overhead: all else that the run did. others: other programs. "
    "idle: cores at rest.\n"
    "waits: the part of the workers' time in which they slept for one another; none of them spins."
)


def print_table(document: Row, console: Console) -> None:
    machine = document["machine"]
    head = f"{machine['cpu']}, {document['cores']} cores · {document['env']} · {document['precision']}"
    console.print(Text(f"polyplay bench: {head}", style="bold"))
    console.print(Text(f"\n{document['network']}: agent steps/s, and where the core time goes in %"))
    console.print(_systems(document["systems"]))
    console.print(Text(LEGEND, style="bright_black"))
    console.print()
    grid = Table.grid(padding=(0, 2))
    for row in document["systems"]:
        for i, line in enumerate(lines(row)):
            grid.add_row(Text(row["system"] if i == 0 else "", style="bold"), line)
    for note in document["notes"]:
        grid.add_row(Text("note", style="bold yellow"), Text(note))
    console.print(grid)


def _systems(rows: Sequence[Row]) -> Table:
    disturbed = any(r["shares"]["others"] >= 0.01 for r in rows if "error" not in r)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    made.add_column("system", style="bold", no_wrap=True)
    shares = [*HEADS, *(["others"] if disturbed else [])]
    for heading in ("steps/s", *(HEADS.get(k, k) for k in shares), "waits"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if "error" in row:
            made.add_row(row["system"], "failed")
            continue
        parts = [f"{100 * row['shares'][k]:.0f}" for k in shares]
        made.add_row(row["system"], f"{row['sps']:,.0f}", *parts, f"{row['wait_share']:.0%}")
    return made


def lines(row: Row) -> list[Text]:
    """A system's bottleneck and settings, in words."""
    if "error" in row:
        return [Text(f"failed: {row['error'].splitlines()[0]}", style="bold red")]
    settings = [f"{flag(k)} {v}" for k, v in row["settings"].items() if k != "network"]
    quick = ["--preset quick"] if row["keywords"].get("preset") == "quick" else []
    passes = f" in {row['epochs']} passes" if row["epochs"] > 1 else ""
    sizes = f"acts for {row['acting_batch']:.3g} at once, learns from {row['rows_per_update']}{passes}"
    return [Text(row["change"]), Text("; ".join([" ".join([*quick, *settings]), sizes]), style="bright_black")]
