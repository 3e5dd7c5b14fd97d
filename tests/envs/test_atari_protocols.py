from __future__ import annotations

import json
from typing import get_args, get_type_hints

import pytest

from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.atari import PRESETS, PROTOCOLS, Atari, apply, atari_preset, game, label, protocol
from polyplay.evaluation.evaluate import EvaluateOptions
from polyplay.evaluation.scores import BASELINES

PONG = Envs("ALE/Pong-v5", 4, options=atari_preset("accel"))


def starts(tmp_path, kind="human", frames=100):
    path = tmp_path / "starts.json"
    said = {"format": "polyplay-starts", "version": 1, "game": "pong", "kind": kind, "source": "a test"}
    path.write_text(json.dumps({**said, "starts": [{"actions": [f"NOOP*{frames}"]}]}))
    return str(path)


@pytest.mark.parametrize(
    ("name", "noops", "frames", "sticky", "episodes"),
    [
        ("null-op", (0, 31), 18_000, 0.0, 30),
        ("null-op-30min", (0, 31), 108_000, 0.0, 100),
        ("null-op-1-30", (1, 31), 108_000, 0.0, 100),
        ("sticky", (0, 0), 108_000, 0.25, 100),
    ],
)
@pytest.mark.parametrize("trained", PRESETS)
def test_a_protocol_fixes_starts_and_ends_and_leaves_the_picture(name, noops, frames, sticky, episodes, trained):
    own = atari_preset(trained)
    envs, none = apply(protocol(name), Envs("ALE/Pong-v5", 4, options=own), None)
    before, o = Atari(**own), Atari(**envs.options)
    assert none is None
    assert (o.noop_min, o.noop_max, o.max_frames, o.sticky) == (*noops, frames, sticky)
    assert (o.start, o.life_start, o.life_loss, o.fire_reset) == ("noops", "", "ignore", False)
    for kept in ("frameskip", "full_actions", "size", "width", "stack", "gray", "resize", "crop", "maxpool"):
        assert getattr(o, kept) == getattr(before, kept), kept
    assert protocol(name).episodes == episodes


def test_the_runs_own_protocol_changes_nothing():
    assert apply(protocol("run"), PONG, None) == (PONG, None)


def test_human_starts_take_a_file(tmp_path):
    path = starts(tmp_path)
    envs, found = apply(protocol("human-starts"), PONG, path)
    assert envs.options["starts"] == path
    assert found is not None
    assert (found.game, envs.options["max_frames"], envs.options["noop_max"]) == ("pong", 108_000, 0)
    assert label(protocol("human-starts"), found) == "human-starts"
    _, substitute = apply(protocol("human-starts"), PONG, starts(tmp_path, "substitute"))
    assert label(protocol("human-starts"), substitute) == "human-starts (substitute)"


def test_human_starts_without_a_file_say_what_to_supply():
    with pytest.raises(UserError) as told:
        apply(protocol("human-starts"), PONG, None)
    text = str(told.value)
    assert "\n" not in text
    for part in ("needs --starts FILE", "start states of pong", "never released", "`polyplay starts RUN`"):
        assert part in text


def test_mistakes_are_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"--protocol: 'nul-op' given, did you mean 'null-op'\?; allowed: run, null-op"):
        protocol("nul-op")
    with pytest.raises(UserError, match="null-op is for Atari games, this run plays toy:catch; allowed here: run"):
        apply(protocol("null-op"), Envs("toy:catch", 1), None)
    with pytest.raises(UserError, match="--starts x is for --protocol human-starts, sticky given"):
        apply(protocol("sticky"), PONG, "x")
    with pytest.raises(UserError, match="start 0: more than 107999 frames were played before it"):
        apply(protocol("human-starts"), PONG, starts(tmp_path, frames=108_000))


def test_the_command_line_and_the_baselines_know_every_protocol():
    hint = get_type_hints(EvaluateOptions)["protocol"]
    assert list(get_args(hint)) == list(PROTOCOLS)
    assert {b for p in PROTOCOLS.values() for b in p.baselines} == set(BASELINES)
    assert game(PONG) == "pong"
    assert game(Envs("toy:catch", 1)) is None
