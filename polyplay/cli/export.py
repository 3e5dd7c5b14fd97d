"""`polyplay export`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from polyplay.common import checkpoint
from polyplay.runs import options as config
from polyplay.runs.load import choose_checkpoint, crew_of, load_run
from polyplay.workers import process


def export(directory: Path, file: Path, which: str | None = None) -> dict[str, Any]:
    """Write a checkpoint's policy (default: of the newest whole one) as an ONNX file; what was written."""
    from polyplay.acting import play
    from polyplay.nets import onnx

    onnx.check_export(file)
    directory = Path(directory)
    page, settings, options, kept = load_run(directory)
    found = choose_checkpoint(directory, which)
    wired = page.build(settings, crew_of(replace(options, device="cpu")))
    process.tune(1)
    spec = wired.envs.spec
    about = {
        "polyplay": kept["versions"]["polyplay"],
        "system": kept["system"],
        "env": config.to_json(settings)["env"],
        "environment": dict(spec.describe),
        "checkpoint": found.name,
        "counters": checkpoint.manifest(found)["counters"],
    }
    return onnx.export_onnx(play.load_policy(wired, found), spec, file, about)
