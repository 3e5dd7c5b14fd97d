"""Lanes that would step one environment together are refused, wherever the function hides it."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import pytest

from polyplay.core.errors import UserError
from polyplay.envs import Envs, rules
from polyplay.envs.inline_pool import InlinePool
from tests.envs.faulty import Obedient
from tests.envs.players import Scripted
from tests.envs.vectors import Counting

TEXT = "the function returned the same environment twice .*rule copies"
POLE = gymnasium.make("CartPole-v1")
MATCH, MANY = Scripted(), Counting(2)


def pole():
    return POLE


def wrapped():
    """Another object each time, around the same one."""
    return gymnasium.wrappers.TimeLimit(POLE, 10)


class Simulator:
    def step(self):
        pass


SIMULATOR = Simulator()


class Inside(Obedient):
    """Another object each time, with the same environment or simulator in it."""

    def __init__(self, inner=POLE):
        super().__init__()
        self.game = inner


def match():
    return MATCH


def many():
    return MANY


@pytest.mark.parametrize(
    "make", [pole, wrapped, match, lambda: POLE, Inside, lambda: Inside(SIMULATOR), lambda: gymnasium.Wrapper(Inside())]
)
def test_the_same_environment_twice(make):
    with pytest.raises(UserError, match=TEXT) as e:
        Envs(make, 3, inline=True).spec  # noqa: B018
    assert "\n" not in str(e.value)


def test_a_probe_says_so_too():
    with pytest.raises(UserError, match=f"wrapped: {TEXT}"):
        Envs(wrapped, 2).spec  # noqa: B018


@pytest.mark.parametrize("kind", [{"inline": True}, {"workers": 1}], ids=["inline", "process"])
def test_lanes_look_themselves_where_building_takes_too_long_to_try(kind, monkeypatch):
    monkeypatch.setattr(rules, "QUICK", 0.0)
    envs = Envs(wrapped, 2, **kind)
    with monkeypatch.context() as patch:
        patch.setattr(rules, "check_second", lambda *_: None)
        described = Envs(wrapped, 2, inline=True).spec
    envs.__dict__["spec"] = described
    with pytest.raises(UserError, match=TEXT), closing(envs.open(0)) as pool:
        pool.recv(60)


def test_groups_of_vectors_look_too(monkeypatch):
    monkeypatch.setattr(rules, "check_second", lambda *_: None)
    with pytest.raises(UserError, match=TEXT):
        Envs(many, 4, groups=2, inline=True).open(0)


def test_a_lane_that_begins_anew_and_a_pool_after_another_may_have_it(monkeypatch):
    """What was closed is nobody's."""
    monkeypatch.setattr(rules, "check_second", lambda *_: None)
    for _ in range(2):
        with closing(Envs(pole, 1, inline=True).open(0)) as pool:
            assert isinstance(pool, InlinePool)
            pool.recv()
            pool._units[0].close()
            pool._units[0].prepare()
    assert not rules._taken


def test_environments_of_their_own_are_let_be():
    assert Envs(Obedient, 2, inline=True).spec.action.n == 10
    known = rules.wrapped_parts(gymnasium.make("CartPole-v1"))
    assert len(known) == len({id(part) for part in known}) > 1
    assert any(part is known[0].unwrapped for part in known)


def test_what_can_be_built_once_only_is_no_fault_here():
    left = [Obedient()]
    assert Envs(lambda: left.pop(), 1, inline=True).spec.action.n == 10
