"""Scores of a run's checkpoints: measured by a protocol, written down so that they can be compared and checked again.

Every evaluation is a file of its own in the run's directory, `evaluation-….json`; `scores.json` gathers them in three
places that are never mixed: "final" (the run's last weights), "best" (its best snapshot) and "training" (the returns of
its last 100 games while it learnt); evaluations of other checkpoints are in "snapshots".
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyplay.common import checkpoint, machine
from polyplay.common.errors import UserError
from polyplay.common.files import write_json
from polyplay.common.statistics import mean_interval
from polyplay.envs.atari import protocols
from polyplay.envs.atari.starts import Starts
from polyplay.evaluation.scores.of_runs import FILE, training_score
from polyplay.runs import directory as record
from polyplay.runs.load import choose_checkpoint, crew_of, load_run, weights_digest
from polyplay.workers import process

SCHEMA = 1
PLACES = ("final", "best", "training", "snapshots")
SHORT = (
    "protocol",
    "label",
    "chosen_by",
    "checkpoint",
    "checkpoint_sha256",
    "frames",
    "seed",
    "episodes",
    "epsilon",
    "actions",
)
SCORE = ("episodic_return_mean", "episodic_return_std", "interval")
ORIGIN = ("config_hash", "versions", "commit", "machine", "finished")


@dataclass(frozen=True)
class EvaluationRequest:
    """What a person asks for. None: what the protocol, or the system, says."""

    episodes: int | None = None
    seed: int = 0
    which: str | None = None
    greedy: bool = False
    protocol: str = "run"
    starts: str | None = None
    epsilon: float | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.epsilon is not None and not 0 <= self.epsilon <= 1:
            raise UserError(f"--epsilon: {self.epsilon:g} given, allowed: a number from 0 to 1")
        if self.episodes is not None and self.episodes < 1:
            raise UserError(f"--episodes: {self.episodes} given, allowed: a whole number from 1 up")


def evaluate(
    directory: Path,
    episodes: int | None = None,
    seed: int = 0,
    *,
    video: bool = False,
    which: str | None = None,
    settings: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Play full games with a checkpoint's weights (default: the newest whole one; "best"; or its number), write the
    evaluation beside them. more: greedy, protocol, starts, epsilon, device, see Asked.
    """
    asked = EvaluationRequest(episodes, seed, which, **more)
    how = protocols.protocol(asked.protocol)
    page, kept, options, config = load_run(directory)
    found = choose_checkpoint(directory, which)
    wired = page.build(settings or kept, crew_of(replace(options, device="cpu")))
    envs, starts = protocols.apply(how, wired.envs, asked.starts)
    name = file_name(asked, found.name, protocols.label(how, starts))
    played = play_and_score(wired, envs, found, asked, how, directory / f"{name}.mp4" if video else None)
    place = "best" if which == "best" else "final" if found.name == final(directory) else "snapshots"
    result = {**_origin(place, wired, found, config, starts), **played, "label": protocols.label(how, starts)}
    result["environment"] = dict(envs.spec.describe)
    if video:
        result["video"] = str(directory / f"{name}.mp4")
    write_json(directory / f"{name}.json", result)
    update_scores(directory, name, result)
    return result


def play_and_score(
    wired: Any, envs: Any, found: Path, asked: EvaluationRequest, how: protocols.Protocol, video: Path | None = None
) -> dict[str, Any]:
    """The games, and what a repetition has to know of how they were played."""
    import torch

    from polyplay.acting import play
    from polyplay.acting.on_device import policy_from_cpu
    from polyplay.evaluation.film import Film
    from polyplay.nets import device

    process.tune(1)  # the environments' threads have the other cores; two that wait for each other gain nothing
    torch.manual_seed(asked.seed)
    where = device.choose_devices(asked.device)[0]
    policy = policy_from_cpu(play.load_policy(wired, found).to(where))
    episodes = asked.episodes or how.episodes
    epsilon = float(wired.epsilon if asked.epsilon is None else asked.epsilon)
    film = Film(video) if video is not None else None
    before = time.monotonic()
    try:
        games = play.play_games(
            film.setting(envs) if film else envs, policy, episodes, asked.seed, asked.greedy, film, epsilon
        )
    finally:
        if film is not None:
            film.close()
    result = play.summarize_games(games, envs.spec.frames_per_step, time.monotonic() - before)
    return {
        "protocol": how.name,
        "seed": asked.seed,
        "lanes": play.lanes_of(envs, episodes),
        "device": where if where == "cpu" else device.device_name(where),
        "epsilon": epsilon,
        "actions": "greedy" if asked.greedy else "sampled",
        **result,
        "interval": mean_interval(result["returns"]),
    }


def file_name(asked: EvaluationRequest, found: str, label: str) -> str:
    """Without its ending: what differs from `polyplay evaluate RUN` stands in it."""
    parts = ["evaluation", found] + ([] if label == "run" else [label.replace(" (", "-").rstrip(")")])
    parts += [] if asked.epsilon is None else [f"eps{asked.epsilon:g}"]
    return "-".join([*parts, f"seed{asked.seed}", *(["greedy"] if asked.greedy else [])])


def final(directory: Path) -> str | None:
    """The checkpoint that a run ended with; None: it goes on, or failed."""
    try:
        summary = json.loads((directory / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return summary.get("checkpoint") if summary.get("exit_code") == 0 else None


def _origin(place: str, wired: Any, found: Path, config: Mapping[str, Any], starts: Starts | None) -> dict[str, Any]:
    """Whose score it is, and with what it was measured."""
    stamp, counters = machine.stamp(), checkpoint.manifest(found)["counters"]
    files = None if starts is None else {k: getattr(starts, k) for k in ("path", "digest", "kind", "source")}
    return {
        "schema": SCHEMA,
        "place": place,
        "chosen_by": None if place != "best" else "evaluation" if _evaluated(found) else "training return",
        "system": config["system"],
        "env": config["config"]["env"],
        "game": protocols.game(wired.envs),
        "trained_seed": config["seed"],
        "checkpoint": found.name,
        "checkpoint_sha256": weights_digest(found),
        "frames_trained": counters.get("frames"),
        "config_hash": record.config_hash(config),
        "starts": files,
        "versions": stamp["versions"],
        "commit": stamp["commit"],
        "machine": stamp["machine"],
        "finished": stamp["started"],
    }


def _evaluated(found: Path) -> bool:
    """Whether weights were kept for their score beside training."""
    return found.name.startswith(checkpoint.BEST)


# ------------------------------------------------------------------------------------------------- scores.json


def update_scores(directory: Path, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Put an evaluation into scores.json, and the training returns of now; what stands there."""
    scores = read_scores(directory)
    last = final(directory)
    for old in [k for k, v in scores["final"].items() if v["checkpoint"] != last]:  # the run went on since
        scores["snapshots"][old] = scores["final"].pop(old)
    kept = {k: result[k] for k in (*SHORT, *SCORE, *ORIGIN) if k in result}
    if result.get("starts"):
        kept["starts"] = result["starts"]
    scores[result["place"]][name] = {**kept, "frames": result["frames_trained"]}
    scores["training"] = training_score(directory)
    write_json(directory / FILE, scores)
    return scores


def read_scores(directory: Path) -> dict[str, Any]:
    """{"final", "best", "snapshots": {evaluation: …}, "training": {…}}; empty places where nothing was measured."""
    try:
        found = json.loads((directory / FILE).read_text())
    except OSError:
        found = {}
    except ValueError as e:
        raise UserError(f"{directory / FILE} is damaged: {e}; remove it and evaluate again") from None
    return {"schema": SCHEMA, **{place: found.get(place, {}) for place in PLACES}}
