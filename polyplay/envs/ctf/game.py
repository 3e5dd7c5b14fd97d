"""arena:ctf as a game of several players (see toys.seated.SeatedToy): World's arrays, stepped by compiled rules."""

from __future__ import annotations

import numpy as np

from polyplay.common.tree import Batch, Tree
from polyplay.envs.ctf import maps, rules, window
from polyplay.envs.ctf.world import EVENTS, FACTS, PLANES, SEEN, World
from polyplay.envs.toys.still import Arrays, Draw

MOVED = ("grid", "base", "spawn", "at", "z", "rises", "yaw", "pitch", "loads")
FLAGS = ("flag", "flag_at", "carrier", "score", "age")
BOTS = ("level1", "level2", "level3", "level4", "level5", "attacker", "defender", "returner")
STEPS_A_SECOND = 15.0
HELD_OUT = np.uint64(1 << 63)  # of a map's key


class CaptureTheFlag:
    """A match is terminated after World.length steps. See World.reward."""

    events = EVENTS
    team_reward = True
    bots = {name: f"polyplay.envs.ctf.bots:{name}" for name in BOTS}  # noqa: RUF012

    def __init__(self, world: World):
        self.world = world
        self.obs, self.action, self.seats, self.teams = world.obs, world.action, world.seats, world.teams

    def reset(self, draw: Draw, n: int) -> Arrays:
        s = self.world.arrays(n)
        keys, rooms = (draw() * 2.0**53).astype(np.uint64), draw() < 0.5
        if self.world.maps == "held_out":
            keys |= HELD_OUT
        if self.world.kind != "both":
            rooms[:] = self.world.kind == "rooms"
        for m in range(n):
            maps.draw_map(keys[m], rooms[m], s["grid"][m], s["base"][m], s["spawn"][m])
        rules.begin_matches(*(s[k] for k in ("grid", "base", "spawn", "at", "yaw", "flag_at")))
        return {**s, "here": np.ones((n, self.seats), bool)}

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, Batch]:
        """In place."""
        n, P = s["here"].shape
        reward, events = np.zeros((n, P), np.float32), np.zeros((n, P, len(EVENTS)), np.float32)
        now, happened, chosen = np.empty_like(reward), np.empty_like(events), self.world.composite(action)
        for _ in range(self.world.repeat):
            rules.step_matches(*(s[k] for k in MOVED + FLAGS), chosen, now, happened)
            reward += now
            events += happened
        ends = np.repeat((s["age"] >= self.world.length)[:, None], P, 1)
        if self.world.reward == "win":
            lead = np.sign(s["score"][:, :1] - s["score"][:, 1:]) * ends
            reward[:] = np.where(np.array(self.teams) == 0, lead, -lead)
        row = {"reward": reward, "team_reward": reward, "events": events}
        return {**s, "here": ~ends}, {**row, "terminated": ends, "truncated": np.zeros_like(ends)}

    def picture(self, s: Arrays, m: int) -> tuple[np.ndarray, float]:
        """What people see of match m: RGB uint8 [H, W, 3], and pictures per second."""
        from polyplay.envs.ctf.screen import draw_match

        return draw_match(s, m), STEPS_A_SECOND / self.world.repeat

    def see(self, s: Arrays) -> Tree:
        n, P = s["here"].shape
        facts = np.empty((n, P, FACTS), np.float32)
        window.know(
            *(s[k] for k in ("z", "pitch", "loads", "flag", "carrier", "score", "age")), self.world.length, facts
        )
        return {"facts": facts, "view": self._view(s, n, P)}

    def _view(self, s: Arrays, n: int, P: int) -> np.ndarray:
        if self.world.view == "window":
            seen = np.zeros((n, P, len(PLANES), SEEN, SEEN), np.uint8)
            window.draw_windows(*(s[k] for k in ("grid", "base", "at", "yaw", "flag_at", "carrier")), seen)
            return seen
        from polyplay.envs.ctf.pixels import draw_first_person

        seen = np.empty((n, P, 3, 84, 84), np.uint8)
        pictured = ("grid", "base", "at", "z", "yaw", "pitch", "flag", "flag_at", "carrier")
        draw_first_person(*(s[k] for k in pictured), seen)
        return seen
