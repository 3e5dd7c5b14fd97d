"""Melting Pot's paintball__capture_the_flag (Agapiou et al. 2022) for Polyplay: four against four, with events.

    pip install dm-meltingpot
    polyplay train ftw --env examples.melting_pot:CaptureTheFlag

The class is a PettingZoo ParallelEnv. Its events have the names of arena:ctf, so `--event-rewards` are the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from meltingpot import substrate

NAME = "paintball__capture_the_flag"
FLAGS = {"flag_picked_up": "picked_up", "flag_captured": "captured", "flag_returned": "returned"}
EVENTS = tuple(who + what for who in ("", "teammate_", "opponent_") for what in FLAGS.values())
EVENTS += ("tagged_carrier", "tagged_other", "was_tagged_carrying", "was_tagged")


class CaptureTheFlag:
    """Observations: `rgb`, uint8 [3, 88, 88], and `ready`, 1 if the player can shoot and less if not. Nine actions.
    Rewards are the game's: 1 for all players of a team that captures, -1 for the other team. A match has 1,000 steps.
    """

    metadata = {"name": NAME}  # noqa: RUF012
    polyplay_events = EVENTS

    def __init__(self) -> None:
        config = substrate.get_config(NAME)
        self.roles = config.default_player_roles
        players = range(len(self.roles))
        self.teams = [player % 2 for player in players]  # Melting Pot has red and blue in turn
        order = sorted(players, key=lambda player: self.teams[player])  # a league needs a team's seats in a row
        self.players = {f"{('red', 'blue')[self.teams[player]]}_{player // 2}": player for player in order}
        self.possible_agents, self.agents = list(self.players), list[str]()
        self.polyplay_teams = {agent: self.teams[player] for agent, player in self.players.items()}
        high, wide, colors = config.timestep_spec.observation["RGB"].shape
        view, ready = spaces.Box(0, 255, (colors, high, wide), np.uint8), spaces.Box(-1, 1, (1,), np.float32)
        self._seen = spaces.Dict({"rgb": view, "ready": ready})
        self._acted = spaces.Discrete(config.action_spec.num_values)
        self._game: Any = None

    def observation_space(self, agent: str) -> spaces.Space:
        return self._seen

    def action_space(self, agent: str) -> spaces.Space:
        return self._acted

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """See ParallelEnv."""
        if seed is not None or self._game is None:
            self.close()
            self._game = _build(self.roles, seed)
        self.agents = list(self.possible_agents)
        return self._see(self._game.reset()), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
        """See ParallelEnv."""
        by_player = {player: int(actions[agent]) for agent, player in self.players.items()}
        timestep = self._game.step([by_player[player] for player in range(len(self.roles))])
        rewards = {agent: float(timestep.reward[player]) for agent, player in self.players.items()}
        counts = count_events(self._game.events(), self.teams)
        infos = {agent: {"events": counts[player]} for agent, player in self.players.items()}
        self.agents = [] if timestep.last() else list(self.possible_agents)
        over = timestep.last() and timestep.discount == 0
        ends = dict.fromkeys(self.players, over), dict.fromkeys(self.players, timestep.last() and not over)
        return self._see(timestep), rewards, *ends, infos

    def _see(self, timestep: Any) -> dict[str, Any]:
        seen = {agent: timestep.observation[player] for agent, player in self.players.items()}
        return {
            agent: {"rgb": own["RGB"].transpose(2, 0, 1), "ready": np.array([own["READY_TO_SHOOT"]], np.float32)}
            for agent, own in seen.items()
        }

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
        self._game = None


def _build(roles: Sequence[str], seed: int | None) -> Any:
    """Build the game. Melting Pot takes no seed: it draws one from `random`, and adds one per further match. The seed
    determines the walls, but not where players start, which differs even between games of the same seed.
    """
    before = random.getstate()
    try:
        random.seed(seed)
        return substrate.build(NAME, roles=roles)
    finally:
        random.setstate(before)


def count_events(events: Sequence[tuple[str, Sequence[Any]]], teams: Sequence[int]) -> np.ndarray:
    """Count the events of one step, float32 [players, EVENTS]; an event is (name, [b"dict", key, value, key, value, …])
    and numbers players from 1.
    """
    counts = np.zeros((len(teams), len(EVENTS)), np.float32)
    for i, (name, what) in enumerate(events):
        of = dict(zip(what[1::2], what[2::2], strict=False))
        if name in FLAGS:
            does = int(of[b"player_index"]) - 1
            for player, team in enumerate(teams):
                who = "" if player == does else "teammate_" if team == teams[does] else "opponent_"
                counts[player, EVENTS.index(who + FLAGS[name])] += 1
        elif name == "zap":
            carrier = [after for after, _ in events[i + 1 : i + 2]] == ["zapped_flag_carrier"]  # of the same zap
            counts[int(of[b"source"]) - 1, EVENTS.index("tagged_carrier" if carrier else "tagged_other")] += 1
            counts[int(of[b"target"]) - 1, EVENTS.index("was_tagged_carrying" if carrier else "was_tagged")] += 1
    return counts
