"""`polyplay verify`."""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_findings
from polyplay.common.findings import status


@dataclass(frozen=True)
class VerifyOptions:
    """Play a recorded evaluation again; exit status 0 only if its score comes out."""

    evaluation: str | None = None
    """which: a file of the run's directory, evaluation-….json (none: the newest)"""
    starts: str | None = None
    """where the start states are now, if not where they were"""
    trust: bool = False
    """open a run that was made elsewhere and executes a module by name (its environment, its network)"""


def command(words: list[str]) -> int:
    """Prints a finding per rule; the exit status."""
    directory, options, _ = run_and_options(VerifyOptions, words, "verify")
    from polyplay.evaluation.verify import verify

    findings = verify(directory, options.evaluation, options.starts, options.trust)
    print_findings(f"verify {directory}", findings, {}, "rule")
    return status(findings)
