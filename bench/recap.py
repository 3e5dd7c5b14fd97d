"""The scaling recap of the field as Markdown: published rates (recap.json, every row with its source), then the systems
of a document that `polyplay bench --json FILE` wrote: `python bench/recap.py [FILE]`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from polyplay.core.files import Row

HEADS = ("system", "hardware", "machines", "frames/s generated", "frames/s trained")
HEADS += ("source, and how the figure comes about",)


def published() -> list[Row]:
    return json.loads(Path(__file__).with_name("recap.json").read_text(encoding="utf-8"))["rows"]


def measured(document: Row) -> list[Row]:
    """A row for each system that was measured: frames, of which a row that is learned from counts once a pass."""
    rows = []
    for row in document["systems"]:
        if "error" in row:
            continue
        generated, passes = row["sps"] * row["frames_per_step"], row["epochs"]
        note = f"{document['network']}, {document['precision']}"
        rows.append(
            {
                "system": f"**polyplay {row['system']}**",
                "hardware": f"{document['cores']} cores ({document['machine']['cpu']})",
                "machines": "1",
                "generated": generated,
                "trained": generated * passes if passes > 1 else None,
                "source": f"polyplay bench, {document['env']}, {str(document.get('commit') or 'no commit')[:9]}",
                "note": f"{note}; {passes} passes" if passes > 1 else note,
            }
        )
    return rows


def markdown(document: Row | None) -> list[str]:
    """The table, measured systems last; a dash under "trained" means as many as were generated."""
    rows = [*published(), *(measured(document) if document else [])]
    cells = [[r["system"], r["hardware"], r["machines"], *_rates(r), _source(r)] for r in rows]
    lines = ["| " + " | ".join(HEADS) + " |", "|---|---|---|--:|--:|---|"]
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells]
    return [*lines, "", "– under trained: every frame is learned from once, or no rate was published."]


def _rates(row: Row) -> tuple[str, str]:
    at_least = "> " if row.get("at_least") else ""
    return _number(row["generated"], at_least), _number(row["trained"], "")


def _number(value: float | None, before: str) -> str:
    return "–" if value is None else f"{before}{value:,.0f}"


def _source(row: Row) -> str:
    return f"{row['source']}: {row['note']}" if row.get("note") else row["source"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", help="a document of `polyplay bench --json FILE`")
    options = parser.parse_args()
    print("\n".join(markdown(json.loads(Path(options.file).read_text(encoding="utf-8")) if options.file else None)))


if __name__ == "__main__":
    main()
