"""The scores of runs, as their scores.json has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.common import files
from polyplay.common.errors import UserError
from polyplay.common.statistics import mean_interval
from polyplay.runs import directory as record

FILE = "scores.json"
WINDOW = 100  # games of training that its score is over, as in reports


@dataclass(frozen=True)
class Score:
    run: str
    env: str
    game: str | None  # the ROM's name of an Atari game
    protocol: str
    label: str  # the protocol, with what is special about its start states
    mean: float
    interval: tuple[float, float] | None
    episodes: int
    epsilon: float | None
    config_hash: str | None
    machine: str | None  # that it was measured on


def scores_of_runs(runs: Sequence[Path], place: str, protocol: str | None) -> list[Score]:
    """One score per run: of several evaluations the newest. Raises UserError: none, or of several protocols."""
    found = [_newest(run, place, protocol) for run in runs]
    labels = sorted({s.label for s in found})
    if len(labels) > 1:
        raise UserError(f"--protocol: these runs have scores of {', '.join(labels)}; name one, they do not compare")
    return found


def _newest(run: Path, place: str, protocol: str | None) -> Score:
    env = record.read_config(run)["config"]["env"]
    entries = _entries(run, place)
    names = sorted({e["protocol"] for e in entries})
    wanted = [e for e in entries if protocol in (None, e["protocol"])]
    if not wanted:
        have = f"its {place} scores are of {', '.join(names)}" if names else f"it has no {place} score"
        how = f" --protocol {protocol}" if protocol else ""
        raise UserError(f"{run}: {have}; measure one with `polyplay evaluate {run}{how}`")
    if len({e["protocol"] for e in wanted}) > 1:
        raise UserError(f"--protocol: {run} has {place} scores of {', '.join(names)}; name one")
    kept = max(wanted, key=lambda e: str(e.get("finished", "")))
    interval = kept.get("interval")
    return Score(
        str(run),
        env,
        _game(env),
        kept["protocol"],
        kept.get("label", kept["protocol"]),
        kept["episodic_return_mean"],
        tuple(interval) if interval else None,
        kept["episodes"],
        kept.get("epsilon"),
        kept.get("config_hash"),
        (kept.get("machine") or {}).get("cpu"),
    )


def training_score(directory: Path) -> dict[str, Any]:
    """The score of the games that the run learnt from: the last 100, with the exploration of then."""
    games = list(files.read_lines(directory / "episodes.jsonl"))[-WINDOW:]
    if not games:
        return {}
    returns = np.array([g["episodic_return"] for g in games])
    return {
        "protocol": "training",
        **record.origin(directory),
        "episodes": len(games),
        "frames": games[-1]["frames"],
        "episodic_return_mean": float(returns.mean()),
        "episodic_return_std": float(returns.std()),
        "interval": mean_interval(returns.tolist()),
    }


def _entries(run: Path, place: str) -> list[dict[str, Any]]:
    if place == "training":
        found = training_score(run)
        if not found:
            raise UserError(f"{run} has finished no game yet, so it has no training score")
        return [found]
    try:
        scores = json.loads((run / FILE).read_text())
    except OSError:
        raise UserError(f"{run} has no {FILE}; measure a score with `polyplay evaluate {run}`") from None
    except ValueError as e:
        raise UserError(f"{run / FILE} is damaged: {e}; remove it and evaluate again") from None
    return list(scores.get(place, {}).values())


def _game(env: Any) -> str | None:
    from polyplay.envs.atari.native import rom

    return rom(env) if isinstance(env, str) and env.startswith("ALE/") else None
