"""`polyplay export`: a policy as an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from polyplay.cli.arguments import run_and_options
from polyplay.cli.output import print_result
from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.runs import options as run_options
from polyplay.runs.load import choose_agent, choose_checkpoint, crew_of, load_run
from polyplay.workers import process


@dataclass(frozen=True)
class ExportOptions:
    """Writes a policy for programs without Polyplay. It takes the most probable action."""

    onnx: str | None = None
    """file to write"""
    checkpoint: str | None = None
    """checkpoint to export: best, or the number its name begins with (none: the newest)"""
    agent: str | None = None
    """agent of a league: best (by its Elo), or its number (none: the first)"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""


def command(words: list[str]) -> None:
    """Prints what was written."""
    directory, options, _ = run_and_options(ExportOptions, words, "export")
    if options.onnx is None:
        raise UserError(f"export takes the file to write: polyplay export {directory} --onnx FILE")
    print_result(export(directory, Path(options.onnx), options.checkpoint, options.trust, options.agent))


def export(directory: Path, file: Path, which: str | None = None, trust: bool = False, agent: str | None = None) -> Row:
    """Write the policy of a checkpoint (default: the newest whole one) as an ONNX file; what was written."""
    from polyplay.acting import play
    from polyplay.nets import onnx

    onnx.check_export(file)
    page, settings, options, config = load_run(directory, trust)
    found = choose_checkpoint(directory, which)
    wired = page.build(settings, crew_of(replace(options, device="cpu")))
    process.tune(1)
    spec = wired.envs.spec
    about = {
        "polyplay": config["versions"].get("polyplay"),
        "system": config["system"],
        "env": run_options.to_json(settings)["env"],
        "environment": dict(spec.describe),
        "checkpoint": found.name,
        "counters": checkpoint.manifest(found)["counters"],
    }
    whose = choose_agent(directory, found, agent)
    about |= {"agent": whose} if agent is not None else {}
    return onnx.export_onnx(play.load_policy(wired, found, whose), spec, file, about, wired.values)
