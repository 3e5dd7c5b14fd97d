"""polyplay/envs/atari/screen.py: what is painted piece by piece is what painting the whole screen gives."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.common.errors import UserError
from polyplay.envs.atari import resize
from polyplay.envs.atari import screen as paint
from polyplay.envs.atari.emulator import AtariEnv
from polyplay.envs.atari.presets import PRESETS, Atari, atari_preset
from polyplay.envs.atari.screen import ScreenCache, TwisterUniforms

PALETTE = np.random.default_rng(0).integers(0, 256, (256, 3), dtype=np.uint8)


def whole(o: Atari, screen: np.ndarray) -> np.ndarray:
    """The plane of a screen, without blocks and without a table of colours."""
    _, height, width = o.shape
    picture = screen[: len(screen) - o.crop]
    if o.gray in resize.GRAYS:
        picture = resize.GRAYS[o.gray](PALETTE[picture] if picture.ndim == 2 else picture)
    return resize.resizer(o.resize, *picture.shape[:2], height, width)(picture)


def screens(shape: tuple[int, ...], n: int = 25):
    """Screens of which more or less changes from one to the next, down to nothing; colours come up late."""
    rng = np.random.default_rng(1)
    screen = rng.integers(0, 20, shape, dtype=np.uint8)
    for i in range(n):
        for _ in range(i % 4):
            top, left = rng.integers(shape[0]), rng.integers(shape[1])
            screen[top : top + rng.integers(1, 40), left : left + 20] = rng.integers(10 * i + 10)
        if i == 12:
            screen[:] = rng.integers(0, 256, shape, dtype=np.uint8)
        yield screen


@pytest.mark.parametrize("height", [210, 250])
@pytest.mark.parametrize("name", PRESETS)
def test_planes_are_those_of_the_whole_screen(name, height):
    o = Atari(**atari_preset(name))
    painter = ScreenCache(o, height, 160, "game")
    assert painter.n == (1 if o.resize == "pillow" else {210: 104 if o.crop else 42, 250: 1}[height])
    looks = []
    for screen in screens(painter.shape):
        plane = painter(screen, lambda s=screen: looks.append(1) or PALETTE[s])
        np.testing.assert_array_equal(plane, whole(o, screen))
    assert bool(looks) == painter.indexed == (name == "ga3c")
    assert len(looks) < 25


@pytest.mark.parametrize("kind", ["area", "bilinear", "nearest"])
@pytest.mark.parametrize(("height", "to"), [(210, 84), (208, 104), (210, 70), (210, 105), (192, 84), (210, 180)])
def test_rows_hang_together_within_blocks_only(kind, height, to):
    n = paint.blocks(kind, height, to)
    assert n == {84: 42, 104: 104, 70: 70, 105: 105, 180: 1}[to] or (height, n) == (192, 1)
    for dtype in (np.uint8, np.float32):
        picture = np.random.default_rng(2).integers(0, 256, (height, 160)).astype(dtype)
        one = resize.resizer(kind, height // n, 160, to // n, 84)
        pieces = np.concatenate([one(part) for part in np.split(picture, n)])
        np.testing.assert_array_equal(pieces, resize.resizer(kind, height, 160, to, 84)(picture))
    assert paint.blocks("pillow", height, to) == 1


@pytest.mark.parametrize("gray", resize.GRAYS)
def test_gray_values_of_single_frames_are_looked_up(gray):
    o = Atari(gray=gray, maxpool=False, resize="bilinear")
    painter = ScreenCache(o, 210, 160, "game")
    assert painter.indexed
    for screen in screens((210, 160), 14):
        np.testing.assert_array_equal(painter(screen, lambda s=screen: PALETTE[s]), whole(o, screen))


def test_planes_larger_than_the_screen_are_refused():
    with pytest.raises(UserError, match="game: option size=84x161 is larger than the screen of 210x160"):
        ScreenCache(Atari(width=161), 210, 160, "game")


@pytest.mark.parametrize("drawn", [0, 1, 255, 256, 700])
def test_chances_drawn_ahead_are_the_generators_words_and_their_state_tells_nothing_of_it(drawn):
    plain, ours = np.random.RandomState(3), TwisterUniforms(3)
    for _ in range(drawn):
        assert ours.draw() == plain.randint(0, 2**32, 2, np.uint32)[0] / 2**32
    np.testing.assert_array_equal(ours.get_state(), paint.mt19937_state(plain))
    other = TwisterUniforms(4)
    other.set_state(ours.get_state())
    assert [other.draw() for _ in range(300)] == [ours.draw() for _ in range(300)]


def test_a_restored_game_knows_its_colours():
    """Also where the screen of the state is painted before any other is read."""
    one, two = (AtariEnv("ALE/Pong-v5", atari_preset("ga3c")) for _ in range(2))
    one.reset(seed=1)
    for _ in range(30):
        one.step(2)
    two.reset(seed=2)
    two._paint.table[:] = 1e9
    two.set_state(one.get_state())
    np.testing.assert_array_equal(two._paint.table, one._paint.table)
    for action in (0, 2, 3, 0):
        np.testing.assert_array_equal(one.step(action)[0], two.step(action)[0])
