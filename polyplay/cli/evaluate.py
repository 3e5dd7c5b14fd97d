"""`polyplay evaluate`."""

from __future__ import annotations

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_result
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.evaluation.evaluate import EvaluateOptions, evaluate
from polyplay.evaluation.progress import GamesWatch


def command(words: list[str]) -> int:
    """Prints the score, then what else there is to know of it; 130 or 143 where a signal ended it early."""
    directory, options, _ = run_and_options(EvaluateOptions, words, "evaluate")
    watch = GamesWatch()
    try:
        result = evaluate(directory, options, watch=watch)
    except UserError as e:
        if not watch.signal:
            raise
        print(e)
    else:
        print(score_line(result))
        print_result(result)
    return 128 + watch.signal if watch.signal else 0


def score_line(result: Row) -> str:
    """The score with its interval, and what it is a score of."""
    interval = "no interval: it is of one game"
    if result["interval"]:
        interval = "95 % interval {:,.2f} to {:,.2f}".format(*result["interval"])
    n, asked = result["episodes"], result.get("asked")
    how = f"{result['actions']} actions, ε {result['epsilon']:g}, protocol {result['label']}"
    line = f"score {result['episodic_return_mean']:,.2f}, {interval}; {n:,} game{'s' * (n != 1)}, {how}"
    if asked is None:
        return line
    early = f"{result['ended']}: {n:,} of {asked:,} games were over. Short games end first, which biases the mean"
    return f"{line}\n{early}; nothing was written"
