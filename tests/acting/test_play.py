from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import DependencyNotInstalled

from polyplay.acting import play
from polyplay.envs import Envs
from polyplay.evaluation import evaluate as film_module
from polyplay.evaluation.evaluate import ATARI_RATE
from polyplay.nets import factory

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
    policy = factory.make("auto" if of.title.startswith("ALE") else "mlp", replace(of, inline=True).spec)
    with closing(film_module.Film(path)) as made:
        return play.play_games(made.shown(of), policy, episodes, 0, viewers=[made])


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
    assert rate == ATARI_RATE
    assert (len(pictures), pictures[0].shape) == (11, (336, 336, 3))


def broken(picture: Any, missing: type[Exception] | None = None, at: int = 0) -> type[Shown]:
    """Renders what `picture` says; from step `at` on it raises what is missing."""

    class Broken(Shown):
        def render(self) -> Any:
            if missing and self.step_number >= at:
                raise missing('pygame is not installed, run `pip install "gymnasium[classic-control]"`')
            return np.zeros(picture, np.uint8)

    return Broken


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (
            replace(envs(blind), inline=True),
            "--video: needs an environment that takes render_mode='rgb_array'; blind: could not be built",
        ),
        (envs(Shown, picture=(31, 20)), "--video: render() gave uint8 [31, 20]; it must give uint8 [H, W, 3]"),
        (envs(Shown, picture="x"), "--video: rendering failed: TypeError"),
        (
            envs(broken((8, 8, 3), DependencyNotInstalled)),
            "--video: needs the package pygame; `pip install 'polyplay[video]'`",
        ),
        (envs(broken((8, 8, 3), RuntimeError, at=5)), "--video: rendering failed: RuntimeError: pygame is not"),
        (envs(broken((0, 0, 3))), "--video: "),
    ],
)
def test_a_film_that_fails_is_told_once_and_leaves_no_file_and_all_games(
    tmp_path: Path, of: Envs, says: str, capsys: pytest.CaptureFixture
):
    assert film(tmp_path / "x.mp4", of) == [(7.0, 7)] * 3
    assert list(tmp_path.iterdir()) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"polyplay: {says}")
    assert line.endswith("; there is no video, the games are scored without")


def test_games_without_images_are_played_without_a_film(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert len(film(tmp_path / "x.mp4", envs("toy:cartpole"))) == 3
    assert "--video: needs image observations [C, H, W] of uint8; these are none" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_costs_the_film_alone(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert film(tmp_path / "none" / "x.mp4", envs(Shown)) == [(7.0, 7)] * 3
    assert "No such file or directory" in capsys.readouterr().err


def test_an_earlier_film_stays_where_the_next_one_fails(tmp_path: Path):
    film(tmp_path / "x.mp4", envs(Shown))
    before = (tmp_path / "x.mp4").read_bytes()
    film(tmp_path / "x.mp4", envs(broken((8, 8, 3), RuntimeError, at=3)))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x.mp4", before)]


def test_without_the_package_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setitem(sys.modules, "av", None)
    assert film(tmp_path / "x.mp4", envs(Shown)) == [(7.0, 7)] * 3
    assert "--video: needs the package av; `pip install 'polyplay[video]'`" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- ε, and whose games


class Constant(torch.nn.Module):
    """A policy that always does the same, and says what it heard."""

    noise = 1

    def __init__(self, action: int):
        super().__init__()
        self.action, self.heard = action, []  # type: int, list[Any]

    def initial(self, lanes: int) -> Any:
        return {"action": torch.zeros(lanes, dtype=torch.int64)}

    def act(self, step: Any, state: Any) -> Any:
        self.heard.append(state["action"].clone())
        said = torch.full((len(step["first"]),), self.action)
        return {"action": said}, {"action": said}


class Counts(gymnasium.Env):
    """Rewards every action with its number; an episode is 8 steps."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32), gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 8
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(1, np.float32), float(action), self.left == 0, False, {}


def mean_reward(epsilon: float, seed: int = 0) -> float:
    games = play.play_games(Envs(Counts, 4, inline=True), Constant(3), 32, seed, epsilon=epsilon)
    assert [length for _, length in games] == [8] * 32
    return sum(ret for ret, _ in games) / (32 * 8)


def test_epsilon_mixes_uniform_actions_with_the_policys_own():
    assert mean_reward(0.0) == 3.0
    assert mean_reward(1.0) == pytest.approx(1.5, abs=0.15)
    assert mean_reward(0.5) == pytest.approx(2.25, abs=0.2)
    assert mean_reward(0.5) == mean_reward(0.5)
    assert mean_reward(0.5) != mean_reward(0.5, seed=1)


def test_a_policy_that_hears_its_last_action_hears_the_one_that_was_done():
    policy = Constant(3)
    play.play_games(Envs(Counts, 4, inline=True), policy, 8, 0, epsilon=1.0)
    assert {int(a) for heard in policy.heard[1:] for a in heard} == {0, 1, 2, 3}


def test_without_epsilon_games_are_what_they_were_whatever_epsilon_draws():
    envs_ = Envs("toy:catch", 4)
    policy = factory.make("mlp", envs_.spec)
    assert play.play_games(envs_, policy, 12, 3) == play.play_games(envs_, policy, 12, 3, epsilon=0.0)


def test_games_come_in_the_order_of_their_numbers_not_of_their_ends():
    games = [
        g for found in play.play_steps(Envs(Counts, 4, inline=True), Constant(1), play.PlayOptions(6)) for g in found
    ]
    assert sorted(g.number for g in games) == [0, 1, 2, 3, 4, 5]
    lanes = play.lanes_of(Envs(Counts, 4, inline=True), 40)
    assert lanes == play.LANES
