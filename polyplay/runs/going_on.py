"""What is decided before a run goes on: from which checkpoint, whether anything is left to do, and what may differ."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row, is_number, is_row, read_lines, read_object
from polyplay.runs.directory import read_config
from polyplay.runs.flags import flag
from polyplay.runs.options import CHANGEABLE, SIZES, RunOptions, Settings, Sources, to_json
from polyplay.runs.plan import Plan, minutes_over
from polyplay.workers.crew import Crew

BEGINNING = {"steps": 0, "frames": 0, "updates": 0}
GIVEN = ("command", "keyword", "config")  # first words of sources
FREE = ("run", "resume", "dry_run", "quiet", "verbose")  # of no meaning for what the run is


def find_checkpoint(directory: Path, say: Callable[[str], None]) -> tuple[Path | None, Row]:
    """The checkpoint to go on from, and its counters; None: the run was ended before its first. `say` gets a line for
    every one passed over. Raises UserError: none of those there are is whole, or all are gone of a run that has learnt.
    """
    if not checkpoint.everything(directory):
        if told := _told_updates(directory):
            folder = checkpoint.checkpoints_dir(directory)
            lost = f"RUN: {directory} has no checkpoint, but {told}: put back {folder}"
            raise UserError(f"{lost}; to begin it again, name another --run or move {directory} away")
        return None, BEGINNING
    found = checkpoint.newest(directory, say, checkpoint.resume_flaw)
    return found, checkpoint.manifest(found)["counters"]


def _told_updates(directory: Path) -> str:
    """Say which file of a run without checkpoints tells that it had some; empty: none does."""
    made = max((row["updates"] for row in read_lines(directory / "metrics.jsonl", "updates")), default=0)
    if made:
        return f"its metrics.jsonl tells of {made:,.0f} updates"
    if last := read_summary(directory).get("checkpoint"):
        return f"its summary.json names {last}"
    if checkpoint.checkpoints_dir(directory).exists():  # as a run leaves it that was killed at once
        return ""
    found = [name for name in ("episodes", "updates") if any(read_lines(directory / f"{name}.jsonl"))]
    return f"its {found[0]}.jsonl has lines" if found else ""


def steps_learnt(found: Path | None) -> float:
    """Return the agent steps that a checkpoint has learnt from, of all its agents; 0: it does not say."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if found is not None:
            saved = checkpoint.OpenCheckpoint(found)
            return sum(float(saved.json(f"agents/{agent}/learner")["learnt"]) for agent in checkpoint.agents_of(found))
    return 0.0


def read_summary(directory: Path) -> Row:
    """summary.json; empty where the run has not ended, or that is damaged."""
    try:
        return read_object(directory / "summary.json")
    except (OSError, ValueError):
        return {}


def finished(
    directory: Path, found: Path | None, plan: Plan, counters: Row, options: RunOptions, changes: Mapping[str, Any]
) -> str:
    """Why there is nothing left to do, and which option lengthens the run; empty: there is. Rollouts that were acted
    and not learnt from are left to do. found: the checkpoint to go on from.
    """
    summary = read_summary(directory)
    if summary.get("exit_code") != 0:
        return ""
    seconds = summary["wall_seconds"] if is_row(summary, ("wall_seconds",)) else 0.0
    why, longer = "", ""
    if steps_learnt(found) * counters["frames"] >= plan.frames * max(counters["steps"], 1):
        why, longer = f"{counters['frames']:,} of {plan.frames:,} frames are done", "--frames N (or --steps N)"
    elif options.minutes is not None and seconds >= 60.0 * options.minutes:
        why, longer = minutes_over(options.minutes), "--minutes N"
    elif "mean return" in str(summary.get("reason")) and changes.get("until_return") is None:
        why, longer = str(summary["reason"]), "--until-return N"
    command = f"polyplay resume {shlex.quote(str(directory))} {longer}"
    return f"{directory} is finished: {why}; `{command}` with a larger N lengthens it" if why else ""


def sizes_of(settings: Settings) -> Row:
    """How many lanes and workers there are."""
    return {name: value for name, value in vars(settings).items() if name in SIZES}


def saved_sizes(config: Row, before: Settings, steps: int) -> Row:
    """The same of a checkpoint at so many steps: before the run was resumed there, or later, with others."""
    found = sizes_of(before)
    for entry in reversed(config["resumed"]):
        if isinstance(was := entry.get("sizes"), dict) and is_number(entry.get("steps")) and entry["steps"] >= steps:
            found |= {name: was[name] for name in found if name in was}
    return found


def sizes_changed(before: Settings, now: Settings, crew: Crew, saved: Row | None = None) -> str:
    """What a run that goes on has other numbers of, in words; empty: nothing. saved: the numbers of its checkpoint, if
    that is not of `before`. Raises UserError: its replay is by lanes.
    """
    both = [(name, was, sizes_of(now).get(name)) for name, was in (saved or sizes_of(before)).items()]
    found = [(name, was, is_) for name, was, is_ in both if was != is_]
    if found and any(role.held_replay for role in crew.roles):
        name, was, is_ = found[0]
        raise UserError(f"{flag(name)}: {is_} given, but the replay holds the rows of each lane ({was}): leave it out")
    return ", ".join(f"{name} {was} → {is_}" for name, was, is_ in found)


def changes_given(system: str, settings: Settings, options: RunOptions, sources: Sources) -> dict[str, Any]:
    """What `train --resume auto` changes of the run that is in its directory. Raises UserError: something else was
    given than what that run is.
    """
    config = read_config(Path(str(options.run)), population="over" in to_json(settings))
    was = {**config["config"], **config["options"], "system": config["system"]}
    now = {**to_json(settings), **to_json(options), "system": system}
    given = [k for k in now if k not in FREE and (k == "system" or sources.get(k, "").partition(" ")[0] in GIVEN)]
    differ = [k for k in given if k in was and was[k] != now[k]]
    differ = [k for k in differ if now[k] != 0 or config["sources"].get(k) != "chosen"]  # 0: chosen then as now
    for name in differ:
        if name not in CHANGEABLE:
            what = "SYSTEM" if name == "system" else flag(name)
            text = f"{what}: {now[name]} given, but {options.run} was begun with {was[name]}"
            raise UserError(f"{text}: leave it as it was, or name another --run")
    return {k: now[k] for k in differ} | {k: True for k in ("dry_run", "quiet", "verbose") if now[k]}
