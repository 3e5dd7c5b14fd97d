"""ale-py's traps, each shown on a real game."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import ale_py
import numpy as np
import pytest

from polyplay.core.errors import Closed, EnvFailure, UserError
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs
from polyplay.envs.atari import (
    PRESETS,
    PROTOCOLS,
    Atari,
    apply,
    atari_preset,
    game,
    is_game,
    label,
    load_starts,
    native_games,
    protocol,
    read_options,
    rom,
    spelled,
    written,
)
from polyplay.envs.atari_emulator import AtariEnv
from polyplay.evaluation.evaluate import EvaluateOptions
from polyplay.evaluation.scores import BASELINES

QUICK = {"noop_max": 0}


@pytest.fixture
def pools():
    opened: list = []

    def open_pool(game="ALE/Pong-v5", lanes=2, seed=0, lane=0, options=QUICK, **kw):
        kw.setdefault("workers", 1)
        opened.append(Envs(game, lanes, options=options, **kw).open(seed, lane))
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()


def test_spec_tells_everything():
    spec = Envs("ALE/Breakout-v5", 2, options={"life_loss": "terminate", "sticky": 0.25}).spec
    assert spec.obs == Field((4, 84, 84), "uint8")
    assert spec.action == Discrete(4)
    assert spec.frames_per_step == 4
    assert spec.describe == {
        "game": "breakout",
        "id": "ALE/Breakout-v5 names the game, --atari says how it is played (v5: as Gymnasium registers it)",
        "frameskip": "4, maximum of the last two frames",
        "sticky": "0.25",
        "actions": "4 (minimal): NOOP FIRE RIGHT LEFT",
        "stack": "4, zeros after a reset",
        "no-ops": "0–29 frames with FIRE first",
        "life loss": "terminates for the learner, the game continues",
        "observation": "uint8 [4, 84, 84] gray",
        "max frames": "108000",
        "pipeline": "ale-py's vector environment, or plain emulators where one thread steps them",
    }
    spec = Envs("ALE/Breakout", 2, options={"full_actions": True, "frameskip": 2, "stack": 2, "size": 42}).spec
    assert (spec.action, spec.obs, spec.frames_per_step) == (Discrete(18), Field((2, 42, 42), "uint8"), 2)
    accel = Envs("ALE/Breakout-v5", 1, options=atari_preset("accel")).spec.describe
    assert accel["observation"] == "uint8 [4, 104, 80] gray, without the last 2 rows, bilinear"
    assert accel["no-ops"] == "0–30 frames, in 'NOOP FIRE UP noops'"
    assert accel["life loss"] == "terminates for the learner, the game continues with NOOP FIRE UP and a new stack"
    assert accel["pipeline"] == "ale-py's plain emulator"


def test_an_id_names_only_the_game():
    assert len(native_games()) > 100
    for title, name in native_games().items():
        assert rom(f"ALE/{title}-v5") == rom(f"ALE/{title}") == name
    assert rom("ALE/MsPacman-v5") == "ms_pacman"
    with pytest.raises(UserError, match=r"unknown Atari game 'ALE/Pnog-v5', did you mean 'ALE/Pong-v5'\?"):
        Envs("ALE/Pnog-v5", 1).spec  # noqa: B018
    with pytest.raises(UserError, match="no single-player mode"):
        rom("ALE/Combat-v5")


@pytest.mark.parametrize(
    ("name", "frames", "sticky", "maximum", "mean"),
    [
        ("PongNoFrameskip-v4", (0, 4), 0.0, True, 4),
        ("PongNoFrameskip-v0", (0, 4), 0.25, True, 4),
        ("PongDeterministic-v4", (0, 4), 0.0, False, 4),
        ("SpaceInvadersDeterministic-v0", (0, 3), 0.25, False, 3),
        ("Pong-v4", (2, 4), 0.0, False, 3),
        ("ale_py:Pong-v0", (2, 4), 0.25, False, 3),
        ("MsPacmanNoFrameskip", (0, 4), 0.0, True, 4),
    ],
)
def test_ids_of_old_mean_what_they_meant(name, frames, sticky, maximum, mean):
    o, spec = read_options(name, {}), Envs(name, 1).spec
    assert is_game(name, {})
    assert (o.frameskip_min, o.frameskip) == frames
    assert o.sticky == sticky
    assert o.maxpool is maximum
    assert not o.full_actions
    assert o.native is (o.frameskip_min == 0)
    assert spec.frames_per_step == mean
    assert spec.describe["game"] == rom(name)
    assert name in spec.describe["id"]


def test_ids_of_old_are_theirs_alone(monkeypatch):
    for name in (
        "CartPole-v1",
        "Blackjack",
        "Blackjack-v0",
        "my_games:Pong-v4",
        "Pong-ram-v4",
        "Warlords-v4",
        "NoFrameskip-v4",
    ):
        assert not is_game(name, {})
    assert not is_game("Pong-v4", {"obs_type": "ram"})
    assert not is_game(print, {})
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert is_game("PongNoFrameskip-v4", {})
    assert not is_game("Pong-v4", {})


def test_frames_are_drawn_for_every_step_and_counted():
    env = AtariEnv("Pong-v4", {"max_frames": 60, "noop_max": 0, "fire_reset": False})
    env.reset(seed=3)
    counts, late = [0], False
    while not late:
        late = env.step(0)[3]
        counts.append(env._ale.getEpisodeFrameNumber())
    assert set(np.diff(counts)) == {2, 3, 4}
    assert 60 <= counts[-1] < 64


def test_a_missing_ale_py_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UserError, match=r"pip install .*\[atari\]"):
        Envs("ALE/Pong-v5", 1).open(0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stiky": 0.1}, "unknown option 'stiky', did you mean 'sticky'"),
        ({"sticky": 2.0}, "between 0 and 1"),
        ({"frameskip": 0}, "at least 1"),
        ({"frameskip": "4"}, "of type int"),
        ({"stack_reset": "one"}, "one of zero, repeat, play"),
        ({"life_loss": "cut"}, "one of ignore, terminate"),
        ({"gray": "green"}, "gray='green' must be one of ale, opencv"),
        ({"noop_min": 30}, "noop_min=30, noop_max=30: the first must be smaller"),
        ({"crop": -1}, "crop=-1 must be at least 0"),
        ({"starts": "x", "sticky": 0.25}, "start states need sticky=0"),
        ({"pipeline": "native", "crop": 2}, "has no crop=2; use 'plain'"),
        ({"pipeline": "native", "stack_reset": "play"}, "has no stack_reset='play'; use 'plain'"),
    ],
)
def test_wrong_options(options, says):
    with pytest.raises(UserError, match=says) as e:
        Envs("ALE/Pong-v5", 1, options=options).spec  # noqa: B018
    assert "\n" not in str(e.value)


def test_frames_round_up_to_whole_steps():
    env = AtariEnv("ALE/Pong-v5", {**QUICK, "max_frames": 10})
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_lanes_follow_from_seed_and_number_whatever_pool_groups_and_threads_play_them(pools):
    def played(lanes, lane, **how):
        pool = pools("ALE/Breakout-v5", lanes, 1, lane, {"sticky": 0.25}, **how)
        rows = []
        for t in range(5 * pool.groups):
            given, row = pool.recv()
            rows.append(row["obs"].copy())
            pool.send(given, np.full(lanes // pool.groups, t // pool.groups % 4))
        return np.array(rows).reshape(5, lanes, *rows[0].shape[1:])

    whole = played(2, 0, workers=2)
    assert (whole == played(2, 0, groups=2)).all()
    assert (whole[:, 1:] == played(1, 1)).all()
    assert (whole[:, 0] != whole[:, 1]).any(), "lanes differ"


def test_an_action_out_of_range_is_refused_before_it_hangs_ale_and_closed_pools_say_so(pools):
    pool = pools()
    lanes, _ = pool.recv()
    for bad in (np.array([0, 6]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="0…5"):
            pool.send(lanes, bad)
    pool.send(lanes, np.array([0, 5]))
    pool.recv()
    pool.close()
    pool.close()
    with pytest.raises(Closed):
        pool.recv()
    with pytest.raises(UserError, match=r"steps all its lanes at once, without at_once=2; use 'plain'"):
        pools(at_once=2)
    assert (pool.state(), pool.restarts, pool.faults) == (None, 0, [])
    with pytest.raises(ValueError, match="has no state to load: only the plain pipeline saves games"):
        pool.load({})


# Each paper's frames, pinned; and what a preset may say.


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
    "v5": "cd55dd0e63419dae",
}
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "atari.md").read_text()
NATIVE = {"baselines", "impala", "apex", "r2d2", "dopamine", "v5"}


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


def test_every_preset_says_all_that_concerns_frames():
    fixed = {"frameskip", "sticky", "full_actions", "size", "stack", "maxpool", "max_frames"}
    fixed |= {"noop_max", "fire_reset", "stack_reset", "life_loss"}
    for name, found in PRESETS.items():
        assert fixed <= set(found), name
        assert Atari(**found).native == (name in NATIVE)
        assert f"`{name}`" in PAGE


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


PONG = Envs("ALE/Pong-v5", 4, options=atari_preset("accel"))


def test_human_starts_take_a_file(tmp_path):
    path = file(tmp_path, START)
    envs, found = apply(protocol("human-starts"), PONG, path)
    assert envs.options["starts"] == path
    assert found is not None
    assert (found.game, envs.options["max_frames"], envs.options["noop_max"]) == ("pong", 108_000, 0)
    assert label(protocol("human-starts"), found) == "human-starts"
    _, substitute = apply(protocol("human-starts"), PONG, file(tmp_path, START, kind="substitute"))
    assert label(protocol("human-starts"), substitute) == "human-starts (substitute)"


def test_mistakes_are_said_in_one_line(tmp_path):
    late = file(tmp_path, {"actions": ["NOOP*108000"]})
    wrong = [
        (r"--atari: 'dopamin' given, did you mean 'dopamine'\?; allowed: auto, dqn2015", atari_preset, "dopamin"),
        (r"--protocol: 'nul-op' given, did you mean 'null-op'\?; allowed: run, null-op", protocol, "nul-op"),
        (
            r"needs --starts FILE, start states of pong.*never released, `polyplay evaluate RUN --save-starts",
            apply,
            "human-starts",
            PONG,
        ),
        (
            "null-op is for Atari games, this run plays toy:catch; allowed here: run",
            apply,
            "null-op",
            Envs("toy:catch", 1),
        ),
        ("--starts x is for --protocol human-starts, sticky given", apply, "sticky", PONG, "x"),
        ("start 0: more than 107999 frames were played before it", apply, "human-starts", PONG, late),
    ]
    for says, do, name, *more in wrong:
        with pytest.raises(UserError, match=says):
            do(protocol(name) if do is apply else name, *more)


def test_the_command_line_and_the_baselines_know_every_protocol():
    hint = get_type_hints(EvaluateOptions)["protocol"]
    assert list(get_args(hint)) == list(PROTOCOLS)
    assert {b for p in PROTOCOLS.values() for b in p.baselines} == set(BASELINES)
    assert game(PONG) == "pong"
    assert game(Envs("toy:catch", 1)) is None


# Start states: what a file may say, and that games begin exactly there.


START = {"actions": ["NOOP*60", "FIRE", "RIGHT*40"]}
PLAIN = {"noop_max": 0, "fire_reset": False, "max_frames": 4000}


def file(tmp_path, *starts, **head):
    path = tmp_path / "starts.json"
    said = {"format": "polyplay-starts", "version": 1, "game": "pong", "kind": "human", "source": "a test", **head}
    path.write_text(json.dumps({**said, "starts": list(starts)}))
    return str(path)


def played(seed):
    """Pong after START, played by ALE alone."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(str(ale_py.roms.get_rom_path("pong")))
    ale.reset_game()
    for button in [ale_py.Action.NOOP] * 60 + [ale_py.Action.FIRE] + [ale_py.Action.RIGHT] * 40:
        ale.act(button)
    return ale


@pytest.mark.parametrize("saved", [False, True])
def test_a_game_begins_where_the_presses_or_a_saved_state_lead(tmp_path, saved):
    ale = played(3)
    start = {**START, "seed": 3}
    if saved:
        state = base64.b64encode(ale.cloneState(include_rng=True).serialize()).decode()
        start = {"state": state, "frames": 101}
        ale.act(ale_py.Action.NOOP)
    start["ram"] = hashlib.sha256(ale.getRAM().tobytes()).hexdigest()
    env = AtariEnv("ALE/Pong-v5", {**PLAIN, "starts": file(tmp_path, start)})
    obs, _ = env.reset(seed=11)
    assert (env._ale.getRAM() == ale.getRAM()).all()
    assert (obs[:3] == 0).all()  # a new stack
    assert obs[3].any()
    for action in (2, 3, 0, 5):
        env.step(action)
        for _ in range(4):
            ale.act(ale.getMinimalActionSet()[action])
    assert (env._ale.getRAM() == ale.getRAM()).all()


def test_frames_before_the_start_count_and_rewards_before_it_do_not(tmp_path):
    path = file(tmp_path, {"actions": ["NOOP*1000"]})
    env = AtariEnv("ALE/Pong-v5", {**PLAIN, "max_frames": 1021, "starts": path})
    env.reset()
    rows = [env.step(0)[1:4] for _ in range(6)]  # 21 frames were left, four to a step
    assert [late for _, _, late in rows] == [False] * 5 + [True]
    assert sum(reward for reward, _, _ in rows) >= -1  # a game of 1000 no-ops has lost points


def test_lanes_take_every_start_once_in_turn(tmp_path):
    """Also one that goes on from a saved state."""
    path = file(tmp_path, *({"actions": [f"NOOP*{4 * i}"]} for i in range(5)))
    options = {**PLAIN, "max_frames": 24, "starts": path, "stride": 2}
    lengths = []
    for lane in (0, 1):
        env, other = (AtariEnv("ALE/Pong-v5", options) for _ in range(2))
        for one in (env, other):
            one.polyplay_lane(lane)
            one.reset()
        for _ in range(3):
            length = 1
            while not env.step(0)[3]:
                length += 1
            lengths.append(length)
            other.set_state(env.get_state())
            assert (env.reset()[0] == other.reset()[0]).all()
    assert lengths == [6, 4, 2, 5, 3, 6]  # starts 0, 2, 4; 1, 3, and 0 again


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({**START, "ram": "00"}, "start 0: its RAM has the digest"),
        ({"state": base64.b64encode(b"nothing").decode(), "frames": 5}, "start 0: not a state of ALE"),
        ({"actions": ["NOOP*4100"]}, "start 0: the game is over at this state"),
        ({"actions": ["NOOP*300"]}, "start 0: 300 frames were played before it, the longest game has 300"),
    ],
)
def test_a_start_that_leads_elsewhere_ends_it_by_name(tmp_path, start, says):
    options = {**PLAIN, "max_frames": 300, "starts": file(tmp_path, start)}
    with pytest.raises((UserError, EnvFailure), match=says):
        Envs("ALE/Pong-v5", 1, options=options, inline=True, max_restarts=0).open(0).recv()


WRONG = [{}, 3, {**START, "state": ""}, {**START, "seed": -1}, {**START, "seed": []}, {"actions": 3}, {"state": "AA=="}]
WRONG += [{"state": "A", "frames": 3}]


@pytest.mark.parametrize(
    ("starts", "head", "says"),
    [
        ([], {}, '"starts" must be a list of at least one start'),
        ([START], {"format": "x"}, 'must be an object with "format": "polyplay-starts"'),
        *(
            ([START], wrong, r'"game", "kind" \(human or substitute\) and')
            for wrong in ({"kind": "robot"}, {"game": ""})
        ),
        ([START], {"game": "breakout"}, "has start states of breakout, the run plays pong"),
        *(([START, wrong], {}, "start 1: given .*, must be {") for wrong in WRONG),
        ([{"actions": ["JUMP"]}], {}, "start 0: 'JUMP' must be one of ALE's buttons"),
    ],
)
def test_a_wrong_file_is_said_in_one_line(tmp_path, starts, head, says):
    with pytest.raises(UserError, match=says) as told:
        load_starts(file(tmp_path, *starts, **head), "pong")
    assert str(told.value).startswith("--starts: ")
    assert "\n" not in str(told.value)
    (tmp_path / "x").write_text("{")
    for path, says in (
        (tmp_path / "none", "cannot read .*; give a file of start states"),
        (tmp_path / "x", "is not JSON"),
    ):
        with pytest.raises(UserError, match=says):
            load_starts(str(path))


def test_what_is_written_is_read_again(tmp_path):
    words = spelled(["NOOP", "NOOP", "FIRE", "NOOP"])
    assert words == ["NOOP*2", "FIRE", "NOOP"]
    path = tmp_path / "x.json"
    path.write_bytes(written("pong", "substitute", "a test", [{"actions": words, "seed": 4}, {"actions": []}]))
    found = load_starts(str(path), "pong")
    assert (found.kind, found.source, len(found.starts)) == ("substitute", "a test", 2)
    assert (found.starts[0].presses, found.starts[0].frames, found.starts[0].seed) == (((0, 2), (1, 1), (0, 1)), 4, 4)
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()
