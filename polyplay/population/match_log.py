"""The files of a league: `matches.jsonl`, which says everything, and `league.json`, what a number of its lines make."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from polyplay.common.files import JsonLines, Row, parse_json, read_lines, read_object, write_bytes

LOG, SUMMARY, SCHEMA = "matches.jsonl", "league.json", 1


class MatchLog:
    """Lines of a league, which are written down before anything is made of them."""

    def __init__(self, directory: Path, say: Callable[[str, str], None]):
        self.directory, self.say = directory, say
        path = directory / LOG
        size = path.stat().st_size if path.exists() else 0
        self.file = JsonLines(path)
        if torn := size - os.fstat(self.file.file.fd).st_size:
            say("remark", f"{LOG}: its last {torn} bytes were no whole line, and are left out")
        self.lines = 0  # that were read or written

    def read(self, begin: int) -> Iterator[Row]:
        """The rows from line `begin` on. A damaged one is left out."""
        damaged = 0
        with open(self.directory / LOG, "rb") as file:
            for line in file:
                self.lines += 1
                if self.lines > begin:
                    row = parse_json(line)
                    damaged += not isinstance(row, dict)
                    if isinstance(row, dict):
                        yield row
        if damaged:
            self.say("warning", f"{LOG}: {damaged} damaged lines are left out")
        if self.lines < begin:
            self.say("warning", f"{LOG} lacks {begin - self.lines} lines that {SUMMARY} knows of; their ratings stay")

    def cut(self, lines: int) -> None:
        """Keep so many lines: those behind them are of matches that are played again. Raises OSError."""
        with open(self.directory / LOG, "rb") as file:
            os.ftruncate(self.file.file.fd, sum(map(len, itertools.islice(file, lines))))

    def write(self, rows: Sequence[Row]) -> None:
        """Raises OSError: nothing was written."""
        self.file.write(*rows)
        self.lines += len(rows)

    def summary(self) -> Row:
        """league.json; empty if it is not there or damaged."""
        try:
            found = read_object(self.directory / SUMMARY)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as e:
            self.say("warning", f"{SUMMARY} cannot be read ({e}): all matches are rated again")
            return {}
        return found if found.get("schema") == SCHEMA else {}

    def save(self, summary: Row) -> None:
        """Write league.json: what the lines until now make. Raises OSError."""
        os.fsync(self.file.file.fd)  # the lines that it counts are there before it
        whole = {"schema": SCHEMA, "lines": self.lines, **summary}
        write_bytes(self.directory / SUMMARY, _text(whole).encode())

    def close(self) -> None:
        self.file.close()


def has_league(directory: Path) -> bool:
    """Whether matches.jsonl is that of a league: it begins with a session."""
    return "begin" in next(read_lines(directory / LOG), {})


def _text(row: Row) -> str:
    """JSON with a line for each entry, and for each object of a list."""
    lines = []
    for name, value in row.items():
        rows = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if rows else json.dumps(value)
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
