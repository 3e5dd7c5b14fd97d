"""Start states: what a file may say, and that games begin exactly there."""

from __future__ import annotations

import base64
import hashlib
import json

import ale_py
import numpy as np
import pytest

from polyplay.core.errors import EnvFailure, UserError
from polyplay.envs import Envs
from polyplay.envs.atari import load_starts, spelled, written
from polyplay.envs.atari_emulator import AtariEnv

START = {"actions": ["NOOP*60", "FIRE", "RIGHT*40"]}
PLAIN = {"noop_max": 0, "fire_reset": False, "max_frames": 4000}


def file(tmp_path, *starts, **head):
    path = tmp_path / "starts.json"
    said = {"format": "polyplay-starts", "version": 1, "game": "pong", "kind": "human", "source": "a test", **head}
    path.write_text(json.dumps({**said, "starts": list(starts)}))
    return str(path)


def emulator(seed=0):
    """Pong after its reset, played by ALE alone."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(str(ale_py.roms.get_rom_path("pong")))
    ale.reset_game()
    return ale


def played(seed=0):
    ale = emulator(seed)
    for button, frames in (("NOOP", 60), ("FIRE", 1), ("RIGHT", 40)):
        for _ in range(frames):
            ale.act(ale_py.Action.__members__[button].value)
    return ale


def digest(ale):
    return hashlib.sha256(ale.getRAM().tobytes()).hexdigest()


def test_a_game_begins_where_the_presses_lead(tmp_path):
    path = file(tmp_path, {**START, "seed": 3, "ram": digest(played(3))})
    env = AtariEnv("ALE/Pong-v5", {**PLAIN, "starts": path})
    obs, _ = env.reset(seed=11)
    ale = played(3)
    assert (env._ale.getRAM() == ale.getRAM()).all()
    assert (obs[:3] == 0).all()  # a new stack
    assert obs[3].any()
    for action in (2, 3, 0, 5):
        env.step(action)
        for _ in range(4):
            ale.act(ale.getMinimalActionSet()[action])
    assert (env._ale.getRAM() == ale.getRAM()).all()


def test_a_saved_state_begins_the_same_game(tmp_path):
    ale = played()
    state = base64.b64encode(ale.cloneState(include_rng=True).serialize()).decode()
    ale.act(ale_py.Action.NOOP)
    path = file(tmp_path, {"state": state, "frames": 101, "ram": digest(ale)})
    env = AtariEnv("ALE/Pong-v5", {**PLAIN, "starts": path})
    env.reset()
    assert (env._ale.getRAM() == ale.getRAM()).all()


def test_frames_before_the_start_count_and_rewards_before_it_do_not(tmp_path):
    path = file(tmp_path, {"actions": ["NOOP*1000"]})
    pool = Envs("ALE/Pong-v5", 1, options={**PLAIN, "max_frames": 1021, "starts": path}, inline=True).open(0)
    rewards, steps = [], -1
    while True:
        lanes, row = pool.recv()
        rewards.append(float(row["reward"][0]))
        steps += 1
        if row["over"][0]:
            break
        pool.send(lanes, np.zeros(1, np.int64))
    pool.close()
    assert steps == 6  # 21 frames were left, four to a step
    assert rewards[0] == 0.0  # a game of 1000 no-ops has lost points
    assert sum(rewards) >= -1


def test_lanes_take_every_start_once_in_turn(tmp_path):
    path = file(tmp_path, *({"actions": [f"NOOP*{100 + 4 * i}"]} for i in range(5)))
    options = {**PLAIN, "max_frames": 124, "starts": path, "stride": 2}
    pool = Envs("ALE/Pong-v5", 2, options=options, inline=True).open(0)
    lengths, now = ([], []), [0, 0]
    while min(map(len, lengths)) < 3:
        lanes, row = pool.recv()
        for i in (0, 1):
            now[i] += not row["first"][i]
            if row["over"][i]:
                lengths[i].append(now[i])
                now[i] = 0
        pool.send(lanes, np.zeros(2, np.int64))
    pool.close()
    assert lengths[0][:3] == [6, 4, 2]  # starts 0, 2, 4
    assert lengths[1][:3] == [5, 3, 6]  # starts 1, 3, and 0 again


def test_an_environment_with_start_states_can_be_saved(tmp_path):
    path = file(tmp_path, START, {"actions": ["NOOP*200"]})
    a, b = (AtariEnv("ALE/Pong-v5", {**PLAIN, "starts": path}) for _ in range(2))
    a.reset(seed=0)
    b.reset(seed=0)
    b.set_state(a.get_state())
    assert (a.reset()[0] == b.reset()[0]).all()  # both begin the second
    assert int(a.get_state()["games"]) == 2


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({**START, "ram": "00"}, "start 0: its RAM has the digest"),
        ({"state": base64.b64encode(b"nothing").decode(), "frames": 5}, "start 0: no state of ALE's"),
        ({"actions": ["NOOP*4100"]}, "start 0: the game is over there"),
        ({"actions": ["NOOP*300"]}, "start 0: 300 frames were played there, the longest game has 300"),
    ],
)
def test_a_start_that_leads_elsewhere_ends_it_by_name(tmp_path, start, says):
    options = {**PLAIN, "max_frames": 300, "starts": file(tmp_path, start)}
    with pytest.raises((UserError, EnvFailure), match=says):
        Envs("ALE/Pong-v5", 1, options=options, inline=True, max_restarts=0).open(0).recv()


@pytest.mark.parametrize(
    ("starts", "head", "says"),
    [
        ([], {}, '"starts" must be a list of at least one start'),
        ([START], {"format": "x"}, 'must be an object with "format": "polyplay-starts"'),
        ([START], {"version": 2}, '"version": 1'),
        ([START], {"kind": "robot"}, "\"kind\" is 'robot', allowed: human, substitute"),
        ([START], {"game": ""}, "\"game\" is '', it must be text"),
        ([START], {"game": "breakout"}, "has start states of breakout, the run plays pong"),
        ([{}], {}, 'start 0: has to be an object with either "actions" or "state"'),
        ([START, {**START, "state": ""}], {}, 'start 1: has to be an object with either "actions" or "state"'),
        ([{**START, "seed": -1}], {}, 'start 0: "seed" must be a whole number'),
        ([{"actions": "NOOP"}], {}, 'start 0: "actions" must be a list of words'),
        ([{"actions": ["JUMP"]}], {}, "start 0: 'JUMP' is no button of ALE's"),
        ([{"actions": ["NOOP*x"]}], {}, "start 0: 'NOOP\\*x' is no button of ALE's"),
        ([{"state": "AA=="}], {}, 'start 0: a "state" needs "frames"'),
        ([{"state": "A", "frames": 3}], {}, 'start 0: "state" is no base64'),
    ],
)
def test_a_wrong_file_is_said_in_one_line(tmp_path, starts, head, says):
    with pytest.raises(UserError, match=says) as told:
        load_starts(file(tmp_path, *starts, **head), "pong")
    assert str(told.value).startswith("--starts: ")
    assert "\n" not in str(told.value)


def test_what_is_no_file_or_no_json_is_said(tmp_path):
    with pytest.raises(UserError, match=r"--starts: cannot read .*; give a file of start states"):
        load_starts(str(tmp_path / "none"))
    (tmp_path / "x").write_text("{")
    with pytest.raises(UserError, match="is no JSON"):
        load_starts(str(tmp_path / "x"))


def test_what_is_written_is_read_again(tmp_path):
    words = spelled(["NOOP", "NOOP", "FIRE", "NOOP"])
    assert words == ["NOOP*2", "FIRE", "NOOP"]
    path = tmp_path / "x.json"
    path.write_bytes(written("pong", "substitute", "a test", [{"actions": words, "seed": 4}, {"actions": []}]))
    found = load_starts(str(path), "pong")
    assert (found.kind, found.source, len(found.starts)) == ("substitute", "a test", 2)
    assert (found.starts[0].presses, found.starts[0].frames, found.starts[0].seed) == (((0, 2), (1, 1), (0, 1)), 4, 4)
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_start_states_and_sticky_actions_exclude_each_other():
    with pytest.raises(UserError, match=r"start states need sticky=0"):
        AtariEnv("ALE/Pong-v5", {"starts": "x", "sticky": 0.25})
