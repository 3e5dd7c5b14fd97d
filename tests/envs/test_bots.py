"""Scripted players: what environments say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.lane import Seats, load_bot, seat_bot
from polyplay.games.toys import Skirmish
from tests.envs.players import Scripted


class Botted(Scripted):
    def __init__(self, bots: object = None):
        super().__init__()
        self.polyplay_bots = bots


def test_environments_name_their_bots():
    bots = {"still": "tests.envs.test_bots:still"}
    assert Envs(Botted, lanes=3, kwargs={"bots": bots}).spec.bots == bots
    assert Envs(Botted, lanes=3).spec.bots == {}
    assert load_bot(Envs(Botted, lanes=3, kwargs={"bots": bots}).spec, "still") is still


def test_the_toys_bots_are_its_methods():
    spec = Envs("toy:skirmish", lanes=4).spec
    assert [load_bot(spec, name) for name in spec.bots] == [Skirmish.opposite, Skirmish.focus]


@pytest.mark.parametrize("bots", [["still"], {"still": 3}])
def test_bots_that_have_no_names_are_refused(bots):
    with pytest.raises(UserError, match='polyplay_bots must be a dict of "module:callable" by name, given'):
        _ = Envs(Botted, lanes=3, kwargs={"bots": bots}).spec


@pytest.mark.parametrize(
    ("bot", "said"),
    [
        ("stil", r"polyplay_bots: tests\.envs\.test_bots:stil given, .* has no 'stil'.*still"),
        ("lazy", r"polyplay_bots: x: .*:lazy returned actions of shape \[\(\)\] for 2 players, allowed: \[\(2,\)\]"),
        ("broken", r"polyplay_bots: x: .*:broken raised ValueError: no \(test_bots\.py:\d+\)"),
    ],
)
def test_a_bot_that_cannot_play_is_refused(bot, said):
    spec = Envs(Botted, lanes=3, kwargs={"bots": {"x": f"tests.envs.test_bots:{bot}"}}).spec
    with pytest.raises(UserError, match=said):
        load_bot(spec, "x")


def test_a_bot_of_the_state_is_told_where_its_lanes_sit():
    spec, pool = Envs("toy:skirmish", lanes=8).spec, Envs("toy:skirmish", lanes=8).open(0)
    bot = load_bot(replace(spec, bots={"x": f"{__name__}:by_state"}), "x")
    seated = seat_bot(bot, pool, np.array([1, 6, 4]))
    assert seated(np.zeros((3, 5)), None).tolist() == [1, 12, 10]


@pytest.mark.parametrize(
    ("lanes", "bot", "said"),
    [
        (slice(0, 3), "lazy_by_state", r"lazy_by_state returned actions of shape \[\(\)\] for 3 .*: \[\(3,\)\]"),
        (np.arange(2), "broken_by_state", r"broken_by_state raised ValueError: no \(test_bots\.py:\d+\)"),
    ],
)
def test_a_bot_of_the_state_is_tried_where_it_sits(lanes, bot, said):
    pool = Envs("toy:skirmish", lanes=8).open(0)
    with pytest.raises(UserError, match=said):
        seat_bot(globals()[bot], pool, lanes)


def test_pools_without_states_have_no_bots_of_the_state():
    envs = Envs(Botted, lanes=3, kwargs={"bots": {"x": f"{__name__}:by_state"}}, inline=True)
    pool = envs.open(0)
    seat_bot(still, pool, slice(0, 3))
    with pytest.raises(UserError, match=r"by_state plays by the game's state, .* lack; allowed: bots that play by obs"):
        seat_bot(load_bot(envs.spec, "x"), pool, slice(0, 3))
    pool.close()


def by_state(obs: np.ndarray, mask: np.ndarray | None, seats: Seats) -> np.ndarray:
    assert seats.states["health"].shape == (2, 4)
    return seats.match * 10 + seats.seat


def lazy_by_state(obs: np.ndarray, mask: np.ndarray | None, seats: Seats) -> int:
    return 0


def broken_by_state(obs: np.ndarray, mask: np.ndarray | None, seats: Seats) -> np.ndarray:
    raise ValueError("no")


for _bot in (by_state, lazy_by_state, broken_by_state):
    _bot.plays_state = True  # type: ignore[attr-defined]


def still(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return np.zeros(len(obs), np.int64)


def lazy(obs: np.ndarray, mask: np.ndarray | None) -> int:
    return 0


def broken(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    raise ValueError("no")
