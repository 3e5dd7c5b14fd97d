"""Images as --images, --stack, --gray, --size and --frame-skip show them, in every kind of pool."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import polyplay
from polyplay.core.errors import UserError
from polyplay.envs import Envs, pool
from polyplay.envs.atari_emulator import opencv_gray, resizer
from polyplay.envs.image_view import ImageView, ImageWrapper, view_from_json, view_to_json
from polyplay.envs.images import ImageOptions, read_image_options
from polyplay.envs.pool import EPISODE_CUT
from polyplay.envs.saved_state import load_env, save_env
from polyplay.nets.factory import NetworkFactory

PIXELS = spaces.Box(0, 255, (30, 40, 3), np.uint8)
NUMBERS = spaces.Box(-1.0, 1.0, (2,))
MODES = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


class Film(gymnasium.Env):
    """Every pixel is the step's number. Episodes have 3 steps, then 4, then 5, then 3 again."""

    observation_space = spaces.Dict(film=PIXELS, at=spaces.Box(0.0, 99.0, (1,)))
    action_space = spaces.Discrete(2)
    t, episode = 0, 0

    def see(self) -> dict[str, Any]:
        return {"film": np.full((30, 40, 3), self.t, np.uint8), "at": np.array([self.t], np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self.see(), {}

    def step(self, action: int) -> tuple:
        self.t += 1
        return self.see(), 1.0, self.t == 3 + self.episode % 3, False, {}

    def get_state(self) -> dict[str, Any]:
        return {"t": np.array(self.t), "episode": np.array(self.episode)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t, self.episode = int(state["t"]), int(state["episode"])


def films(num_envs: int = 2, mode: AutoresetMode | None = None) -> Any:
    return SyncVectorEnv([Film] * num_envs, autoreset_mode=mode or AutoresetMode.NEXT_STEP)


def make_next(num_envs: int) -> Any:
    return films(num_envs, MODES[0])


def make_same(num_envs: int) -> Any:
    return films(num_envs, MODES[1])


def make_disabled(num_envs: int) -> Any:
    return films(num_envs, MODES[2])


@pytest.mark.parametrize("make", [Film, make_next, make_same, make_disabled])
def test_a_stack_begins_with_its_episode_and_ends_with_its_last_frame_in_every_pool(make):
    envs = Envs(make, 2, images=ImageOptions(stack=3, gray=True), inline=True)
    assert envs.spec.obs["film"].shape == (3, 30, 40)
    opened, ends = envs.open(seed=0), 0
    try:
        for _ in range(16):
            lanes, row = opened.recv()
            for film, at, first in zip(row["obs"]["film"], row["obs"]["at"][:, 0], row["first"], strict=True):
                assert film[:, 0, 0].tolist() == [max(at - 2, 0), max(at - 1, 0), at]
                assert not first or at == 0
            ends += int(row["over"].sum())
            opened.send(lanes, np.zeros(2, np.int64))
    finally:
        opened.close()
    assert ends >= 4


def test_gray_then_area_then_stack():
    rng, view = np.random.default_rng(0), ImageView(PIXELS, ImageOptions(None, 2, True, (15, 20)), "env")
    images = rng.integers(0, 256, (3, 30, 40, 3), np.uint8)
    want = [resizer("area", 30, 40, 15, 20)(opencv_gray(image)) for image in images]
    frames = None
    for image in images:
        shown, frames = view.show(image, frames)
    assert np.array_equal(shown, np.stack(want[1:]))
    assert view.space == spaces.Box(0, 255, (2, 15, 20), np.uint8)
    assert np.array_equal(view.show(images[0], None)[0], np.stack(want[:1] * 2))


def test_a_stack_of_frames_keeps_them_in_order_and_colors_together():
    space = spaces.Box(0, 255, (2, 30, 40, 3), np.uint8)
    image = np.arange(6, dtype=np.uint8).reshape(2, 1, 1, 3) * np.ones((2, 30, 40, 3), np.uint8)
    shown, _ = ImageView(space, ImageOptions(stack=2), "env").show(image, None)
    assert shown[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert ImageView(space, ImageOptions(gray=True), "env").space.shape == (2, 30, 40)


def test_only_images_change_and_what_does_not_fit_stays_for_the_lane_to_name():
    space = spaces.Dict(eyes=spaces.Tuple((PIXELS, NUMBERS)), many=spaces.Discrete(3))
    view = ImageView(space, ImageOptions(size=(15, 20)), "env")
    obs = {"eyes": (np.zeros((30, 40, 3), np.uint8), np.ones(2, np.float32)), "many": 2, "more": "text"}
    shown, _ = view.show(obs, None)
    assert (view.images, shown["eyes"][0].shape, shown["many"], shown["more"]) == (("eyes/0",), (3, 15, 20), 2, "text")
    assert view.show({"eyes": 3, "many": None}, None)[0] == {"eyes": 3, "many": None}
    again = view_from_json(view_to_json(view), "env")
    assert (again.space, again.given, again.options) == (view.space, view.given, view.options)


def test_what_is_an_image_can_be_said_and_the_network_follows():
    small = spaces.Dict(map=spaces.Box(0, 10, (9, 9, 2), np.uint8), screen=PIXELS)

    class Shows(Film):
        observation_space = small

        def see(self):
            return {"map": np.zeros((9, 9, 2), np.uint8), "screen": np.zeros((30, 40, 3), np.uint8)}

    def of(images: str) -> tuple[Any, str, int]:
        spec = Envs(Shows, 1, images=read_image_options(images, None, False, None), inline=True).spec
        made = NetworkFactory("auto", spec, {"init": "auto"})
        convolutions = sum(type(layer).__name__ == "Conv2d" for layer in made().modules())
        again = pool.spec_from_json(pool.spec_to_json(spec), "spaces.json")
        assert (again.image_leaves, again.obs) == (spec.image_leaves, spec.obs)
        return spec.image_leaves, made.choice.partition(",")[0], convolutions

    assert of("auto") == (["screen"], "combined", 2)
    assert of("map,screen") == (["map", "screen"], "combined", 4)
    assert of("map") == (["map"], "combined", 2)
    assert of("none") == ([], "mlp", 0)


def test_a_saved_state_has_the_stack():
    def made() -> ImageWrapper:
        env = ImageWrapper(Film(), ImageOptions(stack=3), "film")
        env.reset(seed=0)
        return env

    env, other = made(), made()
    env.step(0)
    load_env(other, save_env(env))
    assert np.array_equal(other.step(0)[0]["film"], env.step(0)[0]["film"])


class Reel(Film):
    """Of 10 steps; the fifth one is a cut for the learner, rewards are 1, 2, 3, …"""

    def step(self, action: Any) -> tuple:
        seen, _, _, _, _ = super().step(action)
        return seen, np.int8(self.t), self.t == 10, False, {EPISODE_CUT: True} if self.t == 5 else {}


def test_an_action_lasts_some_frames_but_not_beyond_an_end():
    env = ImageWrapper(Reel(), ImageOptions(skip=4, stack=2), "reel")
    env.reset(seed=0)
    found = [env.step(0) for _ in range(4)]
    assert [one[1] for one in found] == [1 + 2 + 3 + 4, 5, 6 + 7 + 8 + 9, 10]
    assert [int(one[0]["film"][-1, 0, 0]) for one in found] == [4, 5, 9, 10], "the last of them is seen"
    assert [int(one[0]["film"][0, 0, 0]) for one in found] == [0, 4, 5, 9], "the stack has what was seen before"
    assert [one[2] for one in found] == [False, False, False, True]
    assert EPISODE_CUT in found[1][4]
    spec = Envs(Reel, 1, images=ImageOptions(skip=4), inline=True).spec
    assert (spec.frames_per_step, spec.images) == (4, ("film",))
    assert Envs(gymnasium_cart, 1, images=ImageOptions(skip=2), inline=True).spec.describe["time limit"] == "250 steps"


def gymnasium_cart() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


class Masked(Film):
    def reset(self, **how: Any) -> tuple[Any, dict]:
        return super().reset(**how)[0], {"action_mask": np.ones(2, np.int8)}


class MaskedByMethod(Film):
    def action_masks(self) -> np.ndarray:
        return np.ones(2, bool)


@pytest.mark.parametrize("make", [Masked, MaskedByMethod])
def test_actions_with_masks_last_one_step(make):
    with pytest.raises(UserError, match=r"--frame-skip: given, but .* has action masks") as e:
        _ = Envs(make, 1, images=ImageOptions(skip=2), inline=True).spec
    assert "\n" not in str(e.value)


def test_vector_environments_take_no_frame_skip():
    with pytest.raises(UserError, match=r"--frame-skip: given, but .* is a vector environment; leave it out"):
        _ = Envs(make_next, 2, images=ImageOptions(skip=2), inline=True).spec


@pytest.mark.parametrize(
    ("id_", "skip", "frames"), [("ALE/Pong-v5", 2, 2), ("Pong-v4", 4, 4), ("PongDeterministic-v4", 1, 1)]
)
def test_of_atari_games_it_is_their_own(id_, skip, frames):
    assert Envs(id_, 1, images=ImageOptions(skip=skip)).spec.frames_per_step == frames


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (ImageOptions(("flim",)), r"--images: flim given, did you mean 'film'\?; allowed for env: none, or some of"),
        (ImageOptions(("at",)), "--images: at given, which is Box"),
        (ImageOptions(("cube",)), r"--images: cube given, \[9, 9, 9\]: planes can't be told from columns; wrap"),
        (ImageOptions(("pair",), gray=True), "--gray: the image pair of env has 2 planes, allowed: 3"),
        (ImageOptions(("film",), size=(31, 40)), "--size: 31x40 given, larger than the image film of env of 30x40"),
        (ImageOptions(("film",), stack=30), "--stack: 30 given, the image film of env then has 90 planes; at most 64"),
        (ImageOptions(("tall",), stack=13), r"--stack: 13 given, the image tall of env then is \[39, 50, 30\], whose"),
        (ImageOptions((), stack=2), r"--stack: env shows no image, but at: Box.*; name one by --images LEAF"),
    ],
)
def test_mistakes_name_the_part_its_shape_and_the_fix(options, says):
    shapes = {"cube": (9, 9, 9), "pair": (9, 9, 2), "tall": (50, 30, 3)}
    others = {name: spaces.Box(0, 255, shape, np.uint8) for name, shape in shapes.items()}
    space = spaces.Dict({"film": PIXELS, "at": NUMBERS, **others})
    with pytest.raises(UserError, match=says) as e:
        ImageView(space, options, "env")
    assert "\n" not in str(e.value)


def test_an_image_too_small_for_the_network_is_named():
    tiny = spaces.Box(0, 255, (5, 5, 1), np.uint8)
    env = type("Tiny", (Film,), {"observation_space": tiny, "see": lambda self: np.zeros((5, 5, 1), np.uint8)})
    spec = Envs(env, 1, images=ImageOptions(("obs",)), inline=True).spec
    with pytest.raises(UserError, match=r"the image obs \[1, 5, 5\] is smaller than 7×7: leave it out of --images"):
        NetworkFactory("auto", spec, {"init": "auto"})()


@pytest.mark.parametrize(("env", "options"), [("toy:catch", {"stack": 2}), ("game:connect_four", {"gray": True})])
def test_what_has_no_images_to_change_says_so(env, options):
    with pytest.raises(UserError, match="has no images to change: leave it out"):
        _ = Envs(env, 2, images=ImageOptions(**options)).spec


@pytest.mark.parametrize("size", ["", "x", "84x", "0", "84x84x3", "-1", "a"])
def test_sizes_are_one_or_two_numbers(size):
    with pytest.raises(UserError, match=r"--size: .* given, allowed: pixels of a side, or of both"):
        read_image_options("auto", None, False, size)


def test_options_of_a_command_line():
    assert read_image_options("auto", None, False, None) is None
    assert read_image_options("none", None, False, None) == ImageOptions(())
    assert read_image_options("a, b/0", 4, True, "96x128") == ImageOptions(("a", "b/0"), 4, True, (96, 128))
    assert read_image_options("auto", None, False, "84") == ImageOptions(size=(84, 84))


def test_atari_games_have_the_same_options_for_these():
    pytest.importorskip("ale_py")
    envs = Envs("BreakoutNoFrameskip-v4", 2, images=ImageOptions((), 2, True, (64, 48)), options={"noop_max": 0})
    assert (envs.spec.obs.shape, envs.spec.image_leaves) == ((2, 64, 48), [])
    opened = envs.open(0)
    assert opened.recv()[1]["obs"].shape == (2, 2, 64, 48)
    opened.close()


@pytest.mark.long
def test_a_run_its_evaluation_and_the_agent_alone_see_the_same(tmp_path):
    how = {"env": Film, "stack": 3, "gray": True, "size": "15x20", "serial": True, "lanes": 2, "unroll": 8}
    run = polyplay.train("ppo", steps=64, run=tmp_path / "run", replicas=1, tensorboard=False, **how)
    assert polyplay.resume(run.directory, steps=96).summary["steps"] >= 96
    agent, env, state = polyplay.load(run.directory), Film(), None
    assert agent.observation_space["film"] == PIXELS
    obs, _ = env.reset()
    for t in range(3):
        _, state = agent.act(obs, state)
        assert state.frames[0]["film"][:, 0, 0].tolist() == [max(t - 2, 0), max(t - 1, 0), t]
        obs = env.step(0)[0]
    assert len(agent.evaluate(episodes=1)["returns"]) == 1
