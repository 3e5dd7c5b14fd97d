"""Capture the flag: rewards, held actions, maps of training; bots by the state alone, in every role, in order."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest

from polyplay.core import tree
from polyplay.envs import Envs
from polyplay.envs.lane import Seats
from polyplay.envs.make import connect
from polyplay.games import ctf, ctf_rules
from polyplay.games.ctf import CaptureTheFlag, FlagBot
from polyplay.games.ctf_rules import CARRIED, DROPPED, EVENTS, HOME
from tests.games.test_arenas import equal, played
from tests.games.test_ctf_rules import scatter


def test_a_match_can_be_rewarded_for_its_winner_alone():
    env = "arena:ctf+size=9+length=1500+repeat=15"
    captures, wins = played(env, 64, 101), played(env + "+reward=win", 64, 101)
    ends = captures[100]["terminated"]
    assert ends.all()
    total = np.sum([row["reward"] for row in captures], 0)
    assert len(np.unique(np.sign(total))) == 3, "won, lost and drawn ones"
    assert not any(row["reward"].any() for row in wins[:100])
    assert (wins[100]["reward"] == np.sign(total)).all()
    assert (wins[100]["team_reward"] == np.sign(total)).all()


@pytest.mark.parametrize("options", ["", "+actions=small", "+team=1", "+actions=small+reward=win"])
def test_an_action_held_is_that_action_given_again_and_again(options):
    """Flags are near, so that there are events and rewards to sum."""
    lanes, repeat, rng = 4 if "team" in options else 8, 3, np.random.default_rng(1)
    held, plain = (connect(Envs(f"arena:ctf+size=9+length=90{options}+repeat={k}", lanes), 2, 0) for k in (repeat, 1))
    happened = 0
    for turn in range(64):
        begins = turn % 31 == 30
        if turn % 10 == 5:
            state = held.state()
            scatter(rng, state["game"])
            for pool in (held, plain):
                pool.load({**pool.state(), "game": state["game"]})
        wild = np.stack([rng.integers(k, size=lanes) for k in (5, 3, 3, 3, 2, 2)], -1)
        action, rows = rng.integers(11, size=lanes) if "small" in options else wild, []
        for pool, times in ((held, 1), (plain, 1 if begins else repeat)):
            for _ in range(times):
                pool.send(pool.recv()[0], action)
                rows.append(pool.state()["rows"])
        row, *each = rows
        sums = {k: np.sum([step[k] for step in each], 0) for k in ("reward", "team_reward", "events")}
        assert equal(row, {**each[-1], **sums})
        assert row["first"].all() == row["first"].any() == begins
        assert equal(held.state()["game"], plain.state()["game"])
        happened += (row["events"] != 0).sum()
    assert happened > 10


def test_maps_for_training_and_held_out_ones_are_others():
    def maps_of(which: str) -> set[bytes]:
        pool = connect(Envs(f"arena:ctf+maps={which}", 160), 5, 0)
        return {grid.tobytes() for grid in pool.state()["game"]["grid"]}

    one, two = maps_of("train"), maps_of("held_out")
    assert len(one) == len(two) == 40
    assert not one & two
    assert maps_of("train") == one


class Played:
    """Matches without observations. A player is a bot, or what draws or makes the actions of so many seats."""

    def __init__(self, game: CaptureTheFlag, n: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.game, self.n = game, n
        self.states = self.game.reset(lambda: rng.random(n), n)
        self.events = np.zeros((game.seats, len(EVENTS)))

    def seats(self, team: int) -> Seats:
        own = np.arange(self.game.team) + team * self.game.team
        return Seats(self.game, self.states, np.repeat(np.arange(self.n), len(own)), np.tile(own, self.n))

    def play(self, one: Any, two: Any, steps: int) -> np.ndarray:
        """The scores, [n, team]."""
        action = tree.zeros(self.game.action.field, (self.n, self.game.seats))
        for _ in range(steps):
            for team, who in enumerate((one, two)):
                at = self.seats(team)
                action[at.match, at.seat] = who(None, None, at) if isinstance(who, FlagBot) else who(len(at.seat))
            self.states, row = self.game.step(self.states, action, lambda: np.zeros(self.n))
            self.events += row["events"].sum(0)
        return self.states["score"]


def still(n: int) -> np.ndarray:
    return np.tile((2, 1, 1, 1, 0, 0), (n, 1))


class AtRandom:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, n: int) -> np.ndarray:
        return np.stack([self.rng.integers(k, size=n) for k in (5, 3, 3, 3, 2, 2)], -1)


@pytest.mark.parametrize(
    ("name", "actions", "digest"),
    [
        ("level1", "small", "98c8108054fa70c9"),
        ("level4", "all", "e497c7ed48b7d362"),
        ("attacker", "all", "2d23e397d92af606"),
        ("defender", "small", "f7a4ec4cb79b0214"),
        ("returner", "all", "1850dff179710d08"),
    ],
)
def test_a_bot_does_what_it_always_did_whoever_else_is_asked(name, actions, digest):
    bot, rng, done = getattr(ctf, name), np.random.default_rng(1), hashlib.sha256()
    played = Played(CaptureTheFlag(team=3, actions=actions, size=9), 5)
    for _ in range(6):
        played.play(ctf.level3, ctf.level4, 25)
        before, whole = tree.map(np.copy, played.states), played.seats(0)
        match, seat = np.divmod(np.arange(5 * 6), 6)
        first = bot(None, None, whole._replace(match=match, seat=seat))
        done.update(first.tobytes())
        some = rng.permutation(30)[:17]
        assert (bot(None, None, whole._replace(match=match[some], seat=seat[some])) == first[some]).all()
        alone = tree.map(lambda x: x[3:4].copy(), played.states)
        found = bot(None, None, Seats(played.game, alone, np.zeros(6, np.int64), np.arange(6)))
        assert (found == first[match == 3]).all()
        assert all((before[k] == v).all() for k, v in played.states.items()), "only read"
    assert done.hexdigest()[:16] == digest


@pytest.mark.parametrize(("actions", "team"), [("all", 0), ("small", 1)])
def test_an_attacker_alone_captures_from_those_who_stand_still(actions, team):
    played = Played(CaptureTheFlag(team=1, actions=actions), 16, seed=4)
    others = still if actions == "all" else lambda n: np.zeros(n, np.int64)
    score = played.play(*((ctf.attacker, others) if team == 0 else (others, ctf.attacker)), 900)
    assert (score[:, team] >= 2).all()
    assert (score[:, 1 - team] == 0).all()


@pytest.mark.parametrize(("actions", "worse"), [("all", AtRandom()), ("small", ctf.level1)])
def test_a_better_player_wins(actions, worse):
    better = ctf.level1 if isinstance(worse, AtRandom) else ctf.level5
    one = Played(CaptureTheFlag(actions=actions), 16, seed=5).play(better, worse, 900)
    two = Played(CaptureTheFlag(actions=actions), 16, seed=6).play(worse, better, 900)
    wins = np.concatenate([one[:, 0] > one[:, 1], two[:, 1] > two[:, 0]])
    assert wins.mean() >= 0.85


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_levels_are_in_order():
    """Over 200 matches of five minutes; a level that is as good wins as often as it loses."""
    levels = [FlagBot(level) for level in range(1, 6)]
    for worse, better in itertools.pairwise(levels):
        one = Played(CaptureTheFlag(), 100, seed=7).play(better, worse, 4500)
        two = Played(CaptureTheFlag(), 100, seed=8).play(worse, better, 4500)
        ahead = np.concatenate([one[:, 0] - one[:, 1], two[:, 1] - two[:, 0]])
        wins, losses = (ahead > 0).sum(), (ahead < 0).sum()
        assert wins - losses > 4 * (wins + losses) ** 0.5


def hall(*seats: tuple[float, float]) -> Played:
    """A match in one open room with bases in two corners; where its seats are."""
    played = Played(CaptureTheFlag(team=len(seats) // 2, size=13), 1)
    s = played.states
    s["grid"][0, 1:-1, 1:-1] = 0
    s["base"][0] = s["flag_at"][0] = (1.5, 1.5), (11.5, 11.5)
    s["at"][0], s["yaw"][0], s["spawn"][0] = seats, 0, seats
    return played


def carried(played: Played, flag: int, by: int) -> None:
    s = played.states
    s["flag"][0, flag], s["carrier"][0, flag], s["flag_at"][0, flag] = CARRIED, by, s["at"][0, by]


@pytest.mark.parametrize("bot", [ctf.defender, ctf.returner])
def test_guards_bring_a_dropped_flag_back_and_stay_near_their_base(bot):
    played = hall((1.5, 3.5), (11.5, 1.5))
    played.states["grid"][0, 1:6, 6] = 1  # the opponent is out of sight, and of the way
    played.states["flag"][0, 0], played.states["flag_at"][0, 0] = DROPPED, (4.5, 10.5)
    played.play(bot, still, 150)
    assert played.events[0, EVENTS.index("returned")] == 1
    assert played.states["flag"][0, 0] == HOME
    played.play(bot, still, 150)
    assert np.abs(played.states["at"][0, 0] - (1.5, 1.5)).sum() < (3 if bot is ctf.defender else 8)


def test_a_carrier_hides_while_its_own_flag_is_carried_and_captures_when_it_is_back():
    played = hall((3.5, 1.5), (11.5, 11.5), (11.5, 2.5), (11.5, 3.5))
    s = played.states
    s["grid"][0, 1, 4] = s["grid"][0, 2, 4] = s["grid"][0, 3, 4] = 1
    carried(played, 1, 0)
    carried(played, 0, 2)
    played.play(ctf.attacker, still, 40)
    at, grid = played.states["at"][0], played.states["grid"][0]
    assert not any(ctf_rules.clear(grid, *at[q], *at[0]) and np.hypot(*(at[q] - at[0])) < 8 for q in (2, 3))
    assert np.abs(at[0] - (1.5, 1.5)).sum() < 6
    s = played.states
    s["flag"][0, 0], s["carrier"][0, 0], s["flag_at"][0, 0] = HOME, -1, (1.5, 1.5)
    assert played.play(ctf.attacker, still, 60)[0].tolist() == [1, 0]
