"""`polyplay check`."""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.cli.findings import print_findings
from polyplay.common.errors import UserError
from polyplay.common.findings import as_json
from polyplay.envs.check.report import CheckReport, check_env


@dataclass(frozen=True)
class CheckOptions:
    """Random actions; nothing is learnt, nothing is written."""

    steps: int | None = None
    """how many steps of a trial (none: 1,000, or 10 seconds)"""
    step_timeout: float = 60.0
    """seconds that a step or a reset may take"""
    seed: int = 0
    """seed of environment and actions"""
    json: bool = False
    """print JSON"""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name}: {value} given, allowed: a whole number from {least} up")
        if self.step_timeout <= 0:
            raise UserError(f"--step-timeout: {self.step_timeout:g} given, allowed: a number above 0")


def command(words: list[str]) -> int:
    """`polyplay check` with these words; the exit status."""
    from polyplay.runs import flags

    line = "polyplay check ENV"
    if flags.wants_help(words):
        flags.show_help({"check": CheckOptions()}, line, "ENV is what train's --env takes.")
    if not words or words[0].startswith("-"):
        raise UserError("check takes an environment first: polyplay check CartPole-v1 [--OPTION VALUE …]")
    o, _ = flags.read_flags(CheckOptions, words[1:], line)
    report = check_env(words[0], steps=o.steps, step_timeout=o.step_timeout, seed=o.seed)
    if o.json:
        more = {"environment": report.environment, "card": report.card}
        print(as_json(report.findings, more, "rules"))
    else:
        print_findings(f"{report.environment}: {verdict(report)}", report.findings, report.card, "rule")
    return report.status


def verdict(report: CheckReport) -> str:
    counts = {level: sum(f.level == level for f in report.findings) for level in ("failed", "warning")}
    if not any(counts.values()):
        return "keeps to every rule that was seen"
    words = {"failed": "broken", "warning": "doubtful"}
    return " and ".join(f"{n} rule{'s' * (n > 1)} {words[level]}" for level, n in counts.items() if n)
