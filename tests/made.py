"""Directories of runs that never ran: whole checkpoints of networks that have learnt nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from polyplay import systems
from polyplay.core import checkpoint
from polyplay.envs import pool
from polyplay.runs import directory as record
from polyplay.runs import load
from polyplay.runs import options as config


def run(
    directory: Path, env: str = "toy:catch", updates: tuple[int, ...] = (7,), ended: bool = True, **more: Any
) -> Path:
    """A run of a2c with a checkpoint for each of `updates`; ended: as if it had ended well with the last of them."""
    page = systems.load("a2c")
    settings, options, sources = config.resolve(page, env=env, replicas=1, lanes=4, **more)
    wired = page.build(settings, load.crew_of(options))
    directory.mkdir(parents=True)
    told = {"config": config.to_json(settings), "options": config.to_json(options), "sources": sources}
    record.write_config(directory, {"system": "a2c", **told, "environment": wired.envs.spec.describe})
    record.write_json(directory / pool.FILE, pool.spec_to_json(wired.envs.spec))
    for update in updates:
        save(directory, wired.policy, update)
    last = checkpoint.directory_name(max(updates), {"steps": 20 * max(updates)})
    (directory / "summary.json").write_text(json.dumps({"exit_code": 0 if ended else 1, "checkpoint": last}))
    return directory


def save(directory: Path, policy: Any, update: int, mean: float | None = None, agents: int = 1) -> Path:
    part = checkpoint.CheckpointPart(directory, update)
    for agent in range(agents):
        torch.manual_seed(update + agent)
        arrays = {k: v.numpy() for k, v in policy().state_dict().items()}
        part.arrays(checkpoint.policy_name(agent), arrays)
    counters = {"steps": 20 * update, "frames": 20 * update, "updates": update, "episodic_return_mean": mean}
    counters |= {"agents": {str(agent): update for agent in range(agents)}} if agents > 1 else {}
    return checkpoint.complete(directory, update, counters)


def games(directory: Path, returns: list[float]) -> None:
    """Games of training, as the run's reports have them."""
    rows = [{"episodic_return": r, "episodic_length": 9, "frames": i} for i, r in enumerate(returns)]
    (directory / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
