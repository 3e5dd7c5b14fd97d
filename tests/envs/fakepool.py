"""A stand-in for the package envpool (1.2.5): what the pool uses of it, with the traps that bench/third_party.py
looks for.

Tasks: Count-v1 (Discrete actions that start at 1; obs [steps, lane's seed]; terminates after 3 + lane % 2 steps),
Lives-v5 (of envpool.atari: two lives of 3 steps), Real-v1 (Box actions without lower bound, dict observation),
Two-v1 (two players), Both-v1 (two actions at once).
"""

from __future__ import annotations

import sys
import warnings
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces

TINY, HUGE = np.finfo(np.float32).tiny, np.finfo(np.float32).max
COMMON = {"num_envs": 1, "batch_size": 0, "num_threads": 0, "max_num_players": 1, "seed": 42, "env_seed": []}
CONFIGS: dict[str, dict[str, Any]] = {
    "Count-v1": {"max_episode_steps": 100},
    "Lives-v5": {"max_episode_steps": 100, "episodic_life": False, "reward_clip": False, "frame_skip": 4, "scale": 1.0},
    "Real-v1": {"max_episode_steps": 2**31 - 1, "frame_skip": 2},
    "Two-v1": {"max_episode_steps": 9, "max_num_players": 2},
    "Both-v1": {"max_episode_steps": 9},
}
SEEN = {"Real-v1": spaces.Dict({"at": spaces.Box(TINY, HUGE, (2,), np.float32), "n": spaces.Discrete(9, start=2)})}
ACTED = {
    "Real-v1": spaces.Box(np.array([TINY, -1], np.float32), np.array([HUGE, 1], np.float32)),
    "Lives-v5": spaces.Discrete(4),
    "Both-v1": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}),
}


def make_spec(task: str, **options: Any) -> Any:
    known = {**COMMON, **CONFIGS[task]}
    if not set(options) <= set(known):
        raise TypeError("unexpected keyword argument")
    if options.get("max_episode_steps", 1) < 1:
        raise ValueError("too\nshort")
    warnings.warn("Box low's precision lowered by casting", stacklevel=1)
    values = {**known, **options}
    return SimpleNamespace(
        config=namedtuple("Config", values)(**values),
        gymnasium_observation_space=SEEN.get(task, spaces.Box(-HUGE, HUGE, (2,), np.float32)),
        gymnasium_action_space=ACTED.get(task, spaces.Discrete(3, start=1)),
    )


class Pool:
    def __init__(self, task: str, **options: Any):
        config = make_spec(task, **{**options, "seed": 0}).config
        self.task, self.config, self.seeds = task, config, options["seed"]
        assert isinstance(self.seeds, list)
        assert len(self.seeds) == config.num_envs
        assert config.num_threads > 0, "0 would be one thread where batch_size is 1"
        self.n, self.batch = config.num_envs, config.batch_size
        self.out: list[int] = []
        self.age, self.lives = np.zeros(self.n, int), np.full(self.n, 2)
        self.done, self.trunc, self.reward = np.ones(self.n, bool), np.zeros(self.n, bool), np.zeros(self.n)
        self.sent: list[Any] = []
        self.rng = np.random.default_rng(0)

    @property
    def observation_space(self) -> Any:
        return make_spec(self.task).gymnasium_observation_space

    def async_reset(self) -> None:
        self.age[:] = 0
        self.done[:] = False
        self.out = list(range(self.n))

    def send(self, action: Any, env_id: Any) -> None:
        assert env_id.dtype == np.int32
        assert len(action) == len(env_id)
        self.sent.append(action)
        for i in env_id.tolist():
            assert i not in self.out, "sent twice"
            self._step(i)
            self.out.append(i)

    def _step(self, i: int) -> None:
        atari = self.task == "Lives-v5"
        over = self.trunc[i] or (self.done[i] and not (atari and self.lives[i]))
        if over:
            self.age[i], self.lives[i], self.reward[i] = 0, 2, 0.0
            self.done[i] = self.trunc[i] = False
            return
        after_life, self.done[i] = bool(self.done[i]), False
        if after_life:
            return  # goes on where it was; a reward of that step would be kept from us
        self.age[i] += 1
        self.reward[i] = self.age[i]
        if atari and self.age[i] % 3 == 0:
            self.lives[i] -= 1
            self.done[i] = self.lives[i] == 0 or self.config.episodic_life
        elif not atari:
            self.done[i] = self.age[i] == 3 + i % 2
        self.trunc[i] = self.age[i] >= self.config.max_episode_steps
        self.done[i] |= self.trunc[i]

    def recv(self) -> Any:
        assert len(self.out) >= self.batch, "would wait for ever"
        pick = sorted(self.out) if self.batch == self.n else self.rng.permutation(self.out)[: self.batch].tolist()
        self.out = [i for i in self.out if i not in pick]
        at = np.array(pick)
        info = {"env_id": at.astype(np.int32), "elapsed_step": self.age[at].astype(np.int32)}
        if self.task == "Lives-v5":
            info["lives"] = self.lives[at].astype(np.int32)
            info["terminated"] = (self.done[at] & (self.lives[at] == 0)).astype(np.int32)
        obs: Any = np.stack([self.age[at], np.array(self.seeds)[at] % 1000], 1).astype(np.float32)
        if self.task == "Real-v1":
            obs = {"at": obs, "n": (2 + self.age[at]).astype(np.int32)}
        reward = self.reward[at].astype(np.float32)
        return obs, reward, self.done[at] & ~self.trunc[at], self.trunc[at].copy(), info


def install(monkeypatch: Any) -> list[Pool]:
    """Put it in envpool's place; the list collects the pools that are made."""
    made: list[Pool] = []

    def make_gymnasium(task: str, **options: Any) -> Pool:
        made.append(Pool(task, **options))
        return made[-1]

    modules = {t: ("envpool.atari" if t == "Lives-v5" else "envpool.made_up", "", {}) for t in CONFIGS}
    fake = SimpleNamespace(
        list_all_envs=lambda: list(CONFIGS),
        make_spec=make_spec,
        make_gymnasium=make_gymnasium,
        registration=SimpleNamespace(registry=SimpleNamespace(specs=modules)),
    )
    monkeypatch.setitem(sys.modules, "envpool", fake)
    return made
