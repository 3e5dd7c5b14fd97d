"""Games in a window while they are played."""

from __future__ import annotations

import os
import sys

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.envs import Envs, Pool
from polyplay.evaluation.pictures import picture, with_pictures

UNSEEN = ("dummy", "offscreen")  # what SDL takes where there is no screen


def asked_for(driver: str) -> bool:
    return os.environ.get("SDL_VIDEODRIVER") == driver


class Window:
    """Shows the first lane's games at their own speed. Once it is closed, or later fails, the games continue without
    it.
    """

    option = "--render"

    def __init__(self, title: str):
        try:
            import pygame
        except ImportError:
            raise UserError("--render: needs the package pygame; `pip install 'polyplay[render]'`") from None
        self._pygame, self._title = pygame, title
        self._clock, self._open = pygame.time.Clock(), True
        try:
            pygame.display.init()
            driver = pygame.display.get_driver()
            why = f"SDL found only its driver {driver!r}" if driver in UNSEEN and not asked_for(driver) else ""
        except pygame.error as e:
            why = str(e)
        if why:
            raise UserError(f"--render: no window can be opened here ({why}); --video writes a file instead")

    def shown(self, envs: Envs) -> Envs:
        """`envs` so that a step has a picture. Raises UserError."""
        return with_pictures(envs, self.option)

    def __call__(self, step: Batch, pool: Pool) -> None:
        if not self._open:
            return
        try:
            self._show(step, pool)
        except (UserError, self._pygame.error) as e:
            if self._pygame.display.get_surface() is None:
                raise  # at the first step, so no game is lost
            print(f"polyplay: {' '.join(str(e).split())}; the games continue without a window", file=sys.stderr)
            self.close()

    def _show(self, step: Batch, pool: Pool) -> None:
        shown, rate = picture(step, pool, self.option)
        size = shown.shape[1], shown.shape[0]
        surface = self._pygame.display.get_surface()
        if surface is None or surface.get_size() != size:
            surface = self._pygame.display.set_mode(size)
            self._pygame.display.set_caption(self._title)
        self._pygame.surfarray.blit_array(surface, shown.swapaxes(0, 1))
        self._pygame.display.flip()
        self._clock.tick(rate)
        if any(event.type == self._pygame.QUIT for event in self._pygame.event.get()):
            self.close()

    def close(self) -> None:
        self._open = False
        self._pygame.display.quit()
