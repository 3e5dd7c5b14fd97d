"""The scaling recap of the field as Markdown: published rates (recap.json, every row with its source) beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HEADS = ("system", "hardware", "frames/s generated", "frames/s trained", "source, and how the figure comes about")


def published() -> list[Row]:
    return json.loads(Path(__file__).with_name("recap.json").read_text(encoding="utf-8"))["rows"]


def ours(document: Mapping[str, Any]) -> list[Row]:
    """A row for each system that was measured: frames, of which a row that is learnt from counts once a pass."""
    machine, where = document["machine"], f"polyplay bench, {document['env']}"
    rows = []
    for row in document["systems"]:
        if "error" in row:
            continue
        generated = row["sps"] * row["frames_per_step"]
        note = f"{document['network']}, {document['precision']}"
        passes = row["epochs"]
        if passes > 1:
            note += f"; {passes} passes"
        rows.append(
            {
                "system": f"**polyplay {row['system']}**",
                "hardware": f"{document['cores']} cores ({machine['cpu']})",
                "generated": generated,
                "trained": generated * passes if passes > 1 else None,
                "source": f"{where}, {str(document.get('commit') or 'no commit')[:9]}",
                "note": note,
            }
        )
    return rows


def markdown(document: Mapping[str, Any] | None) -> list[str]:
    """The table, ours last; a dash under "trained" means as many as were generated."""
    rows = [*published(), *(ours(document) if document else [])]
    cells = [[r["system"], r["hardware"], *_rates(r), _source(r)] for r in rows]
    lines = ["| " + " | ".join(HEADS) + " |", "|---|---|--:|--:|---|"]
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells]
    return [*lines, "", "– under trained: every frame is learnt from once, or no rate was published."]


def _rates(row: Row) -> tuple[str, str]:
    least = "> " if row.get("at_least") else ""
    return _number(row["generated"], least), _number(row["trained"], "")


def _number(value: float | None, before: str) -> str:
    return "–" if value is None else f"{before}{value:,.0f}"


def _source(row: Row) -> str:
    return f"{row['source']}: {row['note']}" if row.get("note") else row["source"]
