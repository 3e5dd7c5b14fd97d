"""arena:lanes as a game of several players (see toys.seated.SeatedToy): LaneWorld's arrays, by compiled rules."""

from __future__ import annotations

import numpy as np

from polyplay.common import tree
from polyplay.common.tree import Batch, Tree
from polyplay.envs.lanes import legal, rewards, rules, sight
from polyplay.envs.lanes.rewards import EVENTS, SHARES
from polyplay.envs.lanes.starts import start_matches
from polyplay.envs.lanes.world import (
    HEALTH,
    PARTS,
    SLOTS,
    STEPS_A_SECOND,
    USES,
    LaneWorld,
)
from polyplay.envs.toys.still import Arrays, Draw

BOTS = ("level1", "level2", "level3", "level4")
LOOKED_AT = ("units", "heroes", "shown", "age")


class LaneGame:
    """A match is terminated when a core has fallen, or after LaneWorld.length steps."""

    events = (*EVENTS, *SHARES)
    team_reward = True
    uses = USES  # of the action's parts: by which values of `primary` they are used
    bots = {name: f"polyplay.envs.lanes.bots:{name}" for name in BOTS}  # noqa: RUF012

    def __init__(self, world: LaneWorld):
        self.world = world
        self.obs, self.action, self.seats, self.teams = world.obs, world.action, world.seats, world.teams
        self.legality = world.legality
        self._weights = rewards.time_weights(world.length)

    def reset(self, draw: Draw, n: int) -> Arrays:
        s, world = self.world.arrays(n), self.world
        s["key"][:] = (draw() * 2.0**53).astype(np.uint64)
        start_matches(world, s, draw)
        sight.look(*(s[k] for k in ("units", "heroes", "seen", "shown")))
        return {**s, "here": np.ones((n, self.seats), bool)}

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, Batch]:
        """In place."""
        n, P = s["here"].shape
        events, chosen = np.zeros((n, P, len(EVENTS))), np.stack([action[k] for k in PARTS], -1)
        kept = (s[k] for k in ("units", "heroes", "wave", "shown", "age"))
        rules.step_lanes(*kept, chosen, self.world.repeat, events)
        sight.look(*(s[k] for k in ("units", "heroes", "seen", "shown")))
        lead, ends = self._lead(s)
        ended = np.repeat(ends[:, None], P, 1)
        won = np.repeat((lead * ends)[:, None] * (1.0, -1.0), self.world.team, 1)
        events[:, :, EVENTS.index("win")] = won > 0
        own = self._own_reward(s, events, won)
        shared = rewards.share_in_team(own, 1.0)
        reward = (1.0 - self.world.spirit) * own + self.world.spirit * shared
        row = {
            "reward": reward,
            "team_reward": won,
            "events": np.concatenate([events, np.stack([own, shared], -1)], -1),
        }
        return {**s, "here": ~ended}, {**row, "terminated": ended, "truncated": np.zeros_like(ended)}

    def _lead(self, s: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """1 where side 0 is ahead, -1 where side 1 is, by a fallen core, else by the health of cores and towers, [n];
        and which matches end.
        """
        half, team = s["units"].shape[1] // 2, self.world.team
        health = s["units"][:, :, HEALTH].reshape(-1, 2, half)
        fallen = health[:, :, -1] == 0
        standing = np.where(fallen, -1, health[:, :, team + SLOTS * self.world.lanes :].sum(2))
        return np.sign(standing[:, 0] - standing[:, 1]), fallen.any(1) | (s["age"] >= self.world.length)

    def _own_reward(self, s: Arrays, events: np.ndarray, won: np.ndarray) -> np.ndarray:
        """Of each hero, before it is shared in the team."""
        if self.world.reward == "win":
            return won
        return rewards.make_zero_sum(rewards.weigh_events(events, self._weights[s["age"]]))

    def legal(self, s: Arrays) -> Tree:
        """Masks: of primary bool [n, P, 8], of unit for each primary bool [n, P, 8, rows]."""
        masks = {k: np.empty((*s["here"].shape, *field.shape), bool) for k, field in self.legality.items()}
        legal.legal_actions(*(s[k] for k in LOOKED_AT), masks["primary"], masks["unit"])
        return masks

    def picture(self, s: Arrays, m: int) -> tuple[np.ndarray, float]:
        """What people see of match m: RGB uint8 [H, W, 3], and pictures per second."""
        from polyplay.envs.lanes.screen import draw_lanes

        return draw_lanes(s, m), STEPS_A_SECOND / self.world.repeat

    def see(self, s: Arrays) -> Tree:
        out = tree.zeros(self.obs, s["here"].shape)
        sight.observe(*(s[k] for k in LOOKED_AT), self.world.length, *out.values())
        return out
