"""Each paper's frames, pinned; and what a preset may say."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.atari import PRESETS, Atari, atari_preset

FRAMES = {  # sha256 of what two lanes of Breakout show in 60 steps of fixed actions
    "dqn2015": "10ce41715bdf5d1d",
    "dqn_zoo": "94b8254ea25f6b38",
    "a3c": "0221251d244812c3",
    "ga3c": "cb08142667fda52e",
    "baselines": "1dd965717b0d88a8",
    "wrap_deepmind": "081211317af4ee12",
    "accel": "8f3f24837f40d4f9",
    "accel_nearest": "0342a1b46c03f91e",
    "rlpyt": "554e9742b31eb688",
    "impala": "b3a99081ca2c52c3",
    "apex": "6bd4b73606c1ef3a",
    "r2d2": "8b3b91fafb568219",
    "dopamine": "21567e345a9e3692",
}
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "atari.md").read_text()
NATIVE = {"baselines", "impala", "apex", "r2d2", "dopamine"}


def fingerprint(name, pipeline="plain", **how):
    pool = Envs("ALE/Breakout-v5", 2, options={**atari_preset(name), "pipeline": pipeline}, **how).open(11)
    actions = np.random.default_rng(3).integers(0, pool.spec.action.n, (60, 2))
    seen = hashlib.sha256()
    try:
        for action in actions:
            lanes, row = pool.recv()
            for key in ("obs", "reward", "terminated", "truncated", "first", "over"):
                seen.update(np.ascontiguousarray(row[key]).tobytes())
            pool.send(lanes, action)
    finally:
        pool.close()
    return seen.hexdigest()[:16]


@pytest.mark.parametrize("name", PRESETS)
def test_the_frames_of_a_preset_are_pinned(name):
    assert fingerprint(name, inline=True, workers=1) == FRAMES[name]


def test_they_do_not_depend_on_threads_or_processes():
    assert fingerprint("accel", workers=2) == FRAMES["accel"]
    assert fingerprint("baselines", "native", workers=2) == fingerprint("baselines", "native", workers=1)


def test_presets_differ():
    assert len(set(FRAMES.values())) == len(FRAMES) == len(PRESETS)


def test_every_preset_says_all_that_concerns_frames():
    fixed = {"frameskip", "sticky", "full_actions", "size", "stack", "maxpool", "max_frames"}
    fixed |= {"noop_max", "fire_reset", "stack_reset", "life_loss"}
    for name, found in PRESETS.items():
        assert fixed <= set(found), name
        assert Atari(**found).native == (name in NATIVE)
        assert f"`{name}`" in PAGE


def test_the_pages_of_systems_play_as_before():
    common = {"sticky": 0.0, "full_actions": False, "noop_max": 30, "fire_reset": True, "life_loss": "terminate"}
    assert Atari(**atari_preset("baselines")) == Atari(**common, stack_reset="zero")
    assert Atari(**atari_preset("impala")) == Atari(**common, stack_reset="repeat")


def test_an_unknown_preset_is_one_line_with_the_nearest():
    with pytest.raises(UserError, match=r"--atari: 'dopamin' given, did you mean 'dopamine'\?; allowed: auto, dqn2015"):
        atari_preset("dopamin")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gray": "green"}, "gray='green' must be one of ale, opencv"),
        ({"resize": "cubic"}, "resize='cubic' must be one of area"),
        ({"pipeline": "fast"}, "one of auto, native, plain"),
        ({"noop_min": 30}, "noop_min=30, noop_max=30: the first must be smaller"),
        ({"crop": -1}, "crop=-1 must be at least 0"),
        ({"pipeline": "native", "crop": 2}, "has no crop=2; use 'plain'"),
        ({"pipeline": "native", "stack_reset": "play"}, "has no stack_reset='play'; use 'plain'"),
    ],
)
def test_what_cannot_be_is_refused(options, says):
    with pytest.raises(UserError, match=says) as e:
        Envs("ALE/Pong-v5", 1, options=options).spec  # noqa: B018
    assert "\n" not in str(e.value)


def test_the_pipeline_is_the_native_one_where_it_can():
    assert Atari().native
    assert not Atari(pipeline="plain").native
    assert not Atari(resize="bilinear").native
    assert Atari(width=60, stack=2, maxpool=False).native


def test_a_run_is_told_what_is_played():
    spec = Envs("ALE/Breakout-v5", 1, options=atari_preset("accel")).spec
    assert spec.describe["observation"] == "uint8 [4, 104, 80] gray, without the last 2 rows, bilinear"
    assert spec.describe["no-ops"] == "0–30 frames, in 'NOOP FIRE UP noops'"
    assert (
        spec.describe["life loss"] == "terminates for the learner, the game goes on with NOOP FIRE UP and a new stack"
    )
    assert spec.describe["pipeline"] == "ale-py's plain emulator"
    assert (
        Envs("ALE/Pong-v5", 1, options=atari_preset("ga3c")).spec.describe["stack"]
        == "4, filled by steps of NOOP after a reset"
    )
