"""`polyplay starts RUN`: start states for the human-starts protocol, made from an agent's own play, and labelled so.

The papers took 100 states per game from a professional's play and never released them. These are no replacement for
comparisons with published human-starts scores: they show how an agent does from states that it did not choose.
Each is another game of the run's policy, up to a frame drawn evenly from its first `frames` frames.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.atari import protocols, starts
from polyplay.envs.atari.native import actions_of, rom
from polyplay.envs.atari.presets import Atari
from polyplay.envs.pool import lane_seeds, options
from polyplay.runs import directory as record
from polyplay.runs.load import choose_checkpoint, crew_of, load_run
from polyplay.workers import process

AT_ONCE = 16  # games
SEED = 30_000_001  # other games than those of training and evaluation


@dataclass(frozen=True)
class StartsOptions:
    """Start states from a run's own play, as a file for `polyplay evaluate --protocol human-starts --starts FILE`."""

    out: str | None = None
    """the file to write"""
    number: int = 100
    """how many start states"""
    frames: int = 18_000
    """they lie evenly among so many first frames of a game"""
    epsilon: float = 0.05
    """the chance of a uniform random action at every step"""
    seed: int = 0
    """seed of environments, actions, and of where the states are taken"""
    checkpoint: str | None = None
    """which: best, or a number (none: the newest)"""

    def __post_init__(self) -> None:
        for name in ("number", "frames"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}: {getattr(self, name)} given, allowed: a whole number from 1 up")
        if not 0 <= self.epsilon <= 1:
            raise UserError(f"--epsilon: {self.epsilon:g} given, allowed: a number from 0 to 1")


def record_starts(directory: Path, asked: StartsOptions) -> bytes:
    """The file's bytes. Raises UserError: no Atari run."""
    from polyplay.acting import play

    page, settings, kept, config = load_run(directory)
    found = choose_checkpoint(directory, asked.checkpoint)
    wired = page.build(settings, crew_of(replace(kept, device="cpu")))
    title = protocols.game(wired.envs)
    if title is None:
        raise UserError(f"RUN: start states are of Atari games, this run plays {wired.envs.title}")
    process.tune(1)
    policy = play.load_policy(wired, found)
    how = {"start": "", "noop_min": 0, "noop_max": 0, "fire_reset": False, "life_loss": "ignore", "life_start": ""}
    whole = {"sticky": 0.0, "pipeline": "auto", "max_frames": asked.frames, "stack_reset": "zero"}
    envs = replace(wired.envs, options={**wired.envs.options, **how, **whole})
    rows = []
    for first in range(0, asked.number, AT_ONCE):
        rows += _some(envs, policy, asked, first, min(AT_ONCE, asked.number - first))
    source = (
        f"play of an agent of {config['system']}, no human's: "
        f"checkpoint {found.name}, config {record.config_hash(config)}, "
        f"epsilon {asked.epsilon:g}, seed {asked.seed}, the first {asked.frames} frames"
    )
    return starts.written(title, "substitute", source, rows)


def _some(envs: Any, policy: Any, asked: StartsOptions, first: int, lanes: int) -> list[dict[str, Any]]:
    """The start states number `first` … of as many games at once."""
    from polyplay.acting import play

    seed, game = asked.seed + SEED, rom(envs.title)
    o = options(Atari, envs.options, envs.title)
    names = actions_of(game, o.full_actions)
    how = play.PlayOptions(lanes, asked.seed, epsilon=asked.epsilon)
    played: list[list[int]] = [[] for _ in range(lanes)]
    for actions, over in play.actions_of_games(envs, policy, how, first, seed):
        for i in np.flatnonzero(~over).tolist():
            played[i].append(int(actions[i]))
    rows = []
    for i, u in enumerate(np.random.default_rng((asked.seed, first)).random(lanes)):
        steps = min(len(played[i]), asked.frames // o.frameskip)
        buttons = [names[a] for a in played[i][: int(u * steps)] for _ in range(o.frameskip)]
        env_seed = int(lane_seeds(seed, first + i, 1)[0])
        rows.append({"actions": starts.spelled(buttons), "seed": env_seed, "ram": _ram(game, env_seed, buttons)})
    return rows


def _ram(game: str, seed: int, buttons: list[str]) -> str:
    """SHA-256 of the RAM after these buttons, one a frame."""
    import ale_py

    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(str(ale_py.roms.get_rom_path(game)))
    ale.reset_game()
    for button in buttons:
        ale.act(ale_py.Action.__members__[button].value)
    return hashlib.sha256(ale.getRAM().tobytes()).hexdigest()
