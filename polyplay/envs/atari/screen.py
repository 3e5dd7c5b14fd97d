"""From an emulator's screen to a plane, made anew only where the screen changed.

From one step to the next most of a screen stays: planes are reused, and only the rows that changed are made anew, in
blocks of rows that meet the plane's own (210 rows make 84: 42 blocks of 5, each of them 2). The bytes are those that
painting the whole screen gives.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

import numpy as np

from polyplay.common.errors import UserError
from polyplay.envs.atari import resize as pixels
from polyplay.envs.atari.presets import Atari

_UNKNOWN = np.float32(1e9)  # the gray value of a colour that was not met yet


def blocks(kind: str, height: int, to_height: int) -> int:
    """How many blocks of rows are resized each by itself and all alike; 1: the rows hang together.

    Where eighths of a row are all that a row's place in the picture needs, float32 knows it exactly everywhere.
    """
    exact = (8 * height) % to_height == 0
    return gcd(height, to_height) if exact and kind != "pillow" else 1


class ScreenCache:
    """Screens [height, width] of gray values, or of numbers of colours (`indexed`), or [height, width, 3] → planes.

    Raises UserError: planes larger than the screen.
    """

    def __init__(self, o: Atari, height: int, width: int, title: str):
        _, to_height, to_width = o.shape
        self.height = height - o.crop
        if to_height > self.height or to_width > width:
            size, screen = f"{to_height}x{to_width}", f"{self.height}x{width}"
            raise UserError(f"{title}: option size={size} is larger than the screen of {screen}")
        self.gray = pixels.GRAYS.get(o.gray)
        self.indexed = self.gray is not None and not o.maxpool  # else the maximum is taken of colours
        self.n = blocks(o.resize, self.height, to_height)
        self.sizes = o.resize, self.height // self.n, width, to_height // self.n, to_width
        colours = () if self.gray is None or self.indexed else (3,)
        self.shape = (height, width, *colours)
        self.plane = np.zeros((to_height, to_width), np.uint8)
        self.parts = self.plane.reshape(self.n, -1)
        self.last = np.zeros((self.n, self.sizes[1] * int(np.prod(self.shape[1:]))), np.uint8)
        self.empty = True
        self.table = np.full(256, _UNKNOWN)  # gray values by number of colour

    def __call__(self, screen: np.ndarray, colours: Callable[[], np.ndarray]) -> np.ndarray:
        """The plane of a screen, valid until the next one's; `colours()`: the same screen in colours."""
        now = screen[: self.height].reshape(self.n, -1)
        at = np.arange(self.n) if self.empty else np.flatnonzero(_differ(now, self.last))
        if not len(at):
            return self.plane
        kind, height, width, to_height, to_width = self.sizes
        picture = now.take(at, 0)
        self.last[at], self.empty = picture, False
        picture = picture.reshape(len(at) * height, *self.shape[1:])
        if self.indexed:
            picture = self._looked_up(picture, screen, colours)
        elif self.gray is not None:
            picture = self.gray(picture)
        resize = pixels.resizer(kind, len(at) * height, width, len(at) * to_height, to_width)
        self.parts[at] = resize(picture).reshape(len(at), -1)
        return self.plane

    def _looked_up(self, picture: np.ndarray, screen: np.ndarray, colours: Callable[[], np.ndarray]) -> np.ndarray:
        """Gray values of numbers of colours; those of new colours are read from the whole screen."""
        assert self.gray is not None
        found = self.table.take(picture)
        if found.max() >= _UNKNOWN:
            self.table[screen] = self.gray(colours())
            found = self.table.take(picture)
        return found if self.gray is pixels.luminance else found.astype(np.uint8)


def _differ(now: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Which rows of bytes are not the same: bool [n]."""
    if now.shape[1] % 8 == 0:
        now, before = now.view(np.uint64), before.view(np.uint64)
    return (now != before).any(1)


class TwisterUniforms:
    """Numbers in [0, 1): every other word of std::mt19937, as ale-py draws them, many at a time."""

    MANY = 256

    def __init__(self, seed: int):
        self.generator = np.random.RandomState(seed)
        self._refill()

    def _refill(self) -> None:
        self.start = self.generator.get_state()
        self.ahead = (self.generator.randint(0, 2**32, 2 * self.MANY, np.uint32)[::2] / 2**32).tolist()
        self.used = 0

    def draw(self) -> float:
        if self.used == self.MANY:
            self._refill()
        self.used += 1
        return self.ahead[self.used - 1]

    def get_state(self) -> np.ndarray:
        """Words and place of the generator, as if nothing had been drawn ahead: uint32 [625]."""
        then = np.random.RandomState()
        then.set_state(self.start)
        then.randint(0, 2**32, 2 * self.used, np.uint32)
        return mt19937_state(then)

    def set_state(self, state: np.ndarray) -> None:
        set_mt19937_state(self.generator, state)
        self._refill()


def mt19937_state(generator: np.random.RandomState) -> np.ndarray:
    """Words and place: uint32 [625]."""
    _, key, pos, *_ = generator.get_state()
    return np.append(key, pos).astype(np.uint32)


def set_mt19937_state(generator: np.random.RandomState, state: np.ndarray) -> None:
    """Go on from such words."""
    generator.set_state(("MT19937", state[:-1], int(state[-1]), 0, 0.0))
