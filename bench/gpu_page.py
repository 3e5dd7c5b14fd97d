"""Results of gpu_day.py for a reader: a page of each part, and all parts for the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common import Row, lines_about, table

from polyplay.common.files import read_object

ORDER = ("machine", "tests", "ga3c", "on_policy", "learners", "search", "games", "pong")
NOTHING = "No speed on a GPU has been measured yet: `bash bench/gpu_day.sh` measures it."


def page(data: Row) -> str:
    """A part as a page of its own."""
    lines = [f"# {data['title']}", "", *lines_about(data["about"]), f"- device: {data['device']}"]
    lines += [f"- seconds: {data['seconds']:.0f}"] if "seconds" in data else []
    lines += ["- a rehearsal: nothing here is a result, and sizes are not those named"] if data["short"] else []
    lines += [f"- **failed**: {data['error']}"] if data["error"] else []
    return "\n".join([*lines, *tables(data, "##")]) + "\n"


def tables(data: Row, level: str) -> Iterable[str]:
    """The rows of a part; those of one name are one table."""
    for name in dict.fromkeys(row.get("table", "") for row in data["rows"]):
        rows = [{k: v for k, v in row.items() if k != "table"} for row in data["rows"] if row.get("table", "") == name]
        yield from ["", *([f"{level} {name}", ""] if name else []), *table(rows)]


def everything(folder: Path, link: str) -> str:
    """All parts that were measured. link: the folder, from where this is read."""
    parts = {name: read_object(folder / f"{name}.json") for name in ORDER if (folder / f"{name}.json").exists()}
    lines = []
    for name, data in parts.items():
        where = f"{data['device']}; commit {(data['about']['commit'] or 'unknown')[:12]}, {data['about']['started']}"
        lines += ["", f"### {data['title']}", "", f"{where}; [whole result]({link}/{name}.md)."]
        lines += ["", f"Failed: {data['error']}."] if data["error"] else []
        lines += tables(data, "####")
    return "\n".join(lines).strip() or NOTHING
