"""`polyplay evaluate`."""

from __future__ import annotations

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_result
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.evaluation.evaluate import EvaluateOptions, evaluate
from polyplay.evaluation.gtp_program import program_line
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
    line = _board_score(result) if result.get("protocol") == "versus" else _game_score(result)
    asked, n = result.get("asked"), result["episodes"]
    if asked is None:
        return line
    bias = "Short games end first, which biases the mean"
    return f"{line}\n{result['ended']}: {n:,} of {asked:,} games were over. {bias}; nothing was written"


def _game_score(result: Row) -> str:
    n, interval = result["episodes"], _interval(result, 1)
    how = f"{result['actions']} actions, ε {result['epsilon']:g}, protocol {result['label']}"
    return f"score {result['episodic_return_mean']:,.2f}, {interval}; {n:,} game{'s' * (n != 1)}, {how}"


def _board_score(result: Row) -> str:
    """Of a match."""
    n, of = result["episodes"], f"protocol {result['label']}"
    ends = ", ".join(f"{result[name]} {name}" for name in ("wins", "draws", "losses"))
    line = f"{result['points']:g} of {n} points, {_interval(result, n)}; {ends}; {of}"
    for about in result.get("programs", ()):
        line = "\n".join([line, program_line(about), *about["faults"]])
    return line


def _interval(result: Row, scale: float) -> str:
    if not result["interval"]:
        return "no interval: it is of one game"
    low, high = (scale * end for end in result["interval"])
    return f"95 % interval {low:,.2f} to {high:,.2f}" if scale == 1 else f"95 % interval {low:,.1f} to {high:,.1f}"
