"""Games of several players that tests script: who is there at which step, who ends how, what everyone sees."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from gymnasium import spaces

from polyplay.envs.saved_state import generator_state, set_generator_state

STAY, RAISE, HANG, KILL = 0, 1, 2, 3  # what the first seat's action asks for, where `faulty`
# of each match in turn: agent → (first step that it is there, its last step, terminated, truncated)
SCRIPT: list[dict[str, tuple[int, int, bool, bool]]] = [
    {"a": (0, 3, True, False), "b": (0, 5, False, True), "c": (2, 5, True, False)},  # a dies, c comes late
    {"a": (0, 2, False, True), "b": (0, 4, True, True), "c": (0, 4, False, True)},  # one is cut off, both at once
    {"a": (0, 1, True, False), "b": (0, 3, True, False)},  # c never comes
]


class Scripted:
    """obs: (the agent's number, step, match, its last action, the draw of this step); reward: 10·step + action."""

    possible_agents = ("a", "b", "c")
    polyplay_teams = {"a": 0, "b": 0, "c": 1}  # noqa: RUF012
    polyplay_events = ("odd", "zero")
    metadata = {"name": "scripted"}  # noqa: RUF012

    def __init__(self, masks: bool = False, faulty: bool = False, length: int = 0):
        self.masks, self.faulty, self.length = masks, faulty, length
        self.match, self.agents = -1, []
        self._seen = spaces.Box(-1, 1e9, (5,), np.float32)
        self._acted = spaces.Discrete(4)

    def observation_space(self, agent: str) -> spaces.Space:
        return self._seen

    def action_space(self, agent: str) -> spaces.Space:
        return self._acted

    def _script(self) -> dict[str, tuple[int, int, bool, bool]]:
        if self.length:
            return dict.fromkeys(self.possible_agents, (0, self.length, False, True))
        return SCRIPT[self.match % len(SCRIPT)]

    def _see(self, agent: str) -> np.ndarray:
        number = self.possible_agents.index(agent)
        return np.array([number, self.at, self.match, self.before.get(agent, -1), self.draw], np.float32)

    def _info(self, agent: str) -> dict[str, Any]:
        act = self.before.get(agent, 0)
        info: dict[str, Any] = {"events": [act % 2, act == 0], "team_reward": float(self.at)}
        if self.masks:
            info["action_mask"] = np.arange(4) != self.at % 4
        return info

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.match, self.at, self.before, self.draw = self.match + 1, 0, {}, int(self.random.integers(1000))
        self.agents = [a for a, (come, *_) in self._script().items() if come == 0]
        return {a: self._see(a) for a in self.agents}, {a: self._info(a) for a in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert list(actions) == self.agents, (actions, self.agents)
        if self.faulty and "a" in actions:
            _obey(int(actions["a"]))
        self.at, self.before, self.draw = self.at + 1, dict(actions), int(self.random.integers(1000))
        script = self._script()
        ends = {a: self.at == script[a][1] for a in self.agents}
        come = [a for a, (first, *_) in script.items() if first == self.at]
        everyone = [*self.agents, *come]
        obs, infos = ({a: see(a) for a in everyone} for see in (self._see, self._info))
        rewards = {a: 10.0 * self.at + int(actions[a]) for a in self.agents}
        dead = {a: ends[a] and script[a][2] for a in self.agents}
        late = {a: ends[a] and script[a][3] for a in self.agents}
        self.agents = [a for a in self.possible_agents if a in come or (a in ends and not ends[a])]
        return obs, rewards, dead, late, infos

    def close(self) -> None:
        pass

    def get_state(self) -> dict[str, Any]:
        there = np.array([a in self.agents for a in self.possible_agents])
        before = np.array([self.before.get(a, -1) for a in self.possible_agents])
        at = np.array([self.match, self.at, self.draw])
        return {"at": at, "random": generator_state(self.random), "there": there, "before": before}

    def set_state(self, saved: dict[str, Any]) -> None:
        self.match, self.at, self.draw = (int(x) for x in saved["at"])
        set_generator_state(self.random, saved["random"])
        self.agents = [a for a, there in zip(self.possible_agents, saved["there"], strict=True) if there]
        before = zip(self.possible_agents, saved["before"].tolist(), strict=True)
        self.before = {a: act for a, act in before if act >= 0}


def _obey(action: int) -> None:
    if action == RAISE:
        raise ValueError("boom")
    if action == HANG:
        time.sleep(1000)
    if action == KILL:
        os.kill(os.getpid(), signal.SIGKILL)


class TwinMatch:
    """The rows of a Scripted match, said plainly: a loop over seats without any of the pool's parts."""

    def __init__(self, seed: int, **options: Any):
        self.env = Scripted(**options)
        self.seed: int | None = seed
        self.playing: list[str] = []

    def rows(self, actions: list[int]) -> list[dict[str, Any]]:
        """The next row of each seat, for these actions of all seats."""
        if not self.playing:
            obs, infos = self.env.reset(seed=self.seed)
            self.seed = None
            self.playing = list(self.env.agents)
            return [self._first(a, obs, infos) for a in self.env.possible_agents]
        seats = {a: i for i, a in enumerate(self.env.possible_agents)}
        acted, obs_infos = self.playing, self.env.step({a: actions[seats[a]] for a in self.playing})
        obs, rewards, dead, late, infos = obs_infos
        self.playing = list(self.env.agents)
        made = []
        for a in self.env.possible_agents:
            if a not in acted:
                made.append(self._first(a, obs, infos))
                continue
            row = {"obs": obs[a], "reward": rewards[a], "terminated": dead[a], "truncated": late[a], "first": False}
            events, team = np.float32(infos[a]["events"]), infos[a]["team_reward"]
            made.append({**row, "over": dead[a] or late[a], "events": events, "team_reward": team})
        return made

    def _first(self, agent: str, obs: dict, infos: dict) -> dict[str, Any]:
        flags = dict.fromkeys(("terminated", "truncated", "over"), False)
        seen = {"obs": obs[agent]} if agent in self.playing else {}
        return {**seen, "reward": 0.0, **flags, "first": True, "events": np.zeros(2, np.float32), "team_reward": 0.0}
