"""`polyplay starts`."""

from __future__ import annotations

from pathlib import Path

from polyplay.common import files
from polyplay.common.errors import UserError
from polyplay.evaluation.record_starts import StartsOptions, record_starts
from polyplay.runs import flags


def command(words: list[str]) -> int:
    """The exit status."""
    if flags.wants_help(words):
        flags.show_help({"starts": StartsOptions()}, "polyplay starts RUN", "RUN is the directory of a run.")
    if not words or words[0].startswith("-"):
        raise UserError("starts takes the directory of a run first: polyplay starts runs/… --out FILE")
    asked, _ = flags.read_flags(StartsOptions, words[1:], "polyplay starts RUN")
    if asked.out is None:
        raise UserError(f"starts takes the file to write: polyplay starts {words[0]} --out FILE")
    found = record_starts(Path(words[0]), asked)
    files.write_bytes(Path(asked.out), found)
    print(f"{asked.number} start states of the run's own play, labelled substitute: {asked.out}")
    return 0
