"""A copy: a checkpoint of one member with the agent of another.

From the donor come weights, optimizer, target network and running statistics; the receiver keeps its counters, its
place in the schedule, its replay and its lanes, whose recurrent state begins anew. A copy counts as one update, so it
never has the name of a checkpoint that exists. Files are linked where the file system can: a donor may remove its
checkpoint meanwhile, and nothing is copied twice. What is damaged is passed over for the one before. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row

AGENTS = "agents/"
LEARNER = re.compile(r"agents/\d+/learner\.json")
LANES = re.compile(r"workers/(?!stream-).+\.safetensors")
RECURRENT = re.compile(r"(groups/\d+/)?state/")
TRIES = 5  # a donor's newest checkpoint may be removed while it is read, once it has a newer one


class PreparedCopy(NamedTuple):
    """A copy that is not complete: the name that `complete_copy` gives it, and the agent steps of what was copied."""

    final: str
    donor_steps: int


def prepare_copy(member: Path, donor: Path, name: str, lanes: bool = True) -> PreparedCopy:
    """Write the copy as `checkpoints/.partial-NAME`. lanes: go on as they are, not anew. Raises UserError: one of them
    has no whole checkpoint; OSError.
    """
    part = checkpoint.checkpoints_dir(member) / f".partial-{name}"
    own = checkpoint.newest(member, _silent, checkpoint.resume_flaw)
    checkpoint.set_aside(member, own)  # so the copy is the newest, and its name is free
    for last in [False] * (TRIES - 1) + [True]:
        shutil.rmtree(part, ignore_errors=True)
        try:
            given = checkpoint.newest(donor, _silent, agent_flaw)
            return _compose(part, own, given, lanes)
        except (FileNotFoundError, UserError):
            if last:
                raise
    raise AssertionError


def complete_copy(member: Path, name: str, final: str) -> bool:
    """The copy becomes the member's newest checkpoint; whether it is there, and whole. May be called again."""
    place = checkpoint.checkpoints_dir(member)
    if not (place / final).exists():
        with contextlib.suppress(FileNotFoundError):
            os.rename(place / f".partial-{name}", place / final)
    return agent_flaw(place / final) is None


def agent_flaw(path: Path) -> str | None:
    """What is wrong with the agents in a checkpoint, or None. The rest is looked at when the run goes on."""
    return checkpoint.flaw(path, AGENTS)


def _compose(part: Path, own: Path, given: Path, lanes: bool) -> PreparedCopy:
    mine, theirs = checkpoint.manifest(own), checkpoint.manifest(given)
    version, files = mine["update"] + 1, dict[str, Row]()
    if not theirs["update"]:
        raise UserError(f"RUN: {given.parents[1]} has learnt nothing yet; let it run on")
    sources = {n: own for n in mine["files"] if not n.startswith(AGENTS) or LEARNER.fullmatch(n)}
    sources |= {n: given for n in theirs["files"] if n.startswith(AGENTS) and n not in sources}
    if not lanes:
        sources = {n: place for n, place in sources.items() if not n.startswith("workers/")}
    for name, place in sources.items():
        target = part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if LEARNER.fullmatch(name):
            checkpoint.write_json(target, _counted(json.loads((place / name).read_text("utf-8")), version))
            files[name] = checkpoint.describe_file(target)
        elif LANES.fullmatch(name) and (anew := _without_state(place / name)):
            checkpoint.write_arrays(target, anew)
            files[name] = checkpoint.describe_file(target)
        else:
            _link(place / name, target)
            files[name] = (mine if place is own else theirs)["files"][name]
    contents = {"schema": checkpoint.SCHEMA, "update": version, "files": files}
    counters = {**mine["counters"], "updates": version, "episodic_return_mean": None}
    checkpoint.write_json(part / checkpoint.MANIFEST, {**contents, "counters": counters})
    return PreparedCopy(checkpoint.directory_name(version, counters), theirs["counters"]["steps"])


def _counted(learner: Row, version: int) -> Row:
    """The counts of a learner after one update more, which every part of a parameter server had."""
    shards = {"shards": [own + 1 for own in learner["shards"]]} if "shards" in learner else {}
    return {**learner, "version": version, **shards}


def _without_state(file: Path) -> dict[str, np.ndarray]:
    """What a worker saved, its lanes' recurrent state zero; empty: it has none."""
    arrays = checkpoint.read_arrays(file)
    found = [k for k in arrays if RECURRENT.match(k)]
    return {**arrays, **{k: np.zeros_like(arrays[k]) for k in found}} if found else {}


def _link(source: Path, target: Path) -> None:
    """Another name of a file, which is never written again; a copy where the file system has none."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _silent(text: str) -> None:
    """A checkpoint that is passed over is reported when its own run goes on."""
