"""Matches of two players on an environment with seats: each player has all seats of one team."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
    half = matches // 2
    return np.concatenate(
        [play_teams(envs, (player, other), half, seed), 1 - play_teams(envs, (other, player), half, seed)]
    )


def play_teams(envs: Envs, players: tuple[TeamPlayer, TeamPlayer], matches: int, seed: int) -> np.ndarray:
    """float64 [matches]: points of the first team, whose returns are summed over its seats; more is a win. Every place
    for a match has its quota, so short matches don't crowd in.
    """
    at_once, team = min(matches, LANES), np.array(envs.spec.sides)
    points, board = np.full(matches, np.nan), (at_once, len(team))
    lanes = [np.flatnonzero(np.tile(team, at_once) == t) for t in (0, 1)]
    ret, done, everyone = np.zeros(board), np.zeros(at_once, np.int64), np.arange(at_once * len(team))
    ends = MatchEnds(everyone.reshape(board))
    with closing(_open(envs, at_once, seed)) as pool:
        choosers = [player(pool, own) for player, own in zip(players, lanes, strict=True)]
        action = tree.zeros(fields(pool.spec.action), (at_once * len(team),))
        while True:
            which, step = pool.recv()
            over = ends.watch(everyone, step)
            for i in over.whole:
                if (number := done[i] * at_once + i) < matches:
                    points[number] = (1 + np.sign(ret[i, team == 0].sum() - ret[i, team == 1].sum())) / 2
                done[i] += 1
            for some in over:
                ends.forget(some)
                ret[some] = 0.0
            if not np.isnan(points).any():
                return points
            ret += step["reward"].reshape(board)
            for choose, own in zip(choosers, lanes, strict=True):
                tree.write(action, own, choose(tree.at(step, own)))
            pool.send(which, action)


def _open(envs: Envs, matches: int, seed: int) -> Pool:
    """So many matches in step; match m has lanes m·seats …, in the order of the seats."""
    how: Batch = {"batching": All(), "groups": 1, "agents": 1, "active": 0, "workers": 0}
    return replace(envs, lanes=matches * envs.spec.seats, **how).open(seed + SEED)
