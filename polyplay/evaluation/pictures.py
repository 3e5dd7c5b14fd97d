"""What a game looks like: for a video, or a window. `option` is what asked for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gymnasium.error import DependencyNotInstalled

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch
from polyplay.envs import Envs, Pool

ATARI_RATE = 15.0  # pictures per second: one of four frames
SCALE = 4  # of a picture that the network sees


def with_pictures(envs: Envs, option: str) -> Envs:
    """`envs` so that a step has a picture: Gymnasium's render in our own process. Raises UserError."""
    if envs.title.startswith(("ALE/", "arena:", "toy:", "game:", "envpool:")):
        return envs
    shown = replace(envs, inline=True, options={**envs.options, "render_mode": "rgb_array"})
    try:
        shown.spec  # noqa: B018 - builds one
    except UserError as e:
        raise UserError(f"{option}: needs an environment that takes render_mode='rgb_array'; {e}") from None
    return shown


def picture(step: Batch, pool: Pool, option: str) -> tuple[np.ndarray, float]:
    """The first lane's (RGB uint8 [H, W, 3], pictures per second): an Atari screen's newest plane, else what `render`
    gives. Raises UserError.
    """
    if not hasattr(pool, "picture"):
        obs = step["obs"]
        if isinstance(obs, dict) or obs.ndim != 4 or obs.dtype != np.uint8:
            raise UserError(f"{option}: needs image observations [C, H, W] of uint8; these are none")
        plane = np.repeat(np.repeat(obs[0, -1], SCALE, 0), SCALE, 1)
        return np.stack([plane] * 3, -1), ATARI_RATE
    try:
        rendered, rate = pool.picture(0)
    except DependencyNotInstalled as e:
        if "pygame" in str(e):
            raise UserError(f"{option}: needs the package pygame; `pip install 'polyplay[{option[2:]}]'`") from None
        raise UserError(f"{option}: this environment cannot render: {' '.join(str(e).split())}") from None
    except Exception as e:
        raise UserError(f"{option}: rendering failed: {type(e).__name__}: {' '.join(str(e).split())}") from e
    array = np.asarray(rendered)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise UserError(f"{option}: render() gave {array.dtype} {list(array.shape)}; it must give uint8 [H, W, 3]")
    return array, rate
