"""Play full games with a run's weights, every lane its fair share, and say how they went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyplay import checkpoint, tree
from polyplay.acting import HEARD
from polyplay.noise import uniform

LANES = 16
SEED = 10_000_019  # evaluation never repeats the seeds of training


def play(
    envs: Any, policy: Any, episodes: int, seed: int, greedy: bool = False, each_step: Any = None
) -> list[tuple[float, int]]:
    """(return, length) of `episodes` full games, unclipped. Every lane has its quota, so short games don't crowd in."""
    lanes = envs.spec.width or min(episodes, LANES)
    quota = np.array([episodes // lanes + (i < episodes % lanes) for i in range(lanes)])
    pool = replace(envs, lanes=lanes, groups=1, workers=0).open(seed + SEED)
    try:
        return _games(pool, policy, quota, seed, greedy, each_step)
    finally:
        pool.close()


def _games(pool: Any, policy: Any, quota: Any, seed: int, greedy: bool, each_step: Any) -> list[tuple[float, int]]:
    lanes = len(quota)
    state, done = policy.initial(lanes), np.zeros(lanes, np.int64)
    ret, length, games, acts = np.zeros(lanes), np.zeros(lanes, np.int64), [], np.zeros(lanes, np.int64)
    while (done < quota).any():
        which, step = pool.recv()
        heard = {k: step[k] for k in HEARD if k in step}
        if not greedy:
            heard["noise"] = uniform(seed + SEED, np.arange(lanes), acts, policy.noise)
        acts += 1
        with torch.no_grad():
            out, state = policy.act(tree.map(torch.from_numpy, heard), state)
        if each_step is not None:
            each_step(step)
        ret += step["reward"]
        length += ~step["first"]
        for i in np.flatnonzero(step["over"]):
            if done[i] < quota[i]:
                games.append((float(ret[i]), int(length[i])))
            done[i] += 1
            ret[i], length[i] = 0.0, 0
        pool.send(which, tree.map(lambda x: x.numpy(), out["action"]))
    return games


def load_policy(system: Any, path: Path) -> Any:
    policy = system.policy()
    checkpoint.fit(policy, checkpoint.open_checkpoint(path).arrays("agents/0/policy"))
    return policy


def summarise(games: list[tuple[float, int]], frames_per_step: int, seconds: float) -> dict[str, Any]:
    returns, lengths = np.array([g[0] for g in games]), np.array([g[1] for g in games])
    return {
        "episodes": len(games),
        "episodic_return_mean": float(returns.mean()),
        "episodic_return_std": float(returns.std()),
        "episodic_return_min": float(returns.min()),
        "episodic_return_max": float(returns.max()),
        "episodic_return_median": float(np.median(returns)),
        "episodic_length_mean": float(lengths.mean()),
        "frames": int(lengths.sum()) * frames_per_step,
        "seconds": round(seconds, 3),
        "returns": [float(r) for r in returns],
    }


class Film:
    """Writes the first lane's newest plane, or its rendering, to an H.264 file."""

    def __init__(self, path: Path, rate: int = 15):
        from polyplay.errors import UserError

        try:
            import av
        except ImportError:
            raise UserError("--video: needs the package av; `pip install 'polyplay[video]'`") from None
        self.path, self._out = path, av.open(str(path), "w")
        self._stream = self._out.add_stream("libx264", rate=rate)
        self._av, self._ready = av, False

    def __call__(self, step: Any) -> None:
        obs = step["obs"]
        if isinstance(obs, dict) or obs.ndim != 4 or obs.dtype != np.uint8:
            from polyplay.errors import UserError

            raise UserError("--video: needs image observations [C, H, W] of uint8; this environment has none")
        picture = np.repeat(np.repeat(obs[0, -1], 4, 0), 4, 1)
        if not self._ready:
            self._stream.height, self._stream.width = picture.shape
            self._stream.pix_fmt, self._ready = "yuv420p", True
        frame = self._av.VideoFrame.from_ndarray(np.stack([picture] * 3, -1), format="rgb24")
        for packet in self._stream.encode(frame):
            self._out.mux(packet)

    def close(self) -> None:
        for packet in self._stream.encode() if self._ready else ():
            self._out.mux(packet)
        self._out.close()
