"""What a run wrote down line by line, as a table of columns."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from polyplay.common.files import Row, read_lines


def current_rows(file: Path, *numbers: str) -> list[Row]:
    """Lines that have these numbers, in the order of their frames: what a resumption did again takes the place of what
    was there.
    """
    rows: list[Row] = []
    for row in read_lines(file, "frames", "wall_seconds", *numbers):
        while rows and rows[-1]["frames"] > row["frames"]:
            rows.pop()
        rows.append(row)
    return rows


def read_table(file: Path) -> Any:
    """A pandas DataFrame if pandas is installed, else {column: list}. What a line lacks is None, in pandas NaN."""
    rows = current_rows(file)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    if importlib.util.find_spec("pandas") is None:
        return columns
    import pandas

    return pandas.DataFrame(columns)
