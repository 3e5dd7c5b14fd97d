"""Agents of runs by name: of a run, of one of its checkpoints, of the file of a past self."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.past_selves import FOLDER
from polyplay.runs.load import (
    check_spaces,
    choose_agent,
    choose_checkpoint,
    crew_of,
    load_run,
    split_checkpoint,
    weights_digest,
    wire_system,
)
from polyplay.systems import System

OPPONENT = re.compile(r"random|perfect|(bot|mcts|gtp):.*")  # by name


@dataclass(frozen=True)
class RunAgent:
    """name: as it was given, with the agent's number if there are several. weights: a checkpoint, or a file."""

    name: str
    wired: System
    weights: Path
    agent: int = 0

    @property
    def about(self) -> Row:
        """What a record says of it."""
        if self.weights.suffix == checkpoint.ARRAYS:
            digest = checkpoint.describe_file(self.weights)["sha256"]
        else:
            digest = weights_digest(self.weights, self.agent)
        return {"checkpoint": self.weights.name, "checkpoint_sha256": digest}


def is_run(name: str) -> bool:
    """Whether this is a run's or a past self's, and no opponent by name."""
    path, _ = _split_agent(name)
    return not OPPONENT.fullmatch(name) and (path.is_dir() or path.suffix == checkpoint.ARRAYS)


def find_agents(name: str, trust: bool = False) -> list[RunAgent]:
    """Who a name means. RUN: every agent of a run's newest checkpoint; RUN/checkpoints/NAME: of that one; either with
    :N or :best: that agent; RUN/selves/NAME.safetensors: a past self. Raises UserError.
    """
    path, agent = _split_agent(name)
    alone = path.suffix == checkpoint.ARRAYS
    if alone and not path.is_file():
        raise UserError(f"{name}: there is no such file of a past self")
    folder = path.absolute().parent
    if alone and folder.name != FOLDER:
        raise UserError(f"{name} given, allowed: the file of a past self where its run has it, in RUN/selves")
    run, which = (folder.parent, None) if alone else split_checkpoint(path)
    page, settings, options, _ = load_run(run, trust)
    found = path if alone else choose_checkpoint(run, which)
    wired = wire_system(page, settings, crew_of(replace(options, device="cpu")))
    check_spaces(run, wired.envs)
    if alone:
        return [RunAgent(name, wired, found)]
    there = checkpoint.agents_of(found)
    if agent is None and len(there) > 1:
        return [RunAgent(f"{name}:{n}", wired, found, n) for n in there]
    return [RunAgent(name, wired, found, choose_agent(run, found, agent, name))]


def find_agent(name: str, trust: bool = False) -> RunAgent:
    """The one that a name means. Raises UserError: there are several."""
    found = find_agents(name, trust)
    if len(found) > 1:
        raise UserError(f"{name} has {len(found)} agents: name one, {found[0].name}")
    return found[0]


def _split_agent(name: str) -> tuple[Path, str | None]:
    """RUN:N and RUN:best: (RUN, N or best)."""
    path, _, agent = name.rpartition(":")
    if path and (agent.isdecimal() or agent == "best") and Path(path).is_dir() and not Path(name).exists():
        return Path(path), agent
    return Path(name), None
