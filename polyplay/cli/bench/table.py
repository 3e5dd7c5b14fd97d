"""What `polyplay bench` found, for a terminal: at most 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyplay.common.files import Row
from polyplay.runs.flags import flag

HEADS = {"env": "env", "infer": "acting", "learn": "learn", "dearer": "dearer", "overhead": "overhead", "idle": "idle"}
NEAR = 0.15  # a prediction within this holds
LEGEND = (
    "limit: cores / (env + acting + learning), each measured alone. The rest of the table: where all core time went.\n"
    "dearer: the parts cost more in the run than alone. overhead: all else that the run did. "
    "others: other programs. idle: cores at rest.\n"
    "waits: the part of the workers' time in which they slept for one another; none of them spins."
)


def print_table(document: Row, console: Console) -> None:
    machine = document["machine"]
    head = f"{machine['cpu']}, {document['cores']} cores · {document['env']} · {document['precision']}"
    console.print(Text(f"polyplay bench: {head}", style="bold"))
    limits = document["machine_limits"]
    sizes = f"acting for {limits['acting']} lanes, learning from {limits['rows']} rows once"
    console.print(Text(f"\nthe machine, agent steps/s: environment {limits['env_per_s']:,.0f}; {sizes}"))
    console.print(_networks(limits["networks"]))
    console.print(Text(f"the systems with {document['network']}: agent steps/s, and where the core time goes in %"))
    console.print(_systems(document["systems"], console.width))
    console.print(Text(LEGEND, style="bright_black"))
    console.print()
    grid = Table.grid(padding=(0, 2))
    for row in document["systems"]:
        for i, line in enumerate(lines(row)):
            grid.add_row(Text(row["system"] if i == 0 else "", style="bold"), line)
    for note in document["notes"]:
        grid.add_row(Text("note", style="bold yellow"), Text(note))
    console.print(grid)


def _networks(rows: Sequence[Row]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    made.add_column("network", style="bold", no_wrap=True)
    made.add_column("numbers", no_wrap=True)
    for heading in ("acting", "learning", "limit of all three"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        rates = (row["infer_per_s"], row["learn_per_s"], row["limit"])
        made.add_row(row["network"], row["precision"], *(f"{r:,.0f}" for r in rates))
    return made


def _systems(rows: Sequence[Row], width: int) -> Table:
    disturbed = any(percent(r, "others") >= 0.01 for r in rows if "error" not in r)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(width >= (104 if disturbed else 95))))
    made.add_column("system", style="bold", no_wrap=True)
    shares = [*HEADS, *(["others"] if disturbed else [])]
    for heading in ("steps/s", "limit", "of it", *(HEADS.get(k, k) for k in shares), "waits"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if "error" in row:
            made.add_row(row["system"], "failed")
            continue
        rates = (f"{row['sps']:,.0f}", f"{row['limit']:,.0f}", f"{row['fraction']:.0%}")
        parts = [f"{100 * percent(row, k):.0f}" for k in shares]
        made.add_row(row["system"], *rates, *parts, f"{row['wait_share']:.0%}")
    return made


def percent(row: Row, name: str) -> float:
    """A part of a system's core time."""
    where = row["where_us"]
    us = sum(v for k, v in where.items() if k.startswith("dearer_")) if name == "dearer" else where[name]
    return us / row["whole_us"]


def lines(row: Row) -> list[Text]:
    """A system's bottleneck, settings and removal, in words."""
    if "error" in row:
        return [Text(f"failed: {row['error'].splitlines()[0]}", style="bold red")]
    settings = [f"{flag(k)} {v}" for k, v in row["settings"].items() if k != "network"]
    quick = ["--preset quick"] if row["keywords"].get("preset") == "quick" else []
    passes = f" in {row['epochs']} passes" if row["epochs"] > 1 else ""
    sizes = f"acts for {row['acting_batch']:.3g} at once, learns from {row['rows_per_update']}{passes}"
    described = [Text(row["change"]), Text("; ".join([" ".join([*quick, *settings]), sizes]), style="bright_black")]
    return described + [Text(f"without {w['what']}: {removal(row, w)}") for w in row.get("without", [])]


def removal(row: Row, without: Row) -> str:
    if "error" in without:
        return f"failed: {without['error'].splitlines()[0]}"
    own = without.get("own_sps", [row["sps"]])  # the runs right before and after
    rates = f"{sum(own) / len(own):,.0f} → {without['sps']:,.0f} steps/s"
    off = without["measured"] / without["predicted"]
    verdict = "as" if abs(off - 1.0) <= NEAR else "more than" if off > 1.0 else "less than"
    return f"{rates}, {without['measured']:.2f} times as fast, {verdict} predicted ({without['predicted']:.2f})"
