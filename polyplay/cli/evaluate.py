"""`polyplay evaluate`."""

from __future__ import annotations

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_result
from polyplay.evaluation.evaluate import EvaluateOptions, evaluate


def command(words: list[str]) -> None:
    """Prints the score."""
    directory, options, _ = run_and_options(EvaluateOptions, words, "evaluate")
    print_result(evaluate(directory, options))
