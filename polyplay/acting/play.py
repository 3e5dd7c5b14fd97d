"""Play full games with a run's weights, every lane its fair share, and say how they went."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch

from polyplay.acting.match_ends import MatchEnds
from polyplay.acting.on_device import policy_from_cpu
from polyplay.acting.rows import as_tensors, policy_inputs
from polyplay.common import checkpoint, tree
from polyplay.common.files import Row
from polyplay.common.past_selves import read_self
from polyplay.common.rng import uniform
from polyplay.common.tree import Batch, Tree
from polyplay.envs import All, Envs, random_actions
from polyplay.envs.pool import EnvSpec, Pool
from polyplay.nets.policy import Policy, PolicyFactory

Viewer = Callable[[Batch, Pool], None]  # is given every step and the pool

LANES = 16
SEED = 10_000_019  # evaluation never repeats the seeds of training
CHANCE = 20_000_003  # nor does ε take the policy's own noise


class PlayedGame(NamedTuple):
    """A full game: its unclipped, undiscounted return, all lives; its length in agent steps; which one it was."""

    ret: float
    length: int
    number: int  # the g-th game of lane l of L: g · L + l


# of the games that ended in a step of all lanes, and how many these are
Watch = Callable[[list[PlayedGame], int], bool]


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
    envs: Envs,
    policy: Policy,
    episodes: int,
    seed: int,
    greedy: bool = False,
    viewers: Sequence[Viewer] = (),
    epsilon: float = 0,
    watch: Watch = lambda found, lanes: True,
) -> list[tuple[float, int]]:
    """(return, length) of `episodes` full games, by their numbers. Every lane has its quota, so short games don't
    crowd in. `watch` says after every step whether to go on: where it does not, fewer games are over.
    """
    games, lanes = list[PlayedGame](), lanes_of(envs, episodes)
    with closing(play_steps(envs, policy, PlayOptions(episodes, seed, greedy, epsilon), viewers)) as steps:
        for found in steps:
            games += found
            if not watch(found, lanes):
                break
    return [(g.ret, g.length) for g in sorted(games, key=lambda g: g.number)]


def lanes_of(envs: Envs, episodes: int) -> int:
    """How many lanes play so many games."""
    few = min(episodes, LANES)
    return envs.spec.width or max(few // envs.spec.seats, 1) * envs.spec.seats


def play_steps(
    envs: Envs, policy: Policy, how: PlayOptions, viewers: Sequence[Viewer] = ()
) -> Generator[list[PlayedGame], None, None]:
    """After every step of all lanes those games that ended in it and count. A player that never comes to a match has no
    game there.
    """
    lanes = lanes_of(envs, how.episodes)
    if envs.options.get("starts"):  # a game that was begun anew would take another's start state
        envs = replace(envs, options={**envs.options, "stride": lanes}, max_restarts=0)
    quota = how.episodes // lanes + (np.arange(lanes) < how.episodes % lanes)
    ret, length, done = np.zeros(lanes), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    ends, everyone = MatchEnds(np.arange(lanes).reshape(-1, envs.spec.seats)), np.arange(lanes)
    with closing(_steps(envs, lanes, how.seed + SEED, policy, how, viewers=viewers)) as steps:
        for step, _ in steps:
            for matches in ends.watch(everyone, step):
                done[ends.lanes[matches][~ends.came[ends.lanes[matches]]]] += 1
                ends.forget(matches)
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


def actions_of_games(
    envs: Envs, policy: Policy, how: PlayOptions, first: int, seed: int
) -> Iterator[tuple[Tree, np.ndarray]]:
    """The first games of lanes `first` …, one each: (actions, bool [lanes]: whose game is over), step by step."""
    over = np.zeros(how.episodes, bool)
    with closing(_steps(replace(envs, max_restarts=0), how.episodes, seed, policy, how, first)) as steps:
        for step, action in steps:
            over |= step["over"]
            yield action, over
            if over.all():
                return


def _steps(
    envs: Envs, lanes: int, seed: int, policy: Policy, how: PlayOptions, first: int = 0, viewers: Sequence[Viewer] = ()
) -> Generator[tuple[Batch, Tree], None, None]:
    """Every row of lanes `first` … together, however they go in training, and the actions chosen in it."""
    shown = replace(envs, lanes=lanes, workers=0, batching=All(), groups=1, active=0, agents=1)
    with closing(shown.open(seed, first)) as pool:
        state, numbers = policy.initial(lanes), first + np.arange(lanes)
        for act in itertools.count():
            which, step = pool.recv()
            action, state = choose_actions(pool.spec, policy, how, numbers, step, state, act)
            for viewer in viewers:
                viewer(step, pool)
            yield step, action
            pool.send(which, action)


def choose_actions(
    spec: EnvSpec, policy: Policy, how: PlayOptions, numbers: np.ndarray, step: Batch, state: Batch, act: int
) -> tuple[Tree, Batch]:
    """The actions of lanes of these numbers, and the state after them; `act`: how often they acted before."""
    action, _, after = choose_with_value(spec, policy, how, numbers, step, state, act)
    return action, after


def choose_with_value(
    spec: EnvSpec, policy: Policy, how: PlayOptions, numbers: np.ndarray, step: Batch, state: Batch, act: int
) -> tuple[Tree, np.ndarray | None, Batch]:
    """The same with the network's values [B] between them, where it has some."""
    inputs, acts = policy_inputs(step), np.full(len(numbers), act)
    if not how.greedy:
        inputs["noise"] = uniform(how.seed + SEED, numbers, acts, policy.noise)
    with torch.no_grad():
        out, after = policy.act(as_tensors(inputs), state)
    action = tree.map(lambda x: x.numpy(), out["action"])
    value = out["value"].numpy() if "value" in out else None
    if not how.epsilon:
        return action, value, after
    luck = uniform(how.seed + CHANCE, numbers, acts, 1 + random_actions.action_width(spec.action))
    other = random_actions.random_actions(spec.action, luck[:, 1:], step.get("mask"))
    action = random_actions.mix_random(action, other, luck[:, 0] < how.epsilon)
    if "action" in after:  # a core whose inputs include the action before
        after["action"] = tree.map(torch.from_numpy, action)
    return action, value, after


class PlayableSystem(Protocol):
    @property
    def policy(self) -> PolicyFactory: ...


def load_policy(system: PlayableSystem, path: Path, agent: int = 0) -> Policy:
    """path: a checkpoint, or the file of an agent's weights alone."""
    policy, alone = system.policy(), path.suffix == checkpoint.ARRAYS
    saved = read_self(path) if alone else checkpoint.open_checkpoint(path).arrays(checkpoint.policy_name(agent))
    checkpoint.load_into(policy, saved)
    return policy


def load_player(
    system: PlayableSystem, path: Path, device: str = "cpu", simulations: int | None = None, agent: int = 0
) -> Policy:
    """What plays full games: the network on a device, or a search that asks it, with so many simulations (None: its
    own number).
    """
    policy, player = load_policy(system, path, agent).to(device), getattr(system, "player", None)
    if player is None:
        return policy_from_cpu(policy)
    search = player(policy)
    if simulations is not None:
        search.simulate(simulations)
    return cast("Policy", search)


def summarize_games(games: list[tuple[float, int]], frames_per_step: int, seconds: float) -> Row:
    returns, lengths = np.array([g[0] for g in games]), np.array([g[1] for g in games])
    return {
        "episodes": len(games),
        **{f"episodic_return_{of}": float(getattr(np, of)(returns)) for of in ("mean", "std", "min", "max", "median")},
        "episodic_length_mean": float(lengths.mean()),
        "frames": int(lengths.sum()) * frames_per_step,
        "seconds": round(seconds, 3),
        "returns": [float(r) for r in returns],
    }
