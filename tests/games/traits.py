"""One small game with whatever environments may ask of a library, each thing to be switched on by itself.

An episode asks `questions`. A question shows one of four cues, the answer is the action that belongs to it, and its
worth, from 0 to 1, over `questions` is the reward: perfect play returns 1. What an answer is depends on the actions:

    cue                      0      1      2      3
    Discrete(4)              0      1      2      3
    MultiDiscrete([2, 3])    0,0    1,0    0,1    1,1
    MultiBinary(2)           0,0    1,0    0,1    1,1
    Box(1)                  -0.75  -0.25   0.25   0.75      1 when hit, 0 when missed by 1 or more

Each number, bit and real counts alike. Names with switches: NAME + "+memory+mask".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field, Spec, Tree
from polyplay.envs.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete
from polyplay.games.toys import Toy

NAME = "toy:tests.games.traits:Traits"
Arrays = dict[str, np.ndarray]
CUES = 4
BOX = Box((1,), np.array([-1], np.float32), np.array([1], np.float32))
ACTIONS: dict[tuple[bool, bool], Any] = {  # (hybrid, continuous)
    (False, False): Discrete(CUES),
    (False, True): BOX,
    (True, False): {"0": MultiDiscrete((2,), (2, 3)), "1": MultiBinary((2,))},
    (True, True): {"pick": Discrete(CUES), "aim": BOX},
}


@dataclass(frozen=True)
class Traits(Toy):
    """Observation: the cue, one-hot, and a light that is on where an answer is due."""

    questions: int = 8
    memory: bool = False  # the cue is shown only in the row before the one that answers it
    mask: bool = False  # some wrong actions are illegal, others in every row: one ends the episode with reward -1
    dict: bool = False  # half of the cue is a Discrete observation, the other half lies in a vector in a dict
    hybrid: bool = False  # actions are a Tuple of MultiDiscrete and MultiBinary, or a Dict of Discrete and Box
    continuous: bool = False  # actions are a Box

    def __post_init__(self) -> None:
        if self.questions < 1:
            raise UserError(f"Traits needs questions ≥ 1, got questions={self.questions}")
        if self.mask and self.continuous and not self.hybrid:
            raise UserError("Traits: mask and continuous need hybrid too: a Box has no illegal actions")

    action = property(lambda self: ACTIONS[self.hybrid, self.continuous])
    classes = property(lambda self: {"room": 3} if self.dict else {})

    @property
    def obs(self) -> Spec:
        if not self.dict:
            return Field((CUES + 1,), "float32")
        return {"room": Field((), "int64"), "near": {"sight": Field((3,), "float32")}}

    @property
    def legality(self) -> Spec | None:
        """The fields of `legal`."""
        if not self.mask:
            return None
        return tree.nest({path: Field((sum(leaf.classes),), "bool") for path, leaf in self._leaves() if leaf.classes})

    def _leaves(self) -> list[tuple[str, Leaf]]:
        return list(tree.leaves(self.action))

    # ------------------------------------------------------------------------------------- the game

    def reset(self, draw: Callable[[], np.ndarray], n: int) -> Arrays:
        return self._ask({"row": np.zeros(n, np.int64), "cue": np.zeros(n, np.int64)}, draw)

    def _ask(self, s: Arrays, draw: Callable[[], np.ndarray]) -> Arrays:
        """A new cue where a question begins, and the actions that are legal there."""
        begins = s["row"] % 2 == 0 if self.memory else np.ones(len(s["row"]), bool)
        cue = np.where(begins, (draw() * CUES).astype(np.int64), s["cue"])
        if not self.mask:
            return {"row": s["row"], "cue": cue}
        right = np.concatenate([_hot(leaf, _answer(leaf, cue)) for _, leaf in self._leaves()], 1)
        some = np.stack([draw() < 0.5 for _ in range(right.shape[1])], 1)
        return {"row": s["row"], "cue": cue, "legal": right | some}

    def step(
        self, s: Arrays, action: Tree, draw: Callable[[], np.ndarray]
    ) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        given = [(leaf, value) for (_, leaf), (_, value) in zip(self._leaves(), tree.leaves(action), strict=True)]
        points = np.concatenate([_points(leaf, value, _answer(leaf, s["cue"])) for leaf, value in given], 1)
        reward = np.where(self._due(s["row"]), points.mean(1) / self.questions, 0.0)
        legal = s["legal"] if self.mask else np.ones((1, 1), bool)
        illegal = (np.concatenate([_hot(leaf, value) for leaf, value in given], 1) & ~legal).any(1)
        row = s["row"] + 1
        end = illegal | (row == self.questions * (2 if self.memory else 1))
        after = self._ask({"row": row, "cue": s["cue"]}, draw)
        return after, np.where(illegal, -1.0, reward), end, np.zeros_like(end)

    def _due(self, row: np.ndarray) -> np.ndarray:
        return row % 2 == 1 if self.memory else np.ones(len(row), bool)

    def see(self, s: Arrays) -> Tree:
        n, cue, due = np.arange(len(s["row"])), s["cue"], self._due(s["row"])
        shown = ~due if self.memory else due
        if not self.dict:
            obs = np.zeros((len(n), CUES + 1), np.float32)
            obs[n, cue], obs[:, -1] = shown, due
            return obs
        sight = np.zeros((len(n), 3), np.float32)
        sight[n, cue % 2], sight[:, -1] = shown, due
        return {"room": np.where(shown, 1 + cue // 2, 0), "near": {"sight": sight}}

    def legal(self, s: Arrays) -> Tree:
        """The masks of these states, where `mask`."""
        spec = dict(tree.leaves(self.legality))
        ends = np.cumsum([field.shape[0] for field in spec.values()])
        return tree.nest(dict(zip(spec, np.split(s["legal"], ends[:-1], 1), strict=True)))


def _answer(leaf: Leaf, cue: np.ndarray) -> np.ndarray:
    """The right action [n, numbers] of a leaf."""
    if isinstance(leaf, Box):
        return ((cue - 1.5) / 2)[:, None]
    return (cue[:, None] >> np.arange(len(leaf.classes))) % np.array(leaf.classes)


def _points(leaf: Leaf, value: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """0 … 1 for each number [n, numbers]."""
    flat = value.reshape(len(value), -1)
    if isinstance(leaf, Box):
        return np.maximum(0.0, 1.0 - np.abs(np.clip(flat, leaf.low, leaf.high) - answer))
    return (flat == answer).astype(np.float64)


def _hot(leaf: Leaf, value: np.ndarray) -> np.ndarray:
    """bool [n, number of all values]: those taken."""
    flat = value.reshape(len(value), -1)
    return np.concatenate(
        [np.zeros((len(value), 0), bool), *(flat[:, i, None] == np.arange(n) for i, n in enumerate(leaf.classes))], 1
    )
