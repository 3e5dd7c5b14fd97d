"""A verb, then the parts that it takes: the smallest game whose actions are of several parts that depend on the first.

    verb        0   1     2       3
    takes       -   unit  offset  both
    legal       yes one of these in each row, at random, which the observation does not tell

So a head whose parts don't know the verb can't be right with more than two of the three: it returns at most 2/3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Field, Tree
from polyplay.envs.spaces import Discrete
from polyplay.envs.toys.still import Arrays, Draw

VERBS, UNITS, OFFSETS = 4, 4, 3
TAKES = np.array([[False, True, False, True], [False, False, True, True]])  # [unit, offset; verb]


@dataclass(frozen=True)
class ConditionalGame:
    """Observation: a cue, one-hot. Right is unit (cue + verb) mod 4, offset (cue + verb) mod 3. The share of right
    parts over `rows` is the reward: perfect play returns 1, waiting (verb 0) nothing. One wrong value of each part is
    illegal; what is illegal ends the game with -1.
    """

    rows: int = 8

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"toy:conditional needs rows ≥ 1, got rows={self.rows}")

    obs = Field((UNITS,), "float32")
    action = {"verb": Discrete(VERBS), "unit": Discrete(UNITS), "offset": Discrete(OFFSETS)}  # noqa: RUF012
    uses = {"unit": (1, 3), "offset": (2, 3)}  # noqa: RUF012
    legality = {  # noqa: RUF012
        "verb": Field((VERBS,), "bool"),
        "unit": Field((VERBS, UNITS), "bool"),
        "offset": Field((OFFSETS,), "bool"),
    }

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"row": np.zeros(n, np.int64), **_asked(draw)}

    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        verb, unit, offset = action["verb"], action["unit"], action["offset"]
        right = np.stack([unit == (s["cue"] + verb) % UNITS, offset == (s["cue"] + verb) % OFFSETS])
        takes, legal, n = TAKES[:, verb], self.legal(s), np.arange(len(verb))
        allowed = np.stack([legal["unit"][n, verb, unit], legal["offset"][n, offset]])
        illegal = ~legal["verb"][n, verb] | (takes & ~allowed).any(0)
        share = (takes & right).sum(0) / np.maximum(takes.sum(0), 1) / self.rows
        row = s["row"] + 1
        end = illegal | (row == self.rows)
        return {"row": row, **_asked(draw)}, np.where(illegal, -1.0, share), end, np.zeros_like(end)

    def see(self, s: Arrays) -> np.ndarray:
        return np.eye(UNITS, dtype=np.float32)[s["cue"]]

    def legal(self, s: Arrays) -> Tree:
        """Of units for each verb, of offsets for the verb that is legal; nothing where it takes none."""
        cue, asked = s["cue"][:, None], s["asked"][:, None]
        wrong = (cue[..., None] + np.arange(VERBS)[:, None] + 1) % UNITS
        return {
            "verb": (np.arange(VERBS) == 0) | (np.arange(VERBS) == asked),
            "unit": (np.arange(UNITS) != wrong) & TAKES[0][:, None],
            "offset": (np.arange(OFFSETS) != (cue + asked + 1) % OFFSETS) & TAKES[1][asked],
        }


def _asked(draw: Draw) -> Arrays:
    """A new cue, and the verb that is legal besides waiting."""
    return {"cue": (draw() * UNITS).astype(np.int64), "asked": 1 + (draw() * (VERBS - 1)).astype(np.int64)}
