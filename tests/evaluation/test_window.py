"""Games in a window, shown by SDL's driver that has no screen."""

from __future__ import annotations

import builtins
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.evaluation.evaluate import Window


class Rendering:
    """A pool that renders."""

    def __init__(self, rate: Any):
        self.rate = rate

    def picture(self, lane: int) -> tuple[np.ndarray, float]:
        if self.rate == "broken":
            raise ValueError("lost")
        shown = np.zeros((30, 50, 3), np.uint8)
        shown[:, :25] = 200, 100, 50
        return shown, self.rate


@pytest.fixture
def pygame(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return pytest.importorskip("pygame")


def test_a_window_shows_what_is_rendered_at_its_rate(pygame: Any) -> None:
    with closing(Window("polyplay X")) as window:
        begun = time.monotonic()
        for _ in range(6):
            window({}, Rendering(50.0))
        assert time.monotonic() - begun >= 4 / 50
        surface = pygame.display.get_surface()
        assert surface.get_size() == (50, 30)
        assert surface.get_at((10, 10))[:3] == (200, 100, 50)
        assert surface.get_at((40, 10))[:3] == (0, 0, 0)
        assert pygame.display.get_caption()[0] == "polyplay X"


def test_games_go_on_once_it_is_closed(pygame: Any) -> None:
    with closing(Window("polyplay X")) as window:
        window({}, Rendering(1000.0))
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        window({}, Rendering(1000.0))
        assert pygame.display.get_surface() is None
        window({}, Rendering(1000.0))


def test_a_window_that_fails_later_costs_no_game(pygame: Any, capsys: pytest.CaptureFixture) -> None:
    pool = Rendering(1000.0)
    with closing(Window("polyplay X")) as window:
        window({}, pool)
        pool.rate = "broken"
        window({}, pool)
        window({}, pool)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "polyplay: --render: rendering failed: ValueError: lost; the games continue without a window"


def test_games_that_cannot_be_shown_at_all_are_refused(pygame: Any) -> None:
    with closing(Window("polyplay X")) as window, pytest.raises(UserError, match="--render: rendering failed"):
        window({}, Rendering("broken"))


@pytest.mark.parametrize("driver", [None, "no such driver"])
def test_where_there_is_no_screen_it_says_so(pygame: Any, monkeypatch: pytest.MonkeyPatch, driver: str | None) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    if driver:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    with pytest.raises(UserError, match=r"--render: no window can be opened here .*; --video writes a file instead"):
        Window("polyplay X")


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "pygame":
            raise ImportError(name)
        return known(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"--render: needs the package pygame; `pip install 'polyplay\[render\]'`"):
        Window("polyplay X")
