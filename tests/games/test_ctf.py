"""arena:ctf as an environment: matches, maps, seeds, states, and wrong options."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.cli.main import main
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.make import connect
from polyplay.envs.pool import Pool
from polyplay.games.ctf_rules import EVENTS
from tests.games.test_ctf_rules import scatter

SHORT = "arena:ctf+size=9+length=40"


def played(title: str, lanes: int, steps: int, lane: int = 0, seed: int = 3) -> list:
    """Rows of so many steps; the actions of a lane depend on its number alone."""
    pool, rows = connect(Envs(title, lanes), seed, lane), []
    for t in range(steps):
        ids, row = pool.recv()
        rows.append(tree.map(np.copy, row))
        draws = [np.random.default_rng([t, lane + i]) for i in range(lanes)]
        pool.send(ids, np.stack([[int(rng.integers(k)) for k in (5, 3, 3, 3, 2, 2)] for rng in draws]))
    return rows


def equal(a, b) -> bool:
    return all((x == y).all() for (_, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_a_match_has_two_teams_thirteen_events_and_an_end():
    spec = Envs(SHORT, 8).spec
    assert (spec.seats, spec.teams, spec.events, spec.team_reward) == (4, (0, 0, 1, 1), EVENTS, True)
    assert len(EVENTS) == 13
    assert np.prod(spec.action.nvec) == 540
    rows = played(SHORT, 8, 90)
    ends = [t for t, row in enumerate(rows) if row["terminated"].all()]
    assert ends == [40, 81]
    assert all(rows[t + 1]["first"].all() for t in ends)
    assert not any(row["truncated"].any() for row in rows)
    assert not (rows[0]["obs"]["view"] == rows[41]["obs"]["view"]).all(), "each match has a map of its own"


def test_a_match_can_be_rewarded_for_its_winner_alone():
    env = "arena:ctf+size=9+length=1500+repeat=15"
    captures, wins = played(env, 128, 101), played(env + "+reward=win", 128, 101)
    ends = captures[100]["terminated"]
    assert ends.all()
    total = np.sum([row["reward"] for row in captures], 0)
    assert len(np.unique(np.sign(total))) == 3, "won, lost and drawn ones"
    assert not any(row["reward"].any() for row in wins[:100])
    assert (wins[100]["reward"] == np.sign(total)).all()
    assert (wins[100]["team_reward"] == np.sign(total)).all()


PIXEL_VIEW = pytest.param(SHORT + "+view=pixels", marks=pytest.mark.long)


@pytest.mark.parametrize("title", [SHORT, SHORT + "+team=1+kind=open", PIXEL_VIEW])
def test_lanes_play_alike_however_many_there_are(title):
    together, apart = played(title, 8, 60), [played(title, 4, 60, lane=lane) for lane in (0, 4)]
    for whole, *parts in zip(together, *apart, strict=True):
        assert equal(whole, tree.map(lambda *x: np.concatenate(x), *parts))


def test_a_state_goes_on_to_the_bit():
    envs, rng = Envs(SHORT, 8), np.random.default_rng(0)
    actions = [np.stack([rng.integers(k, size=8) for k in (5, 3, 3, 3, 2, 2)], -1) for _ in range(100)]
    pool = connect(envs, 7, 0)
    for action in actions[:30]:
        pool.send(pool.recv()[0], action)
    state, after = pool.state(), []
    for rest in (pool, connect(envs, 8, 0)):
        rest.load(state)
        rows = []
        for action in actions[30:]:
            ids, row = rest.recv()
            rows.append(tree.map(np.copy, row))
            rest.send(ids, action)
        after.append(rows)
    assert all(equal(a, b) for a, b in zip(*after, strict=True))


def answered(pool: Pool, action: np.ndarray) -> dict:
    """All rows that follow an action."""
    pool.send(pool.recv()[0], action)
    return pool.state()["rows"]


def scattered(envs: Envs, pool: Pool, seed: int) -> Pool:
    """Another pool that goes on from this one's state, with everybody near flags and bases."""
    state, other = pool.state(), connect(envs, 99, 0)
    scatter(np.random.default_rng(seed), state["game"])
    other.load(state)
    return other


def check_turn(held: Pool, plain: Pool, action: np.ndarray, repeat: int) -> np.ndarray:
    """Answers both, the second `repeat` times. Events [lanes, 2, E]: of all these steps, and of the last."""
    begins = held.state()["over"].all()
    row, rows = answered(held, action), [answered(plain, action) for _ in range(1 if begins else repeat)]
    assert not any(step[k].any() for step in rows[:-1] for k in ("over", "terminated", "truncated", "first"))
    sums = {k: np.sum([step[k] for step in rows], 0) for k in ("reward", "team_reward", "events")}
    assert equal(row, {**rows[-1], **sums})
    assert row["first"].all() == row["first"].any() == begins
    assert equal(held.state()["game"], plain.state()["game"])
    return np.stack([row["events"], rows[-1]["events"]], 1)


def check_held(options: str, matches: int, repeat: int, turns: int, seed: int, loads: int) -> np.ndarray:
    """Matches of so many turns with an action held are those in which it is given again and again; also when both go
    on elsewhere from their states, every so many turns. Events as of check_turn, of all turns.
    """
    title = f"arena:ctf+size=9+length={repeat * turns}{options}"
    lanes, small, total = matches * (2 if "team=1" in title else 4), "small" in title, []
    both = [Envs(f"{title}+repeat={k}", lanes) for k in (repeat, 1)]
    rng, pools = np.random.default_rng(seed), [connect(envs, seed, 0) for envs in both]
    for turn in range(2 * turns + 3):
        wild = np.stack([rng.integers(k, size=lanes) for k in (5, 3, 3, 3, 2, 2)], -1)
        total.append(check_turn(*pools, rng.integers(11, size=lanes) if small else wild, repeat))
        assert pools[0].state()["over"].all() == (turn % (turns + 1) == turns - 1)
        if turn % loads == loads - 1:
            pools = [scattered(envs, pool, turn) for envs, pool in zip(both, pools, strict=True)]
    return np.sum(total, (0, 1))


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["", "+actions=small", "+team=1", "+actions=small+reward=win"]),
    *(st.integers(1, most) for most in (3, 5, 8)),
    st.integers(0, 2**31),
    st.integers(1, 6),
)
def test_an_action_held_is_that_action_given_again_and_again(options, matches, repeat, turns, seed, loads):
    check_held(options, matches, repeat, turns, seed, loads)


def test_what_happens_in_any_step_of_a_held_action_counts():
    every, last = check_held("", 24, 3, 12, seed=1, loads=2)
    assert (every > last).all()
    assert last.any()


def test_maps_for_training_and_held_out_ones_are_others():
    def maps_of(which: str) -> set[bytes]:
        pool = connect(Envs(f"arena:ctf+maps={which}", 400), 5, 0)
        return {grid.tobytes() for grid in pool.state()["game"]["grid"]}

    one, two = maps_of("train"), maps_of("held_out")
    assert len(one) == len(two) == 100
    assert not one & two
    assert maps_of("train") == one


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("arena:soccer", "--env: arena:soccer given, allowed: arena:ctf, arena:lanes"),
        ("arena:ctf+view=maps", "view=maps given, allowed: window, pixels"),
        ("arena:ctf+size=12", "size=12 given, allowed: odd numbers from 9, so that two bases fit"),
        ("arena:ctf+size=7", "size=7 given, allowed: odd numbers from 9"),
        ("arena:ctf+team=0", "team=0, length=4500, repeat=1 given, allowed: 1 to 8 players"),
        ("arena:ctf+speed=3", "unknown option 'speed'"),
    ],
)
def test_wrong_options_are_one_line(title, said):
    with pytest.raises(UserError, match=said.replace("+", r"\+")):
        _ = Envs(title, 4).spec


def test_lanes_make_whole_matches():
    with pytest.raises(UserError, match="no multiple of the 4 seats"):
        _ = Envs("arena:ctf", 6).spec


PIXELS = "arena:ctf+length=60+actions=small+view=pixels"


@pytest.mark.parametrize("title", ["arena:ctf+length=60", pytest.param(PIXELS, marks=pytest.mark.long)])
def test_it_passes_the_check(title, capfd):
    assert main(["check", title]) == 0, capfd.readouterr()
