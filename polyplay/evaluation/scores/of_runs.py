"""The scores of runs, as their scores.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.files import Row, is_row, read_lines, read_object
from polyplay.common.statistics import mean_interval
from polyplay.envs.atari.native import rom
from polyplay.runs.directory import origin, read_config

SCHEMA = 1
FILE = "scores.json"
PLACES = ("final", "best", "training", "snapshots")
WINDOW = 100  # games of training that its score is over, as in reports


@dataclass(frozen=True)
class Score:
    env: str
    game: str | None  # the ROM's name of an Atari game
    protocol: str
    label: str  # the protocol, with the kind of its start states where they are no human's
    mean: float
    interval: Sequence[float] | None
    episodes: int
    epsilon: float | None
    actions: str | None  # sampled or greedy; None: of training
    origin: Mapping[str, str | None]  # the run, the hash of its configuration, the machine that it was measured on


def scores_of_runs(runs: Sequence[Path], place: str, protocol: str | None) -> list[Score]:
    """One score per run: of several evaluations the newest. Raises UserError: none, or of several protocols."""
    found = [_newest(run, place, protocol) for run in runs]
    labels = sorted({s.label for s in found})
    if len(labels) > 1:
        raise UserError(f"--protocol: these runs have scores of {', '.join(labels)}; name one, they do not compare")
    return found


def _newest(run: Path, place: str, protocol: str | None) -> Score:
    env = read_config(run)["config"]["env"]
    entries = _entries(run, place)
    names = ", ".join(sorted({e["protocol"] for e in entries}))
    wanted = [e for e in entries if protocol in (None, e["protocol"])]
    if not wanted:
        have = f"its {place} scores are of {names}" if names else f"it has no {place} score"
        how = f" --protocol {protocol}" if protocol else ""
        raise UserError(f"{run}: {have}; measure one with `polyplay evaluate {run}{how}`")
    if len({e["protocol"] for e in wanted}) > 1:
        raise UserError(f"--protocol: {run} has {place} scores of {names}; name one")
    entry = max(wanted, key=lambda e: str(e.get("finished", "")))
    cpu = (entry.get("machine") or {}).get("cpu")
    return Score(
        env=env,
        game=rom(env) if isinstance(env, str) and env.startswith("ALE/") else None,
        protocol=entry["protocol"],
        label=str(entry.get("label", entry["protocol"])),
        mean=entry["episodic_return_mean"],
        interval=entry.get("interval"),
        episodes=entry["episodes"],
        epsilon=entry.get("epsilon"),
        actions=entry.get("actions"),
        origin={"run": str(run), "config_hash": entry.get("config_hash"), "machine": cpu},
    )


def training_score(directory: Path) -> Row:
    """The score of the games that the run learnt from: the last 100, with the exploration of then."""
    games = list(read_lines(directory / "episodes.jsonl", "frames", "episodic_return"))[-WINDOW:]
    if not games:
        return {}
    returns = np.array([g["episodic_return"] for g in games])
    return {
        "protocol": "training",
        **origin(directory),
        "episodes": len(games),
        "frames": games[-1]["frames"],
        "episodic_return_mean": float(returns.mean()),
        "episodic_return_std": float(returns.std()),
        "interval": mean_interval(returns.tolist()),
    }


def _entries(run: Path, place: str) -> list[Row]:
    if place == "training":
        score = training_score(run)
        if not score:
            raise UserError(f"{run} has finished no game yet, so it has no training score")
        return [score]
    if not (run / FILE).exists():
        raise UserError(f"{run} has no {FILE}; measure a score with `polyplay evaluate {run}`")
    return list(read_scores(run)[place].values())


def _is_entry(value: object) -> bool:
    score = is_row(value, ("episodic_return_mean", "episodes"))
    return score and isinstance(cast("Row", value).get("protocol"), str)


def read_scores(run: Path) -> Row:
    """{"final", "best", "snapshots": {evaluation: …}, "training": {…}}; empty places where nothing was measured."""
    try:
        scores = read_object(run / FILE)
        for place in ("final", "best", "snapshots"):
            if not all(map(_is_entry, scores.get(place, {}).values())):
                raise ValueError(f"not all in {place} are scores")
    except OSError:
        scores = {}
    except (ValueError, AttributeError) as e:
        raise UserError(f"{run / FILE} is damaged: {e}; remove it and evaluate again") from None
    return {"schema": SCHEMA, **{place: scores.get(place, {}) for place in PLACES}}
