"""Scripted players: what environments say of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from polyplay.core.errors import EnvFailure, UserError
from polyplay.envs import Envs, build
from polyplay.envs.lane import Lane, LaneJob, Seats, StateBot, load_bot, seat_bot, take_turn
from polyplay.envs.pool import lane_seeds
from polyplay.envs.shared_rows import BROKEN, FAILED, ROUNDED, UNBUILT, Seating, SharedRows
from tests.envs import faulty
from tests.envs.faulty import EXIT, FINE, RAISE
from tests.envs.players import HANG, KILL, SCRIPT, STAY, Scripted, TwinMatch


def lane(make):
    spec = build.describe(faulty.Obedient, {})
    board = SharedRows(spec, 1, 1)
    return Lane(LaneJob(b"", "Game", spec, seed=1, lane=5, step_timeout=1.5), make, board, 0), board


def turn(one, board, action=FINE):
    board.action[0] = action
    return take_turn(one)


class Resets(faulty.Obedient):
    """Its reset() returns what a test says."""

    answer: Any = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return self.answer


@pytest.mark.parametrize("answer", [np.zeros(4), (np.zeros(4),)])
def test_what_reset_returns_is_checked(answer):
    one, board = lane(type("Other", (Resets,), {"answer": answer}))
    assert turn(one, board) == ~0
    assert "reset() must return (observation, info), given" in board.read(0)[1]


def test_reset_may_return_a_list():
    one, board = lane(type("Lists", (Resets,), {"answer": [np.zeros(4), {}]}))
    assert turn(one, board) == 0


SMALL = """
import sys, psutil, polyplay.envs.make
print(int(psutil.Process().memory_info().rss < 60 * 2**20), int("torch" in sys.modules))
"""


def test_an_environment_process_is_small_and_has_no_torch():
    assert subprocess.check_output([sys.executable, "-c", SMALL]).split() == [b"1", b"0"]


class Near(faulty.Obedient):
    """Beyond a bound by rounding; its time limit is told in the old way."""

    def __init__(self):
        super().__init__(length=2)
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.observation_space.high[0] = 1.0

    def _see(self):
        return np.array([1.0000000000000002, 0.0, 0.0, 0.0])

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"TimeLimit.truncated": terminated}


def test_what_is_odd_is_remarked_once():
    one, board = lane(Near)
    said = []
    for _ in range(9):
        if turn(one, board) == ~0:
            kind, text = board.read(0)
            said.append(text)
            assert kind == ROUNDED
    assert [text.partition(" (rule ")[2].partition(";")[0] for text in said] == ["bounds", "flags"]
    assert "1.0000000000000002 at [0] is not in [-inf, 1], but only by rounding" in said[0]
    assert said[1].startswith("Game: info says TimeLimit.truncated of a terminated episode, which is not read: return")
    assert board.rows["obs"][0, 0] == 1.0000000000000002


def test_building_that_fails_at_first_is_the_users_mistake_and_later_a_fault():
    one, board = lane(faulty.Unbuildable)
    assert turn(one, board) == ~0
    assert board.read(0)[0] == UNBUILT
    makes = [partial(gymnasium.make, "CartPole-v1"), faulty.Obedient, faulty.Unbuildable, faulty.Obedient]
    one, board = lane(lambda: makes.pop()())
    turn(one, board)
    assert turn(one, board, EXIT) == ~0, "SystemExit is a fault like any"
    assert "SystemExit" in board.read(0)[1]
    board.faults[0] = 1  # as the pool counts
    assert turn(one, board) == ~0
    kind, text = board.read(0)
    assert (kind, "no licence" in text) == (FAILED, True)
    assert turn(one, board) == 0
    one.close()
    assert turn(one, board) == ~0
    kind, text = board.read(0)
    assert (kind, "by the first environment" in text) == (BROKEN, True)


class Botted(Scripted):
    def __init__(self, bots: object = None):
        super().__init__()
        self.polyplay_bots = bots


def botted(bots: object) -> Envs:
    return Envs(Botted, lanes=3, kwargs={"bots": bots}, inline=True)


def test_environments_name_their_bots():
    spec = botted({"still": f"{__name__}:still"}).spec
    assert spec.bots == {"still": f"{__name__}:still"}
    assert load_bot(spec, "still") is still
    assert botted(None).spec.bots == {}


NO_DICT = 'polyplay_bots must be a dict of "module:callable" by name, given'
BAD_BOTS = [
    (["still"], NO_DICT),
    ({"still": 3}, NO_DICT),
    ({"x": f"{__name__}:stil"}, r"polyplay_bots: tests\.envs\.test_lane:stil given, .* has no 'stil'.*still"),
    ({"x": f"{__name__}:lazy"}, r"x: .*:lazy returned actions of shape \[\(\)\] for 2 players, allowed: \[\(2,\)\]"),
    ({"x": f"{__name__}:broken"}, r"polyplay_bots: x: .*:broken raised ValueError: no \(test_lane\.py:\d+\)"),
    (
        {"x": f"{__name__}:seated"},
        r"x: .*:seated takes \(obs, mask, seats\), allowed: \(obs, mask\), .* inherits polyplay\.envs\.lane\.StateBot",
    ),
    (
        {"x": f"{__name__}:by_state"},
        r"ByState\(lazy=False\) plays by the game's state, .* lack; allowed: bots that play by obs",
    ),
]


@pytest.mark.parametrize(("bots", "said"), BAD_BOTS)
def test_a_bot_that_cannot_play_is_refused(bots, said):
    envs = botted(bots)
    with pytest.raises(UserError, match=said), closing(envs.open(0)) as pool:
        seat_bot(load_bot(envs.spec, "x"), pool, slice(0, 3))


def test_a_bot_of_the_state_is_told_where_its_lanes_sit_and_tried_there():
    spec, pool = Envs("toy:skirmish", lanes=8).spec, Envs("toy:skirmish", lanes=8).open(0)
    bot = load_bot(replace(spec, bots={"x": f"{__name__}:by_state"}), "x")
    seated = seat_bot(bot, pool, np.array([1, 6, 4]))
    assert seated(np.zeros((3, 5)), None).tolist() == [1, 12, 10]
    with pytest.raises(
        UserError, match=r"ByState\(lazy=True\) returned actions of shape \[\(\)\] for 3 .*: \[\(3,\)\]"
    ):
        seat_bot(lazy_by_state, pool, slice(0, 3))


@dataclass
class ByState(StateBot):
    lazy: bool = False

    def __call__(self, obs: np.ndarray, mask: np.ndarray | None, seats: Seats) -> np.ndarray | int:
        assert seats.states["health"].shape == (2, 4)
        return 0 if self.lazy else seats.match * 10 + seats.seat


by_state, lazy_by_state = ByState(), ByState(lazy=True)


def still(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return np.zeros(len(obs), np.int64)


def lazy(obs: np.ndarray, mask: np.ndarray | None) -> int:
    return 0


def seated(obs, mask, seats):
    return seats.seat


def broken(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    raise ValueError("no")


# Matches in pools: rows equal a plain twin's, whoever dies, comes late or is cut off; faults restart whole matches.


SEATS, STEPS = 3, 60
FIELDS = ("reward", "terminated", "truncated", "first", "over", "events", "team_reward")
POOLS = pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])


def scripted(lanes: int = 6, make: Any = Scripted, **more: Any) -> Envs:
    return Envs(make, lanes, **{"inline": True, "workers": 2, **more})


def play(pool: Any, steps: int, actions: np.ndarray) -> list[dict[str, np.ndarray]]:
    """The rows [lanes] of each step, however many groups there are; actions [steps, lanes]."""
    found = []
    for t in range(steps):
        row: dict[str, Any] = {}
        for _ in range(pool.groups):
            lanes, part = pool.recv()
            for k, v in part.items():
                row.setdefault(k, np.empty((pool.lanes, *v.shape[1:]), v.dtype))[lanes] = v
            pool.send(lanes, actions[t][lanes])
        found.append(row)
    return found


def draws(steps: int, lanes: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 4, (steps, lanes))


def same(row: dict[str, np.ndarray], lane: int, want: dict[str, Any], where: object) -> None:
    for k in FIELDS:
        np.testing.assert_array_equal(row[k][lane], want[k], err_msg=f"{k} {where}")
    if "obs" in want:
        np.testing.assert_array_equal(row["obs"][lane], want["obs"], err_msg=f"obs {where}")


@pytest.mark.parametrize(
    ("inline", "groups", "agents", "lane"), [(True, 1, 1, 24), (False, 2, 1, 24), (True, 6, 3, 0), (False, 3, 3, 0)]
)
def test_rows_equal_a_plain_twins(inline: bool, groups: int, agents: int, lane: int):
    """Also at a table, where seats are drawn anew: the twin is told who sits where by `Seating`, as matches begin."""
    envs, actions, lanes = scripted(12, inline=inline, agents=agents, groups=groups), draws(STEPS, 12), 12
    assert (envs.spec.seats, envs.spec.teams, envs.spec.events) == (3, (0, 0, 1), ("odd", "zero"))
    with closing(envs.open(7, lane)) as pool:
        assert isinstance(pool.seating, Seating)
        rows = play(pool, STEPS - 1, actions)
        last = [pool.recv() for _ in range(groups)]
        rows.append({k: np.concatenate([row[k] for _, row in last]) for k in rows[0]})
        sitting, drawn = pool.seating.lanes.copy(), pool.seating.drawn.copy()
    plain = Seating(lanes, SEATS, agents, 7, lane)
    twins = [TwinMatch(int(lane_seeds(7, lane + int(plain.own[m, 0]), 1)[0])) for m in range(4)]
    orders = set()
    for t in range(STEPS):
        for m, twin in enumerate(twins):
            before = actions[t - 1][plain.lanes[m]].tolist()
            if not twin.playing:
                plain.draw(np.array([m]))
            orders.add(tuple(plain.lanes[m] // (lanes // agents)))
            for seat, want in enumerate(twin.rows(before)):
                same(rows[t], int(plain.lanes[m, seat]), want, (t, m, seat))
    assert len(orders) == (6 if agents == 3 else 1), "every order of the agents"
    np.testing.assert_array_equal(drawn, plain.drawn)
    np.testing.assert_array_equal(sitting, plain.lanes, err_msg="who sits where is of the rows that recv gave")
    assert sum(r["over"].sum() for r in rows) > 50
    assert sum((r["terminated"] & r["truncated"]).sum() for r in rows) > 5, "both at once"


def test_masks_of_players_and_of_seats_without_one():
    with closing(scripted(3, partial(Scripted, masks=True)).open(0)) as pool:
        assert pool.spec.describe["action mask"] == "from info"
        for t in range(5):
            lanes, row = pool.recv()
            alive = [s for s, a in enumerate("abc") if SCRIPT[0][a][0] <= t < SCRIPT[0][a][1] + (t == 0)]
            for seat in range(3):
                legal = np.arange(4) != t % 4 if seat in alive else np.ones(4, bool)
                if not row["over"][seat]:
                    assert row["mask"][seat].tolist() == legal.tolist(), (t, seat)
            pool.send(lanes, np.zeros(3, np.int64))


@POOLS
def test_held_matches_rest_and_begin_again(inline: bool):
    with closing(scripted(6, partial(Scripted, length=3), inline=inline).open(0)) as pool:
        pool.recv()
        assert not pool.resting
        pool.pause_matches(True)
        pool.send(slice(0, 6), np.zeros(6, np.int64))
        rows = play(pool, 8, draws(8, 6))
        assert [r["over"].all() for r in rows[:4]] == [False, False, True, False]
        assert all(r["first"].all() and not r["reward"].any() for r in rows[3:])
        assert pool.resting
        step = rows[-1]["obs"][0]
        pool.recv()
        pool.pause_matches(False)
        pool.send(slice(0, 6), np.zeros(6, np.int64))
        row = pool.recv()[1]
        assert row["first"].all()
        assert row["obs"][0, 2] == step[2] + 1, "the next match"
        assert not pool.resting


def test_who_has_no_matches_holds_none():
    for name in ("toy:catch", "CartPole-v1"):
        with closing(Envs(name, 2, inline=True).open(0)) as pool, pytest.raises(ValueError, match="no matches to hold"):
            pool.pause_matches(True)


@pytest.mark.parametrize("act", [RAISE, KILL, HANG])
def test_a_fault_restarts_its_whole_match_and_no_other(act: int):
    make = partial(Scripted, faulty=True, length=50)
    inline = act == RAISE
    with closing(scripted(9, make, inline=inline, workers=3, step_timeout=0.5).open(0)) as pool:
        actions = np.zeros((4, 9), np.int64)
        actions[3, 3] = act
        play(pool, 4, actions)
        _, row = pool.recv()
        assert row["first"].tolist() == [False] * 3 + [True] * 3 + [False] * 3
        assert row["obs"][:, 1].tolist() == [4.0] * 3 + [0.0] * 3 + [4.0] * 3
        assert (pool.restarts, len(pool.faults)) == (3, 1)
        pool.send(slice(0, 9), np.full(9, STAY))
        assert not pool.recv()[1]["first"].any()


def test_half_answered_matches_wait_and_a_killed_process_still_gives_them_rows():
    """At a table of three groups: the process dies after only one group was answered."""
    with closing(
        scripted(9, partial(Scripted, length=50), inline=False, workers=1, agents=3, groups=3).open(0)
    ) as pool:
        for _ in range(3):
            pool.recv()
        pool.send(slice(0, 3), np.zeros(3, np.int64))
        with pytest.raises(RuntimeError, match="before the rows"):
            pool.recv(0.2)
        next(iter(pool._workers.values())).process.kill()
        time.sleep(0.2)
        pool.send(slice(3, 6), np.zeros(3, np.int64))
        pool.send(slice(6, 9), np.zeros(3, np.int64))
        for _ in range(3):
            assert pool.recv(20.0)[1]["first"].all()
        assert pool.restarts == 9


@POOLS
def test_a_saved_pool_goes_on_as_it_would_have(inline: bool):
    envs, actions = scripted(6, inline=inline), draws(40, 6)
    with closing(envs.open(3)) as pool:
        play(pool, 9, actions)
        pool.recv()
        saved = pool.state()
        assert saved is not None, pool.unsaved
        pool.send(slice(0, 6), actions[9])
        after = play(pool, 30, actions[10:])
    with closing(envs.open(4)) as pool:
        for _ in range(pool.groups):
            pool.recv()
        pool.load(saved)
        pool.send(slice(0, 6), actions[9])
        for a, b in zip(after, play(pool, 30, actions[10:]), strict=True):
            assert a.keys() == b.keys()
            for k in a:
                np.testing.assert_array_equal(a[k], b[k], err_msg=k)


def test_first_rows_do_not_change_who_sits_where_in_a_state_that_is_loaded():
    """As actors load it: before any row was received."""
    envs = scripted(6, inline=False, agents=3, groups=3)
    with closing(envs.open(3)) as pool:
        for _ in range(3):
            pool.recv()
        saved = pool.state()
    with closing(envs.open(4)) as pool:
        pool.load(saved)
        assert (pool.seating.drawn == saved["seating"]["drawn"]).all()
        assert (pool.seating.lanes == saved["seating"]["lanes"]).all()


def test_processes_of_matches_come_and_go():
    """A lane is there once its first row is: else a scheduler would measure while environments are being built."""
    envs = Envs(Scripted, 9, at_once=9, workers=9, active=3)
    seen: set[int] = set()

    def serve(until: Callable[[], bool], stay: int) -> None:
        while not until():
            lanes, _ = pool.recv(20.0)
            seen.update(lanes.tolist())
            pool.part(lanes[lanes >= stay])
            if (rest := lanes[lanes < stay]).size:
                pool.send(rest, np.zeros(len(rest), np.int64))

    with closing(envs.open(0)) as pool:
        serve(lambda: len(seen) == 3, stay=3)
        assert pool.present == 3
        pool.scale(4)  # rounded up
        assert (pool.wanted, pool.present) == (6, 3), "three are being built"
        serve(lambda: len(seen) == 6, stay=6)
        assert pool.present == 6
        pool.scale(3)
        assert pool.present == 6, "three have yet to go"
        serve(lambda: pool.present == 3, stay=3)
        assert list(pool._workers) == [0]
    with pytest.raises(UserError, match="--agents 4: must be a multiple of the 3 seats"):
        Envs(Scripted, 9, at_once=9, workers=9, active=4).open(0)


def vanish(self: Any, actions: dict) -> Any:
    answer = Scripted.step(self, actions)
    self.agents = [a for a in self.agents if a != "b"]
    return answer


def stranger(self: Any, actions: dict) -> Any:
    answer = Scripted.step(self, actions)
    self.agents = [*self.agents, "x"]
    return answer


BROKEN_MATCH = [
    (dict(step=vanish), "agents", "b left agents, but was neither terminated nor truncated"),
    (dict(step=stranger), "agents", "x in agents, but not in possible_agents"),
    (dict(_info=lambda self, a: {"events": [1]}), "players", "info's events must be 2 finite numbers"),
    (dict(_info=lambda self, a: {"action_mask": [self.at == 0] * 4}), "mask", "a: action_mask: no action is legal"),
]


@pytest.mark.parametrize(("methods", "rule", "text"), BROKEN_MATCH)
def test_what_breaks_the_rules_of_matches_ends_the_pool_with_a_line(methods: dict, rule: str, text: str):
    envs = scripted(3, type("Broken", (Scripted,), methods))
    with (
        pytest.raises(EnvFailure, match=rf"lanes 0, 1, 2: .*{text}.*\(rule {rule};") as e,
        closing(envs.open(0)) as pool,
    ):
        play(pool, 20, np.zeros((20, 3), np.int64))
    assert "\n" not in str(e.value)
