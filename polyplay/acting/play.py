"""Play full games with a run's weights, every lane its fair share, and say how they went."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polyplay.acting.rows import POLICY_INPUTS, as_tensors
from polyplay.common import checkpoint, tree
from polyplay.common.rng import uniform
from polyplay.envs import All, random_actions

Film = Callable[[Any, Any], None]  # (step, pool): sees every step

LANES = 16
SEED = 10_000_019  # evaluation never repeats the seeds of training
CHANCE = 20_000_003  # nor does ε take the policy's own noise


class PlayedGame(NamedTuple):
    """A full game: its unclipped, undiscounted return, all lives; its length in agent steps; which one it was."""

    ret: float
    length: int
    number: int  # the g-th game of lane l of L: g · L + l


@dataclass(frozen=True)
class PlayOptions:
    """epsilon: the chance of a uniform random action instead of the policy's own, per lane and step. greedy: the
    policy's own is its likeliest.
    """

    episodes: int
    seed: int = 0
    greedy: bool = False
    epsilon: float = 0.0


def play_games(
    envs: Any, policy: Any, episodes: int, seed: int, greedy: bool = False, film: Film | None = None, epsilon: float = 0
) -> list[tuple[float, int]]:
    """(return, length) of `episodes` full games, by their numbers. Every lane has its quota, so short games don't
    crowd in.
    """
    games = [g for found in play_steps(envs, policy, PlayOptions(episodes, seed, greedy, epsilon), film) for g in found]
    return [(g.ret, g.length) for g in sorted(games, key=lambda g: g.number)]


def lanes_of(envs: Any, episodes: int) -> int:
    """How many lanes play so many games."""
    return envs.spec.width or min(episodes, LANES)


def play_steps(envs: Any, policy: Any, how: PlayOptions, film: Film | None = None) -> Iterator[list[PlayedGame]]:
    """After every step of all lanes those games that ended in it and count."""
    lanes = lanes_of(envs, how.episodes)
    together: Any = {"batching": All(), "groups": 1, "active": 0}  # however they go in training
    if envs.options.get("starts"):  # a game that was begun anew would take another's start state
        together |= {"options": {**envs.options, "stride": lanes}, "max_restarts": 0}
    pool = replace(envs, lanes=lanes, workers=0, **together).open(how.seed + SEED)
    try:
        yield from _turns(pool, policy, how, film)
    finally:
        pool.close()


def _turns(pool: Any, policy: Any, how: PlayOptions, film: Film | None) -> Iterator[list[PlayedGame]]:
    lanes = pool.lanes
    quota = how.episodes // lanes + (np.arange(lanes) < how.episodes % lanes)
    state, done = policy.initial(lanes), np.zeros(lanes, np.int64)
    ret, length = np.zeros(lanes), np.zeros(lanes, np.int64)
    choose = _chooser(pool.spec, policy, how, np.arange(lanes))
    for act in itertools.count():
        which, step = pool.recv()
        action, state = choose(step, state, act)
        if film is not None:
            film(step, pool)
        ret += step["reward"]
        length += ~step["first"]
        games = []
        for i in np.flatnonzero(step["over"]):
            if done[i] < quota[i]:
                games.append(PlayedGame(float(ret[i]), int(length[i]), int(done[i] * lanes + i)))
            done[i] += 1
            ret[i], length[i] = 0.0, 0
        yield games
        if (done >= quota).all():
            return
        pool.send(which, action)


def actions_of_games(
    envs: Any, policy: Any, how: PlayOptions, first: int, seed: int
) -> Iterator[tuple[Any, np.ndarray]]:
    """The first games of lanes `first` …, one each: (actions, bool [lanes]: whose game is over), step by step."""
    numbers = first + np.arange(how.episodes)
    pool = replace(envs, lanes=how.episodes, workers=0, batching=All(), groups=1, active=0, max_restarts=0).open(
        seed, first
    )
    try:
        state, over = policy.initial(how.episodes), np.zeros(how.episodes, bool)
        choose = _chooser(pool.spec, policy, how, numbers)
        for act in itertools.count():
            which, step = pool.recv()
            action, state = choose(step, state, act)
            over |= step["over"]
            yield action, over
            if over.all():
                return
            pool.send(which, action)
    finally:
        pool.close()


def _chooser(
    spec: Any, policy: Any, how: PlayOptions, numbers: np.ndarray
) -> Callable[[Any, Any, int], tuple[Any, Any]]:
    """A function (step, state, number of the act) → (actions, the state after them), for lanes of these numbers."""
    lanes, drawn = len(numbers), random_actions.action_width(spec.action) if how.epsilon else 0

    def choose(step: Any, state: Any, act: int) -> tuple[Any, Any]:
        inputs = {k: step[k] for k in POLICY_INPUTS if k in step}
        if not how.greedy:
            inputs["noise"] = uniform(how.seed + SEED, numbers, np.full(lanes, act), policy.noise)
        with torch.no_grad():
            out, after = policy.act(as_tensors(inputs), state)
        action = tree.map(lambda x: x.numpy(), out["action"])
        if not how.epsilon:
            return action, after
        luck = uniform(how.seed + CHANCE, numbers, np.full(lanes, act), 1 + drawn)
        other, random = (
            random_actions.random_actions(spec.action, luck[:, 1:], step.get("mask")),
            luck[:, 0] < how.epsilon,
        )
        if "action" in after:  # a core that hears what was done before it
            after["action"] = tree.map(lambda x: torch.from_numpy(x), random_actions.mix_random(action, other, random))
        return random_actions.mix_random(action, other, random), after

    return choose


def load_policy(system: Any, path: Path, agent: int = 0) -> Any:
    policy = system.policy()
    checkpoint.load_into(policy, checkpoint.open_checkpoint(path).arrays(checkpoint.policy_name(agent)))
    return policy


def summarize_games(games: list[tuple[float, int]], frames_per_step: int, seconds: float) -> dict[str, Any]:
    returns, lengths = np.array([g[0] for g in games]), np.array([g[1] for g in games])
    return {
        "episodes": len(games),
        "episodic_return_mean": float(returns.mean()),
        "episodic_return_std": float(returns.std()),
        "episodic_return_min": float(returns.min()),
        "episodic_return_max": float(returns.max()),
        "episodic_return_median": float(np.median(returns)),
        "episodic_length_mean": float(lengths.mean()),
        "frames": int(lengths.sum()) * frames_per_step,
        "seconds": round(seconds, 3),
        "returns": [float(r) for r in returns],
    }
