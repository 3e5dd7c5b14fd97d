"""Matches of two players on an environment with seats: each player has all seats of one team."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

import numpy as np

from polyplay.acting.match_ends import MatchEnds
from polyplay.acting.play import LANES, SEED, PlayOptions, choose_actions
from polyplay.common import tree
from polyplay.common.tree import Batch, Tree
from polyplay.envs import All, Envs
from polyplay.envs.bots import Bot, seat_bot
from polyplay.envs.pool import Pool, lane_seeds
from polyplay.envs.random_actions import action_sampler
from polyplay.envs.spaces import fields
from polyplay.nets.policy import Policy

Choose = Callable[[Batch], Tree]  # rows of a team's lanes: their actions
TeamPlayer = Callable[[Pool, np.ndarray], Choose]  # plays lanes of these numbers, from their first rows on


def policy_player(policy: Policy, how: PlayOptions) -> TeamPlayer:
    """A policy with a state for each lane."""

    def begin(pool: Pool, lanes: np.ndarray) -> Choose:
        state, acts = policy.initial(len(lanes)), itertools.count()

        def choose(step: Batch) -> Tree:
            nonlocal state
            action, state = choose_actions(pool.spec, policy, how, lanes, step, state, next(acts))
            return action

        return choose

    return begin


def random_player(seed: int) -> TeamPlayer:
    """Every legal action with the same chance."""

    def begin(pool: Pool, lanes: np.ndarray) -> Choose:
        draw = action_sampler(pool.spec.action, int(lane_seeds(seed + SEED, int(lanes[0]), 1)[0]))
        return lambda step: draw(len(lanes), step.get("mask"))

    return begin


def scripted_player(bot: Bot) -> TeamPlayer:
    """The bot, which says at the first rows whether it can play there: raises UserError, see seat_bot."""

    def begin(pool: Pool, lanes: np.ndarray) -> Choose:
        seated = seat_bot(bot, pool, lanes)
        return lambda step: seated(step["obs"], step.get("mask"))

    return begin


def play_both_sides(envs: Envs, player: TeamPlayer, other: TeamPlayer, matches: int, seed: int) -> np.ndarray:
    """float64 [matches]: the player's points, 1 for a win and ½ for a draw. In the first half of the matches it is the
    first team, in the second half, from the same seeds, the other.
    """
    return _end_of(both_side_steps(envs, player, other, matches, seed))


def play_teams(envs: Envs, players: tuple[TeamPlayer, TeamPlayer], matches: int, seed: int) -> np.ndarray:
    """float64 [matches]: points of the first team. Who has more team reward over the match wins; where rows have none,
    whose returns are more, summed over seats. Every place for a match has its quota, so short matches don't crowd in.
    """
    return _end_of(team_steps(envs, players, matches, seed))


def both_side_steps(
    envs: Envs, player: TeamPlayer, other: TeamPlayer, matches: int, seed: int
) -> Generator[None, None, np.ndarray]:
    """play_both_sides, which yields after every step of all matches."""
    first = yield from team_steps(envs, (player, other), matches // 2, seed)
    second = yield from team_steps(envs, (other, player), matches // 2, seed)
    return np.concatenate([first, 1 - second])


def team_steps(
    envs: Envs, players: tuple[TeamPlayer, TeamPlayer], matches: int, seed: int
) -> Generator[None, None, np.ndarray]:
    """play_teams, which yields after every step of all matches."""
    at_once, team = min(matches, LANES), np.array(envs.spec.sides)
    points, scores = np.full(matches, np.nan), np.zeros((at_once, 2))
    lanes = [np.flatnonzero(np.tile(team, at_once) == t) for t in (0, 1)]
    done, everyone = np.zeros(at_once, np.int64), np.arange(at_once * len(team))
    ends = MatchEnds(everyone.reshape(at_once, len(team)))
    with closing(_open(envs, at_once, seed)) as pool:
        choosers = [player(pool, own) for player, own in zip(players, lanes, strict=True)]
        action = tree.zeros(fields(pool.spec.action), (at_once * len(team),))
        while True:
            which, step = pool.recv()
            over = ends.watch(everyone, step)
            for i in over.whole:
                if (number := done[i] * at_once + i) < matches:
                    points[number] = (1 + np.sign(scores[i, 0] - scores[i, 1])) / 2
                done[i] += 1
            for some in over:
                ends.forget(some)
                scores[some] = 0.0
            if not np.isnan(points).any():
                return points
            scores += _team_scores(step, team)
            for choose, own in zip(choosers, lanes, strict=True):
                tree.write(action, own, choose(tree.at(step, own)))
            pool.send(which, action)
            yield


def _team_scores(step: Batch, team: np.ndarray) -> np.ndarray:
    """float64 [matches, 2]: what a row of every match adds to the scores of its teams. A team reward is the same for
    all seats that are there. team: of each seat.
    """
    board, own = (-1, len(team)), (team[:, None] == (0, 1)).astype(np.float64)  # own: [seats, teams]
    if "team_reward" not in step:
        return step["reward"].reshape(board) @ own
    there = ~step["first"].reshape(board)
    return np.where(there, step["team_reward"].reshape(board), 0.0) @ own / np.maximum(there @ own, 1)


def _end_of(steps: Generator[None, None, np.ndarray]) -> np.ndarray:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return np.asarray(end.value)


def _open(envs: Envs, matches: int, seed: int) -> Pool:
    """So many matches in step; match m has lanes m·seats …, in the order of the seats."""
    how: Batch = {"batching": All(), "groups": 1, "agents": 1, "active": 0, "workers": 0}
    return replace(envs, lanes=matches * envs.spec.seats, **how).open(seed + SEED)
