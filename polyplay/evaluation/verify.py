"""`polyplay verify RUN`: plays a recorded evaluation again and says whether its score comes out.

On the same machine with the same versions every return has to be the same; elsewhere the difference of the means has
to be none within its bootstrap interval. What is absent or was changed since is named, and fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.common import checkpoint, machine
from polyplay.common.errors import UserError
from polyplay.common.findings import Finding
from polyplay.common.statistics import aggregates_agree
from polyplay.envs.atari import protocols
from polyplay.evaluation import evaluate
from polyplay.runs import directory as record
from polyplay.runs.load import crew_of, load_run, weights_digest

NEEDED = (
    "protocol", "seed", "episodes", "epsilon", "actions", "lanes", "checkpoint", "checkpoint_sha256", "config_hash",
    "returns", "episodic_return_mean", "versions", "machine", "starts",
)  # fmt: skip
RULES = ("record", "mean", "config", "checkpoint", "starts", "returns")


class VerificationFailed(Exception):
    """Why an evaluation is not what it says."""


def newest_evaluation(directory: Path) -> Path:
    """The evaluation that was written last. Raises UserError: there is none."""
    found = sorted(directory.glob("evaluation-*.json"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise UserError(f"RUN: {directory} has no evaluation to verify; `polyplay evaluate {directory}` makes one")
    return found[-1]


def verify(directory: Path, evaluation: str | None = None, starts: str | None = None) -> list[Finding]:
    """One finding per rule; what comes after the first that failed is not looked at."""
    directory = Path(directory)
    path = newest_evaluation(directory) if evaluation is None else directory / Path(evaluation).name
    if not path.is_file():
        have = ", ".join(sorted(p.name for p in directory.glob("evaluation-*.json"))) or "none"
        raise UserError(f"--evaluation: {path.name} is not in {directory}; there are: {have}")
    found, looks = [], _looks(directory, path, starts)
    for rule in RULES:
        try:
            found.append(Finding(rule, "ok", next(looks)))
        except VerificationFailed as e:
            found.append(Finding(rule, "failed", f"{path.name}: {e}"))
            break
    return found + [Finding(rule, "unseen", f"{found[-1].name} failed") for rule in RULES[len(found) :]]


def _looks(directory: Path, path: Path, starts: str | None) -> Iterator[str]:
    """What is seen, rule by rule. Raises Wrong."""
    said = _record(path)
    yield f"{path.name}, of {said.get('finished', 'an unknown time')}"
    mean = float(np.mean(said["returns"]))
    _same("its mean", said["episodic_return_mean"], mean, "its returns have")
    _same("episodes", said["episodes"], len(said["returns"]), "returns there are")
    yield f"{mean:,.2f} over {said['episodes']} games"
    page, settings, options, kept = load_run(directory)
    _same("config_hash", said["config_hash"], record.config_hash(kept), "config.json has")
    yield f"config.json has the hash {said['config_hash']}"
    found = _checkpoint(directory, said)
    yield f"{found.name} is whole, its weights are those that were measured"
    where = _starts(said, starts)
    yield f"{where} is the file that was used" if where else "none were used"
    how = _protocol(said)
    greedy, device = said["actions"] == "greedy", "cpu" if said.get("device", "cpu") == "cpu" else "auto"
    asked = evaluate.EvaluationRequest(
        said["episodes"], said["seed"], found.name, greedy, how.name, where, said["epsilon"], device
    )
    wired = page.build(settings, crew_of(replace(options, device="cpu")))
    envs, _ = protocols.apply(how, wired.envs, where)
    yield _compared(said, evaluate.play_and_score(wired, envs, found, asked, how))


def _same(what: str, said: Any, is_: Any, who: str) -> None:
    if said != is_:
        raise VerificationFailed(f"{what} is {said} there, {who} {is_}")


def _record(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise VerificationFailed(f"cannot be read: {e}") from None
    missing = [k for k in NEEDED if not isinstance(said, dict) or k not in said]
    if missing:
        raise VerificationFailed(f"lacks {', '.join(missing)}; evaluate again with this version")
    if not said["returns"]:
        raise VerificationFailed("has no returns")
    return said


def _checkpoint(directory: Path, said: dict[str, Any]) -> Path:
    found = checkpoint.checkpoints_dir(directory) / str(said["checkpoint"])
    if not found.is_dir():
        raise VerificationFailed(f"checkpoint {found.name} is not there any more")
    flaw = checkpoint.flaw(found)
    if flaw is not None:
        raise VerificationFailed(f"checkpoint {found.name}: {flaw}")
    _same("checkpoint_sha256", said["checkpoint_sha256"], weights_digest(found), f"checkpoint {found.name} has")
    return found


def _starts(said: dict[str, Any], given: str | None) -> str | None:
    if said["starts"] is None:
        return None
    from polyplay.envs.atari import starts

    where = given or said["starts"]["path"]
    try:
        digest = starts.load(where).digest
    except UserError as e:
        raise VerificationFailed(str(e)) from None
    _same("the digest of its start states", said["starts"]["digest"], digest, f"{where} has")
    return where


def _protocol(said: dict[str, Any]) -> protocols.Protocol:
    try:
        return protocols.protocol(said["protocol"])
    except UserError as e:
        raise VerificationFailed(str(e)) from None


def _compared(said: dict[str, Any], now: dict[str, Any]) -> str:
    stamp = machine.stamp()
    changed = [k for k in ("versions", "commit", "machine") if said.get(k) != stamp[k]]
    changed += ["device"] if said.get("device", "cpu") != now["device"] else []
    before, after = said["returns"], now["returns"]
    mean = f"{float(np.mean(after)):,.2f} now, {float(np.mean(before)):,.2f} recorded"
    if before == after:
        return f"all {len(before)} returns came out the same"
    if not changed:
        first = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
        raise VerificationFailed(
            f"game {first} returned {after[first]:g} now, {before[first]:g} recorded, by the same build; {mean}"
        )
    if not aggregates_agree(before, after):
        raise VerificationFailed(
            f"{mean}: they differ by more than their 95 % bootstrap interval ({', '.join(changed)} differ)"
        )
    return f"{mean}: no difference within its 95 % bootstrap interval; {', '.join(changed)} differ"
