from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from polyplay import nets, playing
from polyplay.envs import Envs
from polyplay.errors import UserError

SPACE = gymnasium.spaces.Dict({"at": gymnasium.spaces.Box(-9, 9, (2,), np.float32), "n": gymnasium.spaces.Discrete(3)})


class Shown(gymnasium.Env):
    """Dict observations; renders 31×20 pictures whose red tells the step. An episode is 7 steps."""

    observation_space, action_space = SPACE, gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, picture: Any = (31, 20, 3)):
        self.render_mode, self.picture = render_mode, picture

    def _obs(self) -> dict[str, Any]:
        return {"at": np.zeros(2, np.float32), "n": 0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_number = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.step_number += 1
        return self._obs(), 1.0, self.step_number == 7, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        shown = np.zeros(self.picture, np.uint8)
        shown[..., 0] = 30 * self.step_number
        return shown


def blind() -> gymnasium.Env:
    return Shown()


def envs(name: Any, **options: Any) -> Envs:
    return Envs(name, 2, options=options)


def film(path: Path, of: Envs, episodes: int = 3) -> list[tuple[float, int]]:
    policy = nets.make("auto" if of.title.startswith("ALE") else "mlp", replace(of, inline=True).spec)
    made = playing.Film(path)
    try:
        return playing.play(of, policy, episodes, 0, film=made)
    finally:
        made.close()


def watch(path: Path) -> tuple[list[np.ndarray], float]:
    import av

    with av.open(str(path)) as file:
        rate = float(file.streams.video[0].average_rate or 0)
        return [f.to_ndarray(format="rgb24") for f in file.decode(video=0)], rate


def test_an_environment_with_dict_observations_is_filmed_as_it_renders(tmp_path: Path):
    assert film(tmp_path / "x.mp4", envs(Shown)) == [(7.0, 7)] * 3
    pictures, rate = watch(tmp_path / "x.mp4")
    assert rate == 10
    assert len(pictures) == 8  # the first game alone, from its reset to its end
    assert pictures[0].shape == (30, 20, 3)  # H.264 has no odd sides
    assert [round(p[..., 0].mean() / 30) for p in pictures] == list(range(8))


def test_an_atari_game_is_filmed_as_it_is_seen(tmp_path: Path):
    of = replace(envs("ALE/Pong-v5", max_frames=40), lanes=2)
    film(tmp_path / "x.mp4", of, episodes=2)
    pictures, rate = watch(tmp_path / "x.mp4")
    assert rate == playing.Film.RATE
    assert (len(pictures), pictures[0].shape) == (11, (336, 336, 3))


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (envs(blind), r"--video: needs an environment that takes render_mode='rgb_array'; blind: could not be built"),
        (envs("toy:cartpole"), r"--video: needs image observations .*; these are none"),
        (envs(Shown, picture=(31, 20)), r"--video: render\(\) gave uint8 \[31, 20\]; it must give uint8 \[H, W, 3\]"),
        (envs(Shown, picture="x"), r"--video: rendering failed: TypeError"),
    ],
)
def test_what_is_missing_is_said_and_no_film_is_left(tmp_path: Path, of: Envs, says: str):
    with pytest.raises(UserError, match=says):
        film(tmp_path / "x.mp4", of)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return known(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"--video: needs the package av; `pip install 'polyplay\[video\]'`"):
        playing.Film(tmp_path / "x.mp4")
