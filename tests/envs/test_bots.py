"""Scripted players: what environments say of them."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.common.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.bots import load_bot
from polyplay.envs.toys.seated import Skirmish
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


def still(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return np.zeros(len(obs), np.int64)


def lazy(obs: np.ndarray, mask: np.ndarray | None) -> int:
    return 0


def broken(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    raise ValueError("no")
