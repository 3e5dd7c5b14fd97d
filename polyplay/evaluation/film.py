"""A game as a video."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.envs import Envs, Pool


class Film:
    """Writes the first lane's first game to an H.264 file: an Atari screen's newest plane, else what `render` gives."""

    RATE = 15.0  # Atari's pictures per second: one of four frames

    def __init__(self, path: Path):
        try:
            import av
        except ImportError:
            raise UserError("--video: needs the package av; `pip install 'polyplay[video]'`") from None
        self.path, self._out = path, av.open(str(path), "w")
        self._stream: av.video.stream.VideoStream | None = None
        self._av, self._done = av, False

    def setting(self, envs: Envs) -> Envs:
        """`envs` so that they can be filmed: Gymnasium's render in our own process. Raises UserError."""
        if envs.title.startswith(("ALE/", "toy:", "envpool:")):
            return envs
        shown = replace(envs, inline=True, options={**envs.options, "render_mode": "rgb_array"})
        try:
            shown.spec  # noqa: B018 - builds one
        except UserError as e:
            raise UserError(f"--video: needs an environment that takes render_mode='rgb_array'; {e}") from None
        return shown

    def __call__(self, step: Batch, pool: Pool) -> None:
        if self._done:
            return
        picture, rate = self._picture(step, pool)
        picture = picture[: len(picture) // 2 * 2, : picture.shape[1] // 2 * 2]  # the format has no odd sides
        if self._stream is None:
            self._stream = self._out.add_stream("libx264", rate=round(rate))
            self._stream.height, self._stream.width = picture.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        self._out.mux(self._stream.encode(frame))
        self._done = bool(step["over"][0])

    def _picture(self, step: Batch, pool: Pool) -> tuple[np.ndarray, float]:
        """(RGB [H, W, 3], pictures per second). Raises UserError."""
        if not hasattr(pool, "picture"):
            obs = step["obs"]
            if isinstance(obs, dict) or obs.ndim != 4 or obs.dtype != np.uint8:
                raise UserError("--video: needs image observations [C, H, W] of uint8; these are none")
            picture = np.repeat(np.repeat(obs[0, -1], 4, 0), 4, 1)
            return np.stack([picture] * 3, -1), self.RATE
        try:
            picture, rate = pool.picture(0)
        except Exception as e:
            raise UserError(f"--video: rendering failed: {type(e).__name__}: {' '.join(str(e).split())}") from e
        array = np.asarray(picture)
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
            raise UserError(f"--video: render() gave {array.dtype} {list(array.shape)}; it must give uint8 [H, W, 3]")
        return array, rate

    def close(self) -> None:
        if self._stream is not None:
            self._out.mux(self._stream.encode())
        self._out.close()
        if self._stream is None:  # nothing was shown
            self.path.unlink(missing_ok=True)
