"""`polyplay starts`."""

from __future__ import annotations

from pathlib import Path

from polyplay.cli.arguments import run_and_options
from polyplay.common import files
from polyplay.common.errors import UserError
from polyplay.evaluation.record_starts import StartsOptions, record_starts


def command(words: list[str]) -> None:
    """Writes the file."""
    directory, options, _ = run_and_options(StartsOptions, words, "starts")
    if options.out is None:
        raise UserError(f"starts takes the file to write: polyplay starts {directory} --out FILE")
    files.write_bytes(Path(options.out), record_starts(directory, options))
    print(f"{options.number} start states of the run's own play, labelled substitute: {options.out}")
