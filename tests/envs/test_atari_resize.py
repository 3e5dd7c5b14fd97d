"""Planes are what OpenCV and Pillow make of the same screens."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from PIL import Image

from polyplay.envs import atari_emulator as pixels

OPENCV = {  # of OpenCV 4.10's own pictures: 84x84 of 210x160, 104x80 of 208x160, 70x40 of 210x160
    "area": ("b58c56869ed75d9a", "3783c362385839a2", "03179a48aa73b53b"),
    "bilinear": ("dbae1d49ce57e80e", "3783c362385839a2", "7470458db11e1d6a"),
    "nearest": ("d840d3b4a1bf6e4f", "90edde8e5397cde6", "5b30cd78cc4d28db"),
}


def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()[:16]


@pytest.fixture
def colours():
    return np.random.default_rng(7).integers(0, 256, (210, 160, 3), dtype=np.uint8)


def test_gray_as_opencv_makes_it(colours):
    assert sha(pixels.opencv_gray(colours)) == "ef8ee98e89512d8d"


@pytest.mark.parametrize("kind", OPENCV)
def test_resampling_as_opencv_does_it(kind, colours):
    gray = pixels.opencv_gray(colours)
    sizes = ((210, 84, 84), (208, 104, 80), (210, 70, 40))
    assert tuple(sha(pixels.resizer(kind, h, 160, *to)(gray[:h])) for h, *to in sizes) == OPENCV[kind]


def test_resampling_as_pillow_does_it(colours):
    gray = pixels.opencv_gray(colours)
    want = np.array(Image.fromarray(gray).resize((84, 84), Image.Resampling.BILINEAR))
    assert (pixels.resizer("pillow", 210, 160, 84, 84)(gray) == want).all()


@pytest.mark.parametrize("kind", ["area", "bilinear", "nearest", "pillow"])
@pytest.mark.parametrize("to", [(84, 84), (105, 80), (70, 40), (210, 160)])
def test_a_plain_screen_stays_plain(kind, to):
    for value in (0, 1, 127, 255):
        screen = np.full((210, 160), value, np.uint8)
        assert (pixels.resizer(kind, 210, 160, *to)(screen) == value).all()
        assert (pixels.resizer(kind, 210, 160, *to)(screen.astype(np.float32)) == value).all()


@pytest.mark.parametrize("kind", ["area", "bilinear"])
def test_bytes_and_their_floats_agree(kind, colours):
    gray = pixels.opencv_gray(colours)
    for to in ((84, 84), (105, 80), (70, 40)):
        resize = pixels.resizer(kind, 210, 160, *to)
        assert np.abs(resize(gray).astype(int) - resize(gray.astype(np.float32))).max() <= 1


def test_luminances(colours):
    weights = {"luma": (0.299, 0.587, 0.114), "luma_swapped": (0.2126, 0.0722, 0.7152)}
    exact = {k: colours.astype(float) @ np.array(w) for k, w in weights.items()}
    assert np.abs(pixels.GRAYS["luma"](colours) - exact["luma"]).max() < 1e-4
    assert (pixels.GRAYS["luma_cut"](colours) == np.floor(exact["luma"] + 1e-9)).mean() > 0.999
    assert (pixels.GRAYS["luma_swapped"](colours) == np.floor(exact["luma_swapped"] + 1e-9)).mean() > 0.999
    white = np.full((2, 2, 3), 255, np.uint8)
    assert {k: int(gray(white).max()) for k, gray in pixels.GRAYS.items() if k != "luma_swapped"} == {
        "opencv": 255,
        "luma": 255,
        "luma_cut": 255,
    }
