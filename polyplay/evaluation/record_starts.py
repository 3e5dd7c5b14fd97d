"""`polyplay starts RUN`: start states for the human-starts protocol, made from an agent's own play, and labelled so.

The papers took 100 states per game from a professional's play and never released them. These are no replacement for
comparisons with published human-starts scores: they show how an agent does from states that it did not choose.
Each is another game of the run's policy, up to a frame drawn evenly from its first `frames` frames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polyplay.common.bounds import Count, Fraction, Seed
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.envs import Envs
from polyplay.envs.atari import protocols, starts
from polyplay.envs.atari.native import actions_of, rom
from polyplay.envs.atari.presets import Atari
from polyplay.envs.pool import lane_seeds
from polyplay.runs.directory import config_hash
from polyplay.runs.load import choose_checkpoint, crew_of, load_run
from polyplay.workers import process

Games = Iterator[tuple[np.ndarray, np.ndarray]]  # step by step: actions, and whose game is over
AT_ONCE = 16  # games
SEED = 30_000_001  # other games than those of training and evaluation
# whole games from the reset on, nothing random but the policy:
WHOLE = {**protocols.PROTOCOLS["human-starts"].options, "start": "", "stack_reset": "zero"}


@dataclass(frozen=True)
class StartsOptions:
    """Records start states from a run's own games, for `polyplay evaluate --protocol human-starts --starts FILE`."""

    out: str | None = None
    """the file to write"""
    number: Count = 100
    """how many start states"""
    frames: Count = 18_000
    """the states are spread evenly over this many first frames of a game"""
    epsilon: Fraction = 0.05
    """probability of a uniform random action at every step"""
    seed: Seed = 0
    """seed of environments, actions and the choice of states"""
    checkpoint: str | None = None
    """checkpoint to load: best, or the number its name begins with (none: the newest)"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""


def record_starts(directory: Path, options: StartsOptions) -> bytes:
    """The bytes of the file. Raises UserError: no Atari run."""
    from polyplay.acting import play

    page, settings, run_options, config = load_run(directory, options.trust)
    found = choose_checkpoint(directory, options.checkpoint)
    wired = page.build(settings, crew_of(replace(run_options, device="cpu")))
    title = protocols.game(wired.envs)
    if title is None:
        raise UserError(f"RUN: start states are of Atari games, this run plays {wired.envs.title}")
    process.tune(1)
    policy = play.load_policy(wired, found)
    envs = replace(wired.envs, options={**wired.envs.options, **WHOLE, "max_frames": options.frames})
    rows = []
    for first in range(0, options.number, AT_ONCE):
        how = play.PlayOptions(min(AT_ONCE, options.number - first), options.seed, epsilon=options.epsilon)
        games = play.actions_of_games(envs, policy, how, first, options.seed + SEED)
        rows += _starts_of_games(envs, games, options, first, how.episodes)
    source = (
        f"play of an agent of {config['system']}, no human's: "
        f"checkpoint {found.name}, config {config_hash(config)}, "
        f"epsilon {options.epsilon:g}, seed {options.seed}, the first {options.frames} frames"
    )
    return starts.written(title, "substitute", source, rows)


def _starts_of_games(envs: Envs, games: Games, options: StartsOptions, first: int, lanes: int) -> list[Row]:
    """Start states number `first` … of as many games at once."""
    game, atari = rom(envs.title), Atari(**envs.options)
    names = actions_of(game, atari.full_actions)
    played: list[list[int]] = [[] for _ in range(lanes)]
    for actions, over in games:
        for i in np.flatnonzero(~over).tolist():
            played[i].append(int(actions[i]))
    rows = []
    for i, u in enumerate(np.random.default_rng((options.seed, first)).random(lanes)):
        steps = min(len(played[i]), options.frames // atari.frameskip)
        buttons = [names[a] for a in played[i][: int(u * steps)] for _ in range(atari.frameskip)]
        env_seed = int(lane_seeds(options.seed + SEED, first + i, 1)[0])
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
