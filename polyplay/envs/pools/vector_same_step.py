"""Vector environments that reset within the step that ends an episode (SAME_STEP), as the project's rows.

The last row of an episode has `info["final_obs"]`, the first row of the next what that step returned. Where all lanes
ended at once nothing is stepped between the two. Else the others go on, and a vector environment steps all its lanes:
one that ended makes one step of its next episode unseen, with the action that belongs to nothing. Its reward is added
to the next one, so that returns are whole. Gymnasium's own can reset some lanes; there that step is undone by another
reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Tree
from polyplay.envs import rules, spaces
from polyplay.envs.pools.vector_modes import resets_lanes
from polyplay.envs.pools.vector_rows import Reader, lane_flags, observation_reader

FINAL = "final_obs", "final_observation"  # keys of info; the second is of older ones


class BegunEpisodes:
    """The episodes that began within a step, until their first rows are shown. obs: the observations of all lanes'
    rows; read: what checks a batch and copies it there.
    """

    def __init__(self, env: VectorEnv, obs: Tree, title: str, read: Reader):
        self.env, self.obs, self.title, self.read, self.n = env, obs, title, read, env.num_envs
        space = env.single_observation_space
        self.undone = resets_lanes(env)
        self.first = tree.map(np.zeros_like, obs)  # of the lanes that ended
        self.keep = observation_reader(space, self.first, self.n)
        self.write = [spaces.observation_writer(space, obs, i) for i in range(self.n)]
        self.unseen = np.zeros(self.n)  # rewards

    def step(self, action: Tree, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every lane's next observation, where lanes ended the first of their next episode; reward, terminated and
        truncated of the others. Raises UserError: an episode's last observation is lost.
        """
        if ended.all():
            self._show(ended)
            return np.zeros(self.n), ~ended, ~ended
        obs, *flags, info = self.env.step(action)
        reward, terminated, truncated = lane_flags(self.n, *flags)
        over = (terminated | truncated).astype(bool)
        self.keep(obs, over)
        self.read(obs, ~ended & ~over)
        self._last_rows(info, over & ~ended)
        if self.undone and ended.any():
            self.read(self.env.reset(options={"reset_mask": ended.copy()})[0], ended)
        elif ended.any():
            self._show(ended)
        total = reward + self.unseen
        self.unseen = np.where(ended & ~over & (not self.undone), reward, 0.0)
        return total, terminated & ~ended, truncated & ~ended

    def _show(self, lanes: np.ndarray) -> None:
        for (_, row), (_, first) in zip(tree.leaves(self.obs), tree.leaves(self.first), strict=True):
            row[lanes] = first[lanes]

    def _last_rows(self, info: Mapping[str, Any], lanes: np.ndarray) -> None:
        """The last observations of the episodes of these lanes: one for each, or a batch of all."""
        if not lanes.any():
            return
        last = next((info[key] for key in FINAL if key in info), None)
        alone = isinstance(last, list | tuple) or (isinstance(last, np.ndarray) and last.dtype == object)
        lost = [int(i) for i in np.flatnonzero(lanes) if last is None or (alone and last[i] is None)]
        if lost:
            say = f"gives no info['final_obs'] of lane {lost[0]}, so that an episode's last observation is lost"
            cure = "make it with autoreset_mode=NEXT_STEP or DISABLED, or give a single environment"
            name = type(self.env.unwrapped).__name__
            text = f"{self.title}: {name} resets in the same step (SAME_STEP) and {say}; {cure}"
            raise UserError(f"{text} {rules.rule_suffix('final-observation')}")
        assert last is not None
        each = last if alone else list(iterate(batch_space(self.env.single_observation_space, self.n), last))
        for i in np.flatnonzero(lanes):
            self.write[int(i)](each[int(i)])
