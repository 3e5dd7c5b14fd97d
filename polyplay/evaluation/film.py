"""A game as a video."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.envs import Pool
from polyplay.evaluation.pictures import picture


class Film:
    """Writes the first lane's first game to an H.264 file."""

    option = "--video"

    def __init__(self, path: Path):
        try:
            import av
        except ImportError:
            raise UserError("--video: needs the package av; `pip install 'polyplay[video]'`") from None
        self.path, self._out = path, av.open(str(path), "w")
        self._stream: av.video.stream.VideoStream | None = None
        self._av, self._done = av, False

    def __call__(self, step: Batch, pool: Pool) -> None:
        if self._done:
            return
        shown, rate = picture(step, pool, self.option)
        shown = shown[: len(shown) // 2 * 2, : shown.shape[1] // 2 * 2]  # the format has no odd sides
        if self._stream is None:
            self._stream = self._out.add_stream("libx264", rate=round(rate))
            self._stream.height, self._stream.width = shown.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), format="rgb24")
        self._out.mux(self._stream.encode(frame))
        self._done = bool(step["over"][0])

    def close(self) -> None:
        if self._stream is not None:
            self._out.mux(self._stream.encode())
        self._out.close()
        if self._stream is None:  # nothing was shown
            self.path.unlink(missing_ok=True)
