"""Lines of {"wall_seconds", "steps", …} that a peer writes while it trains; bench/measure.py and score_race.py read
them. "returns", where games ended since the line before: their scores, whole games, nothing clipped.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path


class Log:
    """At most a line every `every` seconds; None writes nothing."""

    def __init__(self, path: str | None, every: float = 0.5):
        self.file = open(Path(path), "a", buffering=1) if path else None  # noqa: SIM115 - as long as the program
        self.begun = self.last = time.perf_counter()
        self.every = every
        self.games: list[float] = []

    def elapsed(self) -> float:
        """Seconds since it was opened."""
        return time.perf_counter() - self.begun

    def due(self) -> bool:
        return time.perf_counter() - self.last >= self.every

    def game(self, score: float) -> None:
        """One has ended."""
        self.games.append(float(score))

    def write(self, **counters: float) -> None:
        self.last = time.perf_counter()
        games, self.games = self.games, []
        if self.file is not None:
            line = {
                "wall_seconds": round(self.last - self.begun, 4),
                **counters,
                **({"returns": games} if games else {}),
            }
            self.file.write(json.dumps(line) + "\n")


def command_line(text: str | None, networks: tuple[str, ...], own: bool = False) -> argparse.ArgumentParser:
    """What every peer of bench/compare.py is told. `own`: it can also train the network that it comes with."""
    networks = (*networks, "own") if own else networks
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, formatter_class=form)
    parser.add_argument("--log", help="file for a line of counters a second")
    parser.add_argument("--network", choices=networks, default="nature", help="of networks.py; own: the peer's")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def dqn_command_line(text: str | None) -> argparse.ArgumentParser:
    """What every peer of the DQN contest is told: batch 32, Nature's network, an update for every 4 agent steps."""
    parser = command_line(text, ("nature",))
    parser.add_argument("--capacity", type=int, default=100_000, help="transitions that the replay keeps")
    parser.add_argument("--start", type=int, default=1_000, help="steps before the first update; they are not counted")
    parser.add_argument("--epsilon", type=float, default=0.05, help="from the first step on")
    parser.add_argument("--threads", type=int, default=2, help="torch.set_num_threads")
    return parser


def small_command_line(text: str | None) -> argparse.ArgumentParser:
    """What every peer of a contest on an environment of vectors is told."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, formatter_class=form)
    parser.add_argument("--algo", choices=("ppo", "a2c", "dqn", "sac", "td3"), default="ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--n-steps", type=int, default=32, help="of a rollout, per environment")
    parser.add_argument("--epochs", type=int, default=20, help="of PPO")
    parser.add_argument("--batch", type=int, default=256, help="rows of an update, but A2C's")
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--lam", type=float, default=0.95)
    parser.add_argument("--normalize", type=int, choices=(0, 1), default=0, help="observations and rewards")
    parser.add_argument("--every", type=int, default=8, help="of DQN: agent steps an update")
    parser.add_argument("--burst", type=int, default=1, help="of DQN: updates that are made in a row")
    parser.add_argument("--capacity", type=int, default=100_000, help="of DQN: transitions that the replay keeps")
    parser.add_argument("--start", type=int, default=1_000, help="steps before a replay's first update; not counted")
    parser.add_argument("--hidden", type=int, default=256, help="of SAC and TD3: units of each of two layers")
    parser.add_argument("--threads", type=int, default=1, help="torch.set_num_threads")
    parser.add_argument("--log", help="file for a line of counters a second")
    parser.add_argument("--seed", type=int, default=0)
    return parser
