"""Capture the flag: what a world is made of, in arrays of many matches. Its rules are in `rules`, its maps in `maps`,
what a player sees in `window` and `pixels`.

A map has N × N cells, wall or free, and looks the same turned by half: cell [r, c] is as cell [N-1-r, N-1-c], and the
base of team 0 becomes that of team 1. Positions (x, y) are measured in cells, x to the right and y downwards: [r, c] is
where r ≤ y < r + 1 and c ≤ x < c + 1. Headings are whole numbers of TURN to the circle, 0 to the right, a quarter
downwards; pitches likewise, above 0 up. So no match depends on how a machine computes a sine.

Seats 0 … n-1 are team 0, n … 2n-1 team 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Field, Spec, Tree
from polyplay.envs.spaces import ActionSpec, Discrete, MultiDiscrete

TURN = 3600  # parts of a circle
HOME, CARRIED, DROPPED = range(3)  # of a flag
FREE, WALL = 0, 1
EVENTS = (  # in a step, of a seat; "opponent" is any of the other team, "teammate" one that is not oneself
    "picked_up",
    "captured",
    "returned",
    "teammate_picked_up",
    "teammate_captured",
    "teammate_returned",
    "opponent_picked_up",
    "opponent_captured",
    "opponent_returned",
    "tagged_carrier",
    "tagged_other",
    "was_tagged_carrying",
    "was_tagged",
)
YAW = (-200, -33, 0, 33, 200)  # parts of a circle in a step: the paper's five, in kind
PITCH = (-50, 0, 50)
STEEPEST = 400  # pitch, up or down
SPEED = 0.21  # cells in a step of 1/15 s, forwards or sideways; both at once are as fast
RADIUS = 0.25  # of a player's body: how near to a wall it comes
BODY, EYE = 0.7, 0.5  # heights, in cells; a wall is 1 high
JUMP, GRAVITY = 0.09, 0.012  # cells a step upwards, and how much less in the next
REACH = 0.6  # from where a flag or a base is touched
RANGE, WIDTH = 8.0, 0.3  # of a tag, in cells; half of how wide a body is for it
RELOAD = 8  # steps from one tag to the next
SMALL: tuple[tuple[int, ...], ...] = (  # of the small set of actions: yaw, pitch, strafe, forward, tag, jump
    (2, 1, 1, 1, 0, 0),
    (2, 1, 1, 2, 0, 0),
    (2, 1, 1, 0, 0, 0),
    (2, 1, 0, 1, 0, 0),
    (2, 1, 2, 1, 0, 0),
    (0, 1, 1, 1, 0, 0),
    (4, 1, 1, 1, 0, 0),
    (1, 1, 1, 2, 0, 0),
    (3, 1, 1, 2, 0, 0),
    (2, 1, 1, 2, 1, 0),
    (2, 1, 1, 1, 1, 0),
)
COMPOSITE = MultiDiscrete((6,), (5, 3, 3, 3, 2, 2))  # strafe: left, no, right; forward: back, no, forward
SIN = np.round(np.sin(np.arange(TURN) * (2 * np.pi / TURN)), 12)
COS = np.round(np.cos(np.arange(TURN) * (2 * np.pi / TURN)), 12)
KINDS, SETS, VIEWS, ACTIONS = ("rooms", "open", "both"), ("train", "held_out"), ("window", "pixels"), ("all", "small")
REWARDS = ("captures", "win")
SEEN, FACTS = 11, 12  # cells of the window, a side; numbers that a player knows besides


@dataclass(frozen=True)
class World:
    """arena:ctf. view: window, 11 × 11 planes around the player, turned with it; or pixels, first person. actions: all,
    the paper's 540; or small, eleven of them. maps: of the seeds for training, or held_out. kind: of maps.
    reward: 1 to a team for each capture and -1 to the other, or for a match that is won when it ends.
    """

    view: str = "window"
    actions: str = "all"
    team: int = 2  # players of a side
    size: int = 13  # cells of a map's side, an odd number
    length: int = 4500  # steps of a match; 15 make a second
    repeat: int = 1  # steps for which an action is held, which are one of the agent
    kind: str = "both"
    maps: str = "train"
    reward: str = "captures"

    def __post_init__(self) -> None:
        choices = {"view": VIEWS, "actions": ACTIONS, "kind": KINDS, "maps": SETS, "reward": REWARDS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UserError(f"arena:ctf: {name}={getattr(self, name)} given, allowed: {', '.join(allowed)}")
        if self.size < 9 or self.size > 99 or self.size % 2 == 0:
            raise UserError(
                f"arena:ctf: size={self.size} given, allowed: odd numbers from 9, so that two bases fit, to 99"
            )
        if not 1 <= self.team <= 8 or self.length < 1 or self.repeat < 1:
            got = f"team={self.team}, length={self.length}, repeat={self.repeat}"
            raise UserError(f"arena:ctf: {got} given, allowed: 1 to 8 players of a side, a length and a repeat from 1")
        if self.length % self.repeat:
            raise UserError(
                f"arena:ctf: length={self.length} given, allowed with repeat={self.repeat}: a multiple of that"
            )

    @property
    def seats(self) -> int:
        return 2 * self.team

    @property
    def teams(self) -> tuple[int, ...]:
        return (0,) * self.team + (1,) * self.team

    @property
    def action(self) -> ActionSpec:
        return COMPOSITE if self.actions == "all" else Discrete(len(SMALL))

    @property
    def obs(self) -> Spec:
        view = Field((3, 84, 84), "uint8") if self.view == "pixels" else Field((len(PLANES), SEEN, SEEN), "uint8")
        return {"facts": Field((FACTS,), "float32"), "view": view}

    def arrays(self, n: int) -> Batch:
        """Of n matches. P: seats; last axis of positions: x, y."""
        N, P = self.size, self.seats
        return {
            "grid": np.zeros((n, N, N), np.uint8),
            "base": np.zeros((n, 2, 2)),  # [team]: where its flag is at home
            "spawn": np.zeros((n, P, 2)),  # where a seat begins
            "at": np.zeros((n, P, 2)),
            "z": np.zeros((n, P)),  # of the feet
            "rises": np.zeros((n, P)),  # cells a step
            "yaw": np.zeros((n, P), np.int64),
            "pitch": np.zeros((n, P), np.int64),
            "loads": np.zeros((n, P), np.int64),  # steps until it can tag
            "flag": np.zeros((n, 2), np.int64),  # [team]: HOME, CARRIED, DROPPED
            "flag_at": np.zeros((n, 2, 2)),
            "carrier": np.full((n, 2), -1, np.int64),  # [team]: the seat that has its flag
            "score": np.zeros((n, 2), np.int64),
            "age": np.zeros(n, np.int64),
        }

    def composite(self, action: Tree) -> np.ndarray:
        """int64 [n, 6] of actions [n] or [n, 6]."""
        given = np.asarray(action, np.int64)
        return given if self.actions == "all" else np.asarray(SMALL, np.int64)[given]


PLANES = (
    "dark",
    "wall",
    "mate",
    "opponent",
    "mate_carries",
    "opponent_carries",
    "own_flag",
    "their_flag",
    "own_base",
    "their_base",
)
