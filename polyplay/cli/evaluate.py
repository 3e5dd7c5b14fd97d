"""evaluate, export, runs --scores: measure the scores of trained agents, and export their policies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyplay.cli.arguments import print_findings, print_result, run_and_options
from polyplay.core import checkpoint, files
from polyplay.core.errors import UserError, status
from polyplay.core.files import Row
from polyplay.core.numbers import interval_name
from polyplay.evaluation import evaluate, scores, verify
from polyplay.evaluation.agent import open_run
from polyplay.evaluation.gtp import program_line
from polyplay.runs import load
from polyplay.workers import process


@dataclass(frozen=True)
class VerifyOptions:
    """Repeats a recorded evaluation. The exit status is 0 only if the score is the same."""

    verify: bool = False  # repeat a recorded evaluation and compare the score
    evaluation: str | None = None  # file in the run's directory, evaluation-….json (none: the newest)
    starts: str | None = None  # file of the start states, if it has moved
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command(words: list[str]) -> int:
    """Run `polyplay evaluate`: evaluate, repeat an evaluation, or save start states. Return the exit status."""
    modes = VerifyOptions, verify.StartsOptions
    directory, options, _ = run_and_options(evaluate.EvaluateOptions, words, "evaluate", modes)
    if isinstance(options, VerifyOptions):
        findings = verify.verify(directory, options.evaluation, options.starts, options.trust)
        print_findings(f"verify {directory}", findings, {}, "rule")
        return status(findings)
    if isinstance(options, verify.StartsOptions):
        files.write_bytes(Path(str(options.save_starts)), verify.record_starts(directory, options))
        about = f"{options.number} start states of the run's own play, labeled substitute"
        print(f"{about}: {options.save_starts}")
        return 0
    return _evaluate(directory, options)


def _evaluate(directory: Path, options: evaluate.EvaluateOptions) -> int:
    watch = evaluate.GamesWatch()
    try:
        result = evaluate.evaluate(directory, options, watch=watch)
    except UserError as e:
        if not watch.signal:
            raise
        print(e)
    else:
        if "tasks" in result:
            scores.print_tasks(result)
        else:
            print(score_line(result))
            chosen = options.checkpoint == "best"  # otherwise no score chose the checkpoint
            print_result({name: value for name, value in result.items() if chosen or name != "chosen_by"})
    return 128 + watch.signal if watch.signal else 0


def score_line(result: Row) -> str:
    """Return the text that shows the score, its confidence interval, and the conditions of the games."""
    n, asked, versus = result["episodes"], result.get("asked"), result.get("protocol") == "versus"
    interval = "no interval: only one game"
    if result["interval"]:
        low, high = (f"{end * n:,.1f}" if versus else f"{end:,.2f}" for end in result["interval"])
        interval = f"{interval_name(n)} {low} to {high}"
    if versus:
        ends = ", ".join(f"{result[name]} {name}" for name in ("wins", "draws", "losses"))
        lines = [f"{result['points']:g} of {n} points, {interval}; {ends}; protocol {result['label']}"]
        for about in result.get("programs", ()):
            lines += [program_line(about), *about["faults"]]
    else:
        how = f"{result['actions']} actions, ε {result['epsilon']:g}, protocol {result['label']}"
        score = f"score {result['episodic_return_mean']:,.2f}"
        lines = [f"{score}, {interval}; {n:,} game{'s' * (n != 1)}, {how}"]
    if asked is not None:
        bias = "Short games end first, which biases the mean"
        lines.append(f"{result['ended']}: {n:,} of {asked:,} games finished. {bias}; nothing was written")
    return "\n".join(lines)


def show_scores(runs: Sequence[Path], options: scores.ScoresOptions) -> None:
    """Print a table with the scores of runs beside published scores. Without runs, print all published scores."""
    result = scores.compare_runs(runs, options) if runs else scores.list_published()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        scores.print_scores(result)


# `polyplay export`: a policy as an ONNX file.


@dataclass(frozen=True)
class ExportOptions:
    """Write a policy, which takes the most probable action, for programs without Polyplay."""

    onnx: str | None = None  # file to write
    checkpoint: str | None = None  # checkpoint to export: best, or the number its name begins with (none: the newest)
    agent: str | None = None  # agent of a league: best (by its Elo), or its number (none: the first)
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network


def command_export(words: list[str]) -> None:
    """Run `polyplay export`: write the policy as an ONNX file, and print a description of the file."""
    directory, options, _ = run_and_options(ExportOptions, words, "export")
    if options.onnx is None:
        raise UserError(f"export takes the file to write: polyplay export {directory} --onnx FILE")
    print_result(export(directory, Path(options.onnx), options.checkpoint, options.trust, options.agent))


def export(directory: Path, file: Path, which: str | None = None, trust: bool = False, agent: str | None = None) -> Row:
    """Write the policy of checkpoint `which` (default: the newest) as an ONNX file, and return a description."""
    from polyplay.acting import play
    from polyplay.nets import onnx

    onnx.check_export(file)
    wired, found, config = open_run(directory, which, trust)
    process.tune(1)
    spec = wired.envs.spec
    about = {
        "polyplay": config["versions"].get("polyplay"),
        "system": config["system"],
        "env": config["config"]["env"],
        "environment": dict(spec.describe),
        "checkpoint": found.name,
        "counters": checkpoint.manifest(found)["counters"],
    }
    whose = load.choose_agent(directory, found, agent)
    about |= {"agent": whose} if agent is not None else {}
    return onnx.export_onnx(play.load_policy(wired, found, whose), spec, file, about, wired.spec.loss.units)
