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
    assert load_bot(bots, "still") is still


def test_the_toys_bots_are_its_methods():
    spec = Envs("toy:skirmish", lanes=4).spec
    assert [load_bot(spec.bots, name) for name in spec.bots] == [Skirmish.opposite, Skirmish.focus]


@pytest.mark.parametrize("bots", [["still"], {"still": 3}])
def test_bots_that_have_no_names_are_refused(bots):
    with pytest.raises(UserError, match='polyplay_bots must be a dict of "module:callable" by name, given'):
        _ = Envs(Botted, lanes=3, kwargs={"bots": bots}).spec


def test_a_bot_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"polyplay_bots: tests\.envs\.test_bots:stil given, .* has no 'stil'.*still"):
        load_bot({"still": "tests.envs.test_bots:stil"}, "still")


def still(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return np.zeros(len(obs), np.int64)
