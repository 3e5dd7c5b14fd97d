"""A game as a video."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.envs import Envs, Pool
from polyplay.evaluation.pictures import picture, with_pictures

DRIVER = "SDL_VIDEODRIVER"  # of pygame, which draws many environments


class Film:
    """Writes the first lane's first game to an H.264 file. The games are played for their score: a fault of the film
    ends the film alone, with one line on standard error and no file; `fault` says why.
    """

    option = "--video"

    def __init__(self, path: Path):
        self.path, self.fault, self._done = path, "", False
        self._part = path.with_name(f".partial-{path.name}")
        self._out: Any = None
        self._stream: Any = None
        with self._guarded():
            self._out = _package().open(str(self._part), "w")

    def shown(self, envs: Envs) -> Envs:
        """`envs` so that a step has a picture; as they are, where that cannot be."""
        with self._guarded():
            return with_pictures(envs, self.option)
        return envs

    def __call__(self, step: Batch, pool: Pool) -> None:
        if not self._done:
            with self._guarded():
                self._write(*picture(step, pool, self.option))
                self._done = bool(step["over"][0])

    def close(self) -> None:
        """Put the file in its place, if anything was shown. May be called again."""
        out, self._out, self._done = self._out, None, True
        with self._guarded():
            if self._stream is not None and out is not None:
                out.mux(self._stream.encode())
        with self._guarded():
            if out is not None:
                out.close()
                if self._stream is not None and not self.fault:
                    os.replace(self._part, self.path)
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _write(self, shown: np.ndarray, rate: float) -> None:
        shown = shown[: len(shown) // 2 * 2, : shown.shape[1] // 2 * 2]  # the format has no odd sides
        if self._stream is None:
            self._stream = self._out.add_stream("libx264", rate=round(rate))
            self._stream.height, self._stream.width = shown.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        frame = _package().VideoFrame.from_ndarray(np.ascontiguousarray(shown), format="rgb24")
        self._out.mux(self._stream.encode(frame))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """The first fault is told, and ends the film."""
        try:
            yield
        except Exception as e:
            why = str(e) if isinstance(e, UserError) else f"{self.option}: {type(e).__name__}: {e}"
            if not self.fault:
                self.fault, self._done = " ".join(why.split()), True
                print(f"polyplay: {self.fault}; there is no video, the games are scored without", file=sys.stderr)


def _package() -> Any:
    try:
        import av
    except ImportError:
        raise UserError("--video: needs the package av; `pip install 'polyplay[video]'`") from None
    return av


@contextlib.contextmanager
def without_a_screen() -> Iterator[None]:
    """Meanwhile pygame looks for none."""
    before = os.environ.get(DRIVER)
    os.environ[DRIVER] = before or "dummy"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DRIVER)
