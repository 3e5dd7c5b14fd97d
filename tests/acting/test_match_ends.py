"""Which matches are over, and how they ended: players that never come, and environments that fail in the middle."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.acting import play
from polyplay.acting.play import play_both_sides, scripted_player
from polyplay.acting.rows import EpisodeCounter, MatchEnds
from polyplay.acting.worker import MatchResults
from polyplay.core.tree import Field
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Discrete, Envs
from tests.envs.players import SCRIPT, Scripted


class Selfish(Scripted):
    """Rows say nothing of teams."""

    def _info(self, agent: str) -> dict[str, Any]:
        return {k: v for k, v in super()._info(agent).items() if k != "team_reward"}


class Failing(Selfish):
    """Two players; `a` ends in step 1, `b` in step 3. Some matches fail in step 2."""

    possible_agents = ("a", "b")
    polyplay_teams = {"a": 0, "b": 1}  # noqa: RUF012
    failures = 0

    def _script(self) -> dict[str, tuple[int, int, bool, bool]]:
        return {"a": (0, 1, True, False), "b": (0, 3, True, False)}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        if self.at == 1 and Failing.failures:
            Failing.failures -= 1
            raise ValueError("it fails")
        return super().step(actions)


def results(env: Any, groups: int, rows: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """(groups of lanes in the seats, outcomes) of matches in which group g always plays action g."""
    envs = Envs(env, lanes=2 * groups, groups=groups, agents=groups, inline=True)
    pool, games, found = envs.open(1), EpisodeCounter(envs.lanes), []
    ctx = WorkerContext("act", 0, 1, 0, 3, Counters(1), RunControl())
    watched = MatchResults(pool, games, 2)
    for _ in range(rows * groups):
        lanes, step = pool.recv()
        games.count(ctx, lanes, step, 0, -1)
        watched.watch(lanes, step)
        pool.send(lanes, np.full(2, lanes.start // 2))
        players, scores = watched.take()
        found += [(tuple(p), tuple(s)) for p, s in zip(players.tolist(), scores.tolist(), strict=True)]
    pool.close()
    return found


def test_outcomes_are_those_of_whole_matches_where_a_player_comes_late_or_never():
    """By the sums of Scripted's rewards, 10 · step + action."""
    found, seen = results(Selfish, 3, 80), Counter[int]()
    for (a, b, c), outcome in found:
        expected = []
        for script in SCRIPT:
            ret = dict.fromkeys("abc", 0.0)
            for agent, action in zip("abc", (a, b, c), strict=True):
                come, end, *_ = script.get(agent, (0, 0))
                ret[agent] = float(sum(10 * t + action for t in range(come + 1, end + 1)))
            expected.append((ret["a"] + ret["b"], ret["c"]))
        assert outcome in expected
        seen[expected.index(outcome)] += 1
    assert min(seen[i] for i in range(3)) >= 7
    assert len({players for players, _ in found}) == 6, "seats are drawn anew"


@pytest.mark.parametrize("failures", [0, 1, 5])
def test_a_match_that_failed_has_no_outcome_and_those_after_it_are_whole(failures):
    Failing.failures = failures
    found = results(Failing, 2, 60)
    assert Failing.failures == 0
    assert len(found) >= 2 * 60 // 4 - 2 * failures - 2
    assert all(outcome == (10.0 + a, 60.0 + 3 * b) for (a, b), outcome in found)


@dataclass(frozen=True)
class Flattered:
    """Whose actions are higher is paid more; the match is won by the other team, in its last step."""

    seats, teams, team_reward = 2, (0, 1), True
    obs, action = Field((1,), "float32"), Discrete(9)

    def reset(self, draw: Any, n: int) -> dict[str, np.ndarray]:
        return {"here": np.ones((n, 2), bool), "age": np.zeros(n)}

    def step(self, s: Any, action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        end = np.repeat(s["age"][:, None] == 2, 2, 1)
        won = np.sign(action[:, ::-1] - action) * end
        row = {"reward": action.astype(float), "team_reward": won, "terminated": end, "truncated": np.zeros_like(end)}
        return {"here": ~end, "age": s["age"] + 1}, row

    def see(self, s: Any) -> np.ndarray:
        return np.zeros((len(s["age"]), 2, 1), np.float32)


def test_a_team_reward_says_who_has_won_whatever_was_paid_on_the_way():
    found = results(f"toy:{__name__}:Flattered", 2, 40)
    assert len(found) > 10
    assert all(outcome == (float(b > a) * 2 - 1, float(a > b) * 2 - 1) for (a, b), outcome in found if a != b)


class Still:
    """A policy that always does the first thing."""

    noise = 0

    def initial(self, lanes: int) -> dict:
        return {}

    def act(self, step: dict, state: dict) -> tuple[dict, dict]:
        return {"action": torch.zeros(len(step["first"]), dtype=torch.int64)}, {}


def test_games_of_players_that_never_come_are_not_waited_for(monkeypatch):
    envs = Envs(Scripted, lanes=3, inline=True)
    spec, taken = envs.spec, []
    monkeypatch.setattr(play, "LANES", 3)
    for games in play.play_steps(envs, Still(), play.PlayOptions(9, 0)):  # type: ignore[arg-type]
        taken += games
    assert spec.seats == 3
    assert sorted(g.number for g in taken) == [0, 1, 2, 3, 4, 5, 6, 7], "the third match has no c, which is lane 2"


def test_a_match_of_a_tournament_that_failed_is_played_again():
    Failing.failures = 2
    envs = Envs(Failing, lanes=2, inline=True)
    bots = [scripted_player(lambda obs, mask, i=i: np.full(len(obs), i)) for i in (3, 0)]
    assert play_both_sides(envs, *bots, 12, seed=0).tolist() == [0.0] * 6 + [1.0] * 6
    assert Failing.failures == 0


def test_rows_of_one_turn_may_come_in_parts():
    ends, row = MatchEnds(np.array([[0, 1], [2, 3]])), {"over": np.zeros(2, bool)}
    first, later = {**row, "first": np.ones(2, bool)}, {**row, "first": np.zeros(2, bool)}
    over = {"over": np.ones(2, bool), "first": np.zeros(2, bool)}
    a, b = np.array([0, 2]), np.array([1, 3])
    turns = [(a, first), (b, first), (a, later), (b, first), (a, later), (b, later), (a, over), (b, over), (a, first)]
    for lanes, step in turns:
        assert not len(ends.watch(lanes, step).whole)
    assert ends.watch(b, first).whole.tolist() == [0, 1]
