"""Two players as two teams: matches equal those played one by one, sides are swapped, states and masks are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.acting.play import (
    SEED,
    PlayOptions,
    both_side_steps,
    play_both_sides,
    policy_player,
    random_player,
    scripted_player,
)
from polyplay.core.tree import Batch, Field
from polyplay.envs import Discrete, Envs
from polyplay.envs.lane import Seats
from polyplay.games.toys import Skirmish

BOT, BEST = scripted_player(Skirmish.opposite), scripted_player(Skirmish.focus)


def one_by_one(envs: Envs, bots: tuple[Any, Any], seed: int, place: int, matches: int) -> list[float]:
    """Points of the first team in the matches of one place, played alone."""
    seats = envs.spec.seats
    pool = Envs(envs.name, seats, options=envs.options).open(seed + SEED, place * seats)
    found, ret, over = list[float](), np.zeros(seats), np.zeros(seats, bool)
    while len(found) < matches:
        which, step = pool.recv()
        ret, over = ret + step["reward"], over | step["over"]
        if over.all():
            mine, theirs = (sum(ret[seat] for seat in range(seats) if envs.spec.sides[seat] == t) for t in (0, 1))
            found.append(1.0 if mine > theirs else 0.0 if mine < theirs else 0.5)
            ret, over = np.zeros(seats), np.zeros(seats, bool)
        chosen = [bots[envs.spec.sides[seat]](step["obs"][seat : seat + 1])[0] for seat in range(seats)]
        pool.send(which, np.array(chosen))
    return found


@pytest.mark.parametrize("name", ["toy:skirmish", "toy:skirmish+late=3", "toy:skirmish+steps=4"])
def test_matches_equal_those_played_one_by_one(name: str):
    envs = Envs(name, 4)
    points = play_both_sides(envs, BOT, BEST, 74, seed=5)[:37]
    for place in (0, 4, 5, 15):
        own = points[place::16].tolist()
        assert own == one_by_one(envs, (Skirmish.opposite, Skirmish.focus), 5, place, len(own))
    assert len(set(points)) > 1


def by_state(obs: np.ndarray, mask: None, at: Seats) -> np.ndarray:
    return Skirmish.focus(at.game.see(at.states)[at.match, at.seat])


by_state.plays_state = True  # type: ignore[attr-defined]


def test_a_bot_of_the_state_plays_as_one_that_sees_it():
    envs = Envs("toy:skirmish", 4)
    seen, known = (play_both_sides(envs, BOT, other, 60, 3) for other in (BEST, scripted_player(by_state)))
    assert (seen == known).all()
    assert 0 < seen.sum() < 60


def test_sides_are_swapped_exactly():
    envs = Envs("toy:skirmish+health=2", 4)
    mine, theirs = play_both_sides(envs, BOT, BEST, 40, 3), play_both_sides(envs, BEST, BOT, 40, 3)
    assert (mine[:20] + theirs[20:] == 1).all()
    assert (mine[20:] + theirs[:20] == 1).all()
    assert 0 < mine[:20].sum() + mine[20:].sum() < 20


def test_a_win_a_draw_and_a_loss():
    def always(action: int) -> Any:
        return scripted_player(lambda obs, mask: np.full(len(obs), action))

    envs = Envs("toy:rps", 2)
    for other, points in ((0, 0.5), (2, 1.0), (1, 0.0)):
        found = play_both_sides(envs, always(0), always(other), 6, 0)
        assert found.tolist() == [points] * 6


class Counting:
    """A policy with a memory: its action is the number of rows since the episode began."""

    noise = 0

    def initial(self, n: int) -> Batch:
        return {"age": torch.full((n,), 7)}

    def act(self, inputs: Batch, state: Batch) -> tuple[Batch, Batch]:
        age = torch.where(inputs["first"], 0, state["age"] + 1)
        return {"action": age % 3}, {"age": age}


def test_a_memory_begins_anew_with_every_match():
    envs = Envs("toy:rps+rounds=2", 2)
    rock = scripted_player(lambda obs, mask: np.zeros(len(obs), np.int64))
    counting: Any = Counting()
    found = play_both_sides(envs, policy_player(counting, PlayOptions(1)), rock, 80, 0)
    assert found.tolist() == [1.0] * 80  # rock and paper; paper and scissors had lost


def test_random_players_are_others_on_the_other_side_and_the_same_again():
    envs = Envs("toy:rps", 2)
    rock = scripted_player(lambda obs, mask: np.zeros(len(obs), np.int64))
    found = play_both_sides(envs, random_player(0), rock, 200, 0)
    assert (found == play_both_sides(envs, random_player(0), rock, 200, 0)).all()
    assert (found != play_both_sides(envs, random_player(1), rock, 200, 0)).any()
    assert (found[:100] != found[100:]).any()
    assert 0.35 < found.mean() < 0.65


@dataclass(frozen=True)
class OneLegal:
    """In each seat only one of four actions is legal, the next one in every step."""

    seats, obs, action, legality = 2, Field((1,), "float32"), Discrete(4), Field((4,), "bool")

    def reset(self, draw: Any, n: int) -> Batch:
        return {"here": np.ones((n, 2), bool), "age": np.zeros(n, np.int64)}

    def legal(self, s: Batch) -> np.ndarray:
        return np.arange(4) == ((s["age"][:, None] + np.arange(2)) % 4)[..., None]

    def step(self, s: Batch, action: np.ndarray, draw: Any) -> tuple[Batch, Batch]:
        assert np.take_along_axis(self.legal(s), action[..., None], 2).all()
        end = np.repeat((s["age"] == 4)[:, None], 2, 1)
        row = {"reward": np.array([[1.0, 0.0]]).repeat(len(end), 0), "terminated": end, "truncated": ~end & end}
        return {"here": ~end, "age": s["age"] + 1}, row

    def see(self, s: Batch) -> np.ndarray:
        return np.zeros((len(s["age"]), 2, 1), np.float32)


def test_masks_are_kept():
    envs = Envs(f"toy:{__name__}:OneLegal", 2)
    found = play_both_sides(envs, random_player(0), random_player(1), 40, 0)
    assert found.tolist() == [1.0] * 20 + [0.0] * 20


class Bought(OneLegal):
    """The first seat has all rewards, the second the team's."""

    team_reward = True

    def step(self, s: Batch, action: np.ndarray, draw: Any) -> tuple[Batch, Batch]:
        after, row = super().step(s, action, draw)
        return after, {**row, "team_reward": 1e-3 * np.array([[-1.0, 1.0]]).repeat(len(row["reward"]), 0)}


class Apart(Bought):
    """Two a side, of whom the second seat leaves after its first step: seats share what their team gets."""

    seats, teams = 4, (0, 0, 1, 1)

    def reset(self, draw: Any, n: int) -> Batch:
        return {"here": np.ones((n, 4), bool), "age": np.zeros(n, np.int64)}

    def legal(self, s: Batch) -> np.ndarray:
        return np.ones((len(s["age"]), 4, 4), bool)

    def step(self, s: Batch, action: np.ndarray, draw: Any) -> tuple[Batch, Batch]:
        n, age = len(s["age"]), s["age"] + 1
        end = np.repeat((age == 3)[:, None], 4, 1) | (np.arange(4) == 1)
        shared = np.where((age == 2)[:, None], [3.0, 3.0, 2.0, 2.0], [0.0, 0.0, 1.0, 1.0])  # 3 against 4 in all
        row = {"reward": np.zeros((n, 4)), "team_reward": shared, "terminated": end, "truncated": end & ~end}
        return {"here": s["here"] & ~end, "age": age}, row

    def see(self, s: Batch) -> np.ndarray:
        return np.zeros((len(s["age"]), 4, 1), np.float32)


@pytest.mark.parametrize("toy", ["Bought", "Apart"])
def test_the_team_reward_says_who_has_won_where_there_is_one(toy):
    envs = Envs(f"toy:{__name__}:{toy}", 4)
    found = play_both_sides(envs, random_player(0), random_player(1), 10, 0)
    assert found.tolist() == [0.0] * 5 + [1.0] * 5


def test_it_yields_after_every_step():
    assert 10 < sum(1 for _ in both_side_steps(Envs("toy:skirmish", 4), BOT, BEST, 6, 3)) < 100
