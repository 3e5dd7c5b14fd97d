"""One Atari game, played by ale-py's plain emulator, not by ale-py's vector environment.

This environment supports all options of `Atari`, and its state can be saved and restored. Options that both
environments support have the same meaning in both. For a given seed, the two environments play different games.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from itertools import zip_longest
from math import gcd

import gymnasium
import numpy as np

from polyplay.core.errors import UserError
from polyplay.core.tree import Batch
from polyplay.envs.atari import Atari, Start, Starts, load_starts, read_options, rom
from polyplay.envs.pool import EPISODE_CUT, closest_names

# Conversion of screens to planes (gray images of a smaller size) in NumPy, bitwise equal to OpenCV and Pillow.
#
# Each pass sums a few rows or columns with fixed weights, in a fixed order, in float32 or integers, so a screen gives
# the same plane on every machine. Gray pictures are [height, width], color pictures [height, width, 3].


Picture = np.ndarray
Taps = tuple[np.ndarray, np.ndarray]  # pixel numbers on an axis, and their weights in a sum: [taps, size of the result]


# ------------------------------------------------------------------------------------------- gray


def opencv_gray(rgb: Picture) -> Picture:
    """Convert RGB to gray and round to uint8, exactly as OpenCV's COLOR_RGB2GRAY does."""
    whole = rgb.astype(np.int32)
    return ((whole[..., 0] * 9798 + whole[..., 1] * 19235 + whole[..., 2] * 3735 + (1 << 14)) >> 15).astype(np.uint8)


def _weighted(weights: tuple[float, float, float], dtype: type, rgb: Picture) -> Picture:
    r, g, b = (rgb[..., i] * w for i, w in enumerate(weights))
    return (r + g + b).astype(dtype)


luminance = partial(_weighted, (0.299, 0.587, 0.114), np.float32)
GRAYS: dict[str, Callable[[Picture], Picture]] = {
    "opencv": opencv_gray,
    "luma": luminance,
    "luma_cut": partial(_weighted, (0.299, 0.587, 1 - (0.299 + 0.587)), np.uint8),
    "luma_swapped": partial(_weighted, (0.2126, 0.0722, 0.7152), np.uint8),  # Rec. 709 weights, green and blue swapped
}


# ------------------------------------------------------------------------------------- resampling


@cache
def resizer(kind: str, height: int, width: int, to_height: int, to_width: int) -> Callable[[Picture], Picture]:
    """Return a function that resizes pictures and rounds them to uint8. It can only make pictures smaller."""
    if (height, width) == (to_height, to_width):
        return _rounded
    rows, columns = height / to_height, width / to_width
    whole = rows == int(rows) and columns == int(columns)
    if kind == "nearest":
        return _nearest((height, width), (to_height, to_width))
    if kind == "pillow":
        return partial(_fixed, _pillow_taps(height, to_height), _pillow_taps(width, to_width))
    if whole and (kind == "area" or rows == columns == 2):  # OpenCV's bilinear averages areas if both sides are halved
        return partial(_blocks, int(rows), int(columns))
    if kind == "bilinear":
        return _bilinear(_pairs(height, to_height), _pairs(width, to_width))
    return partial(_floating, _area_taps(height, to_height), _area_taps(width, to_width))


def _rounded(picture: Picture) -> Picture:
    """Round to uint8 like OpenCV: x.5 is rounded to the even neighbor."""
    return picture if picture.dtype == np.uint8 else np.rint(picture).astype(np.uint8)


def _nearest(size: tuple[int, int], to: tuple[int, int]) -> Callable[[Picture], Picture]:
    rows, columns = (
        np.minimum((np.arange(m) * (1.0 / (m / n))).astype(np.int64), n - 1) for n, m in zip(size, to, strict=True)
    )
    return lambda picture: _rounded(picture[rows[:, None], columns])


def _blocks(rows: int, columns: int, picture: Picture) -> Picture:
    """Average blocks of `rows` x `columns` pixels. Rounds as OpenCV does."""
    wide: np.ndarray = picture.astype(np.int32 if picture.dtype == np.uint8 else np.float32)
    total = reduce(np.add, (wide[i::rows, j::columns] for i, j in np.ndindex(rows, columns)))
    if rows == columns == 2 and picture.dtype == np.uint8:
        return ((total + 2) >> 2).astype(np.uint8)
    return np.rint(np.float32(total) * np.float32(1.0 / (rows * columns))).astype(np.uint8)


def _along(picture: Picture, taps: Taps, axis: int) -> Picture:
    """Return the weighted sums of pixels along an axis. `taps`: pixel numbers and weights."""
    return reduce(np.add, (picture.take(i, axis) * (w if axis else w[:, None]) for i, w in zip(*taps, strict=True)))


def _floating(rows: Taps, columns: Taps, picture: Picture) -> Picture:
    return _rounded(_along(_along(picture.astype(np.float32), columns, 1), rows, 0))


def _stacked(per_pixel: Sequence[Sequence[tuple[int, float]]], dtype: type) -> Taps:
    """Make arrays from `per_pixel`, a list of pairs (pixel number, weight) for each pixel of the result."""
    both = np.array(list(zip_longest(*per_pixel, fillvalue=(0, 0.0))))  # float64 [taps, size of the result, 2]
    return both[..., 0].astype(np.int64), both[..., 1].astype(dtype)


def _area_taps(size: int, to: int) -> Taps:
    """Return OpenCV's INTER_AREA weights (resize.cpp, computeResizeAreaTab)."""
    scale = 1.0 / (to / size)
    found = []
    for i in range(to):
        begin, end = i * scale, i * scale + scale
        cell = min(scale, size - begin)
        last = min(math.floor(end), size - 1)
        first = min(math.ceil(begin), last)
        taps = [(first - 1, (first - begin) / cell)] if first - begin > 1e-3 else []
        taps += [(j, 1.0 / cell) for j in range(first, last)]
        if end - last > 1e-3:
            taps.append((last, min(min(end - last, 1.0), cell) / cell))
        found.append(taps)
    return _stacked(found, np.float32)


def _pairs(size: int, to: int) -> Taps:
    """Return the two pixels nearest to each result pixel and their weights, as in OpenCV's INTER_LINEAR."""
    scale = 1.0 / (to / size)
    center = ((np.arange(to) + 0.5) * scale - 0.5).astype(np.float32)
    left = np.floor(center).astype(np.int64)
    part = center - left.astype(np.float32)
    part[left < 0], part[left >= size - 1] = 0.0, 0.0
    left = left.clip(0, size - 1)
    return np.stack([left, np.minimum(left + 1, size - 1)]), np.stack([np.float32(1) - part, part])


def _bilinear(rows: Taps, columns: Taps) -> Callable[[Picture], Picture]:
    """Return a function that resizes like OpenCV's INTER_LINEAR (resize.cpp, VResizeLinear)."""
    (above, below), beta = rows[0], np.rint(rows[1] * 2048).astype(np.int32)[..., None]
    across = columns[0], np.rint(columns[1] * 2048).astype(np.int32)

    def resize(picture: Picture) -> Picture:
        if picture.dtype != np.uint8:
            return _floating(rows, columns, picture)
        wide = _along(picture.astype(np.int32), across, 1) >> 4
        return ((((wide[above] * beta[0]) >> 16) + ((wide[below] * beta[1]) >> 16) + 2) >> 2).astype(np.uint8)

    return resize


def _pillow_taps(size: int, to: int) -> Taps:
    """Return Pillow's BILINEAR weights as 22-bit integers (Resample.c, precompute_coeffs)."""
    scale = size / to
    found = []
    for i in range(to):
        center = (i + 0.5) * scale
        first, last = max(int(center - scale + 0.5), 0), min(int(center + scale + 0.5), size)
        weights = [max(1.0 - abs((j - center + 0.5) / scale), 0.0) for j in range(first, last)]
        found.append(
            [(j, int(0.5 + w / sum(weights) * (1 << 22))) for j, w in zip(range(first, last), weights, strict=True)]
        )
    return _stacked(found, np.int32)


def _fixed(rows: Taps, columns: Taps, picture: Picture) -> Picture:
    wide = (_along(_rounded(picture).astype(np.int32), columns, 1) + (1 << 21)) >> 22
    return ((_along(wide, rows, 0) + (1 << 21)) >> 22).astype(np.uint8)


NOOP = 0
Step = tuple[int, int] | None  # (button number, frames to hold the button); None: a random number of no-ops
State = dict[str, np.ndarray]
Begun = tuple[np.ndarray, Batch]  # result of reset()


def script(text: str, own: tuple[str, ...], title: str) -> list[Step]:
    """Convert the option `start` or `life_start` to a list of steps. `own`: the game's actions.

    The text has words, separated by spaces. "noops" is a random number of no-ops. "FIRE" presses FIRE for one frame,
    "FIRE*4" for four frames. "#2" presses the third action of `own`. A word may have several presses, separated by
    commas. If the game lacks a button, the rest of the word is skipped. Raises UserError if a word is unknown.
    """
    import ale_py

    known, steps = ale_py.Action.__members__, []  # type: dict[str, ale_py.Action], list[Step]
    for word in text.split():
        presses: list[Step] = [None] if word == "noops" else []
        for press in word.split(",") if word != "noops" else ():
            button, _, frames = press.partition("*")
            place = int(button[1:]) if button[:1] == "#" and button[1:].isdigit() else -1
            if (place < 0 and button not in known) or not (frames or "1").isdigit():
                hint = closest_names(button, ["noops", *known])
                raise UserError(f"{title}: option start or life_start: unknown word {word!r}{hint}")
            button = own[place] if 0 <= place < len(own) else button
            if button not in (*own, "NOOP"):
                break
            presses.append((known[button].value, int(frames or 1)))
        steps += presses
    return steps


class Painter:
    """Converts screens to planes (single images of an observation). Screens are gray [height, width] or color [height,
    width, 3]. Raises UserError if a plane would be larger than the screen.

    For speed, only the parts of the screen that have changed are converted.
    `resize_parts`: compiled function, as in vector_pool.py, or None for NumPy.
    """

    def __init__(self, o: Atari, height: int, width: int, title: str, resize_parts: Callable[..., None] | None = None):
        _, to_height, to_width = o.shape
        self.height = height - o.crop
        if to_height > self.height or to_width > width:
            size, screen = f"{to_height}x{to_width}", f"{self.height}x{width}"
            raise UserError(f"{title}: option size={size} is larger than the screen of {screen}")
        self.gray = GRAYS.get(o.gray)
        # blocks give exact results only if row positions are multiples of 1/8, which float32 holds exactly
        exact = (8 * self.height) % to_height == 0 and o.resize != "pillow"
        self.n = gcd(self.height, to_height) if exact else 1
        self.sizes = o.resize, self.height // self.n, width, to_height // self.n, to_width
        self.shape = (height, width) if self.gray is None else (height, width, 3)
        self.plane = np.zeros((to_height, to_width), np.uint8)
        self.parts = self.plane.reshape(self.n, -1)
        self.last = np.zeros((self.n, self.sizes[1] * int(np.prod(self.shape[1:]))), np.uint8)
        self.empty = True
        resize = resizer(*self.sizes)
        taps = resize.args if isinstance(resize, partial) and resize.func is _floating and self.gray is None else ()
        self.resize_parts = partial(resize_parts, *taps) if resize_parts and taps else None
        self.wide, self.line = np.empty((self.sizes[1], to_width), np.float32), np.empty(width, np.float32)

    def __call__(self, screen: np.ndarray) -> np.ndarray:
        """Return the plane of a screen. The plane is valid until the next call."""
        now = screen[: self.height].reshape(self.n, -1)
        if self.resize_parts and not self.empty:
            parts = screen[: self.height].reshape(self.n, -1, screen.shape[1])
            out = self.plane.reshape(self.n, -1, self.plane.shape[1])
            self.resize_parts(parts, self.last.reshape(parts.shape), self.wide, self.line, out)
            return self.plane
        words, before = now.view(np.uint64), self.last.view(np.uint64)  # a row of 160 pixels is whole uint64 words
        at = np.arange(self.n) if self.empty else np.flatnonzero((words != before).any(1))
        if len(at):
            kind, height, width, to_height, to_width = self.sizes
            self.last[at], self.empty = now[at], False
            picture = now[at].reshape(len(at) * height, *self.shape[1:])
            picture = picture if self.gray is None else self.gray(picture)
            resize = resizer(kind, len(at) * height, width, len(at) * to_height, to_width)
            self.parts[at] = resize(picture).reshape(len(at), -1)
        return self.plane


class AtariEnv(gymnasium.Env):
    """Environment of one Atari game. Observations are uint8 [stack, height, width]. Rewards are not clipped.

    With life_loss="terminate", a lost life sets `info["polyplay.cut"]`, and the game continues. The next step ignores
    its action.
    """

    def __init__(
        self,
        title: str,
        given: Mapping[str, object],
        seed: int | None = None,
        resize_parts: Callable[..., None] | None = None,
    ):
        """`seed`: seed of the emulator. Without it, the first reset() draws one and loads the game again.
        `resize_parts`: see Painter.
        """
        import ale_py

        o = self._options = read_options(title, given)
        self._rom = str(ale_py.roms.get_rom_path(rom(title)))
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)  # `_act` repeats actions: saved states lack the last one
        self._random, self._seeded = np.random.Generator(np.random.SFC64(0)), False
        # slow, but the next lines need a loaded game
        if seed is None:
            self._ale.loadROM(self._rom)
        else:
            self._seed(seed)
        moves = self._ale.getLegalActionSet() if o.full_actions else self._ale.getMinimalActionSet()
        own, self._moves = tuple(a.name for a in moves), [a.value for a in moves]
        self._start, self._life = script(o.start, own, title), script(o.life_start, own, title)
        self._fire = o.fire_reset and any(a.name == "FIRE" for a in self._ale.getMinimalActionSet())
        self._still = NOOP if "NOOP" in own else self._moves[0]  # two board games lack NOOP
        self._steps = -(-o.max_frames // o.frameskip)  # number of steps of the longest game
        height, width = self._ale.getScreenDims()
        self._paint = Painter(o, height, width, title, resize_parts)
        self._read = self._ale.getScreenGrayscale if o.gray == "ale" else self._ale.getScreenRGB
        self._read_last = 2 if o.maxpool else 1
        self._screens = np.zeros((2, *self._paint.shape), np.uint8)  # the last two frames, the newest first
        self._stack = np.zeros(o.shape, np.uint8)
        self._age, self._lives, self._cut, self._last = 0, 0, False, NOOP
        self._starts, self._lane, self._games = load_starts(o.starts, rom(title)) if o.starts else None, 0, 0
        self.observation_space = gymnasium.spaces.Box(0, 255, o.shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(own))
        self.metadata = {"render_fps": 60 / o.frameskip}

    def render(self) -> Picture:
        """Return the screen at twice its size, as RGB uint8 [2 · height, 2 · width, 3]."""
        return np.repeat(np.repeat(self._ale.getScreenRGB(), 2, 0), 2, 1)

    # -------------------------------------------------------------------------------- Gymnasium's side

    def reset(self, *, seed: int | None = None, options: Mapping[str, object] | None = None) -> Begun:
        """Start a new game. If a seed is given, seed the emulator first."""
        super().reset(seed=seed)
        if self._starts is not None:
            frames = self._begin(self._starts)
        else:
            frames = 0
            if seed is not None or not self._seeded:
                self._seed(int(self.np_random.integers(2**31)) if seed is None else seed % 2**31)
            self._new_game()
            self._play(self._start, over=self._new_game)
        self._fill()
        self._age, self._lives, self._cut = -(-frames // self._options.frameskip), self._ale.lives(), False
        return self._stack.copy(), {}

    def polyplay_lane(self, number: int) -> None:
        """Set the number of this environment in the run, which decides its order of start states."""
        self._lane = number

    def _begin(self, file: Starts) -> int:
        """Bring the game to the next start state of the file. Return the number of frames before that state. Raises
        UserError if the state cannot be used, or if the RAM differs from the file's digest.
        """
        number = (self._lane + self._games * self._options.stride) % len(file.starts)
        self._games += 1
        start, where = file.starts[number], f"--starts: {file.path}, start {number}"
        self._seed(start.seed)
        self._new_game()
        steps: list[Step] = list(start.presses)
        if start.state:
            try:
                self._restore(start.state)
            except SystemError:  # raised by ale-py for invalid states
                raise UserError(f"{where}: not a state of ALE") from None
            steps = [(NOOP, 1)]  # a restored emulator has no picture until its next frame
        self._play(steps)
        if wrong := self._flaw(start):
            raise UserError(f"{where}: {wrong}")
        return start.frames

    def _flaw(self, start: Start) -> str:
        if self._ale.game_over():
            return "the game is over at this state"
        if start.frames >= self._options.max_frames:
            return f"{start.frames} frames were played before it, the longest game has {self._options.max_frames}"
        ram = hashlib.sha256(self._ale.getRAM().tobytes()).hexdigest()
        return f"its RAM has the digest {ram}, the file says {start.ram}" if start.ram not in ("", ram) else ""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Batch]:
        """Play the action for `frameskip` frames. The step after a lost life plays `life_start` or NOOP instead."""
        if self._cut and self._life:
            reward = self._play(self._life)
            self._fill()
        else:
            reward = self._press(self._still if self._cut else self._moves[action], self._skip())
            self._push()
        self._age += 1
        lives, dead = self._ale.lives(), self._ale.game_over()
        late = self._is_late() and not dead
        lost = self._options.life_loss == "terminate" and 0 < lives < self._lives and not dead
        self._cut, self._lives = lost and not late, lives
        return self._stack.copy(), float(reward), dead, late, {EPISODE_CUT: True} if lost else {}

    def _skip(self) -> int:
        least, most = self._options.frameskip_min, self._options.frameskip
        return least + int(self._random.random() * (most - least + 1)) if least else most

    def _is_late(self) -> bool:
        """Tell whether the game has reached its maximum length."""
        if not self._options.frameskip_min:
            return self._age >= self._steps
        return bool(self._ale.getEpisodeFrameNumber() >= self._options.max_frames)

    # ------------------------------------------------------------------------------------- the emulator

    def _seed(self, seed: int) -> None:
        self._ale.setInt("random_seed", seed)
        self._ale.loadROM(self._rom)
        self._random = np.random.Generator(np.random.SFC64(seed))
        self._seeded = True

    def _new_game(self) -> None:
        self._ale.reset_game()
        self._last = NOOP

    def _act(self, button: int) -> int:
        """Play one frame, and return its reward. With sticky actions, the previous button may be pressed instead."""
        sticky = self._options.sticky
        if not sticky or self._random.random() >= sticky:
            self._last = button
        return self._ale.act(self._last)

    def _press(self, button: int, frames: int) -> int:
        """Hold a button for `frames` frames or until the game ends. Return the reward."""
        reward = 0
        for left in range(frames, 0, -1):
            reward += self._act(button)
            if self._ale.game_over():
                break
            if left <= self._read_last:
                self._read(self._screens[left - 1])
        return reward

    def _play(self, steps: list[Step], over: Callable[[], None] | None = None) -> int:
        """Play the steps, and return the sum of their rewards. When the game ends, call `over` and continue. If `over`
        is None, stop.
        """
        reward, held = 0, False
        for button, frames in (press for step in steps for press in ([step] if step else self._noops())):
            reward += self._press(button, frames)
            held = frames > 1
            if self._ale.game_over():
                held = False
                if over is None:
                    break
                over()
        self._read(self._screens[0])
        if not held:
            self._screens[1] = 0
        return reward

    def _noops(self) -> list[tuple[int, int]]:
        """Draw a random number of no-op frames. With `fire_reset`, the first one presses FIRE instead."""
        o = self._options
        n = o.noop_min + int(self._random.random() * (max(o.noop_max, 1) - o.noop_min))
        return [(1, 1)] + [(NOOP, 1)] * (n - 1) if self._fire else [(NOOP, 1)] * n

    def _restore(self, saved: bytes) -> None:
        import ale_py

        emulator = ale_py.ALEState(saved)
        self._ale.reset_game()
        if emulator.getEpisodeFrameNumber():  # ale-py 0.12's state omits whether a frame was drawn (ale-py #732)
            self._ale.act(NOOP)
        self._ale.restoreState(emulator)

    # -------------------------------------------------------------------------------------- the picture

    def _push(self) -> None:
        """Add the image of the newest frames to the stack."""
        if self._options.maxpool:
            np.maximum(self._screens[0], self._screens[1], out=self._screens[0])
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._paint(self._screens[0])

    def _fill(self) -> None:
        """Start a new stack of images, as the option `stack_reset` says."""
        how = self._options.stack_reset
        self._stack[:] = 0
        self._push()
        if how == "repeat":
            self._stack[:] = self._stack[-1]
        for _ in range(len(self._stack) - 1 if how == "play" else 0):
            self._press(self._still, self._skip())
            self._push()

    # -------------------------------------------------------------------------------------------- state

    def get_state(self) -> State:
        """Return the state of the game as arrays. The length of "emulator" varies by a few bytes."""
        saved = self._ale.cloneState(include_rng=True).serialize()
        return {
            "emulator": np.frombuffer(saved, np.uint8).copy(),
            "screens": self._screens.copy(),
            "stack": self._stack.copy(),
            "counters": np.array([self._age, self._lives, self._cut, self._last, self._seeded], np.int64),
            **({} if self._starts is None else {"games": np.array(self._games)}),
            "random": self._random.bit_generator.state["state"]["state"].copy(),
        }

    def set_state(self, state: State) -> None:
        """Restore the exact state of an environment with the same game and the same options."""
        self._restore(state["emulator"].tobytes())
        self._games = int(state.get("games", 0))
        self._screens[...], self._stack[...] = state["screens"], state["stack"]
        self._age, self._lives, self._cut, self._last, self._seeded = state["counters"].tolist()
        drawn = self._random.bit_generator.state
        drawn["state"]["state"] = state["random"]
        self._random.bit_generator.state = drawn

    def lives(self) -> int:
        """Return the number of lives left, or 0 if the game has no lives."""
        return int(self._ale.lives())
