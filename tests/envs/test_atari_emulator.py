"""The plain emulator plays by the rules of ale-py's vector environment, does all that it cannot, and can be saved."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.envs import Envs, atari_emulator, vector_pool
from polyplay.envs import atari_emulator as pixels
from polyplay.envs.atari import PRESETS, Atari, actions_of, atari_preset
from polyplay.envs.atari_emulator import AtariEnv, Painter, script
from polyplay.envs.pool import EPISODE_CUT

SURE = {"noop_max": 1, "sticky": 0.0}  # nothing is drawn: the two pipelines have draws of their own


def rows(game, options, steps, seed=5, **how):
    """What a lane shows under random actions, row by row."""
    pool = Envs(f"ALE/{game}-v5", 1, options=options, **how).open(seed)
    rng = np.random.default_rng(1)
    try:
        for _ in range(steps):
            lanes, row = pool.recv()
            yield {k: v.copy() for k, v in row.items()}
            pool.send(lanes, rng.integers(0, pool.spec.action.n, 1))
    finally:
        pool.close()


TWO_ENDS = {"max_frames": 20, "life_loss": "terminate"}
AGREE = [  # a game, options, steps
    ("Breakout", atari_preset("baselines"), 300),
    ("Breakout", {"max_frames": 102, "life_loss": "terminate", "stack_reset": "repeat"}, 60),
    ("Breakout", {"maxpool": False, "frameskip": 3, "size": 64, "width": 50, "stack": 2}, 60),
    ("Breakout", {"frameskip": 1, "full_actions": True, "fire_reset": False}, 60),
    ("Breakout", {"size": 105, "width": 80, "stack": 1, "stack_reset": "repeat"}, 60),
    ("Backgammon", TWO_ENDS, 9),  # it has no no-op
    ("AirRaid", {}, 9),  # its screen is higher
    ("SpaceInvaders", atari_preset("baselines"), 500),
]


def test_only_a_worker_that_says_so_steps_games_itself():
    """Else the games of a2c would depend on the number of cores. ale-py alone makes images larger than the screen."""
    for alone, options, kind in (
        (True, {}, "EmulatorVector"),
        (False, {}, "AtariVectorEnv"),
        (True, {"size": 168}, "AtariVectorEnv"),
    ):
        pool = Envs("ALE/Pong-v5", 1, workers=1, alone=alone, options=options).open(0)
        assert type(pool._vectors[0]).__name__ == kind
        pool.recv()
        pool.close()


@pytest.mark.parametrize(("game", "options", "steps"), AGREE)
def test_both_pipelines_show_the_same(game, options, steps):
    """In all fields: lost lives, the ends of games, the real last frame of one that is truncated."""
    native = rows(game, {**options, **SURE, "pipeline": "native"}, steps, workers=1)
    plain = rows(game, {**options, **SURE, "pipeline": "plain"}, steps, inline=True)
    here = rows(game, {**options, **SURE}, steps, alone=True)
    ends = firsts = lives = 0
    for t, (a, *others) in enumerate(zip(native, plain, here, strict=True)):
        for b, key in itertools.product(others, a):
            assert a[key].dtype == b[key].dtype
            assert (a[key] == b[key]).all(), f"{key} of row {t}"
        ends, firsts = ends + int(a["over"][0]), firsts + int(a["first"][0])
        lives += int(a["terminated"][0] and not a["over"][0])
    assert firsts in (ends + lives, ends + lives + 1), "each but the last of them is followed by a first row"
    assert lives > 2 or options is not AGREE[0][1]
    assert ends >= (steps > 250 or "max_frames" in options)


# ------------------------------------------------------------------------------------ its own options


def test_a_script_leaves_out_buttons_that_a_game_lacks():
    breakout, freeway = actions_of("breakout", False), actions_of("freeway", False)
    assert script("noops FIRE*4,#2*4", breakout, "x") == [None, (1, 4), (3, 4)]  # RIGHT is its third
    assert script("noops FIRE*4,#2*4", freeway, "x") == [None], "the third goes with FIRE"
    assert script("NOOP FIRE UP noops", breakout, "x") == [(0, 1), (1, 1), None]
    assert script("NOOP FIRE UP noops", freeway, "x") == [(0, 1), (2, 1), None]
    assert script("#2 #9", freeway, "x") == [(5, 1)]
    assert script("", breakout, "x") == []


@pytest.mark.parametrize("word", ["FIER", "fire", "FIRE*x", "#", "#x", "FIRE,,UP", "noops*3"])
def test_other_words_are_refused(word):
    with pytest.raises(UserError, match="start or life_start"):
        script(word, ("NOOP", "FIRE"), "ALE/Pong-v5")


def test_a_size_beyond_the_screen_is_refused():
    with pytest.raises(UserError, match="size=211x84 is larger than the screen of 210x160"):
        AtariEnv("ALE/Pong-v5", {"size": 211, "width": 84})


def frames(env):
    return env._ale.getEpisodeFrameNumber()


def starts(game, **options):
    """Frames before the first row of 24 games."""
    env = AtariEnv(f"ALE/{game}-v5", options)
    env.reset(seed=2)
    return [env.reset() and frames(env) for _ in range(24)]


def test_how_many_no_ops_there_are():
    assert set(starts("Pong", noop_max=4, fire_reset=False)) == {0, 1, 2, 3}
    assert set(starts("Pong", noop_max=4, fire_reset=True)) == {1, 2, 3}, "FIRE is one of them, and always pressed"
    assert set(starts("Pong", noop_max=4, noop_min=2, fire_reset=False)) == {2, 3}
    assert set(starts("Pong", noop_max=0, fire_reset=False)) == {0}
    assert set(starts("Pong", noop_max=3, fire_reset=False, start="NOOP FIRE UP noops")) == {2, 3, 4}
    dqn = starts("Pong", **atari_preset("dqn2015"))
    assert (min(dqn) >= 2, max(dqn) <= 31, max(dqn) - min(dqn) > 15) == (True, True, True)


def lose_a_life(env):
    """Serve and stand still; the row that says so."""
    for _ in range(60):
        obs, _, _, _, info = env.step(1)
        if info.get(EPISODE_CUT):
            return obs
    raise AssertionError("no life was lost")


@pytest.mark.parametrize(("name", "pressed", "empty"), [("accel", 2, 3), ("wrap_deepmind", 12, 3), ("baselines", 4, 0)])
def test_how_a_game_goes_on_after_a_lost_life(name, pressed, empty):
    """accel presses NOOP and FIRE for a frame each, baselines NOOP, FIRE and RIGHT for four; ale-py's way is a NOOP."""
    env = AtariEnv("ALE/Breakout-v5", atari_preset(name))
    env.reset(seed=0)
    before, last = frames(env), lose_a_life(env)
    before = frames(env)
    obs, _, terminated, truncated, info = env.step(3)
    assert frames(env) - before == pressed
    assert (terminated, truncated, info) == (False, False, {})
    assert not obs[:empty].any()
    assert obs[empty:].any((1, 2)).all()
    assert empty or (obs[:3] == last[1:]).all()


# -------------------------------------------------------------------------------------------- its state


def follow(env, actions):
    trace = []
    for action in actions:
        trace.append(env.step(action))
        if trace[-1][2] or trace[-1][3]:
            trace.append((*env.reset(), False))
    return trace


def same_trace(a, b):
    return len(a) == len(b) and all((x[0] == y[0]).all() and x[1:] == y[1:] for x, y in zip(a, b, strict=True))


STICKY = {"sticky": 0.25, "life_loss": "terminate", "max_frames": 400}
STATES = [
    ("Breakout", {**STICKY, **atari_preset("accel")}, 30),
    ("Qbert", STICKY, 11),  # in these two an emulator that has run goes on otherwise than a fresh one
    ("Tetris", {"noop_max": 0, "fire_reset": False}, 0),
]


@pytest.mark.parametrize(("game", "options", "steps"), STATES)
def test_a_restored_environment_goes_on_to_the_bit(game, options, steps):
    """In a fresh one and in one that is somewhere else; through the ends of games, with sticky actions."""
    one, fresh, used = (AtariEnv(f"ALE/{game}-v5", options) for _ in range(3))
    actions = np.random.default_rng(4).integers(0, one.action_space.n, (3, 110))
    one.reset(seed=9)
    follow(one, actions[0][:steps])
    used.reset(seed=77)
    follow(used, actions[1][:50])
    state = one.get_state()
    assert all(isinstance(v, np.ndarray) for v in state.values())
    want = follow(one, actions[2])
    for other in (fresh, used):
        other.set_state(state)
        assert same_trace(follow(other, actions[2]), want)
        after, others = one.get_state(), other.get_state()
        assert all(np.array_equal(after[k], others[k]) for k in after)


def test_sticky_actions_are_ours_and_as_frequent_as_asked():
    env = AtariEnv("ALE/Pong-v5", {"sticky": 0.25})
    env.reset(seed=0)
    kept = 0
    for i in range(1500):
        button = env._moves[i % 6]
        env._act(button)
        kept += env._last != button
        if env._ale.game_over():
            env.reset()
    assert 0.21 < kept / 1500 < 0.29


# ------------------------------------------------------------------------------------------ the picture


def screens(shape: tuple[int, ...]):
    """Screens of which more or less changes from one to the next, down to nothing."""
    rng = np.random.default_rng(1)
    screen = rng.integers(0, 256, shape, dtype=np.uint8)
    for i in range(20):
        for _ in range(i % 4):
            top, left = rng.integers(shape[0]), rng.integers(shape[1])
            screen[top : top + rng.integers(1, 40), left : left + 20] = rng.integers(256)
        yield screen


@pytest.mark.parametrize("height", [210, 250])
@pytest.mark.parametrize("name", PRESETS)
def test_planes_are_those_of_the_whole_screen(name, height):
    o = Atari(**atari_preset(name))
    painter, compiled = (Painter(o, height, 160, "game", how) for how in (None, vector_pool.compiled_resize()))
    assert painter.n == (1 if o.resize == "pillow" else {210: 104 if o.crop else 42, 250: 1}[height])
    for screen in screens(painter.shape):
        picture = screen[: height - o.crop]
        picture = picture if o.gray == "ale" else atari_emulator.GRAYS[o.gray](picture)
        whole = atari_emulator.resizer(o.resize, *picture.shape, *o.shape[1:])(picture)
        np.testing.assert_array_equal(painter(screen), whole)
        np.testing.assert_array_equal(compiled(screen), whole)


# Planes are what OpenCV and Pillow make of the same screens.


OPENCV = {  # of OpenCV 4.10's own pictures: 84x84 of 210x160, 104x80 of 208x160, 70x40 of 210x160
    "area": ("b58c56869ed75d9a", "3783c362385839a2", "03179a48aa73b53b"),
    "bilinear": ("dbae1d49ce57e80e", "3783c362385839a2", "7470458db11e1d6a"),
    "nearest": ("d840d3b4a1bf6e4f", "90edde8e5397cde6", "5b30cd78cc4d28db"),
}


def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()[:16]


@pytest.fixture
def colors():
    return np.random.default_rng(7).integers(0, 256, (210, 160, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", OPENCV)
def test_resampling_as_opencv_does_it(kind, colors):
    gray = pixels.opencv_gray(colors)
    sizes = ((210, 84, 84), (208, 104, 80), (210, 70, 40))
    assert tuple(sha(pixels.resizer(kind, h, 160, *to)(gray[:h])) for h, *to in sizes) == OPENCV[kind]
