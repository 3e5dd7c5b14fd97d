"""What `polyplay bench` found, for a terminal: at most 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyplay.flags import flag

SHARES = ("env", "infer", "learn", "dearer", "overhead", "idle")
HEADS = {"env": "env", "infer": "acting", "learn": "learning", "dearer": "dearer", "overhead": "overhead", "idle": "idle"}
LEGEND = (
    "limit: cores / (env + acting + learning), each measured alone. The rest of the table: where all core time went.\n"
    "dearer: acting and learning cost more in the run than alone. overhead: all else that the run did. "
    "idle: cores at rest.\nwaits: the part of the workers' time in which they slept for one another; none of them spins."
)


def show(document: Mapping[str, Any], console: Console) -> None:
    machine = document["machine"]
    head = f"{machine['cpu']}, {document['cores']} cores · {document['env']} · {document['precision']}"
    console.print(Text(f"polyplay bench: {head}", style="bold"))
    console.print(_networks(document))
    console.print(_systems(document))
    console.print(Text(LEGEND, style="bright_black"))
    console.print()
    for row in document["systems"]:
        for line in lines(row):
            console.print(line)
    for note in document["notes"]:
        console.print(Text.assemble(("note  ", "bold yellow"), note))


def _table(title: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title=title, title_justify="left")
    made.title_style = ""
    return made


def _networks(document: Mapping[str, Any]) -> Table:
    found = document["machine_limits"]
    sizes = f"acting for {found['acting']} lanes, learning from {found['rows']} rows once"
    made = _table(f"the machine, agent steps/s: environment {found['env_per_s']:,.0f}; {sizes}")
    made.add_column("network", style="bold", no_wrap=True)
    made.add_column("numbers", no_wrap=True)
    for heading in ("acting", "learning", "limit of all three"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in found["networks"]:
        rates = (row["infer_per_s"], row["learn_per_s"], row["limit"])
        made.add_row(row["network"], row["precision"], *(f"{r:,.0f}" for r in rates))
    return made


def _systems(document: Mapping[str, Any]) -> Table:
    made = _table(f"the systems, network {document['network']}: agent steps/s, and where the core time goes in %")
    made.add_column("system", style="bold", no_wrap=True)
    for heading in ("steps/s", "limit", "of it", *HEADS.values(), "waits"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in document["systems"]:
        if "error" in row:
            made.add_row(row["system"], "failed")
            continue
        rates = (f"{row['sps']:,.0f}", f"{row['limit']:,.0f}", f"{row['fraction']:.0%}")
        parts = [f"{100 * share(row, k):.0f}" for k in SHARES]
        made.add_row(row["system"], *rates, *parts, f"{row['wait_share']:.0%}")
    return made


def share(row: Mapping[str, Any], name: str) -> float:
    """A part of a system's core time."""
    where = row["where_us"]
    us = where["dearer_infer"] + where["dearer_learn"] if name == "dearer" else where[name]
    return us / row["whole_us"]


def lines(row: Mapping[str, Any]) -> list[Text]:
    """A system's bottleneck, settings and removals, in words."""
    name = f"{row['system']:<8}"
    if "error" in row:
        return [Text.assemble((name, "bold"), (f"failed: {row['error'].splitlines()[0]}", "bold red"))]
    told = [Text.assemble((name, "bold"), row["change"])]
    settings = " ".join(f"{flag(k)} {v}" for k, v in row["settings"].items() if k != "network")
    quick = "--preset quick " if row["keywords"].get("preset") == "quick" else ""
    passes = f", {row['epochs']} passes" if row["epochs"] > 1 else ""
    sizes = f"acting for {row['acting_batch']:.3g} at once, {row['rows_per_update']} rows at once{passes}"
    told.append(Text(f"{'':8}{quick}{settings}: {sizes}".replace(" :", ":"), style="bright_black"))
    without = row.get("without")
    if without:
        told.append(Text(f"{'':8}without {without['what']}: {removal(row, without)}"))
    return told


def removal(row: Mapping[str, Any], without: Mapping[str, Any]) -> str:
    if "error" in without:
        return f"failed: {without['error'].splitlines()[0]}"
    rates = f"{row['sps']:,.0f} → {without['sps']:,.0f} steps/s"
    return f"{rates}, {without['measured']:.2f} times as fast; predicted {without['predicted']:.2f}"
