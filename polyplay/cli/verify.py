"""`polyplay verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polyplay.cli import findings
from polyplay.common import findings as common_findings
from polyplay.common.errors import UserError
from polyplay.evaluation.verify import verify
from polyplay.runs import directory as record
from polyplay.runs import flags


@dataclass(frozen=True)
class VerifyOptions:
    """Play a recorded evaluation again; exit status 0 only if its score comes out."""

    evaluation: str | None = None
    """which: a file of the run's directory, evaluation-….json (none: the newest)"""
    starts: str | None = None
    """where the start states are now, if not where they were"""


def command(words: list[str]) -> int:
    """Prints what was found; the exit status."""
    if flags.wants_help(words):
        flags.show_help({"verify": VerifyOptions()}, "polyplay verify RUN", "RUN is the directory of a run.")
    if not words or words[0].startswith("-"):
        raise UserError("verify takes the directory of a run first: polyplay verify runs/… [--evaluation FILE]")
    options, _ = flags.read_flags(VerifyOptions, words[1:], "polyplay verify RUN")
    record.read_config(Path(words[0]))
    found = verify(Path(words[0]), options.evaluation, options.starts)
    findings.print_findings(f"verify {words[0]}", found, {}, "rule")
    return common_findings.status(found)
