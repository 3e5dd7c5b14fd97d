"""`polyplay verify`."""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_findings
from polyplay.common.findings import status


@dataclass(frozen=True)
class VerifyOptions:
    """Repeats a recorded evaluation. The exit status is 0 only if the score is the same."""

    evaluation: str | None = None
    """file in the run's directory, evaluation-….json (none: the newest)"""
    starts: str | None = None
    """file of the start states, if it was moved since"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""


def command(words: list[str]) -> int:
    """Prints a finding per rule; the exit status."""
    directory, options, _ = run_and_options(VerifyOptions, words, "verify")
    from polyplay.evaluation.verify import verify

    findings = verify(directory, options.evaluation, options.starts, options.trust)
    print_findings(f"verify {directory}", findings, {}, "rule")
    return status(findings)
