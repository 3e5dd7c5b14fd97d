"""ale-py's traps, each shown on a real game."""

from __future__ import annotations

import sys
import time

import ale_py
import numpy as np
import pytest
from ale_py import roms

from polyplay.core.errors import Closed, UserError
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs, Greedy
from polyplay.envs.atari import native_games, rom

QUICK = {"noop_max": 0}


def FIRE(t, pool):
    """Serve and stand still: loses a life of Breakout every 24 steps."""
    return np.full(pool.lanes, 1)


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


def play(pool, steps, seed=0, actions=None):
    """Rows [steps, lanes] of random play, all lanes at once; observations as sums and the last as is."""
    rng = np.random.default_rng(seed)
    n = pool.spec.action.n
    rows: dict[str, list] = {}
    for t in range(steps):
        lanes, row = pool.recv()
        for key in ("reward", "terminated", "truncated", "first", "over"):
            rows.setdefault(key, []).append(row[key].copy())
        rows.setdefault("obs", []).append(row["obs"].copy())
        pool.send(lanes, rng.integers(0, n, pool.lanes) if actions is None else actions(t, pool))
    return {k: np.array(v) for k, v in rows.items()}


def emulator(game, seed=None):
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    if seed is not None:
        ale.setInt("random_seed", seed)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    return ale


def test_spec_tells_everything():
    spec = Envs("ALE/Breakout-v5", 2, options={"life_loss": "terminate", "sticky": 0.25}).spec
    assert spec.obs == Field((4, 84, 84), "uint8")
    assert spec.action == Discrete(4)
    assert spec.frames_per_step == 4
    assert spec.describe == {
        "game": "breakout",
        "frameskip": "4, maximum of the last two frames",
        "sticky": "0.25",
        "actions": "4 (minimal): NOOP FIRE RIGHT LEFT",
        "stack": "4, zeros after a reset",
        "no-ops": "0–29 frames with FIRE first",
        "life loss": "terminates for the learner, the game goes on",
        "observation": "uint8 [4, 84, 84] gray",
        "max frames": "108000",
        "pipeline": "ale-py's vector environment",
    }
    spec = Envs("ALE/Breakout", 2, options={"full_actions": True, "frameskip": 2, "stack": 2, "size": 42}).spec
    assert (spec.action, spec.obs, spec.frames_per_step) == (Discrete(18), Field((2, 42, 42), "uint8"), 2)


def test_an_id_names_only_the_game():
    assert len(native_games()) > 100
    for title, name in native_games().items():
        assert rom(f"ALE/{title}-v5") == rom(f"ALE/{title}") == name
    assert rom("ALE/MsPacman-v5") == "ms_pacman"
    with pytest.raises(UserError, match=r"unknown Atari game 'ALE/Pnog-v5', did you mean 'ALE/Pong-v5'\?"):
        Envs("ALE/Pnog-v5", 1).spec  # noqa: B018
    with pytest.raises(UserError, match="no single-player mode"):
        rom("ALE/Combat-v5")


def test_a_missing_ale_py_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UserError, match=r"pip install polyplay\[atari\]"):
        Envs("ALE/Pong-v5", 1).open(0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stiky": 0.1}, "unknown option 'stiky', did you mean 'sticky'"),
        ({"sticky": 2.0}, "between 0 and 1"),
        ({"frameskip": 0}, "at least 1"),
        ({"frameskip": "4"}, "of type int"),
        ({"stack_reset": "one"}, "one of zero, repeat, play"),
        ({"life_loss": "cut"}, "'ignore' or 'terminate'"),
    ],
)
def test_wrong_options(options, says):
    with pytest.raises(UserError, match=says):
        Envs("ALE/Pong-v5", 1, options=options).spec  # noqa: B018


def test_first_rows_and_the_reward_of_a_reset(pools):
    rows = play(pools("ALE/Breakout-v5", 2), 140, actions=FIRE)
    assert rows["first"][0].all()
    assert not rows["first"][1:10].any()
    assert (rows["reward"][rows["first"]] == 0).all()
    ends = rows["terminated"][:-1]
    assert ends.any()
    assert (rows["first"][1:] == ends).all(), "the row after an end is a first one, and no other"


def test_the_raw_score_survives(pools):
    """Space Invaders pays 5 to 30 a hit; the same actions in a bare emulator earn the same."""
    pool = pools("ALE/SpaceInvaders-v5", 1, seed=4, options={"noop_max": 0, "fire_reset": False})
    actions = np.random.default_rng(2).integers(0, 6, 400)
    rows = play(pool, 400, actions=lambda t, pool: actions[t : t + 1])
    ale = emulator("space_invaders", int(pool._seeds[0]))
    moves = ale.getMinimalActionSet()
    ended, score = False, [0.0]
    for action in actions[:399]:
        score.append(0.0)
        for _ in range(4):
            score[-1] += ale.act(moves[action])
            ended = ended or ale.game_over()
            if ended:
                break
        if ended:
            break
    assert rows["reward"][: len(score), 0].tolist() == score
    assert max(score) > 1
    assert sum(score) > 20


def test_the_stack_is_zero_padded_or_repeated(pools):
    for how in ("zero", "repeat"):
        pool = pools("ALE/Breakout-v5", 2, options={**QUICK, "stack_reset": how, "max_frames": 40})
        rows = play(pool, 30)
        starts = np.flatnonzero(rows["first"][:, 0])
        assert len(starts) >= 3
        for start in starts[:-1]:
            frame = rows["obs"][start, 0, 3]
            assert frame.any()
            for k in range(5):
                planes = rows["obs"][start + k, 0]
                empty = planes[: max(3 - k, 0)]
                assert (empty == (0 if how == "zero" else frame)).all()
                assert planes[max(3 - k, 0) :].reshape(-1, 84 * 84).any(1).all()


def test_a_lost_life_is_cut_for_the_learner_and_the_game_goes_on(pools):
    """`over` comes with the fifth life only; no reset frame, no no-ops, no fifth life again in between."""
    pool = pools("ALE/Breakout-v5", 2, options={**QUICK, "life_loss": "terminate"})
    rows = play(pool, 260, actions=FIRE)
    ignored = play(pools("ALE/Breakout-v5", 2, options={**QUICK}), 260, actions=FIRE)
    for lane in range(2):
        ends, overs = (np.flatnonzero(rows[k][:, lane]) for k in ("terminated", "over"))
        assert len(overs) == 2
        assert (ends[4::5] == overs).all(), "four lives are cuts, the fifth is the end"
        assert rows["first"][1:, lane].tolist() == rows["terminated"][:-1, lane].tolist()
        cut = ends[0]
        assert (rows["obs"][cut, lane, 1:] == rows["obs"][cut + 1, lane, :3]).all(), "the stack goes on"
        assert not rows["obs"][overs[0] + 1, lane, :3].any(), "and begins anew with a game"
        assert (ignored["over"][:, lane] == ignored["terminated"][:, lane]).all()
        assert ignored["over"][:, lane].sum() == 2


def test_on_a_cut_row_the_adapter_presses_nothing(pools):
    """Whatever the policy says there, the games are the same."""

    def run(say):
        pool = pools("ALE/Breakout-v5", 1, options={**QUICK, "life_loss": "terminate"})
        rng, cut, sums = np.random.default_rng(1), False, []
        for _ in range(160):
            lanes, row = pool.recv()
            cut = bool(row["terminated"][0])
            sums.append(int(row["obs"].sum()))
            action = int(rng.integers(0, 4))
            pool.send(lanes, np.array([say if cut else action]))
        return sums

    assert run(0) == run(1) == run(3)


def test_the_score_of_a_game_counts_what_a_life_cut_row_earned(pools):
    """With and without cuts, the same actions score the same in a whole game (the cut rows' actions
    are no-ops).
    """

    def run(life_loss, presses):
        pool = pools("ALE/Breakout-v5", 1, seed=3, options={**QUICK, "life_loss": life_loss})
        rng, total, kept = np.random.default_rng(5), 0.0, []
        for t in range(400):
            lanes, row = pool.recv()
            total += float(row["reward"][0])
            if row["over"][0]:
                return total, kept
            action = int(rng.integers(0, 4))
            quiet = bool(row["terminated"][0]) if presses is None else t in presses
            kept += [t] if quiet else []
            pool.send(lanes, np.array([0 if quiet else action]))
        raise AssertionError("the game did not end")

    score, cuts = run("terminate", None)
    assert len(cuts) == 4
    assert run("ignore", cuts)[0] == score


@pytest.mark.parametrize("batching", [None, Greedy(2)])
def test_truncation_shows_the_real_last_frame_and_is_no_termination(pools, batching):
    """A game that ale-py would truncate ends with the frame an untruncated one shows there."""
    kw = {} if batching is None else {"batching": batching}
    short = pools("ALE/Breakout-v5", 3, seed=9, options={**QUICK, "max_frames": 40}, **kw)
    long = pools("ALE/Breakout-v5", 3, seed=9)
    actions = np.random.default_rng(0).integers(0, 4, (40, 3))
    want = play(long, 12, actions=lambda t, pool: actions[t])
    age, seen = np.full(3, -1), np.zeros(3, int)
    for _ in range(60 if batching else 26):
        lanes, row = short.recv()
        numbers = np.arange(3)[lanes]
        age[numbers] = np.where(row["first"], 0, age[numbers] + 1)
        assert (row["truncated"] == (age[numbers] == 10)).all(), "40 frames are 10 steps"
        assert (row["over"] == row["truncated"]).all()
        assert not row["terminated"].any()
        for i, lane in enumerate(numbers):
            if seen[lane] == 0:
                assert (row["obs"][i] == want["obs"][age[lane], lane]).all()
                assert row["reward"][i] == want["reward"][age[lane], lane]
            if row["first"][i]:
                assert not row["obs"][i, :3].any()
                assert row["reward"][i] == 0
        seen[numbers] += row["truncated"]
        short.send(lanes, actions[age[numbers], numbers])
    assert (seen >= 2).all()


def test_frames_round_up_to_whole_steps(pools):
    rows = play(pools(lanes=1, options={**QUICK, "max_frames": 10}), 9)
    assert np.flatnonzero(rows["truncated"][:, 0]).tolist() == [3, 7]


def test_deterministic_in_the_seed_and_independent_of_threads(pools):
    options = {"sticky": 0.25}
    a = play(pools("ALE/Breakout-v5", 2, seed=1, options=options, workers=1), 60)
    b = play(pools("ALE/Breakout-v5", 2, seed=1, options=options, workers=2), 60)
    c = play(pools("ALE/Breakout-v5", 2, seed=2, options=options, workers=2), 60)
    assert all((a[k] == b[k]).all() for k in a)
    assert (a["obs"] != c["obs"]).any()
    assert (a["obs"][:, 0] != a["obs"][:, 1]).any(), "lanes differ"


def test_a_lane_keeps_its_game_whatever_pool_holds_it(pools):
    options = {"sticky": 0.25}
    still = lambda t, pool: np.zeros(pool.lanes, int)  # noqa: E731
    whole = play(pools(lanes=4, seed=1, options=options), 12, actions=still)
    part = play(pools(lanes=2, seed=1, lane=2, options=options), 12, actions=still)
    assert (whole["obs"][:, 2:] == part["obs"]).all()


def test_groups_step_while_the_other_is_served(pools):
    pool = pools(lanes=2, groups=2)
    whole = play(pools(lanes=2), 6, actions=lambda t, pool: np.full(2, t % 6))
    for t in range(6):
        for group in range(2):
            lanes, row = pool.recv()
            assert lanes == slice(group, group + 1)
            assert (row["obs"] == whole["obs"][t, lanes]).all()
            pool.send(lanes, np.full(1, t % 6))


def test_a_parked_group_does_not_stop_the_other(pools):
    pool = pools(lanes=2, groups=2)
    parked, _ = pool.recv()
    for _ in range(3):
        lanes, _ = pool.recv()
        assert lanes == slice(1, 2)
        pool.send(lanes, np.zeros(1, int))
    pool.send(parked, np.zeros(1, int))
    assert pool.recv()[0] == parked


@pytest.mark.parametrize("batching", [Greedy(2)])
def test_whoever_is_ready_is_answered_in_any_order(pools, batching):
    """Lanes come as numbers; each gets its own action, whatever order the answer is given in."""
    pool = pools("ALE/Breakout-v5", 3, batching=batching, workers=2)
    alone = play(pools("ALE/Breakout-v5", 3), 20, actions=lambda t, pool: (t + np.arange(3)) % 4)
    at = np.zeros(3, int)
    while (at < 6).any():
        lanes, row = pool.recv()
        assert not pool.fixed
        assert len(lanes) == 2
        for i, lane in enumerate(lanes):
            if at[lane] < 20:
                assert (row["obs"][i] == alone["obs"][at[lane], lane]).all()
                assert row["first"][i] == alone["first"][at[lane], lane]
        order = np.argsort(lanes)[::-1]
        time.sleep(0.002)  # ale-py may starve a lane whose rows are asked for at once for ever
        pool.send(lanes[order], ((at[lanes] + lanes) % 4)[order])
        at[lanes] += 1


def test_only_the_last_recv_can_be_answered(pools):
    pool = pools(lanes=3, batching=Greedy(2), workers=1)
    lanes, _ = pool.recv()
    with pytest.raises(ValueError, match="exactly the lanes"):
        pool.send(lanes[:1], np.zeros(1, int))
    with pytest.raises(RuntimeError, match="before"):
        pool.recv()
    fixed = pools(lanes=2, groups=2)
    lanes, _ = fixed.recv()
    with pytest.raises(ValueError, match=r"send\(\) answers"):
        fixed.send(slice(1, 2), np.zeros(1, int))
    with pytest.raises(ValueError, match=r"send\(\) answers"):
        fixed.send(slice(0, 2), np.zeros(2, int))


def test_an_action_out_of_range_is_refused_before_it_hangs_ale(pools):
    pool = pools()
    lanes, _ = pool.recv()
    for bad in (np.array([0, 6]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="0…5"):
            pool.send(lanes, bad)
    pool.send(lanes, np.array([0, 5]))
    pool.recv()


def test_observations_are_ales_own_arrays(pools):
    pool = pools()
    vector = pool._vectors[0]
    kept = []
    raw = vector.recv
    vector.recv = lambda: kept.append(raw()) or kept[-1]
    lanes, _ = pool.recv()
    pool.send(lanes, np.zeros(2, int))
    _, row = pool.recv()
    assert row["obs"] is kept[0][0]
    assert row["reward"].dtype == np.float32


def test_closed_pools_say_so(pools):
    pool = pools()
    pool.recv()
    pool.close()
    pool.close()
    with pytest.raises(Closed):
        pool.recv()
    assert (pool.state(), pool.restarts, pool.faults) == (None, 0, [])


def test_games_without_a_no_op_play_too(pools):
    pool = pools("ALE/Backgammon-v5", 1, options={**QUICK, "life_loss": "terminate", "max_frames": 20})
    rows = play(pool, 12)
    assert rows["truncated"].sum() == 2
