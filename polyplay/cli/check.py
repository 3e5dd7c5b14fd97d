"""`polyplay check`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from polyplay.cli.arguments import parse_words
from polyplay.cli.output import print_findings
from polyplay.common.bounds import Count, Seconds, Seed
from polyplay.common.errors import UserError
from polyplay.common.findings import as_json
from polyplay.envs.check.report import CheckReport, check_env
from polyplay.runs.options import RunOptions, how_made


@dataclass(frozen=True)
class CheckOptions:
    """Plays random actions. It does not train and writes no file."""

    steps: Count | None = None
    """steps per trial (none: 1,000 steps or 10 seconds, whichever ends first)"""
    step_timeout: Seconds = 60.0
    """longest allowed time of a step or a reset, in seconds"""
    seed: Seed = 0
    """seed of environment and actions"""
    env_kwargs: tuple[str, ...] = ()
    """keyword arguments of the environment, as NAME=VALUE, as train takes them"""
    wrapper: tuple[str, ...] = ()
    """wrappers of a Gymnasium environment, each as module:callable; the first is innermost"""
    json: bool = False
    """print JSON"""


def command(words: list[str]) -> int:
    """Prints a finding per rule; the exit status."""
    env, options, _ = parse_words(CheckOptions, words, "polyplay check ENV", "ENV is what train's --env takes.")
    if not env:
        raise UserError("check takes an environment first: polyplay check CartPole-v1 [--OPTION VALUE …]")
    made = how_made(RunOptions(env_kwargs=options.env_kwargs, wrapper=options.wrapper))  # read as in training
    trials: dict[str, Any] = {name: getattr(options, name) for name in ("steps", "step_timeout", "seed")}
    trials |= {k: v for k, v in (("options", made["kwargs"]), ("wrappers", made["wrappers"])) if v}
    try:
        report = check_env(env[0], **trials)
    except UserError as e:
        raise UserError(str(e).replace("--env: ", "ENV: ", 1)) from None
    if options.json:
        print(as_json(report.findings, {"environment": report.environment, "card": report.card}, "rules"))
    else:
        print_findings(f"{report.environment}: {verdict(report)}", report.findings, report.card, "rule")
    return report.status


def verdict(report: CheckReport) -> str:
    counts = Counter[str](f.level for f in report.findings)
    words = (("failed", "broken"), ("warning", "doubtful"))
    found = [f"{counts[level]} rule{'s' * (counts[level] > 1)} {word}" for level, word in words if counts[level]]
    return " and ".join(found) or "keeps to every rule that was checked"
